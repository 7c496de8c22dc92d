from __future__ import annotations

import numpy as np

from lightning_audit.stats.dependence import contrasts, differences


def test_contrasts_are_independent_and_free_of_what_all_share() -> None:
    draws = np.random.default_rng(0).normal(size=(7, 5))
    helmert = contrasts(np.eye(7))
    np.testing.assert_allclose(helmert @ helmert.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(contrasts(draws + 4.0), contrasts(draws), atol=1e-12)
    np.testing.assert_allclose(contrasts(draws), helmert @ draws, atol=1e-12)
    np.testing.assert_array_equal(differences(draws), draws[:3] - draws[3:6])
