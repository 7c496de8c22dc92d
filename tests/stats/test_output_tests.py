import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_mechanisms import (
    MECHANISMS,
    LaplaceTradeoff,
    gaussian,
    laplace,
    plane,
    randomised_response,
)
from published_audit import audit_tradeoff, error_rate_corner
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.output_tests import (
    BET_STAKES,
    EPSILONS,
    SequentialTradeoffTest,
    TradeoffBet,
    claimed_log_slopes,
    common_error_rate,
    privacy_curve,
)
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    SubsampledGaussianTradeoff,
)


# --- The test of a stream of outputs: its false alarms, what it finds, and its bound.
def runs_flagged(sampler, claim, runs: int, most: int, significance: float, truth=None):
    """How often a claim is refuted at any look, and how often a bound exceeds the truth."""
    rng = np.random.default_rng([runs, most])
    refuted = wrong = 0
    for _ in range(runs):
        test, largest = SequentialTradeoffTest(claim, delta=0.0), 0.0
        while test.samples < most:
            test.update(*sampler(rng, 20))
            largest = max(largest, test.log_e)
        refuted += largest >= -math.log(significance)
        if truth is not None:
            wrong += test.epsilon_lower(significance) > truth + 1e-9
    return refuted / runs, wrong / runs


NULLS = {
    "Gaussian": (gaussian, GaussianTradeoff(1.0), None),
    "Laplace": (laplace, ApproxDPTradeoff(1.0, 0.0), 1.0),
    "Laplace, its own curve": (laplace, LaplaceTradeoff(1.0), 1.0),
    "randomised response": (randomised_response, ApproxDPTradeoff(1.0, 0.0), 1.0),
    "in the plane": (plane, GaussianTradeoff(1.0), None),
    "no leakage": (lambda rng, n: gaussian(rng, n, 0.0), ApproxDPTradeoff(0.0, 0.0), 0.0),
}


@pytest.mark.heavy
@pytest.mark.parametrize("null", NULLS)
def test_a_true_claim_is_refuted_at_any_look_less_often_than_the_significance(null):
    sampler, claim, truth = NULLS[null]
    level = 0.2
    refuted, wrong = runs_flagged(sampler, claim, 40, 400, level, truth)
    assert refuted <= level
    assert wrong <= level


@pytest.mark.parametrize(
    ("sampler", "claim", "most"),
    [
        (gaussian, GaussianTradeoff(0.5), 1500),
        (laplace, ApproxDPTradeoff(0.5, 0.0), 2500),
        (randomised_response, ApproxDPTradeoff(0.5, 0.0), 3000),
        (plane, GaussianTradeoff(0.5), 2500),
        (lambda rng, n: (np.zeros(n), np.ones(n)), ApproxDPTradeoff(2.0, 1e-5), 400),
        # Of another scale alone: found by neighbours.
        (lambda rng, n: (rng.normal(0, 1, (n, 3)), rng.normal(0, 4, (n, 3))),
         ApproxDPTradeoff(0.5, 0.0), 3000),
        (lambda rng, n: (rng.standard_cauchy(n), 3 + rng.standard_cauchy(n)),
         ApproxDPTradeoff(0.3, 0.0), 2500),
    ],
)  # fmt: skip
def test_half_the_privacy_is_refuted(sampler, claim, most):
    rng, test = np.random.default_rng(3), SequentialTradeoffTest(claim)
    while test.log_e < math.log(1000):
        test.update(*sampler(rng, 50))
        assert test.samples <= most


def test_bound_approaches_the_true_epsilon_from_below():
    rng = np.random.default_rng(5)
    test = SequentialTradeoffTest(ApproxDPTradeoff(1.0, 0.0), delta=0.0)
    bounds = []
    for _ in range(20):
        test.update(*laplace(rng, 1000))
        bounds.append(test.epsilon_lower(0.05))
    assert bounds == sorted(bounds)
    assert 0.8 < bounds[-1] <= 1.0
    assert bounds[-1] in EPSILONS


def updated(*outputs) -> SequentialTradeoffTest:
    test = SequentialTradeoffTest(GaussianTradeoff(1.0))
    for p, q in zip(outputs[::2], outputs[1::2], strict=True):
        test.update(p, q)
    return test


def rate(name: str, claimed: float, n: int, runs: int, box="clopper_pearson") -> float:
    """Share of refuted claims, with n samples a world for each of choosing, training, testing."""
    sampler, claim = MECHANISMS[name]
    rng = np.random.default_rng([n, runs, round(100 * claimed)])
    audits = (
        audit_tradeoff(*sampler(rng, 3 * n), claim(claimed), 0.05, box=box, fraction=2 / 3)
        for _ in range(runs)
    )
    return sum(audit.rejected for audit in audits) / runs


