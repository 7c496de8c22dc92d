from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_reports import BROKEN, HEALTHY, labels, line, report
from matplotlib.colors import same_color, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lightning_audit.report.figure import BLUE, VIOLATION, figure
from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.tradeoff import GaussianTradeoff


def boxes(drawn: Figure) -> list[Rectangle]:
    return [patch for patch in drawn.axes[0].patches if isinstance(patch, Rectangle)]


def test_the_claimed_curve_is_the_gaussian_tradeoff_of_the_least_noise() -> None:
    x, y = line(figure(report()), 0, "claimed: 1-GDP").get_data()
    np.testing.assert_array_equal(y, GaussianTradeoff(1.0)(x))
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert np.max(np.diff(x)) < 0.05
    assert np.all(np.diff(x) >= 0)


@pytest.mark.parametrize("significance", [0.05, 0.001])
def test_a_region_is_four_clopper_pearson_limits_at_a_quarter_each(significance: float) -> None:
    drawn = figure(report(settings={"bound_significance": significance}))
    (box,) = boxes(drawn)
    share = significance / 4
    (left, bottom), (right, top) = box.get_bbox().get_points()
    assert (left, bottom) == (
        clopper_pearson_lower(305, 1000, share),
        clopper_pearson_lower(310, 1000, share),
    )
    assert (right, top) == pytest.approx(
        (clopper_pearson_upper(305, 1000, share), clopper_pearson_upper(310, 1000, share))
    )
    label = {0.05: "measured, 95 % region", 0.001: "measured, 99.9 % region"}[significance]
    np.testing.assert_array_equal(line(drawn, 0, label).get_data(), [[0.305], [0.31]])


def test_only_a_region_that_lies_wholly_in_the_forbidden_area_has_the_violation_colour() -> None:
    # Its point is below the curve, its region reaches over it.
    near = OperatingPoint(0.5, fn=29, tp=71, fp=29, tn=71)
    assert GaussianTradeoff(1.0)(0.29) > 0.29
    drawn = figure(report(operating_points=(HEALTHY, near, BROKEN)))
    colours = [box.get_edgecolor() for box in boxes(drawn)]
    assert colours == [to_rgba(BLUE), to_rgba(BLUE), to_rgba(VIOLATION)]
    bad, good = (
        line(drawn, 0, "measured, outside the claim"),
        line(drawn, 0, "measured, 95 % region"),
    )
    np.testing.assert_array_equal(bad.get_data(), [[0.025], [0.02]])
    np.testing.assert_array_equal(good.get_data(), [[0.305, 0.29], [0.31, 0.29]])
    assert same_color(bad.get_color(), VIOLATION)
    assert bad.get_marker() != good.get_marker()  # where there is no colour


def test_guesses_that_are_wrong_far_too_often_are_forbidden_as_well() -> None:
    inverted = OperatingPoint(0.5, fn=980, tp=20, fp=975, tn=25)
    assert "measured, outside the claim" in labels(figure(report(operating_points=(inverted,))), 0)


def test_what_is_shaded_is_below_the_curve_or_above_that_of_the_inverted_guesses() -> None:
    below, above = figure(report()).axes[0].collections
    curve = GaussianTradeoff(1.0)
    for alpha in (0.01, 0.3, 0.9):
        assert below.get_paths()[0].contains_point((alpha, curve(alpha) - 0.004))
        assert not below.get_paths()[0].contains_point((alpha, curve(alpha) + 0.004))
        assert above.get_paths()[0].contains_point((1 - alpha, 1 - curve(alpha) + 0.004))
        assert not above.get_paths()[0].contains_point((1 - alpha, 1 - curve(alpha) - 0.004))


def test_rates_without_trials_are_not_measured() -> None:
    never_in = OperatingPoint(0.5, fn=0, tp=0, fp=3, tn=9)
    drawn = figure(report(operating_points=(never_in,)))
    assert boxes(drawn) == []
    assert "no error rates were measured" in drawn.axes[0].get_title()


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ((), "no step was audited"),
        (((1.0, 0.01, 9), (0.0, 0.01, 1)), "a step has noise_multiplier 0"),
    ],
)
def test_where_no_curve_can_be_drawn_the_panel_says_so_and_accuses_nobody(
    history: tuple[Any, ...], words: str
) -> None:
    drawn = figure(report(history=history, operating_points=(BROKEN,)))
    assert words in drawn.axes[0].get_title()
    assert labels(drawn, 0) == ["guessing", "measured, 95 % region"]
    assert len(drawn.axes[0].collections) == 0


def test_rates_are_drawn_on_a_logarithm_down_to_zero_only_where_they_huddle_in_the_corner() -> None:
    perfect = OperatingPoint(0.5, fn=0, tp=1000, fp=0, tn=1000)
    plain, narrow = figure(report()).axes[0], figure(report(operating_points=(perfect,))).axes[0]
    assert (plain.get_xscale(), plain.get_yscale()) == ("linear", "linear")
    assert (narrow.get_xscale(), narrow.get_yscale()) == ("asinh", "asinh")
    assert [text.get_text() for text in narrow.get_xticklabels()] == [
        "0",
        "0.001",
        "0.01",
        "0.1",
        "1",
    ]
    assert narrow.get_xlim() == narrow.get_ylim() == (0.0, 1.0)
    assert figure(report(history=((0.25, 0.01, 9),))).axes[0].get_xscale() == "asinh"
