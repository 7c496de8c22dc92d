"""Test of whether the gradient of the update is computed from the releases alone.

A release has no canaries, so canaries cannot show whether noise is removed after it. But most
processing of releases can be explained entry by entry.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from lightning_audit.layout import FloatArray

#: Number of past releases that are compared.
_LAGS = 8
#: Largest residual of an explained gradient, relative to the gradient.
_ROUNDING = 1e-3
#: Largest number, and fraction, of unexplained gradients with which a run can pass.
_FEW, _SHARE = 9, 0.1


class ReleaseProcessing:
    """Explains the gradients of updates by releases, at the probe coordinates.

    A gradient is explained if it is the release times one number, apart from entries set to zero
    (clipping to a norm, masks, top-k); a nondecreasing function of each entry (signs, clipping,
    quantization); or a linear combination of the releases of nine steps and the previous gradient
    (averages, filters, momentum).
    """

    def __init__(self) -> None:
        self._past: deque[FloatArray] = deque(maxlen=_LAGS)
        self._before: FloatArray | None = None
        self._steps = self._unexplained = 0
        #: By step number, whether its gradient was not explained.
        self._which = bytearray()

    def update(self, step: int, release: FloatArray, used: FloatArray | None) -> None:
        """Update with a step.

        Args:
            step: its number, from 0.
            release: entries of the noisy gradient, ``[n]``.
            used: the same entries of the gradient at the update; None if it is the release times
                one number.
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
        """Whether at least nine tenths of the gradients, or all but nine, were explained."""
        return self._unexplained <= max(_FEW, _SHARE * self._steps)

    def was_unexplained(self, step: int) -> bool:
        """Return whether the gradient of a step was not explained."""
        return step < len(self._which) and bool(self._which[step])
