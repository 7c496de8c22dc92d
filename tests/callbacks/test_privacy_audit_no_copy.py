"""Real trainings: canaries without a copy where that is certain, by copy elsewhere, never left."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from stages import staged
from trained import private, weights
from training_matrix import AdaClip, Ghost, ManualGhost, PerLayer, wide
from training_support import ManualModule, PrivateModule, report_in, status, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Blank
from lightning_audit.dpsgd.opacus import OpacusStep, RowPrefill
from lightning_audit.record.store import (
    DROPPED,
    EARLIER,
    ENTERED,
    INJECTED,
    NOT_PLANNED,
    read_observations,
)
from lightning_audit.session import planner
from lightning_audit.testing.faults import plant

OBSTACLE = "the test forbids it"


def forbid_prefill(patch: pytest.MonkeyPatch, *, prefill: bool = False) -> None:
    """Make canaries go in by copy, unless they shall be laid out beforehand."""
    if not prefill:
        patch.setattr(RowPrefill, "obstacle", lambda self: OBSTACLE)


@pytest.fixture
def copies(monkeypatch, clipped_rows):
    """Sizes of the batches that were copied."""
    found: list[int] = []
    copy_in = OpacusStep.copy_in

    def counted(self: OpacusStep, *given: Any) -> None:
        found.append(self.batch_size() or 0)
        copy_in(self, *given)

    monkeypatch.setattr(OpacusStep, "copy_in", counted)
    return found


@pytest.fixture
def clipped_rows(monkeypatch):
    """Canary rows in each clipping of each step: those far longer than a gradient here can be."""
    monkeypatch.setattr(planner, "_SHORTEST", 1e9)  # none is shorter than the others
    found: list[int] = []
    clip = DPOptimizer.clip_and_accumulate

    def counted(self: DPOptimizer) -> None:
        found.append(canary_rows(self))
        clip(self)

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", counted)
    return found


def canary_rows(optimizer: DPOptimizer) -> int:
    if any(getattr(p, "grad_sample", None) is None for p in optimizer.params):
        return 0
    squares = sum(g.flatten(1).float().pow(2).sum(1) for g in optimizer.grad_samples)
    return int((squares > 500.0**2).sum())


def canary_rows_left(module: pl.LightningModule) -> int:
    return canary_rows(module.optimizers()._optimizer)


def train(
    directory: Path,
    module: pl.LightningModule | None = None,
    *callbacks: pl.Callback,
    steps: int = 30,
    every_n_steps: int | None = 1,
    **kwargs: Any,
) -> np.ndarray:
    """Train under an audit, and return the entries of its record."""
    torch.manual_seed(3)
    audit = PrivacyAudit(seed=1, every_n_steps=every_n_steps, on_violation="warn")
    trainer = trainer_for(directory, audit, *callbacks, max_steps=steps, **kwargs)
    trainer.fit(module or PrivateModule())
    return entries_in(directory)


def assert_each_canary_once(entries: np.ndarray, clipped_rows: list[int]) -> None:
    """Each row was clipped with its step, and each reading has its canary once."""
    assert np.isin(entries["canaries"], ENTERED).all()
    assert clipped_rows == entries["coins"].sum(axis=1).tolist()
    # The noise multiplier is 1.
    assert np.abs(entries["readings"] - entries["coins"]).max() < 6.0


def entries_in(directory: Path) -> np.ndarray:
    return read_observations(directory / "audit" / "observations.bin")[1]


def notes_in(directory: Path) -> str:
    return (directory / "audit" / "report.json").read_text()


@pytest.mark.parametrize("make", staged([PrivateModule], nightly=[private(mode="functorch")]))
def test_the_run_without_a_copy_is_the_run_with_one_to_the_bit(tmp_path, make, copies):
    modules = []
    for name in ("laid", "copied"):
        torch.manual_seed(0)
        modules.append(make())
        with pytest.MonkeyPatch.context() as patch:
            forbid_prefill(patch, prefill=name == "laid")
            train(tmp_path / name, modules[-1])
        assert len(copies) == (0 if name == "laid" else 30)
    assert "copied" not in notes_in(tmp_path / "laid")
    assert f"copied to add canaries, which costs time: {OBSTACLE}" in notes_in(tmp_path / "copied")
    entries = [entries_in(tmp_path / name) for name in ("laid", "copied")]
    # The coins and everything else: a plan that was made before the backward draws as one after it.
    assert (entries[0]["canaries"] == INJECTED).all()
    assert entries[0].tobytes() == entries[1].tobytes()
    assert torch.equal(*(weights(module.net) for module in modules))
    laid, copied = (report_in(tmp_path / name) for name in ("laid", "copied"))
    assert (laid.checks, laid.bounds, laid.verdict) == (
        copied.checks,
        copied.bounds,
        copied.verdict,
    )
    assert [canary_rows_left(module) for module in modules] == [0, 0]


def test_copied_rows_enter_the_first_steps_and_few_later_and_others_every_step(
    tmp_path, monkeypatch, clipped_rows
):
    monkeypatch.setattr(planner, "FULL_STEPS", 7)
    monkeypatch.setattr(planner, "THINNED", 5)
    assert (train(tmp_path / "laid", every_n_steps=None)["canaries"] == INJECTED).all()
    clipped_rows.clear()
    forbid_prefill(monkeypatch)
    entries = train(tmp_path, every_n_steps=None)
    assert np.flatnonzero(entries["canaries"]).tolist() == [*range(7), 10, 15, 20, 25]
    assert not (entries["canaries"] == DROPPED).any()
    assert clipped_rows == entries["coins"].sum(axis=1).tolist()
    assert OBSTACLE in notes_in(tmp_path)


class InPhysicalBatches(PrivateModule):
    """Opacus' BatchMemoryManager around the loader."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        sizes = {"max_physical_batch_size": 4, "optimizer": self.private}
        return BatchMemoryManager(data_loader=loader, **sizes).__enter__()

    def configure_optimizers(self) -> Any:
        self.private = super().configure_optimizers()
        return self.private


