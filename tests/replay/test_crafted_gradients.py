"""Crafted gradients have the norms and places that their names say."""

from __future__ import annotations

import itertools

import pytest
import torch

from lightning_audit.replay.clipping import CraftedGradients, Trial

SIZES = (24, 6, 12, 2)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return list(CraftedGradients(SIZES, batch=16, seed=1).trials())


def only(trial: Trial) -> torch.Tensor:
    """The gradient that is left out, and zeros."""
    rows = torch.zeros_like(trial.rows)
    rows[trial.left_out] = trial.rows[trial.left_out]
    return rows


def test_a_neighbour_lacks_one_gradient_and_has_the_others_in_their_order(
    trials: list[Trial],
) -> None:
    for trial in trials:
        kept = [row for j, row in enumerate(trial.rows) if j != trial.left_out % len(trial.rows)]
        assert torch.equal(trial.neighbour, torch.stack(kept))
        assert torch.equal(trial.rows - trial.with_zeros, only(trial))


def test_norms_are_those_of_the_names(trials: list[Trial]) -> None:
    named = [trial for trial in trials if ", norm " in trial.name or trial.name.startswith("norm ")]
    assert len(named) >= 10
    for trial in named:
        stated = float(trial.name.split("norm ")[1].split()[0])
        norm = float(trial.rows[trial.left_out].norm())
        assert norm == pytest.approx(stated)


def test_norms_go_from_half_the_clipping_norm_to_a_hundred_thousand_times_it(
    trials: list[Trial],
) -> None:
    norms = [float(trial.rows[trial.left_out].norm()) for trial in trials]
    assert min(norms) <= 0.5
    assert max(norms) >= 1e5


def test_first_middle_and_last_place_are_all_left_out(trials: list[Trial]) -> None:
    whole = {t.left_out % len(t.rows) for t in trials if len(t.rows) == 16}
    assert {0, 8, 15} <= whole


def test_batches_are_of_two_of_the_usual_and_of_more_than_twice_the_usual_size(
    trials: list[Trial],
) -> None:
    assert {len(trial.rows) for trial in trials} == {2, 16, 34}
    assert {len(trial.neighbour) for trial in trials} == {1, 15, 33}


def test_one_gradient_outweighs_all_others_and_one_is_alone(trials: list[Trial]) -> None:
    named = {trial.name: trial for trial in trials}
    against = named["against all others, which it outweighs"]
    one, others = against.rows[against.left_out], against.neighbour.sum(0)
    assert torch.cosine_similarity(one, others, dim=0) == pytest.approx(-1.0)
    assert one.norm() > 10 * others.norm()
    assert not named["norm 1e+03 C, alone"].neighbour.any()


def test_each_tensor_has_a_gradient_of_its_own(trials: list[Trial]) -> None:
    ends = list(itertools.accumulate(SIZES))
    alone = set()
    for trial in trials:
        where = trial.rows[trial.left_out].nonzero().flatten()
        owners = {next(j for j, end in enumerate(ends) if int(i) < end) for i in where}
        alone |= owners if len(owners) == 1 else set()
    assert alone == set(range(len(SIZES)))


def test_families_take_turns(trials: list[Trial]) -> None:
    first = [trial.name for trial in trials[:4]]
    assert first[0].startswith("norm ")
    assert first[1].startswith("the same in all entries")
    assert first[2].startswith("one of equal ones")
    assert first[3].startswith("one of two")


def test_large_models_have_fewer_gradients_at_once() -> None:
    crafted = CraftedGradients([3_000_000], batch=512, seed=0)
    assert len(next(iter(crafted.trials())).rows) <= 8


def test_one_seed_gives_one_set() -> None:
    one, other = (list(CraftedGradients(SIZES, 4, seed=3).trials()) for _ in range(2))
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(one, other, strict=True))
