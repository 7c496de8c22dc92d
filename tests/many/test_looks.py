"""Guesses and looks: naive twins, laws, and false alarms on adversarial scores by simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from refused_calls import refused_changes
from scipy import special
from stages import most_failures, staged

from lightning_audit.many.looks import (
    GrowingLook,
    guess_coins,
    look,
    mu_lower_of_scores,
    standard_readings,
)
from lightning_audit.many.verdict import ON_GUESSES, mu_of_error, promise_of
from lightning_audit.stats.binomial import (
    clopper_pearson_upper,
    error_rate_confidence_sequence,
    error_rate_log_e,
)
from lightning_audit.stats.canary_bets import LeakageBet, StakePlan, score_mu
from lightning_audit.stats.divergences import sharpest_score, sign_score
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_mu

FAIR = 0.5
#: Of 1-GDP.
LEAST_ERROR = float(special.ndtr(-0.5))
Rng = np.random.Generator
#: Scores of n trainings, given their coins; each training is as private as the error rate says.
Mechanism = Callable[[Rng, np.ndarray], np.ndarray]
GOOD = {"scores": [0.0, 1.0], "coins": [False, True], "failed": [False, False]}


def played(rng: Rng, n: int, mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    coins = rng.random(n) < FAIR
    return mechanism(rng, coins), coins, np.zeros(n, dtype=bool)


def gaussian(mu: float) -> Mechanism:
    return lambda rng, coins: rng.standard_normal(len(coins)) + mu * coins


def test_guesses_of_groups_that_do_not_overlap_are_right():
    rng = np.random.default_rng(0)
    for mu in (9.0, -9.0):  # the side of the canary is learnt
        scores, coins, failed = played(rng, 200, gaussian(mu))
        guesses = guess_coins(scores, coins, failed)
        assert guesses.errors <= 2
        assert guesses.first == max(np.argmax(coins), np.argmin(coins)) + 1
        assert guesses.total == 200 - guesses.first


def test_a_guess_depends_on_its_own_score_and_the_past_only():
    rng = np.random.default_rng(1)
    scores, coins, failed = played(rng, 60, gaussian(1.0))
    whole = guess_coins(scores, coins, failed)
    for n in (20, 41, 60):
        prefix = guess_coins(scores[:n], coins[:n], failed[:n])
        assert np.array_equal(prefix.wrong, whole.wrong[: n - whole.first])
    other = np.concatenate([scores[:30], rng.standard_normal(30)])
    assert np.array_equal(
        guess_coins(other, coins, failed).wrong[: 30 - whole.first], whole.wrong[: 30 - whole.first]
    )


def test_the_own_coin_decides_only_whether_the_guess_is_right():
    scores, coins, failed = played(np.random.default_rng(2), 50, gaussian(1.0))
    flipped = coins.copy()
    flipped[-1] = not flipped[-1]
    assert sorted([guess_coins(scores, c, failed).wrong[-1] for c in (coins, flipped)]) == [0, 1]


def test_a_threshold_half_way_between_the_means_is_the_naive_one():
    scores, coins, failed = played(np.random.default_rng(3), 300, gaussian(2.0))
    guesses = guess_coins(scores, coins, failed)
    naive = []
    for k in range(guesses.first, 300):
        past, flips = scores[:k], coins[:k]
        naive.append((scores[k] > 0.5 * (past[flips].mean() + past[~flips].mean())) != coins[k])
    assert abs(guesses.errors - sum(naive)) <= 6  # other rules may lead
    assert guesses.errors <= special.ndtr(-1) * 300 + 3 * math.sqrt(300 * 0.16 * 0.84)


def test_a_failed_training_is_a_wrong_guess_and_teaches_nothing():
    scores, coins, failed = played(np.random.default_rng(4), 80, gaussian(5.0))
    failed[[10, 40]] = True
    scores[[10, 40]] = np.nan
    guesses = guess_coins(scores, coins, failed)
    assert guesses.wrong[10 - guesses.first] == guesses.wrong[40 - guesses.first] == 1
    assert guesses.failures == 2
    kept = ~failed
    others = guess_coins(scores[kept], coins[kept], failed[kept])
    assert (guesses.errors, guesses.counts) == (others.errors + 2, others.counts)
    assert int(guesses.counts.n_in + guesses.counts.n_out) == others.total


@pytest.mark.parametrize("n", [0, 1, 5])
def test_without_both_groups_nothing_is_guessed(n):
    given = np.arange(float(n)), np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    guesses = guess_coins(*given)
    assert (guesses.total, guesses.errors, guesses.first) == (0, 0, n)
    seen = look(*given, promise_of((1.0, 0.0)), 0.05)
    assert (seen.refuted, seen.log_e, seen.refuted_after) == (False, 0, None)


def test_a_look_is_the_largest_e_value_of_its_prefixes():
    scores, coins, failed = played(np.random.default_rng(6), 120, gaussian(4.0))
    promise, wrong = promise_of(GaussianTradeoff(1.0)), guess_coins(scores, coins, failed).wrong
    naive = [
        float(error_rate_log_e(int(wrong[: k + 1].sum()), k + 1, promise.least_error))
        for k in range(len(wrong))
    ]
    seen = look(scores, coins, failed, promise, 1e-3)
    assert seen.log_e == pytest.approx(max(naive))
    assert seen.refuted_after is not None
    first = seen.refuted_after
    for n, refuted in ((first, True), (first - 1, False)):
        assert look(scores[:n], coins[:n], failed[:n], promise, 1e-3).refuted is refuted


def test_a_longer_prefix_stays_refuted():
    scores, coins, failed = played(np.random.default_rng(7), 400, gaussian(4.0))
    coins[100:] = np.random.default_rng(8).random(300) < FAIR  # errors from there on
    promise = promise_of(GaussianTradeoff(1.0))
    assert look(scores[:100], coins[:100], failed[:100], promise, 1e-3).refuted
    assert look(scores, coins, failed, promise, 1e-3).refuted


@pytest.mark.parametrize("canaries", [1, 3])
def test_looks_that_grow_are_those_of_each_prefix(canaries):
    scores, coins, failed = played(np.random.default_rng(16), 300, gaussian(2.5))
    shape = (300 // canaries, canaries) if canaries > 1 else (300,)
    scores, coins, failed = scores.reshape(shape), coins.reshape(shape), failed[: shape[0]]
    failed[::17] = True
    promise = promise_of(GaussianTradeoff(0.5))
    looks = GrowingLook(promise.least_error, -math.log(1e-3))
    seen = [
        (
            looks.at(scores[:n], coins[:n], failed[:n]),
            look(scores[:n], coins[:n], failed[:n], promise, 1e-3),
        )
        for n in (0, 1, 2, 9, 10, 40, 60, 60, 100)
    ]
    assert all(growing == whole for growing, whole in seen)
    assert [whole.refuted for _, whole in seen][::8] == [False, True]


def test_a_flawless_attack_refutes_gaussian_8_after_42_guesses():
    coins = np.random.default_rng(9).random(60) < FAIR
    scores, failed = coins.astype(float), np.zeros(60, dtype=bool)
    mu = float(gaussian_mu(8, 1e-5))
    seen = look(scores, coins, failed, promise_of(GaussianTradeoff(mu)), 1e-3)
    assert seen.refuted_after == guess_coins(scores, coins, failed).first + 42


# Several canaries in one training.
def test_canaries_of_one_training_are_guessed_from_earlier_trainings_only():
    rng = np.random.default_rng(10)
    coins = rng.random((40, 5)) < FAIR
    offsets = 10 * np.arange(5)  # each canary has a scale of its own
    scores = 3 * coins + offsets + rng.standard_normal((40, 5))
    failed = np.zeros(40, dtype=bool)
    guesses = guess_coins(scores, coins, failed)
    assert guesses.total == 5 * len(guesses.wrong)
    assert guesses.wrong[-20:].mean() < 0.2
    changed = scores.copy()
    changed[-1, 1:] += 100
    again = guess_coins(changed, coins, failed)
    assert np.array_equal(again.wrong[:-1], guesses.wrong[:-1])
    assert abs(again.wrong[-1] - guesses.wrong[-1]) <= 0.8


def test_one_column_is_one_canary():
    given = played(np.random.default_rng(11), 100, gaussian(1.5))
    one, column = guess_coins(*given), guess_coins(given[0][:, None], given[1][:, None], given[2])
    assert np.array_equal(one.wrong, column.wrong)
    assert one.error_upper(0.05) == column.error_upper(0.05)


def of_the_order(rng: Rng, coins: np.ndarray) -> np.ndarray:
    """Signs and scales that change with the plan."""
    k = np.arange(len(coins))
    return np.where(k // 7 % 2, 1, -1) * 2.0 ** (k % 5) * gaussian(1.0)(rng, coins)


def of_earlier_coins(rng: Rng, coins: np.ndarray) -> np.ndarray:
    """Scores that depend on the coins of earlier trainings, as by a seed that leaks."""
    before = np.concatenate([[False], coins[:-1]])
    share = np.cumsum(before) / np.arange(1, len(coins) + 1)
    return gaussian(1.0)(rng, coins) + 3 * before - 2 * share


ADVERSARIES = {
    "gaussian": gaussian(1.0),
    "null": lambda rng, coins: rng.standard_normal(len(coins)),
    "constant": lambda rng, coins: np.ones(len(coins)),
    "ties": lambda rng, coins: (coins ^ (rng.random(len(coins)) < LEAST_ERROR)).astype(float),
    "drift": lambda rng, coins: gaussian(1.0)(rng, coins) + 0.3 * np.arange(len(coins)),
    "order": of_the_order,
    "past": of_earlier_coins,
    # A monotone function of a Gaussian: as private, with huge scores.
    "tails": lambda rng, coins: np.sinh(5 * gaussian(1.0)(rng, coins)),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("runs", staged(quick=[30], heavy=[120], nightly=[1000]))
def test_a_true_claim_is_seldom_refuted_at_any_look(name, runs):
    promise, rng = promise_of(GaussianTradeoff(1.0)), np.random.default_rng(12)
    refuted = sum(
        look(*played(rng, 150, ADVERSARIES[name]), promise, 0.05).refuted for _ in range(runs)
    )
    assert refuted <= most_failures(runs, 0.05, 4000)


@pytest.mark.parametrize("name", ["gaussian", "ties", "drift", "past"])
@pytest.mark.parametrize("runs", staged(quick=[30], heavy=[120], nightly=[1000]))
def test_limits_of_the_error_rate_cover_the_least_one(name, runs):
    truth, rng = LEAST_ERROR, np.random.default_rng(13)
    below = {"end": 0, "anytime": 0}
    for _ in range(runs):
        guesses = guess_coins(*played(rng, 150, ADVERSARIES[name]))
        below["end"] += clopper_pearson_upper(guesses.errors, guesses.total, 0.05) < truth
        below["anytime"] += bool((guesses.log_e(truth) >= math.log(20)).any())
    assert max(below.values()) <= most_failures(runs, 0.05, 4000)


def low_scores_fail(rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trainings with the canary fail more often, if their score is low."""
    scores, coins, failed = played(rng, 150, gaussian(1.0))
    return scores, coins, failed | (coins & (scores < 0.5))


