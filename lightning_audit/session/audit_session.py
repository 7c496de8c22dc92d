"""Audit of one private optimizer: plans, reads, records and checks its steps."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lightning_audit.canaries.gradient import GradientCanary, Placement, place
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.probes import LAGS, choose_witnesses
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.adapters import divisor_at_cut, shows_its_noise, watch_cut
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep, StepClaim
from lightning_audit.hooks.boundary import attempt, current
from lightning_audit.hooks.gradient_tap import CanaryRows, Reading, clipped_sums
from lightning_audit.hooks.step_hooks import MethodHook, Retry, StepHooks
from lightning_audit.layout import same_objects
from lightning_audit.lints.settings import STEPS, NoiseDraws
from lightning_audit.record.store import DROPPED, INJECTED, ObservationStore, RecordHeader
from lightning_audit.session.own_clipping import Fit, Held, own_methods, raised
from lightning_audit.session.planner import Ranks, StepPlanner
from lightning_audit.session.reading import (
    HandWrittenReading,
    NoiseWatch,
    PrivateReading,
    ReadingWay,
    ReleaseWatch,
)
from lightning_audit.session.recorder import LostSteps, Recorder
from lightning_audit.session.sources import (
    CanarySource,
    GradientRows,
    HandedRows,
    InputSample,
    refuse_other_clipping,
)
from lightning_audit.session.step import (
    ZEROS,
    Coordinates,
    ObservedStep,
    followed_release,
    used_release,
    zero_entries,
)

# --- Removes canaries from a step whose audit has failed.


class Rescue:
    """The part of a session that still runs after the audit has failed.

    Canaries that are rows are removed immediately. Canaries that are already summed are removed
    from the gradient after its noise was added, as the session would have done.

    Args:
        planner: plans the steps.
        source: inserts and removes the canaries.
        way: reads the gradients.
        divisor: returns the divisor of a step's noisy sum at the time of the reading.
        claim_at_cut: stores the divisor after a private optimizer added its noise, and returns the
            claim; None if unknown.
    """

    def __init__(
        self,
        planner: StepPlanner,
        source: CanarySource,
        way: ReadingWay,
        divisor: Callable[[StepClaim], float],
        claim_at_cut: Callable[[], StepClaim | None],
    ) -> None:
        self._planner, self._source, self._way = planner, source, way
        self._divisor, self._claim_at_cut = divisor, claim_at_cut
        #: Whether the noise of the current step was added, or its update has begun.
        self.behind = False
        #: Whether the rows of the current step are kept, since other processes subtract them.
        self.agreed = False
        if (boundary := current()) is not None:
            boundary.on_leave(self._retract)

    def _retract(self) -> None:
        if self.behind or not self.agreed:
            self._source.retract(behind=self.behind)

    @property
    def in_transit(self) -> bool:
        """Whether canaries are in sums, and must be removed from the gradient."""
        plan, out = self._planner.plan, self._way.tap.taken_out
        return not out and plan is not None and plan.status == INJECTED and bool(plan.coins.any())

    def arrive(self, level: int) -> None:
        """Remove the canaries when the updating optimizer has its gradient.

        Args:
            level: number of nested steps.
        """
        if self._way.tap.reads_at(level):
            self.take_out()

    def at_cut(self) -> None:
        """Remove the canaries after a private optimizer added its noise."""
        if self.in_transit and attempt(self._claim_at_cut):
            self.take_out()

    def take_out(self, tensors: Sequence[torch.Tensor | None] | None = None) -> None:
        """Remove the canaries from a gradient whose noise was added.

        Args:
            tensors: the gradient, one tensor per parameter; None for ``p.grad``.
        """
        planner, tap = self._planner, self._way.tap
        if not self.in_transit:
            return
        attempt(lambda: planner.settle(planner.known_claim()))
        plan = planner.plan
        assert plan is not None
        params = planner.step.params
        grads = [p.grad for p in params] if tensors is None else tensors
        divisor = self._divisor(plan.claim)

        def as_read() -> None:
            taken = None if tap.taken_out else self._source.take_out(plan, divisor, grads)
            if taken is not None:
                tap.take_out(taken, grads)

        # If the first way failed: subtract along the directions, by other code.
        if not attempt(as_read) and not tap.taken_out:
            entered = [d for coin, d in zip(plan.coins, plan.directions, strict=False) if coin]
            amounts = np.full(len(entered), -plan.claim.max_grad_norm / divisor)
            attempt(lambda: CanaryRows(entered).add(grads, amounts))
        planner.plan, tap.taken_out = None, False


# --- Audit of one private optimizer: plans, reads, records and checks its steps.

_ROWS_WERE_IN = (
    "rows of lightning-audit were among the per-sample gradients; if the optimizer's own code does "
    "not expect them, state an input canary: PrivacyAudit(canaries=[Mislabeled(amplitude=100.0)])"
)


class AuditSession:
    """Audits the steps of one private optimizer.

    Each step is planned and its canaries are inserted (`source`). Its gradient is read after the
    noise was added (`way`). After the update, the observation is recorded and checked (`recorder`).
    Hooks call the session, and the session calls its components.

    Args:
        planner: plans the steps.
        source: inserts and removes the canaries.
        way: reads the gradients.
        noise: reads the noise together with the clipped sums.
        sample_rate: maps a step's number of accumulated batches to its sampling rate; None if
            unknown.
    """

    def __init__(
        self,
        planner: StepPlanner,
        source: CanarySource,
        way: ReadingWay,
        noise: NoiseWatch,
        sample_rate: Callable[[int], float | None],
    ) -> None:
        self.planner, self.source, self.way = planner, source, way
        self.recorder = planner.recorder
        self.noise = noise
        self._sample_rate = sample_rate
        self._ranks = planner.ranks
        self._epoch = 0
        #: Divisor of the noisy sum at the time of the reading; None for the claimed one.
        self._divided_by: float | None = None
        #: Whether an earlier part of the step was clipped; whether its code requested canaries.
        self._split = self._asked = self._is_released = False
        #: Checksum of all readings; equal in all processes if they share their gradients.
        self.checksum = 0
        self.lost, self.draws = LostSteps(), NoiseDraws()
        #: Noise generator state before this process's first noise; kept in memory only.
        self.noise_start: str | None = None
        self._noise_seen = False
        self.releases = ReleaseWatch()
        #: Removes the canaries after the audit has failed.
        self.rescue = Rescue(planner, source, way, self._divisor, self._claim_at_cut)
        hooks = self.way.hooks(self._arrive, self._leave, self.rescue.arrive)
        self._hooks: list[StepHooks | MethodHook] = [hooks]

    @property
    def step(self) -> DPSGDStep:
        """The adapter."""
        return self.planner.step

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
        shown = self.way.is_shown or shows_its_noise(self.step.optimizer)
        return shown and not self.releases.late

    def pass_blockers(self, alone: Sequence[int] = ()) -> list[str]:
        """Return what prevents a pass, as text; see `Recorder.pass_blockers`."""
        own = self.recorder.pass_blockers(at_cut=self.at_cut, alone=alone)
        return [*self.planner.pass_blockers, *own, *self.source.pass_blockers()]

    # ------------------------------------------------------------------ hooks

    def watch(self) -> None:
        """Hook a private optimizer's own methods: before it clips, and after it adds noise.

        Lightning's hooks run only for steps that Lightning itself takes.
        """
        optimizer = self.step.optimizer
        if isinstance(self.source, GradientRows):
            own = [n for n in ("clip_and_accumulate", "pre_step") if n in own_methods(optimizer)]
            self._hooks += [Retry(optimizer, n, self._hold, self._without_rows) for n in own]
        self._hooks += [
            MethodHook(optimizer, "pre_step", self.inject_late, self.source.end_part),
            watch_cut(optimizer, self.noise_is_in, self.rescue.at_cut),
        ]

    def follow(self, step: DPSGDStep) -> bool:
        """Switch to a new optimizer over the same parameters; return False if they differ."""
        same = same_objects(step.params, self.step.params)
        if same:
            self._unhook()
            step.norms = self.step.norms
            self.planner.step = step
            self.way.follow(step)
            self._hooks = [self.way.hooks(self._arrive, self._leave, self.rescue.arrive)]
        return same

    def pause(self, *, paused: bool) -> None:
        """Disable the hooks during steps that are not part of the training, or enable them."""
        for hook in self._hooks:
            hook.armed = not paused

    def detach(self) -> None:
        """Unregister the hooks; observations are kept."""
        self._unhook()
        self.end_batch()
        self.source.give_up()

    def _unhook(self) -> None:
        for hook in reversed(self._hooks):
            hook.remove()
        self._hooks = []
        self.way.tap.remove()
        self.planner.withdraw()

    # ------------------------------------------------------------------ before clipping

    def start_batch(self, epoch: int = 0) -> None:
        """Discard a step that was not completed: no step is in progress between batches."""
        self._epoch, self.rescue.behind, self.rescue.agreed = epoch, False, False
        self.way.start_batch()
        self.source.start_batch()

    def end_batch(self) -> None:
        """Mark the end of a batch: no training until the next one."""
        if self.releases.last is not None:
            self.releases.end_batch(self.way.tap.weights)
        self.way.end_batch()

    def prepare(self, coming: Backward) -> None:
        """Prepare the canaries' rows before a backward pass, if possible."""
        if not self.way.tap.inside_step:
            self.source.prepare(coming)

    def conceal(self) -> None:
        """See `CanarySource.conceal`."""
        self.source.conceal()

    def inject(self) -> None:
        """Insert the canaries of an announced step, before clipping and noise."""
        self._look_at_noise()
        if self.planner.fit is None and isinstance(self.source, GradientRows):
            self.planner.try_rows()
        if self.way.tap.inside_step:  # a closure that runs again belongs to the same step
            return
        if not self.step.final_step_of_batch():  # a physical batch of a larger logical one
            self.source.inject_part()
            self.noise.skip(self.step)
            self._split = True
        elif self.planner.layout_holds():
            if self._split:
                self.step.look_at_parts()
            self.source.inject()
            self._split = False

    def inject_late(self) -> None:
        """Call `inject` just before clipping, if the step was not announced."""
        if self.source.is_late():
            self.inject()
        if self._ranks.several and self.recorder.steps < STEPS:
            self.draws.start(self.step.noise_state())
        self._look_at_noise()
        if self._ranks.several and self.step.final_step_of_batch():
            self.rescue.agreed = self.planner.agree()

    def _look_at_noise(self) -> None:
        """Read the state of the noise generator before the first noise in this process."""
        if not self._noise_seen:
            self._noise_seen, self.noise_start = True, self.step.noise_state()

    def _hold(self) -> Held | None:
        """Return the state before the optimizer's own clipping; None without canaries in it."""
        return Held(self.step, copy=False) if self.step.holds_canaries() else None

    def _without_rows(self, held: Held, error: Exception) -> str:
        """Take the canaries out of an own clipping that raised; return why that is impossible."""
        if self.rescue.behind or not held.put_back():
            return _ROWS_WERE_IN
        claim = self.planner.claim()
        self.planner.leave_rows_out(Fit(f"it raises {raised(error)}"))
        self.planner.plan = self.planner.without_canary(claim, DROPPED)
        return ""

    # ------------------------------------------------------------------ after the noise

    def noise_is_in(self) -> None:
        """Read the gradient right after the noise was added, before any post-processing."""
        self.rescue.behind = True
        claim = self._claim_at_cut()
        if claim is not None and self.way.tap.noise_is_in():
            self._read(claim)

    def _claim_at_cut(self) -> StepClaim | None:
        """Return the claim about the step and store its divisor; None if it is unknown."""
        claim = self.planner.known_claim() if self.planner.changed_at is None else None
        if claim is not None:
            self._divided_by = divisor_at_cut(self.step.optimizer, self.step.params, claim)
        return claim

    def released(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Read the noisy gradients that the training's code passes in.

        Args:
            tensors: one tensor per parameter, of its shape; edited in place.
        """
        if self.way.tap.noise_is_in(tensors):
            self._read(self.planner.known_claim())

    def _arrive(self, level: int) -> None:
        """Read the gradient when the updating optimizer has it."""
        self.rescue.behind = True
        if self.way.tap.arrives(level):
            self._read(self.planner.known_claim())

    def _read(self, now: StepClaim | None) -> None:
        """Read a step's gradient and remove its canaries.

        Args:
            now: the claim after the noise was added; None if it is unknown.
        """
        planner, tap, number = self.planner, self.way.tap, self.recorder.steps
        grads = tap.grads()
        if self._ranks.several and number < STEPS:
            self.draws.end(number, self.step.noise_state())
        if any(grad is None for grad in grads):
            lacking = [
                slot.name for slot, g in zip(self.step.layout, grads, strict=True) if g is None
            ]
            planner.state_missing(lacking, number)
        self._asked = planner.plan is not None and planner.plan.asked
        divisor = None if now is None else self._divisor(now)
        samples = self.way.samples(planner.plan)
        self.noise.read(self.step, number, samples, grads, divisor, tap)
        if planner.plan is not None and planner.plan.prepared:
            planner.withdraw()  # clipping is over and the canaries were not inserted
        planner.settle(now)
        plan, taken = planner.plan, None
        if plan is not None:
            taken = self.source.take_out(plan, self._divisor(plan.claim), grads)
        # If not `is_sure`, the gradient that is read may differ from the released one.
        known = self.way.is_sure
        tap.read(taken)
        self._is_released = known and planner.changed_at is None

    def _divisor(self, claim: StepClaim) -> float:
        """Return the divisor of the noisy sum at the time of the reading."""
        return claim.scale if self._divided_by is None else self._divided_by

    # ------------------------------------------------------------------ after the update

    def _leave(self) -> None:
        """Finish a step after the updating optimizer's `step` returned."""
        reading = self.way.tap.leaves()
        if reading is None:
            return
        if self._is_released:
            finite = bool(np.isfinite(reading.values).all())
            if not (finite and self.lost.weights_finite):
                self.lost.look(self.step, self.recorder.steps, self.source.rows_of_data, finite)
        reading, lack = self.way.judged(reading, asked=self._asked)
        if lack:
            self.planner.block_pass(lack)
        self._observe(reading)
        self.way.end_step()
        self.rescue.behind = self.rescue.agreed = False

    def _observe(self, reading: Reading) -> None:
        """Record and check a step.

        Args:
            reading: the reading of its gradient.
        """
        planner, source = self.planner, self.source
        coordinates = planner.coordinates
        plan = planner.plan or source.unplanned()
        if plan.status == INJECTED and plan.coins.any():
            source.clear(plan, clipped_sums(self.step.params))
        planner.withdraw()  # from now on the user's code sees the batch's gradients only
        self.way.tap.taken_out = False
        values = reading.values
        if reading.replaced or planner.changed_at is not None:
            # Raw gradients, or gradients of other parameters: neither tested nor recorded.
            values = np.full(len(values), np.nan)
        if self._ranks.several:
            read = bytes([reading.replaced]) + values.tobytes()
            self.checksum = zlib.crc32(read, self.checksum)
        claim = plan.claim
        divisor, self._divided_by = self._divisor(claim), None
        unit, noise = self.noise.seen(claim, plan.added, divisor, reading)
        readable = not reading.unclear and bool(np.isfinite(values).all())
        sums = values * unit
        drawn = self.noise.drawn(sums, claim.noise_multiplier, reading.dead)
        self.releases.update(reading, sums, claim.noise_multiplier)
        if reading.dead is not None:
            planner.note(ZEROS)
        fine = self.recorder.header.signal == 1.0  # low precision leaves a residue of each canary
        self.recorder.take(
            ObservedStep(
                claim=claim,
                status=plan.recorded,
                coins=plan.coins,
                readings=source.end_step(plan, drawn, reading.dead),
                witnesses=drawn[coordinates.witness_at],
                epoch=self._epoch,
                replaced=reading.replaced,
                sample_rate=self._sample_rate(claim.accumulated),
                noise=noise if readable else None,
                dead=zero_entries(plan, reading, coordinates),
                used=used_release(plan, reading, coordinates) if fine else None,
                followed=followed_release(reading, coordinates),
            )
        )
        planner.canary_steps += plan.status == INJECTED

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """Return what `load` needs; see `record.store` for what is left out."""
        recorder = self.recorder.state()  # feeds the pending steps before entries are counted
        return {
            "recorder": recorder,
            "entries": self.store.entries if self.store else 0,
            "planner": self.planner.state(),
            "source": self.source.state(),
            "checksum": self.checksum,
            "releases": self.releases.state(),
            "lost": self.lost.state(),
            "noise": self.noise.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: the checkpoint's audit had other canaries or another version.
        """
        self.planner.load(state["planner"], self.recorder.load(state["recorder"]))
        self.source.load(state["source"])
        self.checksum = state["checksum"]
        self.releases.load(state["releases"])
        self.lost.load(state["lost"])
        self.noise.load(state["noise"])


# --- Builds a session: chooses the source of its canaries and how its steps are read.


def begin_session(
    step: DPSGDStep,
    config: AuditConfig,
    rng: np.random.Generator,
    sample_rate: Callable[[int], float | None],
    open_store: Callable[[RecordHeader], ObservationStore | None] | None,
    ranks: Ranks,
    *,
    signal: float = 1.0,
    track_batch_sizes: bool = False,
    planned_steps: int | None = None,
) -> AuditSession:
    """Start the audit of one private optimizer.

    Args:
        step: the adapter.
        config: what to audit, and how, at this optimizer's share of the significance.
        rng: the audit's own generator.
        sample_rate: see `AuditSession`.
        open_store: opens the record for a header; returns None if it cannot. None: no record.
        ranks: the processes of the training.
        signal: largest shift that a correctly clipped canary shows in the training's precision.
        track_batch_sizes: see `StepPlanner`.
        planned_steps: number of steps of the whole training; None if unknown.

    Raises:
        UnauditableTraining: an input canary under per-layer or adaptive clipping, from which it
            cannot be removed.
    """
    first, chooser = config.canaries[0], rng
    if isinstance(first, InputCanary):
        refuse_other_clipping(step, config.canaries)
        chooser = np.random.default_rng(rng.integers(2**62))
    placement = _placed(config.canaries, step, rng)
    witnesses = choose_witnesses(step.layout, placement.support(), rng)
    coordinates = Coordinates(witnesses, placement)
    names = tuple(slot.name for slot in step.layout)
    stated = config.claim.noise_coefficients if config.claim else None
    coefficients = None if stated is None else tuple(stated)
    header = RecordHeader(
        placement.labels,
        names,
        witnesses.counts,
        LAGS,
        signal=signal,
        noise_coefficients=coefficients,
        planned_steps=planned_steps and max(1, planned_steps // (config.every_n_steps or 1)),
        planned_end=planned_steps,
    )
    if isinstance(first, InputCanary):
        header = _with_game(header, first)
    (own,) = rng.spawn(1)  # spawning leaves the coins of the seed unchanged
    store = open_store(header) if open_store else None
    recorder = Recorder(header, config.significance, witnesses, store, own)
    planner = StepPlanner(
        step,
        config,
        placement,
        coordinates,
        rng,
        ranks,
        recorder,
        track_batch_sizes=track_batch_sizes,
    )
    way, source = _read_and_fed(step, planner)
    if isinstance(first, InputCanary):
        source = InputSample(first, planner, way, chooser)
    noise = NoiseWatch(witnesses, alone=not ranks.several, coefficients=coefficients)
    return AuditSession(planner, source, way, noise, sample_rate)


def _placed(canaries: Sequence[object], step: DPSGDStep, rng: np.random.Generator) -> Placement:
    """Place the gradient canaries; an input canary uses all coordinates of the gradient."""
    rows = [canary for canary in canaries if isinstance(canary, GradientCanary)]
    return place(rows, step.layout, rng) if rows else Placement(step.layout)


def _read_and_fed(step: DPSGDStep, planner: StepPlanner) -> tuple[ReadingWay, CanarySource]:
    """Return how the steps are read, and the source of their gradient canaries."""
    coordinates = planner.coordinates.by_tensor
    if isinstance(step, ManualStep):
        by_hand = HandWrittenReading(step, coordinates)
        return by_hand, HandedRows(planner, by_hand)
    return PrivateReading(step, coordinates), GradientRows(planner)


def _with_game(header: RecordHeader, canary: InputCanary) -> RecordHeader:
    """Return the header with the input canary's label, coin probability and game."""
    rate = canary.sampling_rate
    shown = "" if rate == 0.5 else f", sampling_rate={rate:g}"
    label = f"{type(canary).__name__}(input{shown})"
    return replace(header, canaries=(label,), coin_probability=rate, game=canary.game)
