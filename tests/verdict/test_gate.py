"""A report that agrees with itself passes; what its own checks do not give is told."""

import dataclasses
import json
import math
from typing import Any

import pytest
from made_report import SIGNIFICANCE, made_report
from report_edits import Change, with_

from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.checks.noise import NOISE
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, Outcome
from lightning_audit.verdict.gate import composed_again, contradiction_of_epsilon, contradictions


def told(by: Change, outcome: Outcome = "PASS") -> list[str]:
    return contradictions(AuditReport.from_json(with_(made_report(outcome).to_json(), by)))


@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_a_report_that_agrees_with_itself_has_no_contradiction(outcome):
    assert told({}, outcome) == []


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ({"history": [[1.0, 0.01, 105]]}, "the sum of steps in history is 105, and 100 elsewhere"),
        ({"steps": 90}, "steps is 90, and 100 elsewhere"),
        ({"delta": 1e-6}, "delta is 1e-06, and 1e-05 elsewhere"),
        (
            lambda r: r["optimizers"][0]["power"].update(loud=r["power"]["noise"]),
            "'loud': 0.8}, the resolution is {'noise': 0.8, 'sensitivity': 2.0}",
        ),
        ({"settings/resolution/noise": 0.5}, "the resolution is"),
        ({"settings/claimed_epsilon": 9.0}, "settings.claimed_epsilon is 9.0, and 8.0 elsewhere"),
        ({"epsilon_spent": -1}, "epsilon_spent is -1.0, and 3.0 elsewhere"),
        ({"checks/accounting/evidence": {}}, "cannot be judged (KeyError: 'epsilon_spent')"),
        ({"checks/epsilon/evidence/epsilon_lower": 8.5}, "epsilon is ok, its numbers give violat"),
        ({"checks/no_dp/evidence/plain_steps": 3}, "its checks give VIOLATION: no_dp"),
        ({"checks/finite/share": 0.1}, "finite has the share 0.1 of"),
        ({"checks/noise/share": 0.5}, "noise has the share 0.5 of"),
        ({"checks/noise.excess/status": "warned"}, "noise.excess is warned, its numbers give ok"),
        ({"checks/reuse.lag/evidence/violated_at_step": 3}, "its checks give VIOLATION: reuse.lag"),
        ({"checks/sensitivity/status": "not_run"}, "give INCONCLUSIVE: sensitivity: seen"),
        ({"verdict/kind": "epsilon"}, "the text of its verdict"),
        ({"verdict/fault": "loud"}, "the text of its verdict"),
        ({"verdict/summary": "it is fine"}, "the text of its verdict"),
        ({"verdict/allowed": ["noise"]}, "the text of its verdict"),
        ({"checks/noise/name": "unheard"}, "there is no check 'unheard'"),
        ({"checks/noise/name": "unheard"}, "noise occurs 0 times, not 1"),
        (lambda r: r["checks"].append(r["checks"][0]), " occurs 2 times, not 1"),
        ({"checks/noise/optimizer": "b"}, "noise is of optimizer 'b', which is"),
        ({"settings/allow": ...}, "required field `allow`"),
        ({"settings/significance": 2}, "significance=2.0 must be in (0, 1)"),
    ],
)
def test_what_cannot_be_in_a_pass_is_told(by, sentence):
    assert any(sentence in line for line in told(by)), told(by)


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ({"verdict/outcome": "PASS"}, "it says PASS, its checks give VIOLATION"),
        ({"verdict/kind": "accounting"}, "about the accounting, its checks about the mech"),
        ({"verdict/faults": [], "verdict/fault": ""}, "faults of its verdict do not"),
        ({"settings/allow": ["noise"]}, "noise is violated, its numbers give al"),
        ({"checks/noise/status": "ok"}, "noise is ok, its numbers give violated"),
        ({"checks/noise/log_e_value": None}, "noise is violated, its numbers"),
        ({"checks/noise/evidence/violated_at_step": "a"}, "cannot be judged"),
    ],
)
def test_what_cannot_be_in_a_violation_is_told(by, sentence):
    assert any(sentence in line for line in told(by, "VIOLATION")), told(by, "VIOLATION")


def test_an_inconclusive_verdict_says_what_is_missing():
    found = told({"verdict/pass_blockers": []}, "INCONCLUSIVE")
    assert found == ["pass_blockers of its verdict do not belong to INCONCLUSIVE"]


@pytest.mark.parametrize("beyond", [-0.01, 0.01])
def test_a_check_is_ok_below_its_threshold_and_at_no_e_value_above(beyond):
    log_e = -math.log(NOISE.share * SIGNIFICANCE) + beyond
    sentences = told({"checks/noise/log_e_value": log_e})
    assert ("noise is ok, its numbers give violated" in sentences) == (beyond > 0)


