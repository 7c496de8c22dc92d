"""Turns the reading of each step into an entry of the record, and passes it to the checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.checks.check import (
    Evidence,
    evidence_in,
    flagged,
    judge_again,
    refuse_others,
)
from lightning_audit.checks.monitor import AuditMonitor, NoiseChannelChecks
from lightning_audit.checks.noise import SHOW_THE_RELEASE
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.checks.update import ReleaseProcessing
from lightning_audit.dpsgd.opacus import all_finite
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import (
    ENTERED,
    NOT_PLANNED,
    Kept,
    Observation,
    ObservationStore,
    RecordHeader,
    restore,
    snapshot,
)
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import UseOfRelease

# --- Turns the reading of each step into an entry of the record, and passes it to the checks.

#: Note for steps with entries that are exactly zero.
ZEROS = (
    "entries of the gradient were exactly zero, noise included; if an inserted canary was read as "
    "exactly zero too, they count as not part of the release"
)
_NOT_FOLLOWED = (
    "the post-processing of the noisy gradient could not be followed, so that the update may use "
    "other data than the release; entrywise functions and sums over steps can be followed"
)
_BEHIND = (
    "a backward pass ran between the noise and the update, and no replay of such a step showed "
    "that its records are public; state examinations=10, so that more steps are replayed"
)


#: Reported if unclipped canaries occurred in so few steps that it may be chance.
_PASSES_AT_TIMES = (
    "sums are longer than clipping allows, and canaries passed with much more than max_grad_norm "
    "in a few steps: clipping may be missing at times; train more steps to confirm it. Look for "
    "what decides whether a gradient is clipped: values, losses or norms of its batch, its "
    "position, the last batch of an epoch"
)


class Recorder(Kept):
    """Feeds steps to the record and to the checks, in blocks after the first `PROMPT` steps.

    The checks of the record compute the steps of a block together, each with the centers and the
    wealth that the steps before it leave: the numbers are those of single steps, and their proofs
    hold. Single steps cost more, and evict the training's data from the processor's caches. A
    reading that no correct step gives is fed immediately.

    Args:
        header: describes the entries.
        significance: significance of the whole run.
        witnesses: the probe coordinates.
        store: the record on disk; None for no record.
        rng: generator of the noise that replaces entries that are not part of the release.
    """

    # The monitor and the checks of the noise are kept, too.
    KEPT = ("use", "zeros_are_public", "released", "clipping_is_broken", "canary_steps")

    #: Largest number of steps that wait for evidence on whether zeros are part of the release.
    PATIENCE = 5
    #: Steps per block, and number of steps at the start that are fed one by one.
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
        #: Whether an inserted canary was read as exactly zero somewhere.
        self.zeros_are_public = False
        #: Shares of the read entries that were released.
        self.released = ReleasedShares(header.witnesses, len(header.canaries))
        self.header = header
        self.store = store
        self.clipping_is_broken = False
        self._monitor = AuditMonitor(header, significance)
        self._reducer = WitnessReducer(witnesses)
        #: Checks of the noise itself; up to date after `digest`.
        self._noise = NoiseChannelChecks(header, significance, fine=header.signal == 1.0)
        self.use = UseOfRelease(significance, header.coin_probability)
        self.processing = ReleaseProcessing()
        self._waiting: list[Observation] = []
        #: Number of steps, and of those with canaries, fed or pending.
        self.steps = self.canary_steps = 0
        #: Number of tests that have flagged, as of the last steps that were fed; and the number
        #: among those with the same data in all processes.
        self.flagged = self.flagged_alike = 0
        #: Whether the last step is pending, so that these counts do not include it.
        self.waits = False
        self._watch_tests()

    @property
    def monitor(self) -> AuditMonitor:
        """The checks after the last step, or before steps that may be the largest entries alone."""
        self._feed()
        return self._monitor

    def _feed(self) -> None:
        if not (self._undecided() and all(map(_is_chosen, self._waiting))):
            self.digest()

    @property
    def tests(self) -> list[Evidence]:
        """All tests of the steps."""
        return [*self._alike, *self._own]

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks that see the steps of one optimizer."""
        monitor = self.monitor
        loud = monitor.clipping_is_broken or self._passes_at_times
        noise = self._noise.results(clips=not loud)
        use = self.use
        own = (use.result(c) if c.name == use.evidence.name else c for c in monitor.results())
        return (*own, *noise)

    @property
    def _passes_at_times(self) -> bool:
        """Whether sums are too long (noise inside them, if any) and some canaries read large."""
        return self._noise.excess.sums_are_long and bool(self._monitor.sensitivity.loud.numbers)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller for larger batches."""
        self._feed()
        return self._noise.divisor.shrinks_with_batch

    def pass_blockers(self, *, at_cut: bool, alone: Sequence[int] = ()) -> list[str]:
        """Return what of the releases prevents a pass, as text.

        Args:
            at_cut: whether every step was read right after its noise was added.
            alone: replayed steps whose update used only their release.
        """
        self._feed()
        if self._passes_at_times:
            return [_PASSES_AT_TIMES]
        if not self.is_followed(alone):
            return [_BEHIND if self.processing.behind else _NOT_FOLLOWED]
        if not at_cut and self.released.tensors.min() < 1.0:
            return [f"{ZEROS}; {SHOW_THE_RELEASE}"]
        return []

    def is_followed(self, alone: Sequence[int]) -> bool:
        """Return whether post-processing was followed, or a replay found it uses only releases.

        Called at every step, so it covers only the steps that were fed.

        Args:
            alone: replayed steps whose update used only their release.
        """
        processing = self.processing
        low = self.header.signal != 1.0
        if processing.followed or (low and not processing.behind):
            return True
        return any(map(processing.was_unexplained, alone))

    def take(self, seen: Observation) -> None:
        """Add a step."""
        self._waiting.append(seen)
        self.steps += 1
        self.canary_steps += seen.canaries in ENTERED
        self.zeros_are_public |= seen.dead_canary
        self.waits = True
        if self._undecided():
            return
        if self.steps <= self.PROMPT or self.steps % self.BLOCK == 0 or _is_striking(seen):
            self.digest()
            self.waits = False
            # Updated only here, so that reading `monitor` does not change the run.
            self.clipping_is_broken = self._monitor.clipping_is_broken
            self.flagged_alike = flagged(self._alike) + (self._monitor.replaced_steps > 0)
            self.flagged = self.flagged_alike + flagged(self._own)

    def _watch_tests(self) -> None:
        self._alike = list(evidence_in(self._monitor))
        self._own = list(evidence_in([self._noise, self.use]))

    def _undecided(self) -> bool:
        """Return whether to wait for evidence that zeros are not part of the release."""
        zeros = [seen for seen in self._waiting if seen.dead_witnesses is not None]
        patience = self.PATIENCE * (4 if all(map(_is_chosen, zeros)) else 1)
        return bool(zeros) and not self.zeros_are_public and len(self._waiting) < patience

    def _without_dead(self, seen: Observation) -> Observation:
        """Return the step with fresh claimed noise where it was not released.

        That is at the probe coordinates that are zero. Along a canary it is the part of its
        direction that was released which is read; noise, if there is none.
        """
        dead, sigma = seen.dead_witnesses, seen.noise_multiplier
        silent = seen.canaries == NOT_PLANNED and seen.dead_tensors
        if dead is None or sigma <= 0 or not (self.zeros_are_public or silent):
            self.released.update(None, seen.live)
            return seen
        self.released.update(dead, seen.live)
        noise = sigma * self._rng.standard_normal(len(dead))
        along = sigma * self._rng.standard_normal(len(seen.readings))
        share = np.sqrt(np.where(seen.live > 0, seen.live, 1.0))
        return seen.having(
            witnesses=np.where(dead, noise, seen.witnesses),
            readings=np.where(seen.live > 0, seen.readings / share, along),
            released=None,
        )

    def digest(self) -> None:
        """Feed the pending steps."""
        waiting, self._waiting = [*map(self._without_dead, self._waiting)], []
        if not waiting:
            return
        entries = np.zeros(len(waiting), dtype=self.header.dtype)
        for i, seen in enumerate(waiting):
            entries[i] = seen.entry(self.header)
        entries["step"] = self._monitor.steps + np.arange(len(waiting))
        steps = dict(zip(entries["step"].tolist(), waiting, strict=True))
        if (claimed := entries["noise_multiplier"] > 0).any():
            rows = np.stack([seen.witnesses for seen in compress(waiting, claimed)])
            about = (entries[name][claimed] for name in ("noise_multiplier", "epoch"))
            for name, column in self._reducer.reduce(rows, *about).items():
                entries[name][claimed] = column
        for block in Observation.blocks(entries, self.header.planned_end):
            self._monitor.update(block)
            if self.store is not None:
                self.store.append(block)
        for number, seen in steps.items():
            if seen.released is not None:
                self._noise.update(seen.having(step=number))
            if seen.followed is not None:
                self.processing.update(number, *seen.followed, behind=seen.behind)
        along = {n: seen.along for n, seen in steps.items() if seen.along is not None}
        if along and self.header.signal == 1.0:  # low precision leaves a residue of each canary
            coins = np.stack([steps[number].coins for number in along])
            self.use.update([*along], coins, [*along.values()])

    def flush(self) -> None:
        """Feed the pending steps, and flush the record to the operating system."""
        self.digest()
        if self.store is not None:
            self.store.flush()

    def close(self) -> None:
        """Feed the pending steps, and close the record."""
        self.digest()
        if self.store is not None:
            self.store.close()

    def state(self) -> dict[str, Any]:
        """Flush the record, and return everything that `load` needs, as plain data."""
        self.flush()
        return {
            "header": snapshot(self.header),
            "monitor": snapshot(self._monitor),
            "reducer": snapshot(self._reducer),
            "noise": self._noise.state(),
            **super().state(),
        }

    def resume(self, state: dict[str, Any]) -> list[str]:
        """Restore a state, and judge all of it by this recorder's significance.

        Returns:
            Changes of results due to a new significance, as text.

        Raises:
            ValueError: the checkpoint's audit had other canaries, coefficients, checks or version.
        """
        header = restore(state["header"])
        kept, now = header.noise_coefficients, self.header.noise_coefficients
        if kept != now:
            raise ValueError(
                f"claim.noise_coefficients={now} is not what the checkpoint's steps were read "
                f"against: they are {kept} there; resume with the checkpoint's, or audit the "
                "following steps as a separate training, without the checkpoint."
            )
        if header != self.header:
            raise ValueError(
                f"the checkpoint's audit has canaries {list(header.canaries)} over "
                f"{len(header.tensors)} tensors, this one {list(self.header.canaries)} over "
                f"{len(self.header.tensors)}; resume with the same canaries, num_canaries and "
                "precision."
            )
        significance = self._monitor.significance
        monitor = restore(state["monitor"])
        refuse_others(self._monitor.shares, monitor.shares)
        self._monitor, self._reducer = monitor, restore(state["reducer"])
        self.steps = self._monitor.steps
        self._noise.resume(state["noise"], self.steps)
        super().load(state)
        self._watch_tests()
        if self._monitor.significance == significance:
            return []
        return self._judge_by(significance)

    def _judge_by(self, significance: float) -> list[str]:
        self._monitor.significance = significance
        new, gone = judge_again(evidence_in([self._monitor, self._noise, self.use]), significance)
        stopped, self.clipping_is_broken = self.clipping_is_broken, self._monitor.clipping_is_broken
        said = [
            f"by the significance from step {self.steps + 1} on, {words}: {', '.join(names)}"
            for words, names in (("flagged by the steps before", new), ("no longer violated", gone))
            if names
        ]
        if stopped and not self.clipping_is_broken:
            said.append(f"canaries enter again from step {self.steps + 1} on")
        return said


def _is_striking(seen: Observation) -> bool:
    """Return whether a reading is 10 standard deviations off, or the gradient was replaced."""
    off = np.abs(seen.readings - seen.coins).max(initial=0.0)
    return seen.replaced or not off <= 1.0 + 10.0 * seen.noise_multiplier


def _is_chosen(seen: Observation) -> bool:
    """Return whether entries that are not zero, read after the cut, are as large as claimed noise.

    They may be those that were chosen because they are large.
    """
    if seen.at_cut or seen.dead_witnesses is None:
        return False
    left = seen.witnesses[~seen.dead_witnesses]
    return len(left) > 0 and float(np.sqrt(np.mean(left**2))) >= seen.noise_multiplier


class ReleasedShares:
    """Shares of the read entries that were released, over all steps.

    Args:
        witnesses: number of probe coordinates of each tensor.
        canaries: number of canaries of a step.
    """

    def __init__(self, witnesses: Sequence[int], canaries: int) -> None:
        self._tensor = np.repeat(np.arange(len(witnesses)), witnesses)
        self._counts = np.maximum(np.asarray(witnesses, dtype=np.float64), 1.0)
        self._filled = np.zeros(len(witnesses))
        self._live = np.zeros(canaries)
        self._steps = 0

    def update(self, dead: NDArray[np.bool_] | None, live: FloatArray) -> None:
        """Add a step.

        Args:
            dead: probe coordinates that were not released, ``[w]``; None if all were.
            live: share of each canary's squared norm on released entries, ``[k]``.
        """
        self._steps += 1
        if dead is None:
            self._live += 1.0
            return
        self._live += live
        self._filled += np.bincount(self._tensor[dead], minlength=len(self._filled))

    @property
    def canaries(self) -> FloatArray:
        """Released share of each canary's squared norm, ``[k]``."""
        return np.asarray(self._live / self._steps) if self._steps else np.ones(len(self._live))

    @property
    def tensors(self) -> FloatArray:
        """Released share of each tensor's probe coordinates, ``[number of tensors]``."""
        return np.asarray(1.0 - self._filled / (self._counts * max(self._steps, 1)))


