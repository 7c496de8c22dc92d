"""Reads the gradient that a plain optimizer's update uses, even if it is computed inside `step`.

Lightning passes the training step to an optimizer as a closure, so that gradients are computed
inside ``step``. A user's optimizer may clip them and add noise there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from lightning_audit.hooks.gradient_tap import GradientTap
from lightning_audit.hooks.step_hooks import ClosureHooks, is_torchs, steps_of
from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.record.store import Observation

_UNREADABLE = (
    "the optimizer clips or adds noise inside its own step, where its gradient cannot be read: end "
    "its step with super().step() of one of torch's optimizers or with the step of one that it "
    "holds, after writing the noisy gradient to p.grad"
)
_NOT_RELEASED = (
    "in some steps lightning_audit.released was not called, so that their gradients were not read; "
    "call it once in each step"
)


class UpdateTap(GradientTap):
    """A tap that reads after the closure, in the innermost ``step`` of a class and its parents.

    A step whose code is torch's own is read directly. If a subclass overrides ``step``, its first
    step shows whether it calls its parent's. Until then `trial` is true, and no canary may be
    inserted. If it does not, the tap is `opaque`: it is not known what the code does with the
    gradient that was read. In a trial a step may be read more than once.

    Args:
        optimizer: the optimizer that updates the parameters.
        params: as for `GradientTap`.
        coordinates: as for `GradientTap`.
        cut_known: whether the training's code calls `lightning_audit.released`.
    """

    _kind = ClosureHooks

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        *,
        cut_known: bool = False,
    ) -> None:
        super().__init__(optimizer, params, coordinates)
        self._steps = steps_of(type(optimizer))
        self._level: int | None = 1 if is_torchs(self._steps[0]) else None
        self._read_at = 0
        self._again = False
        self.opaque = False
        self.cut_known = cut_known

    @property
    def trial(self) -> bool:
        """Whether it is not yet known where to read the gradient."""
        return self._level is None and not self.cut_known

    @property
    def is_sure(self) -> bool:
        """Whether the gradient that is read is known to be the update's, with no later change."""
        return not (self.trial or self.opaque)

    @property
    def is_shown(self) -> bool:
        """Whether the code calls `lightning_audit.released`."""
        return self.cut_known

    def judged(self, seen: Observation, *, asked: bool) -> tuple[Observation, str]:
        """Set the values to NaN if the gradient may not be the update's, and say why."""
        doubtful = self.opaque and not asked and not seen.at_cut
        if not (seen.unclear or doubtful):
            return seen, ""
        values = np.full(len(seen.values), np.nan)
        lack = _NOT_RELEASED if self.cut_known else _UNREADABLE
        return replace(seen, values=values, unclear=False), lack

    @property
    def inside_step(self) -> bool:
        """Whether the gradient of a step was read and its update has not ended."""
        return self._at_cut or (not self.trial and self._left is not None)

    def reads_at(self, level: int) -> bool:
        """See `GradientTap.reads_at`."""
        return self._level in (None, level)

    def read(self, taken: FloatArray | None, *, changed: bool = False) -> bool:
        """See `GradientTap.read`; one reading at the cut sets `cut_known` for all steps."""
        sure = super().read(taken, changed=changed)
        self.cut_known = self.cut_known or self._at_cut
        return sure

    def reset(self) -> None:
        """Discard a step that was interrupted between its hooks."""
        super().reset()
        self._read_at, self._again = 0, False

    def due_gradient(self, level: int) -> list[torch.Tensor | None] | None:
        """See `GradientTap.due_gradient`."""
        if self._at_cut:
            if level == 1 or self._arrived is None:
                self._read_at = 1
                return self._arrives_at_update()
            return None
        if self.cut_known or self._level not in (None, level):
            return None
        if self._level is not None and self._left is not None:
            self._again = True  # the closure ran twice: the step's gradient is ambiguous
            return None
        self._read_at = level
        return self._begin()

    def end_step(self) -> Observation | None:
        """See `GradientTap.end_step`."""
        level = self._depth
        self._depth = max(level - 1, 0)
        if self._at_cut:
            if level > 1:
                return None
            reading = self._end(trusted=True)  # any post-processing, in any step
            self._read_at, self._again = 0, False
            return reading
        if self.cut_known:
            # Its code did not call `released`.
            unread = np.full(self._size, np.nan)
            return Observation(values=unread, unclear=True) if level == 1 else None
        if level != self._read_at or self._left is None:
            return None
        if self._level is None:
            self._level, self.opaque = level, not is_torchs(self._steps[level - 1])
        again, self._read_at, self._again = self._again, 0, False
        return self._end(trusted=not self.opaque, again=again)
