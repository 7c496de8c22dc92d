import dataclasses
import itertools
import random
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightning_audit import Examination
from lightning_audit.checks.replay import Answer
from lightning_audit.replay.clipping import CraftedGradients, Trial, own_direction, undisturbed
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.faulty import ClipAtTwice
from lightning_audit.testing.faulty_trainings import ChangedAfterStep, ViewsClippedApart
from lightning_audit.testing.trainings import (
    DeepTraining,
    GhostInParts,
    PhysicalBatches,
    SplitBatches,
    Training,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


class BatchesOf8(Training):
    size = 8

    def plain_loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, self.size)


class BatchesOf100(BatchesOf8):
    size = 100


class WithMomentum(Training):
    def configure_optimizers(self) -> Any:
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)


class AddedUp(Training):
    """The Trainer adds up the gradients of four batches."""

    engine_arguments: ClassVar[dict[str, Any]] = {"poisson_sampling": False}


class ClipSum(DPOptimizer):
    """Clips the sum of the batch at five times the norm."""

    def clip_and_accumulate(self) -> None:
        sums = [g.sum(0) for g in self.grad_samples]
        norm = torch.stack([each.norm() for each in sums]).norm()
        for p, each in zip(self.params, sums, strict=True):
            p.summed_grad = each * (5.0 * self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)


class ClipAtThreeHalves(ClipAtTwice):
    def clip_and_accumulate(self) -> None:
        stated = self.max_grad_norm
        self.max_grad_norm = 1.5 * stated
        DPOptimizer.clip_and_accumulate(self)
        self.max_grad_norm = stated


class LargestPasses(DPOptimizer):
    """The largest gradient of a batch is not clipped."""

    def clip_and_accumulate(self) -> None:
        norms = torch.cat([g.flatten(1) for g in self.grad_samples], dim=1).norm(dim=1)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        factors[norms.argmax()] = 1.0
        for p, g in zip(self.params, self.grad_samples, strict=True):
            p.summed_grad = torch.einsum("i,i...", factors, g)


def asked(
    optimizer: type[DPOptimizer] | None,
    training: type[Training],
    settings: dict[str, float],
    question: str = "replay.clipping",
) -> Answer:
    fault = Fault("made", "", "", optimizer, training)
    module = dataclasses.replace(fault, settings=settings).module(pl.LightningModule)
    examination = Examination()
    torch.manual_seed(0)
    pl.Trainer(
        max_steps=3,
        accumulate_grad_batches=4 if training is AddedUp else 1,
        callbacks=[examination],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module)
    return examination.answers[question]


def faulty(name: str) -> type[DPOptimizer] | None:
    own = {"clip_sum": ClipSum, "clip_at_1.5": ClipAtThreeHalves, "largest_passes": LargestPasses}
    return own[name] if name in own else FAULTS[name].optimizer


@pytest.mark.parametrize("training", [Training, BatchesOf8, BatchesOf100, WithMomentum])
@pytest.mark.parametrize("name", ["clip_after_average", "clip_sum"])
def test_clipping_together_is_told(name, training):
    assert asked(faulty(name), training, {}).kind == "sum"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no_clipping", "none"),
        ("clip_at_twice", "norm"),
        ("clip_per_tensor", "tensors"),
        ("norm_misses_biases", "some"),
        ("clip_by_median_norm", "batch"),
    ],
)
@pytest.mark.parametrize("training", [BatchesOf8, DeepTraining])
def test_other_ways_to_clip_are_told_apart(name, kind, training):
    assert asked(faulty(name), training, {}).kind == kind