# --- Steps whose gradient was not finite although the parameters were, over all processes.


class LostSteps(Kept):
    """Per such step: number of samples whose gradient was not finite, and of all samples.

    All processes share a step's gradient, and each sees only its own samples. The counts of all
    processes are added.
    """

    # No number of samples: those are of the data.
    KEPT = ("count",)

    #: Number of steps whose counts are kept.
    MOST = 16

    def __init__(self) -> None:
        self.count = 0
        #: Whether the weights were finite before the coming step.
        self.weights_finite = True
        self._own: dict[int, tuple[int, int]] = {}
        self._of_all: dict[int, tuple[int, int]] = {}

    def look(
        self,
        number: int,
        rows: torch.Tensor | None,
        params: Sequence[torch.Tensor],
        *,
        finite: bool,
    ) -> None:
        """Count, after the update, the samples whose gradients made the step's not finite.

        Args:
            number: number of earlier steps.
            rows: which of the data's gradients are not finite, ``[n]``; None if unknown.
            params: the parameters after the update.
            finite: whether the step's gradient was finite.
        """
        weights, self.weights_finite = self.weights_finite, True
        if not finite:
            self.add(number, rows if weights else None)
            self.weights_finite = all_finite(params)

    def add(self, step: int, rows: torch.Tensor | None) -> None:
        """Add a step.

        Args:
            step: its number.
            rows: which samples' gradients are not finite, ``[n]``; None if unknown.
        """
        self.count += 1
        if rows is not None and len(self._own) + len(self._of_all) < self.MOST:
            self._own[step] = (int(rows.sum()), len(rows))

    def numbers(self) -> list[int]:
        """Return this process's counts for the others; the same length in every process."""
        flat = [n for step, counts in self._own.items() for n in (step, *counts)]
        return flat + [-1] * (3 * self.MOST - len(flat))

    def hear(self, counts: Sequence[Sequence[int]]) -> None:
        """Add the `numbers` of all processes, including this one."""
        for numbers in counts:
            for step, lost, rows in zip(*[iter(numbers)] * 3, strict=True):
                if step >= 0:
                    known = self._of_all.get(step, (0, 0))
                    self._of_all[step] = (known[0] + lost, known[1] + rows)
        self._own = {}

    @property
    def first(self) -> tuple[int, int, int] | None:
        """First step with some, not all samples not finite: its number, that count, all."""
        steps = sorted({**self._own, **self._of_all}.items())
        return next(((s, lost, rows) for s, (lost, rows) in steps if 0 < lost < rows), None)
