"""Audit of one private optimizer: plans, reads, records and checks its steps."""

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
        self._split = self._asked = False
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
        self._asked = planner.plan is not None and planner.plan.asked
        divisor = None if now is None else self._divisor(now)
        self.noise.read(self.step, number, self.way.samples(planner.plan), grads, divisor)
        if planner.plan is not None and planner.plan.prepared:
            planner.withdraw()  # clipping is over and the canaries were not inserted
        planner.settle(now)
        plan, taken = planner.plan, None
        if plan is not None:
            taken = self.source.take_out(plan, self._divisor(plan.claim), grads)
        # If not `is_sure`, the gradient that is read may differ from the released one.
        known = self.way.is_sure
        if not tap.read(taken) and known and planner.changed_at is None:
            self.lost.look(self.step, number, self.source.rows_of_data)

    def _divisor(self, claim: StepClaim) -> float:
        """Return the divisor of the noisy sum at the time of the reading."""
        return claim.scale if self._divided_by is None else self._divided_by

    # ------------------------------------------------------------------ after the update

    def _leave(self) -> None:
        """Finish a step after the updating optimizer's `step` returned."""
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
        unit, noise = self.noise.seen(claim, int(plan.coins.sum()), divisor, reading)
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
        """Return what `load` needs; see `record.earlier_segments` for what is left out."""
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
