"""Exact test of a privatize function's clipping: two calls with the same noise.

The releases of a batch and of the batch without one gradient differ by that gradient's
contribution alone, which must be at most the clipping norm. The test costs no error probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lightning_audit.blackbox.frozen_noise import FrozenNoise
from lightning_audit.blackbox.outputs import MechanismError
from lightning_audit.blackbox.probes import Probe, Released, ShiftReading
from lightning_audit.replay.questions.crafted_gradients import CraftedGradients, Trial
from lightning_audit.stats._arguments import Floats

__all__ = ["ExactReading", "read_exactly"]

#: Tolerated rounding, in clipping norms: in single precision, and in lower precision.
_TOLERATED, _TOLERATED_LOW = 2e-3, 0.1
#: Error of a sum of unclipped gradients, in clipping norms, above which the precision is lower,
#: and above which it cannot be rounding.
_LOW_PRECISION, _NO_ROUNDING = 1e-4, 0.075
#: Smallest number of seeds under which each probe is read.
_LOOKS = 8
#: Noise entries that are searched for equal values, and the most that continuous noise may have.
_ENTRIES, _EQUAL = 1000, 2
#: For releases on a lattice: largest number of calls for a shift, number of calls after which a
#: shift within the limit is accepted, least shift that is detected, and number of standard errors.
_LATTICE_CALLS, _FEW, _LATTICE_RESOLUTION, _ERRORS = 256, 16, 1.15, 6.0
_MILLION, _SAME = math.log(1e6), 1e-5
#: Norm from which clipping is clearly visible, and relative difference of equal sizes.
_PLAIN, _ALIKE = 2.9, 0.1


@dataclass(frozen=True)
class ExactReading:
    """How far single gradients move the release, with the noise held fixed.

    Args:
        sizes: Norm of the difference over C, by trial.
        found: Trials whose size exceeds what clipping allows, the largest first.
        limit: Largest size that rounding explains.
        alike: Whether all gradients of at least three times C move the release as if they were
            clipped to one norm above C, or not clipped.
        reason: Why nothing was read; empty if it was.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    found: Sequence[str] = ()
    limit: float = 1.0
    alike: bool = False
    reason: str = ""

    def describe(self) -> str:
        """Return the finding as text: two digits, or as many as show that the size exceeds C."""
        largest = self.found[0]
        size = self.sizes[largest]
        told = f"{size:.2g}" if size >= 1.1 else f"{size:.4g}"
        return (
            f"a single gradient moves the release by {told} times C "
            f'("{largest}"; {len(self.found)} of {len(self.sizes)} crafted gradients)'
        )


def read_exactly(
    released: Released,
    probes: Mapping[str, Probe],
    along: Floats,
    batch_size: int,
    batches: str,
    calls: int,
    seed: int,
) -> tuple[ExactReading, dict[str, ShiftReading]]:
    """Read the crafted gradients and the shifts of the probes.

    Args:
        released: The function under audit.
        probes: Gradients whose shifts distinguish faults.
        along: Unit vector with a part in every tensor, ``[d]``.
        batch_size: Number of gradients in a usual batch.
        batches: "fixed" if a gradient is replaced by zeros, so that all batches have the same
            size; "poisson" if it is left out.
        calls: Ten times the number of seeds under which each probe is read.
        seed: Seed of the gradients and of all calls.

    Returns:
        The reading, and the shift of each probe; no shifts if the reading gives a reason.

    Raises:
        MechanismError: As in `Released`, for batches of the usual size.
    """
    frozen = FrozenNoise(released)
    crafted = CraftedGradients(released.sizes, batch_size, seed)
    reader = _Reader(frozen, crafted, along, batch_size, batches == "fixed", calls, seed)
    try:
        if reason := reader.obstacle():
            return ExactReading(reason=reason), {}
        shifts = {name: reader.shift(probe) for name, probe in probes.items()}
        if any(shift is None for shift in shifts.values()):
            reason = (
                "its random numbers depend on the gradients, or sometimes come from another source"
            )
            return ExactReading(reason=reason), {}
        return reader.trials(), {n: shift for n, shift in shifts.items() if shift is not None}
    finally:
        frozen.put_back()


