"""What a run shows without a canary: how its loaders sample, and what the Trainer does to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lightning_audit.lints.accumulation import accumulation_remarks
from lightning_audit.lints.carried_over import carries_over, signals_ahead, splits_batches
from lightning_audit.lints.ghost_lints import adaptive_remark, ghost_remarks
from lightning_audit.lints.loader_facts import draws_from, loader_count, loader_facts
from lightning_audit.lints.loss_lint import reduction_of
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.run_checks.batch_sampling import BatchCheck
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.sampler_tap import SamplerTap, can_be_watched

_PARTS = (
    "each process draws from a Subset of its own: epsilon holds if no record is in two of them, "
    "which is not looked at"
)


class RunLints:
    """Reads a run's loaders, loss and Trainer, and writes what they show into its facts.

    Args:
        facts: of the run.
        significance: probability of a false alarm over the run.
        ranks: the processes that train together.
    """

    def __init__(self, facts: RunFacts, significance: float, ranks: Ranks) -> None:
        self._facts = facts
        self._significance = significance
        self._ranks = ranks
        self._taps: list[SamplerTap] = []
        self._split = False
        self._ahead = 0
        self._loss_known = False

    def start(self, loaders: Any) -> None:
        """Read how the loaders sample."""
        facts = self._facts
        facts.loader = loader_facts(loaders)
        facts.loaders = loader_count(loaders)
        if facts.batches is not None and facts.loaders > 1:
            facts.batches.obstacle = "the training has several loaders"
        self._split, self._ahead = splits_batches(loaders), signals_ahead(loaders)
        if self._ranks.several:
            facts.repeated = draws_from(loaders, part=False)
            if draws_from(loaders, part=True):
                facts.note(_PARTS)

    def watch(self, loader: Any) -> None:
        """Test the batches of a training loader whose type does not tell how it draws them.

        Args:
            loader: the loader, before it is iterated for the first time.
        """
        found = loader_facts(loader)
        if found.kind != "unknown" or not can_be_watched(loader) or found.records is None:
            return
        check = self._facts.batches
        if check is None:
            check = self._facts.batches = BatchCheck(found.records, self._significance)
        elif check.records != found.records:
            check.obstacle = "the loader's data set changes"
        self.detach()  # of loaders that were given before: each batch counts once
        self._taps.append(SamplerTap(loader, check.start_epoch, check.take))

    def note_trainer_settings(self, optimizer: Any, trainer: Any) -> None:
        """Note what the Trainer's arguments do to a private optimizer."""
        accumulated, clip = trainer.accumulate_grad_batches, trainer.gradient_clip_val
        self._facts.batches_per_step = accumulated
        remarks = ghost_remarks(optimizer, accumulated, clip)
        for sentence in remarks or accumulation_remarks(optimizer, accumulated):
            self._facts.note(sentence)

    def start_epoch(self, optimizers: Sequence[Any]) -> None:
        """At the first batch of an epoch: see whether something of the one before is left."""
        if self._split:
            self._facts.split_epochs += 1
            carried = [carries_over(optimizer, self._ahead) for optimizer in optimizers]
            self._facts.carried_over += any(carried)

    def look_at_loss(self, module: torch.nn.Module, loss: Any) -> None:
        """Note, at the first loss, how it was made, and whether Lightning took something off it."""
        if not self._loss_known:
            self._loss_known = True
            self._facts.loss_reduction = reduction_of(loss, self._facts.batches_per_step)
            if sentence := adaptive_remark(module, loss):
                self._facts.note(sentence)

    def detach(self) -> None:
        """Take the hooks off the loaders."""
        for tap in self._taps:
            tap.remove()
        self._taps = []
