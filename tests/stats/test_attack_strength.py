import numpy as np
import pytest
from refused_calls import refused, refused_changes
from scipy import stats
from stages import staged

from lightning_audit.stats.attack_strength import (
    GridDistribution,
    StrengthPosterior,
    attack_counts,
    attack_strength_posterior,
    attack_vector,
    epsilon_posterior_at_strength,
    known_strength,
    prior_variance,
)

WEAK = attack_counts([40, 45], 100, [50, 40], 100)


FALSE_POSITIVES = [40, 50, 60, 100, 100, 110, 120, 200, 200, 200]


FALSE_NEGATIVES = [250, 200, 150, 100, 120, 100, 100, 80, 70, 60]


STRONG = attack_counts(FALSE_NEGATIVES, 1000, FALSE_POSITIVES, 1000)


test_bad_counts_are_named = refused(
    attack_counts,
    ([-1], 10, [1], 10, "false_negatives=-1 must be"),
    ([1], 10, [11], 10, "false_positives=11 must be at most n_out=10; pass"),
    (1, 2**63 + 1, 1, 100, r"n_in=9223372036854775809 must be at most 2\^53"),
)


test_bad_arguments_are_named = refused_changes(
    attack_strength_posterior,
    {"counts": WEAK, "delta": 1e-5},
    ({"counts": attack_counts(10, 10**6, 10, 10**6), "delta": 0.1}, r"delta=0\.1 must be at most "),
    ({"counts": attack_counts([], 1, [], 1)}, r"shape \(0,\), must be .* one attack; pass"),
    ({"strength_shapes": (0.5, 1.0)}, r"strength_shapes=\(0\.5, 1\.0\) must be"),
    ({"strength_shapes": (1e300, 1.0)}, r"shapes=\(1e\+300, 1\.0\) must be .* up to 300"),
    *(
        ({"epsilon_variance": variance}, r"must be in \[0\.0001, 1e\+06\]; 10 is the publ")
        for variance in (1e-320, 1e-20, 1e300)
    ),
)


def test_numbers_become_a_vector_of_one_attack():
    assert attack_vector(attack_counts(1, 10, 2, 20)).tp.tolist() == [9]
    assert (prior_variance(10), known_strength(0)) == (10.0, 0.0)
    with pytest.raises(ValueError, match=r"strength=1 must be in \(0, 1\); 0 is allowed as well"):
        known_strength(1)


@pytest.fixture(scope="module")
def strong():
    return attack_strength_posterior(STRONG, 0.01)


def reweighted(posterior: StrengthPosterior, weights: np.ndarray) -> StrengthPosterior:
    """The posterior under another prior of epsilon, whose density over the old one is given."""
    return StrengthPosterior(posterior.levels, posterior.density * weights[:, None])


def test_strong_attacks_are_reproduced(strong):
    # The reference leaves out epsilon > 7.9, which holds 2.9e-4 of the mass.
    cut = reweighted(strong, strong.levels <= 7.9)
    points = np.append(strong.levels[strong.levels < 7.9], 7.9)
    epsilon = GridDistribution(points, np.interp(points, strong.levels, strong.epsilon.density))
    assert epsilon.mean == pytest.approx(3.0005, abs=1e-4)
    assert epsilon.interval(0.1) == pytest.approx((2.6948, 3.5233), abs=4e-4)
    assert cut.strength.mean == pytest.approx(0.69957, abs=2e-4)
    assert cut.strength.interval(0.1) == pytest.approx((0.5680, 0.7953), abs=4e-4)


def test_prior_of_the_published_code_is_reproduced(strong):
    eps = np.maximum(strong.levels, 1e-9)
    other = reweighted(strong, np.where(strong.levels > 0, np.exp(-(eps**2) / 20) / eps, 0.0))
    assert other.epsilon.mean == pytest.approx(2.9484, abs=1e-4)
    assert other.epsilon.interval(0.1) == pytest.approx((2.6834, 3.3604), abs=6e-4)
    assert other.strength.mean == pytest.approx(0.71013, abs=1e-4)


