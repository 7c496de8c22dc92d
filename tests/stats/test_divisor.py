"""The divisor's e-process: against scipy, in expectation, and on divided sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, special, stats

from lightning_audit.stats.sampling_tests import VARIANCES, DivisorTest


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_it_is_the_ratio_of_likelihoods(scale: float) -> None:
    rng = np.random.default_rng(0)
    test, noise, n = DivisorTest(), 0.8, 25
    steps = []
    for _ in range(4):
        sums = 3 * rng.normal(size=n)
        released, ratios = sums + scale * noise * rng.normal(size=n), (rng.uniform(0.5, 1.5), 1.1)
        test.update(released, sums, noise, ratios)
        steps.append((released / noise, sums / noise, ratios))

    def loglik(std: float, which: slice = slice(None)) -> float:
        return float(sum(stats.norm.logpdf(y, s, std).sum() for y, s, _ in steps[which]))

    def largest(which: slice, low: float) -> float:
        found = optimize.minimize_scalar(
            lambda std: -loglik(std, which), bounds=(low, 50.0), method="bounded"
        )
        return max(-found.fun, loglik(low, which))

    def learned(ratio_at: Callable[[tuple[float, ...]], float]) -> float:
        """With the variance that the steps before show."""
        total, variance = 0.0, 1.0
        for y, s, r in steps:
            gap = ratio_at(r) * y - s
            total += stats.norm.logpdf(gap, 0, np.sqrt(variance)).sum() + n * np.log(ratio_at(r))
            variance = 0.9 * variance + 0.1 * np.mean(gap**2)
        return float(total)

    null = max(
        sum(largest(slice(t, t + 1), 1.0) for t in range(4)),
        largest(slice(None), 1e-3),
        learned(lambda _: 1.0),
    )
    other = [
        sum(
            stats.norm.logpdf(r[i] * y, s, np.sqrt(g)).sum() + n * np.log(r[i]) for y, s, r in steps
        )
        for i in range(2)
        for g in VARIANCES
    ] + [learned(lambda r, i=i: r[i]) for i in range(2)]
    expected = special.logsumexp(other) - np.log(len(other)) - null
    assert test.log_e == pytest.approx(expected, abs=1e-4)


def _after(kind: str, seed: int, data: float = 2.0, steps: int = 40) -> DivisorTest:
    """A test after steps whose batches are Poisson, and whose gradient is divided by ``kind``."""
    rng, test, n, mean = np.random.default_rng(seed), DivisorTest(), 60, 16
    direction = rng.normal(size=n)
    for _ in range(steps):
        records = max(int(rng.poisson(mean)), 1)
        whole = data * records / mean * direction + rng.normal(size=n)
        divisor = {"stated": 1.0, "records": records / mean, "length": np.linalg.norm(whole)}[kind]
        test.update(whole / divisor, np.zeros(n), 1.0, (records / mean, (records + 1) / mean))
    return test


@pytest.mark.parametrize("seed", range(10))
def test_only_what_is_divided_by_the_records_shrinks_with_them(seed: int) -> None:
    assert not _after("stated", seed).shrinks_with_divisor
    assert not _after("length", seed).shrinks_with_divisor


def test_noise_that_is_divided_by_the_records_shrinks_with_them() -> None:
    rng, test, n = np.random.default_rng(0), DivisorTest(), 60
    for step in range(20):
        assert not (step < 8 and test.shrinks_with_divisor)  # too few to tell
        records = int(rng.poisson(16))
        test.update(rng.normal(size=n) * 16 / records, np.zeros(n), 1.0, (records / 16,))
    assert test.shrinks_with_divisor


def test_data_that_grow_with_the_batch_hide_the_divisor() -> None:
    # Divided by the records, sums that are far louder than the noise have one length.
    assert not _after("records", 0, data=100.0).shrinks_with_divisor


def test_nothing_is_said_without_a_step_or_a_divisor() -> None:
    test = DivisorTest()
    assert test.log_e == 0.0
    test.update(np.zeros(3), np.zeros(3), 1.0, ())
    test.update(np.zeros(0), np.zeros(0), 1.0, (0.5,))
    assert test.log_e == 0.0


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 2.0])
def test_the_stated_divisor_says_nothing_against_itself(scale: float) -> None:
    rng = np.random.default_rng(0)
    test = DivisorTest()
    for _ in range(30):
        sums = rng.normal(size=40)
        test.update(sums + scale * rng.normal(size=40), sums, 1.0, (1.0, 1.0))
        assert test.log_e <= 1e-9


def e_values_of_a_step(y: np.ndarray, s: np.ndarray, ratio: float) -> np.ndarray:
    """E-values after one step of noise 1, of many runs ``[runs, n]``, by a plain formula."""
    n = y.shape[1]
    plain, left = np.sum((y - s) ** 2, axis=1), np.sum((ratio * y - s) ** 2, axis=1)
    variance = np.maximum(plain / n, 1.0)
    step_null = -0.5 * (n * np.log(variance) + plain / variance)
    null = np.max([step_null, -0.5 * n * (np.log(plain / n) + 1.0), -0.5 * plain], axis=0)
    # The variance that the past shows is 1 in the first step.
    tried = np.append(VARIANCES, 1.0)
    other = n * np.log(ratio) - 0.5 * n * np.log(tried) - 0.5 * left[:, None] / tried
    values = np.exp(other - null[:, None]).mean(axis=1)
    for i in range(20):
        test = DivisorTest()
        test.update(y[i], np.broadcast_to(s, y.shape)[i], 1.0, (ratio,))
        assert values[i] == pytest.approx(np.exp(test.log_e), rel=1e-9)
    return values


def costs_at_most_one(values: np.ndarray) -> bool:
    return bool(np.mean(values) <= 1 + 3 * np.std(values) / np.sqrt(len(values)))


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("ratio", [0.9, 1.05, 1.5])
def test_a_stated_divisor_costs_at_most_one_on_average(scale: float, ratio: float) -> None:
    rng = np.random.default_rng(1)
    sums = rng.normal(size=3)
    noisy = sums + scale * rng.normal(size=(10_000, 3))
    assert costs_at_most_one(e_values_of_a_step(noisy, sums, ratio))


@pytest.mark.parametrize("scale", [1.0, 1.2, 2.0])
@pytest.mark.parametrize("ratio", [0.9, 1.05, 1.5])
@pytest.mark.parametrize("data", [0.5, 2.0])
def test_without_the_sum_a_stated_divisor_costs_at_most_one_on_average(
    scale: float, ratio: float, data: float
) -> None:
    rng = np.random.default_rng(3)
    sums = data * rng.normal(size=3)
    noisy = sums + scale * rng.normal(size=(10_000, 3))
    assert costs_at_most_one(e_values_of_a_step(noisy, np.zeros(3), ratio))


@pytest.mark.parametrize("scale", [0.02, 0.5, 1.0])
def test_a_realised_batch_size_is_seen_in_two_steps(scale: float) -> None:
    rng = np.random.default_rng(2)
    test = DivisorTest()
    for size in (11, 21):
        sums = rng.normal(size=384)
        noisy = sums + scale * rng.normal(size=384)
        test.update(noisy * 16 / size, sums, 1.0, (size / 16,))
    assert test.log_e > 12
