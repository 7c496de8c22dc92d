"""What looking again and again costs, and how soon each test finds a violation: references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from admitted_course import AdmittedCourse
from scipy import special

from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.gaussian import mu_noncentral_t
from lightning_audit.stats.tradeoff import gaussian_mu

CLAIMED = gaussian_mu(1.27, 1e-5)
CANARIES = 8


def at_looks(rng: np.random.Generator, runs: int, looks: int) -> tuple[np.ndarray, ...]:
    """Errors in either world at c/2, sums and squares of the noise, after each 50 observations."""
    rate = float(special.ndtr(-CLAIMED / 2))
    errors = np.cumsum(rng.binomial(50, rate, (2, runs, looks)), axis=-1)
    sums = np.cumsum(math.sqrt(50) * rng.standard_normal((2, runs, looks)), axis=-1)
    # Of a block of 50: the squares within it, and its own sum.
    squares = rng.chisquare(49, (2, runs, looks)) + np.diff(sums, axis=-1, prepend=0.0) ** 2 / 50
    return errors, sums, np.cumsum(squares, axis=-1)


@pytest.mark.heavy
def test_one_look_limits_alarm_in_correct_runs_when_looked_at_a_hundred_times() -> None:
    runs, looks = 1000, 100
    rng = np.random.default_rng(0)
    errors, sums, squares = at_looks(rng, runs, looks)
    n = np.broadcast_to(50 * np.arange(1, looks + 1), (runs, looks))
    within = (squares - sums**2 / n).sum(axis=0)
    limit = mu_noncentral_t(n, n, CLAIMED + (sums[1] - sums[0]) / n, within, 0.05)
    alarmed = float(np.mean((limit > CLAIMED).any(axis=1)))
    assert alarmed == pytest.approx(0.310, abs=0.06)  # published from as many runs
    corner = -special.ndtri(clopper_pearson_upper(errors, n, 0.025)).sum(axis=0)
    # The union bound over two rates leaves room for a hundred looks: luck, and not a guarantee.
    assert np.mean((corner > CLAIMED).any(axis=1)) == pytest.approx(0.029, abs=0.02)


@pytest.mark.parametrize(
    ("n", "noncentral_t", "pooled", "corner"),
    [
        (1000, 0.47, 0.34, 0.03),
        (2500, 0.78, 0.63, 0.18),
        (4000, 0.93, 0.80, 0.42),
        (8000, 1.0, 0.97, 0.77),
    ],
)
def test_one_look_powers(n: int, noncentral_t: float, pooled: float, corner: float) -> None:
    mu, runs = gaussian_mu(1.57, 1e-5), 20_000
    rate = special.ndtr(-mu / 2)
    rng = np.random.default_rng(n)
    gap = mu + math.sqrt(2 / n) * rng.standard_normal(4000)
    limit = mu_noncentral_t(n, n, gap, rng.chisquare(2 * n - 2, 4000), 0.05)
    assert np.mean(limit > CLAIMED) == pytest.approx(noncentral_t, abs=0.03)
    errors = np.random.default_rng(n).binomial(2 * n, rate, runs)
    limit = -2 * special.ndtri(clopper_pearson_upper(errors, 2 * n, 0.05))
    assert np.mean(limit > CLAIMED) == pytest.approx(pooled, abs=0.03)
    errors = np.random.default_rng(n).binomial(n, rate, (2, runs))
    limit = -special.ndtri(clopper_pearson_upper(errors, n, 0.025)).sum(axis=0)
    # Published from few runs: at 4,000 it is .387.
    assert np.mean(limit > CLAIMED) == pytest.approx(corner, abs=0.04)


def medians(noise: float, shift: float, steps: int) -> list[float]:
    """Median observations a world until bets refuse the claim, at .05 and at 1e-3."""
    sigma, runs, levels = 1 / CLAIMED, 200, (0.05, 1e-3)
    rng = np.random.default_rng([round(100 * noise), round(100 * shift)])
    course = AdmittedCourse((runs, CANARIES))
    first = np.full((len(levels), runs), np.inf)
    for step in range(1, steps + 1):
        coins = rng.integers(0, 2, (runs, CANARIES)).astype(float)
        readings = shift * coins + noise * sigma * rng.standard_normal(coins.shape)
        course.update(coins, readings, sigma)
        for row, level in zip(first, levels, strict=True):
            row[course.refused(level) & np.isinf(row)] = step * CANARIES / 2
    return [float(found) for found in np.median(first, axis=1)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("noise", "shift", "published"),
    # Published for pairs of observations, looking every 10 (50 for noise x0.8), from 200 runs or
    # fewer; None where it was not published.
    [
        (0.5, 1.0, (240, 495)),
        (1.0, 2.0, (245, 520)),
        (0.8, 1.0, (3075, None)),
    ],
)
def test_bets_on_leakage_flag_nearly_as_soon_as_bets_of_every_size(
    noise: float, shift: float, published: tuple[float | None, ...]
) -> None:
    found = medians(noise, shift, 1300 if noise == 0.8 else 220)
    print(f"\nnoise x{noise}, shift x{shift}: {found}")
    for median, expected in zip(found, published, strict=True):
        if expected is not None:
            # Four fifths of the wealth are on bets for an end, which prove the most near the claim,
            # where the published bet, of every size, has all of it. Where twice the claim leaks
            # this costs up to two thirds more observations, and `noise` has found it long before.
            assert median <= (1.2 if noise == 0.8 else 1.75) * expected
