"""The interface of `lightning_audit.per_sample`, `rows` and `released` in a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.replay import Replay, count_rows

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])


class HandWrittenReplay:
    """Source of the per-sample gradients, and reader of the release, in a replay."""

    def __init__(
        self,
        step: DPSGDStep,
        found: Replay,
        rows: torch.Tensor | None,
        claim: StepClaim,
        clips: Callable[[], None],
        reads: Callable[..., None],
        *,
        keep: int = 0,
    ) -> None:
        self._step, self._found, self._rows = step, found, rows
        self._claim, self._clips, self._reads = claim, clips, reads
        self._keep = keep
        #: Whether the release of the present step was shown.
        self.shown = False

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """Count the gradients, and return them or replacements."""
        # The gradients of a second step are not replaced.
        later = bool(self._found.after)
        tensors = list(grads.values())
        if not later:
            count_rows(self._found, tensors, self._claim.max_grad_norm, self._keep)
        self._clips()
        if self._rows is None or later:
            return grads
        places: Any = self._step.places(list(grads), module, root)  # type: ignore[attr-defined]
        params, new = self._step.params, type(grads)()
        # A batch may be split over several calls, each with its share of the rows.
        end = self._found.rows
        rows = self._rows[end - len(tensors[0]) : end]
        own = torch.split(rows, [p.numel() for p in params], dim=1)
        for name, grad in grads.items():
            values = own[places[name]] * self._claim.max_grad_norm
            new[name] = values.to(grad).reshape(len(rows), *grad.shape[1:])
        return new

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """Return no canaries, and record that clipping begins, in a loop over samples."""
        self._clips()
        return []

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Read the release."""
        places: Any = self._step.places(list(grads), module, root)  # type: ignore[attr-defined]
        tensors: list[torch.Tensor | None] = [None] * len(self._step.params)
        for name, place in places.items():
            if place is not None:
                tensors[place] = grads[name]
        self.shown = self._found.shown = True
        self._reads(tensors, self._claim.max_grad_norm / self._claim.scale)
