"""Figures of a page: the evidence and epsilons over the steps, the tensors, the trade-off."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
from made_report import STEPS, made_report
from page_reports import LONG, OUTSIDE, epochs, of_outcome
from page_reports import tensors as tensors_of_page_reports
from parsed_page import ParsedPage
from scipy import special

from lightning_audit.report import page_figures as figures
from lightning_audit.report.page_parts import Scale
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import CheckGrowth, TensorNoise
from lightning_audit.stats.tradeoff import GaussianTradeoff


def test_the_growth_is_the_largest_share_times_e_value_so_far():
    threshold = -math.log(0.1 * 1e-3)
    courses = {
        "noise": ((0, 5.0), (4, 9.0)),
        "noise.step": ((2, 4.0), (9, 12.0)),
        "noise.excess": ((1, 50.0),),  # only warns
    }
    tests = {name: CheckGrowth(threshold, rows) for name, rows in courses.items()}
    expected = [(1, 5.0), (5, 9.0), (10, 12.0)]
    found = figures.growth(made_report(tests=tests))
    assert found == [(step, pytest.approx(log_e + math.log(0.1))) for step, log_e in expected]


def test_without_a_course_the_alarms_and_ends_of_epochs_count():
    report = made_report("VIOLATION", epochs=({"step": 100, "e_value": 1e9}, {"epoch": 1}))
    assert figures.growth(report) == [
        (8, pytest.approx(math.log(1e3))),
        (100, pytest.approx(math.log(1e9))),
    ]
    assert figures.growth(made_report()) == []


def test_a_metric_without_step_or_value_is_left_out():
    rows = (
        {"step": 1, "epsilon_spent": 0.0},
        {"step": 2, "epsilon_spent": math.inf},
        {"step": 3},
        {"epsilon_spent": 1.0},
    )
    assert figures.epsilons_by_step(made_report(epochs=rows), "epsilon_spent") == [(1, 0.0)]


def test_tensors_without_a_reading_are_left_out_and_others_name_their_optimizer():
    row = TensorNoise("w", 4, 4, 40, 1.0, 0.9, 1.1, False, "actor")
    unread = dataclasses.replace(row, ratio=None)
    (found,) = figures.tensors(made_report(tensors=(row, unread)))
    assert found.name == "actor: w"
    assert len(figures.tensors(of_outcome("PASS"))) == 6


def section(report: AuditReport) -> dict[str, Any]:
    found = figures.tensor_section(report)
    assert found is not None
    return found


def test_crosses_follow_the_check_and_not_the_interval():
    report = made_report(tensors=tensors_of_page_reports(3, flagged=1))
    low = dataclasses.replace(report.tensors[1], lower=0.1, upper=0.2, ratio=0.15)
    found = section(dataclasses.replace(report, tensors=(report.tensors[0], low)))
    signs = [ParsedPage(dot).values("class") for _, _, dot in found["rows"]]
    assert ["cross" in kinds for kinds in signs] == [True, False]
    assert found["says"] == "1 of 2 tensors has less noise than stated (✕)."


def test_a_common_start_is_in_the_header_and_long_names_are_cut_in_the_middle():
    every = tensors_of_page_reports(3, name="encoder.layers.attention.")
    found = section(made_report(tensors=every))
    assert found["prefix"] == "encoder.layers.attention."
    assert [short for _, short, _ in found["rows"]] == ["0.weight", "1.weight", "2.weight"]
    long = section(made_report(tensors=(dataclasses.replace(every[0], name=LONG),)))
    ((tensor, short, _),) = long["rows"]
    assert (len(short), short[9], tensor.name) == (26, "…", LONG)


def test_a_ratio_outside_of_the_picture_is_an_arrow_at_its_end():
    far = dataclasses.replace(tensors_of_page_reports(1)[0], ratio=9.0, upper=9.5)
    ((tensor, _, dot),) = section(made_report(tensors=(far,)))["rows"]
    parsed = ParsedPage(dot)
    assert "evid good" in parsed.values("class")
    assert "dot good" not in parsed.values("class")
    assert tensor.ratio == 9.0


def drawn(report: AuditReport) -> dict[str, Any]:
    found = figures.timeline(report)
    assert found is not None
    return found


def test_epsilon_has_a_curve_from_three_ends_of_epochs_on():
    for count, curve in ((2, False), (3, True)):
        report = dataclasses.replace(of_outcome("PASS"), epochs=epochs(count))
        assert ("spent" in ParsedPage(drawn(report)["wide"]).values("class")) == curve


def test_the_narrow_picture_has_its_labels_inside_and_ids_of_its_own():
    found = drawn(of_outcome("PASS"))
    wide, narrow = ParsedPage(found["wide"]), ParsedPage(found["narrow"])
    assert not set(wide.ids) & set(narrow.ids)
    right = 356.0 - 12.0
    xs = [float(x) for tag, name, x in narrow.attributes if (tag, name) == ("text", "x")]
    assert max(xs) <= right
    assert "claimed 8" in narrow.text


def test_infinite_epsilons_are_left_out_of_the_curve():
    rows = tuple({**row, "epsilon_spent": float("inf")} for row in epochs())
    report = dataclasses.replace(of_outcome("PASS"), epochs=rows, claimed_epsilon=float("inf"))
    assert "spent" not in ParsedPage(drawn(report)["wide"]).values("class")
    assert STEPS == 100


#: A step that claims mu = 1.
HISTORY = ((1.0, 0.01, 100),)


def report(**changes: object) -> AuditReport:
    return dataclasses.replace(of_outcome("PASS"), **{"history": HISTORY, **changes})


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 4.0])
def test_the_attack_at_one_percent_is_the_best_test_of_two_gaussians(mu):
    assert figures.true_positives(mu) == pytest.approx(special.ndtr(mu - special.ndtri(0.99)))
    assert figures.true_positives(mu, 0.2) == pytest.approx(1.0 - float(GaussianTradeoff(mu)(0.2)))


@pytest.mark.parametrize(("readings", "drawn"), [(29, False), (30, True)])
def test_below_thirty_readings_there_is_no_figure(readings, drawn):
    found = figures.tradeoff(report(observations=readings))
    assert bool(found["picture"]) == drawn
    assert bool(found["rows"]) == drawn
    assert found["words"]


def test_points_within_the_claim_are_dots_and_others_crosses():
    within, outside = (
        figures.tradeoff(report()),
        figures.tradeoff(report(operating_points=(OUTSIDE,))),
    )
    assert within["says"].startswith("All measured points are where the claim allows them")
    assert (within["outside"], outside["outside"]) == (False, True)
    assert outside["says"] == "1 of 1 measured point lies where the claim allows none."
    kinds = [ParsedPage(each["picture"]).values("class") for each in (within, outside)]
    assert [("cross" in found, "dot good" in found) for found in kinds] == [
        (False, True),
        (True, False),
    ]
    assert outside["rows"][0][-1] == "✕ outside"


def test_the_curve_is_the_claimed_one_and_the_hatched_area_below_it():
    rows = ParsedPage(figures.tradeoff(report())["picture"]).attributes
    claimed = [after for row, after in itertools.pairwise(rows) if row[2] == "claim"]
    (claim,) = [value for _, name, value in claimed if name == "d"]
    points = [tuple(map(float, pair.split())) for pair in claim[1:].split("L")]
    x, y = Scale(50.0, 386.0, 0.0, 1.0), Scale(350.0, 14.0, 0.0, 1.0)
    curve = GaussianTradeoff(1.0)
    for px, py in points:
        assert y(py) == pytest.approx(float(curve(min(1.0, max(0.0, x(px))))), abs=2e-3)
    assert (points[0], points[-1]) == ((50.0, 14.0), (386.0, 350.0))


def test_points_in_the_shade_by_less_than_their_error_accuse_nothing_yet():
    point = dataclasses.replace(OUTSIDE, fn=22, tp=97, fp=27, tn=86)
    violation = dataclasses.replace(of_outcome("VIOLATION"), history=HISTORY)
    says = figures.tradeoff(dataclasses.replace(violation, operating_points=(point,)))["says"]
    assert says.startswith("1 of 1 measured point")
    assert figures.tradeoff(made_report())["says"] == ""