@pytest.mark.parametrize(
    ("name", "training", "question", "kind"),
    [
        ("clip_at_1.5", Training, "clipping", "norm"),
        # What depends on the place or on single others has no kind.
        ("first_row_not_clipped", Training, "clipping", ""),
        ("two_clipped_together", Training, "clipping", ""),
        ("largest_passes", Training, "clipping", ""),
        # Crafted gradients name it where they are asked of a part.
        ("no_clipping", SplitBatches, "sensitivity", "none"),
        ("clip_at_twice", SplitBatches, "sensitivity", "norm"),
        ("clip_at_twice", AddedUp, "sensitivity", "norm"),
        ("clip_per_tensor", SplitBatches, "sensitivity", "tensors"),
        ("clip_by_median_norm", SplitBatches, "sensitivity", "batch"),
        ("parts_are_added_again", SplitBatches, "sensitivity", "parts"),
        ("parts_are_added_again", PhysicalBatches, "sensitivity", "parts"),
        ("parts_share_memory", GhostInParts, "sensitivity", "parts"),
        ("views_clipped_apart", ViewsClippedApart, "sensitivity", "rows"),
        ("first_row_not_clipped", SplitBatches, "sensitivity", ""),
        ("two_clipped_together", SplitBatches, "sensitivity", ""),
        ("first_row_not_clipped", PhysicalBatches, "sensitivity", ""),
        # A divisor that is a number of records is told from other uses of them.
        ("divides_by_realised_batch", Training, "release", "divisor"),
        ("divides_by_realised_batch", WithMomentum, "release", "divisor"),
        ("divides_by_realised_batch", SplitBatches, "release", "divisor"),
        ("divides_by_realised_batch", PhysicalBatches, "release", "divisor"),
        ("momentum_of_raw_gradients", Training, "release", ""),
        ("learning_rate_by_raw_norm", Training, "release", ""),
        ("changed_after_step", ChangedAfterStep, "release", ""),
    ],
)
def test_findings_tell_their_kind(name, training, question, kind):
    # Lightning divides the loss by the number of batches that it adds up.
    norm = 0.3 if name == "clip_at_1.5" else 0.2 if training is AddedUp else None
    settings = {"max_grad_norm": norm} if norm else {}
    answer = asked(faulty(name), training, settings, f"replay.{question}")
    assert answer.findings
    assert answer.kind == kind


@pytest.mark.parametrize(
    ("training", "question"),
    [
        *((kind, "sensitivity") for kind in (SplitBatches, PhysicalBatches, GhostInParts, AddedUp)),
        (WithMomentum, "clipping"),
    ],
)
def test_correct_steps_have_no_kind(training, question):
    answer = asked(None, training, {}, f"replay.{question}")
    assert answer.asked
    assert (answer.findings, answer.kind) == ((), "")


# --- Crafted gradients have the norms and places that their names say.

SIZES = (24, 6, 12, 2)


@pytest.fixture(scope="module")
def trials():
    return list(CraftedGradients(SIZES, batch=16, seed=1).trials())


def only(trial: Trial) -> torch.Tensor:
    """The gradient that is left out, and zeros."""
    rows = torch.zeros_like(trial.rows)
    rows[trial.left_out] = trial.rows[trial.left_out]
    return rows


def test_a_neighbour_lacks_one_gradient_and_has_the_others_in_order(trials):
    for trial in trials:
        kept = [row for j, row in enumerate(trial.rows) if j != trial.left_out % len(trial.rows)]
        assert torch.equal(trial.neighbour, torch.stack(kept))
        assert torch.equal(trial.rows - trial.with_zeros, only(trial))


def test_norms_are_those_of_the_names(trials):
    named = [trial for trial in trials if ", norm " in trial.name or trial.name.startswith("norm ")]
    assert len(named) >= 10
    for trial in named:
        stated = float(trial.name.split("norm ")[1].split()[0])
        assert float(trial.rows[trial.left_out].norm()) == pytest.approx(stated)


def test_norms_go_from_half_the_clipping_norm_to_100_000_times_it(trials):
    norms = [float(trial.rows[trial.left_out].norm()) for trial in trials]
    assert min(norms) <= 0.5
    assert max(norms) >= 1e5


def test_first_middle_and_last_place_are_all_left_out(trials):
    assert {0, 8, 15} <= {t.left_out % len(t.rows) for t in trials if len(t.rows) == 16}


def test_batches_are_of_two_of_the_usual_and_of_over_twice_that_size(trials):
    assert {len(trial.rows) for trial in trials} == {2, 16, 34}
    assert {len(trial.neighbour) for trial in trials} == {1, 15, 33}


def test_one_gradient_outweighs_all_others_and_one_is_alone(trials):
    named = {trial.name: trial for trial in trials}
    against = named["against all others, which it outweighs"]
    one, others = against.rows[against.left_out], against.neighbour.sum(0)
    assert torch.cosine_similarity(one, others, dim=0) == pytest.approx(-1.0)
    assert one.norm() > 10 * others.norm()
    assert not named["norm 1e+03 C, alone"].neighbour.any()


