r"""Tests of independence: of noise over steps, within a step, and of several draws.

**Test whether the signs of noise follow those of earlier steps.** If the noise of a step is
independent of everything before, its signs are tosses of one coin, for any sizes and any earlier
signs. They are tested against two coins: one for coordinates that were above zero some steps ago,
and one for those that were below. The coin need not be fair: noise with a mean other than zero
follows nothing.

**Noise that is correlated over steps by design: recovery of its draws from the releases.** With
coefficients ``c`` the noise of step t is ``sum_k c_k z_{t-k}``, where the draws z are independent
and those before the first step are zero. The draws are recovered one after the other,

.. math:: z_t = (x_t - \sum_{k \ge 1} c_k z_{t-k}) / c_0,

and an error in a past draw decays, or grows, as the `inverse_response`.

**Test of noise shared by entries of one step: pairs at distances found in earlier steps.**
Notation: the noise of a step is a row ``x`` in units of its claimed standard deviation. If the
claim is true, its entries are independent and normal, with a standard deviation of at least 1.

**Test whether a step's noise can be predicted from earlier steps.** Notation: a reading is ``x = d
+ n``, in units of the claimed standard deviation; ``d`` may depend on the past and on the data, but
not on the noise ``n``. The claim is that ``n`` is normal, with a standard deviation of at least 1,
and independent of everything before.

References:
    Kairouz et al. 2021, arXiv:2103.00039 (DP-FTRL); Choquette-Choo et al. 2023, arXiv:2306.08153
    (banded matrix factorization).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.sequential import SingleStepBet, log_mean_exp

# --- Test of noise shared by entries of one step: pairs at distances found in earlier steps.

#: Decay of what earlier steps showed.
_PAIR_MEMORY = 0.9

Positions = NDArray[np.intp]


class AlikeBet:
    r"""E-process for "the entries of a step have independent noise", valid for any data.

    Entries are compared with others of the same step. For disjoint pairs and a sign s,
    ``(x_i - s x_j) / sqrt 2`` is at least as large as the claimed noise, for any data. The pairs
    are adjacent entries, with either sign; entries at one distance; and entries mirrored about one
    place. The distance, the place and their signs are those at which the steps so far were most
    alike. Noise that is tiled, repeated along an axis or mirrored is found at its second step.

    The e-value is the mean of two: the e-value of all pairs so far, averaged over these kinds, and
    a bet on single steps. Validity follows from `noise_log_e` (own proof, above): the pairs are
    disjoint, and the distance, the place and the signs are chosen by earlier steps.

    References:
        As `noise_log_e`; Vovk and Wang, "E-values: calibration, combination and applications",
        Annals of Statistics 49, 2021, arXiv:1912.06116 (averages of e-values).
    """

    def __init__(self) -> None:
        self._shown = np.zeros((2, 0))
        self._count, self._squares, self._plain = np.zeros(4), np.zeros(4), np.zeros(4)
        self._single = SingleStepBet()
        #: Distance, or place of the mirror, in the latest step: 0 for none.
        self.distance = self.mirror = 0

    def update(self, noise: Floats) -> None:
        """Update with a step.

        Args:
            noise: In units of the claimed standard deviation, ``[n]``, the same n at every step.
        """
        n = len(noise)
        if n < 2:
            return
        count, squares, plain = np.zeros(4), np.zeros(4), np.zeros(4)
        for kind, (first, second, sign) in enumerate(self._pairs(n)):
            a, b = noise[first], sign * noise[second]
            gap = a - b
            count[kind], squares[kind] = len(gap), 0.5 * float(gap @ gap)
            plain[kind] = 0.5 * float(a @ a + b @ b)
        self._count, self._squares = self._count + count, self._squares + squares
        self._plain = self._plain + plain
        seen = count > 0
        self._single.update(log_mean_exp(noise_log_e(count[seen], squares[seen])))
        self._look(noise)

    def _pairs(self, n: int) -> list[tuple[Positions, Positions, float]]:
        """Return disjoint pairs of each kind, from earlier steps, and their sign."""
        neighbours = at_distance(n, 1)
        found = [(*neighbours, 1.0), (*neighbours, -1.0)]
        self.distance = self.mirror = 0
        if self._shown.size:
            apart, about = self._shown
            self.distance, self.mirror = (int(np.argmax(np.abs(x))) for x in (apart, about))
            found.append((*at_distance(n, self.distance), float(np.sign(apart[self.distance]))))
            found.append((*mirrored(n, self.mirror), float(np.sign(about[self.mirror]))))
        return found

    def _look(self, noise: Floats) -> None:
        """Add up the products at each distance, and about each place, in standard errors."""
        n = len(noise)
        size = scipy.fft.next_fast_len(2 * n, real=True)
        turned = scipy.fft.rfft(noise, size)
        apart = scipy.fft.irfft(np.abs(turned) ** 2, size)[:n]
        about = scipy.fft.irfft(turned**2, size)[: 2 * n - 1]
        # Few pairs are alike by chance more often than many, so their products count for less.
        pairs = np.maximum(n - np.arange(n), n / 8)
        apart, about = apart / np.sqrt(pairs), about / np.sqrt(_mirror_pairs(n))
        apart[0] = 0.0
        # An entry in the middle is its own mirror image: its square is not a product of two.
        middle = np.arange(0, 2 * n - 1, 2)
        about[middle] -= noise**2 / np.sqrt(_mirror_pairs(n)[middle])
        shown = np.zeros((2, 2 * n - 1))
        shown[0, :n], shown[1] = apart, about
        kept = self._shown if self._shown.shape == shown.shape else np.zeros_like(shown)
        self._shown = _PAIR_MEMORY * kept + shown

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        steady = float(log_mean_exp(noise_log_e(self._count, self._squares)))
        return float(log_mean_exp([steady, float(self._single.log_e)]))

    @property
    def left(self) -> float:
        """Smallest ratio over the kinds: squared differences to those of independent entries."""
        seen = self._plain > 0.0
        return float(np.min(self._squares[seen] / self._plain[seen])) if seen.any() else 1.0


def at_distance(n: int, distance: int) -> tuple[Positions, Positions]:
    """Return disjoint pairs of entries at one distance, as many as there are.

    Args:
        n: Number of entries.
        distance: Distance between the two entries of a pair; 0 for no pairs.

    Returns:
        Positions of the first and of the second entries, ``[pairs]`` each.
    """
    first = np.arange(max(n - distance, 0) if distance else 0)
    first = first[(first // max(distance, 1)) % 2 == 0]
    return first, first + distance


def mirrored(n: int, place: int) -> tuple[Positions, Positions]:
    """Return pairs of entries whose positions add up to ``place``, which are disjoint.

    Args:
        n: Number of entries.
        place: Sum of the two positions.

    Returns:
        Positions of the first and of the second entries, ``[pairs]`` each.
    """
    first = np.arange(max(0, place - n + 1), (place + 1) // 2)
    return first, place - first


def _mirror_pairs(n: int) -> Floats:
    """Return the weight of the products by place: their number, at least an eighth of all."""
    place = np.arange(2 * n - 1)
    # Each product of two different entries is in the sum twice.
    return np.asarray(np.maximum(2.0 * (n - np.abs(place - (n - 1))), n / 4.0))


# --- Combinations of draws that cancel what the draws have in common.


def contrasts(draws: Floats) -> Floats:
    """Return independent combinations of draws that cancel what the draws have in common.

    Args:
        draws: Independent draws of one size, ``[n, ...]``.

    Returns:
        The Helmert contrasts, of the same size each, ``[n - 1, ...]``.
    """
    total = np.cumsum(draws[:-1], axis=0)
    number = np.arange(1, len(draws)).reshape(-1, *[1] * (draws.ndim - 1))
    return np.asarray((total - number * draws[1:]) / np.sqrt(number * (number + 1.0)))


def differences(draws: Floats) -> Floats:
    """Return the differences of one half of the draws and the other half, ``[n // 2, ...]``."""
    half = len(draws) // 2
    return np.asarray(draws[:half] - draws[half : 2 * half])


# --- Noise that is correlated over steps by design: recovery of its draws from the releases.

#: Number of steps that are examined in addition to the number of coefficients.
_STEPS = 2048
#: Largest growth of an error from the first half of these steps to the second: polynomial growth,
#: as with coefficients that sum to zero, but not exponential growth.
_GROWTH = 16.0
#: Fraction of a unit error below which it is neglected.
_NOTHING = 0.01


def inverse_response(coefficients: Sequence[float], steps: int) -> Floats:
    """Return the effect of a unit release at step 0 on the draws recovered from there on.

    Args:
        coefficients: c, the first one not 0, ``[m]``.
        steps: Number of steps, >= 1.

    Returns:
        The weights, ``[steps]``; infinite or NaN where they overflow.

    Example:
        >>> inverse_response((1.0, -0.5), 4).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    return np.asarray(scipy.signal.lfilter([1.0], coefficients, scipy.signal.unit_impulse(steps)))


def is_recoverable(coefficients: Sequence[float]) -> bool:
    """Return whether no error in the recovered draws grows exponentially.

    Args:
        coefficients: c, the first one not 0, ``[m]``.

    Example:
        >>> is_recoverable((1.0, -1.0)), is_recoverable((1.0, -2.0))
        (True, False)
    """
    response = np.abs(inverse_response(coefficients, _STEPS + 4 * len(coefficients)))
    first, second = np.array_split(response, 2)
    return bool(np.isfinite(response).all() and second.max() <= _GROWTH * first.max())


def steps_to_forget(coefficients: Sequence[float]) -> int | None:
    """Return the number of steps after which unknown past draws have decayed to one per cent.

    Args:
        coefficients: c, the first one not 0, ``[m]``.

    Returns:
        The number; None if they never decay so far, as with coefficients that sum to zero.

    Example:
        >>> steps_to_forget((1.0, -0.5)), steps_to_forget((1.0, -1.0))
        (6, None)
    """
    c = np.abs(np.asarray(coefficients, dtype=np.float64))
    response = np.abs(inverse_response(coefficients, _STEPS + 4 * len(c))) * c[1:].sum()
    # The largest from each step on.
    left = np.maximum.accumulate(response[::-1])[::-1]
    below = np.flatnonzero(left < _NOTHING)
    return int(below[0]) if len(below) else None


# --- Test whether a step's noise can be predicted from earlier steps.

#: Number of earlier steps that a forecast uses.
FORECAST_LAGS = 16
#: Ridge penalty, in squared readings, that shrinks coefficients with few observations.
_RIDGE = 30.0
#: Decay of the coefficients: they adapt to noise that changes within about fifty steps.
_FORECAST_MEMORY = 0.98


class LatestNoise:
    """Readings of the latest steps, and their sum since the last step that was not read."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] | None = None
        self._steps = np.full(FORECAST_LAGS, -1)
        self._sum: Floats | None = None

    def before(self, step: int, width: int) -> Floats:
        """Return the predictors of the next step.

        Args:
            step: Number of the next step.
            width: Number of its readings, n.

        Returns:
            A row for each lag, from 1 on, and one for the sum; zero if it was not read,
            ``[FORECAST_LAGS + 1, n]``.
        """
        found = np.zeros((FORECAST_LAGS + 1, width))
        if self._rows is None or self._sum is None:
            return found
        wanted = step - 1 - np.arange(FORECAST_LAGS)
        places = wanted % FORECAST_LAGS
        known = (self._steps[places] == wanted) & (wanted >= 0)
        found[:-1][known] = self._rows[places[known]]
        if known[0]:
            found[-1] = self._sum
        return found

    def add(self, readings: Floats, step: int) -> None:
        """Store the readings of a step, ``[n]``."""
        if self._rows is None or self._sum is None:
            self._rows = np.zeros((FORECAST_LAGS, len(readings)))
            self._sum = np.zeros(len(readings))
        if self._steps[(step - 1) % FORECAST_LAGS] != step - 1:
            self._sum = np.zeros(len(readings))
        self._sum = self._sum + readings
        self._rows[step % FORECAST_LAGS] = readings
        self._steps[step % FORECAST_LAGS] = step


class ForecastBet:
    r"""E-process for "no part of the noise can be predicted", valid for any data.

    For any center c that the past determines, ``x - c`` is at least as large as the noise, and the
    bets of `noise_log_e` on its squares have an expectation of at most one. So a forecast that
    leaves less than the claimed noise is evidence. Noise that is too small without any forecast is
    evidence as well. Noise that is larger than claimed and partly predictable is evidence only if
    less than the claimed noise remains. The centers are

    * the readings of each of the last `FORECAST_LAGS` steps, and their sum, times a coefficient
      fitted to the past;
    * all of them together, by least squares on the past: detects autoregressive noise, and noise
      that cancels its running sum;
    * for the bet on few steps: plus and minus the readings of each lag.

    The e-value is the mean of three: the mean over the fitted forecasts, over all steps; and two
    bets on single steps, of plus and minus, and of least squares. Validity follows from
    `noise_log_e` (own proof, above), as all centers are predictable.

    References:
        As `noise_log_e`; Vovk and Wang, "E-values: calibration, combination and applications",
        Annals of Statistics 49, 2021, arXiv:1912.06116 (averages of e-values).
    """

    def __init__(self) -> None:
        rows = FORECAST_LAGS + 1
        #: Sums of products of past readings, and with the reading that follows them.
        self._products, self._with_next = np.zeros((rows, rows)), np.zeros(rows)
        self._squares = np.zeros(rows + 1)
        self._count = self._plain = 0.0
        self._signed, self._fitted = SingleStepBet(), SingleStepBet()
        self._latest = np.zeros(rows)

    def update(self, past: Floats, readings: Floats) -> None:
        """Update with a step.

        Args:
            past: The result of `LatestNoise.before`, ``[FORECAST_LAGS + 1, n]``.
            readings: Readings of the step, in units of the claimed standard deviation, ``[n]``.
        """
        n = len(readings)
        products, with_next = past @ past.T, past @ readings
        square, own = float(readings @ readings), np.diagonal(products)
        if own[:-1].any():
            alone, together = self._coefficients()
            left = square - 2.0 * alone * with_next + alone**2 * own
            joint = square - 2.0 * together @ with_next + together @ products @ together
            # Rounding can leave a tiny negative sum if the forecast is exact.
            left = np.maximum(np.append(left, joint), 0.0)
            self._count, self._plain = self._count + n, self._plain + square
            self._squares += left
            known = own[:-1] > 0.0
            gaps = square + own[:-1][known] + np.outer((-2.0, 2.0), with_next[:-1][known])
            log_e = noise_log_e(n, np.maximum(np.append(gaps.ravel(), left[-1]), 0.0))
            self._signed.update(log_mean_exp(log_e[:-1]))
            self._fitted.update(log_e[-1])
        self._products = _FORECAST_MEMORY * self._products + products
        self._with_next = _FORECAST_MEMORY * self._with_next + with_next

    def _coefficients(self) -> tuple[Floats, Floats]:
        """Return coefficients of each row alone, and of all, ``[FORECAST_LAGS + 1]`` each."""
        ridged = self._products + _RIDGE * np.eye(len(self._products))
        self._latest = self._with_next / np.diagonal(ridged)
        return self._latest, np.asarray(np.linalg.solve(ridged, self._with_next))

    @property
    def compared(self) -> bool:
        """Whether a step was compared with an earlier one."""
        return self._count > 0.0

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        steady = log_mean_exp(noise_log_e(self._count, self._squares))
        return float(log_mean_exp(np.array([steady, self._signed.log_e, self._fitted.log_e])))

    @property
    def left(self) -> float:
        """Fraction of the squares that the best forecast leaves; 1 if nothing is predictable."""
        return float(np.min(self._squares) / self._plain) if self._plain > 0.0 else 1.0

    @property
    def ratio(self) -> float:
        """Root mean square of the readings, in claimed standard deviations."""
        return float(np.sqrt(self._plain / self._count)) if self._count > 0.0 else 1.0

    @property
    def best(self) -> tuple[int, float]:
        """The lag that predicts best by itself, 0 for the sum of all, and its coefficient."""
        row = int(np.argmin(self._squares[:-1]))
        return (row + 1) % (FORECAST_LAGS + 1), float(self._latest[row])


# --- Test whether the signs of noise follow those of earlier steps.

#: Lags at which signs are compared, in steps.
LAGS = 16
#: Values smaller than this are rounding errors, and have no sign.
_ROUNDING = 1e-3


def lag_sign_log_e(counts: NDArray[np.int64]) -> Floats:
    r"""Return the log e-value for "the signs are tosses of one coin, for any earlier signs".

    Formula:
        ``log( B(1 + n[0, 0], 1 + n[0, 1]) B(1 + n[1, 0], 1 + n[1, 1]) / max_q q^p (1 - q)^m )``
        with ``p`` signs above zero and ``m`` below: two coins with uniform priors against the best
        one coin.

    Args:
        counts: Numbers n of signs, ``[..., 2, 2]``: by the earlier sign (above, below), and by the
            sign (above, below).

    Returns:
        The log e-value, ``[...]``; flag at ``>= log(1 / significance)``, at any look.

    Example:
        >>> float(lag_sign_log_e(np.zeros((2, 2), dtype=np.int64)))
        0.0
        >>> bool(lag_sign_log_e(np.array([[40, 160], [160, 40]])) > 60)
        True

    References:
        Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 117, 2020, arXiv:1912.11436.
    """
    two = scipy.special.betaln(1.0 + counts[..., 0], 1.0 + counts[..., 1]).sum(axis=-1)
    tosses = counts.sum(axis=-2)
    rates = tosses / np.maximum(tosses.sum(axis=-1, keepdims=True), 1)
    return np.asarray(two - scipy.special.xlogy(tosses, rates).sum(axis=-1))


class LagSigns:
    """E-process for "the noise of a step does not follow that of earlier steps": a mean over lags.

    Args:
        lags: Number of lags.
    """

    def __init__(self) -> None:
        #: Signs at each lag, ``[lags, 2, 2]``; see `lag_sign_log_e`.
        self.counts: NDArray[np.int64] = np.zeros((LAGS, 2, 2), dtype=np.int64)
        #: Whether entries of the latest steps were above zero, and below, ``[lags, 2, n]``, and
        #: the numbers of these steps.
        self._past = np.zeros((LAGS, 2, 0), dtype=np.float32)
        self._steps = np.full(LAGS, -1, dtype=np.int64)
        self._seen = 0

    def update(self, noise: Floats, step: int) -> None:
        """Update with the noise of a step.

        Args:
            noise: In units of its claimed standard deviation, ``[n]``, the same n at every step.
            step: Its number, larger than those before; steps may be left out.
        """
        if self._past.shape[2] != len(noise):
            self._past = np.zeros((LAGS, 2, len(noise)), dtype=np.float32)
            self._steps[:] = -1
        signs = np.stack([noise > _ROUNDING, noise < -_ROUNDING]).astype(np.float32)
        apart = step - self._steps
        known = (self._steps >= 0) & (apart <= LAGS)
        self.counts[apart[known] - 1] += (self._past[known] @ signs.T).astype(np.int64)
        at = self._seen % LAGS
        self._past[at], self._steps[at] = signs, step
        self._seen += 1

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        return float(log_mean_exp(lag_sign_log_e(self.counts)))

    @property
    def lag(self) -> int:
        """The lag with the largest e-value, in steps."""
        return int(np.argmax(lag_sign_log_e(self.counts))) + 1

    @property
    def agreement(self) -> float:
        """Share of signs that agree at that lag; 0.5 if none was compared."""
        counts = self.counts[self.lag - 1]
        total = int(counts.sum())
        return float(np.trace(counts)) / total if total else 0.5


# --- E-value for full-rank noise, from the singular values of a matrix of noise.


def low_rank_log_e(matrix: ArrayLike) -> float:
    r"""Return the log e-value for "the entries are independent normal noise of one size".

    The largest singular value of p x q standard normal entries is above ``sqrt(p) + sqrt(q) + t``
    with a probability of at most ``exp(-t^2 / 2)``; their sum of squares is below
    ``p q - 2 sqrt(p q t^2 / 2)`` with a probability of at most the same. So the ratio of the two,
    from which the size of the noise cancels, has a p-value, and ``p^(-1/2) / 2`` is an e-value.

    Args:
        matrix: Finite noise in any unit, ``[p, q]``.

    Returns:
        Log e-value; 0 if all entries are zero.

    Example:
        >>> low_rank_log_e(np.outer(np.arange(1, 21), np.arange(1, 31))) > 9.2
        True
        >>> low_rank_log_e(np.zeros((3, 3)))
        0.0

    References:
        Davidson and Szarek 2001, doi:10.1016/S1874-5849(01)80010-3, theorem II.13; Laurent and
        Massart 2000, doi:10.1214/aos/1015957395, lemma 1; Vovk and Wang 2021, arXiv:1912.06116
        (calibrators).
    """
    entries = np.asarray(matrix, dtype=np.float64)
    if not entries.any():
        return 0.0
    entries = entries / np.abs(entries).max()
    (rows, columns), count = entries.shape, entries.size
    edge = math.sqrt(rows) + math.sqrt(columns)
    seen = np.linalg.norm(entries, 2) / np.linalg.norm(entries)

    def beyond(t: float) -> float:
        """Return the excess of the ratio over what t allows."""
        squares = count - 2.0 * math.sqrt(count * t * t / 2.0)
        return float(seen * math.sqrt(squares) - (edge + t))

    most = 0.999 * math.sqrt(count / 2.0)  # above this the sum of squares has no lower limit
    if beyond(0.0) <= 0.0:
        t = 0.0
    elif beyond(most) >= 0.0:
        t = most
    else:
        t = float(scipy.optimize.brentq(beyond, 0.0, most))
    log_p = min(math.log(2.0) - 0.5 * t * t, 0.0)
    return -0.5 * log_p - math.log(2.0)


# --- E-values for independence of noise that assume only its symmetry.

#: Prior variance of the mixed slope, relative to that of its factor.
_SPREAD = 30.0
#: Prior variances for draws that are weakly or strongly dependent.
_SPREADS = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 6.0, 30.0])


