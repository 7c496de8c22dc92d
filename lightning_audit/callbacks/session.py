"""One private optimizer under audit: coins, injection, observation, record."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.placement import place
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.witnesses import LAGS, WitnessReducer, choose_witnesses
from lightning_audit.claims import PrivacyClaim
from lightning_audit.dpsgd.opacus import innermost
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.dpsgd.tap import GradientTap, Reading
from lightning_audit.layout import Direction, FloatArray, IndexArray
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


@dataclass(frozen=True)
class SessionSettings:
    """What the callback's arguments come to.

    Args:
        canaries: the canaries of every audited step.
        oversize: their norm over the clipping norm.
        every_n_steps: canaries enter each n-th step.
        significance: probability of a false alarm over the run.
        claim: overrides what the optimizer states.
        signal: largest shift that correct clipping shows in this precision.
    """

    canaries: tuple[GradientCanary, ...]
    oversize: float
    every_n_steps: int
    significance: float
    claim: PrivacyClaim | None
    signal: float = 1.0


@dataclass(frozen=True)
class _Plan:
    """A step between injection and observation."""

    claim: StepClaim
    coins: FloatArray
    directions: Sequence[Direction]
    status: int

    def to_remove(self) -> list[tuple[Direction, float]]:
        """What the canaries that are in add to the gradient under the claim."""
        if self.status != INJECTED:
            return []
        amount = self.claim.max_grad_norm / self.claim.scale
        chosen = zip(self.coins, self.directions, strict=True)
        return [(direction, amount) for coin, direction in chosen if coin]


class AuditSession:
    """Audits the steps of one private optimizer.

    Args:
        step: the adapter.
        settings: what to audit, and how.
        rng: the audit's own generator.
        sample_rate: gives a step's sample rate for its number of accumulated batches, None if
            unknown.
        open_store: opens the record, given its header; None to keep none.
    """

    def __init__(
        self,
        step: DPSGDStep,
        settings: SessionSettings,
        rng: np.random.Generator,
        sample_rate: Callable[[int], float | None],
        open_store: Callable[[RecordHeader], ObservationStore] | None,
    ) -> None:
        self.step = step
        self._settings = settings
        self._rng = rng
        self._sample_rate = sample_rate
        self._placement = place(settings.canaries, step.layout, rng)
        witnesses = choose_witnesses(step.layout, self._placement.support(), rng)
        self._reducer = WitnessReducer(witnesses)
        self._coordinates, self._witness_at, self._canary_at = _reading_order(
            witnesses.index, self._placement.support()
        )
        self.header = RecordHeader(
            canaries=self._placement.labels,
            tensors=tuple(slot.name for slot in step.layout),
            witnesses=witnesses.counts,
            lags=LAGS,
            signal=settings.signal,
        )
        self.monitor = AuditMonitor(self.header, settings.significance)
        self.store = open_store(self.header) if open_store else None
        self.notes = list(self._placement.skipped)
        self.epoch = 0
        #: Sizes are kept only where the loader's type does not tell how it samples.
        self.track_batch_sizes = False
        self.batch_sizes: list[int] = []
        self.missing: list[str] = []
        self._changed_at: int | None = None
        self._plan: _Plan | None = None
        # Without a claim nothing is tested: noise multiplier 0 until one was read.
        self._last_claim = StepClaim(noise_multiplier=0.0, max_grad_norm=1.0, scale=1.0)
        self._tap = self._attach()

    def _attach(self) -> GradientTap:
        return GradientTap(
            innermost(self.step.optimizer),
            self.step.params,
            self._coordinates,
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

    def start_batch(self) -> None:
        """Forget a step that broke off: with a new batch none is under way."""
        self._tap.reset()
        self._plan = None

    def end_epoch(self) -> None:
        """Forget the size of the epoch's last batch, which is smaller for many loaders."""
        del self.batch_sizes[-1:]

    def detach(self) -> None:
        """Take the hooks off; what was observed stays."""
        self._tap.remove()
        self._plan = None

    def inject(self) -> None:
        """Flip the coins of the coming step and put the canaries in, before clipping."""
        # A closure that runs again inside the step, or a physical batch of a larger logical one.
        if self._tap.inside_step or not self.step.final_step_of_batch():
            return
        if not self._layout_holds():
            return
        size = self.step.batch_size() if self.track_batch_sizes else None
        if size is not None:
            self.batch_sizes.append(size)
        number = self.monitor.steps
        try:
            claim = self._last_claim = self._claim()
        except ValueError as error:
            _log.warning("nothing can be claimed of step %d: %s", number, error)
            return
        planned = number % self._settings.every_n_steps == 0
        if not planned or self.monitor.clipping_is_broken:
            self._plan = _Plan(claim, np.zeros(len(self._placement)), (), NOT_PLANNED)
            return
        coins = self._rng.integers(0, 2, size=len(self._placement)).astype(np.float64)
        directions = self._placement.draw(self._rng)
        chosen = [d for coin, d in zip(coins, directions, strict=True) if coin]
        status = INJECTED
        try:
            # Also where all coins say "out": whether a step counts must not depend on its coins.
            self.step.inject(chosen, self._settings.oversize * claim.max_grad_norm)
        except (ValueError, RuntimeError) as error:
            _log.warning("no canary entered step %d: %s", number, error)
            status = DROPPED
        self._plan = _Plan(claim, coins, directions, status)

    def _layout_holds(self) -> bool:
        """Whether the same parameters are trained as at the start; if not, nothing is touched."""
        if self._changed_at is None and not self.step.same_params():
            self._changed_at = self.monitor.steps
            self.missing.append(
                f"the set of trained parameters changed at step {self._changed_at}; later steps "
                "are not audited: freeze before the training starts"
            )
        return self._changed_at is None

    def _claim(self) -> StepClaim:
        """What is claimed of the coming step: by the optimizer, unless stated otherwise."""
        claim, stated = self.step.claim(), self._settings.claim
        if stated is None:
            return claim
        batch = stated.expected_batch_size
        return replace(
            claim,
            noise_multiplier=stated.noise_multiplier or claim.noise_multiplier,
            max_grad_norm=stated.max_grad_norm or claim.max_grad_norm,
            scale=batch * claim.accumulated if batch else claim.scale,
        )

    def _before(self) -> list[tuple[Direction, float]]:
        if self._plan is None:
            return []
        # What is stated when the noise is in: modules may change it after the canaries went in. Of
        # two noise multipliers the smaller counts, so that raising it for a moment gains nothing.
        with contextlib.suppress(ValueError):
            now = self._claim()
            sigma = min(now.noise_multiplier, self._plan.claim.noise_multiplier)
            self._plan = replace(self._plan, claim=replace(now, noise_multiplier=sigma))
        return self._plan.to_remove()

    def _after(self, reading: Reading) -> None:
        plan, self._plan = self._plan or self._unplanned(), None
        if reading.unclear and _UNCLEAR not in self.missing:
            self.missing.append(_UNCLEAR)
        values = reading.values
        if reading.replaced or self._changed_at is not None:
            # Raw gradients, or those of another set of parameters: nothing to test or to keep.
            values = np.full(len(values), np.nan)
        claim = plan.claim
        values = values * (claim.scale / claim.max_grad_norm)
        entry = np.zeros((), dtype=self.header.dtype)
        rate = self._sample_rate(claim.accumulated)
        fields = {
            "step": self.monitor.steps,
            "epoch": self.epoch,
            "canaries": plan.status,
            "replaced": reading.replaced,
            "noise_multiplier": claim.noise_multiplier,
            "max_grad_norm": claim.max_grad_norm,
            "scale": claim.scale,
            "sample_rate": math.nan if rate is None else rate,
            "coins": plan.coins,
            "readings": self._readings(plan, values),
        }
        if claim.noise_multiplier > 0:
            witnesses = values[self._witness_at]
            fields |= self._reducer.reduce(witnesses, claim.noise_multiplier, self.epoch)
        for name, value in fields.items():
            entry[name] = value
        self.monitor.update(entry)
        if self.store is not None:
            self.store.append(entry)

    def _unplanned(self) -> _Plan:
        """For a step that came without the hook that injects: witnesses are read all the same."""
        if self._changed_at is None:
            self._note(_UNANNOUNCED)
        # No per-sample gradients where the optimizer was stepped around Opacus.
        with contextlib.suppress(ValueError):
            self._last_claim = self._claim()
        return _Plan(self._last_claim, np.zeros(len(self._placement)), (), DROPPED)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _readings(self, plan: _Plan, values: FloatArray) -> FloatArray:
        """Inner products with the canaries' directions; what was taken out counts as read."""
        if plan.status != INJECTED:
            return np.zeros(len(plan.coins))
        products = [
            sum(
                float(part.value @ values[_positions(self._canary_at[part.tensor], part.index)])
                for part in direction.parts
            )
            for direction in plan.directions
        ]
        return np.array(products) + plan.coins


def _reading_order(
    witnesses: dict[int, IndexArray], canaries: dict[int, IndexArray]
) -> tuple[dict[int, IndexArray], IndexArray, dict[int, tuple[IndexArray, int]]]:
    """Which coordinates to read, where the witnesses stand among them, and where the canaries.

    Returns:
        (tensor -> coordinates; positions of all witnesses, tensor by tensor; tensor -> canary
        coordinates, sorted, and the position of their first).
    """
    coordinates, witness_at, canary_at, start = {}, [], {}, 0
    none = np.zeros(0, dtype=np.int64)
    for j in sorted(witnesses):
        own = canaries.get(j, none)
        coordinates[j] = np.concatenate([witnesses[j], own])
        witness_at.append(start + np.arange(len(witnesses[j])))
        canary_at[j] = (own, start + len(witnesses[j]))
        start += len(coordinates[j])
    return coordinates, np.concatenate(witness_at), canary_at


def _positions(where: tuple[IndexArray, int], index: IndexArray) -> IndexArray:
    coordinates, start = where
    return start + np.searchsorted(coordinates, index)
