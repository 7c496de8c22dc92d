"""Step from which on the bounds of the literature refute a claim, on an audit's observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from lightning_audit.record.store import ENTERED, RecordHeader
from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.named_bounds import named_bound
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.thresholds import Fixed, Maximum, ThresholdChoice, candidate_thresholds
from lightning_audit.stats.tradeoff import gaussian_epsilon

Floats = NDArray[np.float64]

METHODS = ("fdp_cp", "fdp_pooled_cp", "fdp_bayes", "eps_cp", "katz")
#: Half way between out and in, fixed in advance; and the largest bound of all, as in the papers.
CHOICES: Mapping[str, ThresholdChoice] = {"fixed": Fixed(0.5), "maximum": Maximum()}
SIGNIFICANCE = 0.05
#: Number of first steps after each of which there is a look; later looks are a tenth apart.
EACH = 20

#: For each method and choice of threshold, the steps that it needs; None if they were too few.
StepsNeeded = dict[str, dict[str, int | None]]


def looks(steps: int) -> Iterator[int]:
    """Yield the numbers of steps after which a bound is computed, the last one included."""
    n = 1
    while n < steps:
        yield n
        n += max(1, n // 10) if n >= EACH else 1
    if steps > 0:
        yield steps


def holds_from(steps: int, exceeds: Callable[[int], bool]) -> int | None:
    """Return the first look from which on a condition holds until the end.

    Args:
        steps: steps of the run.
        exceeds: whether it holds after the given number of steps.

    Returns:
        The number of steps; None if it does not hold at the end. Between two looks, which are at
        most a tenth apart above `EACH`, nothing is seen.
    """
    first = None
    for n in reversed(list(looks(steps))):
        if not exceeds(n):
            break
        first = n
    return first


def steps_needed(header: RecordHeader, entries: NDArray[np.void], delta: float) -> StepsNeeded:
    """Return, for each method, the steps from which on its bound is above the claim of a step.

    Each look is one of its own, at 95 %. A step claims mu of signal over noise multiplier; a
    bound on epsilon is held against the epsilon of that mu at ``delta``, as the papers do, also
    that of "katz", which is a bound at delta 0.

    Args:
        header: what the entries mean.
        entries: the record of a run.
        delta: delta of the epsilons.

    Returns:
        The steps by method and choice of threshold.
    """
    record = _Record(header, entries, delta)
    return {
        method: {
            name: holds_from(
                len(entries),
                lambda n, method=method, choice=choice: record.exceeds(n, method, choice),  # type: ignore[misc]
            )
            for name, choice in CHOICES.items()
        }
        for method in METHODS
    }


class _Record:
    """Scores of every prefix of the steps, and the claims of these steps."""

    def __init__(self, header: RecordHeader, entries: NDArray[np.void], delta: float) -> None:
        self._delta = delta
        self._coins = np.asarray(entries["coins"]) > 0
        readings = np.asarray(entries["readings"], dtype=np.float64)
        counted = np.isin(entries["canaries"], ENTERED)[:, None] & np.isfinite(readings)
        self._readings = np.where(counted, readings, np.nan)
        # The claim of the smallest noise multiplier implies the others.
        least = np.minimum.accumulate(np.asarray(entries["noise_multiplier"]))
        self._mu = header.signal / np.maximum(least, 1e-9)

    def exceeds(self, steps: int, method: str, choice: ThresholdChoice) -> bool:
        """Return whether a bound is above the claim after some steps."""
        coins, readings = self._coins[:steps], self._readings[:steps]
        known = np.isfinite(readings)
        inside, outside = readings[known & coins], readings[known & ~coins]
        if not len(inside) or not len(outside):
            return False
        claimed = float(self._mu[steps - 1])
        if method == "fdp_bayes" and isinstance(choice, Maximum):
            return _largest_quantile(inside, outside) > claimed
        bound = named_bound(method, inside, outside, self._delta, SIGNIFICANCE, choice)
        if bound.mu_lower is not None:
            return bound.mu_lower > claimed
        return bound.epsilon_lower > float(gaussian_epsilon(claimed, self._delta))


def _largest_quantile(inside: Floats, outside: Floats) -> float:
    """Return `named_bound`'s "fdp_bayes" without computing a quantile at every threshold."""
    thresholds = candidate_thresholds(inside, outside)
    counts = ConfusionCounts.from_scores(inside, outside, thresholds)
    value, _ = Posterior.of_mu(counts, region="one_sided").maximum(SIGNIFICANCE)
    return value
