"""Opacus' optimizers with faulty sums over the parts of a split batch, one fault per class."""

from __future__ import annotations

from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping


class AliasedSum(DPOptimizerFastGradientClipping):
    """The sum of the parts shares its memory with ``p.grad``, as it did in Opacus before #707.

    Each backward pass sets ``p.grad``, and thereby the sum, to zero. Then both hold the part's own
    gradient, which is added to itself.
    """

    def accumulate(self) -> None:
        """Add a part to the sum, and begin the sum with a part's own memory."""
        for p in self.params:
            if p.summed_grad is not None:
                p.summed_grad.add_(p.grad.data)
            else:
                p.summed_grad = p.grad.data


class SumOfSums(DPOptimizer):
    """Adds up ``summed_grad`` after each part, although it is already the sum of all parts."""

    def clip_and_accumulate(self) -> None:
        """Clip a part, and add the sum so far again."""
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self.params]
        super().clip_and_accumulate()
        for p, earlier in zip(self.params, before, strict=True):
            if earlier is not None:
                p.summed_grad += earlier
