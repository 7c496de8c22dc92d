"""Products of independent symmetric numbers: an e-value by hand, its laws, and its level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from lightning_audit.stats.dependence.symmetric_noise import product_log_e

SPREAD = 30.0


def by_hand(products: np.ndarray) -> float:
    """The mixture over slopes, integrated."""
    total, variance = products.sum(), (products**2).sum()
    scale = math.sqrt(SPREAD / variance)

    def term(slope: float) -> float:
        density = math.exp(-0.5 * (slope / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi))
        return math.exp(slope * total - 0.5 * slope**2 * variance) * density

    centre = total / variance
    value, _ = integrate.quad(term, centre - 8 * scale, centre + 8 * scale, limit=400)
    return math.log(value)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_mixture_that_it_says(seed: int) -> None:
    products = np.random.default_rng(seed).normal(0.2, 1.0, 30)
    assert float(product_log_e(products)) == pytest.approx(by_hand(products), abs=1e-6)


def test_neither_size_nor_sign_matters() -> None:
    products = np.random.default_rng(0).normal(0.3, 1.0, 50)
    for factor in (1e-9, -1.0, 1e9):
        assert product_log_e(factor * products) == pytest.approx(product_log_e(products))
    assert product_log_e(np.zeros(4)) == 0.0
    assert product_log_e(np.zeros((3, 0))).tolist() == [0.0] * 3


@pytest.mark.parametrize("noise", ["normal", "lattice", "heavy", "one is large"])
@pytest.mark.parametrize("gap", [0, 1, 3])
def test_independent_symmetric_noise_keeps_the_mean_at_most_one(noise: str, gap: int) -> None:
    # By simulation; proved for any sizes, since the signs are fair coins.
    rng = np.random.default_rng(gap)
    shape = (20_000, 12)
    drawn = {
        "normal": lambda: rng.normal(size=shape),
        "lattice": lambda: np.round(1.5 * rng.normal(size=shape)),
        "heavy": lambda: rng.standard_cauchy(shape),
        "one is large": lambda: rng.normal(size=shape) * [1e3, *[1.0] * 11],
    }[noise]
    one, other = drawn(), drawn()
    products = one * other if not gap else one[:, :-gap] * one[:, gap:]
    e = np.exp(product_log_e(products))
    assert e.mean() < 1.0 + 3.0 * e.std() / math.sqrt(len(e))
    for level in (0.1, 0.01):
        assert (e >= 1.0 / level).mean() <= level


def test_dependence_of_either_sign_is_seen() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 2000))
    for part in (0.3, -0.3):
        mixed = part * one + math.sqrt(1.0 - part**2) * other
        assert product_log_e(one * mixed) > 20.0
