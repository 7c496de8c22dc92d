import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.binomial import error_rate_log_e
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.counts import (
    ConfusionCounts,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.power import (
    POWER_METHODS,
    anytime_power,
    bound_power,
    flawless_guesses,
    flawless_guesses_at_end,
    further_guesses,
    guesses_for_anytime_power,
    noise_power,
    sensitivity_power,
    steps_needed,
)
from lightning_audit.stats.sequential import PredictableCentre
from lightning_audit.stats.tradeoff import gaussian_mu

CLAIMED, TRUE = gaussian_mu(1.27, 1e-5), gaussian_mu(1.57, 1e-5)
BOUNDS = {
    "fdp_cp": mu_clopper_pearson,
    "fdp_pooled_cp": mu_pooled_clopper_pearson,
    "fdp_bayes": lambda c, level: Posterior.of_mu(c, region="one_sided").quantile(level),
}
DELTA = 1e-5
#: One tenth of the default significance of 1e-3.
SHARE = 1e-4
RUNS = 2000


@pytest.mark.parametrize(
    ("method", "powers"),
    [
        ("fdp_pooled_cp", (0.3314, 0.6259, 0.7990, 0.9694)),
        ("fdp_cp", (0.0588, 0.2036, 0.3848, 0.7706)),
    ],
)
def test_the_reference_powers_at_epsilon_1_57_are_reproduced(method, powers):
    found = [bound_power(method, CLAIMED, TRUE, n) for n in (1000, 2500, 4000, 8000)]
    # Of 200,000 simulations. An older run of a few hundred gave .03/.18/.42/.77 for fdp_cp.
    assert found == pytest.approx(powers, abs=0.003)


@pytest.mark.parametrize("method", POWER_METHODS)
@pytest.mark.parametrize(("claimed", "true", "n"), [(0.5, 1.0, 40), (1.0, 2.5, 25), (0.2, 0.9, 30)])
def test_the_power_is_the_sum_over_all_counts_that_the_bound_decides(method, claimed, true, n):
    fn, fp = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    bound = BOUNDS[method](ConfusionCounts(fn, n - fn, fp, n - fp), 0.05)
    pmf = stats.binom.pmf(np.arange(n + 1), n, special.ndtr(-true / 2))
    naive = float(np.sum((pmf[:, None] * pmf)[bound > claimed]))
    assert bound_power(method, claimed, true, n) == pytest.approx(naive, abs=4e-3)


@pytest.mark.parametrize("method", POWER_METHODS)
def test_a_mechanism_that_hides_nothing_is_always_told(method):
    """Its error rate is below the smallest that the binomial quantile knows."""
    assert [bound_power(method, 0.5, mu, 1000) for mu in (20.0, 30.0, 45.0, 80.0)] == [1.0] * 4


# --- Numbers of guesses, against recipes R4 and R5 of the lab, naive twins and simulations.
def approx_dp(epsilon: float) -> float:
    return (1 - DELTA) / (1 + math.exp(epsilon))


def gaussian(epsilon: float) -> float:
    return float(special.ndtr(-gaussian_mu(epsilon, DELTA) / 2))


@pytest.mark.parametrize(
    ("epsilon", "of_epsilon", "of_mu"),
    # At significance .05 and 1e-3.
    [(1, (10, 23), (6, 12)), (4, (166, 381), (8, 18)), (8, (8932, 20_596), (14, 31))],
)
def test_flawless_guesses_at_one_look_are_those_of_the_lab(epsilon, of_epsilon, of_mu):
    for rate, expected in ((approx_dp(epsilon), of_epsilon), (gaussian(epsilon), of_mu)):
        found = tuple(flawless_guesses_at_end(rate, significance) for significance in (0.05, 1e-3))
        assert found == expected


def test_the_mixture_refutes_8_after_20844_flawless_guesses_and_its_gaussian_after_42():
    assert flawless_guesses(approx_dp(8), 1e-3) == 20_844
    assert flawless_guesses(gaussian(8), 1e-3) == 42
    assert flawless_guesses(1e-13, 1e-3) is None


@pytest.mark.parametrize("rate", [0.5, 0.2, 0.01, 1e-6])
@pytest.mark.parametrize("significance", [0.3, 0.05, 1e-3])
def test_flawless_guesses_are_the_first_that_refute_no_fewer_than_at_one_look(rate, significance):
    found = flawless_guesses(rate, significance)
    values = error_rate_log_e(np.zeros(2, dtype=int), np.array([found - 1, found]), rate)
    assert values[0] < -math.log(significance) <= values[1]
    assert found >= flawless_guesses_at_end(rate, significance)


@pytest.mark.parametrize("true_rate", [0.0, 0.2, 0.28])
def test_anytime_power_is_the_share_of_simulated_runs_that_are_refuted(true_rate):
    errors = np.random.default_rng(0).binomial(200, true_rate, 4000)
    seen = np.mean(error_rate_log_e(errors, np.full(4000, 200), 0.4) >= math.log(1e3))
    assert anytime_power(200, 0.4, true_rate, 1e-3) == pytest.approx(seen, abs=0.03)


def test_anytime_power_is_zero_where_no_attack_is_found():
    assert (anytime_power(0, 0.4, 0.0, 1e-3), anytime_power(10, 0.4, 0.0, 1e-3)) == (0, 0)
    assert anytime_power(3, 0.5, 1.0, 0.9999999) in (0.0, 1.0)


def test_guesses_for_anytime_power_reach_it():
    found = guesses_for_anytime_power(0.4, 0.3, 1e-3, 0.9)
    assert anytime_power(found, 0.4, 0.3, 1e-3) >= 0.9
    assert anytime_power(found // 2, 0.4, 0.3, 1e-3) < 0.9
    assert guesses_for_anytime_power(0.3, 0.3, 1e-3) is None


def test_further_guesses_refute_at_the_present_rate_and_not_before():
    more = further_guesses(50, 200, 0.32, 1e-3)
    for n, refuted in ((more, True), (more - 1, False)):
        errors = 50 + math.ceil(0.25 * n)
        assert bool(error_rate_log_e(errors, 200 + n, 0.32) >= math.log(1e3)) is refuted
    assert further_guesses(0, 100, 0.32, 1e-3) == 0
    assert further_guesses(64, 200, 0.32, 1e-3) is None


test_bad_arguments_are_refused = refusals(
    (lambda: bound_power("fdp", 1.0, 2.0, 10), "method='fdp' must be one of"),
    (lambda: bound_power("fdp_cp", 0.0, 2.0, 10), "mu_claimed=0.0 must be a finite number > 0"),
    (lambda: bound_power("fdp_cp", 1.0, 2.0, 0), "n=0 must be a whole number >= 1"),
    (lambda: bound_power("fdp_pooled_cp", 1.0, 2.0, 10, 0.3), r"=0.3 must be in \(0, 1/4\]"),
    (lambda: flawless_guesses(0.6, 0.05), "rate=0.6 must be at most 0.5"),
    (lambda: further_guesses(3, 2, 0.2, 0.05), "errors"),
    (lambda: steps_needed(lambda _: 1.0, target=1.0), "^target="),
)


def simulated_noise_power(k, steps, ratio, data, significance: float) -> float:
    rng = np.random.default_rng([k, steps, round(1e4 * ratio), round(1e4 * data)])
    centre, squares = PredictableCentre((RUNS, k)), np.zeros(RUNS)
    for _ in range(steps):
        noise, term = rng.standard_normal((2, RUNS, k))
        residual = ratio * noise + math.sqrt(data) * term
        squares += ((residual - centre.value) ** 2).sum(axis=-1)
        centre.update(residual)
    return float(np.mean(noise_log_e(k * steps, squares) >= -math.log(significance)))


def simulated_sensitivity_power(k, steps, shift, std) -> float:
    """Share of runs that the bet flags by the last step, as the audit looks: at every step."""
    rng = np.random.default_rng([k, steps, round(100 * shift), round(100 * std)])
    bet, flagged = CoinBet((RUNS, k), initial_scale=std), np.zeros(RUNS, dtype=bool)
    for _ in range(steps):
        coins = rng.integers(0, 2, (RUNS, k)).astype(float)
        bet.update(coins, shift * coins + std * rng.standard_normal((RUNS, k)))
        flagged |= bet.log_e >= -math.log(SHARE)
    return float(flagged.mean())


def error_of(power: float) -> float:
    return math.sqrt(max(power * (1 - power), 1.0 / RUNS) / RUNS)


@pytest.mark.parametrize(
    ("k", "steps", "ratio", "data", "significance"),
    [
        *((8, 100, 0.8255, data, SHARE) for data in (0.0, 0.05, 0.2)),
        (8, 3, 0.5, 0.0, SHARE),
        (1, 300, 0.8, 0.0, 0.005),
        (64, 10, 0.8, 0.0, SHARE),
        (256, 6, 0.85, 0.05, 1e-3),
    ],
)
def test_noise_power_is_that_of_the_audits_own_code(k, steps, ratio, data, significance):
    predicted = noise_power(k, steps, ratio, data, significance)
    simulated = simulated_noise_power(k, steps, ratio, data, significance)
    assert abs(simulated - predicted) <= 3 * error_of(predicted)


@pytest.mark.parametrize(
    ("data", "reference", "tolerance", "ours"),
    # By a simulation of the design phase, with its error, the last two read off to one digit; and
    # the digits of ours.
    [
        *((0.0, 0.995, 0.01, 0.9940947954859457), (0.02, 0.972, 0.01, 0.9724351524448448)),
        *((0.05, 0.875, 0.03, 0.8553508861435941), (0.1, 0.3, 0.1, 0.39320020531914385)),
        (0.2, 0.0, 0.03, 0.004388837739743602),
    ],
)
def test_noise_power_agrees_with_the_reference_numbers(data, reference, tolerance, ours):
    power = noise_power(8, 100, 0.8255, data, SHARE)
    assert power == pytest.approx(reference, abs=tolerance)
    assert power == pytest.approx(ours, rel=1e-9)


# The last ones: few steps of a large signal, where the centre and the scale still come up.
SENSITIVITY = [
    *((8, 187, 2.0, 3.0), (8, 150, 2.0, 3.0), (8, 354, 1.25, 1.0), (4, 400, 1.5, 1.5)),
    *((8, 28, 2.0, 1.0), (8, 20, 2.0, 1.0), (1, 150, 2.0, 1.0), (8, 12, 2.0, 0.5)),
    (8, 3, 11.0, 1.0),
]


@pytest.mark.parametrize(("k", "steps", "shift", "std"), SENSITIVITY)
@pytest.mark.one_in(3)
def test_sensitivity_power_promises_no_more_than_the_bet_keeps(k, steps, shift, std):
    predicted = sensitivity_power(k, steps, shift, std, SHARE)
    simulated = simulated_sensitivity_power(k, steps, shift, std)
    assert simulated >= predicted - 3 * error_of(predicted)
    if (k, steps, shift, std) in SENSITIVITY[:2]:
        assert simulated <= predicted + 0.12


def shift_steps(shift: float, sigma: float) -> int:
    return steps_needed(lambda steps: sensitivity_power(8, steps, shift, sigma, SHARE))


@pytest.mark.parametrize(
    ("shift", "sigma", "ours", "t_test"),
    [(2.0, 3.0, 193, 187), (2.0, 1.0, 25, 28), (1.25, 3.0, 3011, 2558), (1.25, 1.0, 330, 354)],
)
def test_steps_for_a_shift_stay_within_a_quarter_of_the_t_tests(shift, sigma, ours, t_test):
    # The coin bet assumes no normal noise of one variance; the right-Haar t test does.
    assert shift_steps(shift, sigma) == ours
    assert ours == pytest.approx(t_test, rel=0.25)


def test_steps_said_to_be_needed_for_small_noise_are_enough_and_not_too_many():
    steps = steps_needed(lambda n: noise_power(8, n, 0.8, 0.0, SHARE))
    assert steps == 61
    assert simulated_noise_power(8, steps, 0.8, 0.0, SHARE) >= 0.95 - 3 * error_of(0.95)
    assert noise_power(8, steps - 1, 0.8, 0.0, SHARE) < 0.95


def test_noise_that_data_hide_is_never_flagged_by_more_steps():
    powers = [noise_power(8, steps, 0.9, 0.5, SHARE) for steps in (10, 1000, 100_000)]
    assert powers[-1] <= powers[0] + 1e-12 < 1e-3


def test_one_coordinate_of_one_step_can_show_nothing_at_a_small_significance():
    assert noise_power(1, 1, 0.01, 0.0, 1e-4) == 0.0


@given(st.integers(1, 300), st.floats(0.05, 0.99))
def test_steps_needed_are_those_of_a_linear_search(first, target):
    def power(steps: int) -> float:
        return 1 - 0.5 ** (steps / first)

    assert steps_needed(power, target) == next(n for n in range(1, 10_000) if power(n) >= target)


def test_steps_needed_end_at_the_limit_where_no_number_is_enough():
    assert steps_needed(lambda _: 0.5, limit=1000) == 1000


test_an_argument_out_of_range_is_named = refusals(
    (lambda: noise_power(0, 10, 0.8), "^coordinates=0 must be"),
    (lambda: noise_power(8, -3, 0.8), "^steps=-3 must be"),
    (lambda: noise_power(8, 10, 1.0), r"^noise_ratio=1\.0 must be"),
    (lambda: noise_power(8, 10, 0.8, -0.1), r"^data_variance=-0\.1 must be"),
    (lambda: sensitivity_power(0, 10, 2.0, 1.0), "^canaries=0 must be"),
    (lambda: sensitivity_power(8, True, 2.0, 1.0), "^steps=True must be"),
    (lambda: sensitivity_power(8, 10, 1.0, 1.0), r"^shift=1\.0 must be"),
    (lambda: sensitivity_power(8, 10, 2.0, 0.0), r"^residual_std=0\.0 must be"),
)
