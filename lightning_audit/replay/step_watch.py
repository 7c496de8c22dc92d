"""Which batches make up one logical step, while a training takes it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.taps.method_hook import MethodHook


@dataclass
class TakenStep:
    """One logical step as it was taken.

    Args:
        batches: its physical batches, as they were before the step.
        calls: of each call of the optimizer's step, whether it was skipped.
        seconds: from the first batch to the end of the optimizer's step.
    """

    batches: list[Any] = field(default_factory=list)
    calls: list[bool] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def skips(self) -> list[bool]:
        """Of each batch, whether the optimizer's step was skipped; empty where it was not asked.

        Opacus' batch memory manager says so before each batch; where a batch makes several calls,
        the step's own code says it.
        """
        return self.calls if len(self.calls) == len(self.batches) else []


class StepWatch:
    """Collects the batches of the coming step.

    Args:
        step: the adapter of the private optimizer.
    """

    def __init__(self, step: DPSGDStep) -> None:
        self._taken = TakenStep()
        self._stepped = False
        self._begun = time.perf_counter()
        self._hooks: list[Any] = [step.inner.register_step_post_hook(self._note_step)]
        private: Any = private_optimizer(step.optimizer)
        if private is not None:

            def note_skip() -> None:
                self._taken.calls.append(bool(getattr(private, "_is_last_step_skipped", False)))

            self._hooks.append(MethodHook(private, "pre_step", after=note_skip))

    def start_batch(self, batch: Any) -> None:
        """A batch is about to be trained; what the step does to it in place does not count."""
        self._taken.batches.append(copied(batch))

    def end_batch(self) -> TakenStep | None:
        """The batch was trained; the step that it ended, if it ended one."""
        return self._taken if self._stepped else None

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _note_step(self, *_: Any) -> None:
        self._stepped = True
        self._taken.seconds = time.perf_counter() - self._begun


def copied(batch: Any) -> Any:
    """A batch with tensors of its own."""
    return _pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch
    )
