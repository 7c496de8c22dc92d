"""Steps of optimizers that are not private."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lightning_audit.taps.boundary import Handles, entry

#: Steps, and different numbers of records among them, from which on it is no chance that the rows
#: go along with the records.
_STEPS, _SIZES = 8, 3


@dataclass
class _Rows:
    """Rows that an optimizer's module is trained on, beside the records of their batches."""

    now: int = 0
    steps: int = 0
    sizes: set[int] = field(default_factory=set)
    #: Rows for each record.
    ratios: set[float] = field(default_factory=set)

    @property
    def follow_records(self) -> bool:
        """Whether each step is trained on the same number of rows for each record."""
        enough = self.steps >= _STEPS and len(self.sizes) >= _SIZES
        return enough and len(self.ratios) == 1

    def end_step(self, records: int | None) -> None:
        """Take in a step behind a batch of so many records."""
        if records and self.now:
            self.steps += 1
            self.sizes.add(records)
            self.ratios.add(self.now / records)
        self.now = 0

    def watch(self, module: torch.nn.Module) -> Any:
        """Count the rows of the module's outputs through which gradients come back to it."""

        def take(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad and output.dim():
                output.register_hook(entry(self._came_back))  # type: ignore[no-untyped-call]

        return module.register_forward_hook(entry(take))

    def _came_back(self, grad: torch.Tensor) -> None:
        self.now += len(grad)


class PlainSteps:
    """Counts the steps that are taken without DP-SGD, those that the user exempts apart."""

    def __init__(self) -> None:
        #: How many, and the class of the optimizer that took the last of them.
        self.count, self.kind = 0, ""
        #: Those of exempt optimizers, by the words in which these are named.
        self.exempt: dict[str, int] = {}
        #: Records of the batch of now; None where that is not known.
        self.records: int | None = None
        #: Of exempt optimizers whose modules are known, the rows that these are trained on.
        self.rows: dict[str, _Rows] = {}
        #: Class of the optimizer whose step was refused, and what refuses it by `StepRefused`.
        self.refused = ""
        self.refuse: Callable[[str], None] | None = None
        self._handles = Handles()

    @property
    def follow_records(self) -> tuple[str, ...]:
        """Exempt optimizers that train on as many rows as the batch has records, or a multiple."""
        return tuple(words for words, rows in self.rows.items() if rows.follow_records)

    def watch(
        self, plain: Iterable[tuple[torch.optim.Optimizer, str, torch.nn.Module | None]]
    ) -> None:
        """Count the steps of these optimizers from now on, and of no others.

        Args:
            plain: that are not private; each with the words in which it is named as exempt, empty
                where it is not, and the module that holds all that it trains, if there is one.
        """
        self.detach()
        self._handles = Handles()
        for optimizer, words, module in plain:
            take = entry(partial(self._take, words))
            self._handles.append(optimizer.register_step_post_hook(take))
            if words and module is not None:
                self._handles.append(self.rows.setdefault(words, _Rows()).watch(module))
            if not words:
                self._handles.append(optimizer.register_step_pre_hook(entry(self._about_to)))

    def _about_to(self, optimizer: Any, *_: Any) -> None:
        """Refuse the first step, where that is asked for."""
        if self.refuse is not None and not self.count:
            self.refuse(type(optimizer).__name__)

    def _take(self, exempt: str, optimizer: Any, *_: Any) -> None:
        if exempt:
            self.exempt[exempt] = self.exempt.get(exempt, 0) + 1
            if exempt in self.rows:
                self.rows[exempt].end_step(self.records)
            return
        self.count += 1
        self.kind = type(optimizer).__name__

    def detach(self) -> None:
        """Take all hooks off."""
        self._handles.remove()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the numbers of records are private."""
        return {"count": self.count, "kind": self.kind, "exempt": dict(self.exempt)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.count, self.kind = state["count"], state["kind"]
        self.exempt = dict(state["exempt"])
