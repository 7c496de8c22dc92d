"""What a step does beside its release: what its records decide, and what they must not."""

import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus.schedulers import ExponentialNoise, LambdaNoise
from plain_step import asked
from stages import staged
from torch import nn
from torch.nn import functional
from training_support import ManualModule, PrivateModule, digits, mlp, random_data, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.replay import release

#: Of ten classes the loss begins at about log 10 = 2.30.
LIMIT = 2.3
BATCH = 32


def report(
    tmp_path: Path, kind: Any, *callbacks: pl.Callback, audit: Any = None, **trainer: Any
) -> AuditReport:
    settings = {"on_violation": "warn", "seed": 1, "examinations": "auto", "bounds": []}
    own = PrivacyAudit(**{**settings, **(audit or {})})
    trainer = trainer or {"max_epochs": 1}
    module = kind(mlp(64), dataset=digits(), batch_size=BATCH)
    trainer_for(tmp_path, own, *callbacks, **trainer).fit(module)
    assert own.report is not None
    return own.report


def named(found: AuditReport) -> str:
    return found.verdict.faults[0].name if found.verdict.faults else ""


def schedule(found: AuditReport) -> Any:
    return next(check for check in found.checks if check.name == "ledger.schedule")


# ------------------------------------------------------------------ steps that records decide


class StepsAtTimes(ManualModule):
    """A step is taken where it is wanted."""

    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.manual_backward(loss)
        if self.wanted(loss.detach(), batch_idx):
            optimizer.step()


class StepsBelowALimit(StepsAtTimes):
    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        return loss < LIMIT


class LosslessClosure(PrivateModule):
    """The closure runs, and the optimizer is stepped where its loss is small enough."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, closure: Any) -> None:
        loss = closure()
        if loss < LIMIT:
            optimizer.step(closure=lambda: loss)


class GradientsAreTooLarge(StepsAtTimes):
    """As a scaler of gradients skips what overflows: the raw sum decides."""

    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        norms = [p.grad_sample.mean(0).norm() for p in self.net.parameters()]
        return torch.stack(norms).norm() < 0.45


@pytest.mark.parametrize("kind", [StepsBelowALimit, LosslessClosure, GradientsAreTooLarge])
def test_steps_that_are_skipped_by_their_records_are_named(tmp_path, kind):
    found = report(tmp_path, kind)
    assert named(found) == "steps_depend_on_records"
    assert found.verdict.faults[0].finding == "replay.release"
    assert "whether a step is taken depends on the records" in found.verdict.summary


class RecordsOfLosses(StepsAtTimes):
    """Steps of which a long mean decides: no batch alone does."""

    mean = 2.33

    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        self.mean = 0.99 * self.mean + 0.01 * float(loss)
        return round(1e4 * self.mean) % 2


def test_steps_that_are_left_out_at_no_fixed_distance_do_not_pass(tmp_path):
    found = report(tmp_path, RecordsOfLosses, audit={"examinations": 0})
    assert found.verdict.outcome == "INCONCLUSIVE"
    told = f"{16 - found.steps} of 16 batches made no step, by no known schedule"
    assert any(told in item for item in found.verdict.pass_blockers)
    assert schedule(found).status == "not_run"


# ------------------------------------------------------------------ noise that records set


class SeesItsLoss(PrivateModule):
    def seen(self, loss: float) -> None:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen(float(loss.detach()))
        return loss


class NoiseByTheLoss(SeesItsLoss):
    def seen(self, loss: float) -> None:
        self.trainer.optimizers[0].noise_multiplier = min(2.0, loss / 2.0)


class NoiseByALimit(SeesItsLoss):
    """A loss that few batches have at first."""

    def seen(self, loss: float) -> None:
        self.trainer.optimizers[0].noise_multiplier = 1.0 if loss > 2.25 else 0.7


class ByTheLossBefore(pl.Callback):
    """The noise of the next step."""

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        trainer.optimizers[0].noise_multiplier = 1.0 + float(outputs["loss"]) / 10.0


class NoiseByALambda(SeesItsLoss):
    """A scheduler whose function asks for the loss of now."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.loss = 2.0
        self.scheduler = LambdaNoise(optimizer, noise_lambda=lambda _: self.loss / 2.0)
        return optimizer

    def seen(self, loss: float) -> None:
        self.loss = loss
        self.scheduler.step()


