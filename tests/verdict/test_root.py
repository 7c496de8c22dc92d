from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from made_report import made_report
from simulated_record import monitor_of, simulate, verdict_of, violated

from lightning_audit.checks.base.registry import REGISTRY, entailed
from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault, Place
from lightning_audit.verdict.judge import worst
from lightning_audit.verdict.root import (
    MAY_ENTAIL,
    contradictions_of_root,
    first_seen,
    mark_consequences,
    settled,
)

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
def test_no_rule_explains_more_than_its_finding_may_entail(record: dict[str, Any]) -> None:
    made = simulate(60, **record)
    wrong = violated(monitor_of(made))
    faults = verdict_of(made, others=[]).faults
    for one in faults:
        assert set(one.consequences) <= set(MAY_ENTAIL.get(one.finding, ()))
    named = [f.finding for f in faults] + [name for f in faults for name in f.consequences]
    assert set(named) == wrong


def test_rules_that_rest_on_one_check_explain_what_it_may_entail() -> None:
    for name, check in REGISTRY.items():
        for rule in check.faults:
            assert set(entailed(rule)) - {name} <= set(MAY_ENTAIL.get(name, ()))


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


# ------------------------------------------------------------------ the gate

Report = dict[str, Any]


def half_noise() -> AuditReport:
    """Half noise, `reuse.lag` that follows from it, and batches that are not Poisson beside it."""
    made = made_report("VIOLATION")
    verdict = dataclasses.replace(
        made.verdict,
        faults=(
            dataclasses.replace(made.verdict.faults[0], consequences=("reuse.lag",)),
            LikelyFault("not_poisson", "not Poisson", "sampling.not_poisson"),
        ),
    )
    changes: dict[str, dict[str, Any]] = {
        "reuse.lag": {"status": "violated"},
        "sampling.not_poisson": {"status": "violated", "kind": "accounting"},
    }
    checks = [dataclasses.replace(c, **changes.get(c.name, {})) for c in made.checks]
    marked = mark_consequences(checks, verdict.faults)
    return dataclasses.replace(made, checks=marked, verdict=verdict)


def told(change: Callable[[Report], Any]) -> list[str]:
    data = json.loads(half_noise().to_json())
    change(data)
    return list(contradictions_of_root(AuditReport.from_json(json.dumps(data))))


def named(data: Report, name: str) -> Report:
    return next(check for check in data["checks"] if check["name"] == name)


def swap(data: Report) -> None:
    """The lesser finding first, in every place that says so."""
    verdict = data["verdict"]
    verdict["faults"].reverse()
    verdict["fault"] = verdict["faults"][0]["sentence"]
    verdict["summary"] = "sampling.not_poisson: seen"


def follow(data: Report) -> None:
    """The further finding as a consequence of the root."""
    data["verdict"]["faults"][0]["consequences"].append("sampling.not_poisson")
    del data["verdict"]["faults"][1]
    named(data, "sampling.not_poisson")["follows_from"] = "noise"


def test_a_root_that_agrees_with_its_checks_is_believed() -> None:
    assert told(lambda data: None) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (swap, "kind is mechanism, the first fault's finding is of accounting"),
        (follow, "sampling.not_poisson cannot follow from noise"),
        (
            lambda r: r["verdict"]["faults"].pop(),
            "sampling.not_poisson is violated, and is neither a finding nor follows from one",
        ),
        (
            lambda r: r["verdict"]["faults"][0].update(consequences=[]),
            "reuse.lag follows from noise, the verdict's faults give nothing",
        ),
        (
            lambda r: r["verdict"]["faults"][0]["consequences"].append("noise.tensor"),
            "noise.tensor is a consequence, and is not violated",
        ),
        (
            lambda r: r["verdict"]["faults"][1].update(consequences=["reuse.lag"]),
            "a consequence is a finding, or follows from two faults",
        ),
        (
            lambda r: named(r, "reuse.lag").update(follows_from=""),
            "reuse.lag follows from nothing, the verdict's faults give noise",
        ),
        (
            lambda r: named(r, "finite").update(follows_from="noise"),
            "finite follows from noise, the verdict's faults give nothing",
        ),
        (
            lambda r: r["verdict"]["faults"][0]["place"].update(step=90),
            "half_noise was first seen at step 90, noise at 7",
        ),
        (
            lambda r: (
                r["verdict"]["faults"][0]["evidence"].update(sd_ratio=0.99),
                named(r, "noise")["evidence"].update(sd_ratio=0.5),
            ),
            "half_noise has sd_ratio 0.99, noise 0.5",
        ),
        (
            lambda r: r["verdict"]["faults"][0].update(finding="noise.tensor"),
            "a fault rests on a check that is not violated",
        ),
        (
            lambda r: r["verdict"].update(summary="it is fine"),
            "summary does not begin with the first fault's finding, noise",
        ),
    ],
)
def test_an_edited_root_is_refused(change: Callable[[Report], Any], sentence: str) -> None:
    assert any(sentence in line for line in told(change)), told(change)
