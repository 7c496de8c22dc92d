"""What is left of a gradient without its clipped sums is the noise, or it is said why not."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.checks.probes import NoiseSeen, noise_of

RNG = np.random.default_rng(0)
SUMS, NOISE = 5.0 * RNG.standard_normal(400), RNG.standard_normal(400)


@pytest.mark.parametrize("size", [0.8, 1.0, 3.0])
def test_the_noise_is_in_units_of_its_claim(size: float) -> None:
    noise, why = noise_of(NoiseSeen(SUMS + 2.0 * size * NOISE, SUMS, 2.0))
    assert why == ""
    assert noise is not None
    np.testing.assert_allclose(noise, size * NOISE, atol=1e-12)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (NoiseSeen(SUMS + NOISE, None, 1.0), "the clipped sums that the noise was added to are"),
        (NoiseSeen(SUMS + NOISE, None, 1.0, lack="draws are not known"), "draws are not known"),
        (NoiseSeen(SUMS + 0.5 * NOISE, SUMS, 1.0), "is too small to be the noise"),
        (NoiseSeen(1.5 * (SUMS + NOISE), SUMS, 1.0), "is correlated with them"),
    ],
)
def test_what_is_not_the_noise_alone_is_not_taken_for_it(seen: NoiseSeen, why: str) -> None:
    noise, said = noise_of(seen)
    assert noise is None
    assert why in said


def test_few_small_entries_are_no_sign_of_missing_noise() -> None:
    noise, _ = noise_of(NoiseSeen(np.full(9, 0.2), np.full(9, 0.1), 1.0))
    assert noise is not None
