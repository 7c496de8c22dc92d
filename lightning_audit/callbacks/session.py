"""One private optimizer under audit: coins, injection, observation, record."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_audit.callbacks.coordinates import Coordinates
from lightning_audit.callbacks.plan import StepPlan
from lightning_audit.callbacks.ranks import Ranks
from lightning_audit.callbacks.recorder import Recorder, SeenStep
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.canaries.placement import Placement, place
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.witnesses import LAGS, choose_witnesses
from lightning_audit.claims import PrivacyClaim
from lightning_audit.dpsgd.opacus import innermost
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep, StepClaim
from lightning_audit.dpsgd.tap import GradientTap, Reading
from lightning_audit.layout import FloatArray
from lightning_audit.snapshot import restore
from lightning_audit.store import DROPPED, INJECTED, NOT_PLANNED, ObservationStore, RecordHeader

_log = logging.getLogger(__name__)

_UNANNOUNCED = (
    "the optimizer was stepped without Lightning's on_before_optimizer_step, so no canary could "
    "enter; in manual optimization step what self.optimizers() returns"
)
_UNCLEAR = (
    "the inner optimizer changes p.grad inside its step, so it cannot be told which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)
_ONE_FAILED = (
    "process {} could not add the canaries of step {} ({}); the other processes count on them, so "
    "the training cannot go on: train in one process (devices=1) to audit"
)

#: Where rows must be copied and the user does not say how often: steps that all carry canaries,
#: enough for the power that a pass needs at common noise multipliers, and one in so many later.
FULL_STEPS, THINNED = 500, 10


@dataclass(frozen=True)
class SessionSettings:
    """What the callback's arguments come to.

    Args:
        canaries: the canaries of every audited step.
        oversize: their norm over the clipping norm.
        every_n_steps: canaries enter each n-th step; None for every step, and where rows must be
            copied for every step at first and fewer later.
        significance: probability of a false alarm over the run.
        claim: overrides what the optimizer states.
        signal: largest shift that correct clipping shows in this precision.
    """

    canaries: tuple[GradientCanary | InputCanary, ...]
    oversize: float
    every_n_steps: int | None
    significance: float
    claim: PrivacyClaim | None
    signal: float = 1.0


def gradient_canaries(canaries: Sequence[object]) -> list[GradientCanary]:
    """The canaries that are rows of gradient."""
    return [canary for canary in canaries if isinstance(canary, GradientCanary)]


class AuditSession:
    """Audits the steps of one private optimizer.

    Args:
        step: the adapter.
        settings: what to audit, and how.
        rng: the audit's own generator.
        sample_rate: gives a step's sample rate for its number of accumulated batches, None if
            unknown.
        open_store: opens the record, given its header; None to keep none.
        ranks: the processes that train together; None for this one alone.
    """

    def __init__(
        self,
        step: DPSGDStep,
        settings: SessionSettings,
        rng: np.random.Generator,
        sample_rate: Callable[[int], float | None],
        open_store: Callable[[RecordHeader], ObservationStore] | None,
        ranks: Ranks | None = None,
    ) -> None:
        self.step = step
        self._ranks = ranks or Ranks()
        self._settings = settings
        self._rng = rng
        self._sample_rate = sample_rate
        self._placement = self._place()
        witnesses = choose_witnesses(step.layout, self._placement.support(), rng)
        self._coordinates = Coordinates(witnesses, self._placement)
        header = RecordHeader(
            canaries=self._labels(),
            tensors=tuple(slot.name for slot in step.layout),
            witnesses=witnesses.counts,
            lags=LAGS,
            signal=settings.signal,
        )
        header = self._with_game(header)
        # Of the same seed, and so the same in every process.
        self._key = int(rng.integers(2**63)) if self._ranks.several else 0
        #: Checksum of all that was read; equal in all processes if they share their gradients.
        self.checksum = 0
        #: Whether a process had to copy rows; until all have said so, one may have.
        self.copied, self.anyone_copies = False, True
        store = open_store(header) if open_store else None
        self.recorder = Recorder(header, settings.significance, witnesses, store)
        self._canary_count = len(header.canaries)
        self._canary_steps = 0
        self.notes = list(self._placement.skipped)
        self.epoch = 0
        #: Sizes are kept only where the loader's type does not tell how it samples.
        self.track_batch_sizes = False
        self.batch_sizes: list[int] = []
        self.missing: list[str] = []
        self._changed_at: int | None = None
        self._plan: StepPlan | None = None
        # Without a claim nothing is tested: noise multiplier 0 until one was read.
        self._last_claim = StepClaim(noise_multiplier=0.0, max_grad_norm=1.0, scale=1.0)
        self._tap = self._attach()

    def _place(self) -> Placement:
        """Where canaries lie in the gradient beforehand."""
        return place(gradient_canaries(self._settings.canaries), self.step.layout, self._rng)

    def _labels(self) -> tuple[str, ...]:
        """A short name for each canary of a step."""
        return self._placement.labels

    def _with_game(self, header: RecordHeader) -> RecordHeader:
        """The header, with the coins' probability and the game, where they are not the default."""
        return header

    def _toss(self, rng: np.random.Generator) -> FloatArray:
        """The coins of a step, 1 for in, ``[k]``."""
        return rng.integers(0, 2, size=self._canary_count).astype(np.float64)

    @property
    def oversize(self) -> float:
        """Norm of the canaries over the clipping norm."""
        return self._settings.oversize

    @property
    def monitor(self) -> AuditMonitor:
        """The checks after the last step."""
        return self.recorder.monitor

    @property
    def store(self) -> ObservationStore | None:
        """The record on disk, if one is kept."""
        return self.recorder.store

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs to go on with this run, as plain data and arrays."""
        recorder = self.recorder.state()
        return {
            "recorder": recorder,
            "coins": self._rng.bit_generator.state,
            "entries": self.store.entries if self.store else 0,
            "canary_steps": self._canary_steps,
            "changed_at": self._changed_at,
            "batch_sizes": list(self.batch_sizes),
            "notes": list(self.notes),
            "missing": list(self.missing),
            "checksum": self.checksum,
            "anyone_copies": self.anyone_copies,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on with a run.

        Raises:
            ValueError: the run had other canaries, or was audited by another version.
        """
        header = restore(state["recorder"]["header"])
        if header != self.recorder.header:
            raise ValueError(
                f"the checkpoint's audit has canaries {list(header.canaries)} over "
                f"{len(header.tensors)} tensors, this one {list(self.recorder.header.canaries)} "
                f"over {len(self.recorder.header.tensors)}; resume with the same canaries, "
                "num_canaries and precision."
            )
        self.recorder.load(state["recorder"])
        self._rng.bit_generator.state = state["coins"]
        self._canary_steps = state["canary_steps"]
        self._changed_at = state["changed_at"]
        self.batch_sizes = list(state["batch_sizes"])
        self.notes = [*state["notes"], *(n for n in self.notes if n not in state["notes"])]
        self.missing = list(state["missing"])
        # Absent from the checkpoints of the first release.
        self.checksum = state.get("checksum", 0)
        self.anyone_copies = state.get("anyone_copies", True)

    def _attach(self) -> GradientTap:
        return GradientTap(
            innermost(self.step.optimizer),
            self.step.params,
            self._coordinates.by_tensor,
            self._before,
            self._after,
        )

    def follow(self, step: DPSGDStep) -> bool:
        """Go on with a new optimizer over the same parameters; False if they differ."""
        same = [id(p) for p in step.params] == [id(p) for p in self.step.params]
        if same:
            self.detach()
            self.step = step
            self._tap = self._attach()
        return same

    def lacks(self) -> list[str]:
        """What stands in the way of a pass, in sentences."""
        return self.missing

    def start_batch(self) -> None:
        """Forget a step that broke off: with a new batch none is under way."""
        self._tap.reset()
        self._withdraw()

    def end_batch(self) -> None:
        """A batch was trained on."""

    def end_epoch(self) -> None:
        """Forget the size of the epoch's last batch, which is smaller for many loaders."""
        del self.batch_sizes[-1:]

    def detach(self) -> None:
        """Take the hooks off; what was observed stays."""
        self._tap.remove()
        self._withdraw()

    def _withdraw(self) -> None:
        """Give up a step that was planned, and leave no canary in the gradients that wait."""
        if self._plan is not None and self._plan.status == INJECTED:
            self.step.withdraw()
        self._plan = None

    def prepare(self, coming: Backward) -> None:
        """Before a backward pass: lay out the canaries, where that is possible."""
        if self._tap.inside_step:
            return
        if self._plan is not None and not self._plan.prepared:
            self._withdraw()  # a step that broke off before the optimizer took it
        if self._plan is not None or not self._may_inject():
            return
        if not self._is_due(free=True):
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
        plan = self._flip(claim)
        self.step.prepare(plan.chosen, self._norm(claim))
        self._plan = replace(plan, prepared=True)

    def conceal(self) -> None:
        """After a backward pass: what was laid out is seen by nobody until it is put in."""
        if self._plan is not None and self._plan.prepared:
            self.step.conceal()

    def inject(self) -> None:
        """Flip the coins of the coming step and put the canaries in, before clipping."""
        # A closure that runs again inside the step, or a physical batch of a larger logical one.
        if self._tap.inside_step or not self.step.final_step_of_batch():
            return
        if not self._layout_holds():
            return
        plan = self._confirmed()
        size = self.step.batch_size() if self.track_batch_sizes else None
        if size is not None:
            self.batch_sizes.append(size - (int(plan.coins.sum()) if plan else 0))
        self._plan = plan
        number = self.recorder.steps
        try:
            claim = self._last_claim = self._claim()
        except ValueError as error:
            _log.warning("nothing can be claimed of step %d: %s", number, error)
            return
        if plan is not None:
            self._plan = replace(plan, claim=claim)
            return
        self._plan = self._late(claim, number)

    def _late(self, claim: StepClaim, number: int) -> StepPlan:
        """Put the canaries into a step whose backward passes are done."""
        if not self._is_due(free=False) or self.recorder.clipping_is_broken:
            return self._without_canary(claim)
        plan = self._flip(claim)
        try:
            # Also where all coins say "out": whether a step counts must not depend on its coins.
            self.step.inject(plan.chosen, self._norm(claim))
        except (ValueError, RuntimeError) as error:
            if self._ranks.several:
                raise RuntimeError(_ONE_FAILED.format(self._ranks.rank, number, error)) from error
            if self._note(f"no canary entered a step: {error}"):
                _log.warning("no canary entered step %d: %s", number, error)
            plan = replace(plan, status=DROPPED)
        return plan

    def _without_canary(self, claim: StepClaim) -> StepPlan:
        return StepPlan(claim, np.zeros(self._canary_count), (), NOT_PLANNED)

    def inject_late(self) -> None:
        """As `inject`, just before clipping, for a step that nobody announced."""
        if self._plan is None and self._may_inject():
            self._note(self.step.obstacle(Backward(None, announced=False)))
        if self._plan is None or self._plan.prepared:
            self.inject()

    def _may_inject(self) -> bool:
        return (
            self.step.final_step_of_batch()
            and self._layout_holds()
            and not self.recorder.clipping_is_broken
        )

    def _flip(self, claim: StepClaim) -> StepPlan:
        """Draw the coins and directions of a step."""
        ranks, number = self._ranks, self.recorder.steps
        rng = ranks.coins(self._key, number) if ranks.several else self._rng
        coins = self._toss(rng)
        directions = self._placement.draw(rng)
        located = self._coordinates.locate(directions)
        return StepPlan(claim, coins, directions, INJECTED, located, adds=ranks.adds(number))

    def _norm(self, claim: StepClaim) -> float:
        return self._settings.oversize * claim.max_grad_norm

    def _is_due(self, *, free: bool) -> bool:
        """Whether canaries enter this step, if their rows cost a copy or are free of one."""
        every = self._settings.every_n_steps
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
        claim, stated = self.step.claim(accumulated), self._settings.claim
        if stated is None:
            return claim
        batch = stated.expected_batch_size
        return replace(
            claim,
            noise_multiplier=stated.noise_multiplier or claim.noise_multiplier,
            max_grad_norm=stated.max_grad_norm or claim.max_grad_norm,
            scale=batch * claim.accumulated if batch else claim.scale,
        )

    def _before(self) -> FloatArray | None:
        """What the canaries that are in add to the gradient under the claim, by coordinate."""
        if self._plan is not None and self._plan.prepared:
            self._withdraw()  # clipping is over, and nobody put the canaries in
        if self._plan is None:
            return None
        # What is stated when the noise is in: modules may change it after the canaries went in. Of
        # two noise multipliers the smaller counts, so that raising it for a moment gains nothing.
        with contextlib.suppress(ValueError):
            now, planned = self._claim(), self._plan.claim
            sigma = min(now.noise_multiplier, planned.noise_multiplier)
            if self.step.adapts_its_norm:
                now = replace(now, max_grad_norm=planned.max_grad_norm)
            self._plan = replace(self._plan, claim=replace(now, noise_multiplier=sigma))
        plan = self._plan
        if plan.status != INJECTED or plan.located is None or not plan.coins.any():
            return None
        amount = plan.claim.max_grad_norm / plan.claim.scale
        return plan.located.combined(amount * plan.coins, self._coordinates.size)

    def _after(self, reading: Reading) -> None:
        plan = self._plan or self._unplanned()
        self._withdraw()  # the update is done; what the user reads of the gradients is the batch's
        if reading.unclear and _UNCLEAR not in self.missing:
            self.missing.append(_UNCLEAR)
        values = reading.values
        if reading.replaced or self._changed_at is not None:
            # Raw gradients, or those of another set of parameters: nothing to test or to keep.
            values = np.full(len(values), np.nan)
        if self._ranks.several:
            read = bytes([reading.replaced]) + values.tobytes()
            self.checksum = zlib.crc32(read, self.checksum)
        claim = plan.claim
        values = values * (claim.scale / claim.max_grad_norm)
        self.recorder.take(
            SeenStep(
                claim=claim,
                status=plan.status,
                coins=plan.coins,
                readings=self._readings(plan, values),
                witnesses=values[self._coordinates.witness_at],
                epoch=self.epoch,
                replaced=reading.replaced,
                sample_rate=self._sample_rate(claim.accumulated),
            )
        )
        self._canary_steps += plan.status == INJECTED

    def _unplanned(self) -> StepPlan:
        """For a step that came without the hook that injects: witnesses are read all the same."""
        if self._changed_at is None:
            self._note(_UNANNOUNCED)
        # No per-sample gradients where the optimizer was stepped around Opacus.
        with contextlib.suppress(ValueError):
            self._last_claim = self._claim()
        return StepPlan(self._last_claim, np.zeros(self._canary_count), (), DROPPED)

    def _note(self, sentence: str) -> bool:
        """Add a remark, once; whether it is new."""
        new = sentence not in self.notes
        if new:
            self.notes.append(sentence)
        return new

    def _readings(self, plan: StepPlan, values: FloatArray) -> FloatArray:
        """Inner products with the canaries' directions; what was taken out counts as read."""
        if plan.status != INJECTED or plan.located is None:
            return np.zeros(len(plan.coins))
        return plan.located.products(values, len(plan.coins)) + plan.coins
