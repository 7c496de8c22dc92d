import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise
from opacus.utils.batch_memory_manager import wrap_data_loader
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)

from lightning_audit.accounting.history import Phase
from lightning_audit.lints import settings

# --- A private optimizer over one parameter.


def plain() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)


def private(reduction: str = "mean", noise_multiplier: float = 1.0) -> DPOptimizer:
    return DPOptimizer(
        plain(),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=8,
        loss_reduction=reduction,
    )


def test_two_divisions_by_the_number_of_batches_are_said_with_what_to_write():
    (remark,) = settings.accumulation_remarks(private("mean"), 3)
    assert remark.startswith("accumulate_grad_batches=3 divides gradients twice")
    assert "Return 3 times the loss" in remark
    for optimizer, batches in ((private("mean"), 1), (private("sum"), 3), (plain(), 3)):
        assert settings.accumulation_remarks(optimizer, batches) == []
    module = GradSampleModule(torch.nn.Linear(2, 2))
    assert settings.accumulation_remarks(private("mean"), 3, module) == [remark]
    module.forbid_grad_accumulation()
    (before_it_raises,) = settings.accumulation_remarks(private("mean"), 2, module)
    assert "Opacus will end the train" in before_it_raises


DATA = TensorDataset(torch.zeros(40, 2))


def test_loader_of_a_batch_memory_manager_splits_batches():
    loader = DPDataLoader(DATA, sample_rate=0.2)
    split = wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=private())
    assert settings.splits_batches([loader, split])
    assert not settings.splits_batches([loader])


def test_signals_of_batches_that_workers_load_ahead_are_no_rest():
    assert settings.signals_ahead(DataLoader(DATA)) == 2
    assert settings.signals_ahead([DataLoader(DATA, num_workers=2, prefetch_factor=3)]) == 8
    optimizer = private()
    optimizer._step_skip_queue = [False] * 8
    assert not settings.carries_over(optimizer, 8)
    optimizer._step_skip_queue.append(True)
    assert settings.carries_over(optimizer, 8)
    optimizer = private()
    assert not settings.carries_over(optimizer, 2)
    optimizer.params[0].summed_grad = torch.zeros(1)
    assert not settings.carries_over(optimizer, 2)  # of a batch that has ended, and not emptied yet
    optimizer._is_last_step_skipped = True
    assert settings.carries_over(optimizer, 2)


# --- Batches without a step: empty ones, and others at no fixed distance.

EMPTY, FULL = torch.zeros(0, 3), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (EMPTY, True),
        ((EMPTY, torch.zeros(0)), True),
        ({"x": EMPTY, "weight": torch.tensor(1.0)}, True),
        ((EMPTY, FULL), False),
        ([FULL], False),
        (torch.tensor(1.0), False),
        ("a batch of its own kind", False),
    ],
)
def test_a_batch_is_empty_if_its_tensors_hold_no_sample(batch, expected):
    assert settings.is_empty(batch) == expected


def seen(*epochs: str) -> settings.LeftOutBatches:
    """Of batches in epochs: "s" for a step, "." for none; "S" and "," where they are empty."""
    found = settings.LeftOutBatches()
    for epoch in epochs:
        found.start_epoch()
        for batch in epoch:
            found.take(EMPTY if batch in "S," else FULL, stepped=batch in "sS")
    return found


def test_an_empty_batch_without_a_step_is_left_out():
    assert not seen("sS").empty
    assert seen("sS,").empty
    assert not seen("sS,").irregular
    assert not seen(".,s,").empty  # it adds batches up


@pytest.mark.parametrize(
    "epochs",
    [
        ("sssss", "sssss"),
        ("..s..s..s", "..s..s..s"),
        ("..s..s..s.", "..s..s..s.s"),  # the rest of an epoch is dropped, or steps at its end
        (".....", "sssss"),  # a first epoch that does not train
        (".s.s.s", "...s...s"),  # another distance in another epoch
        ("s..s..s", ".s..s..s"),  # by the number of the batch; the process resumed amid a distance
        ("s.s.s.", "s.s.s."),
        ("ss,ss", "..s,.s..s"),  # an empty batch is no batch that a loss is of
    ],
)
def test_steps_at_a_fixed_distance_leave_none_out(epochs):
    assert not seen(*epochs).irregular


@pytest.mark.parametrize(
    "epochs",
    [("sss.s",), ("ssss.",), ("sssss", "..sss"), (".s.s..s.s",), ("..s..s.s..s",), ("..s..s...",)],
)
def test_batches_left_out_at_no_fixed_distance_are_seen(epochs):
    assert seen(*epochs).irregular


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


