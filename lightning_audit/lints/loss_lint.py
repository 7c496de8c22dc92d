"""Determines whether a loss is the mean or the sum over its batch."""

from __future__ import annotations

from typing import Any, Literal

Reduction = Literal["mean", "sum"]

#: Values that autograd nodes of torch's losses store for the argument ``reduction``.
_REDUCTIONS: dict[Any, Reduction] = {1: "mean", 2: "sum"}
#: Nodes before a sum or mean after which the reduction is unknown: stacked or weighted losses.
_UNTOLD = ("StackBackward", "CatBackward", "MulBackward", "DivBackward")


def reduction_of(loss: Any, accumulated: int = 1) -> Reduction | None:
    """Return the reduction of a loss over its batch, by its last autograd operation.

    Args:
        loss: tensor on which ``backward`` will be called.
        accumulated: number of batches per step, by which Lightning divides the loss.

    Returns:
        "mean" or "sum" if the last operation is one of torch's losses, ``mean()`` or ``sum()``, or
        a sum of such terms with the same reduction; None otherwise, for example for a scaled loss
        or one of stacked or weighted losses.
    """
    node = getattr(loss, "grad_fn", None)
    if node is not None and str(node.name()).startswith("DivBackward"):
        divisor = getattr(node, "_saved_other", None)
        if divisor is not None and divisor.numel() == 1 and float(divisor) == accumulated:
            node = node.next_functions[0][0]
    return _reduction(node)


def _reduction(node: Any) -> Reduction | None:
    if node is None:
        return None
    name = str(node.name())
    if name.startswith("AddBackward"):
        terms = [child for child, _ in node.next_functions if child is not None]
        found = {_reduction(term) for term in terms}
        return found.pop() if len(found) == 1 else None
    for prefix, reduction in (("MeanBackward", "mean"), ("SumBackward", "sum")):
        if name.startswith(prefix):
            child = node.next_functions[0][0]
            made = str(child.name()) if child is not None else ""
            untold = _UNTOLD if reduction == "sum" else _UNTOLD[:2]
            return None if made.startswith(untold) else reduction  # type: ignore[return-value]
    return _REDUCTIONS.get(getattr(node, "_saved_reduction", None))
