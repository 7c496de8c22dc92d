"""What a run shows without a canary: how its loaders sample, and the Trainer's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lightning_audit.checks.accounting.accounted_epsilon import PlannedCost
from lightning_audit.checks.sampling.batch_sampling import BatchCheck
from lightning_audit.lints.accumulation import accumulation_remarks
from lightning_audit.lints.carried_over import carries_over, signals_ahead, splits_batches
from lightning_audit.lints.ghost_lints import adaptive_remark, ghost_remarks
from lightning_audit.lints.left_out_batches import SKIPPED, LeftOutBatches
from lightning_audit.lints.loader_facts import (
    LoaderFacts,
    draws_from,
    loader_count,
    loader_facts,
    rate_of,
)
from lightning_audit.lints.loss_lint import reduction_of
from lightning_audit.lints.own_code import OwnCode
from lightning_audit.record.kept import Kept
from lightning_audit.run.run_facts import Notes
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.sampler_tap import SamplerTap

_PARTS = (
    "each process draws from its own Subset: epsilon holds if no record is in two of them, which "
    "is not checked"
)


class RunLints(Kept):
    """Reader of a run's loaders, loss and Trainer settings.

    Args:
        notes: remarks on the run.
        significance: probability of a false alarm over the run.
        ranks: the processes that train together.
    """

    def __init__(self, notes: Notes, significance: float, ranks: Ranks) -> None:
        self._notes = notes
        #: See `RunFacts`, which has them by the same names.
        self.loader: LoaderFacts | None = None
        self.code: OwnCode | None = None
        self.loaders, self.repeated = 1, False
        self.batches: BatchCheck | None = None
        self.batches_per_step = 1
        self.split_epochs = self.carried_over = self.epochs = 0
        self.loss_reduction: str | None = None
        #: Cost of the planned steps or epochs, if it exceeds the claim.
        self.planned: PlannedCost | None = None
        self._significance = significance
        self._ranks = ranks
        self._taps: list[SamplerTap] = []
        self._split = False
        # Whether a pass over the data began before its epoch is counted.
        self._fresh = False
        #: Whether the sample rate rose since the last evaluation of the checks.
        self.rate_rose = False
        self._left_out = LeftOutBatches()
        self._noise: list[Any] = []
        #: Whether batches without a step occurred at irregular distances.
        self.irregular = False
        #: Noise multipliers while every batch makes a step; batches with the same are not tested.
        self.regular: list[Any] | None = None
        #: How often optimizers were replaced: a step of a new one may have been missed.
        self.exchanged = 0
        self._ahead = 0
        #: Whether the first loss was read, and whether an epoch began in this process.
        self.loss_seen = self.began = False

    def start(self, loaders: Any) -> None:
        """Read how the loaders sample."""
        self.loader = loader_facts(loaders)
        self.loaders = loader_count(loaders)
        if self.batches is not None and self.loaders > 1:
            self.batches.obstacle = "the training has several loaders"
        self._split, self._ahead = splits_batches(loaders), signals_ahead(loaders)
        if self._ranks.several:
            self.repeated = draws_from(loaders, part=False)
            if draws_from(loaders, part=True):
                self._notes.add(_PARTS)

    def watch(self, loader: Any, take: Callable[[Any], None]) -> None:
        """Watch a training loader's batches, and test them if its type does not show how it draws.

        Args:
            loader: the loader, before it is iterated for the first time.
            take: called with each batch that its sampler yields.
        """
        self.detach()  # from earlier loaders: each batch counts once
        found = loader_facts(loader)
        if self.loader is not None and not found.once:
            self.loader = replace(self.loader, once=False)
        if self.loader is not None and found.kind == "not_poisson" != self.loader.kind:
            self.loader, self.rate_rose = replace(found, once=False), True
        if found.kind != "unknown" or found.records is None:
            seen = _both(partial(self._look_at_rate, loader), take)
            self._taps.append(SamplerTap(loader, self._start_pass, seen))
            return
        check = self.batches
        if check is None:
            check = self.batches = BatchCheck(found.records, self._significance)
        elif check.records != found.records:
            check.obstacle = "the loader's data set changes"
        self._taps.append(SamplerTap(loader, check.start_epoch, _both(check.take, take)))

    def _start_pass(self) -> None:
        self._fresh = True

    def _look_at_rate(self, loader: Any, _: Any) -> None:
        """Check whether the sampler's rate rose by the time a batch was drawn."""
        rate, known = rate_of(loader), self.loader_rate
        if self.loader is not None and rate is not None and known is not None and rate > known:
            # Batches are prefetched before their epoch is counted.
            epoch = self.epochs if self._fresh else self.epochs - 1
            self.loader = replace(self.loader, sample_rate=rate, raised_in=epoch)
            self.rate_rose = True

    @property
    def loader_rate(self) -> float | None:
        """The sampler's stated rate; None if it states none."""
        return None if self.loader is None else self.loader.sample_rate

    @property
    def needs_sizes(self) -> bool:
        """Whether batch sizes are the only evidence of how the loader samples."""
        return (self.loader is None or self.loader.kind == "unknown") and self.batches is None

    def note_trainer_settings(self, optimizers: Sequence[Any], trainer: Any) -> None:
        """Note how the Trainer's arguments affect private optimizers; locate the user's code."""
        self.code = OwnCode(trainer, trainer.lightning_module)
        accumulated, clip = trainer.accumulate_grad_batches, trainer.gradient_clip_val
        for optimizer in optimizers:
            self.batches_per_step = accumulated
            remarks = ghost_remarks(optimizer, accumulated, clip)
            for sentence in remarks or accumulation_remarks(optimizer, accumulated):
                self._notes.add(sentence)

    def start_epoch(self, optimizers: Sequence[Any]) -> None:
        """Start an epoch; check whether gradients of the previous one are left in optimizers."""
        self.epochs, self.began, self._fresh = self.epochs + 1, True, False
        self._left_out.start_epoch()
        self.regular = None
        if self._split:
            self.split_epochs += 1
            carried = [carries_over(optimizer, self._ahead) for optimizer in optimizers]
            self.carried_over += any(carried)

    def end_batch(self, batch: Any, sessions: Sequence[AuditSession], *, stepped: bool) -> bool:
        """Check whether a batch made a step, and whether the noise changed.

        If logical batches are split, batches without a step are not counted.

        Returns:
            Whether batches were left out irregularly for the first time, or the noise changed.
        """
        if not sessions:
            return False
        noise = [getattr(session.step.optimizer, "noise_multiplier", None) for session in sessions]
        news, self._noise = self._noise not in ([], noise), noise
        if not self._split and all(session.planner.changed_at is None for session in sessions):
            before = self.irregular
            self._left_out.take(batch, stepped=stepped)
            self.regular = noise if self._left_out.regular else None
            self.irregular |= self._left_out.irregular
            news |= self.irregular and not before
            if self._left_out.empty:
                self._notes.add(SKIPPED)
        return news

    def look_at_loss(self, module: torch.nn.Module, loss: Any) -> None:
        """Read the reduction of the first loss, and whether Lightning detached a part of it."""
        self.loss_seen = True
        self.loss_reduction = reduction_of(loss, self.batches_per_step)
        if sentence := adaptive_remark(module, loss):
            self._notes.add(sentence)

    KEPT = ("epochs", "exchanged", "irregular", "loss_reduction", "split_epochs")

    def detach(self) -> None:
        """Remove the hooks from the loaders."""
        for tap in self._taps:
            tap.remove()
        self._taps = []


def _both(one: Callable[[Any], None], other: Callable[[Any], None]) -> Callable[[Any], None]:
    def take(batch: Any) -> None:
        one(batch)
        other(batch)

    return take
