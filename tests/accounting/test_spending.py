"""What accountants are asked, and between which data sets the steps are composed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import (
    composed_epsilon,
    costlier,
    epsilon_at_ratio,
    epsilon_claim,
)
from lightning_audit.dpsgd.opacus import AccountantLink

DELTA = 1e-5


class Counting(RDPAccountant):
    """Counts how often it is asked."""

    asked = 0

    def get_epsilon(self, delta: float, **arguments: Any) -> float:
        self.asked += 1
        return float(super().get_epsilon(delta, **arguments))


def link(*history: tuple[float, float, int]) -> AccountantLink:
    accountant = Counting()
    accountant.history = list(history)
    return AccountantLink(accountant, 0.1)


def test_an_accountant_is_asked_once_for_each_history_and_delta() -> None:
    told = link((1.0, 0.1, 10))
    first = epsilon_claim(None, [told], DELTA).claimed_epsilon
    assert epsilon_claim(None, [told], DELTA).claimed_epsilon == first
    assert told.accountant.asked == 1
    told.accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    later = epsilon_claim(None, [told], DELTA).claimed_epsilon
    assert later == RDPAccountant.get_epsilon(told.accountant, DELTA) > first
    assert epsilon_claim(None, [told], 1e-3).claimed_epsilon < later
    assert told.accountant.asked == 3


def test_opacus_prv_accountants_are_composed_here_and_those_of_users_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accountant = PRVAccountant()
    accountant.history = [(1.0, 0.1, 50), (2.0, 0.1, 30)]
    says = accountant.get_epsilon(DELTA)
    monkeypatch.setattr(PRVAccountant, "get_epsilon", None)
    found = epsilon_claim(None, [AccountantLink(accountant, 0.1)], DELTA)
    assert found.claimed_epsilon == pytest.approx(says, rel=0.01)
    assert found.source == "the history of Opacus' prv accountant"

    class Own(PRVAccountant):
        def get_epsilon(self, delta: float, **_: Any) -> float:
            return 0.125

    own = Own()
    own.history = accountant.history
    assert epsilon_claim(None, [AccountantLink(own, 0.1)], DELTA).claimed_epsilon == 0.125


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_steps_are_composed_between_the_data_sets_of_the_claim(adjacency: Any) -> None:
    seen = [Phase(1.0, 0.1, 10)]
    spent = composed_epsilon(seen, DELTA, adjacency)
    assert spent == epsilon_of_history(seen, DELTA, adjacency=adjacency)


def test_the_history_that_costs_more_is_composed() -> None:
    seen, more, unknown = [Phase(1.0, 0.1, 10)], [Phase(1.0, 0.1, 20)], [Phase(1.0, None, 10)]
    assert costlier(seen, [], DELTA) == costlier(seen, seen, DELTA) == seen
    assert costlier(seen, more, DELTA) == costlier(more, seen, DELTA) == more
    assert costlier(unknown, more, DELTA) == unknown
    # Where a record is replaced full batches cost twice as much, and small ones less than that.
    full, small = [Phase(3.0, 1.0, 10)], [Phase(0.7, 0.05, 100)]
    for adjacency in ("add_remove", "replace_one"):
        costs = [epsilon_of_history(each, DELTA, adjacency=adjacency) for each in (full, small)]
        dear = full if costs[0] > costs[1] else small
        assert costlier(full, small, DELTA, adjacency) == dear


def test_a_lower_bound_and_an_epsilon_that_is_not_excluded_are_on_either_side() -> None:
    schedule = [Phase(sigma, 0.02, 25) for sigma in np.geomspace(4.0, 0.8, 40).tolist()]
    spent = composed_epsilon(schedule, DELTA)
    assert spent is not None
    lower, upper = (epsilon_at_ratio(schedule, 1.0, DELTA, lower=low) for low in (True, False))
    assert upper == spent
    assert lower is not None
    assert 0.8 * spent < lower < spent  # twelve noise multipliers stand in for forty
