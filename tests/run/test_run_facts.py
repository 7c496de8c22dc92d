"""What is known of a run beside its observations, and what a checkpoint keeps of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lightning_audit import PrivacyClaim
from lightning_audit.run.run_facts import OptimizerFacts, RunFacts
from lightning_audit.run_checks.batch_sampling import BatchCheck


def with_rates(*rates: float | None) -> RunFacts:
    return RunFacts(optimizers=[OptimizerFacts(sample_rate=rate) for rate in rates])


def test_the_loader_is_held_to_the_least_rate_where_it_is_the_only_one() -> None:
    facts = with_rates(0.1, None, 0.2)
    assert facts.sample_rate == 0.1
    facts.loaders = 2
    assert facts.sample_rate == 0.2
    assert with_rates(None).sample_rate is None


def test_accountants_that_several_optimizers_feed_count_once() -> None:
    shared, own = object(), object()
    links = [SimpleNamespace(accountant=a) for a in (shared, shared, own)]
    facts = RunFacts(optimizers=[OptimizerFacts(accountant=link) for link in (*links, None)])
    assert [link.accountant for link in facts.accountants] == [shared, own]


def test_a_stated_rate_is_taken_before_the_accountants() -> None:
    link = SimpleNamespace(sample_rate=0.3)
    facts = OptimizerFacts(accountant=link)
    assert facts.current_rate(None, 2) == 0.6
    assert facts.current_rate(None, 5) == 1.0
    assert facts.sample_rate == 0.3
    assert facts.current_rate(PrivacyClaim(sample_rate=0.01), 2) == 0.01
    assert facts.sample_rate == 0.01
    assert OptimizerFacts().current_rate(None, 1) is None


def test_an_epochs_end_that_is_met_again_takes_the_place_of_the_first() -> None:
    facts = RunFacts()
    for epoch, value in ((0, 1.0), (1, 2.0), (1, 3.0)):
        facts.end_epoch({"epoch": epoch, "e_value": value})
    assert [row["e_value"] for row in facts.epochs] == [1.0, 3.0]


def test_a_checkpoint_keeps_the_past_and_what_was_noted_since_stays() -> None:
    before = RunFacts(plain_steps=3, noise_equal=True, batches=BatchCheck(8, 1e-3))
    before.note("of the past")
    before.end_epoch({"epoch": 0})
    before.batches.take([1, 2])
    state = before.state()
    before.note("later")
    after = RunFacts(batches=BatchCheck(8, 1e-3))
    after.note("since")
    after.note("of the past")
    after.load(state)
    assert after.notes == ["of the past", "since"]
    assert (after.plain_steps, after.noise_equal, after.epochs) == (3, True, [{"epoch": 0}])
    assert after.batches.batches == 1


@pytest.mark.parametrize("check", [None, BatchCheck(8, 1e-3)])
def test_batches_that_were_not_tested_before_are_no_error(check: BatchCheck | None) -> None:
    after = RunFacts(batches=check)
    after.load(RunFacts().state())
    assert after.batches is check
