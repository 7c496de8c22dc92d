"""The audit of one private optimizer, step by step: canaries in, gradient read, canaries out.

Hooks of the training call a session, each with an event. `TRANSITIONS` says what happens at an
event and in which state the step is afterwards; what is not in it changes nothing. After any
sequence of events, also one that an exception ends, no canary is left in a gradient. Under ghost
clipping, where canaries are added to the sum itself, a step that breaks off before its noise leaves
them there until its gradients are cleared.

Other code sees the batch's own gradients between an event and the next: rows that are laid out are
hidden until they are put in, just before clipping. If the audit fails, canaries that are rows leave
at once, and canaries that are already summed leave the gradient after its noise was added.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
import torch

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.dpsgd.adapters import divisor_at_cut, shows_its_noise, watch_cut
from lightning_audit.dpsgd.protocol import Backward, CannotEnter, DPSGDStep, StepClaim
from lightning_audit.hooks.boundary import attempt, current
from lightning_audit.hooks.gradient_tap import (
    CanaryRows,
    GradientTap,
    Tensors,
    clipped_sums,
    summed_by_opacus,
)
from lightning_audit.hooks.step_hooks import Installed, MethodHook, Retry, StepHooks
from lightning_audit.layout import same_objects
from lightning_audit.lints.settings import STEPS, NoiseDraws
from lightning_audit.record.store import (
    DROPPED,
    INJECTED,
    NOT_PLANNED,
    Observation,
    ObservationStore,
)
from lightning_audit.session.between import Between
from lightning_audit.session.entrances import GradientRows, HandedRows, InputSample
from lightning_audit.session.own_clipping import Fit, Held, error_place, own_methods
from lightning_audit.session.plan import Plan
from lightning_audit.session.planner import FULL_STEPS, THINNED, StepPlanner
from lightning_audit.session.reading import NoiseWatch, ReleaseWatch
from lightning_audit.session.recorder import ZEROS, LostSteps

# --- States of a step, the events that hooks report, and what happens at each.


class State(Enum):
    """Where a step's canaries are."""

    #: Nowhere: no step has begun since the start of the training or of the batch.
    PLANNED = auto()
    #: Laid out before the backward pass, in the batch, or ready for the code that requested them.
    LAID_OUT = auto()
    #: In the sum of an earlier part of the batch; further parts follow.
    SUMMED = auto()
    #: In the gradients that are clipped next, or in their sum. Also if no canary enters.
    IN = auto()
    #: In the noisy gradient, which is being read.
    READ = auto()
    #: Out of the gradient, which the update uses.
    OUT = auto()
    #: Nowhere: the step was taken and recorded.
    RECORDED = auto()
    #: Nowhere: the step was not taken.
    SKIPPED = auto()
    #: The audit has failed, or was interrupted; summed canaries are still to be removed.
    FAILED = auto()


class Event(Enum):
    """What a hook reports."""

    #: A batch is about to be trained on; an input canary may join it; its step is not taken.
    BATCH, BATCH_GIVEN, SKIP = auto(), auto(), auto()
    #: A backward pass is about to run; has run.
    BACKWARD, GRADIENTS = auto(), auto()
    #: Hand-written code requests canaries; has them.
    ASKED, HANDED = auto(), auto()
    #: The optimizer is about to step on a part of the batch; on the whole batch, or its last part.
    PART, ANNOUNCED = auto(), auto()
    #: The optimizer begins to clip; has clipped, and added noise unless more parts follow.
    CLIP, CLIPPED = auto(), auto()
    #: The noise was added; the updating optimizer has its gradient; has updated the weights.
    NOISE, UPDATE, UPDATED = auto(), auto(), auto()
    #: The audit failed or was interrupted.
    FAILURE = auto()


_REST = (State.PLANNED, State.RECORDED, State.SKIPPED)
_BEFORE_NOISE = (*_REST, State.LAID_OUT, State.SUMMED, State.IN)
_ALIVE = (*_BEFORE_NOISE, State.READ, State.OUT)

#: States, event, action, state afterwards. An action that leaves the step in another state than
#: that says so; None: the state does not change.
_Rows = tuple[tuple[tuple[State, ...], Event, str, State | None], ...]

