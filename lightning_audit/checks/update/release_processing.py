"""Is the gradient of the update seen to be computed of the releases alone?

Canaries are out of a release, so that nothing tells by them whether noise is taken away again
behind it. But most of what is done to releases can be followed entry by entry.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from lightning_audit.layout import FloatArray

#: Releases of the past that are compared.
_LAGS = 8
#: What may be left of the gradient, relative to its size, for it to be explained.
_ROUNDING = 1e-3
#: Steps whose gradient was not explained above which nothing passes, and their share.
_FEW, _SHARE = 9, 0.1


class ReleaseProcessing:
    """Follows what becomes of releases, at the witnesses.

    Explained are: the release times one number where it was not set to zero (clipping to a norm,
    masks, top-k), a function of each entry that never falls (signs, clipping, quantisation), and
    sums over the releases of nine steps and the gradient before (averages, filters, momentum).
    """

    def __init__(self) -> None:
        self._past: deque[FloatArray] = deque(maxlen=_LAGS)
        self._before: FloatArray | None = None
        self._steps = self._unexplained = 0
        #: Of each step, by its number, whether it was not explained.
        self._which = bytearray()

    def update(self, step: int, release: FloatArray, used: FloatArray | None) -> None:
        """Take in a step.

        Args:
            step: its number, from 0.
            release: entries of the noisy gradient, ``[n]``.
            used: the same entries of the gradient when the update was done; None where it is the
                release times one number.
        """
        self._steps += 1
        kept = release if used is None else used
        if used is not None and not self._explains(release, used):
            self._unexplained += 1
            self._which.extend(bytes(max(0, step + 1 - len(self._which))))
            self._which[step] = 1
        self._past.appendleft(release)
        self._before = kept

    def _explains(self, release: FloatArray, used: FloatArray) -> bool:
        if not (np.isfinite(release).all() and np.isfinite(used).all()):
            return False
        if not used.any():
            return True
        left = used != 0.0
        ratio = used[left] / np.where(release[left] == 0.0, np.nan, release[left])
        if np.allclose(ratio, ratio[0], rtol=_ROUNDING):
            return True
        ordered = used[np.argsort(release, kind="stable")]
        if np.all(np.diff(ordered) >= 0.0):
            return True
        columns = [release, *self._past, *([] if self._before is None else [self._before])]
        table = np.stack(columns, axis=1)
        if len(used) < 2 * table.shape[1]:
            return False
        found, *_ = np.linalg.lstsq(table, used, rcond=None)
        rest = float(np.linalg.norm(used - table @ found))
        return rest <= _ROUNDING * float(np.linalg.norm(used))

    @property
    def followed(self) -> bool:
        """Whether nearly all gradients were explained."""
        return self._unexplained <= max(_FEW, _SHARE * self._steps)

    def was_unexplained(self, step: int) -> bool:
        """Whether the gradient of a step was not explained."""
        return step < len(self._which) and bool(self._which[step])
