"""A training whose DP-SGD is written by hand: its code asks for the canaries itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from lightning_audit.dpsgd.hand_over import register, unregister
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import INJECTED, NOT_PLANNED
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.step_plan import StepPlan
from lightning_audit.session.step_planner import FULL_STEPS, THINNED
from lightning_audit.taps.gradient_tap import Reading
from lightning_audit.taps.update_tap import UpdateTap
from lightning_audit.verdict.pass_blockers import MAX_LOST

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

_UNREADABLE = (
    "the optimizer clips or noises inside its own step, where its gradient cannot be read: end "
    "its step with super().step() of one of torch's optimizers or with the step of one that it "
    "holds, after writing the noisy gradient to p.grad"
)
_NOT_RELEASED = (
    "in some steps lightning_audit.released was not called, so that their gradients were not read; "
    "call it once in each step"
)
_RELEASED_TWICE = (
    "lightning_audit.released was called more than once in a step, of which the first call was "
    "read; call it once, with the gradient that all noise was added to"
)
_THINNED = (
    f"canaries entered each of the first {FULL_STEPS} steps and every {THINNED}th later, since "
    "per-sample gradients are copied for them; every_n_steps=1 has them enter every step"
)
_SILENT = (
    "no canary could enter {silent} of {steps} steps: call grads = "
    "lightning_audit.per_sample(grads, module=self) once in each step before clipping, or "
    "lightning_audit.rows(module=self) in a loop over samples"
)


class HandWrittenSession(AuditSession):
    """Audits the steps of a plain optimizer whose gradients are clipped and noised by hand.

    The gradient is read when the optimizer's update starts. A step that asks for no canary is
    read all the same, so that too little noise is found without any change to the training.
    """

    kept = (*AuditSession.kept, "_silent")
    _tap_kind = UpdateTap
    step: ManualStep
    _tap: UpdateTap
    #: Steps that asked for no canary.
    _silent = 0
    #: Whether a batch is being trained on, and whether it may ask for canaries.
    _trains = _open = False
    #: Whether the step's code asked for canaries, and whether before the gradient was read.
    _asked = _announced = False

    # ------------------------------------------------------------------ asking for canaries

    def open_to(self, root: torch.nn.Module) -> None:
        """Let `lightning_audit.per_sample` and `rows` ask for this training's module."""
        register(root, self)

    def start_batch(self) -> None:
        """From now on canaries may be asked for; a step may take several batches."""
        self._tap.reset()
        self._trains = self._open = True

    def end_batch(self) -> None:
        """Until the next batch nobody gets a canary: validation is not training."""
        self._trains = self._open = False
        self.step.settle()

    def follow(self, step: DPSGDStep) -> bool:
        """Go on with a new optimizer over the same parameters, in the middle of a batch too."""
        before = self._trains, self._open, self._tap.cut_known
        same = super().follow(step)
        self._trains, self._open, self._tap.cut_known = before
        return same

    def detach(self) -> None:
        """Take the hooks off; what was observed stays."""
        super().detach()
        self._trains = self._open = False
        unregister(self)

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """See `lightning_audit.per_sample`."""
        if not self._open:
            return grads
        if not isinstance(grads, dict):
            raise ValueError(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors "
                "(B, *shape), as torch.func.vmap(grad(...)) gives it."
            )
        places = self.step.places(list(grads), module, root)
        self.step.check_shapes(grads, places)
        self.step.hold(grads)
        return self.step.append(grads, places) if self._canaries_enter() else grads

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """See `lightning_audit.rows`."""
        if not self._open:
            return []
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        places = self.step.places(names, module, root)
        return self.step.singles(places) if self._canaries_enter() else []

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """See `lightning_audit.released`."""
        if not self._trains or not self._layout_holds():
            return
        if not isinstance(grads, dict):
            raise ValueError(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors of the "
                "parameters' shapes: the noisy gradients."
            )
        places = self.step.places(list(grads), module, root)
        self.step.check_released(grads, places)
        if self._tap.inside_step and self._tap.cut_known:
            self._lack(_RELEASED_TWICE)
            return
        tensors: list[torch.Tensor | None] = [None] * len(self.step.params)
        for name, place in places.items():
            if place is not None:
                tensors[place] = grads[name]
        self._tap.read_now(tensors)

    @property
    def _shown(self) -> bool:
        return self._tap.cut_known

    def _canaries_enter(self) -> bool:
        """Plan the coming step; whether canaries are in it, and this is the first to ask."""
        self._asked = True
        if self._plan is not None or self._tap.inside_step or not self._layout_holds():
            return False
        if self._tap.trial:
            self._plan = self._empty(NOT_PLANNED)
            return False
        self.inject()
        thinned = self._settings.every_n_steps is None and self._canary_steps >= FULL_STEPS
        if thinned and not self.recorder.clipping_is_broken:
            self._note(_THINNED)
        return self._plan is not None and self._plan.status == INJECTED

    # ------------------------------------------------------------------ around the update

    def prepare(self, coming: Backward) -> None:
        """Nothing can be laid out before the user's own code."""

    def _before(self) -> FloatArray | None:
        self._announced = self._plan is not None
        return super()._before()

    def _after(self, reading: Reading) -> None:
        doubtful = self._tap.opaque and not self._announced and not reading.at_cut
        if reading.unclear or doubtful:
            # Not what the update used: nothing may be concluded from it.
            self._lack(_NOT_RELEASED if self._tap.cut_known else _UNREADABLE)
            values = np.full(len(reading.values), np.nan)
            reading = replace(reading, values=values, unclear=False)
        super()._after(reading)
        self._asked = False
        self.step.release()

    def _rows_of_step(self) -> int | None:
        """Samples given to `lightning_audit.per_sample`, and the canaries that joined them."""
        plan, samples = self._plan, self.step.samples
        canaries = int(plan.coins.sum()) if plan is not None and plan.status == INJECTED else 0
        return samples + canaries if samples else None

    def _look_at_lost(self) -> None:
        # Elsewhere the gradient that was read need not be the one that is released.
        if not self._tap.trial and not self._tap.opaque:
            super()._look_at_lost()

    def _unplanned(self) -> StepPlan:
        self._silent += self._changed_at is None and not self._asked
        return self._empty(NOT_PLANNED)

    def pass_blockers(self) -> list[str]:
        """What stands in the way of a pass, in sentences."""
        steps = self.recorder.steps
        if self._silent <= MAX_LOST * steps:
            return super().pass_blockers()
        return [*super().pass_blockers(), _SILENT.format(silent=self._silent, steps=steps)]
