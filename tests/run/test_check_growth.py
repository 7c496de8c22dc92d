"""Growth of e-values: thinned, coarse where it is of the data, and only of what was observed."""

from __future__ import annotations

import math

import pytest

from lightning_audit.checks.check import Evidence
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run.report_files import MOST_POINTS, growth_of, with_threshold

LN10 = math.log(10.0)


def grown(name: str, *log_e: float, share: float = 0.1) -> Evidence:
    test = Evidence(name, 1e-3, share)
    for step, value in enumerate(log_e):
        test.update(value, step)
    return test


def result(name: str, share: float = 0.1, status: str = "ok", optimizer: str = "") -> CheckResult:
    check = CheckResult(name, "mechanism", status, "", log_e_value=1.0, share=share)  # type: ignore[arg-type]
    return with_threshold(CheckResult(**{**vars(check), "optimizer": optimizer}), 1e-3)


def test_the_threshold_is_that_of_the_test() -> None:
    assert result("noise").log_e_threshold == pytest.approx(grown("noise").threshold)
    exact = CheckResult("no_dp", "mechanism", "ok", "")
    assert with_threshold(exact, 1e-3) == exact


def test_public_growth_is_as_it_was() -> None:
    test = grown("noise", 0.5, 2.0, 20.0)
    told = growth_of([result("noise")], [("", test)])
    assert told["noise"].growth == tuple(test.growth)


def test_growth_of_the_data_is_rounded_and_says_when_a_power_was_reached() -> None:
    test = grown("noise.shape", 0.5 * LN10, 1.2 * LN10, 1.9 * LN10, 3.4 * LN10, 7.0 * LN10)
    told = growth_of([result("noise.shape")], [("", test)])["noise.shape"]
    kept = dict(test.growth)
    powers = [(step, round(log_e / LN10)) for step, log_e in told.growth]
    assert powers == [(step, math.floor(kept[step] / LN10)) for step, _ in powers]
    assert [power for _, power in powers] == [1, 3, 7]


def test_fine_differences_of_the_data_give_the_same_growth() -> None:
    one, other = (grown("noise.shape", *values) for values in ((1.0, 5.0, 8.0), (1.3, 5.4, 8.9)))
    check = [result("noise.shape")]
    assert growth_of(check, [("", one)]) == growth_of(check, [("", other)])


def test_at_most_a_dozen_points_are_kept_with_the_alarm_among_them() -> None:
    test = grown("noise", *(1.5**k for k in range(40)))
    (told,) = growth_of([result("noise")], [("", test)]).values()
    assert len(told.growth) <= MOST_POINTS
    assert told.growth[0] == test.growth[0]
    assert told.growth[-1] == test.growth[-1]
    assert test.violated_at in [step for step, _ in told.growth]


def test_what_did_not_run_has_no_growth() -> None:
    test = grown("noise", 3.0)
    assert growth_of([result("noise", status="not_run")], [("", test)]) == {}
    assert growth_of([result("noise")], [("", grown("noise"))]) == {}
    assert growth_of([], [("", test)]) == {}


def test_of_several_optimizers_the_one_closest_to_its_alarm_is_shown() -> None:
    checks = [result("noise", optimizer="a"), result("noise", optimizer="b")]
    tests = [("a", grown("noise", 2.0)), ("b", grown("noise", 7.0))]
    assert growth_of(checks, tests)["noise"].optimizer == "b"
    assert growth_of(checks, [*reversed(tests)])["noise"].optimizer == "b"