@pytest.mark.parametrize(
    ("kind", "callbacks"),
    [(NoiseByTheLoss, []), (NoiseByALambda, []), (PrivateModule, [ByTheLossBefore])],
)
def test_noise_that_records_set_is_named(tmp_path, kind, callbacks):
    found = report(tmp_path, kind, *(callback() for callback in callbacks))
    assert named(found) == "noise_set_by_records"
    assert "noise_multiplier of a step depends on records" in found.verdict.summary


@pytest.mark.nightly
def test_noise_by_a_limit_on_the_loss_is_named(tmp_path):
    found = report(tmp_path, NoiseByALimit, max_epochs=6)
    assert named(found) == "noise_set_by_records"


class NoiseByTheEpochsLoss(SeesItsLoss):
    """Between two batches no step is replayed: what the epoch's losses decide is not seen there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []
        self.last = math.inf

    def seen(self, loss: float) -> None:
        self.losses.append(loss)

    def on_train_epoch_end(self) -> None:
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        if mean < self.last:
            self.trainer.optimizers[0].noise_multiplier *= 0.95
        self.last = mean


def test_noise_that_changes_by_no_known_schedule_does_not_pass(tmp_path):
    found = report(tmp_path, NoiseByTheEpochsLoss, audit={"examinations": 0}, max_epochs=4)
    assert found.verdict.outcome == "INCONCLUSIVE"
    changes = len(found.history) - 1
    assert changes >= 2
    told = f"noise_multiplier changed at {changes} of 64 steps, by no known schedule"
    assert any(told in item for item in found.verdict.pass_blockers)


# ------------------------------------------------------------------ correct


class Scheduled(PrivateModule):
    every_step = False

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.scheduler = self.made(optimizer)
        return optimizer

    def made(self, optimizer: Any) -> Any:
        return ExponentialNoise(optimizer, gamma=0.95)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.every_step:
            self.scheduler.step()

    def on_train_epoch_end(self) -> None:
        if not self.every_step:
            self.scheduler.step()


class ScheduledByALambda(Scheduled):
    def made(self, optimizer: Any) -> Any:
        return LambdaNoise(optimizer, noise_lambda=lambda epoch: 1.0 / (1.0 + 0.1 * epoch))


class ScheduledAtEveryStep(Scheduled):
    every_step = True


class ByHandAtEveryStep(PrivateModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        step = self.trainer.global_step
        self.trainer.optimizers[0].noise_multiplier = 1.0 + 0.2 * math.cos(step / 20.0)


class EverySecondBatch(StepsAtTimes):
    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        return batch_idx % 2


class ByTheReleasedGradient(PrivateModule):
    """Noise by the norm of what was released: whatever is computed of that is as private."""

    def on_train_batch_end(self, *_: Any) -> None:
        private = self.trainer.optimizers[0]
        norm = torch.cat([p.grad.flatten() for p in private.params]).norm()
        private.noise_multiplier = 1.0 + 0.1 * math.tanh(float(norm))


class SkipsAtRandom(StepsAtTimes):
    """Public coins decide; at no fixed distance all the same."""

    def wanted(self, loss: torch.Tensor, batch_idx: int) -> Any:
        return torch.rand(()) < 0.7


@pytest.mark.parametrize(
    "kind",
    staged(
        quick=[ScheduledByALambda, ByTheReleasedGradient, EverySecondBatch],
        nightly=[Scheduled, ScheduledAtEveryStep, ByHandAtEveryStep, ManualModule, SkipsAtRandom],
    ),
)
def test_correct_steps_and_noise_are_not_accused(tmp_path, kind):
    found = report(tmp_path, kind, max_epochs=2 if issubclass(kind, Scheduled) else 1)
    assert found.verdict.outcome != "VIOLATION", found.verdict
    assert schedule(found).status == ("not_run" if kind is SkipsAtRandom else "ok")


class ByEpoch(PrivateModule):
    def on_train_epoch_start(self) -> None:
        self.trainer.optimizers[0].noise_multiplier = 0.95**self.current_epoch


def test_noise_by_hand_that_changes_with_epochs_passes_if_vouched_for(tmp_path):
    allowed = {"allow": ["ledger.schedule"], "examinations": 0}
    found = report(tmp_path, ByEpoch, audit=allowed, max_epochs=2)
    assert schedule(found).status == "not_run"
    assert not any("noise_multiplier changed" in item for item in found.verdict.pass_blockers)
    assert "ledger.schedule" in found.verdict.allowed


# ------------------------------------------------------------------ what a record leaves


class AddsToWeights(ManualModule):
    """Adds means of raw gradients to some weights, after the step."""

    which = slice(-1, None)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer, weights = self.optimizers(), [*self.net.parameters()][self.which]
        optimizer.zero_grad()
        self.manual_backward(functional.cross_entropy(self.net(batch[0]), batch[1]))
        kept = [p.grad_sample.mean(0) for p in weights]
        optimizer.step()
        with torch.no_grad():
            for p, raw in zip(weights, kept, strict=True):
                p.sub_(raw, alpha=0.1)


class AddsToAllWeights(AddsToWeights):
    which = slice(None)


@pytest.mark.parametrize(
    ("kind", "tensors"), [(AddsToWeights, ("4.bias",)), (AddsToAllWeights, ())]
)
def test_the_tensors_that_show_it_are_named_unless_all_do(tmp_path, kind, tensors):
    (fault, *_) = report(tmp_path, kind, max_steps=1).verdict.faults
    assert fault.finding == "replay.release"
    assert fault.place.parameters == tuple(f"net.{name}" for name in tensors)


class KeepsExtremes(PrivateModule):
    """Keeps the largest input ever seen, as an activation's range for quantization."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("most", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.most = torch.maximum(self.most, batch[0].abs().max())
        return super().training_step(batch, batch_idx)


