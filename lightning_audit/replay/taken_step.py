"""Collects the batches of one logical step while the training takes it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.canaries.inputs import constants_apart, with_constants
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.hooks.boundary import OWN_TIME, Handles, entry
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.replay.device import clock
from lightning_audit.replay.releases import Release


@dataclass
class TakenStep:
    """One logical step as it was taken.

    Args:
        batches: its physical batches, as they were before the step.
        calls: for each call of the optimizer's step, whether it was skipped.
        seconds: from the first batch to the end of the optimizer's step.
        work: the same by `clock`, without the audit's own time.
        weights: the trained tensors after it; None if they are not kept.
    """

    batches: list[Any] = field(default_factory=list)
    calls: list[bool] = field(default_factory=list)
    seconds: float = 0.0
    work: float = 0.0
    weights: Release | None = None

    @property
    def skips(self) -> list[bool]:
        """For each batch, whether the optimizer's step was skipped; empty if unknown.

        Opacus' batch memory manager decides it before each batch. If a batch makes several calls,
        the step's own code decides it.
        """
        return self.calls if len(self.calls) == len(self.batches) else []


class StepWatch:
    """Collector of the next step's batches.

    Args:
        step: the adapter of the private optimizer.
        keeps: whether to keep the weights that the step gives.
    """

    def __init__(self, step: DPSGDStep, *, keeps: bool = False) -> None:
        self._params, self._keeps = step.params, keeps
        #: What was taken so far.
        self.taken = TakenStep()
        self._stepped = False
        self._begun, self._work = time.perf_counter(), clock() - OWN_TIME.now()
        self._hooks = Handles()
        self._hooks.append(step.inner.register_step_post_hook(entry(self._note_step)))
        private: Any = private_optimizer(step.optimizer)
        if private is not None:

            def note_skip() -> None:
                self.taken.calls.append(bool(getattr(private, "_is_last_step_skipped", False)))

            self._hooks.append(MethodHook(private, "pre_step", after=note_skip))

    def start_batch(self, batch: Any, earlier: Any = None) -> None:
        """Add a copy of a batch that is about to be trained, as `constants_apart`."""
        self.taken.batches.append(constants_apart(copied(batch), earlier))

    def end_batch(self) -> TakenStep | None:
        """End a batch, and return the step that it completed; None if it completed none."""
        return self.taken if self._stepped else None

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def _note_step(self, *_: Any) -> None:
        self._stepped = True
        self.taken.seconds = time.perf_counter() - self._begun
        self.taken.work = max(clock() - OWN_TIME.now() - self._work, 0.0)
        if self._keeps:
            self.taken.weights = Release.of(self._params, self._params, 1.0)


def copied(batch: Any) -> Any:
    """Return a batch with copies of the tensors, for the user's code."""
    return _pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf,
        with_constants(batch),
    )
