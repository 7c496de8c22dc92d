"""Noise that can be told in advance is found, and noise that cannot is left alone."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, linalg
from stages import most_failures, staged

from lightning_audit.stats.dependence import (
    FORECAST_LAGS,
    AlikeBet,
    ForecastBet,
    LagSigns,
    LatestNoise,
    at_distance,
    contrasts,
    differences,
    inverse_response,
    is_recoverable,
    lag_sign_log_e,
    low_rank_log_e,
    mirrored,
    product_log_e,
    steps_to_forget,
    together_log_e,
)
from lightning_audit.stats.noise_tests import noise_log_e

# --- Entries of a step that share their noise, at distances that nobody was told.
FloatArray = NDArray[np.float64]


Made = Callable[[FloatArray], FloatArray]


FLAGS = np.log(1e5)


SPREAD = 30.0


def after(made: Made, n: int = 800, seed: int = 0) -> tuple[list[float], AlikeBet]:
    """Log e-value after each of 40 steps."""
    rng, bet, found = np.random.default_rng(seed), AlikeBet(), []
    for _ in range(40):
        bet.update(made(rng.normal(size=n)))
        found.append(bet.log_e)
    return found, bet


def mirror(sign: float) -> Made:
    def made(new: FloatArray) -> FloatArray:
        half = len(new) // 2
        return np.concatenate([new[: len(new) - half], sign * new[:half][::-1]])

    return made


def part(new: FloatArray) -> FloatArray:
    """A tenth of the entries has the noise of others."""
    tenth = len(new) // 10
    new[5 * tenth : 6 * tenth] = new[:tenth]
    return new


SHARED = {
    "tiled": lambda new: np.resize(new[:37], len(new)),
    "tiled in rows": lambda new: np.resize(new[:200], len(new)),
    "each value twice": lambda new: np.repeat(new, 2)[: len(new)],
    "each value ten times": lambda new: np.repeat(new, 10)[: len(new)],
    "mirrored": mirror(1.0),
    "mirrored with the other sign": mirror(-1.0),
    "smoothed": lambda new: np.sqrt(0.5) * (new + np.roll(new, 1)),
    "a tenth": part,
}


@pytest.mark.parametrize("made", SHARED.values(), ids=SHARED)
def test_shared_noise_is_found_in_a_few_steps(made):
    for seed in range(3):
        found, bet = after(made, seed=seed)
        assert next(step for step, log_e in enumerate(found) if log_e >= FLAGS) < 20
        assert bet.left < 0.97


def test_where_it_is_shared_is_told():
    assert after(SHARED["tiled in rows"])[1].distance in (200, 400, 600)
    assert after(SHARED["mirrored"], n=801)[1].mirror == 800


def test_noise_of_its_own_is_told_from_noise_that_is_small():
    (small, bet), (own, other) = after(lambda new: 0.7 * new), after(lambda new: new)
    assert max(own) < FLAGS < small[-1]
    assert min(bet.left, other.left) > 0.97
    assert AlikeBet().left == 1.0


def test_one_entry_says_nothing():
    assert after(lambda new: 0.0 * new, n=1)[0][0] == pytest.approx(0.0)


@pytest.mark.parametrize("n", [2, 3, 7, 30])
def test_pairs_are_disjoint_and_as_they_are_called(n):
    for distance in range(n):
        first, second = at_distance(n, distance)
        assert set(second - first) <= {distance}
        assert len({*first, *second}) == 2 * len(first)
        assert len(first) >= (n - distance) // 2 if distance else not len(first)
    for place in range(2 * n - 1):
        first, second = mirrored(n, place)
        assert set(first + second) <= {place}
        assert len({*first, *second}) == 2 * len(first)
        assert not len(second) or (second.max() < n and first.min() >= 0)


@pytest.mark.parametrize("n", [5, 12])
def test_what_was_most_alike_is_what_a_plain_search_finds(n):
    rng, bet = np.random.default_rng(n), AlikeBet()
    apart, about = np.zeros(n), np.zeros(2 * n - 1)
    for _ in range(6):
        row = rng.normal(size=n)
        bet.update(row)
        apart, about = 0.9 * apart, 0.9 * about
        for d in range(1, n):
            apart[d] += row[:-d] @ row[d:] / np.sqrt(max(n - d, n / 8))
        for place in range(2 * n - 1):
            both = sum(row[i] * row[place - i] for i in range(n) if 0 <= place - i < n)
            own = row[place // 2] ** 2 if place % 2 == 0 else 0.0
            pairs = max(2.0 * (n - abs(place - (n - 1))), n / 4)
            about[place] += (both - own) / np.sqrt(pairs)
        assert bet._shown[0, :n] == pytest.approx(apart)
        assert bet._shown[1] == pytest.approx(about)
        before = np.abs(apart).argmax(), np.abs(about).argmax()
    bet.update(rng.normal(size=n))
    assert (bet.distance, bet.mirror) == before


SOUND: dict[str, Made] = {
    "new": lambda new: new,
    "larger": lambda new: 1.5 * new,
    "on a fine lattice": lambda new: np.round(new * 64.0) / 64.0,
    "beside data of one sign": lambda new: new + np.linspace(0.0, 1.0, len(new)),
}


@pytest.mark.parametrize("runs", staged(heavy=[300], nightly=[3000]))
@pytest.mark.parametrize("n", [4, 60])
@pytest.mark.parametrize("made", SOUND.values(), ids=SOUND)
def test_noise_as_claimed_is_accused_at_the_level_at_most(made, n, runs):
    highest = [max(after(made, n=n, seed=seed)[0]) for seed in range(runs)]
    assert sum(log_e >= np.log(20.0) for log_e in highest) <= most_failures(runs, 0.05, 3000)


def test_contrasts_are_independent_and_free_of_what_all_share():
    draws = np.random.default_rng(0).normal(size=(7, 5))
    helmert = contrasts(np.eye(7))
    np.testing.assert_allclose(helmert @ helmert.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(contrasts(draws + 4.0), contrasts(draws), atol=1e-12)
    np.testing.assert_allclose(contrasts(draws), helmert @ draws, atol=1e-12)
    np.testing.assert_array_equal(differences(draws), draws[:3] - draws[3:6])


# --- The response of the recovered draws is the inverse of the matrix of coefficients.
def matrix(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    column = np.zeros(steps)
    column[: len(coefficients)] = coefficients[:steps]
    return linalg.toeplitz(column, np.zeros(steps))


@pytest.mark.parametrize("coefficients", [(1.0, -0.5, -0.25), (2.0, 0.3), (1.0, -1.0), (1.0, -2.0)])
def test_the_response_is_the_first_column_of_the_inverse(coefficients):
    inverse = np.linalg.inv(matrix(coefficients, 30))
    assert inverse_response(coefficients, 30) == pytest.approx(inverse[:, 0], rel=1e-9)


# Of DP-FTRL, (1, -1): the noise of the sum so far is one draw.
@pytest.mark.parametrize(
    ("coefficients", "recovered"),
    [
        *((c, True) for c in [(1.0, -0.5, -0.25), (1.0, -1.0), (1.0, -2.0, 1.0), (1.0, 0.5)]),
        *((c, False) for c in [(1.0, -1.1), (0.5, -1.0), (1.0, -1.0, -1.0)]),
    ],
)
def test_draws_are_recovered_where_no_rest_grows(coefficients, recovered):
    assert is_recoverable(coefficients) is recovered


def test_square_root_factorisation_is_recoverable():
    """Of the prefix sums: of (1 - x)^(1/2), in full (Fichtenberger et al. 2023)."""
    full = np.cumprod([1.0, *(1.0 - 1.5 / np.arange(1, 500))])
    assert full[:3] == pytest.approx([1.0, -0.5, -0.125])
    assert is_recoverable(tuple(full))


def test_what_is_unknown_is_forgotten_when_it_is_said_to_be():
    c, steps = (1.0, -0.5, -0.25), 200
    forgets = steps_to_forget(c)
    assert forgets is not None
    # The first ten draws are not known: what is left of them in the later ones that are recovered.
    draws = np.random.default_rng(0).standard_normal((10, 400))
    full = matrix(c, steps)
    left = np.linalg.solve(full[10:, 10:], full[10:, :10] @ draws)
    assert np.abs(left[:3]).max() > 0.5
    assert left[forgets:].std(axis=1).max() < 0.02
    assert steps_to_forget((1.0, -1.0)) is None


def logs(rows: FloatArray) -> tuple[list[float], ForecastBet]:
    """Log e-value after each step."""
    past, bet, found = LatestNoise(), ForecastBet(), []
    for step, row in enumerate(rows):
        bet.update(past.before(step, len(row)), row)
        past.add(row, step)
        found.append(bet.log_e)
    return found, bet


def first(rows: FloatArray) -> int | None:
    """The step that flags."""
    return next((step for step, log_e in enumerate(logs(rows)[0]) if log_e >= FLAGS), None)


def autoregressive(part: float, lag: int = 1) -> Made:
    def made(new: FloatArray) -> FloatArray:
        rows = new.copy()
        for t in range(lag, len(new)):
            rows[t] = part * rows[t - lag] + np.sqrt(1.0 - part**2) * new[t]
        return rows

    return made


def drawn_back(new: FloatArray) -> FloatArray:
    """A running sum that is drawn back to zero, of steps of size 1."""
    rows, total = new.copy(), np.zeros(new.shape[1])
    for t in range(len(new)):
        rows[t] = np.sqrt(0.85) * (new[t] - 0.3 * total)
        total += rows[t]
    return rows


def taken_back(new: FloatArray, lag: int) -> FloatArray:
    """What was added is taken back so many steps later, in every second stretch."""
    rows = new.copy()
    for t in range(len(new)):
        if t // lag % 2:
            rows[t] = -rows[t - lag]
    return rows


DEPENDENT = {
    "half of the step before": autoregressive(0.4),
    "against the step before": autoregressive(-0.6),
    "of lag 16": autoregressive(-0.5, FORECAST_LAGS),
    "cancelling": lambda new: np.sqrt(0.5) * np.diff(new, axis=0, prepend=-new[:1]),
    "drawn back": drawn_back,
    "flipped": lambda new: taken_back(new, 1),
    "taken back after 11 steps": lambda new: taken_back(new, 11),
}


@pytest.mark.parametrize("made", DEPENDENT.values(), ids=DEPENDENT)
@pytest.mark.parametrize(("width", "within"), [(384, 30), (40, 120), (12, 319)])
@pytest.mark.one_in(3)
def test_dependent_noise_is_found_soon_by_many_entries_and_by_few(made, width, within):
    for seed in range(3):
        rows = made(np.random.default_rng(seed).normal(size=(320, width)))
        assert rows.std() == pytest.approx(1.0, abs=0.05)  # its size is right
        assert (at := first(rows)) is not None
        assert at < within


def test_noise_that_begins_to_depend_late_is_found():
    new = np.random.default_rng(1).normal(size=(400, 128))
    at = first(np.concatenate([new[:300], autoregressive(-0.6)(new[300:])]))
    assert 300 < at < 360


def test_data_that_stay_do_not_hide_it_and_loud_ones_that_come_and_go_do():
    rng = np.random.default_rng(2)
    noise = autoregressive(-0.6)(rng.normal(size=(200, 128)))
    assert first(noise + 3.0 * rng.normal(size=128)) is not None
    assert first(noise + 3.0 * rng.normal(size=(200, 128))) is None


def test_what_tells_most_is_told():
    rng = np.random.default_rng(3)
    _, bet = logs(autoregressive(0.4)(rng.normal(size=(100, 256))))
    assert bet.best == (1, pytest.approx(0.4, abs=0.03))
    assert (bet.left, bet.ratio) == pytest.approx((1.0 - 0.4**2, 1.0), abs=0.02)
    _, bet = logs(autoregressive(-0.5, 7)(rng.normal(size=(100, 256))))
    assert bet.best == (7, pytest.approx(-0.5, abs=0.03))
    _, bet = logs(drawn_back(rng.normal(size=(200, 256))))
    assert bet.best[0] == 0
    assert ForecastBet().left == ForecastBet().ratio == 1.0


def test_one_step_says_nothing():
    found, bet = logs(np.zeros((1, 8)))
    assert found == pytest.approx([0.0])
    assert not bet.compared


def plain_log_e(rows: FloatArray) -> float:
    """The same, step by step from the definition."""
    n, lags = rows.shape[1], FORECAST_LAGS
    products, with_next = np.zeros((lags + 1, lags + 1)), np.zeros(lags + 1)
    left, count = np.zeros(lags + 2), 0
    stakes = 10.0 ** -np.arange(1.0, 7.0)
    signed, fitted = np.ones(6), np.ones(6)
    for t, now in enumerate(rows):
        before = [rows[t - k] if t >= k else np.zeros(n) for k in range(1, lags + 1)]
        past = np.array([*before, rows[:t].sum(axis=0)])
        if t:
            ridged = products + 30.0 * np.eye(lags + 1)
            centres = [with_next[k] / ridged[k, k] * past[k] for k in range(lags + 1)]
            centres.append(np.linalg.solve(ridged, with_next) @ past)
            left += [np.sum((now - centre) ** 2) for centre in centres]
            count += n
            both = [s * past[k] for k in range(min(t, lags)) for s in (1, -1)]
            e_signed = np.mean([np.exp(noise_log_e(n, np.sum((now - c) ** 2))) for c in both])
            e_fitted = np.exp(noise_log_e(n, np.sum((now - centres[-1]) ** 2)))
            signed *= 1.0 + stakes * (e_signed - 1.0)
            fitted *= 1.0 + stakes * (e_fitted - 1.0)
        products = 0.98 * products + past @ past.T
        with_next = 0.98 * with_next + past @ now
    steady = np.mean(np.exp(noise_log_e(count, left)))
    return float(np.log(np.mean([steady, signed.mean(), fitted.mean()])))


@pytest.mark.parametrize("width", [1, 6, 30])
def test_it_is_what_its_definition_gives(width):
    rows = autoregressive(-0.3)(np.random.default_rng(width).normal(size=(40, width)))
    for steps in (1, 2, 17, 40):
        assert logs(rows[:steps])[0][-1] == pytest.approx(plain_log_e(rows[:steps]), abs=1e-9)


def test_steps_that_were_not_read_are_compared_with_none():
    rng, past = np.random.default_rng(5), LatestNoise()
    rows = {step: rng.normal(size=4) for step in (0, 1, 2, 5, 6, 40)}
    for step, row in rows.items():
        before = past.before(step, 4)
        for lag in range(1, FORECAST_LAGS + 1):
            assert np.array_equal(before[lag - 1], rows.get(step - lag, np.zeros(4)))
        past.add(row, step)
    assert not past.before(41 + FORECAST_LAGS, 4).any()
    # The sum begins anew behind steps that were not read.
    assert np.array_equal(past.before(41, 4)[-1], rows[40])


def following(new: FloatArray, noise: float) -> FloatArray:
    """Data that undo what the last reading was, or follow it: the worst that a past can do."""
    rows = np.zeros_like(new)
    for t in range(len(new)):
        rows[t] = (0.0 if t == 0 else (-0.9 if t % 3 else 0.5) * rows[t - 1]) + noise * new[t]
    return rows


def canaries(new: FloatArray) -> FloatArray:
    """Each entry holds a canary at half of the steps, by a coin that no past tells."""
    rng = np.random.default_rng(int(abs(new[0, 0]) * 1e6))
    return np.asarray(new + rng.integers(0, 2, new.shape))


SOUND_OF_FORECAST: dict[str, Made] = {
    "new": lambda new: new,
    "of a size that changes": lambda new: new * (1.0 + (np.arange(len(new)) % 7 == 0))[:, None],
    "large and dependent": lambda new: 1.2 * autoregressive(0.5)(new),
    "beside data that follow, larger": lambda new: following(new, 1.1),
    # A discrete Gaussian, of a lattice that is fine beside its size.
    "on a lattice": lambda new: np.round(new * 64.0) / 64.0,
    "beside canaries": canaries,
}


@pytest.mark.parametrize("runs", staged(heavy=[200], nightly=[2000]))
@pytest.mark.parametrize("width", [3, 24])
@pytest.mark.parametrize("made", SOUND_OF_FORECAST.values(), ids=SOUND_OF_FORECAST)
@pytest.mark.heavy_one_in(6)
def test_at_no_step_is_more_than_the_level_accused(made, width, runs):
    highest = [
        max(logs(made(np.random.default_rng([seed, width]).normal(size=(60, width))))[0])
        for seed in range(runs)
    ]
    assert sum(log_e >= np.log(20.0) for log_e in highest) <= most_failures(runs, 0.05, 2000)


@pytest.mark.parametrize("runs", staged(quick=[400], nightly=[3000]))
def test_the_mean_of_the_e_value_is_at_most_one(runs):
    """At a step of one's choice, without an edge in the bets that would hide a mistake."""
    values = [
        np.exp(logs(np.random.default_rng(seed).normal(size=(6, 2)))[0][-1]) for seed in range(runs)
    ]
    assert np.mean(values) <= 1.0 + 3.0 * (np.std(values) / np.sqrt(len(values)))
    assert np.mean(values) > 0.7


