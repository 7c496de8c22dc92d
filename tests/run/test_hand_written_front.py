"""What code of one's own is given when it asks, and what is read of it; no Trainer is needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from bare_session import BareByHand

import lightning_audit
from lightning_audit.run.optimizers import HandWrittenFront


@pytest.fixture
def bare() -> Iterator[BareByHand]:
    made = BareByHand()
    front = HandWrittenFront(made.session)
    front.open_to(made.net)
    yield made
    front.remove()


def test_a_step_that_asks_gets_the_canaries_whose_coins_are_in_and_reads_as_they_say(
    bare: BareByHand,
) -> None:
    rows = []
    for _ in range(8):
        bare.session.start_batch()
        given = lightning_audit.per_sample(bare.sample_gradients(), module=bare.net)
        rows.append(len(given["weight"]) - 5)
        bare.update(bare.clipped_mean(given))
        bare.session.end_batch()
    coins = bare.column("coins")
    assert rows == coins.sum(1).tolist()
    assert set(rows) > {0}
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-5)


def test_rows_are_the_canaries_one_by_one_and_are_given_once_a_step(bare: BareByHand) -> None:
    seen = []
    for _ in range(6):
        bare.session.start_batch()
        singles = lightning_audit.rows(module=bare.net)
        assert lightning_audit.rows(module=bare.net) == []
        samples = bare.sample_gradients()
        assert lightning_audit.per_sample(samples, module=bare.net) is samples
        for one in singles:
            assert {name: g.shape for name, g in one.items()} == {
                name: p.shape for name, p in bare.net.named_parameters()
            }
        joined = {n: torch.stack([g[n] for g in singles]) for n in samples} if singles else samples
        bare.update(bare.clipped_mean(joined))
        bare.session.end_batch()
        seen.append(len(singles))
    coins = bare.column("coins")
    assert seen == coins.sum(1).tolist()
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-5)


def test_between_batches_and_when_closed_nobody_is_given_anything() -> None:
    bare = BareByHand()
    front, samples = HandWrittenFront(bare.session), bare.sample_gradients()
    front.open_to(bare.net)
    gradient = bare.clipped_mean(samples)
    assert lightning_audit.per_sample(samples, module=bare.net) is samples  # before the first
    bare.session.start_batch()
    bare.session.end_batch()
    assert lightning_audit.rows(module=bare.net) == []
    assert lightning_audit.released(gradient, module=bare.net) is gradient
    assert not bare.session.way.is_shown
    bare.session.start_batch()
    front.remove()
    assert lightning_audit.per_sample(samples, module=bare.net) is samples
    bare.update(gradient)
    assert bare.column("coins").sum() == 0


def test_what_is_released_is_read_there_and_loses_its_canaries_in_place(bare: BareByHand) -> None:
    for _ in range(6):
        bare.session.start_batch()
        given = lightning_audit.per_sample(bare.sample_gradients(), module=bare.net)
        gradient = bare.clipped_mean(given)
        shown = lightning_audit.released(gradient, module=bare.net)
        assert shown is gradient
        assert max(float(g.abs().max()) for g in gradient.values()) < 1e-6
        bare.update({name: torch.sign(g) for name, g in shown.items()})
        bare.session.end_batch()
    coins = bare.column("coins")
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-5)
    assert bare.session.way.is_shown
    assert bare.session.releases.late == 0


def test_a_gradient_that_is_released_twice_in_a_step_stands_in_the_way_of_a_pass(
    bare: BareByHand,
) -> None:
    bare.session.start_batch()
    gradient = bare.clipped_mean(bare.sample_gradients())
    for _ in range(2):
        lightning_audit.released(gradient, module=bare.net)
    (sentence,) = bare.session.planner.pass_blockers
    assert sentence.startswith("lightning_audit.released was called more than once in a step")


def test_what_is_no_dictionary_of_gradients_is_refused_with_what_it_should_be(
    bare: BareByHand,
) -> None:
    bare.session.start_batch()
    stacked = list(bare.sample_gradients().values())
    with pytest.raises(ValueError, match=r"grads=list must be a dict .*vmap\(grad"):
        lightning_audit.per_sample(stacked, module=bare.net)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="grads=list must be a dict"):
        lightning_audit.released(stacked, module=bare.net)  # type: ignore[type-var]
