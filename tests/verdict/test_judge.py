from __future__ import annotations

import re

import pytest
from simulated_record import by_name, monitor_of, simulate, verdict_of, violated

from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.judge import Resolution, acknowledge, judge


@pytest.mark.parametrize("seed", range(3))
def test_healthy_run_passes_and_says_what_it_would_have_seen(seed: int) -> None:
    verdict = verdict_of(simulate(60, seed=seed, data=0.1))
    assert (verdict.outcome, verdict.kind, verdict.pass_blockers) == ("PASS", None, ())
    assert verdict.summary == (
        "no check failed; 95% power against 0.8x noise or 2x clipping, at the "
        "observed gradient variance"
    )


def test_too_few_steps_are_inconclusive_and_told_how_many_more_are_needed() -> None:
    verdict = verdict_of(simulate(12))
    assert verdict.outcome == "INCONCLUSIVE"
    told = [re.search(r"about (\d+) more steps", item) for item in verdict.pass_blockers]
    more = max(int(found[1]) for found in told if found)
    assert 1 <= more <= 40
    # A few steps on top: the power is taken from the variance that each run shows.
    assert verdict_of(simulate(12 + more + 5)).outcome == "PASS"


@pytest.mark.parametrize(("noise", "data"), [(1.0, 2.0), (0.5, 5.0), (1.0, 50.0)])
@pytest.mark.parametrize("steps", [50, 300])
def test_data_that_dominate_are_inconclusive_and_never_a_pass(
    noise: float, data: float, steps: int
) -> None:
    verdict = verdict_of(simulate(steps, noise=noise, data=data))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any(
        "the gradient variance of the data hides it" in item for item in verdict.pass_blockers
    )


def test_noise_and_clipping_that_err_together_are_a_violation_that_loses_no_privacy() -> None:
    verdict = verdict_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    assert verdict.outcome == "VIOLATION"
    assert "this loses no privacy by itself" in verdict.summary
    assert verdict.fault.startswith("noise scale too small")
    assert "loses no privacy" not in verdict_of(simulate(400, sigma=0.5, noise=0.8)).summary


def test_allowed_finding_is_shown_and_does_not_fail() -> None:
    record = simulate(60, replaced=[3])
    assert verdict_of(record).outcome == "VIOLATION"
    assert verdict_of(record, allow=["gradient_replaced"]).outcome == "PASS"
    shown = acknowledge(monitor_of(record).results(), ["gradient_replaced"])
    assert (shown[0].name, shown[0].status) == ("gradient_replaced", "allowed")


def test_allowing_one_finding_does_not_allow_another() -> None:
    record = simulate(60, noise=0.5, replaced=[3])
    verdict = verdict_of(record, allow=["gradient_replaced"])
    assert verdict.outcome == "VIOLATION"
    assert verdict.fault.startswith("noise scale too small")


def test_allowance_for_a_check_that_is_fine_changes_nothing() -> None:
    checks = monitor_of(simulate(30)).results()
    assert acknowledge(checks, ["noise"]) == checks


def test_violated_checks_come_first_and_those_not_run_last() -> None:
    statuses = ("ok", "not_run", "allowed", "violated", "ok")
    checks = [CheckResult(str(i), "mechanism", s, "") for i, s in enumerate(statuses)]  # type: ignore[arg-type]
    ordered = [check.status for check in acknowledge(checks, ())]
    assert ordered == ["violated", "allowed", "ok", "ok", "not_run"]


def test_mechanism_is_told_before_accounting() -> None:
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdict = verdict_of(simulate(60, noise=0.5), others=[spent])
    assert verdict.kind == "mechanism"
    assert "accounting" in verdict.summary


def test_accounting_alone_is_a_violation_of_its_kind() -> None:
    spent = CheckResult("accounting", "accounting", "violated", "it costs more", "stop earlier")
    verdict = verdict_of(simulate(60), others=[spent])
    assert (verdict.outcome, verdict.kind, verdict.advice) == (
        "VIOLATION",
        "accounting",
        "stop earlier",
    )


def test_violation_stands_whatever_is_missing() -> None:
    assert verdict_of(simulate(3, noise=0.01), pass_blockers=["all"]).outcome == "VIOLATION"


def test_nothing_observed_is_inconclusive() -> None:
    verdict = judge([], None, None, Resolution())
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == ("no step of a private optimizer was observed",)


def test_summary_of_a_violation_leads_with_what_was_measured() -> None:
    record = simulate(60, noise=0.5)
    verdict = verdict_of(record)
    assert verdict.summary.startswith("noise: too little noise: in some tensor it is at most 0.")
    assert by_name(monitor_of(record))["noise"].message in verdict.summary


def test_what_small_noise_makes_small_follows_from_it_and_is_no_further_finding() -> None:
    record = simulate(60, noise=0.5)
    wrong = violated(monitor_of(record))
    assert {"noise", "noise.tensor", "reuse.broadcast"} <= wrong
    verdict = verdict_of(record)
    assert verdict.root is not None
    assert verdict.root.finding == "noise"
    assert set(verdict.root.consequences) == wrong - {"noise"}
    assert verdict.further == ()
    assert "also" not in verdict.summary
    assert verdict_of(simulate(60, reuse="broadcast")).summary.startswith("reuse.")


def test_the_root_has_the_step_at_which_its_finding_was_first_seen() -> None:
    record = simulate(60, noise=0.5)
    root = verdict_of(record).root
    assert root is not None
    evidence = by_name(monitor_of(record))["noise"].evidence
    assert root.place.step == evidence["violated_at_step"] is not None


def test_what_the_root_does_not_explain_is_a_further_finding() -> None:
    others = [
        CheckResult("accounting", "accounting", "violated", "it costs more"),
        CheckResult("sampling.not_poisson", "accounting", "violated", "shuffled"),
    ]
    verdict = verdict_of(simulate(60, noise=0.5), others=others)
    found = [fault.finding for fault in verdict.further]
    assert found == ["sampling.not_poisson", "accounting"]
    assert "(also: sampling.not_poisson, accounting)" in verdict.summary


def test_the_verdict_is_of_the_kind_of_its_root() -> None:
    # No rule knows the first check, and rules that know theirs come before that.
    unknown = CheckResult("new.check", "mechanism", "violated", "it is odd")
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdict = verdict_of(simulate(60), others=[spent, unknown])
    assert [fault.finding for fault in verdict.faults] == ["new.check", "accounting"]
    assert verdict.kind == "mechanism"


def test_where_to_look_is_said_once() -> None:
    noise = verdict_of(simulate(60, noise=0.5))
    assert noise.root is not None
    assert noise.root.look_at
    assert noise.advice == ""
    # What was seen for certain says what to do.
    assert verdict_of(simulate(60, replaced=[3])).advice.startswith(
        "run every backward pass before"
    )