@pytest.mark.parametrize(("n", "half"), [(1000, 0.0468), (10_000, 0.0148), (100_000, 0.0047)])
def test_half_width_of_the_papers_box(n, half):
    corner = error_rate_corner(n // 4, n, 0.05, "hoeffding")
    assert float(corner) - (n // 4) / n == pytest.approx(half, abs=5e-5)


@pytest.mark.parametrize("n", [1, 10, 1000, 100_000])
def test_the_exact_corner_lies_within_the_papers_box(n):
    k = np.unique(np.linspace(0, n, 50).astype(int))
    exact, box = (error_rate_corner(k, n, 0.05, b) for b in ("clopper_pearson", "hoeffding"))
    assert (exact <= box + 1e-12).all()
    assert exact == pytest.approx(np.append(stats.beta.ppf(0.975, k[:-1] + 1, n - k[:-1]), 1.0))


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("box", ["clopper_pearson", "hoeffding"])
def test_detection_at_a_thousand_samples_is_that_of_the_reference(name, box):
    """Reference, of 60 runs: box / corner .03 / .75 (Gaussian) and .03 / .38 (Laplace).

    Of 1000 runs of ours: .045 / .67 and .03 / .54. Weights in place of thinned samples find more of
    Laplace noise, whose likelihood ratio has few values.
    """
    expected = {("Gaussian", "clopper_pearson"): 0.67, ("Laplace", "clopper_pearson"): 0.54}
    found = rate(name, 0.8, 1000, 100, box)
    assert found == pytest.approx(expected.get((name, box), 0.05), abs=0.16)
    assert rate(name, 0.5, 1000, 20, box) == 1


NULLS_OF_TRADEOFF_AUDIT = {
    "Gaussian": (gaussian, GaussianTradeoff(1.0)),
    "Laplace, its own curve": (MECHANISMS["Laplace"][0], LaplaceTradeoff(1.0)),
    "Laplace, epsilon": (MECHANISMS["Laplace"][0], ApproxDPTradeoff(1.0, 0.0)),
    "randomised response": (randomised_response, ApproxDPTradeoff(1.0, 0.0)),
    "in the plane": (plane, GaussianTradeoff(1.0)),
    "no leakage": (lambda rng, n: gaussian(rng, n, 0.0), GaussianTradeoff(0.0)),
}


@pytest.mark.heavy
@pytest.mark.parametrize("null", NULLS_OF_TRADEOFF_AUDIT)
@pytest.mark.heavy_one_in(4)
def test_a_true_claim_is_refuted_less_often_than_the_significance(null):
    sampler, claim = NULLS_OF_TRADEOFF_AUDIT[null]
    rng = np.random.default_rng(len(null))
    runs, level = 300, 0.2
    refuted = sum(audit_tradeoff(*sampler(rng, 200), claim, level).rejected for _ in range(runs))
    assert refuted / runs <= level  # two limits of a tenth each


@pytest.mark.parametrize(("box", "least"), [("clopper_pearson", 0.35), ("hoeffding", 0.0)])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.3), (0.02, 0.6), (0.5, 0.01)])
def test_one_of_the_limits_fails_at_most_as_often_as_stated(box, least, alpha, beta):
    """Exactly, by summation: the two miss independently, each with half of the significance."""
    n, level = 400, 0.5
    k = np.arange(n + 1)
    limits = error_rate_corner(k, n, level, box)
    kept = [float(stats.binom.pmf(k, n, rate)[limits >= rate].sum()) for rate in (alpha, beta)]
    assert least <= 1 - math.prod(kept) <= level


CLAIMS = [
    GaussianTradeoff(0.0),
    GaussianTradeoff(0.3),
    GaussianTradeoff(4.0),
    ApproxDPTradeoff(1.0, 0.05),
    ApproxDPTradeoff(5.0, 0.0),
    SubsampledGaussianTradeoff(0.7, 0.1),
]


def naive_log_e(slopes, deltas, p, q) -> float:
    """Pair by pair, product by product."""
    wealth = []
    for (t, delta), stake in itertools.product(zip(slopes, deltas, strict=True), BET_STAKES):
        for first, second in (
            (p > t, q <= t),  # guesses "second world" above t
            (q < -t, p >= -t),  # the same with the worlds exchanged
        ):
            product = 1.0
            for a, b in zip(first, second, strict=True):
                gain = 1 - delta - math.exp(t) * a - b
                product *= 1 + stake * gain / (math.exp(t) + delta)
            wealth.append(product)
    return math.log(np.mean(wealth))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3))
def test_log_e_is_the_mean_of_products_over_pairs(seed, n, m):
    rng = np.random.default_rng(seed)
    slopes, deltas = rng.uniform(0, 3, m), rng.uniform(0, 0.5, m)
    p, q = rng.normal(0, 2, n), rng.normal(1, 2, n)
    bet = TradeoffBet(slopes, deltas)
    cut = n // 2
    bet.update(p[:cut], q[:cut])
    bet.update(p[cut:], q[cut:])
    assert float(bet.log_e) == pytest.approx(naive_log_e(slopes, deltas, p, q), abs=1e-9)
    assert bet.pairs == n


