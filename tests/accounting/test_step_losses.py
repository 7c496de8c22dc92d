import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from lightning_audit.accounting.step_losses import step_losses

#: Noise multiplier, sample rate, grid, steps: usual, nearly no noise, and nearly all records.
STEPS = [
    (1.0, 0.01, 0.008, 64),
    (2.36, 0.01, 0.0005, 98),
    (0.56, 0.01, 0.004, 1000),
    (5.0, 0.001, 0.002, 10_000),
    (0.3, 0.3, 0.01, 100),
    (0.05, 1e-4, 0.1, 1000),
    (1.0, 0.999999, 0.01, 3),
    (100.0, 0.001, 0.01, 100),
    (1.0, 1.0, 0.01, 10),
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
