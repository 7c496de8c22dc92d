"""Steps whose gradient was not finite although the parameters were, over all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lightning_audit.dpsgd.lost_rows import all_finite
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.record.kept import Kept


class LostSteps(Kept):
    """Per such step: number of samples whose gradient was not finite, and of all samples.

    All processes share a step's gradient, and each sees only its own samples. The counts of all
    processes are added.
    """

    # No number of samples: those are of the data.
    KEPT = ("count",)

    #: Number of steps whose counts are kept.
    MOST = 16

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
        """Count, before the update, the samples whose gradients made the step's not finite.

        Args:
            step: the adapter.
            number: number of earlier steps.
            of_data: removes the canaries' rows; returns None if they are unknown.
        """
        if not all_finite([p.grad for p in step.params]):
            rows = of_data(step.lost_rows()) if all_finite(step.params) else None
            self.add(number, rows)

    def add(self, step: int, rows: torch.Tensor | None) -> None:
        """Add a step.

        Args:
            step: its number.
            rows: which samples' gradients are not finite, ``[n]``; None if unknown.
        """
        self.count += 1
        if rows is not None and len(self._own) + len(self._told) < self.MOST:
            self._own[step] = (int(rows.sum()), len(rows))

    def numbers(self) -> list[int]:
        """Return this process's counts for the others; the same length in every process."""
        flat = [n for step, counts in self._own.items() for n in (step, *counts)]
        return flat + [-1] * (3 * self.MOST - len(flat))

    def hear(self, told: Sequence[Sequence[int]]) -> None:
        """Add the `numbers` of all processes, including this one."""
        for numbers in told:
            for step, lost, rows in zip(*[iter(numbers)] * 3, strict=True):
                if step >= 0:
                    known = self._told.get(step, (0, 0))
                    self._told[step] = (known[0] + lost, known[1] + rows)
        self._own = {}

    @property
    def first(self) -> tuple[int, int, int] | None:
        """First step with some, not all samples not finite: its number, that count, all."""
        steps = sorted({**self._own, **self._told}.items())
        return next(((s, lost, rows) for s, (lost, rows) in steps if 0 < lost < rows), None)
