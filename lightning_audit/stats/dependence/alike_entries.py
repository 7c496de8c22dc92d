r"""Test of noise shared by entries of one step: pairs at distances found in earlier steps.

Notation: the noise of a step is a row ``x`` in units of its claimed standard deviation. If the
claim is true, its entries are independent and normal, with a standard deviation of at least 1.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import SingleStepBet, log_mean_exp

#: Decay of what earlier steps showed.
_MEMORY = 0.9

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
        for kind in range(2 if self._shown.size else 0):
            shown = self._shown[kind]
            place = int(np.argmax(np.abs(shown)))
            if kind == 0:
                self.distance, pairs = place, at_distance(n, place)
            else:
                self.mirror, pairs = place, mirrored(n, place)
            found.append((*pairs, float(np.sign(shown[place]))))
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
        self._shown = _MEMORY * kept + shown

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
