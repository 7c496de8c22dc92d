"""Numbers of published figures, where they are right, as docs/figures draws them."""

import sys

import numpy as np
import pytest
from places import DOCS
from scipy import stats

from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
)
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.tradeoff import (
    GaussianTradeoff,
    SubsampledGaussianTradeoff,
    gaussian_epsilon,
    gaussian_mu,
)

sys.path.append(str(DOCS / "figures"))
from published_numbers import (
    DELTA,
    EXAMPLE,
    EXAMPLE_DELTA,
    FIGURE_7,
    INTERVALS,
    TABLE_2,
    counts_that_round,
    error_rates_of_a_subsampled_step,
    expected_counts,
    lines_of_algorithm_4,
    rounds_to,
    trials_needed,
    widths_of_figure_5,
)


# Zanella-Béguelin et al. 2023, Bayesian estimation.
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("Clopper-Pearson", (0.29515, 1.48873)),
        ("Jeffreys", (0.32095, 1.45637)),
        # Published as 1.268: that is the tolerance of a root finder.
        ("posterior", (0.52179, 1.26665)),
    ],
)
def test_the_intervals_of_the_worked_example(name, ends):
    assert INTERVALS[name](EXAMPLE, EXAMPLE_DELTA, 0.05) == pytest.approx(ends, abs=5.1e-6)


@pytest.mark.parametrize(
    ("name", "by_width", "by_ends"),
    [("Clopper-Pearson", 1480, 1490), ("Jeffreys", 1430, 1440), ("posterior", 550, 660)],
)
def test_the_trials_that_figure_4_needs(name, by_width, by_ends):
    # Published as about 1500, marginally less, and just over 500.
    assert trials_needed(INTERVALS[name]) == (by_width, by_ends)


def test_the_gains_of_figure_5_are_not_those_of_its_text():
    # Published as 20 to 32 % less than Jeffreys' width and 36 to 52 % less than Clopper-Pearson's.
    errors = np.arange(25, 251, 25)
    width = {name: widths_of_figure_5(interval, errors) for name, interval in INTERVALS.items()}
    for name, gains in (("Jeffreys", (0.22, 0.40)), ("Clopper-Pearson", (0.26, 0.42))):
        less = 1 - width["posterior"] / width[name]
        assert (less.min(), less.max()) == pytest.approx(gains, abs=6e-3)


@pytest.mark.parametrize("printed", FIGURE_7)
def test_the_intervals_of_figure_7(printed):
    counts = FIGURE_7[printed]
    found = Posterior.of_epsilon(counts, 0.01).interval(0.05)
    # Two digits.
    assert [float(f"{end:.2g}") for end in found] == list(printed)
    inside = Posterior.of_epsilon(counts, 0.01).cdf(np.array(printed))
    assert inside[1] - inside[0] == pytest.approx(0.95, abs=5e-3)


@pytest.mark.parametrize("row", TABLE_2)
def test_table_2_is_that_of_95_percent(row):
    printed, counts = TABLE_2[row]
    for (name, interval), ends in zip(INTERVALS.items(), printed, strict=True):
        for end, text in zip(interval(counts, DELTA, 0.05), ends, strict=True):
            assert rounds_to(end, text), (name, end, text)
    n_in, n_out = counts.n_in, counts.n_out
    assert counts_that_round(row, 0.05, n_in, n_out, 5)
    # At 90 %, as the caption says, no counts give the intervals of two of the three methods.
    for sizes, most in (((512, 512), 39), ((n_in, n_out), 5), ((n_out, n_in), 5)):
        assert not counts_that_round(row, 0.1, *sizes, most)


# Nasr et al. 2023, tight auditing.
@pytest.mark.parametrize(
    ("fn", "fp", "epsilon", "printed"), [(0, 0, 44.061, 44.0), (1, 0, 40.95, 41.0)]
)
def test_the_table_next_to_figure_11_has_none_and_one_error(fn, fp, epsilon, printed):
    mu = Posterior.of_mu(ConfusionCounts(fn, 1000 - fn, fp, 1000 - fp)).quantile(0.05)
    found = gaussian_epsilon(mu, DELTA)
    assert found == pytest.approx(epsilon, abs=6e-3)
    assert found == pytest.approx(printed, abs=0.065)


def test_the_mu_of_epsilon_one_is_not_a_quarter():
    # The text says "mu ~ .25 for (1, 1e-5)".
    assert gaussian_mu(1.0, DELTA) == pytest.approx(0.26805, abs=5e-6)
    assert gaussian_epsilon(0.25, DELTA) == pytest.approx(0.926, abs=5e-4)


def test_the_gaussian_curve_at_the_point_of_figure_2():
    fnr = GaussianTradeoff(gaussian_mu(1.0, DELTA))(0.23)
    assert fnr == pytest.approx(0.6811, abs=5e-5)
    assert epsilon_at_rates(fnr, 0.23, DELTA) == pytest.approx(0.327, abs=5e-4)


def test_the_optimal_threshold_of_equation_18():
    # Where the likelihood ratio of N(1, 1) and N(0, 1) is e^epsilon.
    epsilon = gaussian_epsilon(1.0, DELTA)
    w = epsilon + 0.5
    assert w == pytest.approx(4.87718, abs=5e-6)
    right = stats.norm.sf(w - 1) - np.exp(epsilon) * stats.norm.sf(w)
    assert right == pytest.approx(DELTA, rel=1e-7)


def test_bounds_on_epsilon_need_thousands_of_times_the_observations_of_bounds_on_mu():
    w = gaussian_epsilon(1.0, DELTA) + 0.5
    assert epsilon_clopper_pearson(expected_counts(5e3, w), DELTA, 0.05) == 0.0
    at_w = epsilon_clopper_pearson(expected_counts(2.5e8, w), DELTA, 0.05)
    assert at_w == pytest.approx(4.112, abs=5e-4)
    middle = mu_clopper_pearson(expected_counts(5e4, 0.5), 0.05)
    assert gaussian_epsilon(middle, DELTA) == pytest.approx(4.213, abs=5e-4)


def test_algorithm_4_is_a_lower_bound_on_the_curve_with_max_and_nothing_as_printed():
    alpha = np.linspace(0, 1, 2001)
    subsampled, full = SubsampledGaussianTradeoff(0.3**0.5, 0.25), GaussianTradeoff(1.0)
    for curve, shorts in ((subsampled, (0.094, 0.0020)), (full, (0.091, 0.0042))):
        for number, short in zip((10, 100), shorts, strict=True):
            gap = curve(alpha) - lines_of_algorithm_4(curve, alpha, number)
            assert gap.min() >= -1e-12
            assert gap.max() == pytest.approx(short, rel=0.03)
            printed = lines_of_algorithm_4(curve, alpha, number, as_printed=True)
            assert np.max(np.abs(printed - curve(alpha))) > 0.87


def test_the_readings_of_figure_5_lie_on_the_curve_of_their_own_direction():
    # Published: the privacy loss distribution does not describe them. Its curve for both directions
    # does not; the curve of a record in against out does.
    noise_multiplier, sample_rate, n = 0.3**0.5, 0.25, 5000
    fpr, fnr = error_rates_of_a_subsampled_step(
        np.random.default_rng(0), noise_multiplier, sample_rate, n
    )
    both, remove = (
        SubsampledGaussianTradeoff(noise_multiplier, sample_rate, direction)
        for direction in ("both", "remove")
    )
    # The 99.9 % quantile of Kolmogorov's distribution, for each world.
    assert np.max(np.abs(fnr - remove(fpr))) < 2 * 1.95 / n**0.5
    assert np.max(fnr - both(fpr)) > 0.08
