"""Reads the final gradient inside the innermost optimizer's step, and takes the canary out.

One place serves every implementation: the innermost torch optimizer's step hooks run after
clipping, noise, scaling and reduction, and before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import Direction, IndexArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """The gradient of one step at the observed coordinates.

    Args:
        values: entries of the final gradient, canaries already taken out, ``[n]`` in the order of
            the tap's coordinates; NaN where a parameter had no gradient.
        replaced: whether the gradient that the update used differs from the one read before it;
            then ``values`` are those that were used.
    """

    values: FloatArray
    replaced: bool


class GradientTap:
    """Step hooks on one torch optimizer.

    Args:
        optimizer: the innermost optimizer.
        params: the parameters to read, in the order of the layout.
        coordinates: tensor -> flat coordinates to read, distinct.
        before: called first in every step; returns what to take out of the gradient: pairs of
            (direction, amount in the unit of the gradient).
        after: called when the update is done, with the `Reading`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        before: Callable[[], Sequence[tuple[Direction, float]]],
        after: Callable[[Reading], None],
    ) -> None:
        self._params = params
        self._before, self._after = before, after
        self._where = {
            j: torch.unravel_index(
                torch.from_numpy(index).to(params[j].device), tuple(params[j].shape)
            )
            for j, index in coordinates.items()
        }
        self._sizes = {j: len(index) for j, index in coordinates.items()}
        self._left: torch.Tensor | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]

    @property
    def inside_step(self) -> bool:
        """Whether the optimizer is between reading the gradient and the end of its update."""
        return self._left is not None

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._left = None

    @torch.no_grad()
    def _pre(self, *_: Any) -> None:
        for direction, amount in self._before():
            for part in direction.parts:
                grad = self._params[part.tensor].grad
                if grad is None:
                    continue
                index = torch.from_numpy(part.index).to(grad.device)
                value = torch.from_numpy(-amount * part.value).to(grad.device, grad.dtype)
                grad.index_put_(torch.unravel_index(index, grad.shape), value, accumulate=True)
        self._left = self._gather()

    @torch.no_grad()
    def _post(self, *_: Any) -> None:
        left, used = self._left, self._gather()
        self._left = None
        if left is None:  # the hooks came off and on again inside a step
            return
        # As bits: NaN must equal itself here.
        same = torch.equal(left.view(torch.int64), used.view(torch.int64))
        self._after(Reading(used.cpu().numpy(), replaced=not same))

    def _gather(self) -> torch.Tensor:
        pieces = []
        for j, where in self._where.items():
            grad = self._params[j].grad
            if grad is None:
                device = self._params[j].device
                pieces.append(
                    torch.full((self._sizes[j],), torch.nan, dtype=torch.float64, device=device)
                )
            else:
                pieces.append(grad[where].to(torch.float64))
        return torch.cat(pieces)
