"""Is the loss the mean over the batch that the optimizer takes it for, or the sum."""

from __future__ import annotations

from typing import Any, Literal

Reduction = Literal["mean", "sum"]

#: What torch's losses keep of their argument ``reduction``.
_REDUCTIONS: dict[Any, Reduction] = {1: "mean", 2: "sum"}
#: What may make a sum one of several losses, or a mean by weights that add up to one.
_UNTOLD = ("StackBackward", "CatBackward", "MulBackward", "DivBackward")


def reduction_of(loss: Any, accumulated: int = 1) -> Reduction | None:
    """How a loss adds up its batch, by the operation that made it.

    Args:
        loss: what ``backward`` will be called on.
        accumulated: batches of a step, by whose number Lightning divides the loss.

    Returns:
        "mean" or "sum" where one of torch's losses, ``mean()`` or ``sum()`` comes last, or in all
        terms of a sum of such; None for anything else, such as a loss that is scaled, or that is
        made of stacked or weighted ones.
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
