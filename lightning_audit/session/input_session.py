"""The audit of a training by an input canary: one more sample in the batch of every step.

The direction of a step is the canary's own gradient at the present weights. It is known before the
coin is used, from an extra pass, and is read over all trained parameters.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.canaries.inputs import InputCanary, loss_of
from lightning_audit.canaries.placement import Placement
from lightning_audit.canaries.sample_batches import Sample, appended, rows, sample_of
from lightning_audit.dpsgd.protocol import Backward, StepClaim
from lightning_audit.examine.own_gradient import DenseDirection, own_direction, undisturbed
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED, RecordHeader
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.step_plan import StepPlan
from lightning_audit.taps.noise_reading import clipped_sum

_log = logging.getLogger(__name__)

#: Steps of which the norm of the canary's gradient is kept.
_KEPT_NORMS = 1000
#: Opacus' guard against dividing by a norm of zero.
_EPSILON = 1e-6


class InputSession(AuditSession):
    """Audits the steps of one private optimizer by one input canary; see `AuditSession`."""

    #: The canary's sample, a record of the data, stays out: a run goes on with another one.
    kept = (*AuditSession.kept, "_norms")
    _direction: DenseDirection | None = None
    #: Samples of the batches that were trained on since the coin was flipped.
    _admitted = 0
    #: Number of the canary's row among them.
    _canary_row = 0
    _base: Sample | None = None
    _made: Sample | None = None

    def _place(self) -> Placement:
        """No coordinate is the canary's own: its gradient lies on all of them.

        Raises:
            UnauditableTraining: what clipping makes of the canary is not known beforehand.
        """
        if any(slot.clip_share is not None for slot in self.step.layout):
            raise self._refused("per-layer")
        if self.step.adapts_its_norm:
            raise self._refused("adaptive")
        self._made_at = -1
        # Of its own: a resumed run draws a sample again, which must not shift its coins.
        self._chooser = np.random.default_rng(self._rng.integers(2**62))
        self._reading = math.nan
        #: Norm of the canary's gradient over the clipping norm, of the last steps.
        self._norms: list[float] = []
        return Placement(self.step.layout)

    def _refused(self, clipping: str) -> UnauditableTraining:
        return UnauditableTraining(
            f"canaries={list(self._config.canaries)!r} cannot be taken out again under "
            f"{clipping} clipping; use gradient canaries, such as Dirac()."
        )

    def _with_game(self, header: RecordHeader) -> RecordHeader:
        canary, rate = self._canary, self._canary.sampling_rate
        shown = "" if rate == 0.5 else f", sampling_rate={rate:g}"
        label = f"{type(canary).__name__}(input{shown})"
        return replace(header, canaries=(label,), coin_probability=rate, game=canary.game)

    def _toss(self, rng: np.random.Generator) -> FloatArray:
        rate = self._canary.sampling_rate
        if rate == 0.5:
            return super()._toss(rng)
        return (rng.random(self._canary_count) < rate).astype(np.float64)

    @property
    def _parts_are_equal(self) -> bool:
        """The canary is in the first part of a batch."""
        return False

    @property
    def _canary(self) -> InputCanary:
        canary = self._config.canaries[0]
        assert isinstance(canary, InputCanary)
        return canary

    @property
    def oversize(self) -> float:
        """Norm of the canary over the clipping norm, of nine steps in ten at least that."""
        return float(np.quantile(self._norms, 0.1)) if self._norms else 0.0

    # ------------------------------------------------------------------ the batch

    def start_batch(self) -> None:
        """Keep what is planned: the batches of a step may come one by one."""
        self._tap.reset()

    def prepare(self, coming: Backward) -> None:
        """Nothing is laid out: the canary is in the batch."""

    def inject_late(self) -> None:
        """Nothing is late: the canary is in the batch."""
        self._claim_again()

    def skip(self) -> None:
        """Forget a planned step that is not taken."""
        self._withdraw()

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Flip the coin of the coming step at its first batch; the batch with the canary or not.

        Args:
            batch: as the user's ``training_step`` would see it; it is left as it is.
            module: the user's module.

        Raises:
            UnauditableTraining: the batch or the module is of a kind for which the canary
                must be told more.
        """
        if self._plan is not None:
            self._admitted += self._rows(batch)
            return batch
        if not self._canary_is_due():
            return batch
        if hasattr(self.step.optimizer, "_adjusted_noise_multiplier"):
            raise self._refused("adaptive")
        try:
            claim = self._claim(accumulated=1)
        except ValueError:  # said where the claim is read again
            return batch
        if not self._rows(batch):  # a training may skip empty batches, but not one with a canary
            self._plan = self._without_canary(claim)
            return batch
        plan = self._flip(claim)
        try:
            with undisturbed(module):
                sample = self._sample(batch, module)
                self._direction = self._own_direction(sample, module)
                # Made whatever the coin: whether a step counts must not depend on it.
                with_canary = appended(batch, sample)
        except ValueError as error:
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error
        if self._direction is None:
            self._plan = self._without_canary(claim, DROPPED)
            return batch
        self._plan = plan
        trained = with_canary if plan.coins.any() else batch
        self._admitted, self._canary_row = rows(trained), rows(batch)
        return trained

    def _rows(self, batch: Any) -> int:
        try:
            return rows(batch)
        except ValueError as error:
            raise UnauditableTraining(f"{type(self._canary).__name__}: {error}") from error

    def _canary_is_due(self) -> bool:
        every = self._config.every_n_steps or 1
        return (
            self.recorder.steps % every == 0
            and not self.recorder.clipping_is_broken
            and self._layout_holds()
        )

    def _sample(self, batch: Any, module: torch.nn.Module) -> Sample:
        """The canary of this step."""
        canary = self._canary
        if self._base is None:
            row = int(self._chooser.integers(rows(batch)))
            self._base = sample_of(batch, row, canary.input, canary.label)
        every, step = canary.remade_every, self.recorder.steps
        if self._made is None or (every is not None and step - self._made_at >= every):
            self._made = canary.made(module, self._base, batch, self.step.params)
            self._made_at = step
        return canary.at_step(module, self._made)

    def _own_direction(self, sample: Sample, module: torch.nn.Module) -> DenseDirection | None:
        loss = loss_of(self._canary, module, sample.batch, sample)
        direction = own_direction(loss, self.step.params)
        if direction is None:
            _log.warning(
                "the gradient of the canary is zero or not finite at step %d; with another "
                "amplitude than %g it may not be",
                self.recorder.steps,
                self._canary.amplitude,
            )
        return direction

    # ------------------------------------------------------------------ the step

    def _confirmed(self) -> StepPlan | None:
        """The plan that was made with the batch, if no batch was dropped since."""
        plan, waiting = self._plan, self.step.batch_size()
        split = any(getattr(p, "summed_grad", None) is not None for p in self.step.params)
        if plan is not None and waiting is not None and waiting < self._admitted and not split:
            return replace(plan, status=DROPPED)
        return plan

    def _late(self, claim: StepClaim) -> StepPlan:
        return self._without_canary(claim)

    def _unplanned(self) -> StepPlan:
        """For a step that no batch announced, such as the second one of a ``training_step``."""
        return self._empty(NOT_PLANNED)

    def _before(self) -> FloatArray | None:
        """Read the gradient along the canary's direction, and take the canary out."""
        super()._before()
        plan, direction = self._plan, self._direction
        if plan is None or plan.status != INJECTED or direction is None:
            return None
        claim, grads = plan.claim, self._tap.grads()
        limit, divisor = claim.max_grad_norm, self._divisor(claim)
        self._reading = direction.product(grads) * divisor / limit
        self._norms = [*self._norms[1 - _KEPT_NORMS :], direction.norm / limit]
        if plan.coins.any():
            # Never a function of what was read: that would take noise out.
            direction.take_out(grads, _clipped(direction, limit) / divisor)
        return None

    def _clear_sums(self, plan: StepPlan) -> None:
        if self._direction is not None:
            sums = [clipped_sum(p, p.grad) for p in self.step.params]
            self._direction.take_out(sums, _clipped(self._direction, plan.claim.max_grad_norm))

    def _rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Rows of per-sample gradients without the canary's; None where that is not known."""
        plan, at = self._plan, self._canary_row
        if rows is None or plan is None or not plan.coins.any() or len(rows) < self._admitted:
            return rows  # the canary was in an earlier part of the step, or in none
        if plan.status != INJECTED or len(rows) > self._admitted:
            return None
        return torch.cat([rows[:at], rows[at + 1 :]])

    def _readings(
        self, plan: StepPlan, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """The inner product with the canary's direction, the canary included."""
        reading, self._reading, self._direction = self._reading, math.nan, None
        if plan.status != INJECTED:
            return np.zeros(1)
        # Of a gradient that was replaced nothing is kept.
        return np.array([math.nan if np.isnan(values).all() else reading])


def _clipped(direction: DenseDirection, limit: float) -> float:
    """Norm of the canary's gradient once it is clipped."""
    return direction.norm * min(1.0, limit / (direction.norm + _EPSILON))
