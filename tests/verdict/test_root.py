from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from simulated_record import monitor_of, simulate, verdict_of, violated

from lightning_audit.checks.check import first_seen
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Place
from lightning_audit.verdict.judge import mark_consequences, settled, worst

OPTIMIZERS = ("optimizer 1 (a)", "optimizer 2 (b)")


def check(name: str, optimizer: str = "", **evidence: Any) -> CheckResult:
    return CheckResult(
        name, "mechanism", "violated", "seen", evidence=evidence, optimizer=optimizer
    )


def fault(finding: str, *consequences: str, optimizer: str = "") -> LikelyFault:
    place = Place(optimizer=optimizer)
    return LikelyFault(finding, "wrong", finding, place=place, consequences=consequences)


# ------------------------------------------------------------------ what follows from what


def test_a_violated_check_that_follows_from_a_finding_says_from_which() -> None:
    record = simulate(60, noise=0.5)
    checks = monitor_of(record).results()
    marked = mark_consequences(checks, verdict_of(record).faults)
    followed = {check.name: check.follows_from for check in marked if check.follows_from}
    assert followed == dict.fromkeys(violated(monitor_of(record)) - {"noise"}, "noise")
    unmarked = [dataclasses.replace(check, follows_from="") for check in marked]
    assert unmarked == list(checks)


@pytest.mark.parametrize("reuse", ["", "broadcast"])
def test_a_finding_and_a_check_that_is_fine_follow_from_nothing(reuse: str) -> None:
    record = simulate(60, reuse=reuse) if reuse else simulate(60)
    faults = verdict_of(record).faults
    marked = mark_consequences(monitor_of(record).results(), faults)
    findings = {fault.finding for fault in faults}
    assert all(not c.follows_from for c in marked if c.status == "ok" or c.name in findings)


def test_a_consequence_is_left_to_the_first_fault_that_explains_it() -> None:
    given = [fault("noise", "epsilon", "reuse.lag"), fault("sensitivity", "epsilon")]
    assert [f.consequences for f in settled(given)] == [("epsilon", "reuse.lag"), ()]


def test_a_finding_is_no_consequence() -> None:
    given = [fault("noise", "reuse.lag"), fault("reuse.lag", "noise.tensor")]
    assert [f.consequences for f in settled(given)] == [(), ("noise.tensor",)]


def test_the_fault_of_one_optimizer_explains_no_check_of_another_one() -> None:
    first, second = OPTIMIZERS
    checks = [check("noise", first), check("reuse.lag", first), check("reuse.lag", second)]
    marked = mark_consequences(checks, [fault("noise", "reuse.lag", optimizer=first)])
    assert [c.follows_from for c in marked] == ["", "noise", ""]


def test_the_fault_of_another_optimizer_is_a_further_finding() -> None:
    records = [simulate(60, noise=0.5), simulate(60, reuse="broadcast")]
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdicts = [verdict_of(record, others=[spent]) for record in records]
    verdict = worst(verdicts, OPTIMIZERS, [], broken=OPTIMIZERS)
    found = [(f.finding, f.place.optimizer) for f in (verdict.root, *verdict.further) if f]
    # What is of the run stands once, and is no optimizer's.
    assert found == [
        ("noise", OPTIMIZERS[0]),
        ("accounting", ""),
        ("reuse.broadcast", OPTIMIZERS[1]),
    ]
    assert verdict.summary.endswith("; also: optimizer 2 (b)")


@pytest.mark.parametrize(
    "record",
    [
        {"noise": 0.5},
        {"noise": 0.01},
        {"noise": [0.5, 1.0, 1.0]},
        {"reuse": "broadcast"},
        {"reuse": "pair"},
        {"reuse": "same"},
        {"reuse": "cycle 3"},
        {"shift": 5.0},
        {"noise": 0.5, "shift": 5.0},
        {"replaced": [3], "noise": 0.5},
    ],
    ids=str,
)
def test_every_violated_check_is_a_finding_or_follows_from_one(record: dict[str, Any]) -> None:
    made = simulate(60, **record)
    wrong = violated(monitor_of(made))
    faults = verdict_of(made, others=[]).faults
    named = [f.finding for f in faults] + [name for f in faults for name in f.consequences]
    assert set(named) == wrong


@pytest.mark.parametrize(
    ("evidence", "step"),
    [
        ({}, None),
        ({"violated_at_step": None}, None),
        ({"violated_at_step": 7}, 7),
        ({"first_step": 3, "violated_at_step": 7}, 3),
    ],
)
def test_the_step_is_the_one_that_the_evidence_has(
    evidence: dict[str, Any], step: int | None
) -> None:
    assert first_seen(evidence) == step
