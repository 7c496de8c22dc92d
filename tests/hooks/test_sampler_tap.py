import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler, wrap_data_loader
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from lightning_audit.hooks.sampler_tap import (
    BatchUse,
    SamplerTap,
    can_be_watched,
    digests_of,
    unwatched,
)
from lightning_audit.lints.settings import loader_facts

# --- Steps on a batch of before are told from steps on batches that the loader gives, also again.


class Plain:
    """A net, its optimizer, and a training loop around them."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.use, self.number = BatchUse(), 0

    def give(self, batch: Any) -> None:
        self.number += 1
        self.use.start_batch(batch, self.number)

    def take(self, *inputs: torch.Tensor) -> None:
        for x in inputs:
            self.net(x).sum().backward()
        self.optimizer.step()

    def step_on(self, batch: torch.Tensor) -> None:
        self.give(batch)
        self.take(batch)

    def counts(self) -> tuple[int, int, int | None]:
        return self.use.recognised, self.use.stale, self.use.first


@pytest.fixture
def plain():
    torch.manual_seed(0)
    made = Plain()
    made.use.attach([made.net], [made.optimizer])
    yield made
    made.use.detach()


def test_each_step_on_the_batch_that_was_given_is_recognised(plain):
    for _ in range(5):
        x = torch.randn(20, 5)
        plain.give([x, torch.zeros(20)])
        plain.take(x)
    assert plain.counts() == (5, 0, None)
    plain.give(x)
    plain.take(torch.cat([x, torch.randn(1, 5)]))  # rows are joined
    assert plain.counts() == (6, 0, None)
    plain.give(x)
    plain.take(x + 0.1 * torch.randn(20, 5))  # what was changed on its way says nothing
    plain.use.attach([plain.net], [plain.optimizer], lambda: False)
    plain.step_on(x)  # of a replay
    assert plain.counts() == (6, 0, None)


def test_a_batch_of_before_is_stale_until_it_is_given_again(plain):
    x, other = torch.randn(2, 20, 5)
    plain.step_on(x)
    plain.give(other)
    plain.take(x)
    assert plain.counts() == (2, 1, 2)
    plain.step_on(x)
    assert plain.counts() == (3, 1, 2)
    plain.give(other)
    plain.take(other, x)  # a part of the step is of before
    assert plain.counts() == (4, 2, 2)


def test_a_batch_that_comes_again_in_its_order_is_counted(plain):
    x, other = torch.randn(2, 20, 5)
    for batch in (x, other, x, x.flip(0)[-20:], torch.cat([x, other]), other):
        plain.give(batch)
    assert plain.use.regiven == 2


CONSTANT = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "batches",
    [
        [(x, CONSTANT) for x in torch.randn(4, 20, 5)],
        [(x, CONSTANT) for x in torch.arange(12).reshape(4, 3)],  # records without a digest
        [([f"text {n}"], CONSTANT) for n in range(4)],
        [(x.numpy(), CONSTANT) for x in torch.randn(4, 20)],
        [(x, CONSTANT) for x in torch.randn(4, 20, 5, dtype=torch.complex64)],
        [(x.to_sparse(), CONSTANT) for x in torch.randn(4, 20, 5)],
        [(object(), CONSTANT) for _ in range(4)],
        # The same few records are drawn twice, after others.
        [(torch.arange(n), CONSTANT) for n in (1, 0, 2, 0, 1, 0)],
    ],
    ids=["rows", "indices", "texts", "arrays", "complex", "sparse", "objects", "small"],
)
def test_a_constant_in_each_batch_is_no_batch(plain, batches):
    for batch in batches:
        plain.give(batch)
    assert plain.use.regiven == 0


def test_a_kept_batch_comes_again_beside_a_constant(plain):
    for x in torch.randn(4, 20, 5).repeat(2, 1, 1):
        plain.give((x, torch.zeros(20), 0.5, CONSTANT))
    assert plain.use.regiven == 4
    for x in torch.randn(5, 20, 5):
        plain.give((x, x.clone()))  # an autoencoder's target, a language model's labels
    assert plain.use.regiven == 4
    plain.give((x, x.clone()))
    assert plain.use.regiven == 5


def test_lists_of_records_come_again_with_all_of_them(plain):
    records = list(torch.randn(6, 20, 5))
    for drawn in ([0, 1], [1, 2, 3], [0, 2], [4, 5], [4], [0, 1, 2]):
        plain.give([records[n] for n in drawn])
    assert plain.use.regiven == 0
    plain.give([records[4], records[5]])
    assert plain.use.regiven == 1


def test_batches_of_few_kinds_of_rows_do_not_come_again(plain):
    # Nine kinds: two batches have the same ones, and another order.
    kinds = torch.eye(9)
    for _ in range(200):
        plain.give(kinds[torch.randint(9, (40,))])
    assert plain.use.regiven == 0


def test_what_makes_no_gradient_is_no_use(plain):
    x, other = torch.randn(2, 20, 5)
    plain.step_on(x)
    plain.give(other)
    with torch.no_grad():
        plain.net(x)
    plain.net(x)  # looked at, and left out of the loss
    plain.take(other)
    assert plain.counts() == (2, 0, None)


def test_nothing_of_it_is_in_a_copy_of_the_module_or_in_its_file(plain):
    plain.step_on(torch.randn(20, 5))
    assert not plain.net._forward_hooks
    copy.deepcopy(plain.net)
    torch.save(plain.net, io.BytesIO())


@pytest.mark.parametrize(
    "leaf",
    [
        torch.arange(20),
        torch.randn(7, 5),
        torch.zeros(20, 5),
        torch.arange(5.0).repeat(20, 1),
        torch.zeros(20, 0),
        torch.randn(20, 5).to_sparse(),
        torch.nested.nested_tensor([torch.randn(2, 5)] * 20, layout=torch.jagged),
        torch.zeros(20, 5, device="meta"),
        "text",
        None,
    ],
)
def test_what_tells_no_batch_from_another_has_no_digest(leaf):
    assert digests_of(leaf)[0] is None


def test_the_digest_is_that_of_the_values_whatever_their_layout():
    x = torch.randn(20, 6)
    assert digests_of(x)[0] == digests_of(x.t().contiguous().t())[0] == digests_of(x.double())[0]
    assert digests_of(x)[0] != digests_of(x + 1e-6)[0]
    assert digests_of(x[:16])[0] == digests_of(x)[0]


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
def test_a_watched_loader_yields_what_it_would_and_all_of_it_is_seen(workers):
    plain, loader = drawn(loader_with(workers), 2), loader_with(workers)
    after, watched = torch.get_rng_state(), Watched(loader)
    assert drawn(loader, 2) == plain
    assert torch.equal(torch.get_rng_state(), after)
    assert [[float(i) for i in batch] for batch in watched.batches] == plain
    assert watched.starts == 2


def test_a_sampler_that_draws_its_order_at_once_draws_it_when_it_would():
    class Eager(OwnPoisson):
        def __iter__(self) -> Iterator[list[int]]:
            return iter(torch.randperm(40).reshape(8, 5).tolist())

    def order(loader: DataLoader) -> tuple[list[list[float]], float]:
        torch.manual_seed(0)
        batches, between = iter(loader), float(torch.rand(()))
        return [batch[0].tolist() for batch in batches], between

    plain, loader = (DataLoader(DATA, batch_sampler=Eager()) for _ in range(2))
    Watched(loader)
    assert order(loader) == order(plain)


def test_the_sampler_shows_its_type_its_length_and_its_attributes():
    loader = loader_with()
    own, watched = loader.batch_sampler, Watched(loader)
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


def test_logical_batches_are_watched_where_opacus_splits_them():
    optimizer = DPOptimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
    )
    loader = wrap_data_loader(data_loader=loader_with(), max_batch_size=3, optimizer=optimizer)
    assert isinstance(loader.batch_sampler, BatchSplittingSampler)
    watched, physical = Watched(loader), drawn(loader)
    assert len(watched.batches) == 5 < len(physical)
    assert [float(i) for batch in watched.batches for i in batch] == [
        i for batch in physical for i in batch
    ]
    watched.tap.remove()
    assert type(loader.batch_sampler.sampler) is OwnPoisson
    loader = DataLoader(DATA, batch_sampler=[[0, 1], [2]])  # a list of batches
    watched = Watched(loader)
    assert drawn(loader) == [[0.0, 1.0], [2.0]]
    assert watched.batches == [[0, 1], [2]]


def test_what_has_no_batch_sampler_or_no_length_cannot_be_watched():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    assert can_be_watched(loader_with())
    assert can_be_watched(
        DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False))
    )
    for loader in (DataLoader(DATA, batch_size=None), DataLoader(Endless()), [1, 2]):
        assert not can_be_watched(loader)
