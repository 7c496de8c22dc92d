"""One private optimizer under audit: coins, injection, observation, record."""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.post_processing import SHOW_THE_RELEASE
from lightning_audit.checks.release_processing import ReleaseProcessing
from lightning_audit.checks.witnesses import LAGS, choose_witnesses
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.dpsgd.cut import divisor_at_cut, shows_its_noise
from lightning_audit.dpsgd.lost_rows import all_finite
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.layout import FloatArray
from lightning_audit.lints.noise_draws import STEPS, NoiseDraws
from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.record.store import INJECTED, ObservationStore, RecordHeader
from lightning_audit.session.coordinates import Coordinates
from lightning_audit.session.dead_entries import dead_entries
from lightning_audit.session.lost_steps import LostSteps
from lightning_audit.session.noise_watch import NoiseWatch
from lightning_audit.session.ranks import Ranks
from lightning_audit.session.recorder import Recorder, SeenStep
from lightning_audit.session.step_plan import StepPlan
from lightning_audit.session.step_planner import StepPlanner
from lightning_audit.session.used_step import used_step
from lightning_audit.taps.gradient_tap import GradientTap, Reading
from lightning_audit.taps.moves_outside import MovesOutside
from lightning_audit.taps.noise_reading import clipped_sum

_UNCLEAR = (
    "the inner optimizer changes p.grad inside its step, so it cannot be told which gradient the "
    "update used; change a copy there, or use one of torch's optimizers"
)
_ZEROS = (
    "entries of the gradient were exactly zero, noise included; where a canary that had entered "
    "came out as zero as well, they are taken for no part of the release"
)
_NOT_FOLLOWED = (
    "what is done to the gradient behind its noise could not be followed: the update may use other "
    "things than what was released; entry by entry, or as a sum over steps, it can be"
)


