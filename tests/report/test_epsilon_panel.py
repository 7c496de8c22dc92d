from __future__ import annotations

import math

import numpy as np
from drawn_reports import LITERATURE, labels, line, report, rows

from lightning_audit.report.figure import _METHOD_STYLES as _STYLES
from lightning_audit.report.figure import figure


def test_each_series_is_the_logged_one_over_steps() -> None:
    drawn = figure(report())
    steps = [29.0 * (i + 1) for i in range(5)]
    named = {"epsilon_lower": "proved, anytime", "epsilon_spent": "spent"}
    named |= {f"epsilon_lower/{name}": _STYLES[name][0] for name in LITERATURE}
    for key, label in named.items():
        x, y = line(drawn, 1, label).get_data()
        assert list(x) == steps
        assert list(y) == [row[key] for row in rows(5)]
    assert drawn.axes[1].get_xlabel() == "step"
    assert drawn.axes[1].get_ylabel() == "epsilon at delta 1e-05"


def test_the_claim_is_a_horizontal_line_at_its_epsilon() -> None:
    claim = line(figure(report(claimed_epsilon=3.25)), 1, "claimed")
    assert list(claim.get_ydata()) == [3.25, 3.25]


def test_the_anytime_bound_is_the_strongest_line_and_no_two_look_the_same() -> None:
    drawn = figure(report())
    widths = {item.get_label(): item.get_linewidth() for item in drawn.axes[1].lines}
    strongest = widths.pop("proved, anytime")
    assert strongest > 1.5 * max(widths.values())
    # Told apart without colour, by marker and dashes.
    looks = {(item.get_marker(), item.get_linestyle()) for item in drawn.axes[1].lines}
    assert len(looks) == len(drawn.axes[1].lines) == 11


def test_a_bound_under_another_name_is_drawn_by_its_name() -> None:
    drawn = figure(report(epochs=({"step": 5.0, "epsilon_lower/newer": 0.3},)))
    assert list(line(drawn, 1, "newer").get_ydata()) == [0.3]


def test_rows_that_lack_a_number_leave_a_gap_and_no_zero() -> None:
    some = (
        {"epoch": 0.0, "step": 10.0, "epsilon_spent": 0.5},
        {"epoch": 1.0, "step": 20.0, "epsilon_lower": 0.1, "epsilon_spent": math.inf},
        {"epoch": 2.0, "step": 30.0, "epsilon_lower": None, "epsilon_spent": 0.9},
    )
    drawn = figure(report(epochs=some))
    np.testing.assert_array_equal(line(drawn, 1, "spent").get_data(), [[10, 30], [0.5, 0.9]])
    np.testing.assert_array_equal(line(drawn, 1, "proved, anytime").get_data(), [[20], [0.1]])


def test_reports_without_steps_are_drawn_over_epochs() -> None:
    old = tuple({k: v for k, v in row.items() if k != "step"} for row in rows(3))
    drawn = figure(report(epochs=old))
    assert list(line(drawn, 1, "spent").get_xdata()) == [0, 1, 2]
    assert drawn.axes[1].get_xlabel() == "epoch"
    bare = tuple({"epsilon_spent": 1.0} for _ in range(2))
    assert list(line(figure(report(epochs=bare)), 1, "spent").get_xdata()) == [0, 1]


def test_bounds_far_below_the_claim_are_told_apart_and_zero_is_still_shown() -> None:
    axes = figure(report(epochs=rows(5, scale=1e-3))).axes[1]
    assert axes.get_yscale() == "asinh"
    assert axes.get_ylim()[0] == 0.0
    assert figure(report(epochs=rows(5, scale=4.0))).axes[1].get_yscale() == "linear"
    zeros = tuple({"step": float(i), "epsilon_lower": 0.0} for i in range(3))
    flat = figure(report(epochs=zeros, claimed_epsilon=None)).axes[1]
    assert (flat.get_yscale(), flat.get_ylim()[0]) == ("linear", 0.0)


def test_epsilons_that_cannot_be_drawn_are_named() -> None:
    endless = figure(report(claimed_epsilon=math.inf, epsilon_spent=math.inf, epochs=()))
    title = endless.axes[1].get_title().replace("\n", " ")
    for words in ("no epoch was logged", "claimed epsilon is infinite", "spent is infinite"):
        assert words in title
    nothing = figure(report(claimed_epsilon=None))
    assert "no epsilon was claimed" in nothing.axes[1].get_title()
    assert "claimed" not in labels(nothing, 1)