# --- Signs that follow earlier signs are seen, and noise of any mean and size follows nothing.
def test_the_e_value_is_two_coins_against_the_best_one():
    counts = np.array([[3, 5], [6, 2]])

    def mixed(above: int, below: int) -> float:
        return integrate.quad(lambda q: q**above * (1 - q) ** below, 0, 1)[0]

    best = (9 / 16) ** 9 * (7 / 16) ** 7
    assert lag_sign_log_e(counts) == pytest.approx(math.log(mixed(3, 5) * mixed(6, 2) / best))


def streams(runs: int, steps: int, seed: int, make) -> tuple[float, list[float]]:
    """Share of runs whose e-value ever reached 20, and its last value in each."""
    rng, largest, last = np.random.default_rng(seed), [], []
    for _ in range(runs):
        signs, top = LagSigns(), 0.0
        for t, noise in enumerate(make(rng, steps)):
            signs.update(noise, t)
            top = max(top, signs.log_e)
        largest.append(top)
        last.append(signs.log_e)
    return float(np.mean(np.array(largest) >= math.log(20.0))), last


@pytest.mark.parametrize("shift", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.one_in(4)
def test_independent_noise_alarms_in_fewer_runs_than_the_level(shift, scale):
    """At a level of 5 % (an e-value of 20), at any step of 60."""

    def independent(rng: np.random.Generator, steps: int) -> np.ndarray:
        return shift + scale * rng.standard_normal((steps, 16))

    assert streams(200, 60, 1, independent)[0] <= 0.05


@pytest.mark.parametrize("rho", [0.4, -0.4])
@pytest.mark.parametrize("lag", [1, 7])
def test_noise_that_follows_that_of_some_steps_before_is_seen(rho, lag):
    def following(rng: np.random.Generator, steps: int) -> list[np.ndarray]:
        noise = list(rng.standard_normal((steps, 64)))
        for t in range(lag, steps):
            noise[t] = rho * noise[t - lag] + math.sqrt(1 - rho**2) * noise[t]
        return noise

    _, last = streams(10, 60, 2, following)
    assert min(last) > 12.0


def test_the_lag_and_the_share_of_equal_signs_are_told_but_without_noise_there_is_none():
    rng, signs, silent = np.random.default_rng(3), LagSigns(), LagSigns()
    noise = [rng.standard_normal(64) for _ in range(3)]
    for t in range(20):
        if t < 12:
            signs.update(noise[t % 3], 2 * t)  # every second step was read
        silent.update(np.full(100, 1e-6), t)
    assert (signs.lag, signs.agreement) == (6, 1.0)
    assert (silent.log_e, silent.counts.sum(), silent.agreement) == (0.0, 0, 0.5)


# --- Matrices of few directions are seen, those of noise are not, whatever their size.
def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_noise_of_low_rank_is_seen(rank):
    assert low_rank_log_e(noise(64, rank) @ noise(rank, 64, 1)) > 14.0


@pytest.mark.parametrize("shape", [(4, 4), (4, 300), (20, 30)])
@pytest.mark.parametrize("size", [0.1, 1.0, 50.0])
def test_noise_of_one_size_keeps_the_mean_at_most_one(shape, size):
    # By simulation; proved by the two bounds that the docstring names.
    e = [math.exp(low_rank_log_e(size * noise(*shape, seed))) for seed in range(400)]
    assert np.mean(e) <= 1.0
    assert max(e) < 20.0


def test_the_largest_singular_value_of_noise_keeps_to_its_bound():
    rows, columns, t = 12, 25, 1.0
    edge = math.sqrt(rows) + math.sqrt(columns) + t
    above = np.mean([np.linalg.norm(noise(rows, columns, s), 2) > edge for s in range(2000)])
    assert above <= math.exp(-0.5 * t**2)


# --- Products of independent symmetric numbers: an e-value by hand, its laws, and its level.
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
def test_it_is_the_mixture_that_it_says(seed):
    products = np.random.default_rng(seed).normal(0.2, 1.0, 30)
    assert float(product_log_e(products)) == pytest.approx(by_hand(products), abs=1e-6)
    for empty in (np.zeros((3, 0)), np.zeros((3, 4))):
        assert product_log_e(empty).tolist() == [0.0] * 3


def symmetric(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    drawn = rng.standard_cauchy(shape) if kind == "heavy" else rng.normal(size=shape)
    if kind == "lattice":
        drawn = np.round(1.5 * drawn)
    if kind == "one is large":
        drawn[..., 0] *= 1e3
    return drawn


def costs_nothing(log_e: np.ndarray) -> None:
    """By simulation; proved for any sizes, since the signs are fair coins."""
    e = np.exp(log_e)
    assert e.mean() < 1.0 + 3.0 * e.std() / math.sqrt(len(e))
    for level in (0.1, 0.01):
        assert (e >= 1.0 / level).mean() <= level


@pytest.mark.parametrize("kind", ["normal", "lattice", "heavy", "one is large"])
@pytest.mark.parametrize("gap", [0, 1, 3])
def test_independent_symmetric_noise_keeps_the_mean_at_most_one(kind, gap):
    rng = np.random.default_rng(gap)
    one, other = (symmetric(rng, kind, (20_000, 12)) for _ in range(2))
    costs_nothing(product_log_e(one[:, :-gap] * one[:, gap:] if gap else one * other))


def test_dependence_of_either_sign_is_seen():
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 2000))
    for part in (0.3, -0.3):
        assert product_log_e(one * (part * one + math.sqrt(1.0 - part**2) * other)) > 20.0


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
def test_draws_that_go_together_are_weighed_as_by_hand(seed):
    draws = np.random.default_rng(seed).normal(size=(5, 30))
    assert together_log_e(draws) == pytest.approx(together_by_hand(draws), abs=1e-9)
    assert together_log_e(draws[:1]) == together_log_e(np.zeros((4, 7))) == 0.0


@pytest.mark.parametrize("kind", ["normal", "lattice", "heavy", "one is large", "few entries"])
def test_independent_entries_keep_the_mean_at_most_one(kind):
    shape = (2000, 8, 5 if kind == "few entries" else 60)
    drawn = symmetric(np.random.default_rng(5), kind, shape)
    costs_nothing(np.array([together_log_e(draws) for draws in drawn]))


@pytest.mark.parametrize("pattern", ["scattered pairs", "half of the directions"])
def test_entries_that_go_together_in_any_pattern_are_seen(pattern):
    rng = np.random.default_rng(6)
    draws = rng.normal(size=(24, 1000))
    if pattern == "scattered pairs":
        one, other = rng.permutation(1000).reshape(2, 500)
        draws[:, other] = 0.8 * draws[:, one] + 0.6 * draws[:, other]
    else:
        basis, _ = np.linalg.qr(rng.normal(size=(1000, 500)))
        draws = math.sqrt(2.0) * draws[:, :500] @ basis.T
    assert together_log_e(draws) > 8.0
