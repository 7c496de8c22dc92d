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
from plain_step import asked
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightning_audit.replay import clipping
from lightning_audit.replay.clipping import CraftedGradients, Trial, own_direction, undisturbed
from lightning_audit.testing import trainings
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.faulty import OwnFactors
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


class LargestPasses(OwnFactors):
    """The largest gradient of a batch is not clipped."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[rows.norm(dim=1).argmax()] = 1.0
        return factors


#: Told of small and large batches, and of many tensors.
WAYS = {
    "no_clipping": "none",
    "clip_at_twice": "norm",
    "clip_per_tensor": "tensors",
    "norm_misses_biases": "some",
    "clip_by_median_norm": "batch",
}


@pytest.mark.parametrize(
    ("name", "training", "question", "kind"),
    [
        *((name, BatchesOf8, "clipping", kind) for name, kind in WAYS.items()),
        *((name, DeepTraining, "clipping", kind) for name, kind in WAYS.items()),
        ("clip_after_average", BatchesOf8, "clipping", "sum"),
        ("clip_after_average", BatchesOf100, "clipping", "sum"),
        ("clip_sum", BatchesOf8, "clipping", "sum"),
        ("clip_sum", BatchesOf100, "clipping", "sum"),
        ("clip_sum", WithMomentum, "clipping", "sum"),
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
        # Correct ones have none.
        ("", WithMomentum, "clipping", ""),
        ("", SplitBatches, "sensitivity", ""),
        ("", PhysicalBatches, "sensitivity", ""),
        ("", GhostInParts, "sensitivity", ""),
        ("", AddedUp, "sensitivity", ""),
    ],
)
def test_findings_tell_their_kind(monkeypatch, name, training, question, kind):
    monkeypatch.setattr(trainings, "HIDDEN", 4)
    own = {"clip_sum": ClipSum, "largest_passes": LargestPasses}
    optimizer = own[name] if name in own else FAULTS[name].optimizer if name else None
    # Lightning divides the loss by the number of batches that it adds up.
    settings = {"max_grad_norm": 0.2} if training is AddedUp and name else {}
    module = Fault("made", "", "", optimizer, training, settings).module(pl.LightningModule)
    added = {"accumulate_grad_batches": 4} if training is AddedUp else {}
    question = f"replay.{question}"
    answer = asked(module, question, trials=8, **added)[question]
    assert answer.asked
    assert (bool(answer.findings), answer.kind) == (bool(name), kind)


# --- Crafted gradients have the norms and places that their names say.

SIZES = (24, 6, 12, 2)


@pytest.fixture(scope="module")
def trials():
    return list(CraftedGradients(SIZES, batch=16, seed=1).trials())


def only(trial: Trial) -> torch.Tensor:
    """The gradient that is left out, and zeros."""
    rows = torch.zeros_like(trial.rows.dense())
    rows[trial.left_out] = trial.rows[trial.left_out]
    return rows


def test_a_neighbour_lacks_one_gradient_and_has_the_others_in_order(trials):
    for trial in trials:
        kept = [
            row for j, row in enumerate(trial.rows.dense()) if j != trial.left_out % len(trial.rows)
        ]
        assert torch.equal(trial.neighbour.dense(), torch.stack(kept))
        assert torch.equal(trial.rows.dense() - trial.with_zeros.dense(), only(trial))


def test_norms_places_and_sizes_are_those_of_the_names(trials):
    named = [trial for trial in trials if ", norm " in trial.name or trial.name.startswith("norm ")]
    assert len(named) >= 10
    for trial in named:
        stated = float(trial.name.split("norm ")[1].split()[0])
        assert float(trial.rows[trial.left_out].norm()) == pytest.approx(stated)
    norms = [float(trial.rows[trial.left_out].norm()) for trial in trials]
    assert min(norms) <= 0.5
    assert max(norms) >= 1e5
    assert {0, 8, 15} <= {t.left_out % len(t.rows) for t in trials if len(t.rows) == 16}
    assert {(len(t.rows), len(t.neighbour)) for t in trials} == {(2, 1), (16, 15), (34, 33)}


def test_one_gradient_outweighs_all_others_and_one_is_alone(trials):
    named = {trial.name: trial for trial in trials}
    against = named["against all others, which it outweighs"]
    one, others = against.rows[against.left_out], against.neighbour.dense().sum(0)
    assert torch.cosine_similarity(one, others, dim=0) == pytest.approx(-1.0)
    assert one.norm() > 10 * others.norm()
    assert not named["norm 1e+03 C, alone"].neighbour.dense().any()


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


def test_large_models_have_fewer_gradients_at_once(monkeypatch):
    monkeypatch.setattr(clipping, "_ENTRIES", clipping._ENTRIES // 1000)
    crafted = CraftedGradients([3000], batch=512, seed=0)
    assert len(next(iter(crafted.trials())).rows) <= 8


def test_one_seed_gives_one_set():
    one, other = (list(CraftedGradients(SIZES, 4, seed=3).trials()) for _ in range(2))
    assert all(torch.equal(a.rows.dense(), b.rows.dense()) for a, b in zip(one, other, strict=True))


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
