from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_audit import PrivacyClaim
from lightning_audit.accounting.composition import PassCounter
from lightning_audit.dpsgd.opacus import AccountantLink
from lightning_audit.run.facts import OptimizerFacts, RunCourse, RunFacts


def with_rates(*rates: float | None, loaders: int = 1) -> RunFacts:
    return RunFacts(
        optimizers=[OptimizerFacts(sample_rate=rate) for rate in rates], loaders=loaders
    )


@pytest.mark.parametrize(
    ("facts", "rate"),
    [
        (with_rates(0.1, 0.2), 0.1),  # one loader must draw no oftener than any of them states
        (with_rates(0.1, None), 0.1),
        (with_rates(0.1, 0.2, loaders=2), 0.2),
        (with_rates(None), None),
    ],
)
def test_the_loader_is_held_to_the_rate_that_any_optimizer_may_have(
    facts: RunFacts, rate: float | None
) -> None:
    assert facts.sample_rate == rate


def test_a_stated_rate_is_taken_before_the_accountants_and_parts_of_a_step_add_up() -> None:
    link = AccountantLink(SimpleNamespace(history=[]), stated_rate=0.4)
    optimizer = OptimizerFacts(accountant=link)
    assert optimizer.current_rate(None, accumulated=2) == 0.8
    assert optimizer.current_rate(None, accumulated=4) == 1.0
    assert optimizer.current_rate(PrivacyClaim(sample_rate=0.25), accumulated=2) == 0.25
    assert OptimizerFacts().current_rate(None, accumulated=1) is None


def test_facts_come_back_from_a_checkpoint_and_notes_of_since_stay() -> None:
    before, after = (RunCourse(passes=PassCounter()) for _ in range(2))
    before.notes.add("of before")
    before.trained_batches = 40
    assert before.passes is not None
    assert after.passes is not None
    for steps in range(40):
        before.passes.start_batch([steps, 0])
    after.notes.add("of since")
    after.notes.add("of before")
    after.load(json.loads(json.dumps(before.state(steps=[40, 3]))))
    assert after.notes.sentences == ["of before", "of since"]
    assert after.trained_batches == 40
    # The last batch has a step of one optimizer and three of the other.
    assert after.passes.passes([40, 3]) == 4


def test_steps_of_before_a_claim_of_shuffled_batches_are_no_passes() -> None:
    after = RunCourse(passes=PassCounter())
    after.load(json.loads(json.dumps(RunCourse().state(steps=[40]))))
    assert after.passes is not None
    assert after.passes.passes([40]) == 0
    assert after.passes.passes([43]) == 3


def test_a_checkpoint_does_not_tell_in_how_many_parts_the_batches_came() -> None:
    course = RunCourse()
    course.trained_batches = 43
    assert course.state(steps=[7, 40])["trained_batches"] == 40


def test_an_epoch_that_ends_twice_is_logged_once() -> None:
    course = RunCourse()
    for epoch, value in ((0, 1.0), (1, 2.0), (1, 3.0)):
        course.end_epoch({"epoch": epoch, "epsilon_spent": value})
    assert [row["epsilon_spent"] for row in course.epochs] == [1.0, 3.0]


def test_one_accountant_of_two_optimizers_counts_once() -> None:
    engine, other = object(), object()
    links: list[Any] = [SimpleNamespace(accountant=a) for a in (engine, engine, other)]
    facts = RunFacts(optimizers=[OptimizerFacts(accountant=link) for link in links])
    assert [link.accountant for link in facts.accountants] == [engine, other]
