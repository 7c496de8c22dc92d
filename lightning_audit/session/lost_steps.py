"""Steps whose gradient was not finite although their parameters were, in all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightning_audit.dpsgd.lost_rows import all_finite
from lightning_audit.dpsgd.protocol import DPSGDStep


class LostSteps:
    """How many samples' gradients of such a step were not finite, and how many there were.

    The processes of a training share a step's gradient and each sees its own samples, so that the
    numbers of all are added up.
    """

    #: Steps of which the numbers are kept.
    KEPT = 16

    def __init__(self) -> None:
        self.count = 0
        self._own: dict[int, tuple[int, int]] = {}
        self._told: dict[int, tuple[int, int]] = {}

    def look(
        self,
        step: DPSGDStep,
        number: int,
        of_data: Callable[[torch.Tensor | None], torch.Tensor | None],
    ) -> None:
        """Before an update whose gradient was not read as finite: see which records made it so.

        Args:
            step: the adapter.
            number: how many steps came before.
            of_data: leaves the audit's own rows out; None where they are not known.
        """
        if not all_finite([p.grad for p in step.params]):
            rows = of_data(step.lost_rows()) if all_finite(step.params) else None
            self.add(number, rows)

    def add(self, step: int, rows: torch.Tensor | None) -> None:
        """Take in a step.

        Args:
            step: its number.
            rows: which samples' gradients are not finite, ``[n]``; None if that is not known.
        """
        self.count += 1
        if rows is not None and len(self._own) + len(self._told) < self.KEPT:
            self._own[step] = (int(rows.sum()), len(rows))

    def numbers(self) -> list[int]:
        """What this process has to tell the others, as many numbers in each of them."""
        flat = [n for step, counts in self._own.items() for n in (step, *counts)]
        return flat + [-1] * (3 * self.KEPT - len(flat))

    def hear(self, told: Sequence[Sequence[int]]) -> None:
        """Take in the `numbers` of all processes, this one's among them."""
        for numbers in told:
            for step, lost, rows in zip(*[iter(numbers)] * 3, strict=True):
                if step >= 0:
                    known = self._told.get(step, (0, 0))
                    self._told[step] = (known[0] + lost, known[1] + rows)
        self._own = {}

    @property
    def first(self) -> tuple[int, int, int] | None:
        """The first step that some samples made so, and others not: its number, some, and all."""
        steps = sorted({**self._own, **self._told}.items())
        return next(((s, lost, rows) for s, (lost, rows) in steps if 0 < lost < rows), None)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: how many releases were not finite, and no number of samples."""
        return {"count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.count = state["count"]