_OF_ALL: _Rows = (
    (_BEFORE_NOISE, Event.NOISE, "_read_at_cut", State.OUT),
    ((State.OUT,), Event.NOISE, "_read_at_cut", State.OUT),  # more was added in place
    ((*_BEFORE_NOISE, State.OUT), Event.UPDATE, "_read_at_update", None),
    (_ALIVE, Event.UPDATED, "_record", None),
    (_ALIVE, Event.FAILURE, "_leave_the_step", State.FAILED),
    ((State.FAILED,), Event.FAILURE, "_leave_the_step", State.FAILED),
    ((State.FAILED,), Event.NOISE, "_rescue_at_cut", State.FAILED),
    ((State.FAILED,), Event.UPDATE, "_rescue_at_update", State.FAILED),
    ((State.FAILED,), Event.BATCH, "_start_batch", State.PLANNED),  # after an interrupt
    (_REST, Event.BATCH, "_start_batch", State.PLANNED),
    ((State.READ, State.OUT), Event.BATCH, "_drop_step", State.SKIPPED),  # it broke off
)
_OF_ROWS: _Rows = (
    ((State.LAID_OUT, State.IN), Event.BATCH, "_drop_step", State.SKIPPED),
    ((State.SUMMED,), Event.BATCH, "_start_next_part", State.SUMMED),
    (_REST, Event.BACKWARD, "_lay_out", State.LAID_OUT),
    ((State.IN,), Event.BACKWARD, "_lay_out_again", State.LAID_OUT),  # the closure runs again
    ((State.LAID_OUT,), Event.GRADIENTS, "_conceal", State.LAID_OUT),
    ((*_REST, State.LAID_OUT, State.IN), Event.PART, "_put_in_part", State.SUMMED),
    ((State.SUMMED,), Event.PART, "_pass_part", State.SUMMED),
    ((*_REST, State.LAID_OUT), Event.ANNOUNCED, "_put_in", State.IN),
    ((State.SUMMED,), Event.ANNOUNCED, "_end_parts", State.IN),
    ((State.IN,), Event.ANNOUNCED, "_put_in_again", State.IN),
    ((*_REST, State.LAID_OUT, State.SUMMED), Event.CLIP, "_put_in_late", None),  # not announced
    ((State.IN,), Event.CLIP, "_claim_again", State.IN),
    ((*_REST, State.SUMMED), Event.CLIPPED, "_take_rows_out", None),
)
_OF_SAMPLES: _Rows = (
    ((State.LAID_OUT, State.SUMMED), Event.BATCH, "_start_batch", None),
    ((State.IN,), Event.BATCH, "_start_batch", State.LAID_OUT),  # the step broke off
    (_REST, Event.BATCH_GIVEN, "_lay_out_sample", State.LAID_OUT),
    ((State.LAID_OUT, State.IN), Event.BATCH_GIVEN, "_admit", None),
    (_ALIVE, Event.SKIP, "_drop", State.SKIPPED),
    (_BEFORE_NOISE, Event.PART, "_pass_part", None),
    ((*_REST, State.LAID_OUT), Event.ANNOUNCED, "_confirm_sample", State.IN),
    ((State.LAID_OUT, State.IN), Event.CLIP, "_claim_again", None),
)
_OF_HANDED: _Rows = (
    ((State.LAID_OUT, State.IN), Event.BATCH, "_start_batch", None),
    (_REST, Event.ASKED, "_make_ready", State.LAID_OUT),
    ((State.LAID_OUT,), Event.HANDED, "_hand_over", State.IN),
)


def _table(*rows: _Rows) -> dict[tuple[State, Event], tuple[str, State | None]]:
    return {
        (state, event): (action, after)
        for states, event, action, after in (row for part in rows for row in part)
        for state in states
    }


#: State and event -> action, and the state afterwards, for each way in which canaries enter.
TRANSITIONS = {
    GradientRows: _table(_OF_ALL, _OF_ROWS),
    InputSample: _table(_OF_ALL, _OF_SAMPLES),
    HandedRows: _table(_OF_ALL, _OF_HANDED),
}

# --- Audit of one private optimizer: plans, reads, records and checks its steps.

_log = logging.getLogger(__name__)

_ROWS_WERE_IN = (
    "rows of lightning-audit were among the per-sample gradients; if the optimizer's own code does "
    "not expect them, state an input canary: canaries=[Mislabeled(amplitude=100.0)]"
)
_UNANNOUNCED = (
    "a step did not begin in the private optimizer's own step(), so that no canary could enter "
    "(Lightning: in manual optimization step what self.optimizers() returns)"
)
_THINNED = (
    f"canaries entered each of the first {FULL_STEPS} steps and every {THINNED}th later, since "
    "per-sample gradients are copied for them; set every_n_steps=1 to insert them at every step"
)


