"""A report that agrees with itself passes; what cannot be in one is told with its place."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from made_report import made_report

from lightning_audit.results.audit_report import AuditReport, Outcome
from lightning_audit.verdict.gate import contradictions

Report = dict[str, Any]


def told(change: Callable[[Report], Any], outcome: Outcome = "PASS") -> list[str]:
    data = json.loads(made_report(outcome).to_json())
    change(data)
    return contradictions(AuditReport.from_json(json.dumps(data)))


def named(data: Report, name: str) -> Report:
    return next(check for check in data["checks"] if check["name"] == name)


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION", "INCONCLUSIVE"])
def test_a_report_that_agrees_with_itself_has_no_contradiction(outcome: Outcome) -> None:
    assert told(lambda data: None, outcome) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r["history"].append([1.0, 0.01, 5]), "the sum over history 105"),
        (lambda r: r["history"][0].__setitem__(1, 1.5), "a sample rate outside (0, 1]"),
        (lambda r: r["history"][0].__setitem__(0, 0.0), "other than 100 steps without noise"),
        (lambda r: r.update(observations=1), "observations is 1, the canary steps have 800"),
        (
            lambda r: r["operating_points"].append(
                {"threshold": 0.5, "fn": 1, "tp": 2, "fp": 3, "tn": 4}
            ),
            "operating_points: one counts 10 guesses of 800 readings",
        ),
        (lambda r: r.update(other_records=["b", "c"], record="a"), "3 records of 1 private"),
        (lambda r: named(r, "no_dp")["evidence"].update(private_steps=1), "other private_steps"),
        (
            lambda r: named(r, "sensitivity")["evidence"].update(shift_lower=0.1),
            "sensitivity has shift_lower [0.1], optimizers has [0.9]",
        ),
        (lambda r: r["optimizers"][0]["power"]["noise"].update(power=1.1), "outside [0, 1]"),
        (
            lambda r: r["optimizers"][0]["power"].update(loud=r["power"]["noise"]),
            "'loud': 0.8}, the resolution asks for {'noise': 0.8, 'sensitivity': 2.0}",
        ),
        (lambda r: r["power"]["noise"].update(power=0.98), "is not the least of the optimizers'"),
        (lambda r: r.update(delta=1e-6), "delta is 1e-06, settings.delta 1e-05"),
        (lambda r: r["settings"].update(claimed_epsilon=9.0), "settings.claimed_epsilon 9.0"),
        (
            lambda r: (r.update(epsilon_spent=-1), named(r, "accounting")["evidence"].clear()),
            "epsilon_spent is -1, below 0",
        ),
        (
            lambda r: named(r, "accounting").update(status="not_run", evidence={}),
            "accounting is not_run, with spent 3.0, claimed 8.0",
        ),
        (
            lambda r: named(r, "epsilon")["evidence"].update(epsilon_lower=8.5),
            "epsilon is ok, its evidence says violated",
        ),
        (
            lambda r: named(r, "epsilon")["evidence"].update(epsilon_lower=2.0),
            "epsilon 2.0 is proved at the verdict's level, 1.5 in bounds",
        ),
        (lambda r: r["bounds"].append(r["bounds"][0]), "bounds: a name occurs twice"),
        (lambda r: r["bounds"][0].update(delta=0.1), "betting is at delta 0.1"),
        (lambda r: r["bounds"][0].update(significance=0.5), "is at significance 0.5, not 0.05"),
        (lambda r: r["bounds"][0].update(looks="single"), "betting is for single looks"),
        (lambda r: r["bounds"][0].update(mu_lower=-1), "betting has a bound below 0"),
        (lambda r: r["bounds"][0].update(name="other"), "bounds: betting is absent"),
        (
            lambda r: r["bounds"].append({**r["bounds"][0], "name": "x", "looks": "single"}),
            "are not those of settings.bounds, []",
        ),
        (lambda r: named(r, "finite").update(log_e_value=1.0), "finite has an e-value"),
        (lambda r: named(r, "finite").update(share=0.1), "finite has the share 0.1"),
        (
            lambda r: named(r, "finite")["evidence"].update(records=1),
            "finite is ok and shows numbers of un-noised data: records",
        ),
        (
            lambda r: named(r, "noise.excess").update(status="violated"),
            "noise.excess is violated at a log e-value of 0",
        ),
        (
            lambda r: named(r, "reuse.lag")["evidence"].update(violated_at_step=3),
            "violated_at_step 3",
        ),
        (lambda r: named(r, "sensitivity").update(status="not_run"), "sensitivity has not run"),
        (lambda r: r["verdict"].update(kind="epsilon"), "verdict: kind is epsilon"),
        (lambda r: r["verdict"].update(fault="loud"), "fault is not the sentence of one of faults"),
    ],
)
def test_what_cannot_be_in_a_pass_is_told(change: Callable[[Report], Any], sentence: str) -> None:
    assert any(sentence in line for line in told(change)), told(change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r["verdict"].update(kind="accounting"), "the violated checks give mechanism"),
        (lambda r: r["verdict"].update(faults=[], fault=""), "0 faults of 1 violated checks"),
        (lambda r: r["verdict"]["faults"][0].update(finding="mu"), "a check that is not violated"),
        (lambda r: r["settings"].update(allow=["noise"]), "noise is violated at a log e-value"),
    ],
)
def test_what_cannot_be_in_a_violation_is_told(
    change: Callable[[Report], Any], sentence: str
) -> None:
    assert any(sentence in line for line in told(change, "VIOLATION"))


def test_an_inconclusive_verdict_says_what_is_missing() -> None:
    found = told(lambda data: data["verdict"].update(pass_blockers=[]), "INCONCLUSIVE")
    assert found == ["verdict: outcome is INCONCLUSIVE, and nothing is missing"]


def test_the_last_bit_of_a_threshold_decides_nothing() -> None:
    report = made_report("VIOLATION")
    noise = report.checks[0]
    threshold = -math.log(noise.share * report.settings["significance"])
    for log_e in (threshold * (1 - 1e-15), threshold, threshold * (1 + 1e-15)):
        checks = (dataclasses.replace(noise, log_e_value=log_e), *report.checks[1:])
        read = AuditReport.from_json(dataclasses.replace(report, checks=checks).to_json())
        assert contradictions(read) == []
