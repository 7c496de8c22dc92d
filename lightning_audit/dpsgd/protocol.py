"""Interface of the adapters to implementations of DP-SGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.hooks.gradient_tap import GradientTap
from lightning_audit.layout import Direction, IndexArray, Layout

#: Of the positions of canaries' rows among those of the data; None: after them.
Seed = Sequence[int] | None


class CannotEnter(ValueError):
    """No canary can enter the step; the message says why. Nothing was modified."""


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
    """What the implementation states about the coming step.

    Args:
        noise_multiplier: standard deviation of the noise, in units of the clipping norm.
        max_grad_norm: clipping norm of a per-sample gradient.
        scale: divisor of the noisy sum, e.g. the expected batch size.
        accumulated: number of batches whose gradients the step sums.
        fixed_size: whether records are dealt into batches of one size, so that the number of
            records is no secret, and neighbors differ by a record that is replaced or zeroed.
        views: number of per-sample gradients that the step averages into one record's.
    """

    noise_multiplier: float
    max_grad_norm: float
    scale: float
    accumulated: int = 1
    fixed_size: bool = False
    views: int = 1


@dataclass(frozen=True)
class Backward:
    """The backward pass that is about to run.

    Args:
        loss: tensor on which ``backward`` will be called.
        accumulates: whether a step sums several passes.
        announced: False if it has already run without a hook before it.
    """

    loss: Any
    accumulates: bool = False
    announced: bool = True


@dataclass
class NormsSeen:
    """Comparison of the norms that ghost clipping uses with those of formed gradients.

    Args:
        checked: number of samples whose norm was checked.
        largest_ratio: largest ratio of a gradient's norm to the one that clipping used.
        clipped_at: clipping norms of the module and of the optimizer, in the step with the largest
            ratio of the first to the second.
    """

    checked: int = 0
    largest_ratio: float = 0.0
    clipped_at: tuple[float, float] = (0.0, 0.0)

    def take_ratio(self, ratio: float) -> None:
        """Update with a sample's norm over the one that clipping used."""
        self.checked += 1
        self.largest_ratio = max(self.largest_ratio, ratio)

    def take_norms(self, module: float, optimizer: float) -> None:
        """Update with a step's clipping norms of the module and of the optimizer."""
        largest, stated = self.clipped_at
        if module * stated >= largest * optimizer:
            self.clipped_at = module, optimizer


class DPSGDStep(ABC):
    """Adapter to an implementation of DP-SGD; defaults are for one without optional features."""

    layout: Layout
    params: Sequence[torch.nn.Parameter]
    optimizer: Any
    #: The torch optimizer that updates the parameters.
    inner: torch.optim.Optimizer
    #: Checks of ghost clipping's norms; None if gradients are formed, so that canaries test norms.
    norms: NormsSeen | None
    #: Number of samples whose gradients the user's code has handed over since the last update.
    samples = 0
    #: Whether the step changes the clipping norm for the next one (adaptive clipping).
    adapts_its_norm = False
    #: Why the clipped sums are not known where the parameters' ``summed_grad`` are not; empty if
    #: that has another reason.
    sums_lack = ""

    @abstractmethod
    def trained(self) -> Sequence[torch.nn.Parameter]:
        """Return the parameters that are trained now; ``params`` has those of the start."""

    @abstractmethod
    def claim(self, accumulated: int | None = None) -> StepClaim:
        """Return what the implementation states now.

        Args:
            accumulated: number of batches that the step sums; None to count the pending ones.
        """

    def concerns(self, coming: Backward) -> bool:
        """Return whether the coming backward pass may be for this optimizer."""
        return True

    def tap(self, coordinates: dict[int, IndexArray], *, cut_known: bool = False) -> GradientTap:
        """Return the reader of the steps' gradients.

        Args:
            coordinates: tensor -> flat coordinates to read.
            cut_known: whether hand-written code calls `lightning_audit.released`.
        """
        return GradientTap(self.inner, self.params, coordinates)

    # ------------------------------------------------------------------ canaries in, canaries out

    @abstractmethod
    def obstacle(self, coming: Backward) -> str:
        """Return why `lay_out` is not possible for the coming backward pass; empty if it is."""

    def lay_out(self, rows: Sequence[Direction], norm: float, seed: Seed = None) -> None:  # noqa: B027
        """Reserve rows before a backward pass for which `obstacle` is empty; see `copy_in`."""

    def conceal(self) -> None:  # noqa: B027
        """Hide the rows of `lay_out` from user code after the backward pass, until `put_in`."""

    def put_in(self) -> bool:
        """Insert the rows of `lay_out` into the pending gradients: all (True) or none."""
        return False

    @abstractmethod
    def copy_in(
        self, rows: Sequence[Direction], norm: float, seed: Seed = None, part: int = -1
    ) -> None:
        """Add one per-sample gradient ``norm * row`` for each row, before clipping.

        Args:
            rows: vectors over the layout, ``[n]``, of norm at most 1.
            norm: norm of the longest row, in the unit of a per-sample gradient.
            seed: of the rows' positions among those of the data, the same for each run of the
                step's closure; None: after the data's rows. Not used if the audit cannot choose.
            part: index among the accumulated batches; -1 for the last.

        Raises:
            CannotEnter: the gradients cannot take rows; nothing was modified.
        """

    @abstractmethod
    def take_out(self) -> bool:
        """Undo `lay_out`, and `put_in` and `copy_in` if no step was taken.

        Returns:
            Whether rows were removed from the gradients before these were clipped.
        """

    @abstractmethod
    def holds_canaries(self) -> bool:
        """Return whether inserted canaries are in the gradients to be clipped."""

    def settle(self) -> None:  # noqa: B027
        """End a batch: keep what the update needs of its gradients, and drop the rest."""

    def release(self) -> None:  # noqa: B027
        """Drop all gradients after a step's update."""

    # ------------------------------------------------------------------ what it knows of a step

    def noise_state(self) -> str | None:
        """Return a digest of the noise generator's state; None if unknown."""
        return None

    def batch_size(self) -> int | None:
        """Return the number of per-sample gradients to be clipped; None if unknown."""
        return None

    def look_at_parts(self) -> None:  # noqa: B027
        """Check, before clipping, whether the sum of the step's earlier parts is finite."""

    @abstractmethod
    def lost_rows(self) -> torch.Tensor | None:
        """Return, after the update, which samples' gradients are not finite, ``[n]``.

        Canaries are left out. None if unknown.
        """

    def look_at_gradient(self) -> None:  # noqa: B027
        """Look at a gradient that is about to be clipped, or summed if it is clipped."""

    def final_step_of_batch(self) -> bool:
        """Return whether the coming call of ``step`` ends a logical batch."""
        return True

    def splits_batches(self) -> bool:
        """Return whether logical batches may be split, even if the present one is not."""
        return False