def test_the_last_bit_of_a_threshold_decides_nothing():
    report = made_report("VIOLATION")
    noise = report.checks[0]
    threshold = -math.log(noise.share * SIGNIFICANCE)
    for log_e in (threshold * (1 - 1e-15), threshold, threshold * (1 + 1e-15)):
        checks = (dataclasses.replace(noise, log_e_value=log_e), *report.checks[1:])
        read = AuditReport.from_json(dataclasses.replace(report, checks=checks).to_json())
        assert contradictions(read) == []


def test_a_report_that_was_written_anew_so_that_all_fits_is_believed():
    """It is no signature."""

    healthy = json.loads(made_report("PASS").to_json())
    assert told({name: healthy[name] for name in ("verdict", "checks")}, "VIOLATION") == []


# --- Epsilon.

HISTORY = ((1.0, 0.01, 100),)
SPENT = composed_epsilon([Phase(*HISTORY[0])], 1e-5)
assert SPENT is not None


def of_steps(spent: float | None = SPENT, **changes: Any) -> AuditReport:
    report = made_report("PASS", spent=spent, **{"history": HISTORY, **changes})
    return AuditReport.from_json(report.to_json())


def claiming(**claim: Any) -> dict[str, Any]:
    return {**made_report("PASS").settings, "claim": claim}


def test_the_epsilon_of_a_history_is_composed_again():
    assert composed_again(of_steps()) == SPENT
    assert contradiction_of_epsilon(of_steps()) == ""
    assert contradiction_of_epsilon(of_steps(1.004 * SPENT)) == ""  # another grid


@pytest.mark.parametrize("times", [0.5, 0.98, 1.02, 2.0])
def test_another_epsilon_than_the_history_composes_to_is_told(times):
    report = of_steps(times * SPENT)
    assert contradictions(report) == []
    assert contradiction_of_epsilon(report).startswith(f"epsilon_spent is {times * SPENT}, its ")


@pytest.mark.parametrize(
    "history", [((1.1, 0.01, 100),), ((1.0, 0.02, 100),), ((1.0, 0.01, 50), (9.0, 0.01, 50))]
)
def test_an_edited_history_is_told(history):
    assert "its history composes to" in contradiction_of_epsilon(of_steps(history=history))


@pytest.mark.parametrize("phase", [(-1.0, 0.01, 100), (1.0, 1.5, 100), (1.0, 0.01, 0)])
def test_a_history_that_is_none_is_told(phase):
    told = contradiction_of_epsilon(of_steps(history=(phase,)))
    assert told.startswith("its history cannot be composed: ")


def test_where_accountants_were_told_of_more_that_is_composed():
    more = ((1.0, 0.01, 300),)
    epsilon = composed_epsilon([Phase(*more[0])], 1e-5)
    assert contradiction_of_epsilon(of_steps(epsilon, composed=more)) == ""
    assert contradiction_of_epsilon(of_steps(composed=more)) != ""
    # Fewer are no way to a smaller epsilon: the steps of the history were taken.
    assert contradiction_of_epsilon(of_steps(composed=((1.0, 0.01, 10),))) == ""


def test_of_shuffled_batches_the_passes_are_composed():
    passes, settings = ((1.0, 1.0, 2),), claiming(sampling="shuffled")
    epsilon = composed_epsilon([Phase(*passes[0])], 1e-5)
    assert composed_again(of_steps(epsilon, composed=passes, settings=settings)) == epsilon
    assert epsilon is not None
    assert epsilon > SPENT


def test_an_epsilon_of_almost_zero_is_not_resolved():
    assert contradiction_of_epsilon(of_steps(delta=0.5)) != ""


def test_between_data_sets_with_a_record_replaced_epsilon_is_larger():
    larger = composed_again(of_steps(settings=claiming(adjacency="replace_one")))
    assert larger == composed_epsilon([Phase(*HISTORY[0])], 1e-5, "replace_one")


@pytest.mark.parametrize(
    "changes",
    [
        {"history": ((1.0, None, 100),)},
        {"settings": claiming(noise_coefficients=[1.0, -0.5])},
        {"steps": 0},
    ],
)
def test_an_epsilon_that_is_not_known_is_none(changes):
    assert composed_again(of_steps(None, **changes)) is None
    assert contradiction_of_epsilon(of_steps(None, **changes)) == ""
    assert contradiction_of_epsilon(of_steps(1.0, **changes)) != ""
