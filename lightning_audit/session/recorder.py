"""Turns what was read of each step into entries of the record, and hands them to the checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_audit.checks.base.evidence import Evidence, evidence_in, judge_again
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_size import SHOW_THE_RELEASE
from lightning_audit.checks.noise.witnesses import Witnesses, WitnessReducer
from lightning_audit.checks.noise_channel import NoiseChannelChecks
from lightning_audit.checks.update.release_processing import ReleaseProcessing
from lightning_audit.layout import FloatArray
from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.record.store import NOT_PLANNED, ObservationStore, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.session.steps import ZEROS, ObservedStep, ZeroEntries
from lightning_audit.verdict.post_processing import UseOfRelease

_NOT_FOLLOWED = (
    "what is done to the gradient behind its noise could not be followed: the update may use other "
    "things than what was released; entry by entry, or as a sum over steps, it can be"
)


#: Of canaries that were not clipped in so few steps that it may be chance.
_PASSES_AT_TIMES = (
    "sums are longer than clipping allows, and canaries passed with much more than max_grad_norm "
    "in a few steps: clipping may be missing at times, which more steps make sure of. Look for "
    "what decides whether a gradient is clipped: values, losses or norms of its batch, its place, "
    "the last batch of an epoch"
)


class Recorder:
    """Feeds steps to the record and to the checks, several at a time once the first are done.

    Ten steps in a row cost half of what ten single ones cost, each with the training's data in the
    processor's caches. A reading that no correct step gives is fed at once.

    Args:
        header: what the entries mean.
        significance: of the whole run.
        witnesses: where the witnesses lie.
        store: the record on disk; None to keep none.
        rng: gives the noise that stands for entries that are no part of the release.
    """

    #: Steps that wait to be told whether zeros are no part of the release.
    PATIENCE = 5
    #: Steps that are fed at once, and steps at the start that are fed one by one.
    BLOCK, PROMPT = 10, 20

    def __init__(
        self,
        header: RecordHeader,
        significance: float,
        witnesses: Witnesses,
        store: ObservationStore | None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._rng = rng or np.random.default_rng()
        #: Whether a canary that had entered came out as zero.
        self._zeros_are_public = False
        #: How much of what is read was released.
        self.released = ReleasedShares(header.witnesses, len(header.canaries))
        self.header = header
        self.store = store
        self.clipping_is_broken = False
        self._monitor = AuditMonitor(header, significance)
        self._reducer = WitnessReducer(witnesses)
        #: What is seen of the noise itself; asked for after `digest`.
        self._noise = NoiseChannelChecks(
            significance, fine=header.signal == 1.0, tensors=header.tensors
        )
        self._use = UseOfRelease(significance, header.coin_probability)
        self._processing = ReleaseProcessing()
        self._waiting: list[ObservedStep] = []
        #: Steps taken in.
        self.steps = 0
        #: Number of tests that have flagged, as of the last steps that were fed; and of those that
        #: see the same in all processes.
        self.flagged = self.flagged_alike = 0
        #: Whether the last step has not been fed yet, so that these are as they were before it.
        self.waits = False
        self._watch_tests()

    @property
    def monitor(self) -> AuditMonitor:
        """The checks after the last step."""
        self.digest()
        return self._monitor

    @property
    def tests(self) -> list[Evidence]:
        """Every test of the steps."""
        return [*self._alike, *self._own]

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks that see the steps of one optimizer."""
        monitor = self.monitor
        loud = monitor.clipping_is_broken or self._passes_at_times
        noise = self._noise.results(clips=not loud)
        use = self._use
        own = (use.result(c) if c.name == use.evidence.name else c for c in monitor.results())
        return (*own, *noise)

    @property
    def _passes_at_times(self) -> bool:
        """Whether sums are too long, which noise within them may be, and canaries read large."""
        return self._noise.sums_are_long and bool(self._monitor.sensitivity.loud.numbers)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller where batches are larger."""
        self.digest()
        return self._noise.shrinks_with_batch

    def pass_blockers(self, *, at_cut: bool, alone: Sequence[int] = ()) -> list[str]:
        """What of the releases stands in the way of a pass, in sentences.

        Args:
            at_cut: whether every step was read where its noise is known to be in.
            alone: steps that were replayed and used their release alone.
        """
        self.digest()
        if self._passes_at_times:
            return [_PASSES_AT_TIMES]
        if not self.is_followed(alone):
            return [_NOT_FOLLOWED]
        if not at_cut and self.released.tensors.min() < 1.0:
            return [f"{ZEROS}; {SHOW_THE_RELEASE}"]
        return []

    def is_followed(self, alone: Sequence[int]) -> bool:
        """Whether what is done to releases was followed, or is what a replay saw to use them alone.

        As of the last steps that were fed: it is asked at every step.

        Args:
            alone: steps that were replayed and used their release alone.
        """
        processing = self._processing
        if processing.followed or self.header.signal != 1.0:
            return True
        return any(map(processing.was_unexplained, alone))

    def take(self, step: ObservedStep) -> None:
        """Take in a step."""
        self._waiting.append(step)
        self.steps += 1
        self._zeros_are_public |= step.dead is not None and step.dead.proved
        self.waits = True
        if self._undecided():
            return
        if self.steps <= self.PROMPT or self.steps % self.BLOCK == 0 or _is_striking(step):
            self.digest()
            self.waits = False
            # Looked at here alone, so that asking for the monitor changes nothing of the run.
            self.clipping_is_broken = self._monitor.clipping_is_broken
            self.flagged_alike = sum(test.violated for test in self._alike)
            self.flagged_alike += self._monitor.replaced_steps > 0
            self.flagged = self.flagged_alike + sum(test.violated for test in self._own)

    def _watch_tests(self) -> None:
        self._alike = list(evidence_in(self._monitor))
        self._own = list(evidence_in([self._noise, self._use]))

    def _undecided(self) -> bool:
        """Whether it may soon be known if zeros are no part of the release."""
        zeros = any(step.dead is not None for step in self._waiting)
        return zeros and not self._zeros_are_public and len(self._waiting) < self.PATIENCE

    def _without_dead(self, step: ObservedStep) -> ObservedStep:
        """The step's readings where something was released."""
        dead, sigma = step.dead, step.claim.noise_multiplier
        silent = step.status == NOT_PLANNED and dead is not None and dead.whole
        if dead is None or sigma <= 0 or not (self._zeros_are_public or silent):
            self.released.update(None)
            return step
        self.released.update(dead)
        return dataclasses.replace(
            step,
            witnesses=dead.filled(step.witnesses, sigma, self._rng),
            readings=dead.readings(step.readings, sigma, self._rng),
            noise=None,
        )

    def digest(self) -> None:
        """Feed the steps that wait."""
        waiting, self._waiting = self._waiting, []
        for step in map(self._without_dead, waiting):
            entry = self._entry(step)
            self._monitor.update(entry)
            if step.noise is not None:
                self._noise.update(step.noise, int(entry["step"]))
            if (used := step.used) is not None:
                self._use.update(int(entry["step"]), step.coins, used.rest, used.used, used.moved)
            if (made := step.followed) is not None:
                self._processing.update(int(entry["step"]), made.release, made.used)
            if self.store is not None:
                self.store.append(entry)

    def flush(self) -> None:
        """Feed the steps that wait, and hand the record to the operating system."""
        self.digest()
        if self.store is not None:
            self.store.flush()

    def close(self) -> None:
        """Feed the steps that wait, and close the record."""
        self.digest()
        if self.store is not None:
            self.store.close()

    def _entry(self, step: ObservedStep) -> Any:
        claim = step.claim
        fields = {
            "step": self._monitor.steps,
            "epoch": step.epoch,
            "canaries": step.status,
            "replaced": step.replaced,
            "noise_multiplier": claim.noise_multiplier,
            "max_grad_norm": claim.max_grad_norm,
            "scale": claim.scale,
            "sample_rate": math.nan if step.sample_rate is None else step.sample_rate,
            "coins": step.coins,
            "readings": step.readings,
        }
        if claim.noise_multiplier > 0:
            sums = self._reducer.reduce(step.witnesses, claim.noise_multiplier, step.epoch)
            fields |= sums
        entry = np.zeros((), dtype=self.header.dtype)
        for name, value in fields.items():
            entry[name] = value
        return entry

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs, as plain data; the entries so far are flushed first."""
        self.flush()
        return {
            "header": snapshot(self.header),
            "monitor": snapshot(self._monitor),
            "reducer": snapshot(self._reducer),
            "noise": self._noise.state(),
            "use": snapshot(self._use),
            "zeros_are_public": self._zeros_are_public,
            "released": snapshot(self.released),
            "clipping_is_broken": self.clipping_is_broken,
        }

    def load(self, state: dict[str, Any]) -> list[str]:
        """Go on from a state; all of it is judged by this recorder's significance.

        Returns:
            What another significance than the state's changes, in sentences.

        Raises:
            ValueError: the run had other canaries or noise coefficients, or was audited by another
                version.
        """
        header = restore(state["header"])
        kept, now = header.noise_coefficients, self.header.noise_coefficients
        if kept != now:
            raise ValueError(
                f"claim.noise_coefficients={now} is not what the checkpoint's steps were read "
                f"against: they are {kept} there; resume with the checkpoint's, or audit what "
                "follows as a training of its own, without ckpt_path."
            )
        if header != self.header:
            raise ValueError(
                f"the checkpoint's audit has canaries {list(header.canaries)} over "
                f"{len(header.tensors)} tensors, this one {list(self.header.canaries)} over "
                f"{len(self.header.tensors)}; resume with the same canaries, num_canaries and "
                "precision."
            )
        significance = self._monitor.significance
        self._monitor, self._reducer = restore(state["monitor"]), restore(state["reducer"])
        self.steps = self._monitor.steps
        self._noise.resume(state["noise"], self.steps)
        self._use = restore(state["use"])
        self._zeros_are_public = bool(state["zeros_are_public"])
        self.released = restore(state["released"])
        self.clipping_is_broken = state["clipping_is_broken"]
        self._watch_tests()
        if self._monitor.significance == significance:
            return []
        return self._judge_by(significance)

    def _judge_by(self, significance: float) -> list[str]:
        self._monitor.significance = significance
        new, gone = judge_again(evidence_in([self._monitor, self._noise, self._use]), significance)
        stopped, self.clipping_is_broken = self.clipping_is_broken, self._monitor.clipping_is_broken
        said = [
            f"by the significance from step {self.steps} on, {words}: {', '.join(names)}"
            for words, names in (("flagged by the steps before", new), ("no longer violated", gone))
            if names
        ]
        if stopped and not self.clipping_is_broken:
            said.append(f"canaries enter again from step {self.steps} on")
        return said


def _is_striking(step: ObservedStep) -> bool:
    """Whether a reading is ten standard deviations off, or the update used another gradient."""
    off = np.abs(step.readings - step.coins).max(initial=0.0)
    return step.replaced or not off <= 1.0 + 10.0 * step.claim.noise_multiplier


class ReleasedShares:
    """How much of what is read was released, over the steps that said so.

    Args:
        witnesses: number of witnesses of each tensor.
        canaries: number of canaries of a step.
    """

    def __init__(self, witnesses: Sequence[int], canaries: int) -> None:
        self._tensor = np.repeat(np.arange(len(witnesses)), witnesses)
        self._counts = np.maximum(np.asarray(witnesses, dtype=np.float64), 1.0)
        self._filled = np.zeros(len(witnesses))
        self._live = np.zeros(canaries)
        self._steps = 0

    def update(self, dead: ZeroEntries | None) -> None:
        """Take in a step; None where all of it was released."""
        self._steps += 1
        if dead is None:
            self._live += 1.0
            return
        self._live += dead.live
        self._filled += np.bincount(self._tensor[dead.witnesses], minlength=len(self._filled))

    @property
    def canaries(self) -> FloatArray:
        """Share of each canary's square norm, ``[k]``."""
        return np.asarray(self._live / self._steps) if self._steps else np.ones(len(self._live))

    @property
    def tensors(self) -> FloatArray:
        """Share of each tensor's witnesses."""
        return np.asarray(1.0 - self._filled / (self._counts * max(self._steps, 1)))
