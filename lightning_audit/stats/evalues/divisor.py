"""Test of the divisor of the noisy sum: the stated constant or another number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import PredictableCentre, log_mean_exp

#: Variances of the noise, over the claimed one, for which another divisor is tested.
VARIANCES: Floats = 2.0 ** -np.arange(0.0, 12.0)
#: Decay of the variance that is learned from the past.
DECAY = 0.9
#: Least number of steps, and of standard errors, to conclude that the gradient's size follows the
#: divisor.
_FEWEST, _CLEARLY = 8, 4.0


class DivisorTest:
    r"""E-process for "the noisy sums were divided by the stated divisor".

    Let y be the released gradient times the stated divisor, s the sum before noise, both in units
    of the claimed standard deviation, and k the true divisor over the stated one. The likelihood of
    "``k y - s`` is noise", averaged over `VARIANCES` and one variance that is learned from the
    past, is divided by the largest likelihood of "``y - s`` is noise" under three nulls: noise of
    at least the claimed size, with any size in each step; noise of any one size in all steps; and
    noise of the size learned from the past. So noise that is only too small, or too large, is not
    evidence for another divisor.

    If the sum is not known, pass ``y - c`` for y, with any predictable center c, and zero for s.
    The test stays valid for any sum. The part that is evidence for less noise falls as ``|y - c|``
    grows, so data only lower its expectation (Anderson 1955). The part that is evidence for more
    noise never exceeds one. This extension is an own proof.

    Formula:
        ``mean_g prod_t k_t^n N(k_t y_t - s_t; 0, g) / max(prod_t max_{v >= 1} N(y_t - s_t; 0, v),
        max_v prod_t N(y_t - s_t; 0, v), prod_t N(y_t - s_t; 0, v_t))``, averaged over the tested
        divisors, where ``v_t`` is a decaying mean over the steps before t, which is also one of
        the variances g.

    References:
        Wasserman, Ramdas and Balakrishnan 2020, arXiv:1912.11436 (universal inference); Anderson,
        "The integral of a symmetric unimodal function", Proc. AMS 6, 1955.
    """

    def __init__(self) -> None:
        self._count = 0
        self._plain = 0.0
        self._step_null = 0.0
        # For each divisor: log of the Jacobian, and remaining sum of squares.
        self._tried = np.zeros((0, 2))
        # The stated divisor first: variances learned so far, and log-likelihoods with them.
        self._learned, self._with_learned = np.ones(0), np.zeros(0)
        # For each divisor, moments of the log size of the gradient and of the log divisor: their
        # number, sums, squares and product.
        self._sizes = np.zeros((0, 6))

    def update(self, released: Floats, sums: Floats, noise: float, ratios: Sequence[float]) -> None:
        """Update with one step.

        Args:
            released: The gradient times the stated divisor, ``[n]``.
            sums: The clipped sums, in the same unit, ``[n]``.
            noise: Claimed standard deviation of the noise, in the same unit, > 0.
            ratios: The tested divisors over the stated one, > 0; the same number at every step.
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
        """Score the variances learned from the past, then update them with the step."""
        if not len(self._learned):
            self._learned, self._with_learned = np.ones(len(squares)), np.zeros(len(squares))
        variance = self._learned
        self._with_learned += jacobian - 0.5 * (n * np.log(variance) + squares / variance)
        mixed = DECAY * variance + (1.0 - DECAY) * squares / n
        self._learned = np.maximum(mixed, VARIANCES[-1])

    @property
    def shrinks_with_divisor(self) -> bool:
        """Whether the gradient is clearly smaller in steps in which a divisor is larger.

        A gradient that was divided by its own length is not: its length is the same in all steps.
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
        """Log e-value so far."""
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
    """Selects the entries of the gradient in which the data were no larger than the noise so far.

    Data make noise look larger, and noise that looks larger does not reveal another divisor. The
    entries, and the centers that are subtracted, are chosen by the past alone.
    """

    #: Decay of the mean square, and its largest value, in claimed variances.
    _DECAY, _LOUD = 0.9, 1.5

    def __init__(self) -> None:
        self._centre: PredictableCentre | None = None
        self._square: Floats = np.ones(0)

    def take(self, released: Floats, noise: float) -> Floats:
        """Return the selected entries of a step, less their predictable center.

        Args:
            released: The entries, ``[n]``, the same number at every step.
            noise: Claimed standard deviation of the noise, in the same unit, > 0.
        """
        if self._centre is None:
            self._centre, self._square = PredictableCentre(released.shape), np.ones(len(released))
        residual = released - self._centre.value
        quiet = self._square < self._LOUD
        self._centre.update(released)
        latest = (residual / noise) ** 2
        self._square = self._DECAY * self._square + (1.0 - self._DECAY) * latest
        return np.asarray(residual[quiet])