class AuditSession:
    """Audits the steps of one private optimizer.

    Args:
        planner: plans the steps.
        inserter: knows how the canaries enter.
        tap: reads the gradients.
        noise: reads the noise together with the clipped sums.
        sample_rate: maps a step's number of accumulated batches to its sampling rate; None if
            unknown.
    """

    def __init__(
        self,
        planner: StepPlanner,
        inserter: GradientRows,
        tap: GradientTap,
        noise: NoiseWatch,
        sample_rate: Callable[[int], float | None],
    ) -> None:
        self.planner, self.inserter, self.tap, self.noise = planner, inserter, tap, noise
        #: The adapter.
        self.step = planner.step
        self.recorder = planner.recorder
        self._sample_rate, self._ranks = sample_rate, planner.ranks
        self._table = TRANSITIONS[type(inserter)]
        self.stage, self._after = State.PLANNED, State.PLANNED
        #: The step's plan; None before it is planned.
        self._plan: Plan | None = None
        #: Whether the laid out rows are for a closure that runs again.
        self._again = False
        #: Whether a part that is not the last was announced, or clipped.
        self._part_announced = self._split = False
        #: Whether the step's code has requested canaries.
        self._asked = False
        #: The clipped sums when the optimizer began to clip, by identity and version.
        self._sums_before: list[tuple[int, int] | None] = []
        #: Whether the noise of the step was added or its update has begun; whether its rows are
        #: kept after a failure, since other processes subtract them.
        self._behind = self._agreed = False
        #: Whether the update is known to use the gradient that was read, and the layout holds.
        self._is_sure = self._is_released = False
        #: Divisor of the noisy sum at the time of the reading; None for the claimed one.
        self._divided_by: float | None = None
        #: Whether a batch is being trained on.
        self.trains = False
        self._epoch = 0
        #: Checksum of all readings; equal in all processes if they share their gradients.
        self.checksum = 0
        self.lost, self.draws = LostSteps(), NoiseDraws()
        #: What the steps prove, by their number and what else it depends on; see `run.epsilons`.
        self.proved: dict[Any, Any] = {}
        #: Noise generator state before this process's first noise; kept in memory only.
        self.noise_start: str | None = None
        self._noise_seen = False
        self.releases, self.between = ReleaseWatch(), Between(planner)
        if (boundary := current()) is not None:
            boundary.on_leave(self.withdraw)
        self._hooks: list[StepHooks | Installed] = [self._update_hooks()]

    @property
    def monitor(self) -> AuditMonitor:
        """The checks after the last step."""
        return self.recorder.monitor

    @property
    def store(self) -> ObservationStore | None:
        """The record on disk; None if none is kept."""
        return self.recorder.store

    @property
    def at_cut(self) -> bool:
        """Whether every step was read right after its noise was added."""
        shown = self.tap.is_shown or shows_its_noise(self.step.optimizer)
        return shown and not self.releases.late

    def pass_blockers(self, alone: Sequence[int] = ()) -> list[str]:
        """Return what prevents a pass, as text; see `Recorder.pass_blockers`."""
        own = self.recorder.pass_blockers(at_cut=self.at_cut, alone=alone)
        return [*self.planner.blockers(self.monitor), *own, *self.inserter.pass_blockers()]

    # ------------------------------------------------------------------ hooks and events

    def watch(self) -> None:
        """Hook a private optimizer's own methods: before it clips, and after it adds noise.

        Lightning's hooks run only for steps that Lightning itself takes.
        """
        optimizer, between = self.step.optimizer, self.between
        noise = partial(self._on, Event.NOISE)
        # No code of the audit that can fail: a failure of any other finds where the canaries are.
        behind = partial(setattr, self, "_behind", True)
        between.begin()
        self._hooks += [
            MethodHook(optimizer, "add_noise", after=behind, otherwise=behind),
            MethodHook(optimizer, "add_noise", between.noise_begins, between.noise_ends),
            MethodHook(
                optimizer, "clip_and_accumulate", between.clipping_begins, between.clipping_ends
            ),
        ]
        if type(self.inserter) is GradientRows:
            own = [n for n in ("clip_and_accumulate", "pre_step") if n in own_methods(optimizer)]
            self._hooks += [Retry(optimizer, n, self._hold, self._without_rows) for n in own]
        self._hooks += [
            MethodHook(optimizer, "pre_step", self._clip, partial(self._on, Event.CLIPPED)),
            watch_cut(optimizer, noise, noise),  # before any post-processing
        ]

    def _update_hooks(self) -> StepHooks:
        return self.tap.hooks(partial(self._on, Event.UPDATE), partial(self._on, Event.UPDATED))

    def follow(self, step: DPSGDStep) -> bool:
        """Switch to a new optimizer over the same parameters; return False if they differ."""
        same = same_objects(step.params, self.step.params)
        if same:
            self._unhook()
            step.norms = self.step.norms
            self.step = step
            self.planner.step = step
            self.tap = step.tap(self.planner.coordinates.by_tensor, cut_known=self.tap.is_shown)
            self._hooks = [self._update_hooks()]
        return same

    def pause(self, *, paused: bool) -> None:
        """Disable the hooks during steps that are not part of the training, or enable them."""
        for hook in self._hooks:
            hook.armed = not paused

    def detach(self) -> None:
        """Unregister the hooks; observations are kept."""
        self._unhook()
        self._drop()
        self.end_batch()

    def _unhook(self) -> None:
        for hook in reversed(self._hooks):
            hook.remove()
        self._hooks = []
        self.tap.remove()
        if self.stage is not State.SUMMED:
            self._drop()
            self.stage = State.SKIPPED

    def _on(self, event: Event, *given: Any) -> Any:
        """Do what `TRANSITIONS` says about an event; return what the action returns."""
        action, after = self._table.get((self.stage, event), (None, None))
        if action is None:
            return None
        self._after = after or self.stage
        result = getattr(self, action)(*given)
        self.stage = self._after
        return result

    def start_batch(self, epoch: int = 0) -> None:
        """Start a batch: a step that was not completed is discarded."""
        self._epoch, self._behind, self._agreed, self.trains = epoch, False, False, True
        self._on(Event.BATCH)

    def end_batch(self) -> None:
        """Mark the end of a batch: no training until the next one."""
        if self.releases.last is not None:
            self.releases.end_batch(self.tap.weights)
        self.trains = False
        self.step.settle()

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Return the batch to train on, with an input canary if its coin is 1.

        Args:
            batch: as the user's ``training_step`` would get it; not modified.
            module: the user's module.

        Raises:
            UnauditableTraining: the canary needs more arguments for this kind of batch or module.
        """
        trained = self._on(Event.BATCH_GIVEN, batch, module)
        return batch if trained is None else trained

    def skip(self) -> None:
        """Discard a planned step that is not taken."""
        self._on(Event.SKIP)

    def prepare(self, coming: Backward) -> None:
        """Lay out the canaries' rows before a backward pass, if possible."""
        self._on(Event.BACKWARD, coming)

    def conceal(self) -> None:
        """Hide the rows from user code after a backward pass, until `inject`."""
        self._on(Event.GRADIENTS)

    def inject(self) -> None:
        """Insert the canaries of an announced step, before clipping and noise."""
        self._look_at_noise()
        untried = not self.planner.tried and type(self.inserter) is GradientRows
        if untried and self.planner.try_rows():
            self._drop()
            self.stage = State.SKIPPED
        if self.stage is State.OUT:  # a closure that runs again belongs to the same step
            return
        if not self.step.final_step_of_batch():  # a physical batch of a larger logical one
            self._on(Event.PART)
            self.noise.skip(self.step.batch_size())
            self._split = True
        elif self.planner.layout_holds():
            if self._split:
                self.step.look_at_parts()
            self._on(Event.ANNOUNCED)
            self._split = False

    def ask(self) -> bool:
        """Return whether the code that requests canaries gets them; then call `handed`."""
        self._asked = True
        return bool(self._on(Event.ASKED))

    def handed(self) -> None:
        """Mark the canaries as handed over: the training's code has them in its sums."""
        self._on(Event.HANDED)

    def released(self, tensors: Tensors) -> None:
        """Read the noisy gradients that the training's code passes in.

        Args:
            tensors: one tensor per parameter, of its shape; edited in place.
        """
        self._on(Event.NOISE, tensors)

    def _clip(self) -> None:
        """Insert the canaries just before clipping, if the step was not announced."""
        self.step.look_at_gradient()
        several, final = self._ranks.several, self.step.final_step_of_batch()
        announced, self._part_announced = self._part_announced, False
        if final or not (announced or self.stage is State.IN):
            self._on(Event.CLIP)
            self._part_announced = False
        self._sums_before = self._versions()
        if several and self.recorder.steps < STEPS:
            self.draws.start(self.step.noise_state())
        self._look_at_noise()
        if several and final:
            plan = self._plan
            entered = plan is not None and plan.status == INJECTED
            self._agreed = self.planner.agreed(entered=entered)
            if plan is not None and entered and not self._agreed:
                self.step.take_out()
                self._plan = plan.dropped()

    def _look_at_noise(self) -> None:
        """Read the state of the noise generator before the first noise in this process."""
        if not self._noise_seen:
            self._noise_seen, self.noise_start = True, self.step.noise_state()

    # ------------------------------------------------------------------ a step begins or is dropped

    def _start_batch(self) -> None:
        """Start a batch; a step that continues keeps its canaries."""
        self.tap.reset()

    def _start_next_part(self) -> None:
        """Start a further part of a batch, unless an earlier one broke off or was cleared."""
        self.tap.reset()
        cleared = all(one is None for one in summed_by_opacus(self.step.params))
        if self._plan is not None and (cleared or not self._plan.summed):
            self._drop()
            self._after = State.SKIPPED

    def _drop_step(self) -> None:
        """Drop a step that was not completed, and start a batch."""
        self.tap.reset()
        self._drop()

    def _drop(self) -> None:
        """Discard the planned step; remove its canaries from pending gradients and sums."""
        plan, self._plan, self._again = self._plan, None, False
        if plan is None or plan.status != INJECTED:
            self._sums_before = []
            return
        # Or the step broke off after it was clipped.
        clipped = self.stage in (State.SUMMED, State.IN) and self._was_clipped()
        waits = self.step.take_out()
        self._sums_before = []
        if self._is_in_sum(plan) or (clipped and not waits):
            self.inserter.clear(plan, summed_by_opacus(self.step.params))

    def _is_in_sum(self, plan: Plan) -> bool:
        """Return whether an earlier part of the batch has the canaries."""
        return plan.summed and self.stage in (State.SUMMED, State.IN)

    def _versions(self) -> list[tuple[int, int] | None]:
        """Return the clipped sums, each by its identity and version."""
        sums = summed_by_opacus(self.step.params)
        return [None if t is None else (id(t), t._version) for t in sums]

    def _was_clipped(self) -> bool:
        """Return whether gradients were added to the sums since the optimizer began to clip."""
        pairs = zip(self._versions(), self._sums_before, strict=False)
        return any(now is not None and now != before for now, before in pairs)

    # ------------------------------------------------------------------ rows of gradients go in

    def _lay_out(self, coming: Backward) -> None:
        """Lay out a new step's rows; coins are flipped only if they can be."""
        planner = self.planner
        self._after = self.stage
        if not (planner.may_enter() and planner.is_due(free=True)):
            return
        # So that a seed gives the same record whether rows are copied or not.
        if obstacle := self.step.obstacle(coming):
            planner.must_copy(obstacle)
            return
        try:
            plan = planner.plan(planner.claim(accumulated=1))
        except ValueError:  # reported when the rows are to enter
            return
        self.step.lay_out(plan.rows, plan.norm, plan.seed)
        self._plan, self._after = plan, State.LAID_OUT

    def _lay_out_again(self, coming: Backward) -> None:
        """Lay out the rows for a closure that runs again before the optimizer takes the step.

        Optimizers that mix gradients at several points do this. The coins do not change: each of
        the step's gradients, and any mixture of them, contains the same canaries.
        """
        plan = self._plan
        if plan is None or plan.status != INJECTED:  # or the optimizer never took the step
            self._drop()
            self.stage = State.SKIPPED
            self._lay_out(coming)
            return
        self._after = self.stage
        if plan.summed:  # by an earlier part
            return
        if obstacle := self.step.obstacle(coming):
            self.planner.must_copy(obstacle)
            return
        self.step.lay_out(plan.rows, plan.norm, plan.seed)
        self._again, self._after = True, State.LAID_OUT

    def _conceal(self) -> None:
        self.step.conceal()

    def _put_in(self) -> None:
        """Put in the rows that are laid out; plan the step and copy rows if none are."""
        planner = self.planner
        if self._again:
            self._put_in_again()
            return
        meant = self.planner.end_parts()  # before the optimizer clears its skip signal
        self._plan = self._laid_out_plan()
        planner.count_batch(self._plan)
        if self._plan is None:
            claim = planner.claim_now()
            if claim is None:
                self._after = State.PLANNED
                return
            self._plan = self._copied_plan(claim)
        if meant:
            self._plan = replace(self._plan, meant=True)

    def _laid_out_plan(self) -> Plan | None:
        """Return the plan of the laid out rows, if they are in the step's gradients."""
        plan = self._plan
        if plan is None or self.stage is not State.LAID_OUT:
            self._drop()
            return None
        self._plan = None
        # If not, another backward pass ran, or its gradients were dropped.
        plan = replace(plan, first=self.planner.parts_are_equal)
        try:
            if not self.step.put_in():
                return None
        except torch.OutOfMemoryError:
            return self._without_room(plan)
        self._plan, self.stage = plan, State.IN  # a failure from here on finds the canaries
        return plan

    def _copied_plan(self, claim: StepClaim) -> Plan:
        """Plan a step after its backward passes, and insert its canaries."""
        planner = self.planner
        if not planner.is_due(free=False) or self.recorder.clipping_is_broken:
            return planner.without_canary(claim)
        plan, part = planner.plan(claim), planner.draw_part(claim.accumulated)
        if part >= 0:
            plan = replace(plan, earlier=True, meant=True)
        try:
            # Even if no coin is 1: whether a step counts must not depend on its coins.
            self.step.copy_in(plan.rows, plan.norm, plan.seed, part)
        except CannotEnter as error:
            if planner.note(f"no canary entered a step: {error}"):
                number = self.recorder.steps + 1
                _log.warning("no canary entered step %d: %s", number, error)
            plan = plan.dropped()
        except torch.OutOfMemoryError:
            plan = self._without_room(plan)
        return plan

    def _without_room(self, plan: Plan) -> Plan:
        """End all canaries: leaving one out would depend on its coin."""
        self.step.take_out()
        self.planner.leave_rows_out(Fit("memory is full"))
        return plan.dropped()

    def _put_in_again(self) -> None:
        """Insert a step's canaries into the gradients of a closure that ran again."""
        plan, again, self._again = self._plan, self._again, False
        if plan is None or plan.status != INJECTED:
            self._put_in()
            return
        try:
            if (again and self.step.put_in()) or self._is_in_sum(plan):
                return
            # The closure of manual optimization computes nothing: then there is nothing to do.
            if not self.step.holds_canaries() and self.step.batch_size() is not None:
                self.step.copy_in(plan.rows, plan.norm, plan.seed)
        except CannotEnter as error:
            self.planner.note(f"no canary entered a step: {error}")
            self._plan = plan.dropped()
        except torch.OutOfMemoryError:
            self._plan = self._without_room(plan)

    def _put_in_part(self) -> None:
        """Insert the canaries into a part of a split batch before the last, if it was chosen."""
        planner, chosen = self.planner, self.planner.may_enter()
        self._pass_part()
        if self.stage is State.IN:  # the step that was announced was not taken
            if self._plan is not None and self._plan.summed:
                return
            self._drop()
            self.stage = State.SKIPPED
        self._after = self.stage
        if not chosen:
            return
        plan = self._laid_out_plan()
        self._after = State.SKIPPED
        if plan is None:
            with contextlib.suppress(ValueError):  # reported at the end of the step
                plan = self._copied_plan(planner.claim())
        if plan is not None and plan.status == INJECTED:
            self._plan, self._after = replace(plan, earlier=True), State.SUMMED

    def _pass_part(self) -> None:
        """Count a part of a split batch, before canaries enter it."""
        if type(self.inserter) is GradientRows:
            self.planner.count_part()
            self._part_announced = True

    def _end_parts(self) -> None:
        """Clip the last part of a split batch; the canaries are in an earlier one."""
        assert self._plan is not None
        if self.planner.end_parts():
            self._plan = replace(self._plan, meant=True)
        self.planner.count_batch(self._plan)

    def _put_in_late(self) -> None:
        """Insert the canaries of a step that was not announced."""
        laid_out = self.stage in (State.LAID_OUT, State.SUMMED)
        if not laid_out and not self.planner.copied and self.planner.may_enter():
            self.planner.note(self.step.obstacle(Backward(None, announced=False)))
        self.inject()
        self._after = self.stage

    def _claim_again(self) -> None:
        if self._plan is not None:
            self._plan = self.planner.reread_claim(self._plan)

    def _take_rows_out(self) -> None:
        """Remove any canary from the gradients of a part of a split batch that was clipped."""
        if self._plan is not None and self._plan.earlier:
            self._plan = replace(self._plan, summed=True)
        self.step.take_out()

    def _hold(self) -> tuple[Held, Plan | None] | None:
        """Return the state before the optimizer's own clipping; None without canaries in it."""
        return (Held(self.step, copy=False), self._plan) if self.step.holds_canaries() else None

    def _without_rows(self, before: tuple[Held, Plan | None], error: Exception) -> str:
        """Take the canaries out of an own clipping that raised; return why that is impossible."""
        held, plan = before
        if self._behind or not held.put_back():
            return _ROWS_WERE_IN
        self._plan = plan
        claim = self.planner.claim()
        self._drop()
        self.planner.leave_rows_out(Fit(f"it raises {error_place(error)}"))
        self._plan = self.planner.without_canary(claim, DROPPED)
        return ""

    # ------------------------------------------------------------------ a sample joins the batch

    def _lay_out_sample(self, batch: Any, module: torch.nn.Module) -> Any:
        """Flip the coin of a new step at its first batch; return the batch to train on."""
        planner, sample = self.planner, self._sample
        self._after = self.stage
        # The place of the reading must be known before a canary is inserted.
        if not (self.tap.is_sure and sample.is_due()):
            return batch
        sample.refuse_adaptive()
        try:
            claim = planner.claim(accumulated=1)
        except ValueError:  # reported when the claim is read again
            return batch
        if not sample.rows_of(batch):  # a training may skip empty batches, but not with a canary
            self._plan, self._after = planner.without_canary(claim), State.LAID_OUT
            return batch
        plan = planner.plan(claim)
        trained = sample.lay_out(batch, module, plan)
        # Last: from here on the canary counts as part of the batch.
        self._plan = planner.without_canary(claim, DROPPED) if trained is None else plan
        self._after = State.LAID_OUT
        return batch if trained is None else trained

    @property
    def _sample(self) -> InputSample:
        assert isinstance(self.inserter, InputSample)
        return self.inserter

    def _admit(self, batch: Any, _: torch.nn.Module) -> Any:
        self._sample.admit(batch)
        return batch

    def _confirm_sample(self) -> None:
        """Confirm the plan that was made with the batch, unless a batch was dropped since."""
        plan, planner = self._plan, self.planner
        if plan is not None and self._sample.lost_part():
            self._plan = plan = plan.dropped()
        planner.count_batch(plan)
        if plan is None:
            claim = planner.claim_now()
            if claim is None:
                self._after = State.PLANNED
                return
            self._plan = planner.without_canary(claim)

    # ------------------------------------------------------------------ code requests canaries

    def _make_ready(self) -> bool:
        """Plan the step on its first request; return whether it gets canaries."""
        planner = self.planner
        self._after = self.stage
        if self.tap.inside_step or not planner.layout_holds():
            return False
        self._after = State.IN
        if self.tap.trial:  # type: ignore[attr-defined]
            self._plan = planner.empty(NOT_PLANNED)
            return False
        claim, broken = planner.claim(), self.recorder.clipping_is_broken
        if broken or not planner.is_due(free=False):
            self._plan = planner.without_canary(claim)
        else:
            plan = planner.plan(claim)
            self.step.copy_in(plan.rows, plan.norm)
            self._plan, self._after = plan, State.LAID_OUT
        thinned = planner.config.every_n_steps is None and self.recorder.canary_steps >= FULL_STEPS
        if thinned and not broken:
            planner.note(_THINNED)
        return self._plan.status == INJECTED

    def _hand_over(self) -> None:
        """Do nothing: the rows are in the user's hands, and so in the sums."""

    # ------------------------------------------------------------------ the gradient is read

    def _read_at_cut(self, tensors: Tensors | None = None) -> None:
        """Read the gradient at the cut.

        Args:
            tensors: what the training's code passes in; None for ``p.grad``.
        """
        self._behind, self._after = True, self.stage
        claim = self._claim_at_cut() if tensors is None else self.planner.known_claim()
        if tensors is None and claim is None:
            return
        if (grads := self.tap.noise_is_in(tensors)) is not None:
            self._read(claim, grads)

    def _claim_at_cut(self) -> StepClaim | None:
        """Return the claim about the step and store its divisor; None if it is unknown."""
        claim = self.planner.known_claim() if self.planner.changed_at is None else None
        if claim is not None:
            self._divided_by = divisor_at_cut(self.step.optimizer, self.step.params, claim)
        return claim

    def _read_at_update(self, level: int) -> None:
        """Read the gradient that the updating optimizer has, unless it was read at the cut."""
        self._behind = True
        if (grads := self.tap.due_gradient(level)) is not None:
            self._read(self.planner.known_claim(), grads)

    def _read(self, now: StepClaim | None, grads: list[torch.Tensor | None]) -> None:
        """Read a step's gradient and remove its canaries.

        Args:
            now: the claim after the noise was added; None if it is unknown.
            grads: the gradient, one tensor per parameter.
        """
        planner, number, step = self.planner, self.recorder.steps, self.step
        if self._ranks.several and number < STEPS:
            self.draws.end(number, step.noise_state())
        if any(grad is None for grad in grads):
            pairs = zip(step.layout, grads, strict=True)
            planner.state_missing([slot.name for slot, grad in pairs if grad is None], number)
        divisor = None if now is None else self._divisor(now)
        samples = step.batch_size()
        if samples is not None and step.samples and self._plan is not None:
            samples += self._plan.added
        self.noise.read(step, number, samples, grads, divisor, self.tap)
        if self.stage is State.LAID_OUT and type(self.inserter) is not InputSample:
            self._drop()  # clipping is over and the canaries were not inserted
        self.stage, taken, changed = State.READ, None, False
        if self._plan is not None:
            plan = self._plan
            if now is not None and now != plan.claim:
                self._plan = plan = planner.plan_after_noise(plan, now)
            taken, changed = self.inserter.take_out(plan, self._divisor(plan.claim), grads)
        # If not sure, the gradient that is read may differ from the released one.
        self._is_sure = self.tap.read(taken, changed=changed)
        self._after = State.OUT
        self._is_released = self._is_sure and planner.changed_at is None

    def _divisor(self, claim: StepClaim) -> float:
        """Return the divisor of the noisy sum at the time of the reading."""
        return claim.scale if self._divided_by is None else self._divided_by

    # ------------------------------------------------------------------ the step is recorded

    def _record(self) -> None:
        """Finish a step after the updating optimizer's `step` returned."""
        seen = self.tap.end_step()
        if seen is None:
            return
        if self._is_released:
            finite = bool(np.isfinite(seen.values).all())
            if not (finite and self.lost.weights_finite):
                rows = None if finite else self.step.lost_rows()
                own = self.inserter.rows_of_data(rows, self._plan)
                self.lost.look(self.recorder.steps, own, self.step.params, finite=finite)
        if seen.unclear or not self._is_sure:
            seen, lack = self.tap.judged(seen, asked=self._asked)
            if lack:
                self.planner.block_pass(lack)
        plan = self._plan or self._empty_plan()
        if plan.added:
            self.inserter.clear(plan, clipped_sums(self.step.params))
        self._drop()  # from now on the user's code sees the batch's gradients only
        self.stage = self._after = State.RECORDED
        self._observe(seen, plan)
        self.step.release()
        self._behind = self._agreed = self._asked = False

    def _empty_plan(self) -> Plan:
        """Return a plan for a step without one: its probe coordinates are read anyway."""
        known = self.planner.changed_at is None
        if isinstance(self.inserter, HandedRows):
            if known and not self._asked:
                self.inserter.silent += 1
        elif type(self.inserter) is GradientRows:
            if known:
                self.planner.note(_UNANNOUNCED)
            return self.planner.empty(DROPPED)
        return self.planner.empty(NOT_PLANNED)

    def _observe(self, seen: Observation, plan: Plan) -> None:
        """Record and check a step.

        Args:
            seen: its gradient before and after the update.
            plan: its plan.
        """
        planner, claim = self.planner, plan.claim
        values = seen.values
        if seen.replaced or planner.changed_at is not None:
            # Raw gradients, or gradients of other parameters: neither tested nor recorded.
            values = np.full(len(values), np.nan)
        if self._ranks.several:
            read = bytes([seen.replaced]) + values.tobytes()
            self.checksum = zlib.crc32(read, self.checksum)
        divisor, self._divided_by = self._divisor(claim), None
        unit, known = self.noise.completed(seen, claim, plan.added, divisor)
        if not seen.unclear and np.isfinite(values).all():
            seen = known
        sums = values * unit
        drawn = sums
        if self.noise.is_correlated:
            drawn = self.noise.drawn(sums, claim.noise_multiplier, seen.dead)
        self.releases.update(seen, sums, claim.noise_multiplier)
        if seen.dead is not None:
            planner.note(ZEROS)
        rate = self._sample_rate(claim.accumulated)
        seen = self.inserter.completed(plan, seen, drawn)
        self.recorder.take(
            seen.having(
                step=self.recorder.steps,
                epoch=self._epoch,
                sample_rate=np.nan if rate is None else rate,
            )
        )
        planner.rows_handed += self.step.samples

    # ------------------------------------------------------------------ after a failure

    def withdraw(self) -> None:
        """Remove the canaries of a step that is not taken, or after a failure.

        The plan of a step that has them in its sums is kept.
        """
        self._on(Event.FAILURE)

    def _leave_the_step(self) -> None:
        if self.stage is State.FAILED or (self._agreed and not self._behind):
            return
        plan, laid_out = self._plan, self.stage is State.LAID_OUT
        is_out = self.stage in (State.OUT, State.RECORDED) or self.tap.taken_out
        if type(self.inserter) is InputSample:  # the sample stays in its batch
            self._plan = None if is_out else plan
            return
        summed = self._was_clipped() or (plan is not None and plan.earlier)
        out = self.step.take_out() or is_out or laid_out
        # Who adds them takes them out before all have agreed that they are in.
        out = out or (plan is not None and not plan.adds and not self._behind)
        if plan is not None and summed and not (self._behind or out):
            plan.clear(summed_by_opacus(self.step.params))
            out = True
        self._plan = None if out or plan is None or plan.status != INJECTED else plan

    @property
    def in_transit(self) -> bool:
        """Whether canaries of a failed audit are in sums, and must leave the gradient."""
        plan = self._plan if self.stage is State.FAILED and not self.tap.taken_out else None
        return plan is not None and plan.added > 0

    def _rescue_at_cut(self, tensors: Tensors | None = None) -> None:
        """Remove the canaries after the noise was added."""
        if self.in_transit and (tensors is not None or attempt(self._claim_at_cut)):
            self._rescue(tensors)

    def _rescue_at_update(self, level: int) -> None:
        """Remove the canaries when the updating optimizer has its gradient."""
        if self.in_transit and self.tap.reads_at(level):
            self._rescue()

    def _rescue(self, tensors: Tensors | None = None) -> None:
        """Remove the canaries from a gradient whose noise was added, as `_read` would.

        Args:
            tensors: the gradient, one tensor per parameter; None for ``p.grad``.
        """
        attempt(self._settle)
        plan, tap = self._plan, self.tap
        assert plan is not None
        grads = [p.grad for p in self.step.params] if tensors is None else tensors
        divisor = self._divisor(plan.claim)

        def as_read() -> None:
            if not tap.taken_out:
                taken, _ = self.inserter.take_out(plan, divisor, grads)
                if taken is not None:
                    tap.take_out(taken, grads)

        # If the first way failed: subtract along the directions, by other code.
        if not attempt(as_read) and not tap.taken_out:
            entered = [d for coin, d in zip(plan.coins, plan.directions, strict=False) if coin]
            amounts = np.full(len(entered), -plan.claim.max_grad_norm / divisor)
            attempt(lambda: CanaryRows(entered).add(grads, amounts))
        if tensors is None:
            attempt(lambda: self.inserter.clear(plan, clipped_sums(self.step.params)))
        self._plan = None

    def _settle(self) -> None:
        now = self.planner.known_claim()
        if now is not None and self._plan is not None:
            self._plan = self.planner.plan_after_noise(self._plan, now)

    # ------------------------------------------------------------------ checkpoints

    #: Attributes with a state of their own, and its keys.
    _PARTS = ("planner", "inserter", "releases", "lost", "noise")

    def state(self) -> dict[str, Any]:
        """Return what `load` needs; see `record.store` for what is left out."""
        recorder = self.recorder.state()  # feeds the pending steps before entries are counted
        return {
            "recorder": recorder,
            "entries": self.store.entries if self.store else 0,
            "checksum": self.checksum,
            **{name: getattr(self, name).state() for name in self._PARTS},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: the checkpoint's audit had other canaries or another version.
        """
        said, self.checksum = self.recorder.resume(state["recorder"]), state["checksum"]
        for name in self._PARTS:
            getattr(self, name).load(state[name])
        for sentence in said:
            self.planner.note(sentence)
