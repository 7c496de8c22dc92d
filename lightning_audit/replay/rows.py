"""Per-sample gradients that are put into a replayed step.

Most batches of them have few different rows: zeros, one long gradient among zeros, many equal ones.
Only the different rows are kept; each parameter's part of a batch is made on its own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, eq=False)
class Rows:
    """A batch of per-sample gradients, in units of the clipping norm.

    Args:
        different: the different ones that are not zero, ``[k, d]``, on any device.
        which: the number of each gradient among these, ``[n]``; -1 for zeros.
    """

    different: torch.Tensor
    which: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Rows:
        """Return the rows of a tensor ``[n, d]``, which is not copied."""
        return cls(rows, torch.arange(len(rows)))

    @classmethod
    def zeros(cls, count: int, like: torch.Tensor) -> Rows:
        """Return ``count`` gradients of zeros, each as a vector ``[d]``."""
        return cls(like.new_empty(0, len(like)), torch.full((count,), -1))

    @classmethod
    def alike(cls, row: torch.Tensor, count: int) -> Rows:
        """Return a gradient ``[d]`` ``count`` times."""
        return cls(row[None], torch.zeros(count, dtype=torch.long))

    @classmethod
    def alone(cls, row: torch.Tensor, at: int, count: int) -> Rows:
        """Return a gradient ``[d]`` at one place among ``count``, and zeros at the others."""
        which = torch.full((count,), -1)
        which[at] = 0
        return cls(row[None], which)

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, at: int) -> torch.Tensor:
        """Return one of the gradients, ``[d]``."""
        number = int(self.which[at])
        zeros = self.different.new_zeros(self.different.shape[1])
        return self.different[number] if number >= 0 else zeros

    def __mul__(self, factor: float) -> Rows:
        return replace(self, different=factor * self.different)

    def dense(self) -> torch.Tensor:
        """Return all of them, ``[n, d]``."""
        return self.part(0, self.different.new_empty(self.different.shape[1]), 1.0)

    def taken(self, places: Sequence[int] | slice) -> Rows:
        """Return the gradients at some places."""
        return replace(self, which=self.which[places])

    def without(self, at: int) -> Rows:
        """Return the others."""
        at %= len(self)
        return self.taken([place for place in range(len(self)) if place != at])

    def zeroed(self, at: int) -> Rows:
        """Return them with zeros at one place."""
        which = self.which.clone()
        which[at] = -1
        return replace(self, which=which)

    def part(self, begin: int, like: torch.Tensor, norm: float, views: int = 1) -> torch.Tensor:
        """Return a parameter's part, ``[n * views, *shape]``, on its device and in its type.

        Args:
            begin: the parameter's first entry.
            like: the parameter.
            norm: the clipping norm.
            views: how often each gradient comes, one after the other.
        """
        own = self.different[:, begin : begin + like.numel()].to(like.device)
        which = self.which.repeat_interleave(views)
        if bool((which < 0).any()):
            own = torch.cat([own, own.new_zeros(1, like.numel())])
            which %= len(own)
        rows = own.index_select(0, which.to(own.device)).mul_(norm)  # in place, to save memory
        return rows.to(like.dtype).view(-1, *like.shape)
