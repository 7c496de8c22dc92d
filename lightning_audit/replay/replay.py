"""What one replay of a step shows."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightning_audit.replay.own_reach import ReachesOut

#: Why nothing more is replayed.
ANOTHER_DREW = (
    "another thread drew from the global generators of random numbers while a step was replayed"
)


class Stopped(Exception):
    """No more steps may be replayed; the message says why."""


@dataclass
class Replay:
    """What one replay of a step showed.

    Args:
        releases: the gradient where its noise is in, of each step of the optimizer, in units of
            the clipping norm, ``[d]``.
        rows: per-sample gradients that came to be clipped; 0 where none is formed.
        parts: calls of the clipping.
        norms: their norms in units of the clipping norm, ``[rows]``; empty where none is formed.
        gradients: those per-sample gradients, of each physical batch, `folded` to ``[n, columns]``;
            only where they are asked for.
        marks: where all generators of random numbers were, one number at each place of the step:
            "start", each "clipping" and "noise", and the "cut".
        stated: the clipping norm that Opacus' optimizer states when noise is added, over the
            claimed one.
        noise: the noise multiplier that it states then, of each step, a second one among them.
        counts: what an optimizer that adapts its clipping norm releases beside its gradients.
        used: the gradient that the update used, ``[d]``, where it is read what the step left.
        after: what the step left behind that later steps read or a checkpoint holds, by name.
        later: releases of a second step on the same batches; empty where none was asked for.
        sure: whether what was read is where the noise is in.
        shown: whether Opacus or the user's code showed it, so that nothing was done to it before.
        error: what the user's code raised; empty if nothing.
        where: the line of it.
    """

    releases: list[torch.Tensor] = field(default_factory=list)
    rows: int = 0
    parts: int = 0
    norms: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    stated: float = 1.0
    noise: list[float] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    used: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    later: list[torch.Tensor] = field(default_factory=list)
    sure: bool = True
    shown: bool = False
    error: str = ""
    where: str = ""

    @property
    def release(self) -> torch.Tensor:
        """The releases of all steps in one tensor; empty where none was taken."""
        return torch.cat(self.releases) if self.releases else torch.zeros(0)

    @property
    def finite(self) -> torch.Tensor | None:
        """The releases; None where there are none, as after an error, or one is not finite."""
        usable = self.releases and not self.error and bool(torch.isfinite(self.release).all())
        return self.release if usable else None

    @property
    def drawn(self) -> int | None:
        """The mark when the gradients came to be clipped; None where none did."""
        return next((mark for place, mark in self.marks if place == "clipping"), None)

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn before the gradients came to be clipped."""
        return self.drawn is not None and self.drawn != self.marks[0][1]

    def fail(self, error: Exception) -> None:
        """Take in what the user's code raised; the text of an exception may hold values of data."""
        self.error = str(error) if isinstance(error, ReachesOut) else type(error).__name__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name != "_refuse"]
        # The name alone: numbers in a folder's name would be taken for the data's.
        self.where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def count_rows(found: Replay, grads: Sequence[torch.Tensor], norm: float, keep: int = 0) -> None:
    """Take in per-sample gradients that come to be clipped.

    Args:
        found: takes them in.
        grads: of each tensor, ``[n, *shape]``.
        norm: the clipping norm.
        keep: columns in which they are kept themselves; 0 for not at all.
    """
    found.rows += len(grads[0])
    if keep:
        found.gradients.append(folded(grads, keep))
    # In the gradients' own precision: a copy in double would take longer than many a step.
    parts = [torch.linalg.vector_norm(_rows(g), dim=1).double().cpu() for g in grads]
    found.norms.append(torch.stack(parts).norm(dim=0) / norm)


def _rows(grads: torch.Tensor) -> torch.Tensor:
    """Per-sample gradients as rows, also where the parameter is one number, ``[n, d]``."""
    return grads.detach().unsqueeze(-1).flatten(1)


@torch.no_grad()
def folded(grads: Sequence[torch.Tensor], columns: int) -> torch.Tensor:
    """Per-sample gradients in few columns, which take little memory and keep norms.

    They are left as they are where there is a column for each entry. Else entries get random signs,
    the same ones in each call, and go to one column after the other: norms, and those of
    differences, stay up to a part of about ``columns ** -0.5``.

    Args:
        grads: of each tensor, ``[n, *shape]``.
        columns: how many at the most.

    Returns:
        In single precision, ``[n, columns]``.
    """
    flat = [_rows(grad) for grad in grads]
    if sum(grad.shape[1] for grad in flat) <= columns:
        return torch.cat(flat, 1).float()
    signs = torch.Generator().manual_seed(0)
    found = torch.zeros(len(grads[0]), columns, device=grads[0].device)
    place = 0
    for rest in flat:
        while rest.shape[1]:
            part, rest = rest[:, : columns - place], rest[:, columns - place :]
            wide = part.shape[1]
            sign = torch.randint(0, 2, (wide,), generator=signs, dtype=torch.int8) * 2 - 1
            found[:, place : place + wide].addcmul_(part.float(), sign.to(found))
            place = (place + wide) % columns
    return found