def product_log_e(products: ArrayLike) -> Floats:
    r"""Return the log e-value for "these are products of two independent symmetric numbers".

    Given their sizes, the signs of such products are fair coins, for any sizes: noise may be
    larger than claimed, of any symmetric shape, or on a lattice. A sum of coins of sizes ``a`` is
    sub-Gaussian with variance ``V = sum a^2``, so ``exp(lambda T - lambda^2 V / 2)`` has an
    expectation of at most one; it is mixed over a normal lambda of variance ``g / V``.

    The products of terms of a sequence at one distance are independent coins as well, because they
    form chains.

    Formula:
        ``g T^2 / (2 (1 + g) V) - log(1 + g) / 2``, ``T = sum a``, g = 30

    Args:
        products: Products of one number and the other, finite, ``[..., n]``.

    Returns:
        Log e-value, ``[...]``; 0 if all products are zero.

    Example:
        >>> round(float(product_log_e([])), 12)
        0.0
        >>> bool(product_log_e(np.ones(40)) > 9.2)
        True

    References:
        Hoeffding 1963, doi:10.1080/01621459.1963.10500830 (sums of bounded terms); Robbins 1970,
        doi:10.1214/aoms/1177696786 (mixtures).
    """
    terms = np.asarray(products, dtype=np.float64)
    total, variance = terms.sum(axis=-1), np.square(terms).sum(axis=-1)
    square = np.divide(total**2, variance, out=np.zeros_like(variance), where=variance > 0.0)
    gain = 0.5 * _SPREAD / (1.0 + _SPREAD) * square - 0.5 * np.log1p(_SPREAD)
    return np.asarray(np.where(variance > 0.0, gain, 0.0), dtype=np.float64)


