from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, special

from lightning_audit.stats.gaussian import distance_of_bayes_error, log_bayes_error


@pytest.mark.parametrize("weight", [1e-4, 0.1, 0.5, 0.7, 0.999])
@pytest.mark.parametrize("mu", [0.0, 0.2, 1.0, 4.0])
def test_bayes_error_is_the_least_of_all_thresholds(mu: float, weight: float) -> None:
    t = np.linspace(-60, 60, 480_001)
    error = (weight * special.ndtr(t - mu) + (1 - weight) * special.ndtr(-t)).min()
    log_error, slope = log_bayes_error(np.array([mu, mu + 1e-5]), np.array([weight, weight]))
    assert np.exp(log_error[0]) == pytest.approx(error, rel=1e-6)
    assert (log_error[1] - log_error[0]) / 1e-5 == pytest.approx(slope[0], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("weight", [1e-4, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("share", [1e-8, 0.01, 0.5, 0.99, 1.0])
def test_distance_agrees_with_bracketing(weight: float, share: float) -> None:
    error = share * min(weight, 1 - weight)
    found = distance_of_bayes_error(np.array([error]), np.array([weight]))[0]
    if share == 1.0:
        assert found == 0.0
        return

    def excess(mu: float) -> float:
        return float(log_bayes_error(np.array([mu]), np.array([weight]))[0][0] - np.log(error))

    assert found == pytest.approx(optimize.brentq(excess, 1e-3, 30, xtol=1e-14), rel=1e-11)