class KeepsTheHardest(PrivateModule):
    """Its extra state lists the largest losses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hardest: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            losses = functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        self.hardest = sorted([*self.hardest, float(losses.max())])[-3:]
        return super().training_step(batch, batch_idx)

    def get_extra_state(self) -> dict[str, Any]:
        return {"hardest": list(self.hardest)}

    def set_extra_state(self, state: Any) -> None:
        self.hardest = list(state["hardest"])


class SavesSums(PrivateModule):
    """A checkpoint of it has the sum of all inputs."""

    total = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.total += float(batch[0].sum())
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["inputs"] = {"sum": self.total}


class SavesSettings(PrivateModule):
    """Its checkpoint and its extra state hold nothing of records."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["step"], checkpoint["name"], checkpoint["seed"] = self.global_step, "net", 2**127
        checkpoint["itself"] = [checkpoint, {}]

    def get_extra_state(self) -> dict[str, Any]:
        return {"epoch": self.current_epoch, "rates": [0.1, 0.2]}

    def set_extra_state(self, state: Any) -> None:
        """Nothing to restore."""


@pytest.mark.parametrize(
    ("kind", "finding"),
    [
        (KeepsExtremes, "buffers"),
        (KeepsTheHardest, "extra state"),
        (SavesSums, "what a checkpoint holds"),
        (SavesSettings, ""),
    ],
)
def test_what_extreme_records_leave_is_found(kind, finding):
    module = kind(nn.Linear(8, 10), dataset=random_data(128), batch_size=12)
    answer = asked(module, "replay.release")["replay.release"]
    assert answer.asked
    assert bool(answer.findings) == bool(finding)
    assert all(found.name.startswith(finding) for found in answer.findings)


def test_the_largest_records_are_found_in_batches_with_a_number_each():
    inputs, targets = torch.zeros(4, 3), torch.tensor([1.0, 9.0, 8.0, 0.0])
    _, _, [(_, kept)] = next(release._without_largest([(inputs, targets)], 0, None))
    assert kept.tolist() == [1.0, 1.0, 0.0, 0.0]
