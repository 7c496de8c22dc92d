"""The epsilon of passes over the data in which each record enters one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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


def cost_of_epochs(
    taken: Sequence[Phase],
    told: Sequence[Phase],
    epochs: int,
    delta: float,
    adjacency: Adjacency = "add_remove",
) -> float:
    """Epsilon of a training whose batches are shuffled.

    Args:
        taken: the steps, whose rates do not matter; not empty.
        told: what accountants were told of, which is more where the model was trained before.
        epochs: that began, of all private optimizers together.
        delta: in (0, 1).
        adjacency: as `epsilon_of_passes` has it.
    """
    least = min(phase.noise_multiplier for phase in (*taken, *told))
    return epsilon_of_passes(least, max(1, epochs, passes_of(told)), delta, adjacency)
