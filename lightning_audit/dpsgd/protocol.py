"""What an adapter to some implementation of DP-SGD offers to the audit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.layout import Direction, Layout, same_objects


class CannotEnter(ValueError):
    """No canary can enter the step; the message says why. Nothing was changed."""


class UnsupportedOptimizer(Exception):
    """The optimizer cannot be audited; the message says why and what to change."""


def refuse_repeated_closures(optimizer: torch.optim.Optimizer) -> None:
    """Raise `UnsupportedOptimizer` if a step of the optimizer takes several gradients."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedOptimizer(
            "LBFGS runs its closure several times in a step, so no single noisy gradient is the "
            "step's; use an optimizer that takes one gradient a step, such as SGD or Adam."
        )


@dataclass(frozen=True)
class StepClaim:
    """What the implementation states about the step that is about to be taken.

    Args:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_grad_norm: clipping norm of a per-sample gradient.
        scale: what the noisy sum is divided by to give the gradient, e.g. the expected batch size.
        accumulated: batches whose gradients the step adds up.
    """

    noise_multiplier: float
    max_grad_norm: float
    scale: float
    accumulated: int = 1


@dataclass(frozen=True)
class Backward:
    """The backward pass that is about to run.

    Args:
        loss: what ``backward`` will be called on.
        accumulates: whether several passes make up a step.
        autocast: whether layers choose the precision that they compute in.
        announced: False if it has run already, and nobody said so before.
    """

    loss: Any
    accumulates: bool = False
    autocast: bool = False
    announced: bool = True


@dataclass
class NormsSeen:
    """Norms by which gradients are clipped without being formed, beside the norms that they have.

    Args:
        checked: samples whose norm was looked at.
        largest_ratio: largest norm over the one that clipping used.
        clipped_at: clipping norm of the module and of the optimizer, of the step in which the
            first is largest over the second.
    """

    checked: int = 0
    largest_ratio: float = 0.0
    clipped_at: tuple[float, float] = (0.0, 0.0)

    def take_norms(self, module: float, optimizer: float) -> None:
        """Take in the clipping norm of the module in a step, and that of the optimizer."""
        largest, stated = self.clipped_at
        if module * stated >= largest * optimizer:
            self.clipped_at = module, optimizer


class DPSGDStep(ABC):
    """An implementation of DP-SGD, seen from the audit; as it stands, one that shows nothing."""

    layout: Layout
    params: Sequence[torch.nn.Parameter]
    optimizer: Any
    #: The torch optimizer that updates the parameters.
    inner: torch.optim.Optimizer
    #: What was seen of norms; None where gradients are formed, and canaries go through their norms.
    norms: NormsSeen | None
    #: Whether the step sets another clipping norm for the next one when its noise is in.
    adapts_its_norm = False
    #: Seed of where canaries stand among the data's rows, the same however often a closure runs in
    #: the step; None, or where rows have no place that is the audit's to choose: behind them.
    row_seed: Sequence[int] | None

    @abstractmethod
    def trained(self) -> Sequence[torch.nn.Parameter]:
        """The parameters that are trained now; those at the start are in ``params``."""

    def same_params(self) -> bool:
        """Whether these are the same."""
        return same_objects(self.trained(), self.params)

    @abstractmethod
    def claim(self, accumulated: int | None = None) -> StepClaim:
        """Read what the implementation states now, for so many batches or those that wait."""

    def concerns(self, coming: Backward) -> bool:
        """Whether the coming backward pass may be for this step, and not for another optimizer."""
        return True

    @abstractmethod
    def obstacle(self, coming: Backward) -> str:
        """Why `prepare` cannot serve the coming backward pass, and what that costs; or empty."""

    def prepare(self, directions: Sequence[Direction], norm: float) -> None:  # noqa: B027
        """Before the backward pass, where `obstacle` is empty: make room for `inject`'s rows."""

    def conceal(self) -> None:  # noqa: B027
        """After the backward pass: show nobody what `prepare` laid out, until `confirm`."""

    def confirm(self) -> bool:
        """Put what `prepare` laid out into the gradients that wait: all of it (True) or nothing."""
        return False

    @abstractmethod
    def withdraw(self) -> bool:
        """Undo `prepare`, and `inject` where no step was taken.

        Returns:
            Whether rows of `inject` or `confirm` came out before they were clipped.
        """

    @abstractmethod
    def holds_canaries(self) -> bool:
        """Whether canaries that were put in are in the gradients that wait for clipping."""

    @abstractmethod
    def inject(self, directions: Sequence[Direction], norm: float, part: int = -1) -> None:
        """Add one per-sample gradient ``norm * direction`` for each direction, before clipping.

        Args:
            directions: vectors over the layout, ``[n]``; of norm 1, or shorter.
            norm: norm of the longest row, in the unit of a per-sample gradient.
            part: number of the batch among those that are accumulated; -1 for the last.
        """

    def noise_state(self) -> str | None:
        """Something that is equal only for equal states of the noise generator; None if unknown."""
        return None

    def batch_size(self) -> int | None:
        """Number of per-sample gradients waiting to be clipped, None if unknown."""
        return None

    def look_at_parts(self) -> None:  # noqa: B027
        """Before clipping: see whether earlier parts of the step have left a finite sum."""

    @abstractmethod
    def lost_rows(self) -> torch.Tensor | None:
        """Before the update: which samples' gradients are not finite, ``[n]``; None if unknown.

        Canaries of `inject` and `confirm` are left out.
        """

    def final_step_of_batch(self) -> bool:
        """Whether the coming call of ``step`` ends a logical batch."""
        return True

    def splits_batches(self) -> bool:
        """Whether logical batches may be split, also where the present one is not."""
        return False
