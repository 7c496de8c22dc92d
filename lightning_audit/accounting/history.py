"""The claims of the steps so far, in order, and as runs of equal steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from lightning_audit import _validate

# --- Phases of a training: runs of equal steps, merged and bucketed.


@dataclass(frozen=True)
class Phase:
    """A run of equal steps of the Poisson-subsampled Gaussian mechanism.

    Args:
        noise_multiplier: Noise standard deviation over sensitivity, >= 0; 0 means no noise.
        sample_rate: Probability in (0, 1] with which each record joins a step's batch; None if
            unknown.
        steps: Number of steps, >= 1.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> Phase(noise_multiplier=1.0, sample_rate=0.01, steps=1000)
        Phase(noise_multiplier=1.0, sample_rate=0.01, steps=1000)
    """

    noise_multiplier: float
    sample_rate: float | None
    steps: int

    def __post_init__(self) -> None:
        sigma = _validate.non_negative("noise_multiplier", self.noise_multiplier)
        rate = self.sample_rate
        if rate is not None:
            rate = _validate.rate("sample_rate", rate, "use 1.0 for full batches")
        steps = _validate.positive_int("steps", self.steps, "leave out phases without steps")
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "steps", steps)

    @property
    def known_rate(self) -> float:
        """The sample rate of steps that are composed.

        Raises:
            ValueError: If the rate is unknown.
        """
        if self.sample_rate is None:
            raise ValueError("sample_rate=None must be in (0, 1]; use 1.0 for full batches")
        return self.sample_rate


def rates_known(history: Iterable[Phase]) -> bool:
    """Return whether all of these steps have a known sample rate and can be composed."""
    return all(phase.sample_rate is not None for phase in history)


def leaking(history: Iterable[Phase], ratio: float) -> list[Phase]:
    """Return the phases with noise multipliers divided by ``ratio``: leakage over claim, > 0."""
    return [replace(phase, noise_multiplier=phase.noise_multiplier / ratio) for phase in history]


def bucket_up(sigma: float, ratio: float = 1.02) -> float:
    """Round a noise multiplier upward onto the geometric grid of the powers of ``ratio``.

    For noise schedulers, which may use another noise multiplier in every step. The result is
    between ``sigma`` and ``ratio * sigma``, and a point of the grid does not change.

    Args:
        sigma: Noise multiplier >= 0; 0 stays 0.
        ratio: Ratio of adjacent grid points, > 1.

    Returns:
        The smallest power of ``ratio`` that is not below ``sigma``.

    Raises:
        ValueError: If ``sigma`` is negative or infinite, or ``ratio`` is not above 1.

    Example:
        >>> bucket_up(1.0)
        1.0
        >>> round(bucket_up(1.001), 10)
        1.02
    """
    sigma = _validate.non_negative("sigma", sigma)
    if _validate.positive("ratio", ratio) <= 1:
        raise ValueError(f"ratio={ratio!r} must be a finite number > 1; use 1.02 for a 2 % grid.")
    if sigma == 0:
        return 0.0
    # On a grid point, the quotient of the logarithms may be off by a rounding error.
    power = math.ceil(math.log(sigma) / math.log(ratio)) - 1
    while ratio**power < sigma:
        power += 1
    return float(ratio**power)


def compress(
    history: Sequence[Phase], max_phases: int = 8, *, rounding: Literal["up", "mean"] = "up"
) -> list[Phase]:
    """Shorten a history: merge equal mechanisms, and similar noise multipliers if many remain.

    Merging phases of equal noise multiplier and sample rate changes nothing, because composition
    does not depend on the order. If more than ``max_phases`` mechanisms remain, noise multipliers
    are put into buckets of a geometric grid, 2 % wide and wider until few enough remain, and each
    bucket becomes one phase.

    With ``rounding="up"`` a bucket gets its upper end: epsilon becomes smaller, which is the safe
    side for a lower bound. With ``"mean"`` it gets the noise multiplier that keeps the mean of
    ``exp(1 / sigma^2) - 1``, the chi-square divergence of a step: for an epsilon spent.

    Args:
        history: Phases in any order.
        max_phases: Number of different mechanisms up to which nothing is rounded.
        rounding: Noise multiplier of a bucket, as above.

    Returns:
        The phases in the order of their first appearance, with the same total number of steps;
        more than ``max_phases`` only if there are more sample rates than that.

    Raises:
        ValueError: If ``max_phases`` is not a whole number >= 1.

    Example:
        >>> compress([Phase(1.0, 0.01, 10), Phase(2.0, 0.01, 5), Phase(1.0, 0.01, 20)])
        ... # doctest: +NORMALIZE_WHITESPACE
        [Phase(noise_multiplier=1.0, sample_rate=0.01, steps=30),
         Phase(noise_multiplier=2.0, sample_rate=0.01, steps=5)]
    """
    _validate.positive_int("max_phases", max_phases)
    merged = merge(history)
    enough = max(max_phases, len({phase.sample_rate for phase in merged}))
    ratio, short = 1.02, merged
    while len(short) > enough and ratio < 1e6:
        short = _bucketed(merged, ratio, rounding)
        ratio **= 2
    return short


def _bucketed(
    history: Sequence[Phase], ratio: float, rounding: Literal["up", "mean"]
) -> list[Phase]:
    buckets: dict[tuple[float, float | None], list[Phase]] = {}
    for phase in history:
        key = (bucket_up(phase.noise_multiplier, ratio), phase.sample_rate)
        buckets.setdefault(key, []).append(phase)
    short = []
    for (upper, rate), phases in buckets.items():
        sigma = mean_noise(phases) if rounding == "mean" and upper > 0 else upper
        short.append(Phase(sigma, rate, sum(phase.steps for phase in phases)))
    return short


def mean_noise(phases: Sequence[Phase]) -> float:
    """Return the noise multiplier that keeps the mean chi-square divergence of the steps."""
    steps = sum(phase.steps for phase in phases)
    mean = sum(phase.steps * math.expm1(inverse_square(phase)) for phase in phases) / steps
    return 1.0 / math.sqrt(math.log1p(mean))


def inverse_square(phase: Phase) -> float:
    """Return ``1 / noise_multiplier^2``, capped so that its exponential is finite."""
    # Above 700, exp overflows; such small noise gives no privacy at any epsilon that is reported.
    return min(phase.noise_multiplier**-2, 700.0)


def merge(history: Iterable[Phase]) -> list[Phase]:
    """Add up phases with equal mechanisms, in the order of their first appearance."""
    steps: Counter[tuple[float, float | None]] = Counter()
    for phase in history:
        steps[phase.noise_multiplier, phase.sample_rate] += phase.steps
    return [Phase(sigma, rate, count) for (sigma, rate), count in steps.items()]


# --- The claims of the steps so far, in order.


class StepHistory:
    """The claims of the steps, with each run of equal claims kept once."""

    def __init__(self) -> None:
        self._sigmas: list[float] = []
        self._rates: list[float | None] = []
        # Number of the last step of each run, counted from 1.
        self._ends: list[int] = []

    def add(self, noise_multiplier: float, sample_rate: float | None, steps: int = 1) -> None:
        """Add equal steps; a rate of zero, at which no record would join, counts as unknown."""
        sample_rate = sample_rate or None
        step = self._ends[-1] + steps if self._ends else steps
        if self._ends and (self._sigmas[-1], self._rates[-1]) == (noise_multiplier, sample_rate):
            self._ends[-1] = step
            return
        self._sigmas.append(noise_multiplier)
        self._rates.append(sample_rate)
        self._ends.append(step)

    def noise_at(self, step: int | None = None) -> float:
        """Return the noise multiplier of a step, counted from 1; None: the last; 0 if none."""
        if not self._ends:
            return 0.0
        return self._sigmas[-1 if step is None else bisect_left(self._ends, step)]

    def runs(self, steps: int | None = None) -> tuple[Phase, ...]:
        """Return the runs of equal steps, in order, of the first ``steps`` steps; None: of all."""
        last = len(self._ends) if steps is None else bisect_left(self._ends, steps) + 1
        ends = [0, *self._ends[:last]]
        if steps is not None:
            ends[-1] = min(ends[-1], steps)
        counts = (end - begin for begin, end in pairwise(ends))
        return tuple(map(Phase, self._sigmas, self._rates, counts))

    def phases(self, steps: int | None = None) -> tuple[Phase, ...]:
        """Return `runs` with equal phases added up, in the order of their first appearance."""
        return tuple(merge(self.runs(steps)))
