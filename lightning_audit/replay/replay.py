"""The result of one replay of a step."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightning_audit.replay.own_reach import ReachesOut

#: Why no further step is replayed.
ANOTHER_DREW = (
    "another thread drew from the global generators of random numbers while a step was replayed"
)


class Stopped(Exception):
    """No more steps may be replayed; the message says why."""


@dataclass
class Replay:
    """Result of one replay of a step.

    Args:
        releases: noisy gradient of each of the optimizer's steps, in units of the clipping norm,
            ``[d]``.
        rows: number of per-sample gradients that were clipped; 0 if none are formed.
        parts: number of calls of the clipping.
        norms: norms of the per-sample gradients in units of the clipping norm, ``[rows]``; empty
            if none are formed.
        gradients: the per-sample gradients of each physical batch, `folded` to ``[n, columns]``;
            only on request.
        marks: state of all generators as one number, at each point of the step: "start", each
            "clipping" and "noise", and the "cut".
        stated: the optimizer's clipping norm when noise is added, over the claimed one.
        noise: the optimizer's noise multiplier at that time, of each step, including a second one.
        counts: what an optimizer with adaptive clipping releases in addition to its gradients.
        used: the gradient that the update used, ``[d]``; only if the state after the step is read.
        after: state after the step that later steps or a checkpoint use, by name.
        later: releases of a second step; empty if there was none.
        sure: whether the release was read after all noise was added.
        shown: whether Opacus or the user's code showed the release, before any post-processing.
        error: the exception of the user's code; empty if none.
        where: file and line of the exception.
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
        """The releases of all steps in one tensor; empty if no step was taken."""
        return torch.cat(self.releases) if self.releases else torch.zeros(0)

    @property
    def finite(self) -> torch.Tensor | None:
        """The releases; None if there are none, after an error, or if one is not finite."""
        usable = self.releases and not self.error and bool(torch.isfinite(self.release).all())
        return self.release if usable else None

    @property
    def drawn(self) -> int | None:
        """The mark at the first clipping; None if there was none."""
        return next((mark for place, mark in self.marks if place == "clipping"), None)

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn before the first clipping."""
        return self.drawn is not None and self.drawn != self.marks[0][1]

    def fail(self, error: Exception) -> None:
        """Record an exception of the user's code, without its text, which may contain data."""
        self.error = str(error) if isinstance(error, ReachesOut) else type(error).__name__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name != "_refuse"]
        # The file name alone: numbers in a folder's name could be mistaken for numbers of the data.
        self.where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def count_rows(found: Replay, grads: Sequence[torch.Tensor], norm: float, keep: int = 0) -> None:
    """Add per-sample gradients that are about to be clipped.

    Args:
        found: the replay to which they are added.
        grads: of each tensor, ``[n, *shape]``.
        norm: the clipping norm.
        keep: number of columns in which the gradients themselves are kept; 0 for none.
    """
    found.rows += len(grads[0])
    if keep:
        found.gradients.append(folded(grads, keep))
    # In the gradients' own precision: a copy in double precision may take longer than a step.
    parts = [torch.linalg.vector_norm(_rows(g), dim=1).double().cpu() for g in grads]
    found.norms.append(torch.stack(parts).norm(dim=0) / norm)


def _rows(grads: torch.Tensor) -> torch.Tensor:
    """Return per-sample gradients as rows, ``[n, d]``, also for scalar parameters."""
    return grads.detach().unsqueeze(-1).flatten(1)


@torch.no_grad()
def folded(grads: Sequence[torch.Tensor], columns: int) -> torch.Tensor:
    """Compress per-sample gradients into few columns, approximately preserving norms.

    They are unchanged if there is a column for each entry. Otherwise entries get random signs, the
    same ones in each call, and are added to the columns in turn: norms, and norms of differences,
    are preserved up to a relative error of about ``columns ** -0.5``.

    Args:
        grads: of each tensor, ``[n, *shape]``.
        columns: largest number of columns.

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
