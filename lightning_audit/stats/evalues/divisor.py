"""By what was the noisy sum divided: by the constant that is stated, or by another number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import PredictableCentre, log_mean_exp

#: Variances of the noise, over the claimed one, for which another divisor is tried.
VARIANCES: Floats = 2.0 ** -np.arange(0.0, 12.0)
#: Memory of the variance that is learned from the past.
DECAY = 0.9
#: Steps, and standard errors, from which on the gradient's size is taken to go with the divisor's.
_FEWEST, _CLEARLY = 8, 4.0


class DivisorTest:
    r"""E-process for "the noisy sums were divided by what is stated".

    With the released gradient y times the stated divisor, the sum s that was known before the
    noise, both in units of the claimed standard deviation, and the true divisor over the stated
    one k, the likelihood of "``k y - s`` is noise", averaged over `VARIANCES` and one variance that
    is learned from the past, is divided by the largest likelihood of "``y - s`` is noise" under
    three nulls: noise of at least the claimed size, another one in each step; noise of any one size
    in all steps; and noise of the size that the past shows. So noise that is merely too small, or
    too large, is not taken for another divisor.

    Where the sum is not known, ``y - c`` is given for y, with any guess c that is made of the past,
    and zero for s. The test stays valid whatever the sum is: the part of it that speaks for less
    noise falls as ``|y - c|`` grows, so that data only lower its expectation (Anderson 1955), and
    the part that speaks for more never exceeds one.

    Formula:
        ``mean_g prod_t k_t^n N(k_t y_t - s_t; 0, g) / max(prod_t max_{v >= 1} N(y_t - s_t; 0, v),
        max_v prod_t N(y_t - s_t; 0, v), prod_t N(y_t - s_t; 0, v_t))``, averaged over the divisors
        that are tried, where ``v_t`` is a decaying mean over the steps before t, which also joins
        the variances g.

    References:
        Wasserman, Ramdas & Balakrishnan 2020 (universal inference); Anderson 1955 (the integral of
        a symmetric unimodal function).
    """

    def __init__(self) -> None:
        self._count = 0
        self._plain = 0.0
        self._step_null = 0.0
        # For each divisor: log of the Jacobian, sum of squares that it leaves.
        self._tried = np.zeros((0, 2))
        # The stated divisor first: variances learned so far, and log-likelihoods with them.
        self._learned, self._with_learned = np.ones(0), np.zeros(0)
        # For each divisor, of the log size of the gradient and of the log divisor: their number,
        # sums, squares and product.
        self._sizes = np.zeros((0, 6))

    def update(self, released: Floats, sums: Floats, noise: float, ratios: Sequence[float]) -> None:
        """Take in one step.

        Args:
            released: the gradient times the stated divisor, ``[n]``.
            sums: the clipped sums, in the same unit, ``[n]``.
            noise: claimed standard deviation of the noise, in the same unit, > 0.
            ratios: the divisors that are tried, over the stated one, > 0; as many at every step.
        """
        n = len(released)
        if not n or not ratios:
            return
        y, s, k = released / noise, sums / noise, np.asarray(ratios, dtype=np.float64)
        plain = float(np.sum((y - s) ** 2))
        variance = max(1.0, plain / n)
        self._count += n
        self._plain += plain
        self._step_null -= 0.5 * (n * float(np.log(variance)) + plain / variance)
        left = np.sum((k[:, None] * y - s) ** 2, axis=1)
        terms = np.stack([n * np.log(k), left], axis=1)
        self._tried = self._tried + terms if len(self._tried) else terms
        self._learn(n, np.array([0.0, *terms[:, 0]]), np.array([plain, *left]))
        if size := float(y @ y):
            a, b = np.full(len(k), 0.5 * np.log(size / n)), np.log(k)
            moments = np.stack([np.ones(len(k)), a, b, a * a, b * b, a * b], axis=1)
            self._sizes = self._sizes + moments if len(self._sizes) else moments

    def _learn(self, n: int, jacobian: Floats, squares: Floats) -> None:
        """Score the variances that the past shows, then take in the step."""
        if not len(self._learned):
            self._learned, self._with_learned = np.ones(len(squares)), np.zeros(len(squares))
        variance = self._learned
        self._with_learned += jacobian - 0.5 * (n * np.log(variance) + squares / variance)
        mixed = DECAY * variance + (1.0 - DECAY) * squares / n
        self._learned = np.maximum(mixed, VARIANCES[-1])

    @property
    def shrinks_with_divisor(self) -> bool:
        """Whether the gradient is smaller where one of the divisors is larger, clearly.

        A gradient whose own length it was divided by is not: it has one length at all steps.
        """
        if not len(self._sizes) or self._sizes[0, 0] < _FEWEST:
            return False
        number, a, b, aa, bb, ab = self._sizes.T
        spread = (aa - a * a / number) * (bb - b * b / number)
        correlation = (ab - a * b / number) / np.sqrt(np.maximum(spread, 1e-300))
        left = np.maximum(1.0 - correlation**2, 1e-12)
        return bool(np.any(correlation * np.sqrt((number - 2.0) / left) < -_CLEARLY))

    @property
    def log_e(self) -> float:
        """Log e-value now."""
        if not self._count:
            return 0.0
        variance = max(self._plain / self._count, 1e-300)
        run_null = -0.5 * self._count * (float(np.log(variance)) + 1.0)
        jacobian, left = self._tried.T[:, :, None]
        fixed = jacobian - 0.5 * self._count * np.log(VARIANCES) - 0.5 * left / VARIANCES
        learned = self._with_learned[1:, None]
        other = np.concatenate([fixed, learned], axis=1)
        null = max(self._step_null, run_null, float(self._with_learned[0]))
        return float(log_mean_exp(other.ravel())) - null


class QuietEntries:
    """Entries of the gradient along which the data were no louder than the noise so far.

    Data make noise look larger, and no other divisor is found by noise that looks larger. The
    entries, and what is taken off them, are chosen by the past alone.
    """

    #: Memory of the mean square, and how large it may be, in claimed variances.
    _DECAY, _LOUD = 0.9, 1.5

    def __init__(self) -> None:
        self._centre: PredictableCentre | None = None
        self._square: Floats = np.ones(0)

    def take(self, released: Floats, noise: float) -> Floats:
        """The quiet ones of a step's entries, without what the past shows to stay.

        Args:
            released: the entries, ``[n]``, as many at every step.
            noise: claimed standard deviation of the noise, > 0.
        """
        if self._centre is None:
            self._centre, self._square = PredictableCentre(released.shape), np.ones(len(released))
        residual = released - self._centre.value
        quiet = self._square < self._LOUD
        self._centre.update(released)
        latest = (residual / noise) ** 2
        self._square = self._DECAY * self._square + (1.0 - self._DECAY) * latest
        return np.asarray(residual[quiet])
