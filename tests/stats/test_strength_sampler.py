from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.attack_strength import (
    attack_counts,
    attack_strength_posterior,
    sample_attack_strength,
)

WEAK = attack_counts([40, 45], 100, [50, 40], 100)


def test_the_published_chain_samples_the_same_posterior() -> None:
    posterior = attack_strength_posterior(WEAK, 0.01)
    samples = sample_attack_strength(WEAK, 0.01, 8000, np.random.default_rng(3))[1000:]
    assert np.mean(posterior.epsilon.cdf(samples[:, 0])) == pytest.approx(0.5, abs=0.12)
    assert np.mean(posterior.strength.cdf(samples[:, 1])) == pytest.approx(0.5, abs=0.12)


def test_a_chain_is_a_function_of_its_source_and_stays_where_the_prior_is() -> None:
    one, other, longer = (
        sample_attack_strength(WEAK, 0.01, n, np.random.default_rng(5), step_strength=0.9)
        for n in (40, 40, 60)
    )
    assert one.shape == (40, 2)
    assert (one == other).all()
    assert (one == longer[:40]).all()
    assert ((longer[:, 0] > 0) & (longer[:, 1] > 0) & (longer[:, 1] < 1)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations=0 must be a whole number >= 1"),
        ({"proposals": 1}, "proposals=1 must be at least 2; the first is the last state's"),
        ({"step_epsilon": 0.0}, r"step_epsilon=0\.0 must be a finite number > 0"),
        ({"step_strength": -1.0}, r"step_strength=-1\.0 must be a finite number > 0"),
        ({"start": (0.0, 0.1)}, r"start=0\.0 must be .*; the first of the two is an epsilon"),
        ({"start": (5.0, 1.0)}, r"start=1\.0 must be .*; the second of the two is a strength"),
    ],
)
def test_bad_options_are_named(options, message: str) -> None:
    options = {"iterations": 1, **options}
    with pytest.raises(ValueError, match=message):
        sample_attack_strength(WEAK, 0.01, generator=np.random.default_rng(0), **options)
