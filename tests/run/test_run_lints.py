"""Faults that no canary sees: each is shown to be in the libraries, and to be said by the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from own_samplers import OwnPoisson, OwnSampling, OwnShuffle, OwnSizes, SeedsItself, WithReplacement
from torch import nn
from torch.utils.data import DataLoader
from training_support import PrivateModule, fit, random_data, status, trainer_for, violation

from lightning_audit import PrivacyAudit
from lightning_audit.lints.settings import adaptive_remark, ghost_remarks

# ------------------------------------------------------------------ the loader


class LoaderDropped(PrivateModule):
    """Keeps what make_private returns, to be compared with what Lightning trains on."""

    def train_dataloader(self) -> Any:
        return self.plain_loader()

    def configure_optimizers(self) -> Any:
        self.net, optimizer, self.returned = self.engine.make_private(
            module=self.net,
            optimizer=self.inner(self.trainable()),
            data_loader=self.plain_loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        return optimizer

    def on_train_start(self) -> None:
        self.used = self.trainer.train_dataloader


def test_lightning_drops_the_loader_of_make_private(tmp_path: Path) -> None:
    module = LoaderDropped()
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=32)
    assert type(module.returned) is DPDataLoader
    assert type(module.used) is DataLoader
    assert status(report, "sampling.not_poisson") == "violated"
    assert "DPDataLoader.from_data_loader" in report.verdict.advice


# ------------------------------------------------------------------ samplers of unknown type


WORKERS = [0, pytest.param(1, marks=pytest.mark.heavy)]


@pytest.mark.parametrize("workers", WORKERS)
def test_own_poisson_sampler_passes_without_being_allowed(tmp_path: Path, workers: int) -> None:
    module = OwnSampling(OwnPoisson())
    module.workers = workers
    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path, audit, max_steps=64)
    trainer.fit(module)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
    assert status(audit.report, "sampling.not_poisson") == "ok"
    assert status(audit.report, "sampling.rate") == "ok"
    # Loader and strategy are left as they were.
    assert type(module.loader.batch_sampler) is OwnPoisson
    assert "process_dataloader" not in vars(trainer.strategy)


@pytest.mark.parametrize(
    ("sampler", "seen", "epochs"),
    [
        (OwnShuffle, "hardly ever drawn twice", 1),
        (OwnSizes, "too equal in size", 1),
        (SeedsItself, "those of the previous epoch", 2),
        (WithReplacement, "contain a record twice", 1),
    ],
)
def test_own_sampler_that_is_not_poisson_is_a_violation(
    tmp_path: Path, sampler: type[OwnPoisson], seen: str, epochs: int
) -> None:
    module = OwnSampling(sampler())
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_epochs=epochs)
    assert report.verdict.kind == "accounting"
    assert "wrong sampling" in report.verdict.fault
    assert seen in report.verdict.summary


def test_own_poisson_sampler_at_a_higher_rate_is_a_violation(tmp_path: Path) -> None:
    module = OwnSampling(OwnPoisson(rate=1 / 20))
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_epochs=2)
    assert status(report, "sampling.rate") == "violated"
    assert status(report, "sampling.not_poisson") == "ok"


@pytest.mark.usefixtures("all_numbers")
def test_a_resumed_training_tests_the_batches_since_the_resume(tmp_path: Path) -> None:
    class Wrapped(OwnSampling):
        """Private from the start, so that a checkpoint's names are those of the module."""

        def __init__(self) -> None:
            super().__init__(OwnPoisson())
            self.private = super().configure_optimizers()

        def configure_optimizers(self) -> Any:
            return self.private

    path = tmp_path / "x.ckpt"
    first = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=1)
    first.fit(Wrapped())
    first.save_checkpoint(path)
    audit = PrivacyAudit(seed=1)
    second = trainer_for(tmp_path, audit, max_epochs=2)
    second.fit(Wrapped(), ckpt_path=path, weights_only=True)
    found = next(c for c in audit.report.checks if c.name == "sampling.not_poisson")
    assert (found.status, found.evidence["batches"]) == ("ok", 32)


# ------------------------------------------------------------------ physical batches


class Whole(BatchSplittingSampler):
    """What the audit says to write."""

    def __len__(self) -> int:
        raise TypeError


class InPhysicalBatches(PrivateModule):
    def __init__(self, splitter: type[BatchSplittingSampler], workers: int) -> None:
        super().__init__(dataset=random_data(128))
        self.splitter, self.workers = splitter, workers
        self.left: list[tuple[bool, int]] = []

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        sampler = self.splitter(
            sampler=loader.batch_sampler, max_batch_size=6, optimizer=self.private
        )
        return DataLoader(
            loader.dataset,
            batch_sampler=sampler,
            collate_fn=loader.collate_fn,
            num_workers=self.workers,
        )

    def configure_optimizers(self) -> Any:
        self.private = super().configure_optimizers()
        return self.private

    def on_train_epoch_end(self) -> None:
        o = self.private
        waits = o._is_last_step_skipped and o.params[0].summed_grad is not None
        self.left.append((waits, len(o._step_skip_queue)))


@pytest.mark.parametrize("workers", [0, 1])
def test_lightning_cuts_logical_batches_and_opacus_adds_the_rest_to_the_next(
    tmp_path: Path, workers: int
) -> None:
    module = InPhysicalBatches(BatchSplittingSampler, workers)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_epochs=5)
    assert any(waits for waits, _ in module.left)
    assert (module.left[-1][1] > 0) == bool(workers)  # signals of batches that were never taken
    assert status(report, "logical_batch") == "violated"
    assert report.verdict.kind == "mechanism"
    assert "count twice" in report.verdict.fault
    assert "def __len__(self): raise TypeError" in report.verdict.advice


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_without_a_length_keeps_logical_batches_whole(
    tmp_path: Path, workers: int
) -> None:
    module = InPhysicalBatches(Whole, workers)
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_epochs=3)
    assert module.left == [(False, 0)] * 3
    assert status(report, "logical_batch") == "ok"
    assert status(report, "sampling.not_poisson") == "ok"
    assert report.steps == 3 * 8


