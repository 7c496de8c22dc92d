"""The published Markov chain of epsilon and of the attacks' strength, and a figure of chains.

`lightning_audit.stats.attack_strength` computes the same posterior by quadrature, much faster and
without sampling error; a test compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from lightning_audit.report.figure import BLUE, GREEN, GREY, ORANGE, blank_figure, plain_axes
from lightning_audit.stats._arguments import ConfusionCounts, Floats
from lightning_audit.stats.attack_strength import log_area, log_difference

#: Variance of the normal distribution whose positive half is the prior of epsilon.
EPSILON_VARIANCE = 10.0


def trace_figure(chains: ArrayLike, names: Sequence[str]) -> Figure:
    """Draw each parameter along the chains; converged chains overlap and have no trend.

    Args:
        chains: samples, ``[chains, iterations, parameters]``.
        names: of the parameters.
    """
    samples = np.asarray(chains, dtype=np.float64)
    drawn = blank_figure((9.0, 1.0 + 1.8 * len(names)))
    rows = drawn.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
    for k, (axes, name) in enumerate(zip(rows, names, strict=True)):
        plain_axes(axes)
        for chain, colour in zip(samples, (BLUE, ORANGE, GREEN, GREY) * len(samples), strict=False):
            axes.plot(chain[:, k], color=colour, linewidth=0.5)
        axes.set_ylabel(name)
    rows[-1].set_xlabel("iteration")
    return drawn


def sample_attack_strength(
    counts: ConfusionCounts,
    delta: float,
    iterations: int,
    generator: np.random.Generator,
    *,
    start: tuple[float, float] = (5.0, 0.1),
    steps: tuple[float, float] = (0.1, 0.1),
    proposals: int = 100,
) -> Floats:
    """Run a Markov chain whose limit is the joint posterior of epsilon and of the strength.

    Algorithm 1 of arXiv:2504.16683. Successive samples are strongly dependent: a hundred iterations
    contain about as much information as one independent sample. Burn-in samples are included.

    Args:
        counts: outcomes of the attacks, a vector, ``[n]``.
        delta: in [0, 1).
        iterations: length of the chain, M.
        generator: the chain is a function of its state.
        start: epsilon > 0 and strength in (0, 1) at the start of the chain.
        steps: standard deviations of the proposals of log epsilon and of the strength.
        proposals: pairs of error rates that estimate one attack's integral, K >= 2.

    Returns:
        Samples of (epsilon, strength), ``[iterations, 2]``.
    """

    def log_prior(epsilon: float, s: float) -> float:
        # The proposal is symmetric in log epsilon, whose density has the factor epsilon.
        return float(np.log(epsilon)) - epsilon**2 / (2.0 * EPSILON_VARIANCE)

    states = _chain(counts, delta, log_prior, start, steps, proposals, generator)
    return np.array(list(itertools.islice(states, iterations)))


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
