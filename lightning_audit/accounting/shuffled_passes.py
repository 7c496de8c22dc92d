"""The epsilon of passes over shuffled or fixed batches, and how many a training makes."""

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
    r"""Epsilon of passes over shuffled or fixed batches, in each of which a record is in one step.

    Of each pass one step depends on the record, and its batch is not counted as drawn at random, so
    that sampling amplifies nothing:

    .. math:: \mu = \sqrt{E} / \sigma

    where a record is zeroed out, which leaves every other record in its batch, and twice that where
    it is replaced. Exact where whoever looks on knows the batches, else an upper bound.

    Args:
        noise_multiplier: the smallest of all steps, >= 0.
        passes: over the data, E >= 1.
        delta: in (0, 1).
        adjacency: "add_remove" for a record that is zeroed out, or "replace_one".

    Returns:
        Epsilon; infinity without noise.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> round(epsilon_of_passes(1.0, 4, 1e-5), 2)
        10.0

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, Corollary 3.3.
    """
    sigma = _validate.non_negative("noise_multiplier", noise_multiplier)
    passes = _validate.positive_int("passes", passes)
    if sigma == 0.0:
        return math.inf
    mu = math.sqrt(passes) / sigma
    return float(gaussian_epsilon(2.0 * mu if adjacency == "replace_one" else mu, delta))


def passes_of(history: Iterable[Phase]) -> int:
    """How many passes the steps of a history make, at 1 / rate steps a pass; those begun count."""
    exact = sum(phase.steps * phase.known_rate for phase in history)
    return math.ceil(exact - 1e-6)


class PassCounter:
    """Counts the steps that a record may have entered, where a pass has it in one batch.

    Of each pass and each private optimizer, the batch counts on which most steps were taken: ten
    steps on a single one of 100 batches are ten passes for the records of that batch. Steps between
    two batches count with the earlier one, and steps on a sum of batches with the last. The numbers
    of the optimizers are added, because batches that they sum up may overlap: an upper bound.

    A pass that is begun again after a stop counts twice: its batches are dealt out anew.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._most: list[int] = []
        self._before: list[int] = []

    def start_pass(self, steps: Sequence[int]) -> None:
        """A pass begins.

        Args:
            steps: that each private optimizer has taken so far, ``[optimizers]``.
        """
        self._ended, self._most = self.passes(steps), []
        self._before = list(steps)

    def start_batch(self, steps: Sequence[int]) -> None:
        """A batch begins; ``steps`` as in `start_pass`."""
        self._most, self._before = self._with_batch(steps), list(steps)

    def passes(self, steps: Sequence[int]) -> int:
        """The passes so far, of all optimizers together; ``steps`` as in `start_pass`."""
        return self._ended + sum(self._with_batch(steps))

    def _with_batch(self, steps: Sequence[int]) -> list[int]:
        """The most steps of each optimizer on a batch of this pass, the present one included."""
        known = zip_longest(self._most, self._before, steps, fillvalue=0)
        return [max(most, now - before) for most, before, now in known]

    def state(self, steps: Sequence[int]) -> dict[str, Any]:
        """What a checkpoint holds: numbers of passes and steps."""
        return {"passes": self.passes(steps), "steps": list(steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
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
