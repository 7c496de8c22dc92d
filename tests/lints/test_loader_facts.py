from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from one_parameter import private
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import wrap_data_loader
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)

from lightning_audit.lints.settings import LoaderFacts, draws_from, loader_facts

DATA = TensorDataset(torch.zeros(40, 2))


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.zeros(4, 2))


class EveryOther(Sampler):
    """A user's batch sampler, of which nothing is known."""

    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(0, 40, 2))


class OwnBatchSampler(BatchSampler):
    """A subclass may draw as it likes, also by Poisson sampling."""


def poisson(sample_rate: float = 0.2) -> DPDataLoader:
    return DPDataLoader(DATA, sample_rate=sample_rate)


def test_opacus_loader_is_poisson_at_its_rate() -> None:
    assert loader_facts(poisson(0.2)) == LoaderFacts(
        "poisson", "DPDataLoader with UniformWithReplacementSampler", 0.2
    )


def test_the_loader_that_opacus_makes_of_another_states_one_batch_in_all_batches() -> None:
    facts = loader_facts(DPDataLoader.from_data_loader(DataLoader(DATA, batch_size=8)))
    assert facts.kind == "poisson"
    assert facts.sample_rate == pytest.approx(1 / 5)


def test_a_plain_loader_with_a_poisson_sampler_is_poisson() -> None:
    sampler = UniformWithReplacementSampler(num_samples=40, sample_rate=0.1)
    facts = loader_facts(DataLoader(DATA, batch_sampler=sampler))
    assert (facts.kind, facts.sample_rate) == ("poisson", 0.1)


@pytest.mark.parametrize(("shuffle", "order"), [(True, "RandomSampler"), (False, "Sequential")])
def test_fixed_batches_are_not_poisson_shuffled_or_not(shuffle: bool, order: str) -> None:
    facts = loader_facts(DataLoader(DATA, batch_size=8, shuffle=shuffle))
    assert facts.kind == "not_poisson"
    assert facts.sample_rate is None
    assert order in facts.description
    assert "batches of 8" in facts.description


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (DataLoader(DATA, batch_sampler=EveryOther()), "EveryOther"),
        (DataLoader(DATA, batch_sampler=OwnBatchSampler([1, 2], 1, False)), "OwnBatchSampler"),
        (DataLoader(DATA, batch_size=None), "no batch sampler"),
        (iter([1, 2]), "list_iterator"),
    ],
)
def test_a_sampler_of_neither_torch_nor_opacus_is_unknown_and_named(loader: Any, name: str) -> None:
    facts = loader_facts(loader)
    assert (facts.kind, facts.sample_rate) == ("unknown", None)
    assert name in facts.description


def test_a_stream_is_never_taken_for_poisson() -> None:
    facts = loader_facts(DataLoader(Stream(), batch_size=2))
    assert facts.kind != "poisson"
    assert facts.sample_rate is None


@pytest.mark.parametrize("wrap", [list, tuple, lambda x: dict(enumerate(x)), lambda x: {"a": x}])
def test_of_several_loaders_the_first_doubtful_one_is_told(wrap: Any) -> None:
    fixed, unknown = DataLoader(DATA, batch_size=8), DataLoader(DATA, batch_sampler=EveryOther())
    assert loader_facts(wrap([poisson(), fixed, unknown])).kind == "not_poisson"
    assert loader_facts(wrap([poisson(), unknown, fixed])).kind == "unknown"
    assert loader_facts(wrap([poisson(0.1), poisson(0.2)])).sample_rate == 0.1


@pytest.mark.parametrize("nothing", [[], {}, None])
def test_no_loader_is_unknown(nothing: Any) -> None:
    assert loader_facts(nothing).kind == "unknown"


def test_a_subclass_of_opacus_sampler_that_draws_by_itself_is_unknown() -> None:
    class Own(UniformWithReplacementSampler):
        def __iter__(self) -> Iterator[list[int]]:
            yield [1]

    facts = loader_facts(DataLoader(DATA, batch_sampler=Own(num_samples=40, sample_rate=0.2)))
    assert (facts.kind, facts.description) == ("unknown", "DataLoader with Own")


def split(loader: DataLoader) -> DataLoader:
    return wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=private())


def test_physical_batches_are_drawn_as_the_logical_ones() -> None:
    assert loader_facts(split(poisson(0.2))).kind == "poisson"
    assert loader_facts(split(poisson(0.2))).sample_rate == 0.2
    assert loader_facts(split(DataLoader(DATA, batch_size=8))).kind == "not_poisson"
    own = split(DataLoader(DATA, batch_sampler=EveryOther()))
    assert loader_facts(own).description == "DataLoader with EveryOther"


def test_number_of_records_is_that_of_the_data_set() -> None:
    assert loader_facts(poisson(0.2)).records == 40
    assert loader_facts(DataLoader(Stream(), batch_size=2)).records is None


def test_a_loader_over_a_subset_draws_from_a_part() -> None:
    part = DPDataLoader(Subset(DATA, range(20)), sample_rate=0.2)
    assert draws_from([poisson()], part=False)
    assert not draws_from([poisson()], part=True)
    assert draws_from([part], part=True)
    assert not draws_from([part, DataLoader(DATA, batch_size=8)], part=False)