class AuditSession(StepPlanner):
    """Audits the steps of one private optimizer.

    Args:
        step: the adapter.
        config: what to audit, and how, at this optimizer's share of the significance.
        rng: the audit's own generator.
        sample_rate: gives a step's sample rate for its accumulated batches, None if unknown.
        open_store: opens the record, given its header, and gives None if it cannot; None to keep
            none.
        ranks: the processes that train together.
        signal: largest shift that a correctly clipped canary shows in the training's precision.
    """

    #: Attributes that a checkpoint holds as they are.
    kept: ClassVar[tuple[str, ...]] = (
        "_canary_steps",
        "_changed_at",
        "anyone_copies",
        "batch_sizes",
        "checksum",
        "late_readings",
        "missing",
        "notes",
        "raw_readings",
    )
    #: What reads the gradient.
    _tap_kind: type[GradientTap] = GradientTap

    def __init__(
        self,
        step: DPSGDStep,
        config: AuditConfig,
        rng: np.random.Generator,
        sample_rate: Callable[[int], float | None],
        open_store: Callable[[RecordHeader], ObservationStore | None] | None,
        ranks: Ranks,
        signal: float = 1.0,
    ) -> None:
        super().__init__(step, config, rng, ranks)
        self._sample_rate = sample_rate
        witnesses = choose_witnesses(step.layout, self._placement.support(), rng)
        self._coordinates = Coordinates(witnesses, self._placement)
        names = tuple(slot.name for slot in step.layout)
        header = RecordHeader(self._placement.labels, names, witnesses.counts, LAGS, signal=signal)
        header = self._with_game(header)
        self._noise = NoiseWatch(witnesses, alone=not self._ranks.several)
        self._key = int(rng.integers(2**63)) if self._ranks.several else 0
        #: Checksum of all that was read; equal in all processes if they share their gradients.
        self.checksum = 0
        store = open_store(header) if open_store else None
        (own,) = rng.spawn(1)  # the coins stay what the seed makes them
        self.recorder = Recorder(header, config.significance, witnesses, store, own)
        self.lost, self.draws = LostSteps(), NoiseDraws()
        self._canary_count = len(header.canaries)
        self.epoch = 0
        #: What the noisy sum was divided by where it was read; None for what is stated.
        self._divided_by: float | None = None
        #: Steps that were not read where the noise is known to be in.
        self.late_readings = 0
        #: Steps whose gradient was what a backward pass left.
        self.raw_readings = 0
        self.weights, self.processing = MovesOutside(), ReleaseProcessing()
        #: The smallest oversize of the run's canaries, which went on with another one.
        self._smallest = config.oversize
        self._tap = self._attach()

    def _with_game(self, header: RecordHeader) -> RecordHeader:
        """The header, with the canary, its coin and the game, where they are not the default."""
        return header

    @property
    def oversize(self) -> float:
        """Norm of the canaries over the clipping norm."""
        return self._smallest

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
        recorder = self.recorder.state()  # feeds the steps that wait, before entries are counted
        return {
            "recorder": recorder,
            "coins": self._rng.bit_generator.state,
            "entries": self.store.entries if self.store else 0,
            "kept": {name: copy.copy(getattr(self, name)) for name in self.kept},
            "lost": self.lost.state(),
            "norms": snapshot(self.step.norms),
            "usual_parts": self._parts.usual,
            "moves_outside": snapshot(self.weights),
            "oversize": self._smallest,
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
        changed = self.recorder.load(state["recorder"])
        self._rng.bit_generator.state = state["coins"]
        since = [*self.notes, *changed]
        for name in self.kept:
            setattr(self, name, copy.copy(state["kept"][name]))
        self.notes += [note for note in since if note not in self.notes]
        self.lost.load(state["lost"])
        self._parts.usual = state["usual_parts"]
        self.weights = restore(state["moves_outside"])
        self._smallest = min(self._smallest, state["oversize"])
        if self.step.norms is not None and state["norms"] is not None:
            self.step.norms = restore(state["norms"])

    def _attach(self) -> GradientTap:
        return self._tap_kind(
            self.step.inner,
            self.step.params,
            self._coordinates.by_tensor,
            self._before,
            self._after,
            self._look_at_lost,
        )

    def follow(self, step: DPSGDStep) -> bool:
        """Go on with a new optimizer over the same parameters; False if they differ."""
        same = [id(p) for p in step.params] == [id(p) for p in self.step.params]
        if same:
            earlier, self._earlier = self._earlier, None
            self.detach()
            self._earlier = earlier
            step.norms = self.step.norms
            self.step = step
            self._tap = self._attach()
        return same

    @property
    def _shown(self) -> bool:
        """Whether the training's own code shows where its noise is in."""
        return False

    def lacks(self) -> list[str]:
        """What stands in the way of a pass, in sentences."""
        if not self.processing.followed and self.recorder.header.signal == 1.0:
            return [*self.missing, _NOT_FOLLOWED]
        certain = not self.late_readings and (self._shown or shows_its_noise(self.step.optimizer))
        if not certain and self.recorder.released.tensors.min() < 1.0:
            return [*self.missing, f"{_ZEROS}; {SHOW_THE_RELEASE}"]
        return self.missing

    def start_batch(self) -> None:
        """Forget a step that broke off: with a new batch none is under way."""
        self._tap.reset()
        self._withdraw()

    def inject_late(self) -> None:
        """See `StepPlanner.inject_late`; what follows is clipping and noise."""
        super().inject_late()
        if self._ranks.several and self.recorder.steps < STEPS:
            self.draws.start(self.step.noise_state())

    def end_batch(self) -> None:
        """A batch was trained on."""

    def end_epoch(self) -> None:
        """Forget the size of the epoch's last batch, which is smaller for many loaders."""
        del self.batch_sizes[-1:]

    def detach(self) -> None:
        """Take the hooks off; what was observed stays."""
        self._tap.remove()
        self._withdraw()
        self._take_back()

    def noise_is_in(self) -> None:
        """The noise was added: read the gradient before anything else is done to it."""
        if self._changed_at is not None:
            return
        with contextlib.suppress(ValueError):
            claim = self._claim()
            std = claim.noise_multiplier * claim.max_grad_norm
            step = self.step
            self._divided_by = divisor_at_cut(step.optimizer, step.params, std, claim.scale)
            self._tap.read_now()

    def _before(self) -> FloatArray | None:
        """What the canaries that are in add to the gradient under the claim, by coordinate."""
        number = self.recorder.steps
        if self._ranks.several and number < STEPS:
            self.draws.end(number, self.step.noise_state())
        self._noise.read(self.step, number, self._rows_of_step(), self._tap.grads())
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
        return self._plan.amounts(self._divisor(self._plan.claim), self._coordinates.size)

    def _divisor(self, claim: StepClaim) -> float:
        """What the noisy sum was divided by where it is read."""
        return claim.scale if self._divided_by is None else self._divided_by

    def _rows_of_step(self) -> int | None:
        """Samples that were clipped for the step, canaries included; None if unknown."""
        return self.step.batch_size()

    def _look_at_lost(self) -> None:
        """Before an update whose gradient was not read as finite: see which records made it so."""
        params = self.step.params
        if self._changed_at is None and not all_finite([p.grad for p in params]):
            rows = self._rows_of_data(self.step.lost_rows()) if all_finite(params) else None
            self.lost.add(self.recorder.steps, rows)

    def _rows_of_data(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Rows of per-sample gradients without the audit's own."""
        return rows

    def _after(self, reading: Reading) -> None:
        plan = self._plan or self._unplanned()
        if plan.status == INJECTED and plan.coins.any():
            self._clear_sums(plan)
        self._withdraw()  # the update is done; what the user reads of the gradients is the batch's
        if reading.unclear:
            self._lack(_UNCLEAR)
        values = reading.values
        if reading.replaced or self._changed_at is not None:
            # Raw gradients, or those of another set of parameters: nothing to test or to keep.
            values = np.full(len(values), np.nan)
        if self._ranks.several:
            read = bytes([reading.replaced]) + values.tobytes()
            self.checksum = zlib.crc32(read, self.checksum)
        claim = plan.claim
        divisor, self._divided_by = self._divisor(claim), None
        self.late_readings += not reading.at_cut
        self.raw_readings += reading.raw
        unit, noise = self._noise.seen(claim, int(plan.coins.sum()), divisor, reading.factor)
        readable = not reading.unclear and bool(np.isfinite(values).all())
        sums = values * unit
        if reading.moves is not None and claim.noise_multiplier > 0:
            self.weights.update(reading.moves, sums / claim.noise_multiplier)
        dead = None
        if reading.dead is not None:
            self._note(_ZEROS)
            dead = dead_entries(plan, reading.dead, self._coordinates)
        fine = self.recorder.header.signal == 1.0  # low precision leaves a rest of each canary
        at = self._coordinates.witness_at
        if reading.at_cut and not reading.replaced:
            used = None if reading.used is None else reading.used[at]
            self.processing.update(reading.values[at], used)
        self.recorder.take(
            SeenStep(
                claim=claim,
                status=plan.recorded,
                coins=plan.coins,
                readings=self._readings(plan, sums, reading.dead),
                witnesses=sums[at],
                epoch=self.epoch,
                replaced=reading.replaced,
                sample_rate=self._sample_rate(claim.accumulated),
                noise=noise if readable else None,
                dead=dead,
                used=used_step(plan, reading, self._coordinates) if fine else None,
            )
        )
        self._canary_steps += plan.status == INJECTED

    def _clear_sums(self, plan: StepPlan) -> None:
        """Leave no canary in the clipped sums, which Opacus keeps until it zeroes the gradients."""
        plan.take_out([clipped_sum(p, p.grad) for p in self.step.params])

    def _readings(
        self, plan: StepPlan, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        """Inner products with the canaries' directions; what was taken out counts as read."""
        return plan.readings(values, dead)
