"""What is missing, in numbers: the same sentences in the same order as the verdict's."""

from __future__ import annotations

import dataclasses

from lightning_audit.results.audit_report import OptimizerSeen, Power
from lightning_audit.run.report_files import told
from lightning_audit.verdict.judge import NOT_ENDED, Resolution, blockers_of_optimizer

SEEN = OptimizerSeen(
    *("", 10, 8, 10, 0, 0, 1000.0, 0.1),
    {"noise": Power(0.29, 50, 0.8), "sensitivity": Power(0.5, 10**7, 2.0)},
    1.0,
)
RESOLUTION = Resolution()


def test_power_has_its_numbers_and_the_steps_that_are_missing() -> None:
    sentences = [NOT_ENDED, *blockers_of_optimizer(SEEN, RESOLUTION), "noise: not tested"]
    found = told(sentences, [SEEN], RESOLUTION, [NOT_ENDED])
    assert [one.sentence for one in found] == sentences
    kinds = [(one.kind, one.part, one.power, one.power_needed, one.steps_more) for one in found]
    assert kinds == [
        ("run", "", None, None, None),
        ("power", "noise", 0.29, 0.95, 40),
        ("power", "sensitivity", 0.5, 0.95, None),  # more steps than anybody trains
        ("optimizer", "", None, None, None),
        ("check", "noise", None, None, None),
    ]


def test_those_of_several_optimizers_keep_their_label() -> None:
    seen = dataclasses.replace(SEEN, label="optimizer 2 (`a`)")
    sentences = [f"{seen.label}: {text}" for text in blockers_of_optimizer(seen, RESOLUTION)]
    found = told(sentences, [seen], RESOLUTION)
    assert [one.sentence for one in found] == sentences
    assert [one.part for one in found] == ["noise", "sensitivity", ""]


def test_without_an_optimizer_there_is_nothing_but_the_run() -> None:
    sentences = blockers_of_optimizer(None, RESOLUTION)
    assert [one.kind for one in told(sentences, [], RESOLUTION)] == ["run"] * len(sentences)
