"""Reads the gradient that a plain optimizer's update uses, even if it is computed inside `step`.

Lightning passes the training step to an optimizer as a closure, so that gradients are computed
inside ``step``. A user's optimizer may clip them and add noise there too.

**Detects weight changes outside of the update that are as large as the claimed noise.** Noise can
be added to the weights instead of the gradient. Then the gradient of the update contains none, and
no conclusion about the noise can be drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from lightning_audit.hooks.gradient_tap import GradientTap
from lightning_audit.hooks.step_hooks import ClosureHooks, StepHooks, is_torchs, steps_of
from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.record.store import Moves, Observation

# --- Detects weight changes outside of the update that are as large as the claimed noise.

#: Smallest weight change that counts, relative to that of the claimed noise in the same update.
_AS_NOISE = 0.2
#: Smallest number of steps that must have been read.
_ENOUGH = 3


class MovesOutside:
    """Counts steps before which weights changed as by noise."""

    def __init__(self) -> None:
        self._watched = self._moved = 0
        #: Whether they have changed as by noise since the last step, if few steps were watched.
        self._since = False

    @property
    def is_new(self) -> bool:
        """Whether few steps were watched, so that `look` counts."""
        return self._watched < _ENOUGH

    def update(self, moves: Moves, gradient: FloatArray) -> None:
        """Update with one step.

        Args:
            moves: changes of the weights.
            gradient: the gradient that the update used, in units of the claimed noise, ``[n]``.
        """
        if moves.outside is not None and np.isfinite([*gradient, *moves.outside]).all():
            self._watched += 1
            self._moved += self._as_noise(moves.outside, moves, gradient)

    def look(self, since: FloatArray | None, moves: Moves, gradient: FloatArray) -> None:
        """Update with the changes since a step's update, ``[n]``, at the end of its batch."""
        if since is not None and np.isfinite([*gradient, *since]).all():
            self._since = self._as_noise(since, moves, gradient)

    @staticmethod
    def _as_noise(outside: FloatArray, moves: Moves, gradient: FloatArray) -> bool:
        # Weight decay and projections change weights along themselves; noise does not.
        square = float(moves.start @ moves.start)
        along = float(outside @ moves.start) / square if square > 0 else 0.0
        rest = float(np.linalg.norm(outside - along * moves.start))
        step = float(np.linalg.norm(moves.update))
        size = float(np.linalg.norm(gradient)) / np.sqrt(len(gradient))
        # Noise of the claimed size changes the weights by step / size in the same update.
        return bool(rest > 0 and rest * size >= _AS_NOISE * step)

    @property
    def like_noise(self) -> bool:
        """Whether the weights changed as by noise in most steps, or after the first ones."""
        return self._since if self.is_new else 2 * self._moved > self._watched


# --- Reads the gradient that a plain optimizer's update uses, even if it is computed inside `step`.


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

    def hooks(
        self,
        arrives: Callable[[int], None],
        leaves: Callable[[], None],
        otherwise: Callable[[int], None],
    ) -> StepHooks:
        """Return hooks around the optimizer's steps and after the closures passed to them."""
        return ClosureHooks(self._optimizer, self.enters, arrives, leaves, otherwise, self.skips)

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

    @torch.no_grad()
    def arrives(self, level: int) -> list[torch.Tensor | None] | None:
        """See `GradientTap.arrives`."""
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

    @torch.no_grad()
    def leaves(self) -> Observation | None:
        """See `GradientTap.leaves`."""
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