def test_each_tensor_has_a_gradient_of_its_own(trials):
    ends, alone = list(itertools.accumulate(SIZES)), set()
    for trial in trials:
        where = trial.rows[trial.left_out].nonzero().flatten()
        owners = {next(j for j, end in enumerate(ends) if int(i) < end) for i in where}
        alone |= owners if len(owners) == 1 else set()
    assert alone == set(range(len(SIZES)))


def test_families_take_turns(trials):
    first = [trial.name for trial in trials[:4]]
    assert first[0].startswith("norm ")
    assert first[1].startswith("the same in all entries")
    assert first[2].startswith("one of equal ones")
    assert first[3].startswith("one of two")


def test_large_models_have_fewer_gradients_at_once():
    crafted = CraftedGradients([3_000_000], batch=512, seed=0)
    assert len(next(iter(crafted.trials())).rows) <= 8


def test_one_seed_gives_one_set():
    one, other = (list(CraftedGradients(SIZES, 4, seed=3).trials()) for _ in range(2))
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(one, other, strict=True))


# --- The gradient of one sample comes without a trace in the training.


class _Module(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.logged: list[str] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.logged.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.net(x)
        self.log("mean", outputs.mean())
        random.random()
        np.random.rand()
        return outputs


def _net(**kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def _data(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def _loss(module: nn.Module, rows: slice = slice(None)) -> torch.Tensor:
    x, y = _data()
    return functional.cross_entropy(module(x[rows]), y[rows])


def test_generators_logs_and_gradients_are_untouched():
    module = _Module(GradSampleModule(_net()))
    params = list(module.parameters())
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with torch.no_grad(), undisturbed(module):
        own_direction(_loss(module), params)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert module.logged == []
    assert "log" not in vars(module)
    for p in params:
        assert p.grad is None
        assert p.grad_sample is None
        assert not p._forward_counter
    module(_data()[0])
    assert module.logged == ["mean"]


@pytest.mark.parametrize("wrapped", [True, False])
def test_opacus_hooks_are_off_inside_and_on_again_after(wrapped):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hooked = GradSampleModule(net) if wrapped else net
    hooks = hooked if wrapped else GradSampleHooks(net)
    module = _Module(hooked)
    with pytest.raises(ZeroDivisionError), undisturbed(module):
        _ = 1 / 0
    assert hooks.hooks_enabled
    with undisturbed(module):
        assert not hooks.hooks_enabled
        direction = own_direction(_loss(module, slice(5, 6)), list(net.parameters()))
    _loss(module).backward()
    assert direction is not None
    for p, part in zip(net.parameters(), direction.parts, strict=True):
        assert torch.allclose(p.grad_sample[-1], direction.norm * part, atol=1e-6)


def test_another_thread_that_trains_draws_no_number_twice():
    module, ended = _Module(_net()), threading.Event()

    def draws() -> None:
        while not ended.is_set():
            torch.rand(100_000, generator=torch.Generator())

    other = threading.Thread(target=draws, name="study")
    other.start()
    try:
        with undisturbed(module):
            theirs = torch.rand(1)  # as the other thread draws it meanwhile
        assert torch.rand(1) != theirs
    finally:
        ended.set()
        other.join()
    with undisturbed(module):
        own = torch.rand(1)
    assert torch.rand(1) == own


def test_running_statistics_are_put_back():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with undisturbed(net):
        _loss(net)
        assert int(net[1].num_batches_tracked) == 1
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_product_and_removal_are_those_of_the_flattened_vectors():
    net = nn.Linear(4, 3)
    params = [*net.parameters(), nn.Parameter(torch.ones(2))]  # the last takes no part
    direction = own_direction(_loss(net), params)
    unit = torch.cat([part.flatten() for part in direction.parts])
    assert float(unit.norm()) == pytest.approx(1.0)
    assert np.isnan(direction.product([p.grad for p in params]))
    for p in params:
        p.grad = torch.randn_like(p)
    flat = torch.cat([p.grad.flatten() for p in params])
    assert direction.product([p.grad for p in params]) == pytest.approx(
        float(unit @ flat), abs=1e-6
    )
    direction.take_out([p.grad for p in params], 0.25)
    assert torch.allclose(torch.cat([p.grad.flatten() for p in params]), flat - 0.25 * unit)


@pytest.mark.parametrize("factor", [0.0, float("nan"), float("inf")])
def test_a_gradient_without_direction_gives_none(factor):
    net = nn.Linear(4, 3)
    assert own_direction(_loss(net) * factor, list(net.parameters())) is None
