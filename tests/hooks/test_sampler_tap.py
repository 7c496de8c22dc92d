from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler, wrap_data_loader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from lightning_audit.hooks.sampler_tap import SamplerTap, can_be_watched, unwatched
from lightning_audit.lints.settings import loader_facts

DATA = TensorDataset(torch.arange(40).float())


class OwnPoisson(Sampler):
    """A user's Poisson sampler."""

    def __init__(self, rate: float = 0.2) -> None:
        self.rate, self.epoch = rate, 0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.nonzero(torch.rand(40) < self.rate).flatten().tolist()

    def __len__(self) -> int:
        return 5


class Watched:
    def __init__(self, loader: DataLoader) -> None:
        self.batches: list[Any] = []
        self.starts = 0
        self.tap = SamplerTap(loader, self._start, self.batches.append)

    def _start(self) -> None:
        self.starts += 1


def drawn(loader: DataLoader, passes: int = 1) -> list[list[float]]:
    torch.manual_seed(0)
    return [batch[0].tolist() for _ in range(passes) for batch in loader]


def loader_with(workers: int = 0) -> DataLoader:
    return DataLoader(DATA, batch_sampler=OwnPoisson(), num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_watched_loader_yields_what_it_would_and_all_of_it_is_seen(workers: int) -> None:
    plain, loader = drawn(loader_with(workers), 2), loader_with(workers)
    watched = Watched(loader)
    assert drawn(loader, 2) == plain
    assert [[float(i) for i in batch] for batch in watched.batches] == plain
    assert watched.starts == 2


def test_the_global_generator_is_left_where_it_would_be() -> None:
    drawn(loader_with())
    after = torch.get_rng_state()
    loader = loader_with()
    Watched(loader)
    drawn(loader)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_sampler_that_draws_its_order_at_once_draws_it_when_it_would() -> None:
    class Eager(OwnPoisson):
        def __iter__(self) -> Iterator[list[int]]:
            return iter(torch.randperm(40).reshape(8, 5).tolist())

    def order(loader: DataLoader) -> tuple[list[list[float]], float]:
        torch.manual_seed(0)
        batches = iter(loader)
        between = float(torch.rand(()))
        return [batch[0].tolist() for batch in batches], between

    plain, loader = (DataLoader(DATA, batch_sampler=Eager()) for _ in range(2))
    Watched(loader)
    assert order(loader) == order(plain)


def test_the_sampler_shows_its_type_its_length_and_its_attributes() -> None:
    loader = loader_with()
    own = loader.batch_sampler
    watched = Watched(loader)
    sampler: Any = loader.batch_sampler
    assert isinstance(sampler, OwnPoisson)
    assert len(sampler) == len(loader) == 5
    sampler.epoch = 3
    assert own.epoch == sampler.epoch == 3
    assert unwatched(sampler) is own
    assert loader_facts(loader).description == "DataLoader with OwnPoisson"
    watched.tap.remove()
    assert loader.batch_sampler is own
    assert unwatched(own) is own


def test_logical_batches_are_watched_where_opacus_splits_them() -> None:
    optimizer = DPOptimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
    )
    loader = wrap_data_loader(data_loader=loader_with(), max_batch_size=3, optimizer=optimizer)
    assert isinstance(loader.batch_sampler, BatchSplittingSampler)
    watched = Watched(loader)
    physical = drawn(loader)
    assert len(watched.batches) == 5 < len(physical)
    assert [float(i) for batch in watched.batches for i in batch] == [
        i for batch in physical for i in batch
    ]
    watched.tap.remove()
    assert type(loader.batch_sampler.sampler) is OwnPoisson


def test_a_list_of_batches_is_watched_too() -> None:
    loader = DataLoader(DATA, batch_sampler=[[0, 1], [2]])
    watched = Watched(loader)
    assert drawn(loader) == [[0.0, 1.0], [2.0]]
    assert watched.batches == [[0, 1], [2]]


def test_what_has_no_batch_sampler_or_no_length_cannot_be_watched() -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    assert can_be_watched(loader_with())
    assert can_be_watched(
        DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False))
    )
    for loader in (DataLoader(DATA, batch_size=None), DataLoader(Endless()), [1, 2]):
        assert not can_be_watched(loader)
