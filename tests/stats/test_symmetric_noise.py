"""Products of independent symmetric numbers: an e-value by hand, its laws, and its level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from lightning_audit.stats.dependence import product_log_e, together_log_e

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


def together_by_hand(draws: np.ndarray) -> float:
    """The products over draws of the mixtures, by Gaussian integrals with inverses written out."""
    found = []
    for spread in (0.1, 0.2, 0.4, 0.8, 1.6, 6.0, 30.0):
        log_e = 0.0
        for number in range(1, len(draws)):
            before, own = draws[:number], draws[number]
            products = np.array([float(sum(p * own)) for p in before])
            sizes = sum(own[j] ** 2 * np.outer(before[:, j], before[:, j]) for j in range(len(own)))
            # E exp(l'S - l'Ml/2) over normal l of precision M/g: precision (1 + 1/g) M after it.
            precision = (1.0 + 1.0 / spread) * sizes
            _, log_after = np.linalg.slogdet(precision)
            _, log_prior = np.linalg.slogdet(sizes / spread)
            log_e += 0.5 * (log_prior - log_after)
            log_e += 0.5 * float(products @ np.linalg.inv(precision) @ products)
        found.append(log_e)
    return math.log(np.mean(np.exp(found)))


@pytest.mark.parametrize("seed", range(3))
def test_draws_that_go_together_are_weighed_as_by_hand(seed: int) -> None:
    draws = np.random.default_rng(seed).normal(size=(5, 30))
    assert together_log_e(draws) == pytest.approx(together_by_hand(draws), abs=1e-9)


def test_order_and_signs_of_entries_and_sizes_of_draws_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    draws = rng.normal(size=(6, 50))
    expected = together_log_e(draws)
    assert together_log_e(draws[:, rng.permutation(50)]) == pytest.approx(expected)
    assert together_log_e(draws * rng.choice([-1.0, 1.0], 50)) == pytest.approx(expected)
    assert together_log_e(draws * rng.uniform(1e-6, 1e6, (6, 1))) == pytest.approx(expected)
    assert together_log_e(draws[:1]) == together_log_e(np.zeros((4, 7))) == 0.0


@pytest.mark.parametrize("noise", ["normal", "lattice", "heavy", "one is large", "few entries"])
def test_independent_entries_keep_the_mean_at_most_one(noise: str) -> None:
    # By simulation; proved for any sizes, since the signs are fair coins.
    rng = np.random.default_rng(5)
    shape = (2000, 8, 5 if noise == "few entries" else 60)
    drawn = rng.standard_cauchy(shape) if noise == "heavy" else rng.normal(size=shape)
    if noise == "lattice":
        drawn = np.round(1.5 * drawn)
    if noise == "one is large":
        drawn[..., 0] *= 1e3
    e = np.exp([together_log_e(draws) for draws in drawn])
    assert e.mean() < 1.0 + 3.0 * e.std() / math.sqrt(len(e))
    for level in (0.1, 0.01):
        assert (e >= 1.0 / level).mean() <= level


@pytest.mark.parametrize("pattern", ["scattered pairs", "half of the directions"])
def test_entries_that_go_together_in_any_pattern_are_seen(pattern: str) -> None:
    rng = np.random.default_rng(6)
    draws = rng.normal(size=(24, 1000))
    if pattern == "scattered pairs":
        one, other = rng.permutation(1000).reshape(2, 500)
        draws[:, other] = 0.8 * draws[:, one] + 0.6 * draws[:, other]
    else:
        basis, _ = np.linalg.qr(rng.normal(size=(1000, 500)))
        draws = math.sqrt(2.0) * draws[:, :500] @ basis.T
    assert together_log_e(draws) > 8.0
