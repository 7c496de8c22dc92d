"""Crafted per-sample gradients to test clipping: many norms, shapes and positions in a batch.

A trial is a batch of gradients and the index of the one that its neighbor lacks. Norms are in units
of the clipping norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

#: Norm of oversized gradients, and of the one that outweighs them, in units of the clipping norm.
OVERSIZE, OUTWEIGHING = 1e3, 1e6
#: Largest number of entries over all gradients of a batch.
_ENTRIES = 40_000_000


@dataclass(frozen=True)
class Trial:
    """A batch of gradients, and the index of the one that its neighbor lacks.

    Args:
        name: describes the gradient that is left out, and the batch.
        rows: the gradients, ``[n, d]``.
        left_out: index of the gradient that the neighbor lacks.
    """

    name: str
    rows: torch.Tensor
    left_out: int

    @property
    def neighbour(self) -> torch.Tensor:
        """The batch without that gradient, ``[n - 1, d]``."""
        at = self.left_out % len(self.rows)
        return torch.cat([self.rows[:at], self.rows[at + 1 :]])

    @property
    def with_zeros(self) -> torch.Tensor:
        """The batch with zeros instead of that gradient, ``[n, d]``."""
        rows = self.rows.clone()
        rows[self.left_out] = 0.0
        return rows


def alone(gradient: torch.Tensor, batch: int) -> Trial:
    """Return a trial of one gradient, ``[d]``, after rows of zeros."""
    rows = gradient.new_zeros(batch, len(gradient))
    rows[-1] = gradient
    return Trial(f"norm {float(gradient.norm()):.3g} C, alone", rows, batch - 1)


def against_others(direction: torch.Tensor, batch: int) -> Trial:
    """Return a trial whose gradient, along a unit vector ``[d]``, outweighs all opposite ones."""
    rows = -OVERSIZE * direction.repeat(batch, 1)
    rows[-1] = OUTWEIGHING * direction
    return Trial("against all others, which it outweighs", rows, batch - 1)


class CraftedGradients:
    """Generator of trials, in several families.

    Args:
        sizes: number of entries of each tensor.
        batch: records of a usual batch.
        seed: of directions.
        dtype: of the gradients, before they are rounded to the parameters' types.
    """

    def __init__(
        self, sizes: Sequence[int], batch: int, seed: int, dtype: torch.dtype = torch.float64
    ) -> None:
        self._sizes, self._type = list(sizes), dtype
        self._size = sum(sizes)
        self._batch = max(min(batch, _ENTRIES // (2 * self._size) - 1), 2)
        self._random = torch.Generator().manual_seed(seed)

    def trials(self) -> Iterator[Trial]:
        """Yield the trials of all families, one of each family in turn."""
        families: list[Iterator[Trial]] = [family() for family in self._families()]
        while families:
            for family in list(families):
                trial = next(family, None)
                if trial is None:
                    families.remove(family)
                else:
                    yield trial

    def _families(self) -> list[Callable[[], Iterator[Trial]]]:
        return [self._of_norms, self._of_shapes, self._of_others, self._of_sizes]

    # ------------------------------------------------------------------ families

    def _of_norms(self) -> Iterator[Trial]:
        """Yield one gradient of each norm, first, in the middle or last, among usual ones."""
        places = (0, self._batch // 2, self._batch - 1)
        for number, norm in enumerate((3.0, 0.5, 1e5, 1.5, 30.0, 0.99, 1e3)):
            at = places[number % len(places)]
            where = ("first", "in the middle", "last")[number % len(places)]
            yield self._among(f"norm {norm:g} C, {where}", norm * self._dense(1)[0], at)

    def _of_shapes(self) -> Iterator[Trial]:
        """Yield gradients that are flat, in one tensor, or in one entry."""
        flat = torch.ones(self._size, dtype=self._type) / self._size**0.5
        yield self._among("the same in all entries, norm 3 C", 3.0 * flat, -1)
        for norm in (30.0, 1.5):
            spike = torch.zeros(self._size, dtype=self._type)
            spike[self._size // 2] = norm
            yield self._among(f"in one entry, norm {norm:g} C", spike, 0)
        starts = torch.tensor([0, *self._sizes]).cumsum(0).tolist()
        chosen = torch.linspace(0, len(self._sizes) - 1, min(6, len(self._sizes))).round().int()
        for tensor in dict.fromkeys(chosen.tolist()):
            alone = torch.zeros(self._size, dtype=self._type)
            alone[starts[tensor] : starts[tensor + 1]] = 1.0
            yield self._among(
                f"in tensor {tensor} alone, norm 30 C", 30.0 * alone / alone.norm(), tensor
            )

    def _of_others(self) -> Iterator[Trial]:
        """Yield one gradient among equal, opposite, tiny, huge or zero ones."""
        one, many = self._dense(1)[0], self._batch
        signs = torch.tensor([1.0, -1.0] * many)[:many, None]
        tiny, huge = self._dense(many, 0.01), self._dense(many, OVERSIZE)
        yield Trial("one of equal ones, norm 3 C", 3.0 * one.repeat(many, 1), many - 1)
        yield Trial("huge among tiny ones", torch.cat([huge[:1], tiny[1:]]), 0)
        between = huge.clone()
        between[many // 2] = tiny[0]  # without it, the gradients after it move up
        yield Trial("tiny among huge ones", between, many // 2)
        yield Trial("one of opposite ones, norm 3 C", 3.0 * one * signs.to(self._type), 0)
        yield Trial("huge one of tiny ones, last", torch.cat([tiny[1:], huge[:1]]), many - 1)
        yield against_others(one, many)
        yield alone(OVERSIZE * one, many)

    def _of_sizes(self) -> Iterator[Trial]:
        """Yield batches of two gradients, and of more than twice the usual size."""
        two, many = self._dense(2), 2 * self._batch + 2
        yield Trial("one of two, norm 3 C", torch.stack([3.0 * two[0], 0.9 * two[1]]), 0)
        yield Trial("first of a batch twice as large, norm 0.9 C", self._dense(many, 0.9), 0)
        yield Trial("the smaller of two", torch.stack([3.0 * two[0], 0.9 * two[1]]), 1)
        yield Trial("last of a batch twice as large, norm 3 C", self._dense(many, 3.0), -1)

    # ------------------------------------------------------------------ gradients

    def _among(self, name: str, gradient: torch.Tensor, at: int) -> Trial:
        """Return a trial of a gradient among usual ones of half the clipping norm."""
        at %= self._batch
        rows = self._dense(self._batch, 0.5)
        rows[at] = gradient
        return Trial(name, rows, at)

    def _dense(self, count: int, norm: float = 1.0) -> torch.Tensor:
        """Return random vectors of one norm, ``[count, d]``."""
        rows = torch.randn(count, self._size, generator=self._random, dtype=self._type)
        return rows.mul_(norm / rows.norm(dim=1, keepdim=True))  # in place, to save memory
