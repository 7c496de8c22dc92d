"""Counts steps of optimizers that are not private."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lightning_audit.taps.boundary import Handles, entry

#: Fewest steps, and fewest distinct numbers of records, for rows in proportion to records not to
#: be chance.
_STEPS, _SIZES = 8, 3


@dataclass
class _Rows:
    """Rows on which an optimizer's module is trained, and the numbers of records per batch."""

    now: int = 0
    steps: int = 0
    sizes: set[int] = field(default_factory=set)
    #: Ratios of rows to records.
    ratios: set[float] = field(default_factory=set)

    @property
    def follow_records(self) -> bool:
        """Whether every step trains on the same number of rows per record."""
        enough = self.steps >= _STEPS and len(self.sizes) >= _SIZES
        return enough and len(self.ratios) == 1

    def end_step(self, records: int | None) -> None:
        """Update with a step after a batch of ``records`` records."""
        if records and self.now:
            self.steps += 1
            self.sizes.add(records)
            self.ratios.add(self.now / records)
        self.now = 0

    def watch(self, module: torch.nn.Module) -> Any:
        """Count the rows of the module's outputs that receive a gradient; return the hook."""

        def take(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad and output.dim():
                output.register_hook(entry(self._came_back))  # type: ignore[no-untyped-call]

        return module.register_forward_hook(entry(take))

    def _came_back(self, grad: torch.Tensor) -> None:
        self.now += len(grad)


class PlainSteps:
    """Counts the steps that are taken without DP-SGD; exempt ones are counted separately."""

    def __init__(self) -> None:
        #: Number of steps, and the class of the optimizer that took the last one.
        self.count, self.kind = 0, ""
        #: Steps of exempt optimizers, by the optimizer's description.
        self.exempt: dict[str, int] = {}
        #: Number of records of the current batch; None if unknown.
        self.records: int | None = None
        #: Rows of exempt optimizers with a known module, by the optimizer's description.
        self.rows: dict[str, _Rows] = {}
        #: Class of the optimizer whose step was refused; function that raises `StepRefused`.
        self.refused = ""
        self.refuse: Callable[[str], None] | None = None
        self._handles = Handles()

    @property
    def follow_records(self) -> tuple[str, ...]:
        """Exempt optimizers that train on a fixed number of rows per record of the batch."""
        return tuple(words for words, rows in self.rows.items() if rows.follow_records)

    def watch(
        self, plain: Iterable[tuple[torch.optim.Optimizer, str, torch.nn.Module | None]]
    ) -> None:
        """Count the steps of these optimizers from now on, and of no others.

        Args:
            plain: optimizers that are not private, each with its description if it is exempt (else
                an empty string), and the module with all parameters that it trains, if known.
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
        """Refuse the first step if `refuse` is set."""
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
        """Unregister all hooks."""
        self._handles.remove()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, without the numbers of records, which are private."""
        return {"count": self.count, "kind": self.kind, "exempt": dict(self.exempt)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state."""
        self.count, self.kind = state["count"], state["kind"]
        self.exempt = dict(state["exempt"])
