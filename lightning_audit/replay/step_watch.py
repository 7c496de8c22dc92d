"""Collect the batches of one logical step while the training takes it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.taps.boundary import Handles, entry
from lightning_audit.taps.method_hook import MethodHook


@dataclass
class TakenStep:
    """One logical step as it was taken.

    Args:
        batches: its physical batches, as they were before the step.
        calls: for each call of the optimizer's step, whether it was skipped.
        seconds: from the first batch to the end of the optimizer's step.
    """

    batches: list[Any] = field(default_factory=list)
    calls: list[bool] = field(default_factory=list)
    seconds: float = 0.0

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
    """

    def __init__(self, step: DPSGDStep) -> None:
        self._taken = TakenStep()
        self._stepped = False
        self._begun = time.perf_counter()
        self._hooks = Handles()
        self._hooks.append(step.inner.register_step_post_hook(entry(self._note_step)))
        private: Any = private_optimizer(step.optimizer)
        if private is not None:

            def note_skip() -> None:
                self._taken.calls.append(bool(getattr(private, "_is_last_step_skipped", False)))

            self._hooks.append(MethodHook(private, "pre_step", after=note_skip))

    def start_batch(self, batch: Any) -> None:
        """Add a copy of a batch that is about to be trained."""
        self._taken.batches.append(copied(batch))

    def end_batch(self) -> TakenStep | None:
        """End a batch, and return the step that it completed; None if it completed none."""
        return self._taken if self._stepped else None

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def _note_step(self, *_: Any) -> None:
        self._stepped = True
        self._taken.seconds = time.perf_counter() - self._begun


def copied(batch: Any) -> Any:
    """Return a batch with copies of the tensors."""
    return _pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch
    )
