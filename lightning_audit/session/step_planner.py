"""What enters each step of a private optimizer: when canaries are due, their coins, their claim."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import numpy as np

from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.placement import Placement, place
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep, StepClaim
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED
from lightning_audit.session.batch_parts import PartChoice, draw_part
from lightning_audit.session.coordinates import Coordinates
from lightning_audit.session.noise_watch import NoiseWatch
from lightning_audit.session.ranks import Ranks
from lightning_audit.session.recorder import Recorder
from lightning_audit.session.step_plan import StepPlan
from lightning_audit.taps.gradient_tap import GradientTap

_log = logging.getLogger(__name__)

_UNANNOUNCED = (
    "the optimizer was stepped without Lightning's on_before_optimizer_step, so no canary could "
    "enter; in manual optimization step what self.optimizers() returns"
)
_ONE_FAILED = (
    "process {} could not add the canaries of step {} ({}); the other processes count on them, so "
    "the training cannot go on: train in one process (devices=1) to audit"
)

#: Where rows must be copied and the user does not say how often: steps that all carry canaries,
#: enough for the power that a pass needs at common noise multipliers, and one in so many later.
FULL_STEPS, THINNED = 500, 10


class StepPlanner:
    """Plans the steps of one private optimizer, and puts their canaries in.

    Args:
        step: the adapter.
        config: what to audit, and how.
        rng: the audit's own generator.
        ranks: the processes that train together.
    """

    recorder: Recorder
    _coordinates: Coordinates
    _tap: GradientTap
    _noise: NoiseWatch
    #: Number of canaries of a step.
    _canary_count: int
    #: Of the same seed, and so the same in every process.
    _key: int

    def __init__(
        self,
        step: DPSGDStep,
        config: AuditConfig,
        rng: np.random.Generator,
        ranks: Ranks,
    ) -> None:
        self.step = step
        self._ranks = ranks
        self._config = config
        self._rng = rng
        self._placement = self._place()
        #: Whether a process had to copy rows; until all have said so, one may have.
        self.copied, self.anyone_copies = False, True
        self._canary_steps = 0
        self.notes = list(self._placement.skipped)
        #: Sizes are kept only where the loader's type does not tell how it samples.
        self.track_batch_sizes = False
        self.batch_sizes: list[int] = []
        self.missing: list[str] = []
        self._changed_at: int | None = None
        self._plan: StepPlan | None = None
        #: The plan whose canaries were put in, until the step is taken; a closure may run again.
        self._entered: StepPlan | None = None
        #: The coming step's plan once its canaries are in an earlier part of a split batch.
        self._earlier: StepPlan | None = None
        self._parts, self._part_announced = PartChoice(), False
        # Without a claim nothing is tested: noise multiplier 0 until one was read.
        self._last_claim = StepClaim(noise_multiplier=0.0, max_grad_norm=1.0, scale=1.0)

    def _place(self) -> Placement:
        """Where canaries lie in the gradient beforehand."""
        rows = [c for c in self._config.canaries if isinstance(c, GradientCanary)]
        return place(rows, self.step.layout, self._rng)

    def _withdraw(self) -> None:
        """Give up a step that was planned, and leave no canary in the gradients that wait."""
        if self._plan is not None and self._plan.status == INJECTED:
            self.step.withdraw()
        self._plan = self._entered = None

    def prepare(self, coming: Backward) -> None:
        """Before a backward pass: lay out the canaries, where that is possible."""
        if self._tap.inside_step:
            return
        again = self._runs_again
        if self._plan is not None and not self._plan.prepared and not again:
            self._withdraw()  # a step that broke off before the optimizer took it
        if again is None and (self._plan is not None or not self._may_inject()):
            return
        if again is None and not self._is_due(free=True):
            return
        # The coins are not flipped before it is known whether they are used: one seed gives one
        # record, copied or not.
        if obstacle := self.step.obstacle(coming):
            self._note(obstacle)
            self.copied = True
            return
        try:
            claim = self._claim(accumulated=1)
        except ValueError:  # said where the canaries would go in
            return
        plan = again or self._flip(claim)
        self.step.prepare(plan.chosen, self._norm(claim))
        self._plan = replace(plan, prepared=True)

    def conceal(self) -> None:
        """After a backward pass: what was laid out is seen by nobody until it is put in."""
        if self._plan is not None and self._plan.prepared:
            self.step.conceal()

    def inject(self) -> None:
        """Flip the coins of the coming step and put the canaries in, before clipping."""
        # A closure that runs again inside the step, or a physical batch of a larger logical one.
        if self._tap.inside_step:
            return
        if not self.step.final_step_of_batch():
            self._enter_earlier()
            self._noise.skip(self.step)
            self._parts.passed()
            self._part_announced = True
            return
        self._parts.ended()
        if not self._layout_holds():
            return
        if self._runs_again is not None:
            self._enter_again()
            return
        self.step.look_at_parts()
        plan, self._earlier = self._earlier, None
        plan = plan or self._confirmed()
        size = self.step.batch_size() if self.track_batch_sizes else None
        if size is not None:
            own = plan is not None and not plan.earlier
            self.batch_sizes.append(size - (int(plan.coins.sum()) if plan and own else 0))
        self._plan = plan
        try:
            claim = self._last_claim = self._claim()
        except ValueError as error:
            _log.warning("nothing can be claimed of step %d: %s", self.recorder.steps, error)
            return
        if plan is not None:
            # Of several backward passes the first one was prepared.
            first = claim.accumulated > 1 and self._parts_are_equal
            self._plan = replace(plan, claim=claim, earlier=plan.earlier or first)
        else:
            self._plan = self._late(claim)
        self._entered = self._plan

    @property
    def _runs_again(self) -> StepPlan | None:
        """The plan of a step whose closure runs again before the optimizer takes it.

        Optimizers that mix gradients of several places run it so. The step's coins stay: each of
        its gradients holds the same canaries, and any mixture of them too.
        """
        entered = self._entered
        return entered if entered is not None and entered.status == INJECTED else None

    def _enter_again(self) -> None:
        """Put the canaries of a step into what its closure computed when it ran again."""
        plan = self._plan
        if plan is not None and plan.prepared:
            self._plan = plan = replace(plan, prepared=False)
            if self.step.confirm():
                return
        # A run that computed nothing, as the closure of manual optimization, leaves nothing to do.
        computed = not self.step.holds_canaries() and self.step.batch_size() is not None
        if plan is not None and computed:
            try:
                self.step.inject(plan.chosen, self._norm(plan.claim))
            except (ValueError, RuntimeError) as error:
                self._note(f"no canary entered a step: {error}")
                self._plan = replace(plan, status=DROPPED)

    def _enter_earlier(self) -> None:
        """Put the canaries into a part of a split batch that is not the last, if it is chosen."""
        if not self._may_inject():
            return
        plan = self._confirmed()
        if plan is None:
            with contextlib.suppress(ValueError):  # said where the step ends
                plan = self._late(self._claim())
        if plan is not None and plan.status == INJECTED:
            self._earlier = replace(plan, earlier=True)

    def end_part(self) -> None:
        """When a part of a split batch is clipped: leave no canary in its gradients."""
        if self._plan is None:
            self.step.withdraw()

    def _take_back(self) -> None:
        """Take the canaries out of the sum of a split batch that is not completed."""
        plan, self._earlier = self._earlier, None
        if plan is not None:
            plan.take_out([getattr(p, "summed_grad", None) for p in self.step.params])

    def _late(self, claim: StepClaim) -> StepPlan:
        """Put the canaries into a step whose backward passes are done."""
        if not self._is_due(free=False) or self.recorder.clipping_is_broken:
            return self._without_canary(claim)
        number, plan, part = self.recorder.steps, self._flip(claim), -1
        if claim.accumulated > 1 and self._parts_are_equal:
            part = draw_part(claim.accumulated, self._rng)
            plan = replace(plan, earlier=part >= 0)
        try:
            # Also where all coins say "out": whether a step counts must not depend on its coins.
            self.step.inject(plan.chosen, self._norm(claim), part)
        except (ValueError, RuntimeError) as error:
            if self._ranks.several:
                raise RuntimeError(_ONE_FAILED.format(self._ranks.rank, number, error)) from error
            if self._note(f"no canary entered a step: {error}"):
                _log.warning("no canary entered step %d: %s", number, error)
            plan = replace(plan, status=DROPPED)
        return plan

    def _without_canary(self, claim: StepClaim, status: int = NOT_PLANNED) -> StepPlan:
        return StepPlan(claim, np.zeros(self._canary_count), (), status)

    def inject_late(self) -> None:
        """As `inject`, just before clipping, for a step that nobody announced."""
        announced, self._part_announced = self._part_announced, False
        if announced and not self.step.final_step_of_batch():
            return
        if self._plan is None and self._may_inject():
            self._note(self.step.obstacle(Backward(None, announced=False)))
        if self._plan is None or self._plan.prepared:
            self.inject()
        else:
            self._claim_again()

    def _claim_again(self) -> None:
        """Just before clipping: hooks of the user's own may have set this step's noise by now."""
        if self._plan is not None and self.step.final_step_of_batch():
            with contextlib.suppress(ValueError):
                self._plan = replace(self._plan, claim=self._claim())

    def _may_inject(self) -> bool:
        """Whether canaries may enter the part of the batch that is clipped next."""
        chosen = self._earlier is None and (
            self.step.final_step_of_batch()
            or (self._parts_are_equal and self._parts.chosen(self._rng))
        )
        return chosen and self._layout_holds() and not self.recorder.clipping_is_broken

    @property
    def _parts_are_equal(self) -> bool:
        """Whether canaries may enter any part of a step.

        Several processes do not know of each other's parts, and of adaptive clipping the norm that
        an earlier part was clipped to is not that of the step.
        """
        return not (self._ranks.several or self.step.adapts_its_norm)

    def _flip(self, claim: StepClaim) -> StepPlan:
        """Draw the coins and directions of a step."""
        ranks, number = self._ranks, self.recorder.steps
        rng = ranks.coins(self._key, number) if ranks.several else self._rng
        coins = self._toss(rng)
        directions = self._placement.draw(rng)
        located = self._coordinates.locate(directions)
        return StepPlan(claim, coins, directions, INJECTED, located, adds=ranks.adds(number))

    def _toss(self, rng: np.random.Generator) -> FloatArray:
        """The coins of a step, 1 for in, ``[k]``."""
        return rng.integers(0, 2, size=self._canary_count).astype(np.float64)

    def _norm(self, claim: StepClaim) -> float:
        return self._config.oversize * claim.max_grad_norm

    def _is_due(self, *, free: bool) -> bool:
        """Whether canaries enter this step, if their rows cost a copy or are free of one."""
        every = self._config.every_n_steps
        if self._ranks.several:  # all must decide alike, although rows may be free in some only
            free = not self.anyone_copies
        if every is None:
            every = 1 if free or self._canary_steps < FULL_STEPS else THINNED
        return self.recorder.steps % every == 0

    def _confirmed(self) -> StepPlan | None:
        """The plan whose rows were laid out beforehand, if they are in the step's gradients."""
        plan = self._plan
        if plan is None or not plan.prepared:
            self._withdraw()
            return None
        self._plan = None
        # If not, the backward pass was another one than it seemed, or its gradients were dropped.
        return replace(plan, prepared=False) if self.step.confirm() else None

    def _layout_holds(self) -> bool:
        """Whether the same parameters are trained as at the start; if not, nothing is touched."""
        if self._changed_at is None and not self.step.same_params():
            self._changed_at = self.recorder.steps
            self.missing.append(
                f"the set of trained parameters changed at step {self._changed_at}; later steps "
                "are not audited: freeze before the training starts"
            )
        return self._changed_at is None

    def _claim(self, accumulated: int | None = None) -> StepClaim:
        """What is claimed of the coming step: by the optimizer, unless stated otherwise."""
        return self._config.claim_of_step(self.step.claim(accumulated))

    def _note(self, sentence: str) -> bool:
        """Add a remark, once; whether it is new."""
        new = sentence not in self.notes
        if new:
            self.notes.append(sentence)
        return new

    def _unplanned(self) -> StepPlan:
        """For a step that came without the hook that injects: witnesses are read all the same."""
        if self._changed_at is None:
            self._note(_UNANNOUNCED)
        return self._empty(DROPPED)

    def _empty(self, status: int) -> StepPlan:
        """The plan of a step that no canary enters, by what is claimed now."""
        # No per-sample gradients where the optimizer was stepped around Opacus.
        with contextlib.suppress(ValueError):
            self._last_claim = self._claim()
        return self._without_canary(self._last_claim, status)

    def _lack(self, sentence: str) -> None:
        """Add what stands in the way of a pass, once."""
        if sentence not in self.missing:
            self.missing.append(sentence)
