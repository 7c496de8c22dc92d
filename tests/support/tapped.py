"""An optimizer whose every step a tap reads, as a session has it read."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from lightning_audit.hooks.gradient_tap import GradientTap
from lightning_audit.hooks.step_hooks import ClosureHooks, StepHooks
from lightning_audit.hooks.update_tap import UpdateTap
from lightning_audit.record.store import Observation


def nothing() -> None:
    """There is nothing to take out."""


class Tapped:
    """A tap with its hooks, and what was read; ``before`` says what is to be taken out."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter],
        coordinates: dict[int, np.ndarray],
        before: Callable[[], np.ndarray | None] = nothing,
        kind: type[GradientTap] = GradientTap,
    ) -> None:
        self.tap = kind(optimizer, params, coordinates)
        self.readings: list[Observation] = []
        self._before = before
        hooks = ClosureHooks if kind is UpdateTap else StepHooks
        self._hooks = hooks(optimizer, self.tap.begin_step, self._arrives, self._leaves)

    def _arrives(self, level: int) -> None:
        if self.tap.due_gradient(level) is not None:
            self.tap.read(self._before())

    def _leaves(self) -> None:
        reading = self.tap.end_step()
        if reading is not None:
            self.readings.append(reading)

    def remove(self) -> None:
        self._hooks.remove()
        self.tap.remove()
