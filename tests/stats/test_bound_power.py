from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from lightning_audit.stats.counts import (
    ConfusionCounts,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.posteriors import mu_posterior_quantile
from lightning_audit.stats.power import POWER_METHODS, bound_power
from lightning_audit.stats.tradeoff import gaussian_mu

CLAIMED, TRUE = gaussian_mu(1.27, 1e-5), gaussian_mu(1.57, 1e-5)
BOUNDS = {
    "fdp_cp": mu_clopper_pearson,
    "fdp_pooled_cp": mu_pooled_clopper_pearson,
    "fdp_bayes": lambda c, level: mu_posterior_quantile(level, c, region="one_sided"),
}


@pytest.mark.parametrize(
    ("method", "powers"),
    [
        ("fdp_pooled_cp", (0.3314, 0.6259, 0.7990, 0.9694)),
        ("fdp_cp", (0.0588, 0.2036, 0.3848, 0.7706)),
    ],
)
def test_the_reference_powers_at_epsilon_1_57_are_reproduced(method, powers) -> None:
    found = [bound_power(method, CLAIMED, TRUE, n) for n in (1000, 2500, 4000, 8000)]
    # Of 200,000 simulations. An older run of a few hundred gave .03/.18/.42/.77 for fdp_cp.
    assert found == pytest.approx(powers, abs=0.003)


@pytest.mark.parametrize("method", POWER_METHODS)
@pytest.mark.parametrize(("claimed", "true", "n"), [(0.5, 1.0, 40), (1.0, 2.5, 25), (0.2, 0.9, 30)])
def test_the_power_is_the_sum_over_all_counts_of_what_the_bound_decides(
    method, claimed, true, n
) -> None:
    fn, fp = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    bound = BOUNDS[method](ConfusionCounts(fn, n - fn, fp, n - fp), 0.05)
    pmf = stats.binom.pmf(np.arange(n + 1), n, special.ndtr(-true / 2))
    naive = float(np.sum((pmf[:, None] * pmf)[bound > claimed]))
    assert bound_power(method, claimed, true, n) == pytest.approx(naive, abs=4e-3)


@pytest.mark.parametrize("method", POWER_METHODS)
def test_a_simulation_agrees(method) -> None:
    n, runs = 300, 1500
    rng = np.random.default_rng(5)
    scores_in, scores_out = 1.0 + rng.standard_normal((runs, n)), rng.standard_normal((runs, n))
    fn, fp = (scores_in <= 0.5).sum(axis=1), (scores_out > 0.5).sum(axis=1)
    bound = BOUNDS[method](ConfusionCounts(fn, n - fn, fp, n - fp), 0.05)
    share = float(np.mean(bound > 0.8))
    power = bound_power(method, 0.8, 1.0, n)
    assert 0.05 < power < 0.99
    assert share == pytest.approx(power, abs=4 * np.sqrt(power * (1 - power) / runs))


@pytest.mark.parametrize("n", [50, 1000, 20_000])
def test_a_true_claim_is_refuted_as_rarely_as_the_level_says(n) -> None:
    assert bound_power("fdp_pooled_cp", 0.7, 0.7, n) <= 0.05 + 1e-3
    assert bound_power("fdp_cp", 0.7, 0.7, n) <= 0.05


def test_a_worse_violation_and_a_larger_level_never_lower_the_power() -> None:
    for method in POWER_METHODS:
        powers = [bound_power(method, 0.3, mu, 400) for mu in (0.3, 0.5, 0.8, 1.5)]
        assert powers == sorted(powers)
        assert powers[-1] > 0.99
        levels = [bound_power(method, 0.3, 0.5, 400, level) for level in (0.001, 0.05, 0.2)]
        assert levels == sorted(levels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fdp", 1.0, 2.0, 10), "method='fdp' must be one of"),
        (("fdp_cp", 0.0, 2.0, 10), "mu_claimed=0.0 must be a finite number > 0"),
        (("fdp_cp", 1.0, np.inf, 10), "mu_true=inf must be a finite number > 0"),
        (("fdp_cp", 1.0, 2.0, 0), "n=0 must be a whole number >= 1"),
        (("fdp_cp", 1.0, 2.0, 10, 0.0), r"significance=0.0 must be in \(0, 1\)"),
        (("fdp_pooled_cp", 1.0, 2.0, 10, 0.3), r"significance=0.3 must be in \(0, 1/4\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        bound_power(*arguments)


@pytest.mark.parametrize("method", POWER_METHODS)
def test_a_mechanism_that_hides_nothing_is_always_told(method) -> None:
    """Its error rate is below the smallest that the binomial quantile knows."""
    assert [bound_power(method, 0.5, mu, 1000) for mu in (20.0, 30.0, 45.0, 80.0)] == [1.0] * 4
