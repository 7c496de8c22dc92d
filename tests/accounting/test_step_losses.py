import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_mixture_gaussian_mechanism,
)
from scipy import stats

from lightning_audit.accounting.step_losses import step_losses

#: Noise multiplier, sample rate, grid, steps: usual, nearly no noise, and nearly all records.
STEPS = [
    *((1.0, 0.01, 0.008, 64), (2.36, 0.01, 0.0005, 98), (0.56, 0.01, 0.004, 1000)),
    *((5.0, 0.001, 0.002, 10_000), (0.3, 0.3, 0.01, 100), (0.05, 1e-4, 0.1, 1000)),
    *((1.0, 0.999999, 0.01, 3), (100.0, 0.001, 0.01, 100), (1.0, 1.0, 0.01, 10)),
    (0.02, 0.3, 1.0, 2),
]


@pytest.mark.parametrize(("sigma", "rate", "grid", "steps"), STEPS)
def test_losses_and_their_sums_are_those_of_dp_accounting(sigma, rate, grid, steps):
    ours = step_losses(sigma, rate, grid)
    theirs = from_gaussian_mechanism(sigma, value_discretization_interval=grid, sampling_prob=rate)
    for mine, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        dense = other.to_dense_pmf()
        assert mine._lower_loss == dense._lower_loss
        np.testing.assert_allclose(mine._probs, dense._probs, rtol=0, atol=2e-12)
        assert mine._infinity_mass == pytest.approx(dense._infinity_mass, rel=1e-9, abs=1e-30)
    sums = [step.self_compose(steps, tail_mass_truncation=1e-15) for step in (ours, theirs)]
    for delta in (1e-3, 1e-6, 1e-10):
        mine, other = (each.get_epsilon_for_delta(delta) for each in sums)
        # Either moves a mass of about 1e-15 to an infinite loss, not exactly the same one.
        assert mine == pytest.approx(other, rel=max(1e-6, 1e-14 / delta))


def test_a_grid_wider_than_all_losses_still_gives_an_upper_bound():
    wide, fine = (step_losses(50.0, 0.001, grid) for grid in (1.0, 1e-4))
    assert wide.get_delta_for_epsilon(0.0) >= fine.get_delta_for_epsilon(0.0) > 0.0


def test_truncation_counts_as_infinite_loss():
    step = step_losses(1.0, 0.01, 0.004)
    few, many = (step.self_compose(500, tail_mass_truncation=t) for t in (1e-15, 1e-6))
    assert many._pmf_remove.size < few._pmf_remove.size
    assert many._pmf_remove._infinity_mass >= 1e-6
    assert many.get_epsilon_for_delta(1e-5) > few.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize(
    ("sigma", "rate", "items"),
    [(1.0, 0.05, 1), (1.0, 0.05, 2), (2.0, 0.3, 5), (0.5, 0.01, 3), (1.0, 0.999, 4), (3.0, 1.0, 2)],
)
def test_a_step_on_a_group_has_the_privacy_curve_of_the_integral(sigma, rate, items):
    """Naive twin: the density of the mixture over Bin(items, rate) shifts, integrated directly."""
    x, width = np.linspace(-12 * sigma, items + 12 * sigma, 400_001, retstep=True)
    out = stats.norm.pdf(x, 0.0, sigma)
    joined = sum(
        stats.binom.pmf(shift, items, rate) * stats.norm.pdf(x, shift, sigma)
        for shift in range(items + 1)
    )
    grid = 0.005
    step = step_losses(sigma, rate, grid, items)
    for epsilon in (0.0, 0.1, 0.5, 2.0):
        removed = width * np.maximum(joined - np.exp(epsilon) * out, 0.0).sum()
        added = width * np.maximum(out - np.exp(epsilon) * joined, 0.0).sum()
        # The points of the grid are exact, up to the tail that counts as an infinite loss.
        assert step.get_delta_for_epsilon(epsilon) == pytest.approx(
            max(removed, added), rel=1e-6, abs=1e-12
        )


@pytest.mark.parametrize(("sigma", "rate", "items"), [(1.0, 0.05, 2), (4.0, 0.2, 5)])
def test_steps_on_a_group_are_those_of_the_mixture_of_gaussians_of_dp_accounting(
    sigma, rate, items
):
    counts = range(items + 1)
    theirs = from_mixture_gaussian_mechanism(
        sigma, counts, stats.binom.pmf(counts, items, rate), value_discretization_interval=0.01
    )
    ours = step_losses(sigma, rate, 0.01, items)
    for steps, delta in ((1, 1e-6), (50, 1e-3), (50, 1e-8)):
        mine, other = (s.self_compose(steps).get_epsilon_for_delta(delta) for s in (ours, theirs))
        assert mine == pytest.approx(other, rel=1e-5)


def test_a_large_group_of_rare_items_has_finite_losses():
    for sigma, rate, items in ((0.3, 0.01, 100), (1.0, 0.9, 40)):
        step = step_losses(sigma, rate, 0.5, items)
        for losses in (step._pmf_remove, step._pmf_add):
            assert losses._probs.sum() == pytest.approx(1.0, abs=1e-12)
            assert losses._infinity_mass < 1e-20
