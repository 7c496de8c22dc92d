"""Implementation of `lightning_audit.per_sample`, `rows` and `released` in an audited training."""

from __future__ import annotations

from typing import TypeVar

import torch

from lightning_audit._validate import BadArgument
from lightning_audit.dpsgd.hand_over import register, unregister
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.handed_rows import HandedRows
from lightning_audit.session.reading_way import HandWrittenReading
from lightning_audit.taps.boundary import Handles, entry

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

_RELEASED_TWICE = (
    "lightning_audit.released was called more than once in a step, and only the first call was "
    "read; call it once, with the gradient that all noise was added to"
)


class HandWrittenFront:
    """Interface that gives a hand-written training its canaries and reads its releases.

    An input canary is part of the batch: then `per_sample` and `rows` add nothing, because two
    kinds of canaries would overlap.

    Args:
        session: audits the steps of a plain optimizer.
    """

    def __init__(self, session: AuditSession) -> None:
        self._session = session
        self._handles = Handles()
        self._handles.append(self)
        self.per_sample = entry(self._per_sample, lambda grads, *_: grads)
        self.rows = entry(self._rows, lambda *_: [])
        self.released = entry(self._released, self._rescue)

    def open_to(self, root: torch.nn.Module) -> None:
        """Register this training's module with `lightning_audit.per_sample` and `rows`."""
        register(root, self)

    def remove(self) -> None:
        """Unregister."""
        unregister(self)
        self._handles.forget()

    @property
    def _source(self) -> HandedRows | None:
        """The source of the canaries; None if it is not active."""
        source = self._session.source
        return source if isinstance(source, HandedRows) and self._way.trains else None

    @property
    def _way(self) -> HandWrittenReading:
        way = self._session.way
        assert isinstance(way, HandWrittenReading)
        return way

    @property
    def _step(self) -> ManualStep:
        step = self._session.step
        assert isinstance(step, ManualStep)
        return step

    def _per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """See `lightning_audit.per_sample`."""
        source, step = self._source, self._step
        if source is None:
            return grads
        if not isinstance(grads, dict):
            raise BadArgument(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors "
                "(B, *shape), as torch.func.vmap(grad(...)) gives it."
            )
        places = step.places(list(grads), module, root)
        step.check_shapes(grads, places)
        step.hold(grads)
        if not source.enter():
            return grads
        grown = step.append(grads, places)
        source.handed = True  # last: from here on the canaries count as being in the sums
        return grown

    def _rows(
        self, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[dict[str, torch.Tensor]]:
        """See `lightning_audit.rows`."""
        source, step = self._source, self._step
        if source is None:
            return []
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        places = step.places(names, module, root)
        if not source.enter():
            return []
        canaries = step.singles(places)
        source.handed = True
        return canaries

    def _released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """See `lightning_audit.released`."""
        way, planner = self._way, self._session.planner
        if not way.trains or not planner.layout_holds():
            return
        tensors = way.released(grads, module, root)
        if way.tap.inside_step and way.is_shown:
            planner.block_pass(_RELEASED_TWICE)
        else:
            self._session.released(tensors)

    def _rescue(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Remove canaries from the released sums after the audit failed."""
        if self._session.rescue.in_transit:
            self._session.rescue.take_out(self._way.released(grads, module, root))