@pytest.mark.parametrize(
    ("strength", "n", "interval"),
    [
        *((0.0, 500, (0.446, 5.741)), (0.2, 500, (0.409, 2.009)), (0.5, 500, (0.362, 0.866))),
        *((0.8, 500, (0.320, 0.586)), (0.9, 500, (0.305, 0.541)), (0.95, 500, (0.297, 0.524))),
        *((0.99, 500, (0.291, 0.512)), (0.99, 100, (0.169, 0.672)), (0.99, 200, (0.232, 0.586))),
        (0.99, 1000, (0.320, 0.476)),
    ],
)
@pytest.mark.one_in(5)
def test_intervals_at_a_known_strength_are_reproduced(strength, n, interval):
    counts = attack_counts(2 * n // 5, n, 2 * n // 5, n)
    found = epsilon_posterior_at_strength(counts, 0.01, strength).interval(0.1)
    assert found == pytest.approx(interval, abs=1.1e-3)


def test_the_posterior_is_that_of_sums_over_rates_and_parameters():
    # The naive twin, for delta = 0: a grid of rates, a grid of (epsilon, s), and no more.
    at = (np.arange(1000) + 0.5) / 1000
    x, y = np.meshgrid(at, at, indexing="ij")
    with np.errstate(divide="ignore"):
        logs = [np.log((1 - x) / y), np.log((1 - y) / x), np.log(x / (1 - y)), np.log(y / (1 - x))]
    leak = np.maximum.reduce(logs).ravel()
    order = np.argsort(leak)
    epsilon, s = np.linspace(0.025, 14.975, 300), (np.arange(100) + 0.5) / 100
    log_density = -(epsilon[:, None] ** 2) / 20 + 0.0 * s
    for fn, fp in ((40, 50), (45, 40)):
        likelihood = stats.binom.pmf(fn, 100, y) * stats.binom.pmf(fp, 100, x)
        mass = np.append(0.0, np.cumsum(likelihood.ravel()[order]))
        inside = np.searchsorted(leak[order], epsilon)[:, None]
        inner = np.searchsorted(leak[order], np.outer(epsilon, s))
        area = 2 / (1 + np.exp(np.outer(epsilon, s))) - 2 / (1 + np.exp(epsilon[:, None]))
        with np.errstate(divide="ignore"):  # rings that no rate of the grid lies in
            log_density += np.log(mass[inside] - mass[inner]) - np.log(area)
    density = np.exp(log_density - log_density.max())
    posterior = attack_strength_posterior(WEAK, 0.0)
    naive = np.cumsum(density.sum(axis=1)) / density.sum()
    assert posterior.epsilon.cdf(epsilon + 0.025) == pytest.approx(naive, abs=3e-3)
    naive = np.cumsum(density.sum(axis=0)) / density.sum()
    assert posterior.strength.cdf(s + 0.005) == pytest.approx(naive, abs=3e-3)


def test_without_challenges_the_posterior_is_the_prior():
    posterior = attack_strength_posterior(attack_counts(0, 0, 0, 0), 1e-5)
    assert posterior.epsilon.mean == pytest.approx(np.sqrt(20 / np.pi), rel=1e-4)
    assert posterior.strength.interval(0.1) == pytest.approx((0.05, 0.95), abs=1e-3)


# The heavy stage has the first draws of the nightly's; 200 draws of this seed give p = .12 and .39.
@pytest.mark.parametrize("runs", staged(heavy=[15], nightly=[60]))
def test_the_interval_holds_its_level_averaged_over_the_prior(runs):
    rng, ranks = np.random.default_rng(2026), []
    for _ in range(runs):
        epsilon, s = abs(rng.normal(0, np.sqrt(10))), rng.random()
        x, y = rng.random((2, 1_000_000))
        # Smallest epsilon of each pair of rates, for delta = 0.
        with np.errstate(divide="ignore"):
            logs = [np.log((1 - x) / y), np.log((1 - y) / x), np.log(x / (1 - y))]
            leak = np.maximum.reduce([*logs, np.log(y / (1 - x))])
        chosen = np.flatnonzero((leak > s * epsilon) & (leak <= epsilon))[:3]
        if chosen.size < 3:
            pytest.fail("too few pairs of rates to draw attacks from")
        fp, fn = rng.binomial(200, x[chosen]), rng.binomial(200, y[chosen])
        posterior = attack_strength_posterior(attack_counts(fn, 200, fp, 200), 0.0)
        ranks.append((posterior.epsilon.cdf(epsilon), posterior.strength.cdf(s)))
    for rank in np.array(ranks).T:
        assert stats.kstest(rank, "uniform").pvalue > 0.01
