"""What a hand-written training gets from a replay of its step, and shows to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.replay import Replay, count_rows

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])


class HandWrittenReplay:
    """What a hand-written training gets and shows in a replay."""

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
        """Count the gradients, or give others in their place."""
        # Those of a second step are left as they are.
        later = bool(self._found.after)
        tensors = list(grads.values())
        if not later:
            count_rows(self._found, tensors, self._claim.max_grad_norm, self._keep)
        self._clips()
        if self._rows is None or later:
            return grads
        places: Any = self._step.places(list(grads), module, root)  # type: ignore[attr-defined]
        params, new = self._step.params, type(grads)()
        # A batch may come in several calls, each with its share of the rows.
        end = self._found.rows
        rows = self._rows[end - len(tensors[0]) : end]
        own = torch.split(rows, [p.numel() for p in params], dim=1)
        for name, grad in grads.items():
            values = own[places[name]] * self._claim.max_grad_norm
            new[name] = values.to(grad).reshape(len(rows), *grad.shape[1:])
        return new

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """No canary enters a replay; a loop over samples begins to clip."""
        self._clips()
        return []

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Read what is shown."""
        places: Any = self._step.places(list(grads), module, root)  # type: ignore[attr-defined]
        tensors: list[torch.Tensor | None] = [None] * len(self._step.params)
        for name, place in places.items():
            if place is not None:
                tensors[place] = grads[name]
        self.shown = self._found.shown = True
        self._reads(tensors, self._claim.max_grad_norm / self._claim.scale)
