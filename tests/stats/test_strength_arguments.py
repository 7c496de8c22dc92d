from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.attack_strength import (
    attack_counts,
    attack_strength_posterior,
    attack_vector,
    known_strength,
    prior_variance,
    strength_prior,
)

WEAK = attack_counts([40, 45], 100, [50, 40], 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1], 10, [1], 10), "false_negatives=-1 must be"),
        (([1], 10, [11], 10), "false_positives=11 must be at most n_out=10; pass"),
        (([0.5], 10, [1], 10), "false_negatives=.* whole numbers"),
    ],
)
def test_bad_counts_are_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attack_counts(*arguments)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"delta=1\.0 must be in \(0, 1\)"):
        attack_strength_posterior(WEAK, 1.0)
    with pytest.raises(ValueError, match=r"counts have shape \(0,\), must be .* one attack; pass"):
        attack_strength_posterior(attack_counts([], 1, [], 1), 1e-5)
    with pytest.raises(ValueError, match=r"strength_shapes=\(0\.5, 1\.0\) must be"):
        attack_strength_posterior(WEAK, 1e-5, strength_shapes=(0.5, 1.0))
    with pytest.raises(ValueError, match=r"shapes=\(1e\+300, 1\.0\) must be .* up to 300"):
        attack_strength_posterior(WEAK, 1e-5, strength_shapes=(1e300, 1.0))
    for variance in (1e-320, 1e-20, 1e300):
        with pytest.raises(ValueError, match=r"must be in \[0\.0001, 1e\+06\]; 10 is the publ"):
            attack_strength_posterior(WEAK, 1e-5, epsilon_variance=variance)
    with pytest.raises(ValueError, match=r"n_in=9223372036854775809 must be at most 2\^53"):
        attack_counts(1, 2**63 + 1, 1, 100)


def test_the_log_prior_of_the_strength_is_that_of_beta_up_to_a_constant() -> None:
    s = np.array([0.1, 0.5, 0.8])
    assert strength_prior((1, 1))(s).tolist() == [0.0] * 3
    assert strength_prior((3.0, 2.0))(s) == pytest.approx(np.log(s**2 * (1 - s)))


def test_numbers_become_a_vector_of_one_attack() -> None:
    assert attack_vector(attack_counts(1, 10, 2, 20)).tp.tolist() == [9]
    assert prior_variance(10) == 10.0
    assert known_strength(0) == 0.0
    with pytest.raises(ValueError, match=r"strength=1 must be in \(0, 1\); 0 is allowed as well"):
        known_strength(1)