@given(st.floats(0, 6), st.floats(0, 0.9), st.floats(0, 1), st.floats(0, 1), st.integers(0, 1))
def test_a_test_within_the_claim_gains_nothing_on_average(t, delta, alpha, more, order):
    """The factor's mean over both worlds, for error rates on the claim or above it."""
    floor = max(0.0, 1 - delta - math.exp(t) * alpha)
    beta = floor + more * (1 - floor)
    means = np.zeros(2 * len(BET_STAKES)).reshape(2, 1, -1)
    for a, b in itertools.product((0, 1), (0, 1)):
        bet = TradeoffBet([t], [delta])
        high, low = t + 1.0, -t - 1.0
        # In the first order an error of p is a high score, in the second one of q a low one.
        p, q = (high if a else low, low if b else high)
        if order:
            p, q = (high if b else low, low if a else high)
        bet.update(np.array([p]), np.array([q]))
        chance = (alpha if a else 1 - alpha) * (beta if b else 1 - beta)
        means += chance * np.exp(bet._log_wealth)
    assert (means[order] <= 1 + 1e-12).all()


@pytest.mark.parametrize("claim", CLAIMS, ids=repr)
def test_curve_without_its_own_formula_is_never_too_small_and_close(claim):
    epsilon = np.array([0.0, 0.2, 1.0, 3.0, 7.0])
    exact = privacy_curve(claim, epsilon)
    assert exact.tolist() == np.asarray(claim.delta_at(epsilon)).tolist()
    generic = privacy_curve(lambda alpha: claim(alpha), epsilon)
    assert (generic >= exact - 1e-15).all()
    assert generic == pytest.approx(exact, abs=2e-5)


@pytest.mark.parametrize("claim", CLAIMS, ids=repr)
def test_common_error_rate_lies_on_the_claim(claim):
    rate = common_error_rate(claim)
    assert claim(rate) == pytest.approx(rate, abs=1e-9)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_slopes_of_gaussian_noise_are_its_likelihood_ratios_and_others_have_some(mu):
    rate = common_error_rate(GaussianTradeoff(mu)) * np.array([1, 0.6, 0.3, 0.1, 0.02])
    expected = -mu * special.ndtri(rate) - mu**2 / 2
    assert claimed_log_slopes(GaussianTradeoff(mu)) == pytest.approx(expected, abs=1e-4)
    assert claimed_log_slopes(ApproxDPTradeoff(2.0, 1e-5)).tolist() == [2.0]
    for nothing in (GaussianTradeoff(0.0), lambda a: 0.0 * np.asarray(a)):
        assert claimed_log_slopes(nothing).tolist() == [0.0]


def test_a_flawless_attack_is_detected_with_as_many_pairs_as_stated():
    for epsilon in (0.5, 3.0):
        bet, pairs = TradeoffBet([epsilon], [0.0]), 0
        while bet.detectable_error_rate(1e-3) < 0:
            bet.update(np.full(10, -9.0), np.full(10, 9.0))
            pairs += 10
        assert bet.log_e >= math.log(1000)
        bet.update(np.full(9 * pairs, -9.0), np.full(9 * pairs, 9.0))
        assert 0 < bet.detectable_error_rate(1e-3) < common_error_rate(ApproxDPTradeoff(epsilon, 0))


def test_looks_at_the_bets_of_a_known_ratio_alarm_less_often_than_the_significance():
    """Randomised response on its claim, with the best scores: nothing is lost to learning."""
    rng, level, runs = np.random.default_rng(7), 0.05, 4000
    bet = TradeoffBet([1.0], [0.0], (runs,))
    ever = np.zeros(runs, dtype=bool)
    for _ in range(150):
        p, q = randomised_response(rng, runs * 10)
        bet.update(*(1.5 * (2 * bits.reshape(runs, 10) - 1) for bits in (p, q)))
        ever |= bet.log_e >= -math.log(level)
    assert 0.005 < ever.mean() <= level


test_arguments_out_of_range_are_refused = refusals(
    (
        lambda: SequentialTradeoffTest(SubsampledGaussianTradeoff(1.0, 0.1, "remove")),
        "direction 'remove' only, must be of both",
    ),
    (lambda: SequentialTradeoffTest(GaussianTradeoff(1), delta=1.0), r"delta=1\.0 must be"),
    (lambda: updated([1.0, 2.0], [1.0]), "holds 2 outputs and samples_q 1, must be equally many"),
    (lambda: updated([[1.0, 2.0]], [[1.0, 2.0]], [1.0], [1.0]), "must have 2 as before"),
    (lambda: TradeoffBet([-1.0], [0.0]), r"log_slopes=-1\.0 must be"),
    (lambda: TradeoffBet([1.0], [0.0, 0.1]), r"log_slopes has shape \(1,\) and deltas \(2,\)"),
    (lambda: TradeoffBet([1.0], [1.1]), r"deltas=\[1\.1\] must lie in \[0, 1\]"),
    (lambda: claimed_log_slopes(lambda a: 1 + np.asarray(a)), "must be a trade-off function"),
)
