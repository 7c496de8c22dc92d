"""What an examination by replay found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A neighbour whose step is too far off.

    Args:
        name: of the neighbour.
        size: of a release, norm of the difference over the clipping norm; of what a step leaves
            behind, the relative difference. Infinite where it has no size.
        allowed: what the definition allows.
        whole: norm of a crafted gradient over the clipping norm; None for a record.
        in_one_tensor: whether all of that gradient is in one of several tensors.
        decides: what of a step its records decide: whether it is taken, or its noise multiplier.
    """

    name: str
    size: float
    allowed: float
    whole: float | None = None
    in_one_tensor: bool = False
    decides: Literal["", "step", "noise"] = ""

    @property
    def rounded(self) -> float | None:
        """The size by two digits, or as many as tell it from what is allowed; None if infinite."""
        if not math.isfinite(self.size):
            return None
        return next(
            size
            for digits in range(2, 18)
            if (size := float(f"{self.size:.{digits}g}")) != self.allowed or size == self.size
        )

    def describe(self) -> str:
        """The neighbour and how far off it is."""
        size = self.rounded
        if not self.allowed:
            return self.name
        far = "not finite" if size is None else f"{size:g} C"
        return f"{self.name}: {far}, at most {self.allowed:g} C is allowed"