def together_log_e(draws: ArrayLike) -> float:
    r"""Return the log e-value for "these draws and their entries are independent and symmetric".

    If entries depend on each other in a way that is the same in all draws, inner products of draws
    are large, with either sign; the kind of dependence need not be known. Given all sizes and the
    earlier draws, the products S of a draw with those before are sums of fair coins: sub-Gaussian
    with the matrix ``M = sum_j x_j^2 p_j p_j'``, where ``p_j`` holds entry j of the earlier draws.
    They are mixed over normal slopes of covariance ``g M^-1``, and multiplied over draws. With
    ``M`` near the identity, and products ``c`` times as large as those of independent entries, log
    e grows by ``(c - 1 - log c) / 2`` for each pair of draws, as fast as a likelihood ratio.

    Formula:
        ``log mean_g prod_b (1 + g)^(-r_b / 2) exp(g S_b' M_b^+ S_b / (2 (1 + g)))``,
        ``r_b`` the rank of ``M_b``

    Args:
        draws: Finite draws in any unit, ``[n, entries]``.

    Returns:
        Log e-value; 0 if there are fewer than two draws, or all are zero.

    Example:
        >>> together_log_e(np.zeros((3, 5)))
        0.0
        >>> together_log_e(np.outer([1.0, -1.0, 1.0, 1.0, -1.0, 1.0], np.ones(40))) > 9.2
        True

    References:
        Hoeffding 1963, doi:10.1080/01621459.1963.10500830 (sums of bounded terms); de la Peña,
        Klass and Lai 2009, doi:10.1016/j.spa.2009.10.003 (normal mixtures of vectors).
    """
    rows = np.asarray(draws, dtype=np.float64)
    log_e = np.zeros(len(_SPREADS))
    for number in range(1, len(rows)):
        coins = rows[:number] * rows[number]
        eigenvalues, directions = np.linalg.eigh(coins @ coins.T)
        whole = eigenvalues > 1e-9 * max(float(eigenvalues[-1]), 1e-300)
        along = directions[:, whole].T @ coins.sum(axis=1)
        square = float((along**2 / eigenvalues[whole]).sum())
        log_e += 0.5 * _SPREADS / (1.0 + _SPREADS) * square
        log_e -= 0.5 * int(whole.sum()) * np.log1p(_SPREADS)
    return float(log_mean_exp(log_e))
