"""The releases of replays: how far apart two are, and when rounding or a lattice hides that.

A release stays on its device in its own precision; sums over its entries are formed in double
precision, a part at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from scipy import special

from lightning_audit.checks.replay_findings import Reason

#: Number of entries that are held in double precision at once.
_AT_ONCE = 2**22
#: Smallest and largest number of entries in the test for a lattice. Among many more entries,
#: numbers in single precision repeat by chance.
_ENTRIES, _ENOUGH = 500, 200_000


@dataclass(frozen=True, eq=False)
class Release:
    """A noisy gradient.

    Args:
        values: in the unit of the gradients, ``[d]``.
        unit: the clipping norm, in that unit.
    """

    values: torch.Tensor
    unit: float = 1.0

    @classmethod
    def of(
        cls, grads: Sequence[torch.Tensor | None], params: Sequence[torch.Tensor], unit: float
    ) -> Release:
        """Copy a gradient, one tensor for each parameter; None for zeros."""
        own = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
        dtype, device = reduce(torch.promote_types, (g.dtype for g in own)), own[0].device
        parts = [g.detach().reshape(-1).to(device, dtype) for g in own]
        return cls(torch.cat(parts) if len(parts) > 1 else parts[0].clone(), unit)

    def __len__(self) -> int:
        return len(self.values)

    def _parts(self) -> Iterator[torch.Tensor]:
        """Yield the entries in double precision, in units of the clipping norm."""
        for part in torch.split(self.values, _AT_ONCE):
            yield (part.cpu() if part.is_mps else part).double() / self.unit

    def norm(self) -> float:
        """Return the norm, in units of the clipping norm."""
        return math.sqrt(self.dot(self))

    def dot(self, other: Release) -> float:
        """Return the inner product with another release, in squared clipping norms."""
        return _sum(a @ b for a, b in zip(self._parts(), other._parts(), strict=True))

    def distance(self, other: Release) -> float:
        """Return the norm of the difference, in units of the clipping norm."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        return math.sqrt(_sum((a - b).square().sum() for a, b in pairs))

    def finite(self) -> bool:
        """Return whether all entries are finite."""
        return bool(torch.isfinite(self.values).all())

    def equal(self, other: Release) -> bool:
        """Return whether all entries are equal; NaN differs from itself."""
        return self.unit == other.unit and torch.equal(self.values, other.values)

    def like(self, other: Release | None) -> Release:
        """Return the other one if it is equal, so that the memory of one is released."""
        return other if other is not None and self.equal(other) else self

    def double(self) -> torch.Tensor:
        """Return the entries in host memory, in double precision and clipping norms, ``[d]``."""
        return self.values.cpu().double() / self.unit

    @torch.no_grad()
    def write(
        self, grads: Sequence[torch.Tensor | None], sizes: Sequence[int], unit: float
    ) -> None:
        """Write the release into gradients whose clipping norm is ``unit``."""
        for grad, own in zip(grads, torch.split(self.values, list(sizes)), strict=True):
            if grad is not None:
                same = unit == self.unit
                part = own if same else (own.cpu().double() / self.unit * unit).to(grad)
                grad.copy_(part.view_as(grad))


def _sum(parts: Iterable[torch.Tensor]) -> float:
    """Return a sum that is formed on the device, and waited for once."""
    return float(sum(parts))


def rounding(norms: Iterable[float], dtypes: Sequence[torch.dtype]) -> float:
    """Return the norm of the rounding error in the difference of two steps.

    Assumes independent errors, relative to each entry's size, in both steps.

    Args:
        norms: of the releases of one of the steps, in units of the clipping norm.
        dtypes: in which they were computed.
    """
    digits = max(torch.finfo(dtype).eps for dtype in dtypes)
    return 0.5 * digits * math.hypot(*norms)


def hidden_by_noise(
    change: torch.Tensor,
    draws: Sequence[torch.Tensor],
    sigma: float,
    allowed: float,
    level: float,
) -> bool:
    """Return whether noise may hide a record's change as well as the noise of a release would.

    Only the ratio of change to noise counts, so the unit is arbitrary. The draws are projected on
    the change: for Gaussian noise of n draws, its variance along the change is tested by chi-square
    with n - 1 degrees of freedom, exactly, for any correlation of the entries.

    Args:
        change: change of the values by a record, ``[d]``.
        draws: the same values under several random numbers, ``[d]`` each.
        sigma: the claimed noise over the clipping norm.
        allowed: change by one record that a release may show, in units of the clipping norm.
        level: probability of False where the noise is as claimed.
    """
    along = torch.stack(list(draws)) @ change / change.square().sum().clamp(min=1e-300)
    freedom = len(draws) - 1
    quotient = freedom * float(along.var()) * (allowed / sigma) ** 2
    return quotient >= 2.0 * float(special.gammaincinv(freedom / 2.0, level))


def too_coarse(rounding: float, tolerated: float) -> str:
    """Return why rounding hides the sensitivity, or empty.

    Args:
        rounding: norm of the rounding of a difference, in units of the clipping norm.
        tolerated: tolerated excess of a sensitivity over 1.
    """
    return "" if math.hypot(1.0, rounding) - 1.0 <= tolerated else Reason.TOO_COARSE


def independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two draws have the same size and low correlation, as independent ones."""
    norms = float(one.norm()), float(other.norm())
    if not min(norms) > 0.0:
        return False
    alike = abs(float(one @ other)) < 0.5 * norms[0] * norms[1]
    return alike and abs(norms[1] / norms[0] - 1.0) < 5.0 / math.sqrt(len(one))


def on_a_lattice(release: torch.Tensor) -> bool:
    """Return whether a release has few distinct values, as with integer noise."""
    entries = release[:: max(1, len(release) // _ENOUGH)]
    entries = entries[entries != 0.0]
    if len(entries) < _ENTRIES:
        return False
    return len(torch.unique(entries.abs().float())) < len(entries) / 2
