"""What a session's steps are planned by: claims, coins, directions, and which steps are due."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_audit.canaries.placement import Placement
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED
from lightning_audit.session.coordinates import Coordinates
from lightning_audit.session.ranks import Ranks
from lightning_audit.session.recorder import Recorder
from lightning_audit.session.steps import PlannedStep
from lightning_audit.verdict.pass_blockers import LAYOUT_CHANGED

_log = logging.getLogger(__name__)

#: Where rows must be copied and the user does not say how often: steps that all carry canaries,
#: enough for the power that a pass needs at common noise multipliers, and one in so many later.
FULL_STEPS, THINNED = 500, 10

#: One step in so many has its canaries among the rows of the data: to change places takes time.
_AMONG = 5
#: One step in so many has none, once a short training would be over: code that is careful where a
#: canary is in a batch shows there what it does otherwise.
_WITHOUT, _FROM = 20, 200
#: Least norm of the one canary of a step that is shorter than the others, over the clipping norm.
_SHORTEST = 1.5

_NOT_IN_ALL = "no canary entered a step: it did not enter in every process"
_ALONE = "another process could no longer be reached, so that no canary entered later steps"


class StepPlanner:
    """Plans the steps of one private optimizer, for the source of its canaries.

    Args:
        step: the adapter.
        config: what to audit, and how.
        placement: where canaries lie in the gradient.
        coordinates: of what is read.
        rng: the audit's own generator.
        ranks: the processes that train together.
        recorder: knows how many steps there were, and whether clipping is broken.
        track_batch_sizes: whether sizes are kept, as where the loader's type does not tell how it
            samples.
    """

    def __init__(
        self,
        step: DPSGDStep,
        config: AuditConfig,
        placement: Placement,
        coordinates: Coordinates,
        rng: np.random.Generator,
        ranks: Ranks,
        recorder: Recorder,
        *,
        track_batch_sizes: bool = False,
    ) -> None:
        self.step = step
        self.config = config
        self.coordinates = coordinates
        self.ranks = ranks
        self.recorder = recorder
        self.rng = rng
        self._placement = placement
        #: Of the same seed, and so the same in every process.
        self._key = int(rng.integers(2**63)) if ranks.several else 0
        #: Of what makes rows look like records; a spawned generator leaves the coins what the seed
        #: makes them.
        self._looks_key = int(rng.spawn(1)[0].integers(2**63))
        #: The coming step; None before it is planned.
        self.plan: PlannedStep | None = None
        #: The plan whose canaries were put in, until the step is taken; a closure may run again.
        self.entered: PlannedStep | None = None
        #: Whether a process had to copy rows; until all have said so, one may have.
        self.copied, self.anyone_copies = False, True
        self.canary_steps = 0
        self.notes = list(placement.skipped)
        self.pass_blockers: list[str] = []
        self.batch_sizes: list[int] = []
        #: Records of all steps so far; None where they are not known of each.
        self.rows_taken: int | None = 0
        #: The smallest oversize of the run's canaries, which went on with another one.
        self.oversize = config.oversize
        self._track = track_batch_sizes
        self.changed_at: int | None = None
        # Without a claim nothing is tested: noise multiplier 0 until one was read.
        self._last_claim = StepClaim(noise_multiplier=0.0, max_grad_norm=1.0, scale=1.0)

    # ------------------------------------------------------------------ the claim

    def claim(self, accumulated: int | None = None) -> StepClaim:
        """What is claimed of the coming step: by the optimizer, unless stated otherwise.

        Raises:
            ValueError: nothing can be claimed of it.
        """
        stated, own = self.step.claim(accumulated), self.config.claim
        if own is None:
            return stated
        batch, coefficients = own.expected_batch_size, own.noise_coefficients
        # Of correlated noise the weight of a step's own draw is a part of that draw's size.
        weight = coefficients[0] if coefficients else 1.0
        return replace(
            stated,
            noise_multiplier=weight * (own.noise_multiplier or stated.noise_multiplier),
            max_grad_norm=own.max_grad_norm or stated.max_grad_norm,
            scale=batch * stated.accumulated if batch else stated.scale,
        )

    def known_claim(self) -> StepClaim | None:
        """As `claim`; None if nothing can be claimed."""
        try:
            return self.claim()
        except ValueError:
            return None

    def claim_now(self) -> StepClaim | None:
        """What is claimed of a step that is about to be clipped; None if that cannot be told."""
        try:
            self._last_claim = self.claim()
        except ValueError as error:
            _log.warning("nothing can be claimed of step %d: %s", self.recorder.steps, error)
            return None
        return self._last_claim

    def claim_again(self) -> None:
        """Just before clipping: hooks of the user's own may have set this step's noise by now."""
        if self.plan is None or not self.step.final_step_of_batch():
            return
        if (claim := self.known_claim()) is not None:
            self._last_claim = claim
            self.plan = replace(self.plan, claim=claim)

    def settle(self, now: StepClaim | None) -> None:
        """Hold the planned step to what is claimed of it when its noise is in, too.

        Modules may change it after the canaries went in. Of two noise multipliers the smaller
        counts, so that raising it for a moment gains nothing.

        Args:
            now: what is claimed by then; None if that cannot be told.
        """
        if self.plan is None or now is None:
            return
        planned = self.plan.claim
        sigma = min(now.noise_multiplier, planned.noise_multiplier)
        if self.step.adapts_its_norm:
            now = replace(now, max_grad_norm=planned.max_grad_norm)
        self.plan = replace(self.plan, claim=replace(now, noise_multiplier=sigma))

    def norm(self, claim: StepClaim) -> float:
        """Norm of a canary's row, in the unit of a per-sample gradient."""
        return self.config.oversize * claim.max_grad_norm

    # ------------------------------------------------------------------ plans

    def flip(self, claim: StepClaim) -> PlannedStep:
        """Draw the coins and directions of a step."""
        ranks, number = self.ranks, self.recorder.steps
        rng = ranks.coins(self._key, number) if ranks.several else self.rng
        coins = self._toss(rng)
        directions = self._placement.draw(rng)
        located = self.coordinates.locate(directions)
        adds = not ranks.several or ranks.adds(number)
        among = self._by_number(0) % _AMONG == 0
        self.step.row_seed = (self._looks_key, number) if among else None
        return PlannedStep(
            claim,
            coins,
            directions,
            INJECTED,
            located,
            adds=adds,
            turn=self._by_number(1),
            shorter=self._shorter(),
        )

    def _by_number(self, what: int) -> int:
        """A random number of the coming step: a resumed run has those of one that never stopped."""
        return hash((self._looks_key, self.recorder.steps, what))

    def chance(self, what: int) -> np.random.Generator:
        """A generator of the coming step's own, for what may depend on its batch.

        The generator of the coins, whose state is in checkpoints, would tell how often it was used.
        """
        return np.random.default_rng((self._looks_key, self.recorder.steps, what))

    def _shorter(self) -> float:
        """Norm of the step's shorter canary over that of the others, log-uniform."""
        drawn = self._by_number(2) % 1000 / 1000.0
        return float(min(_SHORTEST / self.config.oversize, 1.0) ** drawn)

    def _toss(self, rng: np.random.Generator) -> FloatArray:
        """The coins of a step, 1 for in, ``[k]``."""
        header = self.recorder.header
        count, rate = len(header.canaries), header.coin_probability
        if rate == 0.5:
            return rng.integers(0, 2, size=count).astype(np.float64)
        return (rng.random(count) < rate).astype(np.float64)

    def without_canary(self, claim: StepClaim, status: int = NOT_PLANNED) -> PlannedStep:
        """The plan of a step that no canary enters."""
        return PlannedStep(claim, np.zeros(len(self.recorder.header.canaries)), (), status)

    def empty(self, status: int) -> PlannedStep:
        """The plan of a step that no canary enters, by what is claimed now."""
        # No per-sample gradients where the optimizer was stepped around Opacus.
        self._last_claim = self.known_claim() or self._last_claim
        return self.without_canary(self._last_claim, status)

    def is_due(self, *, free: bool) -> bool:
        """Whether canaries enter this step, if their rows cost a copy or are free of one."""
        every = self.config.every_n_steps
        if self.ranks.several:  # all must decide alike, although rows may be free in some only
            free = not self.anyone_copies
        if every is None:
            every = 1 if free or self.canary_steps < FULL_STEPS else THINNED
        number = self.recorder.steps
        without = number >= _FROM and self._by_number(3) % _WITHOUT == 0
        return number % every == 0 and not without

    def withdraw(self) -> None:
        """Give up a step that was planned, and leave no canary in the gradients that wait."""
        if self.plan is not None and self.plan.status == INJECTED:
            self.step.withdraw()
        self.plan = self.entered = None

    def agree(self) -> bool:
        """Before a step is clipped: leave its canaries in if they entered in all processes.

        Returns:
            Whether they are in.
        """
        plan = self.plan
        entered = plan is not None and plan.status == INJECTED
        agreed = self.ranks.agreed(entered=entered)
        if plan is not None and entered and not agreed:
            self.note(_NOT_IN_ALL)
            self.withdraw()
            self.plan = replace(plan, status=DROPPED)
        if not self.ranks.talk:
            self.block_pass(_ALONE)
        return agreed

    # ------------------------------------------------------------------ what is seen meanwhile

    def layout_holds(self) -> bool:
        """Whether the same parameters are trained as at the start; if not, nothing is touched."""
        if self.changed_at is None and not self.step.same_params():
            self.changed_at = self.recorder.steps
            before, now = (
                {id(p): p for p in params} for params in (self.step.params, self.step.trained())
            )
            joined = [str(tuple(p.shape)) for number, p in now.items() if number not in before]
            left = sum(number not in now for number in before)
            what = f"{left} left" if left else ""
            if joined:
                shapes = ", ".join(joined[:5])
                what = f"{len(joined)} joined, without which the audit began (shapes {shapes})"
            self.block_pass(
                f"{LAYOUT_CHANGED} at step {self.changed_at}: {what}; whether later steps clip and "
                "noise them is not audited. Give the optimizer all parameters before the training "
                "starts, and make_private a module that has all layers; to train some later, set "
                "their learning rate to 0 until then"
            )
        return self.changed_at is None

    def count_part(self) -> None:
        """Count the samples of a part of a step that is not its last, before canaries enter it."""
        size = self.step.batch_size()
        if self.rows_taken is not None:
            self.rows_taken = None if size is None else self.rows_taken + size

    def count_batch(self) -> None:
        """Count the planned step's samples, and keep their number where sizes are kept."""
        size, plan = self.step.batch_size(), self.plan
        if size is None:
            self.rows_taken = None
            return
        own = plan is not None and not plan.earlier
        size -= int(plan.coins.sum()) if plan and own else 0
        if self.rows_taken is not None:
            self.rows_taken += size
        if self._track:
            self.batch_sizes.append(size)

    def end_epoch(self) -> None:
        """Forget the size of the epoch's last batch, which is smaller for many loaders."""
        del self.batch_sizes[-1:]

    def note(self, sentence: str) -> bool:
        """Add a remark, once; whether it is new."""
        new = sentence not in self.notes
        if new:
            self.notes.append(sentence)
        return new

    def block_pass(self, sentence: str) -> None:
        """Add what stands in the way of a pass, once."""
        if sentence not in self.pass_blockers:
            self.pass_blockers.append(sentence)

    # ------------------------------------------------------------------ going on

    #: Attributes that a checkpoint holds as they are.
    _KEPT = ("anyone_copies", "canary_steps", "changed_at", "pass_blockers", "notes")

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: the generator of the coins, and no number of samples."""
        coins = self.rng.bit_generator.state
        kept = {name: _copied(getattr(self, name)) for name in self._KEPT}
        return {**kept, "coins": coins, "oversize": self.oversize}

    def load(self, state: dict[str, Any], said: list[str]) -> None:
        """Go on from a checkpoint's state; what was noted since stays.

        Args:
            state: of the planner.
            said: what is to be noted besides.
        """
        since = [*self.notes, *said]
        for name in self._KEPT:
            setattr(self, name, _copied(state[name]))
        for sentence in since:
            self.note(sentence)
        self.rng.bit_generator.state = state["coins"]
        self.oversize = min(self.oversize, state["oversize"])


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
