"""What a hand-written training gets from a replay of its step, and shows to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim

if TYPE_CHECKING:
    from lightning_audit.examine.step_replay import Replay

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
    ) -> None:
        self._step, self._found, self._rows = step, found, rows
        self._claim, self._clips, self._reads = claim, clips, reads
        #: Whether the release of the present step was shown.
        self.shown = False

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """Count the gradients, or give others in their place."""
        # Those of a second step are left as they are.
        later = bool(self._found.after)
        if not later:
            count_rows(self._found, list(grads.values()), self._claim.max_grad_norm)
        self._clips()
        if self._rows is None or later:
            return grads
        places: Any = self._step.places(list(grads), module, root)  # type: ignore[attr-defined]
        params, new = self._step.params, type(grads)()
        own = torch.split(self._rows, [p.numel() for p in params], dim=1)
        for name, grad in grads.items():
            values = own[places[name]] * self._claim.max_grad_norm
            new[name] = values.to(grad).reshape(len(self._rows), *grad.shape[1:])
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
        self.shown = True
        self._reads(tensors, self._claim.max_grad_norm / self._claim.scale)


def count_rows(found: Replay, grads: Sequence[torch.Tensor], norm: float) -> None:
    """Take in per-sample gradients that come to be clipped."""
    found.rows += len(grads[0])
    squares = [g.detach().reshape(len(g), -1).double().square().sum(1).cpu() for g in grads]
    found.norms.append(torch.stack(squares).sum(0).sqrt() / norm)
