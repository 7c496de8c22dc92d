"""Findings of an examination by replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A neighboring batch whose step differs by more than DP-SGD allows.

    Args:
        name: of the neighboring batch.
        size: norm of the difference of releases over the clipping norm, or relative difference of
            the states after the step. Infinite if it is unknown.
        allowed: largest size that the definition of DP-SGD allows.
        whole: norm of a crafted gradient over the clipping norm; None for a record.
        in_one_tensor: whether that gradient is zero outside one of several tensors.
        decides: what the records of a step decide: whether it is taken, or its noise multiplier.
    """

    name: str
    size: float
    allowed: float
    whole: float | None = None
    in_one_tensor: bool = False
    decides: Literal["", "step", "noise"] = ""

    @property
    def rounded(self) -> float | None:
        """The size in two digits, or in as many as exceed what is allowed; None if infinite."""
        if not math.isfinite(self.size):
            return None
        return next(
            size
            for digits in range(2, 18)
            if (size := float(f"{self.size:.{digits}g}")) != self.allowed or size == self.size
        )

    def describe(self) -> str:
        """Return the neighbor and its size as text."""
        size = self.rounded
        if not self.allowed:
            return self.name
        far = "not finite" if size is None else f"{size:g} C"
        return f"{self.name}: {far}, at most {self.allowed:g} C is allowed"