# ------------------------------------------------------------------ ghost clipping


class Ghost(PrivateModule):
    """Ghost clipping without noise, with its loss under the key that Lightning takes."""

    def __init__(self, engine: PrivacyEngine, noise: float = 0.0) -> None:
        super().__init__(noise_multiplier=noise, batch_size=32)
        self.engine = engine
        self.sums: list[torch.Tensor] = []
        self.remarks: list[str] = []

    def configure_optimizers(self) -> Any:
        self.net, self.private, self.criterion, _ = self.engine.make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.0),
            criterion=nn.CrossEntropyLoss(),
            data_loader=self.plain_loader(),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )
        return self.private

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return {"loss": self.criterion(self.net(x), y)}

    def on_before_backward(self, loss: Any) -> None:
        self.remarks.append(adaptive_remark(self, loss))

    def on_train_batch_end(self, *_: Any) -> None:
        parts = [p.summed_grad for p in self.private.params]
        if all(part is not None for part in parts):
            self.sums.append(torch.cat([part.flatten() for part in parts]))


def ghost(tmp_path: Path, module: Ghost, **kwargs: Any) -> Ghost:
    torch.manual_seed(0)
    trainer_for(tmp_path, max_steps=1, **kwargs).fit(module)
    return module


def test_ghost_clipping_trains_on_the_last_of_accumulated_batches_only(tmp_path: Path) -> None:
    one_batch = {"limit_train_batches": 2, "accumulate_grad_batches": 2}

    class SecondBatchOnly(Ghost):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            x, y = (x, y) if batch_idx else (x[:1], y[:1])  # another first batch
            return super().training_step((x, y), batch_idx)

    torch.manual_seed(1)
    whole = Ghost(PrivacyEngine())
    torch.manual_seed(1)
    other = SecondBatchOnly(PrivacyEngine())
    sums = [ghost(tmp_path, module, **one_batch).sums[-1] for module in (whole, other)]
    assert torch.allclose(sums[0], sums[1])
    (remark,) = ghost_remarks(whole.private, 2, None)
    assert "accumulate_grad_batches=2 trains on one batch in 2 only" in remark
    assert "BatchMemoryManager" in remark


def test_lightning_shortens_the_clipped_sum_of_ghost_clipping(tmp_path: Path) -> None:
    module = ghost(tmp_path, Ghost(PrivacyEngine()), gradient_clip_val=0.01)
    assert float(module.sums[-1].norm()) == pytest.approx(0.01, rel=1e-3)
    (remark,) = ghost_remarks(module.private, 1, 0.01)
    assert "gradient_clip_val=0.01 shortens the sum" in remark
    assert "gradient_clip_val=None" in remark


def test_adaptive_ghost_clipping_is_off_in_automatic_optimization(tmp_path: Path) -> None:
    module = ghost(tmp_path, Ghost(PrivacyEngineAdaptiveClipping(), noise=0.5))
    assert module.private.max_grad_norm == 1.0
    assert not hasattr(module.private, "_adjusted_noise_multiplier")
    assert "self.automatic_optimization = False" in module.remarks[0]


def test_adaptive_ghost_clipping_is_on_in_manual_optimization(tmp_path: Path) -> None:
    class Manual(Ghost):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)["loss"]
            self.manual_backward(loss)
            self.optimizers().step()

    module = ghost(tmp_path, Manual(PrivacyEngineAdaptiveClipping(), noise=0.5))
    assert hasattr(module.private, "_adjusted_noise_multiplier")
    assert module.remarks == [""]


def test_plain_ghost_clipping_and_other_optimizers_are_not_remarked_upon(tmp_path: Path) -> None:
    module = ghost(tmp_path, Ghost(PrivacyEngine()))
    assert module.remarks == [""]
    assert ghost_remarks(module.private, 1, None) == []
    assert ghost_remarks(PrivateModule().configure_optimizers(), 4, 0.01) == []


# ------------------------------------------------------------------ accounting


def test_an_accountant_whose_hook_was_replaced_is_told_to_be_missing(tmp_path: Path) -> None:
    class Replaced(PrivateModule):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            optimizer.attach_step_hook(lambda _: None)
            return optimizer

    module = Replaced()
    report = fit(tmp_path, module, PrivacyAudit(claimed_epsilon=8.0, seed=1), max_steps=40)
    assert module.engine.accountant.history == []  # Opacus keeps one hook, and says nothing
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("no accountant counts" in note for note in report.notes)


def test_lightning_and_opacus_both_divide_by_the_number_of_accumulated_batches(
    tmp_path: Path,
) -> None:
    class Norms(PrivateModule):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            held = self.net.parameters().__next__().grad_sample
            self.norms = (held[0] if isinstance(held, list) else held).flatten(1).norm(dim=1)

    norms, notes = [], []
    for batches in (1, 2):
        torch.manual_seed(0)
        module = Norms(poisson=False, make_poisson=False)
        audit = PrivacyAudit(seed=1, on_violation="warn")
        trainer = trainer_for(
            tmp_path / str(batches), audit, max_steps=1, accumulate_grad_batches=batches
        )
        trainer.fit(module)
        norms.append(module.norms[:8])
        notes.append([n for n in audit.report.notes if "divides gradients twice" in n])
    torch.testing.assert_close(norms[1], norms[0] / 2)
    assert [len(found) for found in notes] == [0, 1]
