"""Steps of optimizers that are not private."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from lightning_audit.taps.boundary import Handles, entry


class PlainSteps:
    """Counts the steps that are taken without DP-SGD, those that the user exempts apart."""

    def __init__(self) -> None:
        #: How many, and the class of the optimizer that took the last of them.
        self.count, self.kind = 0, ""
        #: Those of exempt optimizers, by the words in which these are named.
        self.exempt: dict[str, int] = {}
        #: Class of the optimizer whose step was refused, and what refuses it by `StepRefused`.
        self.refused = ""
        self.refuse: Callable[[str], None] | None = None
        self._handles = Handles()

    def watch(self, optimizers: Sequence[torch.optim.Optimizer], exempt: Sequence[str]) -> None:
        """Count the steps of these optimizers from now on, and of no others.

        Args:
            optimizers: that are not private.
            exempt: for each the words in which it is named as exempt; empty where it is not.
        """
        self.detach()
        self._handles = Handles()
        for optimizer, words in zip(optimizers, exempt, strict=True):
            take = entry(partial(self._take, words))
            self._handles.append(optimizer.register_step_post_hook(take))
            if not words:
                self._handles.append(optimizer.register_step_pre_hook(entry(self._about_to)))

    def _about_to(self, optimizer: Any, *_: Any) -> None:
        """Refuse the first step, where that is asked for."""
        if self.refuse is not None and not self.count:
            self.refuse(type(optimizer).__name__)

    def _take(self, exempt: str, optimizer: Any, *_: Any) -> None:
        if exempt:
            self.exempt[exempt] = self.exempt.get(exempt, 0) + 1
            return
        self.count += 1
        self.kind = type(optimizer).__name__

    def detach(self) -> None:
        """Take all hooks off."""
        self._handles.remove()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"count": self.count, "kind": self.kind, "exempt": dict(self.exempt)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.count, self.kind = state["count"], state["kind"]
        self.exempt = dict(state["exempt"])
