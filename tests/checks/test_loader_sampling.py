from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, IterableDataset
from training_support import digits

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.checks.sampling import (
    NOT_POISSON,
    LoaderKind,
    sampling_results,
    shuffled_result,
    what_holds,
)
from lightning_audit.lints.settings import loader_facts


def statuses(*args: object) -> dict[str, str]:
    return {c.name: c.status for c in sampling_results(*args)}  # type: ignore[arg-type]


def test_poisson_loader_at_the_accounted_rate_is_fine() -> None:
    assert statuses("poisson", "UniformWithReplacementSampler", 0.01, 0.01, [60, 70]) == {
        "sampling.not_poisson": "ok",
        "sampling.rate": "ok",
    }


def test_poisson_loader_without_a_rate_of_its_own_is_not_compared() -> None:
    assert statuses("poisson", "a", None, 0.01, []) == {"sampling.not_poisson": "ok"}


@pytest.mark.parametrize(("rate", "status"), [(0.0102, "violated"), (0.01005, "ok"), (0.001, "ok")])
def test_rate_is_a_violation_only_where_the_loader_draws_more_often(
    rate: float, status: str
) -> None:
    assert statuses("poisson", "a", rate, 0.01, [])["sampling.rate"] == status


def test_shuffled_loader_is_a_violation_with_what_to_write_instead() -> None:
    (found,) = sampling_results("not_poisson", "BatchSampler", None, 0.01, [64])
    assert (found.status, found.kind) == ("violated", "accounting")
    assert "BatchSampler" in found.message
    assert "DPDataLoader.from_data_loader" in found.advice


@pytest.mark.parametrize("rate", [None, 1.0])
def test_nothing_is_compared_where_no_subsampling_is_accounted_for(rate: float | None) -> None:
    (found,) = sampling_results("not_poisson", "BatchSampler", None, rate, [64] * 99)
    assert found.status == "not_run"


def test_unknown_sampler_with_batches_all_of_one_size_is_not_poisson() -> None:
    (found,) = sampling_results("unknown", "MySampler", None, 0.01, [64] * 30)
    assert found.status == "violated"
    assert "with batches all of one size" in found.message


@pytest.mark.parametrize(
    "sizes",
    [[], [64], [64] * 4, [64] * 30 + [63], [1] * 20, list(range(50, 80))],
)
def test_unknown_sampler_is_left_open_where_its_sizes_prove_nothing(sizes: list[int]) -> None:
    (found,) = sampling_results("unknown", "MySampler", None, 0.01, sizes)
    assert found.status == "not_run"
    assert "MySampler" in found.message


@pytest.mark.parametrize("kind", ["poisson", "unknown"])
def test_batches_of_a_poisson_sampler_are_never_taken_for_equal(kind: str) -> None:
    rng = np.random.default_rng(0)
    for size in (2, 20, 200):
        for _ in range(200):
            sizes = rng.binomial(100 * size, 0.01, size=100).tolist()
            assert statuses(kind, "a", None, 0.01, sizes)["sampling.not_poisson"] != "violated"


def test_number_of_equal_batches_that_proves_it_is_that_of_the_poisson_law() -> None:
    def proves(number: int) -> bool:
        return statuses("unknown", "a", None, 0.01, [64] * number)["sampling.not_poisson"] == (
            "violated"
        )

    first = next(n for n in range(1, 50) if proves(n))
    chance = 1 / math.sqrt(2 * math.pi * 64 * 0.99)
    assert chance ** (first - 1) < 1e-9 <= chance ** (first - 2)


@pytest.mark.parametrize(("sigma", "passes"), [(1.0, 1), (2.0, 10), (0.7, 3)])
def test_passes_over_shuffled_batches_cost_what_steps_on_all_records_do(
    sigma: float, passes: int
) -> None:
    told = what_holds(sigma, passes, 1e-5)
    steps = [Phase(sigma, 1.0, passes)]
    zeroed = epsilon_of_history(steps, 1e-5)
    replaced = epsilon_of_history(steps, 1e-5, adjacency="replace_one")
    assert f"epsilon {zeroed:.4g} at delta 1e-05 if a record is zeroed out" in told
    assert f"{replaced:.4g} if it is replaced" in told
    assert ("one epoch costs" in told) == (passes == 1)


def test_what_was_chosen_is_told_otherwise_than_what_lightning_does() -> None:
    given = ("not_poisson", "BatchSampler", None, 0.01, [64])
    (dropped,) = sampling_results(*given)
    (chosen,) = sampling_results(*given, by_choice=True, holds=". What holds: so much")
    assert "Lightning trains on the loader" in dropped.advice
    assert chosen.advice.startswith("make_private was called with poisson_sampling=False")
    assert chosen.message == f"{dropped.message}. What holds: so much"


@pytest.mark.parametrize(
    ("kind", "once", "status", "said"),
    [
        ("not_poisson", True, "ok", "per epoch, as claimed: a loader"),
        ("poisson", False, "not_run", "leave sampling out of the claim"),
        ("not_poisson", False, "not_run", "it is unknown whether"),
        ("unknown", False, "not_run", "it is unknown whether"),
    ],
)
def test_shuffled_batches_are_as_claimed_or_a_pass_is_blocked(
    kind: LoaderKind, once: bool, status: str, said: str
) -> None:
    found = shuffled_result(kind, "a loader", once=once)
    assert found.status == status
    assert said in found.message
    assert bool(NOT_POISSON.blocks(found)) == (status == "not_run")


class _Stream(IterableDataset[tuple[torch.Tensor, ...]]):
    def __iter__(self):
        return iter(digits(64))


def test_what_is_said_of_an_iterable_data_set_can_be_done() -> None:
    stream = DataLoader(_Stream(), batch_size=8)
    facts = loader_facts(stream)
    (found,) = sampling_results(facts.kind, facts.description, None, 0.125, [])
    assert found.status == "violated"
    assert "DataLoader(list(dataset), batch_size=...)" in found.advice
    with pytest.raises(ValueError, match="not supported for IterableDataset"):
        DPDataLoader.from_data_loader(stream)
    loader = DPDataLoader.from_data_loader(DataLoader(list(_Stream()), batch_size=8))
    facts = loader_facts(loader)
    assert statuses(facts.kind, facts.description, facts.sample_rate, 0.125, []) == {
        "sampling.not_poisson": "ok",
        "sampling.rate": "ok",
    }
    plain = loader_facts(DataLoader(range(64), batch_size=8))
    (found,) = sampling_results(plain.kind, plain.description, None, 0.125, [])
    assert "list(dataset)" not in found.advice
