from __future__ import annotations

import dataclasses
import math

import pytest
from made_report import made_report
from page_reports import of_outcome

from lightning_audit.report.page_figures import epsilons_by_step, growth, tensors
from lightning_audit.results.report_details import CheckGrowth, TensorNoise


def test_the_growth_is_the_largest_share_times_e_value_so_far() -> None:
    share = 0.1
    threshold = -math.log(share * 1e-3)
    report = made_report(
        tests={
            "noise": CheckGrowth(threshold, ((0, 5.0), (4, 9.0))),
            "noise.step": CheckGrowth(threshold, ((2, 4.0), (9, 12.0))),
            "noise.excess": CheckGrowth(threshold, ((1, 50.0),)),  # only warns
        }
    )
    expected = [(1, 5.0), (5, 9.0), (10, 12.0)]
    assert [step for step, _ in growth(report)] == [step for step, _ in expected]
    for (_, found), (_, log_e) in zip(growth(report), expected, strict=True):
        assert found == pytest.approx(log_e + math.log(share))


def test_without_a_course_the_alarms_and_ends_of_epochs_count() -> None:
    report = made_report("VIOLATION", epochs=({"step": 100, "e_value": 1e9}, {"epoch": 1}))
    assert growth(report) == [
        (8, pytest.approx(math.log(1e3))),
        (100, pytest.approx(math.log(1e9))),
    ]
    assert growth(made_report()) == []


def test_a_metric_without_step_or_value_is_left_out() -> None:
    rows = (
        {"step": 1, "epsilon_spent": 0.0},
        {"step": 2, "epsilon_spent": math.inf},
        {"step": 3},
        {"epsilon_spent": 1.0},
    )
    assert epsilons_by_step(made_report(epochs=rows), "epsilon_spent") == [(1, 0.0)]


def test_tensors_without_a_reading_are_left_out_and_others_name_their_optimizer() -> None:
    row = TensorNoise("w", 4, 4, 40, 1.0, 0.9, 1.1, False, "actor")
    unread = dataclasses.replace(row, ratio=None)
    (found,) = tensors(made_report(tensors=(row, unread)))
    assert found.name == "actor: w"
    assert len(tensors(of_outcome("PASS"))) == 6
