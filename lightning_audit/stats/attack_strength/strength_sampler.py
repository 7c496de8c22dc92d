"""Samples of epsilon and of the attacks' strength, by the published Markov chain.

`stats.attack_strength.strength_posterior` computes the same posterior by quadrature, much faster
and without sampling error; the chain serves to check it against published results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_or_zero
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.attack_strength._strength import log_area, log_difference
from lightning_audit.stats.attack_strength._strength_arguments import (
    attack_vector,
    prior_variance,
    strength_prior,
)

__all__ = ["sample_attack_strength"]


def sample_attack_strength(
    counts: ConfusionCounts,
    delta: float,
    iterations: int,
    generator: np.random.Generator,
    *,
    epsilon_variance: float = 10.0,
    strength_shapes: tuple[float, float] = (1.0, 1.0),
    start: tuple[float, float] = (5.0, 0.1),
    step_epsilon: float = 0.1,
    step_strength: float = 0.1,
    proposals: int = 100,
) -> Floats:
    """Run a Markov chain whose limit is the joint posterior of epsilon and of the strength.

    Successive samples are strongly dependent: a hundred iterations contain about as much
    information as one independent sample. Burn-in samples are included.

    Args:
        counts: Outcomes of the attacks, a vector, ``[n]``.
        delta: Delta in [0, 1).
        iterations: Length of the chain, M.
        generator: Random generator; the chain is a function of its state.
        epsilon_variance: As in `strength_posterior.attack_strength_posterior`.
        strength_shapes: The shapes >= 1 of the Beta prior of the strength.
        start: Epsilon > 0 and strength in (0, 1) at the start of the chain.
        step_epsilon: Standard deviation of the proposals of log epsilon.
        step_strength: Standard deviation of the proposals of the strength.
        proposals: Number of pairs of error rates that estimate one attack's integral, K >= 2.

    Returns:
        Samples of (epsilon, strength), ``[iterations, 2]``.

    Raises:
        ValueError: If an argument is out of its range.

    References:
        Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy
        from membership inference attacks", 2025, arXiv:2504.16683: algorithm 1.
    """
    vector = attack_vector(counts)
    delta = delta_or_zero(delta)
    length = _validate.positive_int("iterations", iterations)
    variance = prior_variance(epsilon_variance)
    _validate.positive("step_epsilon", step_epsilon)
    _validate.positive("step_strength", step_strength)
    if _validate.positive_int("proposals", proposals) < 2:
        raise ValueError(f"proposals={proposals} must be at least 2; the first is the last state's")
    log_strength = strength_prior(strength_shapes)
    _validate.positive("start", start[0], "the first of the two is an epsilon")
    _validate.open_unit("start", start[1], "the second of the two is a strength")

    def log_prior(epsilon: float, s: float) -> float:
        # The proposal is symmetric in log epsilon, whose density has the factor epsilon.
        of_strength = float(log_strength(np.asarray(s)))
        return of_strength - epsilon**2 / (2.0 * variance) + float(np.log(epsilon))

    steps = step_epsilon, step_strength
    states = _chain(vector, delta, log_prior, start, steps, proposals, generator)
    return np.array(list(itertools.islice(states, length)))


def _chain(
    attacks: ConfusionCounts,
    delta: float,
    log_prior: Callable[[float, float], float],
    start: tuple[float, float],
    steps: tuple[float, float],
    proposals: int,
    generator: np.random.Generator,
) -> Iterator[tuple[float, float]]:
    """Yield states (epsilon, strength) without end."""
    n, (epsilon, s) = attacks.fn.size, start
    rates = _start_rates(n, epsilon, s, delta)
    while True:
        new_epsilon = epsilon * float(np.exp(steps[0] * generator.standard_normal()))
        new_s = s + steps[1] * generator.standard_normal()
        pairs = np.concatenate((rates[:, None], generator.random((n, proposals - 1, 2))), axis=1)
        likelihood = _likelihood(attacks, pairs)
        weights = likelihood * _inside_ring(pairs, epsilon, s, delta)
        if 0 < new_s < 1:
            new_weights = likelihood * _inside_ring(pairs, new_epsilon, new_s, delta)
            log_ratio = log_prior(new_epsilon, new_s) - log_prior(epsilon, s)
            log_ratio -= n * (
                _log_ring_area(new_epsilon, new_s, delta) - _log_ring_area(epsilon, s, delta)
            )
            with np.errstate(divide="ignore"):
                log_ratio += np.sum(np.log(new_weights.sum(axis=1) / weights.sum(axis=1)))
            if np.log(generator.random()) <= log_ratio:
                epsilon, s, weights = new_epsilon, new_s, new_weights
        rates = pairs[np.arange(n), _drawn(weights, generator)]
        yield epsilon, s


def _drawn(weights: Floats, generator: np.random.Generator) -> NDArray[np.intp]:
    """Draw one column for each row, with probabilities proportional to the weights."""
    total = np.cumsum(weights, axis=1)
    level = generator.random(len(weights)) * total[:, -1]
    result: NDArray[np.intp] = np.argmax(total > level[:, None], axis=1)
    return result


def _likelihood(counts: ConfusionCounts, pairs: Floats) -> Floats:
    """Return the likelihood of pairs (FPR, FNR), ``[n, K, 2]``, over the largest of each attack."""
    fpr, fnr = pairs[..., 0], pairs[..., 1]
    fn, tp, fp, tn = (v[:, None] for v in (counts.fn, counts.tp, counts.fp, counts.tn))
    logs = fp * np.log(fpr) + tn * np.log1p(-fpr) + fn * np.log(fnr) + tp * np.log1p(-fnr)
    result: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
    return result


def _inside_ring(pairs: Floats, epsilon: float, strength: float, delta: float) -> NDArray[np.bool_]:
    return _inside(pairs, epsilon, delta) & ~_inside(pairs, strength * epsilon, strength * delta)


def _inside(pairs: Floats, epsilon: float, delta: float) -> NDArray[np.bool_]:
    x, y = pairs[..., 0], pairs[..., 1]
    growth = np.exp(epsilon)
    low = np.minimum(x + growth * y, y + growth * x)
    high = np.maximum(x + growth * y, y + growth * x)
    result: NDArray[np.bool_] = (low >= 1.0 - delta) & (high <= growth + delta)
    return result


def _log_ring_area(epsilon: float, strength: float, delta: float) -> float:
    inner = log_area(np.asarray(strength * epsilon), strength * delta)
    return float(log_difference(inner, log_area(np.asarray(epsilon), delta)))


def _start_rates(attacks: int, epsilon: float, strength: float, delta: float) -> Floats:
    """Return equal error rates midway between the boundaries of the two regions."""
    outer = (1.0 - delta) / (1.0 + np.exp(epsilon))
    inner = (1.0 - strength * delta) / (1.0 + np.exp(strength * epsilon))
    return np.full((attacks, 2), 0.5 * (outer + inner))