def share_their_noise(rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Several canaries of one training."""
    coins = rng.random((60, 6)) < FAIR
    return rng.standard_normal((60, 1)) + coins, coins, np.zeros(60, dtype=bool)


@pytest.mark.heavy
@pytest.mark.heavy_one_in(1)
@pytest.mark.parametrize(("made", "seed"), [(low_scores_fail, 14), (share_their_noise, 15)])
def test_failures_and_canaries_that_depend_refute_no_true_claim(made, seed):
    promise, rng = promise_of(GaussianTradeoff(1.0)), np.random.default_rng(seed)
    refuted = sum(look(*made(rng), promise, 0.05).refuted for _ in range(150))
    assert refuted <= most_failures(150, 0.05, 4000)


test_bad_arrays_are_refused = refused_changes(
    guess_coins,
    GOOD,
    ({"scores": [0.0, np.nan]}, r"scores must be finite .*1 of 2, the first at index 1"),
    ({"scores": [np.inf, 0.0]}, "scores must be finite"),
    ({"coins": [0, 1]}, "coins has dtype int64"),
    ({"failed": [0.0, 0.0]}, "failed has dtype float64"),
    ({"coins": [True]}, r"shapes \(2,\), \(1,\) and \(2,\)"),
    ({"scores": [[[0.0]], [[1.0]]]}, "shapes"),
    ({"failed": [[False], [False]]}, "shapes"),
)


# Recipes R2 and R3 of the lab, for n guesses of which s are right.


@pytest.mark.parametrize(
    ("n", "s", "one_look", "any_time"),
    [
        (30, 30, (0.904966, 2.62076, 14.0208), (0.861847, 2.17731, 11.1055)),
        (100, 100, (0.970487, 3.77600, 22.5668), (0.956021, 3.41254, 19.7309)),
        (100, 95, (0.897747, 2.53763, 13.4588), (0.865611, 2.21176, 11.3246)),
        (1000, 760, (0.736732, 1.26661, 5.7686), (0.715072, 1.13653, 5.0797)),
        (2000, 1990, (0.991534, 4.77633, 31.065), (0.989136, 4.59016, 29.4067)),
    ],
)
def test_limits_of_counts_are_those_of_the_lab(n, s, one_look, any_time):
    upper = float(clopper_pearson_upper(n - s, n, 0.05))
    proved = promise_of(GaussianTradeoff(1.0)).proved_at(upper)
    assert (1 - upper, proved.mu) == pytest.approx(one_look[:2], abs=1e-5)
    assert proved.epsilon == pytest.approx(one_look[2], abs=1e-3)
    # At any time the lab bets uniformly; the mixture in use is as good to 5 % of mu.
    upper = float(error_rate_confidence_sequence(n - s, n, 0.05))
    proved = promise_of(GaussianTradeoff(1.0)).proved_at(upper)
    assert proved.mu == pytest.approx(any_time[1], rel=0.05)


# Bets on the scores.
def naive_readings(scores: np.ndarray, coins: np.ndarray, failed: np.ndarray) -> list[float]:
    """Readings of one canary, by loops over the definition."""
    found, measured = [], 0
    for n, score in enumerate(scores):
        reading = 0.0
        if n >= 4:
            if n >= 1.02 * measured:
                measured = n
            groups = [
                [scores[i] for i in range(measured) if coins[i] == side and not failed[i]]
                for side in (False, True)
            ]
            if all(groups) and not failed[n]:
                medians = [float(np.median(group)) for group in groups]
                away = [abs(s - m) for m, group in zip(medians, groups, strict=True) for s in group]
                reach = 5 * 1.4826 * float(np.median(away)) or math.inf
                kept = [
                    [min(max(s, m - reach), m + reach) for s in group]
                    for m, group in zip(medians, groups, strict=True)
                ]
                out, inside = (sum(group) / len(group) for group in kept)
                squares = sum((s - out) ** 2 for s in kept[0])
                squares += sum((s - inside) ** 2 for s in kept[1])
                sd = math.sqrt(squares / (len(away) - 2))
                reading = math.copysign(1, inside - out) * (score - (out + inside) / 2) / sd
        found.append(min(max(reading, -5), 5))
    return found


@pytest.mark.parametrize("mu", [1.5, -1.5])
def test_standard_readings_are_the_naive_ones(mu):
    scores, coins, failed = played(np.random.default_rng(20), 130, gaussian(mu))
    scores[7], failed[[3, 60]] = 1e4, True
    readings = standard_readings(np.where(failed, np.nan, scores), coins, failed)[:, 0]
    assert readings == pytest.approx(naive_readings(scores, coins, failed), abs=1e-9)


def test_standard_readings_are_of_mu_and_change_with_no_unit():
    scores, coins, failed = played(np.random.default_rng(21), 2000, gaussian(2.0))
    readings = standard_readings(scores, coins, failed)[:, 0]
    late = np.arange(2000) >= 500
    assert readings[late & coins].mean() == pytest.approx(1.0, abs=0.1)
    assert readings[late & ~coins].std() == pytest.approx(1.0, abs=0.1)
    for unit in (-3e5, 1e-100, 1e100):
        assert standard_readings(unit * scores + unit, coins, failed)[:, 0] == pytest.approx(
            readings, abs=1e-6
        )


def test_a_reading_depends_on_its_own_score_and_the_past_only():
    scores, coins, failed = played(np.random.default_rng(22), 80, gaussian(1.0))
    whole = standard_readings(scores, coins, failed)
    changed, flipped = scores.copy(), coins.copy()
    changed[51:], flipped[50:] = 7.0, ~coins[50:]
    assert np.array_equal(standard_readings(changed, flipped, failed)[:51], whole[:51])


def naive_log_e(scores: np.ndarray, coins: np.ndarray, claim: float, mu: float) -> float:
    """The e-value of mu-GDP, by a product over the trainings; the sticks are as in `LeakageBet`."""
    n, never = len(scores), np.zeros(len(scores), dtype=bool)
    bet, readings = LeakageBet((1,), planned_steps=n - 4), standard_readings(scores, coins, never)
    for coin, reading in zip(coins[4:], readings[4:], strict=True):
        bet.update(np.array([float(coin)]), reading / claim + 0.5, 1 / claim)
    plan = StakePlan(n - 4, 1)
    grid, now = score_mu(1 / claim), plan.next(1 / claim, 1.0)
    scored = [sharpest_score(grid), sign_score(grid)]
    most = np.array([float(scored[place].most(np.array(mu))) for place in plan.places])
    of_bets = np.exp(bet.growth) / (1 + np.array(now.stakes) * most) ** (n - 4)
    guesses = guess_coins(scores, coins, never)
    of_guesses = math.exp(error_rate_log_e(guesses.errors, guesses.total, special.ndtr(-mu / 2)))
    return math.log(ON_GUESSES * of_guesses + (1 - ON_GUESSES) * float(plan.shares @ of_bets))


@pytest.mark.parametrize(("mu", "n"), [(1.6, 60), (1.6, 200), (3.0, 100)])
def test_the_bound_of_scores_is_where_the_naive_e_value_rejects(mu, n):
    scores, coins, failed = played(np.random.default_rng(23), n, gaussian(mu))
    found = mu_lower_of_scores(scores, coins, failed, 1.67, n, 0.05)
    assert found > 0
    for factor, rejected in ((0.999, True), (1.001, False)):
        assert (naive_log_e(scores, coins, 1.67, factor * found) >= math.log(20)) is rejected


@pytest.mark.parametrize("canaries", [1, 3])
def test_the_bound_of_scores_grows_with_the_significance_and_falls_with_failures(canaries):
    rng = np.random.default_rng(24)
    coins = rng.random((150, canaries)) < FAIR
    scores, failed = 2.0 * coins + rng.standard_normal(coins.shape), np.zeros(150, dtype=bool)
    found = [mu_lower_of_scores(scores, coins, failed, 2.0, 150, s) for s in (1e-6, 0.01, 0.1)]
    assert 0 < found[0] < found[1] < found[2]
    failed[100:] = True
    assert mu_lower_of_scores(scores, coins, failed, 2.0, 150, 0.1) < found[2]


@pytest.mark.parametrize("n", [0, 1, 4, 5])
def test_a_few_trainings_prove_no_mu(n):
    scores, coins, failed = played(np.random.default_rng(25), n, gaussian(9.0))
    assert mu_lower_of_scores(scores, coins, failed, 1.0, 100, 0.05) == 0


def outlier_first(rng: Rng, coins: np.ndarray) -> np.ndarray:
    scores = gaussian(1.0)(rng, coins)
    return np.concatenate([1e4 + scores[:1], scores[1:]])


def scaled_by_past_heads(rng: Rng, coins: np.ndarray) -> np.ndarray:
    heads = np.cumsum(coins) - coins
    return gaussian(1.0)(rng, coins) * 1.1**heads


@pytest.mark.heavy_one_in(10)
@pytest.mark.parametrize("name", [*ADVERSARIES, "first of 1e4", "scales"])
@pytest.mark.parametrize("runs", staged(quick=[15], heavy=[60], nightly=[1000]))
def test_the_bound_of_scores_seldom_exceeds_the_true_mu(name, runs):
    mechanisms = {**ADVERSARIES, "first of 1e4": outlier_first, "scales": scaled_by_past_heads}
    rng, above = np.random.default_rng(26), 0
    for _ in range(runs):  # the claim is attained
        given = played(rng, 150, mechanisms[name])
        looks = [[part[:n] for part in given] for n in ((50, 100, 150) if runs > 60 else (150,))]
        above += any(mu_lower_of_scores(*each, 1.0, 150, 0.05) > 1.0 for each in looks)
    assert above <= most_failures(runs, 0.05, 4000)


# The medians of many audits are in docs/many-trainings-statistics.md.
@pytest.mark.parametrize(("n", "gain"), [(200, 0.01), (500, 0.01)])
@pytest.mark.parametrize("audits", staged(quick=[10], nightly=[25]))
def test_scores_prove_more_than_guesses_of_gaussian_outputs(n, gain, audits):
    found = []
    for seed in range(audits):
        given = played(np.random.default_rng(seed), n, gaussian(1.61))
        by_guesses = mu_of_error(guess_coins(*given).error_upper(0.05))
        found.append((mu_lower_of_scores(*given, 1.666, n, 0.05), by_guesses))
    by_scores, by_guesses = np.array(found).mean(axis=0)
    assert by_scores > (1 + gain) * by_guesses


test_bad_arguments_of_a_bound_are_refused = refused_changes(
    mu_lower_of_scores,
    {**GOOD, "mu": 1.0, "planned": 2, "significance": 0.05},
    ({"mu": -1.0}, r"mu=-1\.0"),
    ({"planned": 0}, "planned=0"),
    ({"significance": 1.0}, r"significance=1\.0"),
    ({"scores": [0.0, np.nan]}, "scores must be finite"),
)
