"""The least privacy cost of steps, given what a bet proves about their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy

from lightning_audit.accounting.phases import Phase, merge
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.leakage_bet import LeastLogs, score_mu
from lightning_audit.stats.tradeoff.renyi import order_two_divergence, order_two_slope

#: Signal over noise: the table in which the cheapest value of each group of steps is searched.
_MU: Floats = np.geomspace(1e-4, 60.0, 600)
#: Halvings of the Lagrange multiplier's range, and the largest error of the table, as a log.
_HALVINGS, _SLACK = 60, 0.05


def cheapest(proved: Sequence[LeastLogs], taken: Sequence[Phase]) -> list[Phase]:
    r"""Return the steps of least cost that the bets admit.

    For each bet, find the signals over noise ``mu_g`` of its groups of steps that minimize

    .. math:: \sum_g n_g\, c(\mu_g, q_g) \quad\text{subject to}\quad
        \sum_g m_g \log(1 + \kappa_g f G_g(\mu_g)) \ge \text{needed}

    with the cost c of `order_two_divergence`, m_g the steps with canaries and n_g all steps of the
    group. All bets hold, so the most expensive result counts. The logs are concave functions of the
    cost, so equal steps within a group cost least, and a Lagrange multiplier finds the rest.

    Proved for the cost (own proof, above): no admitted sequence mu_t costs less, if steps without
    canaries leak on average as much as steps with canaries of the same claim. For epsilon this is
    proved for full batches, and in the limit of many small steps; between the two, it rests on
    simulation.

    Args:
        proved: What each bet proves; not empty.
        taken: All steps, by their claims.

    Returns:
        Phases with these noise multipliers, without steps whose claim had no canaries. Empty if
        nothing is proved.
    """
    found = [_cheapest_of(each, taken) for each in proved if each.needed > 0.0]
    return max(found, key=lambda costed: costed[0], default=(0.0, []))[1]


def _cheapest_of(proved: LeastLogs, taken: Sequence[Phase]) -> tuple[float, list[Phase]]:
    """Return the least cost that a bet admits, and its phases."""
    rates, counts = proved.sample_rates, _all_steps(proved, taken)
    table = np.broadcast_to(_MU, (len(rates), len(_MU)))
    logs, seen = proved.logs(table), proved.steps[:, None]
    price = counts[:, None] * order_two_slope(table, rates[:, None])
    # Increase of the logs per unit of cost: it falls in mu.
    worth = np.log(np.maximum(seen * proved.slopes(table), 1e-300)) - np.log(price)
    worth = np.minimum.accumulate(worth, axis=1)

    def at(level: float) -> Floats:
        return np.array([np.interp(-level, -of_it, _MU) for of_it in worth])

    low, high = float(worth.min()), float(worth.max())
    for _ in range(_HALVINGS):
        level = 0.5 * (low + high)
        added = sum(
            n * np.interp(mu, _MU, of_it)
            for n, mu, of_it in zip(proved.steps, at(level), logs, strict=True)
        )
        low, high = (level, high) if added >= proved.needed else (low, level)
    mu = _scaled(proved, at(low))
    cost = float(counts @ order_two_divergence(mu, rates))
    steps = np.floor(counts + 1e-9).astype(int)
    parts = zip(mu.tolist(), rates.tolist(), steps.tolist(), strict=True)
    return cost, merge(Phase(1.0 / each, rate, n) for each, rate, n in parts if n and each > 0)


def _scaled(proved: LeastLogs, mu: Floats) -> Floats:
    """Return mu of the table, scaled so that the logs add up to exactly what is needed."""

    def missing(log_factor: float) -> float:
        logs = proved.logs(mu[:, None] * np.exp(log_factor))[:, 0]
        return float(proved.steps @ logs) - proved.needed

    if missing(-_SLACK) >= 0.0 or missing(_SLACK) <= 0.0:  # at an end of the table
        return mu
    return np.asarray(mu * np.exp(scipy.optimize.brentq(missing, -_SLACK, _SLACK, xtol=1e-13)))


def _all_steps(proved: LeastLogs, taken: Sequence[Phase]) -> Floats:
    """Return the steps of each group, with and without canaries, ``[g]``."""
    keys = list(zip(proved.mus.tolist(), proved.sample_rates.tolist(), strict=True))
    inside: Counter[tuple[float, float]] = Counter()
    for key, steps in zip(keys, proved.steps.tolist(), strict=True):
        inside[key] += steps
    all_steps: Counter[tuple[float, float]] = Counter()
    for phase in taken:
        if phase.noise_multiplier > 0:
            all_steps[score_mu(phase.noise_multiplier), phase.known_rate] += phase.steps
    return np.asarray(proved.steps * [all_steps[key] / inside[key] for key in keys])