class _Reader:
    """Reads one function with fixed noise."""

    def __init__(
        self,
        frozen: FrozenNoise,
        crafted: CraftedGradients,
        along: Floats,
        batch: int,
        fixed: bool,
        calls: int,
        seed: int,
    ) -> None:
        self._frozen, self._crafted, self._along = frozen, crafted, along
        self._batch, self._fixed = batch, fixed
        self._looks = max(calls // 10, _LOOKS)
        self._seeds = itertools.count(1_000_003 * (seed + 1))

    def obstacle(self) -> str:
        """Return why nothing can be read; empty if it can."""
        return self._frozen.obstacle(self._equal_ones, next(self._seeds))

    def shift(self, probe: Probe) -> ShiftReading | None:
        """Return the shift of a probe; None if the noise differs between the calls."""
        jumps = self._on_a_lattice
        calls = self._lattice_calls if jumps else max(self._looks, len(probe.batches))
        values = []
        for number in range(calls):
            rows = probe.batches[number % len(probe.batches)]
            gap = self._frozen.difference(rows, probe.without, next(self._seeds), sure=not jumps)
            if gap is None:
                return None
            values.append(float(gap @ probe.along) / probe.gradients)
        found = (_surely(values) if jumps else max(values)) > self._limit
        return ShiftReading(
            float(np.mean(values)), math.inf if found else 0.0, probe.gradients, 2 * calls
        )

    def trials(self) -> ExactReading:
        """Leave out each crafted gradient in turn, and read the difference."""
        sizes: dict[str, float] = {}
        norms: dict[str, float] = {}
        for trial in self._crafted.trials():
            if self._fixed and len(trial.rows) != self._batch:
                continue
            size = self._size_of(trial)
            if size is None:
                continue
            sizes[trial.name] = size
            norms[trial.name] = float(trial.rows[trial.left_out].norm())
        found = [
            name for name in sorted(sizes, key=lambda n: -sizes[n]) if sizes[name] > self._limit
        ]
        largest = max(sizes.values(), default=0.0)
        alike = bool(found) and all(
            abs(sizes[name] / min(norm, largest) - 1.0) < _ALIKE
            for name, norm in norms.items()
            if norm >= _PLAIN
        )
        return ExactReading(sizes, found, self._limit, alike)

    # ------------------------------------------------------------------ one trial

    def _size_of(self, trial: Trial) -> float | None:
        """Return the norm of the difference; None if it cannot be read."""
        neighbours = [trial.with_zeros] if self._fixed else [trial.neighbour, trial.with_zeros]
        for neighbour in neighbours:
            rows, others = trial.rows.numpy(), neighbour.numpy()
            seed = next(self._seeds)
            # Some functions reject batches of another size.
            try:
                gap = self._frozen.difference(rows, others, seed)
            except MechanismError:
                continue
            if gap is None:
                continue
            size = float(np.linalg.norm(gap))
            if size > 1.0 + self._tolerated and self._on_a_lattice:
                return self._on_average(rows, others)
            return size
        return None

    def _on_average(self, rows: Floats, others: Floats) -> float | None:
        """Return the norm of the mean difference on a lattice, as a safe lower value.

        A release on a lattice jumps in whole steps, at positions that depend on its noise. Half of
        the calls gives the direction, and the other half is read along it.
        """
        gaps: list[Floats] = []
        while len(gaps) < self._lattice_calls:
            gap = self._frozen.difference(rows, others, next(self._seeds), sure=False)
            if gap is None:
                return None
            gaps.append(gap)
            if len(gaps) == _FEW and (mean := float(np.mean(_halved(gaps)))) <= self._limit:
                return mean
        return _surely(_halved(gaps))

    # ------------------------------------------------------------------ precision

    @cached_property
    def _equal_ones(self) -> Floats:
        """A batch of equal gradients of norm C / 2: none is clipped, and all add up."""
        return np.tile(0.5 * self._along, (self._batch, 1))

    @cached_property
    def _tolerated(self) -> float:
        """Tolerated rounding, from the error of a sum of unclipped gradients."""
        rows = self._equal_ones
        gap = self._frozen.difference(rows, np.zeros_like(rows), next(self._seeds))
        if gap is None:
            return _TOLERATED
        # A common scale factor is not rounding.
        error = float(np.linalg.norm(gap - (gap @ self._along) * self._along))
        if error <= _LOW_PRECISION:
            return _TOLERATED
        # Gradients of norm C add up to twice as much.
        return max(_TOLERATED_LOW, 6.0 * error if error <= _NO_ROUNDING else 0.0)

    @cached_property
    def _limit(self) -> float:
        least = _LATTICE_RESOLUTION if self._on_a_lattice else 1.0
        return max(least, 1.0 + self._tolerated)

    @property
    def _lattice_calls(self) -> int:
        return min(max(2 * self._noise_calls, 64), _LATTICE_CALLS)

    @property
    def _noise_calls(self) -> int:
        return min(math.ceil(_ENTRIES / len(self._along)), _LATTICE_CALLS)

    @cached_property
    def _on_a_lattice(self) -> bool:
        """Whether releases take few values: integer noise, rounded noise or low precision."""
        rows = np.zeros_like(self._equal_ones)
        calls = range(self._noise_calls)
        noise = [self._frozen.release(rows, next(self._seeds)) for _ in calls]
        values = np.array(noise)[:, np.any(noise, axis=0)].ravel()[:_ENTRIES]
        return not len(values) or len(values) - len(np.unique(values)) > _EQUAL


def _halved(gaps: Sequence[Floats]) -> Floats:
    """Return the second half of differences along the mean of the first half."""
    half = len(gaps) // 2
    along: Floats = np.mean(gaps[:half], axis=0)
    along /= max(float(np.linalg.norm(along)), 1e-12)
    return np.array([gap @ along for gap in gaps[half:]])


def _surely(values: Sequence[float] | Floats) -> float:
    """Return a value that the mean of jumps exceeds: the mean less six standard errors.

    If all values are equal, the mean is scaled by the smallest probability of a jump for which
    this outcome has a probability of one in a million.
    """
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    if np.ptp(values) <= _SAME * abs(mean):
        return mean * math.exp(-_MILLION / len(values))
    return mean - _ERRORS * error
