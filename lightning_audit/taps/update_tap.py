"""Reads the gradient that a plain optimizer's update uses, wherever in its step that is made.

Lightning hands the training step to an optimizer as a closure, so that gradients are made inside
``step``, and an optimizer of the user's own may clip and noise them there too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.gradient_tap import GradientTap
from lightning_audit.taps.step_hooks import is_torchs, steps_of


class UpdateTap(GradientTap):
    """A tap that reads after the closure, in the innermost ``step`` of a class and its parents.

    A step whose code is torch's own is read at once. Where a subclass overrides ``step``, its
    first step shows whether it goes on to its parent's: until then `trial` is true, and no canary
    may be in. If it does not, the tap is `opaque`: nobody can tell what the code does with the
    gradient that was read. In a trial a step may be read more than once.

    Args:
        optimizer: the optimizer that updates the parameters.
        params: as `GradientTap` has them.
        coordinates: as `GradientTap` has them.
        cut_known: whether the training's code says where its noise is in.
    """

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
        """Whether it is not known yet where the gradient is to be read."""
        return self._level is None and not self.cut_known

    @property
    def inside_step(self) -> bool:
        """Whether the gradient of a step was read, and the update is under way."""
        return self._at_cut or (not self.trial and self._left is not None)

    def reads_at(self, level: int) -> bool:
        """See `GradientTap.reads_at`."""
        return self._level in (None, level)

    def read(self, taken: FloatArray | None) -> bool:
        """See `GradientTap.read`; where the noise is shown once, it is shown in every step."""
        finite = super().read(taken)
        self.cut_known = self.cut_known or self._at_cut
        return finite

    def reset(self) -> None:
        """Forget a step that broke off between its hooks."""
        super().reset()
        self._read_at, self._again = 0, False

    @torch.no_grad()
    def arrives(self, level: int) -> bool:
        """See `GradientTap.arrives`."""
        if self._at_cut:
            if level == 1 or self._arrived is None:
                self._read_at = 1
                return self._arrives_at_update()
            return False
        if self.cut_known or self._level not in (None, level):
            return False
        if self._level is not None and self._left is not None:
            self._again = True  # the closure runs a second time: which gradient is the step's?
            return False
        self._read_at = level
        self._begin()
        return True

    @torch.no_grad()
    def leaves(self) -> Reading | None:
        """See `GradientTap.leaves`."""
        level = self._depth
        self._depth = max(level - 1, 0)
        if self._at_cut:
            if level > 1:
                return None
            reading = self._end(trusted=True)  # whatever is done with a release, in whose step
            self._read_at, self._again = 0, False
            return reading
        if self.cut_known:
            # Its code did not come to the place where the noise is in.
            unread = np.full(self._size, np.nan)
            return Reading(unread, unclear=True) if level == 1 else None
        if level != self._read_at or self._left is None:
            return None
        if self._level is None:
            self._level, self.opaque = level, not is_torchs(self._steps[level - 1])
        again, self._read_at, self._again = self._again, 0, False
        return self._end(trusted=not self.opaque, again=again)