class OwnPoisson(UniformWithReplacementSampler):
    """A subclass of Opacus' sampler that draws by itself."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [1]


def drawing(kind: type[UniformWithReplacementSampler], rate: float) -> DataLoader:
    return DataLoader(DATA, batch_sampler=kind(num_samples=40, sample_rate=rate))


@pytest.mark.parametrize(
    ("loader", "kind", "rate", "description"),
    [
        (poisson(0.2), "poisson", 0.2, "DPDataLoader with UniformWithReplacementSampler"),
        # The loader that Opacus makes of another states one batch in all batches.
        (DPDataLoader.from_data_loader(DataLoader(DATA, batch_size=8)), "poisson", 0.2, ".*"),
        (drawing(UniformWithReplacementSampler, 0.1), "poisson", 0.1, ".*"),
        (
            DataLoader(DATA, batch_size=8, shuffle=True),
            "not_poisson",
            None,
            "(?=.*RandomSampler).*batches of 8.*",
        ),
        (DataLoader(DATA, batch_size=8), "not_poisson", None, "(?=.*Sequential).*batches of 8.*"),
        (DataLoader(DATA, batch_sampler=EveryOther()), "unknown", None, ".*EveryOther.*"),
        (
            DataLoader(DATA, batch_sampler=OwnBatchSampler([1, 2], 1, False)),
            "unknown",
            None,
            ".*OwnBatchSampler.*",
        ),
        (DataLoader(DATA, batch_size=None), "unknown", None, ".*no batch sampler.*"),
        (DataLoader(Stream(), batch_size=2), "not_poisson", None, ".*"),
        (iter([1, 2]), "unknown", None, ".*list_iterator.*"),
        (drawing(OwnPoisson, 0.2), "unknown", None, "DataLoader with OwnPoisson"),
        *((nothing, "unknown", None, ".*") for nothing in ([], {}, None)),
    ],
)
def test_how_a_loader_draws_is_told(loader, kind, rate, description):
    facts = settings.loader_facts(loader)
    assert (facts.kind, facts.sample_rate) == (kind, rate and pytest.approx(rate))
    assert re.fullmatch(description, facts.description)
    of_data = getattr(loader, "batch_sampler", None) is not None and loader.dataset is DATA
    assert facts.records == (len(DATA) if of_data else None)


@pytest.mark.parametrize("wrap", [list, tuple, lambda x: dict(enumerate(x)), lambda x: {"a": x}])
def test_of_several_loaders_the_first_doubtful_one_is_told(wrap):
    fixed, unknown = DataLoader(DATA, batch_size=8), DataLoader(DATA, batch_sampler=EveryOther())
    assert settings.loader_facts(wrap([poisson(), fixed, unknown])).kind == "not_poisson"
    assert settings.loader_facts(wrap([poisson(), unknown, fixed])).kind == "unknown"
    assert settings.loader_facts(wrap([poisson(0.1), poisson(0.2)])).sample_rate == 0.1


def split(loader: DataLoader) -> DataLoader:
    return wrap_data_loader(data_loader=loader, max_batch_size=3, optimizer=private())


def test_physical_batches_are_drawn_as_the_logical_ones():
    assert settings.loader_facts(split(poisson(0.2))).kind == "poisson"
    assert settings.loader_facts(split(poisson(0.2))).sample_rate == 0.2
    assert settings.loader_facts(split(DataLoader(DATA, batch_size=8))).kind == "not_poisson"
    own = split(DataLoader(DATA, batch_sampler=EveryOther()))
    assert settings.loader_facts(own).description == "DataLoader with EveryOther"


def test_a_loader_over_a_subset_draws_from_a_part():
    part = DPDataLoader(Subset(DATA, range(20)), sample_rate=0.2)
    assert settings.draws_from([poisson()], part=False)
    assert not settings.draws_from([poisson()], part=True)
    assert settings.draws_from([part], part=True)
    assert not settings.draws_from([part, DataLoader(DATA, batch_size=8)], part=False)


# --- How a loss adds up its batch is read off the graph that torch makes of it.

X = torch.randn(4, 3, requires_grad=True)
Y = torch.tensor([0, 1, 2, 0])
ONES = torch.ones(4, 3)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_torchs_losses_tell(reduction):
    losses = [
        functional.cross_entropy(X, Y, reduction=reduction),
        functional.mse_loss(X, ONES, reduction=reduction),
        functional.binary_cross_entropy_with_logits(X, ONES, reduction=reduction),
        functional.smooth_l1_loss(X, ONES, reduction=reduction),
        getattr(functional.cross_entropy(X, Y, reduction="none"), reduction)(),
        functional.cross_entropy(X, Y, reduction=reduction)
        + functional.mse_loss(X, ONES, reduction=reduction),
    ]
    assert [settings.reduction_of(loss) for loss in losses] == [reduction] * len(losses)


def test_what_lightning_divides_by_is_left_aside():
    total = functional.cross_entropy(X, Y, reduction="sum")
    assert settings.reduction_of(total / 1) == "sum"
    assert settings.reduction_of(total / 3, accumulated=3) == "sum"
    assert settings.reduction_of(total / 4, accumulated=3) is None
    assert settings.reduction_of(total / 1.5) is None
    assert settings.reduction_of(total / 1 / 4) is None


def test_a_mode_of_the_users_sees_nothing_of_it():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **kwargs or {})

    called: list[Any] = []
    with Mode():
        loss = functional.cross_entropy(X, Y, reduction="sum") / 3
        own = len(called)
        assert settings.reduction_of(loss, accumulated=3) == "sum"
    assert len(called) == own > 0


def test_a_loss_that_is_made_otherwise_or_may_be_a_mean_tells_nothing():
    each = functional.cross_entropy(X, Y, reduction="none")
    mean = functional.mse_loss(X, ONES)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    total = functional.cross_entropy(X, Y, reduction="sum")
    losses = [
        *(total / 4, 0.5 * mean, mean + total, mean.detach(), None, X.norm()),
        torch.stack([each.mean(), mean]).sum(),
        torch.cat([each.mean()[None], mean[None]]).sum(),
        torch.stack([each.sum(), each.sum()]).mean(),
        (each * weights / weights.sum()).sum(),
        (each * (weights / weights.sum())).sum(),
    ]
    assert [settings.reduction_of(loss) for loss in losses] == [None] * len(losses)
    assert settings.reduction_of((each * weights).mean()) == "mean"
    assert settings.reduction_of(((X - ONES) ** 2).sum()) == "sum"


def numbers_of(seed: int | None, drawn: int) -> list[int]:
    """Of a process whose generator is seeded so, and that draws so many values a step."""
    draws, generator = settings.NoiseDraws(), torch.Generator().manual_seed(seed or 0)

    def state() -> str | None:
        return None if seed is None else bytes(generator.get_state().tolist()).hex()

    for step in range(settings.STEPS + 2):
        draws.start(state())
        if drawn:
            torch.randn(drawn, generator=generator)
        draws.end(step, state())
    return draws.numbers


@pytest.mark.parametrize(
    ("processes", "equal"),
    [
        (((1, 5), (2, 5), (1, 5)), True),
        (((1, 5), (1, 0), (1, 0)), False),  # one adds noise for all, whatever the seeds
        (((1, 5), (2, 5)), False),
        (((None, 5), (None, 5)), False),  # generators that show no state
    ],
)
def test_the_same_noise_in_two_processes_is_seen(processes, equal):
    assert settings.equal_draws([numbers_of(seed, drawn) for seed, drawn in processes]) == equal


# --- Noise that follows a scheduler of Opacus, and noise that only looks like it.


def run(optimizer: DPOptimizer, steps: int, is_due: Callable[[int], bool], scheduler: Any):
    """The noise of steps, where the scheduler is stepped after those that are due, from 1."""
    runs = []
    for number in range(1, steps + 1):
        runs.append(Phase(optimizer.noise_multiplier, 0.1, 1))
        if is_due(number):
            scheduler.step()
    return settings.changes_of_noise(runs)


SCHEDULERS = [
    lambda o: ExponentialNoise(o, gamma=0.9),
    lambda o: LambdaNoise(o, noise_lambda=lambda e: 1.0 / (1.0 + e // 2)),
    lambda o: StepNoise(o, step_size=3, gamma=0.8),
]


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_scheduler_stepped_at_a_fixed_distance_is_followed(make, each):
    optimizer = private(noise_multiplier=2.0)
    scheduler = make(optimizer)
    changes = run(optimizer, 60, lambda number: number % each == 0, scheduler)
    assert len(changes) > 1
    assert settings.follows_a_scheduler(changes, optimizer)


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_scheduler_stepped_where_something_else_decides_is_not(make):
    optimizer = private(noise_multiplier=2.0)
    changes = run(optimizer, 60, {7, 14, 15, 28, 36, 40, 41, 44, 52}.__contains__, make(optimizer))
    assert not settings.follows_a_scheduler(changes, optimizer)


def fails(_: int) -> float:
    raise IndexError


@pytest.mark.parametrize("asked_again", [lambda n: 0.5, fails])
def test_a_lambda_that_gives_another_value_when_it_is_asked_again_is_not_followed(asked_again):
    optimizer = private(noise_multiplier=2.0)
    scheduler = LambdaNoise(optimizer, noise_lambda=lambda e: 1.0 / (1.0 + e))
    changes = run(optimizer, 20, lambda _: True, scheduler)
    assert settings.follows_a_scheduler(changes, optimizer)
    scheduler.noise_lambda = asked_again
    assert not settings.follows_a_scheduler(changes, optimizer)


class ByTheLoss(ExponentialNoise):
    """A subclass may go by anything."""


@pytest.mark.parametrize("kind", [None, ByTheLoss])
def test_changes_without_a_known_scheduler_follow_none(kind):
    optimizer, others = private(noise_multiplier=2.0), private(noise_multiplier=2.0)
    ExponentialNoise(others, gamma=0.9)
    scheduler = kind and kind(optimizer, gamma=0.9)
    changes = [(2.0, 5), (2.0 * 0.9, 5)]
    assert not settings.follows_a_scheduler(changes, optimizer)
    assert scheduler is None or scheduler.last_epoch == 0


def test_a_change_beside_the_scheduler_is_not_followed():
    optimizer = private(noise_multiplier=2.0)
    scheduler = ExponentialNoise(optimizer, gamma=0.9)
    changes = run(optimizer, 30, lambda number: number % 5 == 0, scheduler)
    assert settings.follows_a_scheduler(changes, optimizer)
    lowered = [
        (sigma * (0.7 if n == 3 else 1.0), steps) for n, (sigma, steps) in enumerate(changes)
    ]
    assert not settings.follows_a_scheduler(lowered, optimizer)


def test_equal_noise_at_other_rates_is_no_change():
    runs = [Phase(1.0, 0.1, 3), Phase(1.0, 0.2, 4), Phase(0.5, 0.2, 1)]
    assert settings.changes_of_noise(runs) == [(1.0, 7), (0.5, 1)]


# --- Records that a data set holds several times, by index or by contents.

HELD = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
OTHER = TensorDataset(torch.zeros(4, 2), torch.zeros(4))


def test_indices_are_followed_through_subsets_and_concatenations():
    assert settings.repeated_indices(HELD) == 0
    assert settings.repeated_indices(Subset(HELD, [1, 2, 2, 5])) == 1
    assert settings.repeated_indices(Subset(HELD, [1, 2, 2, 5]), items=2) == 0
    assert settings.repeated_indices(Subset(HELD, [2, 2, 2, 5, 5]), items=2) == 1
    assert settings.repeated_indices(Subset(Subset(HELD, [3, 3, 4]), [0, 1])) == 1
    assert settings.repeated_indices(Subset(Subset(HELD, [3, 3, 4]), [0, 2])) == 0
    assert settings.repeated_indices(ConcatDataset([HELD, OTHER])) == 0
    assert settings.repeated_indices(ConcatDataset([HELD, Subset(HELD, [0, 9])])) == 2
    assert settings.repeated_indices(Subset(ConcatDataset([HELD, OTHER]), [0, 10, 13, 13])) == 1


def test_a_data_set_that_chooses_by_itself_is_not_followed():
    class Own(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return 0

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    assert settings.repeated_indices(Own()) == 0
    assert settings.repeated_contents(Own()) is None
    assert settings.repeated_indices(Stream()) is None


def test_contents_are_compared_with_their_labels():
    assert settings.repeated_contents(HELD) == 0
    assert settings.repeated_contents(OTHER) == 3
    assert settings.repeated_contents(TensorDataset(torch.zeros(4, 2), torch.arange(4))) == 0
    assert settings.repeated_contents(TensorDataset(torch.zeros(0, 2))) is None


def test_only_what_the_private_optimizer_leaves_alone_is_looked_at_and_seen_to_change():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    before = settings.fingerprints(net, net[0].parameters())
    assert set(before) == {"1.weight"}
    with torch.no_grad():
        net[0].weight.add_(1.0)
    assert settings.fingerprints(net, net[0].parameters()) == before
    with torch.no_grad():
        net[1].weight.neg_()
    assert settings.fingerprints(net, net[0].parameters()) != before
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0, -1.0]]))
    assert settings.fingerprints(net, net[0].parameters()) == {"1.weight": (0.0, 2.0)}
