"""Total variation of a training's outputs on neighboring data sets: how well one record shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

from scipy import special

from lightning_audit import _validate
from lightning_audit.accounting.composition import Adjacency, composed_loss
from lightning_audit.accounting.phases import Phase, merge

__all__ = ["total_variation", "unsampled_mu"]

# The grid is halved until the total variation moves by less than this part of itself.
_PRECISION = 1e-3
# Cells of the first grid in one standard deviation of the loss, and halvings after it.
_START_CELLS, _MOST_HALVINGS = 250.0, 8
_WIDEST, _NARROWEST = 1.0, 1e-5
# Mass that a composition may move to an infinite loss; it adds to the total variation.
_TAIL_MASS = 1e-13
# As in `epsilon_of_history`: longer histories take minutes and gigabytes on a grid.
_LONGEST, _LARGEST_LOSS = 10**7, 1e6


def total_variation(history: Sequence[Phase], *, adjacency: Adjacency = "add_remove") -> float:
    r"""Return the largest total variation between the outputs on two neighboring data sets.

    An upper bound on it, for steps with independent Poisson batches and Gaussian noise, tight to
    about 0.1 % of itself. It is delta at epsilon 0, so no test of the outputs has a mean error
    rate below (1 - TV) / 2.

    .. math:: \mathrm{TV} = \mathbb{E}_L\big[(1 - e^{-L})_+\big], \qquad
        \tfrac12 (\mathrm{FNR} + \mathrm{FPR}) \ge \tfrac12 (1 - \mathrm{TV})

    where L is the composed privacy loss, see `epsilon_of_history`. For full batches it is exact,
    ``2 Phi(mu / 2) - 1``, and no value exceeds that of the same steps without subsampling. That
    value is returned for more than ten million steps, and where the expected loss is above 1e6.

    Args:
        history: Phases in any order; an empty history shows nothing.
        adjacency: "add_remove" to add or remove a record, or "replace_one" to replace a record.

    Returns:
        Total variation in [0, 1]; 1 if a phase has no noise.

    Raises:
        ValueError: If ``adjacency`` is unknown or a sample rate is unknown.

    Example:
        >>> round(total_variation([Phase(10.0, 1.0, 100)]), 6)  # mu = 1
        0.382925
        >>> round(total_variation([Phase(1.0, 0.01, 1000)]), 3)
        0.161

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4), arXiv:2207.04380. Dong, Roth and Su, "Gaussian differential
        privacy", JRSS B 84, 2022, arXiv:1905.02383, Proposition 2.12.
    """
    _validate.one_of("adjacency", adjacency, get_args(Adjacency))
    phases = merge(history)
    if not phases:
        return 0.0
    if any(phase.noise_multiplier == 0 for phase in phases):
        return 1.0
    # 2 Phi(mu / 2) - 1
    unsampled = float(special.erf(unsampled_mu(phases, adjacency) / math.sqrt(8.0)))
    if all(phase.known_rate == 1 for phase in phases):
        return unsampled
    loss = sum(p.steps * p.known_rate / (2.0 * p.noise_multiplier**2) for p in phases)
    if sum(phase.steps for phase in phases) > _LONGEST or loss > _LARGEST_LOSS:
        return unsampled
    return min(_on_fine_grid(tuple(phases), adjacency), unsampled)


def unsampled_mu(history: Sequence[Phase], adjacency: Adjacency = "add_remove") -> float:
    """Return mu of Gaussian DP of the same steps on full batches; noise must be above 0."""
    mu = math.sqrt(sum(phase.steps / phase.noise_multiplier**2 for phase in history))
    return 2.0 * mu if adjacency == "replace_one" else mu


@lru_cache(maxsize=256)
def _on_fine_grid(phases: tuple[Phase, ...], adjacency: Adjacency) -> float:
    grid = min(max(_spread(phases) / _START_CELLS, _NARROWEST), _WIDEST)
    coarse = _on_grid(phases, grid, adjacency)
    for _ in range(_MOST_HALVINGS):
        grid /= 2.0
        fine = _on_grid(phases, grid, adjacency)
        if coarse - fine <= _PRECISION * fine:
            return fine
        coarse = fine
    return coarse


def _spread(phases: Sequence[Phase]) -> float:
    """Return about the standard deviation of the composed loss, if it is small."""
    parts = (
        phase.steps * phase.known_rate**2 * math.expm1(min(phase.noise_multiplier**-2, 50.0))
        for phase in phases
    )
    return math.sqrt(sum(parts))


def _on_grid(phases: Sequence[Phase], grid: float, adjacency: Adjacency) -> float:
    loss = composed_loss(phases, grid, adjacency, _TAIL_MASS)
    return min(float(loss.get_delta_for_epsilon(0.0)), 1.0)
