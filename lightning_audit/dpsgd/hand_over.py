"""`per_sample`, `rows`, `released`: how hand-written DP-SGD gets canaries and shows releases.

Without an audit they cost a call and a look-up in an empty dictionary, and import nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from lightning_audit.hooks.boundary import Boundary, current

if TYPE_CHECKING:
    import torch

    Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])


class HandOver(Protocol):
    """Interface of an audit of a hand-written training."""

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """Return the gradients with the canaries' rows appended, or the gradients themselves."""

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """Return the canaries as gradients of single samples."""

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Read noisy gradients, and remove the canaries from them."""


#: LightningModule -> boundary of the audit, for each registered training.
_boundaries: WeakKeyDictionary[torch.nn.Module, Boundary] = WeakKeyDictionary()
#: LightningModule -> the audit of its training, while the training runs.
_sources: WeakKeyDictionary[torch.nn.Module, HandOver] = WeakKeyDictionary()


def register(root: torch.nn.Module, source: HandOver) -> None:
    """Register ``source`` as the audit of this module and its submodules."""
    if (boundary := current()) is not None:
        _boundaries[root] = boundary
    _sources[root] = source


def unregister(source: HandOver) -> None:
    """Unregister ``source``, if it is registered."""
    for root in [root for root, known in _sources.items() if known is source]:
        del _sources[root]


@contextlib.contextmanager
def diverted(root: torch.nn.Module, source: HandOver) -> Iterator[None]:
    """Register another source for the duration of the context."""
    before = _sources.get(root)
    _sources[root] = source
    try:
        yield
    finally:
        del _sources[root]
        if before is not None:
            _sources[root] = before


def per_sample(grads: Gradients, *, module: torch.nn.Module) -> Gradients:
    """Append the canaries of a running audit to per-sample gradients, before clipping.

    Call it once per optimizer step, on the gradients that are about to be clipped:

        grads = lightning_audit.per_sample(grads, module=self)

    Without an audit of this module's training, outside its training batches, and in steps without
    canaries it returns ``grads`` itself. If a step makes several calls, as for a split batch, the
    first one gets the canaries and the others return ``grads``. The audit assumes that the canaries
    are in the next update: do not drop a batch after this call.

    The returned gradients can have more rows than the batch has samples. Divide their noisy sum
    by the expected batch size as usual, never by the number of rows.

    Args:
        grads: name of a parameter -> stacked gradients of the samples, ``[B, *shape]``. Names are
            those in ``module``, in the LightningModule or in another of its submodules; all
            parameters that the optimizer trains must be included.
        module: the LightningModule, or one of its submodules.

    Returns:
        A dictionary of the same type with new tensors ``[B + n, *shape]``, or ``grads`` itself.

    Raises:
        ValueError: in an audited training, if names or shapes are not those of the parameters.
    """
    given: Gradients | None = _of_audit("per_sample", module, grads)
    return grads if given is None else given


def rows(*, module: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
    """Return the canaries of a running audit, for loops over single samples.

    Call it once per optimizer step, and clip and add each gradient like a sample's:

        for grads in lightning_audit.rows(module=self):
            add_clipped(grads)

    Without an audit of this module's training, outside its training batches, in steps without
    canaries, and after the first call of a step the list is empty.

    Args:
        module: the LightningModule, or one of its submodules that holds all trained parameters.

    Returns:
        One dictionary per canary: name of a parameter in ``module`` -> gradient, ``[*shape]``.

    Raises:
        ValueError: in an audited training, if ``module`` lacks parameters that are trained.
    """
    return _of_audit("rows", module) or []


def released(grads: Gradients, *, module: torch.nn.Module) -> Gradients:
    """Pass the noisy gradients to a running audit, before any post-processing.

    Optional, for code that post-processes its noisy gradients: filters, top-k, signs, clipping, an
    average over steps. Post-processing loses no privacy, but a gradient read after it looks as if
    it had too little noise. Call it once per optimizer step, after clipped sum and noise are added
    and divided:

        grads = lightning_audit.released(grads, module=self)

    The canaries are removed from the tensors in place, as they are from ``p.grad`` without this
    call. Without an audit of this module's training, and outside its training batches, nothing
    happens.

    Args:
        grads: name of a parameter -> noisy gradient in the unit of ``p.grad``: the noisy sum over
            the expected batch size, ``[*shape]``. Names are as for `per_sample`; all parameters
            that the optimizer trains must be included.
        module: the LightningModule, or one of its submodules.

    Returns:
        ``grads`` itself.

    Raises:
        ValueError: in an audited training, if names or shapes are not those of the parameters.
    """
    _of_audit("released", module, grads)
    return grads


def _of_audit(name: str, module: torch.nn.Module, *given: Any) -> Any:
    """Call a method of the audit of a module's training; return None without one or if it fails."""
    if not _sources:
        return None
    try:
        root = _root(module)
        return None if root is None else getattr(_sources[root], name)(*given, module, root)
    except Exception as error:
        if not _fails(error):
            raise
    return None


def _fails(error: Exception) -> bool:
    """Detach the audits concerned from their trainings; return False if the error must be raised.

    An exception that an audit's own entry lets pass is deliberate.
    """
    boundaries: list[Any] = [current()] if current() else list(_boundaries.values())
    failed = [boundary.fails(error) for boundary in boundaries]
    return bool(failed) and all(failed)


def _root(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the audited LightningModule that ``module`` is or belongs to, if any."""
    if module in _sources:
        return module
    audited = list(_sources)
    return next((root for root in audited if any(part is module for part in root.modules())), None)
