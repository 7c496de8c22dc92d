"""Bets on shares of right guesses, against recipe R6 of the lab, naive twins and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refused_calls import refusals
from scipy import special
from stages import most_failures

from lightning_audit.stats.binomial import error_rate_log_e
from lightning_audit.stats.sequential import (
    SHARE_STAKES,
    further_trainings,
    log_e_of_whole_shares,
    share_error_upper,
    share_log_e,
)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.76, {10: 0.3185, 30: 0.9791, 100: 1.2717, 300: 1.3644}),
        (1.0, {10: 1.2937, 30: 2.6208, 100: 3.7760, 300: 4.6575}),
    ],
)
def test_the_product_of_shares_gives_the_bounds_of_the_lab(
    share: float, expected: dict[int, float]
) -> None:
    for trainings, mu in expected.items():
        rate = float(special.ndtr(-mu / 2))  # the claim that is just rejected at 0.05
        values = share_log_e([share] * trainings, rate, [np.inf])
        assert values[-1] == pytest.approx(math.log(20), abs=5e-3)


@pytest.mark.parametrize("rate", [0.1, 0.45])
def test_log_e_is_the_mean_of_products(rate: float) -> None:
    right = np.random.default_rng(0).random(12)
    wealth = [
        math.prod(
            w / (1 - rate) if np.isinf(k) else (1 + k * w) / (1 + k * (1 - rate)) for w in right
        )
        for k in SHARE_STAKES
    ]
    assert share_log_e(right, rate)[-1] == pytest.approx(math.log(np.mean(wealth)), abs=1e-12)


def test_whole_shares_are_counts_in_any_order() -> None:
    right = np.repeat([1.0, 0.0], [40, 3])
    for order in (right, right[::-1]):
        assert share_log_e(order, 0.3)[-1] == pytest.approx(
            float(log_e_of_whole_shares(3, 43, 0.3)), abs=1e-12
        )
    assert float(log_e_of_whole_shares(0, 0, 0.3)) == pytest.approx(0)


def test_it_loses_little_against_the_bet_on_single_guesses() -> None:
    for errors, n, rate in ((5, 100, 0.2), (240, 1000, 0.3), (0, 40, 0.2)):
        counted = float(error_rate_log_e(errors, n, rate))
        assert float(log_e_of_whole_shares(errors, n, rate)) > 0.75 * counted - 1.5


def test_the_limit_is_the_rate_at_which_the_e_value_reaches_its_goal() -> None:
    right = np.random.default_rng(1).beta(8, 3, 60)
    upper = share_error_upper(right, 0.05)
    assert share_log_e(right, upper)[-1] == pytest.approx(math.log(20), abs=1e-6)
    assert upper > 1 - right.mean()
    assert share_error_upper([], 0.05) == 1.0


def test_further_trainings_like_those_so_far_refute() -> None:
    right = np.full(40, 0.75)
    more = further_trainings(right, 0.3, 1e-3)
    assert more is not None
    assert share_log_e(np.full(40 + more, 0.75), 0.3)[-1] >= math.log(1e3)
    assert further_trainings(np.full(400, 0.75), 0.3, 1e-3) == 0
    assert further_trainings(np.full(40, 0.5), 0.3, 1e-3) is None
    assert further_trainings([], 0.3, 1e-3) is None


@pytest.mark.parametrize("dependence", [0.0, 0.7, 1.0])
def test_it_seldom_refutes_a_true_claim_if_coins_of_a_training_depend(dependence: float) -> None:
    # By simulation. All canaries of a training err together with this probability.
    runs, rng, rate = 400, np.random.default_rng(2), 0.3
    shape = (runs, 150, 8)
    wrong = rng.random(shape) < rate
    together = rng.random(shape[:2]) < dependence
    wrong = np.where(together[..., None], wrong[..., :1], wrong)
    failures = sum(share_log_e(1 - row.mean(axis=1), rate).max() >= math.log(20) for row in wrong)
    assert failures <= most_failures(runs, 0.05, 4000)


test_bad_arguments_are_refused = refusals(
    (lambda: share_log_e([1.2], 0.3), "right="),
    (lambda: share_log_e([float("nan")], 0.3), "right="),
    (lambda: share_log_e([[0.5]], 0.3), "right="),
    (lambda: share_log_e([0.5], 1.0), "rate=1.0"),
    (lambda: share_error_upper([0.5], 0.0), "significance=0.0"),
    (lambda: further_trainings([0.5], 0.3, 2.0), "significance=2.0"),
)
