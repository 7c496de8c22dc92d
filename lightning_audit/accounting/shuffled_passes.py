"""Epsilon of passes over shuffled or fixed batches, and the number of passes of a training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from lightning_audit import _validate
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.phases import Phase
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon


def epsilon_of_passes(
    noise_multiplier: float, passes: int, delta: float, adjacency: Adjacency = "add_remove"
) -> float:
    r"""Return the epsilon of passes in which each record is in one batch, shuffled or fixed.

    In each pass, one step depends on the record. The batch of the record is treated as known, so
    there is no amplification by sampling:

    .. math:: \mu = \sqrt{E} / \sigma

    if a record is zeroed out, which leaves every other record in its batch, and twice that if it
    is replaced. Exact if the adversary knows the batches, otherwise an upper bound.

    Args:
        noise_multiplier: The smallest of all steps, >= 0.
        passes: Passes over the data, E >= 1.
        delta: Delta in (0, 1).
        adjacency: "add_remove" to zero out a record, or "replace_one".

    Returns:
        Epsilon; infinity without noise.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(epsilon_of_passes(1.0, 4, 1e-5), 2)
        10.0

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Corollary 3.3.
    """
    sigma = _validate.non_negative("noise_multiplier", noise_multiplier)
    passes = _validate.positive_int("passes", passes)
    if sigma == 0.0:
        return math.inf
    mu = math.sqrt(passes) / sigma
    return float(gaussian_epsilon(2.0 * mu if adjacency == "replace_one" else mu, delta))


def passes_of(history: Iterable[Phase]) -> int:
    """Return the number of passes of a history at 1 / rate steps a pass, rounded up."""
    exact = sum(phase.steps * phase.known_rate for phase in history)
    return math.ceil(exact - 1e-6)


class PassCounter:
    """Counts the steps that a record may have entered, if each pass has it in one batch.

    For each pass and each private optimizer, the batch with the most steps counts: ten steps on a
    single one of 100 batches are ten passes for the records of that batch. Steps between two
    batches count with the earlier batch, and steps on a sum of batches with the last. The numbers
    of the optimizers are added, because their summed batches may overlap: an upper bound.

    A pass that is restarted after a stop counts twice, because its batches are dealt again.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._most: list[int] = []
        self._before: list[int] = []

    def start_pass(self, steps: Sequence[int]) -> None:
        """Begin a pass.

        Args:
            steps: Steps that each private optimizer has taken so far, ``[optimizers]``.
        """
        self._ended, self._most = self.passes(steps), []
        self._before = list(steps)

    def start_batch(self, steps: Sequence[int]) -> None:
        """Begin a batch; ``steps`` as in `start_pass`."""
        self._most, self._before = self._with_batch(steps), list(steps)

    def passes(self, steps: Sequence[int]) -> int:
        """Return the passes so far, summed over optimizers; ``steps`` as in `start_pass`."""
        return self._ended + sum(self._with_batch(steps))

    def _with_batch(self, steps: Sequence[int]) -> list[int]:
        """Return the most steps of each optimizer on one batch of this pass so far."""
        known = zip_longest(self._most, self._before, steps, fillvalue=0)
        return [max(most, now - before) for most, before, now in known]

    def state(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return what a checkpoint holds: numbers of passes and steps."""
        return {"passes": self.passes(steps), "steps": list(steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state."""
        self._ended, self._most = int(state["passes"]), []
        self._before = [int(each) for each in state["steps"]]


def passes_taken(taken: Sequence[Phase], told: Sequence[Phase], passes: int) -> Phase:
    """Return the phase whose epsilon a training on shuffled batches spends.

    Args:
        taken: the steps, at any rate; not empty.
        told: phases of the accountants, which are more if the model was trained before.
        passes: number of passes of the steps; see `PassCounter`.

    Returns:
        Passes with the least noise; `epsilon_of_history` composes them as `epsilon_of_passes`.
    """
    least = min(phase.noise_multiplier for phase in (*taken, *told))
    return Phase(least, 1.0, max(1, passes, passes_of(told)))
