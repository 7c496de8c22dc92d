"""How often bounds exceed the truth.

The counts of a fixed threshold are binomial, so that the failure probability of a bound is a sum
over pairs of counts, here without the pairs beyond seven standard deviations. Proved bounds must
stay below their significance in every game. Posterior quantiles are calibrated when rates are drawn
from their prior; their failure probability for a given mechanism is shown, not held. Probability
that the .05 quantile of the two-sided (one-sided) posterior exceeds the truth, +- .005, as printed
by `test_frequentist_failures_of_the_posterior`:

                           mu                                 epsilon at delta .01
observations a world       50          500         5000       50          500         5000
null, midpoint             1.00 (.050) 1.00 (.051) 1.00 (.052)  .373 (.050) .068 (.023) .004 (.002)
null, few guesses          1.00 (.063) 1.00 (.069) 1.00 (.048)  .147 (.027) .018 (.012) .001 (.000)
Gaussian mu=.5, midpoint   .054 (.054) .045 (.045) .053 (.053)  .068 (.068) .076 (.076) .071 (.071)
Gaussian mu=2, midpoint    .068 (.068) .059 (.059) .051 (.051)  .148 (.148) .156 (.156) .155 (.155)
Gaussian mu=2, off centre  .016 (.016) .059 (.059) .058 (.058)  .000 (.000) .055 (.055) .058 (.058)
Laplace b=1, midpoint      .043 (.043) .055 (.055) .051 (.051)  .104 (.104) .098 (.098) .098 (.098)
Laplace b=1, tail          .003 (.003) .000 (.000) .000 (.000)  .048 (.048) .056 (.056) .061 (.061)
randomized response        .050 (.050) .049 (.049) .050 (.050)  .103 (.103) .109 (.109) .112 (.112)

Where both fractions of epsilon are close, at symmetric rates, its posterior is up to three times as
often too high as it says: epsilon is the larger of two noisy numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refused_calls import refused_changes
from scipy import special, stats
from stages import staged

from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys,
    epsilon_katz,
    katz_log_ratios,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.gaussian import mu_noncentral_t_from_scores
from lightning_audit.stats.named_bounds import BOUND_NAMES, METHODS, named_bound
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    Maximum,
    Simultaneous,
    Split,
    assumptions_of,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

DELTA, LEVEL, AT = 1e-4, 0.03, 0.6


RNG = np.random.default_rng(5)


INSIDE, OUTSIDE = 1.3 + RNG.standard_normal(400), RNG.standard_normal(350)


COUNTS = ConfusionCounts.from_scores(INSIDE, OUTSIDE, AT)


DIRECT: dict[str, Callable[[], Any]] = {
    "fdp_cp": lambda: mu_clopper_pearson(COUNTS, LEVEL),
    "fdp_pooled_cp": lambda: mu_pooled_clopper_pearson(COUNTS, LEVEL),
    "fdp_bayes": lambda: Posterior.of_mu(COUNTS, region="one_sided").quantile(LEVEL),
    "fdp_t": lambda: mu_noncentral_t_from_scores(INSIDE, OUTSIDE, LEVEL),
    "eps_cp": lambda: epsilon_clopper_pearson(COUNTS, DELTA, LEVEL),
    "eps_jeffreys": lambda: epsilon_jeffreys(COUNTS, DELTA, LEVEL),
    "eps_bayes": lambda: Posterior.of_epsilon(COUNTS, DELTA, region="one_sided").quantile(LEVEL),
    "katz": lambda: epsilon_katz(COUNTS, LEVEL),
}


WITH_RATES = ["fdp_cp", "eps_cp"]


BY_THRESHOLD = [name for name in BOUND_NAMES if name != "fdp_t"]


CHOICES: list[Any] = [Fixed(AT), Grid([0.0, AT, 1.2]), Split(), Maximum(), Simultaneous()]


SIZES = [50, 500, 5000]


SIGNIFICANCE = 0.05


LAPLACE = -2 * special.ndtri(0.5 * math.exp(-0.5))


RESPONSE = -2 * special.ndtri(1 / (1 + math.e))


def test_every_method_has_a_twin_here_and_its_own_name():
    assert set(DIRECT) == set(BOUND_NAMES)
    assert all(METHODS[name].name == name for name in BOUND_NAMES)
    assert [n for n in BOUND_NAMES if METHODS[n].from_rates is not None] == WITH_RATES
    assert [n for n in BOUND_NAMES if METHODS[n].from_counts is None] == ["fdp_t"]


@pytest.mark.parametrize("name", BOUND_NAMES)
def test_a_named_bound_is_what_the_function_gives(name):
    choice = None if name == "fdp_t" else Fixed(AT)
    bound = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, choice)
    value = float(DIRECT[name]())
    assert value > 0.3
    of_mu = METHODS[name].quantity == "mu"
    expected = (value, float(gaussian_epsilon(value, DELTA))) if of_mu else (None, value)
    assert (bound.mu_lower, bound.epsilon_lower) == expected
    assert (bound.method, bound.significance, bound.valid) == (name, LEVEL, True)
    assert bound.delta == (0.0 if name == "katz" else DELTA)
    assert bound.interpretation == METHODS[name].interpretation
    rests = assumptions_of(choice) if choice else ()
    assert bound.assumptions == (*METHODS[name].assumptions, *rests)
    assert bound.threshold == (None if name == "fdp_t" else "fixed")
    assert bound.threshold_value == (None if name == "fdp_t" else AT)


@pytest.mark.parametrize("name", BY_THRESHOLD)
def test_the_threshold_is_split_off_unless_it_is_chosen(name):
    ours = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL)
    assert ours == named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Split())
    assert ours.valid
    assert ours.threshold == "searched"


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: type(c).__name__)
def test_a_method_without_a_threshold_takes_none(choice):
    message = rf"threshold={type(choice).__name__}\(.* is not for method='fdp_t'.*leave it out"
    with pytest.raises(ValueError, match=message):
        named_bound("fdp_t", INSIDE, OUTSIDE, DELTA, LEVEL, choice)
    assert named_bound("fdp_t", INSIDE, OUTSIDE, DELTA, LEVEL).rule is None


@pytest.mark.parametrize("name", WITH_RATES)
@pytest.mark.parametrize("band", ["berk_jones", "dkw"])
def test_bands_serve_the_methods_that_upper_limits_of_the_rates_determine(name, band):
    bound = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Simultaneous(band))
    assert (bound.valid, bound.threshold) == (True, "searched")
    best = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Maximum())
    assert 0 < bound.epsilon_lower < best.epsilon_lower


@pytest.mark.parametrize("name", sorted(set(BY_THRESHOLD) - set(WITH_RATES)))
def test_the_other_methods_refuse_bands_and_say_what_to_do(name):
    with pytest.raises(ValueError, match=rf"Simultaneous\(.*\) is not for method='{name}'.* Split"):
        named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Simultaneous())


@pytest.mark.parametrize("name", WITH_RATES)
def test_upper_limits_above_chance_prove_nothing(name):
    from_rates = METHODS[name].from_rates
    assert from_rates is not None
    rates = np.array([1e-9, 0.3, 0.5, 0.9, 1.0])
    fnr, fpr = (grid.ravel() for grid in np.meshgrid(rates, rates))
    values = from_rates(fnr, fpr, DELTA)
    assert (values[fnr + fpr >= 1.0] == 0.0).all()
    assert (values[fnr + fpr < 0.99] > 0.0).all()


test_an_error_names_the_argument_and_what_is_allowed = refused_changes(
    named_bound,
    {
        "method": "fdp_cp",
        "scores_in": INSIDE,
        "scores_out": OUTSIDE,
        "delta": DELTA,
        "significance": LEVEL,
    },
    ({"method": "dp_sniper"}, r"method='dp_sniper'.*fdp_cp.*katz"),
    ({"delta": 0.0}, r"delta=0.0 must be in \(0, 1\).*for delta = 0 use the method katz"),
    ({"scores_in": [[1.0], [2.0]]}, r"scores_in has shape \(2, 1\)"),
)


# --- How often the bounds from counts exceed the truth, at a threshold fixed beforehand.
# Rates of an attack (FNR, FPR), with the least mu and the least epsilon (delta = 0) that hold the
# mechanism; the attacks at the midpoint attain that mu, and those on pure DP's corners the epsilon.
GAMES = {
    "null, midpoint": (0.5, 0.5, 0.0, 0.0),
    "null, few guesses": (0.95, 0.05, 0.0, 0.0),
    "Gaussian mu=.5, midpoint": (*special.ndtr([-0.25, -0.25]), 0.5, math.inf),
    "Gaussian mu=2, midpoint": (*special.ndtr([-1.0, -1.0]), 2.0, math.inf),
    "Gaussian mu=2, off centre": (*special.ndtr([0.0, -2.0]), 2.0, math.inf),
    "Laplace b=1, midpoint": (0.5 * math.exp(-0.5), 0.5 * math.exp(-0.5), LAPLACE, 1.0),
    "Laplace b=1, tail": (1 - 0.1 * math.e, 0.1, LAPLACE, 1.0),
    "randomized response": (1 / (1 + math.e), 1 / (1 + math.e), RESPONSE, 1.0),
}


def pairs(fnr: float, fpr: float, n_in: int, n_out: int) -> tuple[ConfusionCounts, np.ndarray]:
    """All counts that matter, as a table, and their probabilities."""
    k, masses = [], []
    for rate, n in ((fnr, n_in), (fpr, n_out)):
        spread = 7 * math.sqrt(n * rate * (1 - rate)) + 20
        low, high = max(0, math.floor(n * rate - spread)), min(n, math.ceil(n * rate + spread))
        k.append(np.arange(low, high + 1))
        masses.append(stats.binom.pmf(k[-1], n, rate))
    fn, fp = k[0][:, None], k[1][None, :]
    return ConfusionCounts(fn, n_in - fn, fp, n_out - fp), masses[0][:, None] * masses[1]


@pytest.mark.heavy
@pytest.mark.parametrize("bound", [mu_clopper_pearson, mu_pooled_clopper_pearson])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("game", GAMES)
@pytest.mark.heavy_one_in(6)
def test_bounds_on_mu_exceed_it_no_more_often_than_they_say(game, n, bound):
    fnr, fpr, mu, _ = GAMES[game]
    for n_out in {n, n // 5}:
        counts, mass = pairs(fnr, fpr, n, n_out)
        assert mass[bound(counts, SIGNIFICANCE) > mu].sum() <= SIGNIFICANCE


@pytest.mark.heavy
@pytest.mark.parametrize("significance", [1e-3, 0.05, 0.25])
@pytest.mark.parametrize("n", [3, 20, 200])
@pytest.mark.heavy_one_in(6)
def test_pooled_bound_holds_when_rates_change_from_step_to_step(n, significance):
    # The least mean that mu-GDP allows, as some errors that are sure and others that are rarer.
    mu = 1.0
    mean = special.ndtr(-mu / 2)
    pooled = np.arange(2 * n + 1)
    fn, fp = pooled // 2, (pooled + 1) // 2
    wrong = mu_pooled_clopper_pearson(ConfusionCounts(fn, n - fn, fp, n - fp), significance) > mu
    for share in (0.0, 0.2, 0.5):
        sure = math.floor(2 * n * mean * share)
        mass = stats.binom.pmf(pooled - sure, 2 * n - sure, (2 * n * mean - sure) / (2 * n - sure))
        assert mass[wrong].sum() <= significance


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("n", "delta"), [(50, 0.0), (50, 0.01), (500, 0.0), (500, 0.01), (5000, 0.01)]
)
@pytest.mark.parametrize("game", GAMES)
@pytest.mark.heavy_one_in(6)
def test_bounds_on_epsilon_exceed_it_no_more_often_than_they_say(game, n, delta):
    fnr, fpr, _, epsilon = GAMES[game]
    # The attack's own epsilon is what its counts can show, and at most the mechanism's.
    own = epsilon_at_rates(fnr, fpr, delta)
    assert own <= epsilon + 1e-12
    counts, mass = pairs(fnr, fpr, n, n)
    assert mass[epsilon_clopper_pearson(counts, delta, SIGNIFICANCE) > own + 1e-12].sum() <= 0.05
    low, high = epsilon_clopper_pearson_interval(counts, delta, SIGNIFICANCE)
    assert mass[(low > own + 1e-12) | (high < own - 1e-12)].sum() <= SIGNIFICANCE


@pytest.mark.heavy
def test_log_ratios_hold_their_level_for_large_counts_only():
    # Reference: one ratio fails .048, .035, .000 of the time at TPR .3, n 1,000, FPR .1, .01, .003.
    for fpr, expected, undefined in ((0.1, 0.048, 0.0), (0.01, 0.035, 0.0), (0.003, 0.0, 0.05)):
        counts, mass = pairs(0.7, fpr, 1000, 1000)
        ratio, _ = katz_log_ratios(counts, SIGNIFICANCE)
        assert mass[ratio > math.log(0.3 / fpr)].sum() == pytest.approx(expected, abs=4e-3)
        assert mass[np.isneginf(ratio)].sum() == pytest.approx(undefined, abs=5e-3)
    fnr, fpr, _, _ = GAMES["randomized response"]
    for n in SIZES:
        counts, mass = pairs(fnr, fpr, n, n)
        assert mass[epsilon_katz(counts, SIGNIFICANCE) > 1.0].sum() <= SIGNIFICANCE + 5e-3


@pytest.mark.heavy
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
@pytest.mark.parametrize("prior", [0.5, 1.0])
@pytest.mark.heavy_one_in(6)
def test_posteriors_are_calibrated_on_average_over_their_prior(prior, region, n):
    # Where the truth is not zero, F(truth) is uniform; an atom at zero is F(0) wide.
    rng, draws = np.random.default_rng(7), 4000
    fnr, fpr = rng.beta(prior, prior, (2, draws))
    fn, fp = rng.binomial(n, fnr), rng.binomial(n, fpr)
    counts = ConfusionCounts(fn, n - fn, fp, n - fp)
    shift = -special.ndtri(fnr) - special.ndtri(fpr)
    below = fnr + fpr < 1
    epsilon = epsilon_at_rates(fnr, fpr, 0.01)
    options = {"region": region, "prior": prior}
    for both_sides, cdf in (
        (epsilon, lambda value: Posterior.of_epsilon(counts, 0.01, **options).cdf(value)),
        (np.abs(shift), lambda value: Posterior.of_mu(counts, **options).cdf(value)),
    ):
        truth = both_sides if region == "two_sided" else np.where(below, both_sides, 0.0)
        # Beyond any epsilon of finite rates the distribution function is one.
        at_truth = cdf(np.where(np.isfinite(truth), truth, 700.0))
        uniform = np.where(truth > 0, at_truth, rng.uniform(size=draws) * at_truth)
        for p in (0.025, 0.05, 0.1, 0.5, 0.9, 0.95):
            assert abs(np.mean(uniform < p) - p) < 3 * math.sqrt(p * (1 - p) / draws)


@pytest.mark.heavy
@pytest.mark.parametrize("draws", staged(heavy=[300], nightly=[2000]))
def test_frequentist_failures_of_the_posterior(draws):
    # quantile(p) > truth is F(truth) < p: one evaluation instead of a root.
    rng, lines = np.random.default_rng(5), []
    for name, (fnr, fpr, mu, _) in GAMES.items():
        own = epsilon_at_rates(fnr, fpr, 0.01)
        row = []
        for n in SIZES:
            fn, fp = rng.binomial(n, fnr, draws), rng.binomial(n, fpr, draws)
            counts = ConfusionCounts(fn, n - fn, fp, n - fp)
            found = [
                np.mean(cdf < SIGNIFICANCE)
                for region in ("two_sided", "one_sided")
                for cdf in (
                    Posterior.of_mu(counts, region=region).cdf(mu),
                    Posterior.of_epsilon(counts, 0.01, region=region).cdf(own),
                )
            ]
            assert np.all(np.isfinite(found))
            row.append("{0:.3f} ({2:.3f}), {1:.3f} ({3:.3f})".format(*found))
            if n == 5000 and mu == 0:
                # A positive lower quantile of the published region is no evidence of leakage.
                assert found[0] == 1.0
        lines.append(f"{name}: " + "; ".join(row))
    print("\n".join(lines))