def test_a_batch_that_is_not_completed_keeps_no_canary_in_its_sum(tmp_path, clipped_rows):
    sums = []
    for audited in (True, False):
        torch.manual_seed(0)
        module = InPhysicalBatches()
        if audited:
            completed = train(tmp_path, module, steps=58)["coins"].any(axis=1).sum()
            assert sum(map(bool, clipped_rows)) > completed
        else:
            torch.manual_seed(3)
            trainer_for(tmp_path / "plain", max_steps=58).fit(module)
        assert module.private._is_last_step_skipped
        sums.append(torch.cat([p.summed_grad.flatten() for p in module.private.params]))
    assert float((sums[0] - sums[1]).abs().max()) < 1e-3


@pytest.mark.parametrize("by", ["the Trainer", "hand"])
def test_accumulated_batches_take_canaries_by_copy_once_a_step(tmp_path, by, clipped_rows, copies):
    class ByHand(ManualModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(PrivateModule.training_step(self, batch, batch_idx))
            if batch_idx % 2:
                self.optimizers().step()
                self.optimizers().zero_grad()

    module = (ByHand if by == "hand" else PrivateModule)(poisson=False, make_poisson=False)
    how = {} if by == "hand" else {"accumulate_grad_batches": 2}
    entries = train(tmp_path, module, steps=12, **how)
    assert len(entries) == 12
    assert set(entries["canaries"]) == {INJECTED, EARLIER}
    assert_each_canary_once(entries, clipped_rows)
    assert (entries["scale"] == 32.0).all()
    # By hand nothing tells that a second backward will come: its rows are in the first batch.
    assert len(copies) == (12 if by == "the Trainer" else len(copies))


class Sizes(pl.Callback):
    """What a user's callback sees of the per-sample gradients after the backward pass."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.seen: list[int] = []
        self.canaries = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, _: int) -> None:
        self.drawn.append(len(batch[0]))

    def look(self, module: pl.LightningModule) -> int:
        optimizer = module.optimizers()._optimizer
        self.canaries += canary_rows(optimizer)
        return len(optimizer.params[0].grad_sample)

    def on_after_backward(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        self.seen.append(self.look(pl_module))

    def on_train_batch_end(self, trainer: Any, pl_module: pl.LightningModule, *_: Any) -> None:
        assert self.look(pl_module) == self.drawn[-1]


@pytest.mark.parametrize("make", [PrivateModule, ManualModule])
def test_code_between_the_steps_sees_the_batch_alone(tmp_path, make, copies):
    sizes = Sizes()
    train(tmp_path, make(), sizes, steps=12)
    assert len(sizes.seen) == 12
    assert sizes.seen == sizes.drawn
    assert (sizes.canaries, copies) == (0, [])


@pytest.mark.usefixtures("clipped_rows")
def test_clipping_norm_from_the_gradients_of_the_step_is_that_of_the_batch(tmp_path):
    class Median(PrivateModule):
        def on_after_backward(self) -> None:
            optimizer = self.optimizers()._optimizer
            norms = [g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]
            if len(norms[0]):
                optimizer.max_grad_norm = float(torch.stack(norms).norm(dim=0).median())

    norms = []
    for prefill in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            forbid_prefill(patch, prefill=prefill)
            torch.manual_seed(0)
            norms.append(train(tmp_path / str(prefill), Median(), steps=15)["max_grad_norm"])
    assert len(set(norms[0].tolist())) > 10
    # Canaries that were laid out beforehand have the norm of before, and are clipped to the same
    # but for rounding.
    np.testing.assert_allclose(*norms, rtol=1e-6)


class Halving(PrivateModule):
    """Replaces the per-sample gradients after the backward pass."""

    def on_after_backward(self) -> None:
        for p in self.net.parameters():
            p.grad_sample = 0.5 * p.grad_sample


def test_replaced_gradients_take_canaries_by_copy(tmp_path, clipped_rows, copies):
    entries = train(tmp_path, Halving(), steps=12)
    assert len(copies) == 12
    assert (entries["canaries"] == INJECTED).all()
    assert_each_canary_once(entries, clipped_rows)


class UsersError(Exception):
    pass


class Failing:
    """Fails once between the backward pass and the optimizer's step."""

    where = ""
    at = 5
    seen = -1

    def _fail(self: Any, where: str) -> None:
        if where == self.where:
            self.seen += 1
            if self.seen == self.at:
                self.rows = canary_rows_left(self)
                raise UsersError

    def on_after_backward(self) -> None:
        self._fail("on_after_backward")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._fail("on_before_optimizer_step")


class FailingModule(Failing, PrivateModule):
    pass


class FailingManual(Failing, ManualModule):
    """The user goes on, without clearing the gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        value = PrivateModule.training_step(self, batch, batch_idx)
        with contextlib.suppress(UsersError):
            self.manual_backward(value)
            optimizer.step()
            optimizer.zero_grad()


BROKEN = [("on_after_backward", True), ("on_before_optimizer_step", False)]


@pytest.mark.usefixtures("clipped_rows")
@pytest.mark.parametrize(("where", "prefill"), BROKEN)
def test_training_that_breaks_off_leaves_no_canary(tmp_path, where, prefill, monkeypatch):
    forbid_prefill(monkeypatch, prefill=prefill)
    module = FailingModule()
    module.where = where
    with pytest.raises(UsersError):
        train(tmp_path, module)
    params = [p for p in module.net.parameters() if p.requires_grad]
    assert all(p.grad_sample is not None and len(p.grad_sample) for p in params)
    norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in params]).norm(dim=0)
    assert float(norms.max()) < 500.0
    assert not any(hasattr(p, "_current_grad_sample") for p in params)
    assert (module.rows > 0) == (where == "on_before_optimizer_step")
    assert len(entries_in(tmp_path)) == 5


@pytest.mark.parametrize(("where", "prefill"), BROKEN)
def test_training_that_goes_on_sums_up_no_canary_of_the_broken_step(
    tmp_path, where, prefill, monkeypatch, clipped_rows
):
    forbid_prefill(monkeypatch, prefill=prefill)
    module = FailingManual(poisson=False, make_poisson=False)
    module.where = where
    entries = train(tmp_path, module, steps=12)
    assert module.seen > 5
    assert entries["scale"].tolist() == [16.0] * 5 + [32.0] + [16.0] * 6
    assert_each_canary_once(entries, clipped_rows)


def test_a_second_try_in_the_same_batch_sums_up_no_canary_of_the_first(tmp_path, clipped_rows):
    class Twice(FailingManual):
        where = "on_before_optimizer_step"

        def training_step(self, batch: Any, batch_idx: int) -> None:
            tries = self.seen
            super().training_step(batch, batch_idx)
            if tries < self.at == self.seen:
                super().training_step(batch, batch_idx)

    entries = train(tmp_path, Twice(poisson=False, make_poisson=False), steps=12)
    assert entries["scale"].tolist() == [16.0] * 5 + [32.0] + [16.0] * 6
    assert_each_canary_once(entries, clipped_rows)


@pytest.mark.parametrize("clear", [True, False])
def test_a_batch_without_a_step_leaves_no_canary(tmp_path, clear, clipped_rows):
    rows: list[int] = []

    class Skipping(ManualModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(PrivateModule.training_step(self, batch, batch_idx))
            if batch_idx % 3:
                optimizer.step()
                optimizer.zero_grad()
                return
            rows.append(canary_rows_left(self))
            if clear:
                optimizer.zero_grad()

    entries = train(tmp_path, Skipping(poisson=False, make_poisson=False), steps=12)
    assert len(rows) >= 6
    assert not any(rows)
    assert_each_canary_once(entries, clipped_rows)


def test_a_step_around_lightning_takes_the_canaries_just_before_clipping(tmp_path, clipped_rows):
    class Raw(ManualModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.zero_grad()
            self.manual_backward(PrivateModule.training_step(self, batch, batch_idx))
            optimizer.step()
            counted = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
            counted.increment_ready()
            counted.increment_completed()

    entries = train(tmp_path, Raw(), steps=12)
    assert (entries["canaries"] == INJECTED).all()
    assert clipped_rows == entries["coins"].sum(axis=1).tolist()


def _as(optimizer: DPOptimizer, kind: type[DPOptimizer]) -> DPOptimizer:
    """The optimizer, with the methods of another class."""
    optimizer.__class__ = kind
    return optimizer


class QuietPerLayer(PerLayer):
    def configure_optimizers(self) -> Any:
        return plant(super().configure_optimizers(), "half_noise")


class TwicePerLayer(DPPerLayerOptimizer):
    def clip_and_accumulate(self) -> None:
        norms = self.max_grad_norms
        self.max_grad_norms = [2.0 * norm for norm in norms]
        super().clip_and_accumulate()
        self.max_grad_norms = norms


class LoosePerLayer(PerLayer):
    def configure_optimizers(self) -> Any:
        return _as(super().configure_optimizers(), TwicePerLayer)


class QuietAdaClip(AdaClip):
    """The noise that the accountant is told, without what the count takes of it."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return _as(optimizer, type("Q", (_StatedNoise, AdaClipDPOptimizer), {}))


class _StatedNoise(AdaClipDPOptimizer):
    def add_noise(self) -> None:
        std = self.unclipped_num_std
        self.unclipped_num_std = 1e6
        super().add_noise()
        self.unclipped_num_std = std


def quiet_adaclip() -> QuietAdaClip:
    module = wide(QuietAdaClip, noise_multiplier=2.0)
    module.engine_arguments = {**module.engine_arguments, "unclipped_num_std": 1.2}
    return module


@pytest.mark.parametrize("make", [lambda: wide(QuietPerLayer), quiet_adaclip])
def test_too_little_noise_is_found(audited, make):
    report = audited(make(), on_violation="warn", steps=30)
    assert (status(report, "noise"), status(report, "sensitivity")) == ("violated", "ok")


@pytest.mark.heavy
def test_clipping_at_twice_the_norm_is_found(audited):
    report = audited(wide(LoosePerLayer), on_violation="warn", steps=150)
    assert status(report, "sensitivity") == "violated"
    shift = next(c for c in report.checks if c.name == "sensitivity").evidence["shift"]
    assert shift == pytest.approx(2.0, abs=0.4)


class ShortNorms(Ghost):
    """A layer's norm is lost, so that samples pass with more than the clipping norm."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        net, own = self.net, self.net.get_norm_sample
        net.__dict__["get_norm_sample"] = lambda: 1e-3 * own()
        return optimizer


def test_ghost_norms_that_gradients_exceed_are_found_although_canaries_are_clipped(accused):
    report = accused(wide(ShortNorms), steps=20)
    assert status(report, "clipping.norm") == "violated"
    assert status(report, "sensitivity") == "ok"
    assert "wrong norms" in report.verdict.fault


class AroundLightning(ManualGhost):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        x, y = batch
        self.criterion(self.net(x), y).backward()
        optimizer.step()


def test_ghost_losses_that_run_backward_unannounced_are_not_passed(audited):
    report = audited(wide(AroundLightning), steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert (audited.entries["canaries"] == DROPPED).all()
    said = next(note for note in report.notes if "was not announced" in note)
    assert "call self.manual_backward(loss)" in said


@pytest.mark.parametrize(("kind", "word"), [(PerLayer, "per-layer"), (AdaClip, "adaptive")])
def test_input_canaries_that_could_not_be_taken_out_are_refused(tmp_path, kind, word):
    loss = torch.nn.functional.cross_entropy
    trainer = trainer_for(tmp_path, PrivacyAudit(canaries=[Blank(loss=loss, num_classes=10)]))
    with pytest.raises(MisconfigurationException, match=f"{word} clipping; use gradient canaries"):
        trainer.fit(wide(kind))
    assert trainer.global_step == 0


@pytest.mark.parametrize("laid_out", [True, False])
def test_where_memory_is_full_canaries_end_and_the_training_goes_on(
    tmp_path, monkeypatch, laid_out
):
    def trained(audits: bool) -> torch.Tensor:
        torch.manual_seed(3)
        audit = PrivacyAudit(seed=1, on_violation="warn")
        module = PrivateModule()
        trainer_for(tmp_path, *[audit] * audits, max_steps=12).fit(module)
        return weights(module)

    unaudited = trained(audits=False)
    forbid_prefill(monkeypatch, prefill=laid_out)
    own, count = torch.cat, 0

    def full(tensors: Any, *given: Any, **settings: Any) -> torch.Tensor:
        nonlocal count
        if sys._getframe(1).f_code.co_name == "<listcomp>" and "opacus.py" in str(
            sys._getframe(1).f_code.co_filename
        ):
            count += 1
            if count > 20:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return own(tensors, *given, **settings)

    monkeypatch.setattr(torch, "cat", full)
    new_empty, made = torch.Tensor.new_empty, 0

    def no_empty(self: torch.Tensor, *given: Any, **settings: Any) -> torch.Tensor:
        nonlocal made
        made += 1
        if made > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return new_empty(self, *given, **settings)

    monkeypatch.setattr(torch.Tensor, "new_empty", no_empty)
    audited = trained(audits=True)
    assert torch.allclose(audited, unaudited, atol=1e-6)
    entries = entries_in(tmp_path)
    assert len(entries) == 12
    statuses = [int(s) for s in entries["canaries"]]
    assert statuses[0] == INJECTED
    assert statuses[-1] == NOT_PLANNED
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("memory is full" in text for text in report.verdict.pass_blockers)
