r"""Anytime-valid tests: e-processes that may be inspected after every step.

An e-process is a non-negative process whose expectation is at most one at every stopping time
if the null hypothesis is true. By Ville's inequality the probability that it *ever* reaches
``1 / significance`` is then at most ``significance``, for any number of looks. Several e-processes
share one significance by weights that add up to one.

Notation of the tests on canaries: at a step, canary ``i`` has a private coin ``b``, which is 1
("in") with a known probability ``p``, by default 1/2, and a reading ``z``; a correct DP-SGD gives
``z = b + d + noise_multiplier * N(0, 1)``, where the data term ``d`` may depend on all that
happened before and on the batch, but not on the coin or the noise. ``r = z - b`` is the residual.
Every array may have leading axes for independent runs, so that simulations in the tests run the
same code as the audit.

References:
    Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
    Statistical Science 38, 2023, arXiv:2210.01948. Vovk and Wang, "E-values: calibration,
    combination and applications", Annals of Statistics 49, 2021, arXiv:1912.06116.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats

#: Fractions of the wealth that `SingleStepBet` stakes on every step.
STEP_STAKES: Floats = 10.0 ** -np.arange(1.0, 7.0)


def log_mean_exp(values: ArrayLike, axis: int = -1) -> Floats:
    """Return the logarithm of the mean of ``exp(values)`` along ``axis``, without overflow."""
    array = np.asarray(values, dtype=np.float64)
    # scipy's logsumexp takes forty times as long for the few numbers of a step.
    return np.asarray(np.logaddexp.reduce(array, axis=axis) - np.log(array.shape[axis]))


def largest_rejected(values: Floats, log_e: Floats, significance: float) -> Floats:
    """Return the largest of increasing ``values`` whose e-value, decreasing, rejects; else 0."""
    rejected = np.sum(log_e >= -np.log(significance), axis=-1)
    return np.asarray(np.concatenate([[0.0], values])[rejected], dtype=np.float64)


def is_look(seen: int) -> bool:
    """Return whether an expensive e-value is computed after ``seen`` steps.

    It is for the first 100 steps and for every 10th after them. Fewer looks are equally valid, and
    may flag later.
    """
    return seen <= 100 or seen % 10 == 0


class PredictableCentre:
    """A center computed from the past: the sum of past residuals over their number plus ten.

    Centering on the whole sample is not valid: if the data term depends on the past, it raises a
    false alarm in 7-11 % of correct runs at a nominal 5 % (by simulation).

    Args:
        shape: Shape of the residuals of one step, e.g. ``(k,)`` or ``(runs, k)``.
    """

    #: Weight of the prior guess zero, in observations.
    PRIOR = 10.0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._count = 0

    @property
    def value(self) -> Floats:
        """The center to use for the next step, of the shape given at construction."""
        return self._total / (self._count + self.PRIOR)

    def update(self, residuals: Floats) -> None:
        """Update with the residuals of the step that just ended."""
        self._total += residuals
        self._count += 1


class SingleStepBet:
    """E-process for faults in a few steps, from the e-value of each step alone.

    A cumulative test misses a few bad steps among many good ones, because each of its bets extends
    over all steps. Here a small fraction ``w`` of the wealth is staked on every step separately,
    ``prod (1 + w (e_t - 1))``, averaged over `STEP_STAKES`. A good step costs at most ``w``.

    Args:
        shape: Leading shape for independent runs, ``()`` for one.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._log_wealth = np.zeros((*shape, len(STEP_STAKES)))

    def update(self, step_log_e: ArrayLike) -> None:
        """Update with the log e-value of one step, of the leading shape."""
        log_e = np.asarray(step_log_e, dtype=np.float64)[..., None]
        self._log_wealth += np.logaddexp(np.log1p(-STEP_STAKES), np.log(STEP_STAKES) + log_e)

    @property
    def log_e(self) -> Floats:
        """Log e-value so far, of the leading shape."""
        return log_mean_exp(self._log_wealth)
