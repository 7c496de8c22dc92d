"""One private optimizer under audit: its steps are planned, read, recorded and checked."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.dpsgd.cut import divisor_at_cut, shows_its_noise, watch_cut
from lightning_audit.dpsgd.protocol import Backward, DPSGDStep, StepClaim
from lightning_audit.layout import same_objects
from lightning_audit.lints.noise_draws import STEPS, NoiseDraws
from lightning_audit.record.store import INJECTED, ObservationStore
from lightning_audit.session.canary_source import CanarySource
from lightning_audit.session.lost_steps import LostSteps
from lightning_audit.session.noise_watch import NoiseWatch, ReleaseWatch
from lightning_audit.session.reading_way import ReadingWay
from lightning_audit.session.rescue import Rescue
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.session.steps import (
    ZEROS,
    ObservedStep,
    followed_release,
    used_release,
    zero_entries,
)
from lightning_audit.taps.gradient_reading import Reading
from lightning_audit.taps.method_hook import MethodHook
from lightning_audit.taps.noise_reading import clipped_sums
from lightning_audit.taps.step_hooks import StepHooks


class AuditSession:
    """Audits the steps of one private optimizer.

    A step goes one way: it is planned and its canaries enter (`source`), its gradient is read when
    the noise is in (`way`), and when the update is done, what was observed is recorded and checked
    (`recorder`). Hooks tell the session where a step is; it asks its parts, and they ask nobody.

    Args:
        planner: plans the steps.
        source: of the canaries.
        way: how the steps are read.
        noise: reads the noise beside its sums.
        sample_rate: gives a step's sample rate for its number of accumulated batches, None if
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
        #: What the noisy sum was divided by where it was read; None for what is stated.
        self._divided_by: float | None = None
        #: Whether an earlier part of the step was clipped; whether its code asked for canaries.
        self._split = self._asked = False
        #: Checksum of all that was read; equal in all processes if they share their gradients.
        self.checksum = 0
        self.lost, self.draws = LostSteps(), NoiseDraws()
        #: State of the noise generator before the first noise in this process, in memory alone.
        self.noise_start: str | None = None
        self._noise_seen = False
        self.releases = ReleaseWatch()
        #: Takes the canaries out once the audit has failed.
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
        """The record on disk, if one is kept."""
        return self.recorder.store

    @property
    def at_cut(self) -> bool:
        """Whether every step was read where its noise is known to be in."""
        shown = self.way.is_shown or shows_its_noise(self.step.optimizer)
        return shown and not self.releases.late

    def pass_blockers(self, alone: Sequence[int] = ()) -> list[str]:
        """What stands in the way of a pass, in sentences; see `Recorder.pass_blockers`."""
        own = self.recorder.pass_blockers(at_cut=self.at_cut, alone=alone)
        return [*self.planner.pass_blockers, *own, *self.source.pass_blockers()]

    # ------------------------------------------------------------------ hooks

    def watch(self) -> None:
        """Follow a private optimizer's own steps: before it clips, and behind its noise.

        Lightning announces a step only where it takes it itself.
        """
        optimizer = self.step.optimizer
        self._hooks += [
            MethodHook(optimizer, "pre_step", self.inject_late, self.source.end_part),
            watch_cut(optimizer, self.noise_is_in, self.rescue.at_cut),
        ]

    def follow(self, step: DPSGDStep) -> bool:
        """Go on with a new optimizer over the same parameters; False if they differ."""
        same = same_objects(step.params, self.step.params)
        if same:
            self._unhook()
            step.norms = self.step.norms
            self.planner.step = step
            self.way.follow(step)
            self._hooks = [self.way.hooks(self._arrive, self._leave, self.rescue.arrive)]
        return same

    def pause(self, *, paused: bool) -> None:
        """Look away from steps that are no steps of the training, or look again."""
        for hook in self._hooks:
            hook.armed = not paused

    def detach(self) -> None:
        """Take the hooks off; what was observed stays."""
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
        """Forget a step that broke off, where none can be under way."""
        self._epoch, self.rescue.behind, self.rescue.agreed = epoch, False, False
        self.way.start_batch()
        self.source.start_batch()

    def end_batch(self) -> None:
        """Until the next batch nothing is trained."""
        self.way.end_batch()

    def prepare(self, coming: Backward) -> None:
        """Before a backward pass: lay out the canaries, where that is possible."""
        if not self.way.tap.inside_step:
            self.source.prepare(coming)

    def conceal(self) -> None:
        """See `CanarySource.conceal`."""
        self.source.conceal()

    def inject(self) -> None:
        """Before clipping and noise, where the step is announced: put its canaries in."""
        self._look_at_noise()
        if self.way.tap.inside_step:  # a closure that runs again is of no step of its own
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
        """As `inject`, just before clipping, for a step that nobody announced."""
        if self.source.is_late():
            self.inject()
        if self._ranks.several and self.recorder.steps < STEPS:
            self.draws.start(self.step.noise_state())
        self._look_at_noise()
        if self._ranks.several and self.step.final_step_of_batch():
            self.rescue.agreed = self.planner.agree()

    def _look_at_noise(self) -> None:
        """Before the first noise in this process: read the state of its generator."""
        if not self._noise_seen:
            self._noise_seen, self.noise_start = True, self.step.noise_state()

    # ------------------------------------------------------------------ behind the noise

    def noise_is_in(self) -> None:
        """The noise was added: read the gradient before anything else is done to it."""
        self.rescue.behind = True
        claim = self._claim_at_cut()
        if claim is not None and self.way.tap.noise_is_in():
            self._read(claim)

    def _claim_at_cut(self) -> StepClaim | None:
        """What is claimed of the step, whose divisor is noted; None if that cannot be told."""
        claim = self.planner.known_claim() if self.planner.changed_at is None else None
        if claim is not None:
            self._divided_by = divisor_at_cut(self.step.optimizer, self.step.params, claim)
        return claim

    def released(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """The training's code shows its noisy gradients: read them now.

        Args:
            tensors: one for each parameter, of its shape, edited in place.
        """
        if self.way.tap.noise_is_in(tensors):
            self._read(self.planner.known_claim())

    def _arrive(self, level: int) -> None:
        """The optimizer that updates has its gradient."""
        self.rescue.behind = True
        if self.way.tap.arrives(level):
            self._read(self.planner.known_claim())

    def _read(self, now: StepClaim | None) -> None:
        """Read a step's gradient, and take its canaries out.

        Args:
            now: what is claimed when the noise is in; None if that cannot be told.
        """
        planner, tap, number = self.planner, self.way.tap, self.recorder.steps
        grads = tap.grads()
        if self._ranks.several and number < STEPS:
            self.draws.end(number, self.step.noise_state())
        self._asked = planner.plan is not None and planner.plan.asked
        divisor = None if now is None else self._divisor(now)
        self.noise.read(self.step, number, self.way.samples(planner.plan), grads, divisor)
        if planner.plan is not None and planner.plan.prepared:
            planner.withdraw()  # clipping is over, and nobody put the canaries in
        planner.settle(now)
        plan, taken = planner.plan, None
        if plan is not None:
            taken = self.source.take_out(plan, self._divisor(plan.claim), grads)
        # Elsewhere the gradient that is read need not be the one that is released.
        known = self.way.is_sure
        if not tap.read(taken) and known and planner.changed_at is None:
            self.lost.look(self.step, number, self.source.rows_of_data)

    def _divisor(self, claim: StepClaim) -> float:
        """What the noisy sum was divided by where it is read."""
        return claim.scale if self._divided_by is None else self._divided_by

    # ------------------------------------------------------------------ the update is done

    def _leave(self) -> None:
        """A step of the optimizer that updates is done."""
        reading = self.way.tap.leaves()
        if reading is None:
            return
        reading, lack = self.way.judged(reading, asked=self._asked)
        if lack:
            self.planner.block_pass(lack)
        self._observe(reading)
        self.way.end_step()
        self.rescue.behind = self.rescue.agreed = False

    def _observe(self, reading: Reading) -> None:
        """Record and check a step.

        Args:
            reading: of its gradient.
        """
        planner, source = self.planner, self.source
        coordinates = planner.coordinates
        plan = planner.plan or source.unplanned()
        if plan.status == INJECTED and plan.coins.any():
            source.clear(plan, clipped_sums(self.step.params))
        planner.withdraw()  # what the user reads of the gradients from now on is the batch's
        self.way.tap.taken_out = False
        values = reading.values
        if reading.replaced or planner.changed_at is not None:
            # Raw gradients, or those of another set of parameters: nothing to test or to keep.
            values = np.full(len(values), np.nan)
        if self._ranks.several:
            read = bytes([reading.replaced]) + values.tobytes()
            self.checksum = zlib.crc32(read, self.checksum)
        claim = plan.claim
        divisor, self._divided_by = self._divisor(claim), None
        unit, noise = self.noise.seen(claim, int(plan.coins.sum()), divisor, reading)
        readable = not reading.unclear and bool(np.isfinite(values).all())
        sums = values * unit
        drawn = self.noise.drawn(sums, claim.noise_multiplier, reading.dead)
        self.releases.update(reading, sums, claim.noise_multiplier)
        if reading.dead is not None:
            planner.note(ZEROS)
        fine = self.recorder.header.signal == 1.0  # low precision leaves a rest of each canary
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

    # ------------------------------------------------------------------ going on

    def state(self) -> dict[str, Any]:
        """What `load` needs; see `record.earlier_segments` for what is not in it."""
        recorder = self.recorder.state()  # feeds the steps that wait, before entries are counted
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
        """Go on with a run.

        Raises:
            ValueError: the run had other canaries, or was audited by another version.
        """
        self.planner.load(state["planner"], self.recorder.load(state["recorder"]))
        self.source.load(state["source"])
        self.checksum = state["checksum"]
        self.releases.load(state["releases"])
        self.lost.load(state["lost"])
        self.noise.load(state["noise"])
