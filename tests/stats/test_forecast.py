"""Noise that can be told in advance is found, and noise that cannot is left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from stages import most_failures, staged

from lightning_audit.stats.dependence import FORECAST_LAGS, ForecastBet, LatestNoise
from lightning_audit.stats.noise_tests import noise_log_e

FloatArray = NDArray[np.float64]
#: Log e-value at which a check of a hundredth of the default significance flags.
FLAGS = np.log(1e5)
#: Makes the readings of the steps, ``[steps, n]``, of new noise of the same shape.
Made = Callable[[FloatArray], FloatArray]


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


def cancelling(new: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(0.5) * np.diff(new, axis=0, prepend=-new[:1]))


def drawn_back(new: FloatArray) -> FloatArray:
    """A running sum that is drawn back to zero, of steps of size 1."""
    rows, total = new.copy(), np.zeros(new.shape[1])
    for t in range(len(new)):
        rows[t] = np.sqrt(0.85) * (new[t] - 0.3 * total)
        total += rows[t]
    return rows


def flipped(new: FloatArray) -> FloatArray:
    rows = new.copy()
    rows[1::2] = -rows[0:-1:2]
    return rows


def taken_back_later(lag: int) -> Made:
    """What was added is taken back so many steps later, in every second stretch."""

    def made(new: FloatArray) -> FloatArray:
        rows = new.copy()
        for t in range(len(new)):
            if t // lag % 2:
                rows[t] = -rows[t - lag]
        return rows

    return made


DEPENDENT = {
    "half of the step before": autoregressive(0.4),
    "against the step before": autoregressive(-0.6),
    "of lag 16": autoregressive(-0.5, FORECAST_LAGS),
    "cancelling": cancelling,
    "drawn back": drawn_back,
    "flipped": flipped,
    "taken back after 11 steps": taken_back_later(11),
}


@pytest.mark.parametrize("made", DEPENDENT.values(), ids=DEPENDENT)
@pytest.mark.parametrize(("width", "within"), [(384, 30), (40, 120), (12, 319)])
@pytest.mark.one_in(3)
def test_dependent_noise_is_found_by_many_entries_soon_and_by_few_in_time(
    made: Made, width: int, within: int
) -> None:
    for seed in range(3):
        rows = made(np.random.default_rng(seed).normal(size=(320, width)))
        assert rows.std() == pytest.approx(1.0, abs=0.05)  # its size is right
        at = first(rows)
        assert at is not None
        assert at < within


def test_noise_that_begins_to_depend_late_is_found() -> None:
    new = np.random.default_rng(1).normal(size=(400, 128))
    rows = np.concatenate([new[:300], autoregressive(-0.6)(new[300:])])
    at = first(rows)
    assert at is not None
    assert 300 < at < 360


def test_data_that_stay_do_not_hide_it_and_loud_ones_that_come_and_go_do() -> None:
    rng = np.random.default_rng(2)
    noise = autoregressive(-0.6)(rng.normal(size=(200, 128)))
    assert first(noise + 3.0 * rng.normal(size=128)) is not None
    assert first(noise + 3.0 * rng.normal(size=(200, 128))) is None


def test_what_tells_most_is_told() -> None:
    rng = np.random.default_rng(3)
    _, bet = logs(autoregressive(0.4)(rng.normal(size=(100, 256))))
    assert bet.best == (1, pytest.approx(0.4, abs=0.03))
    assert bet.left == pytest.approx(1.0 - 0.4**2, abs=0.02)
    assert bet.ratio == pytest.approx(1.0, abs=0.02)
    _, bet = logs(autoregressive(-0.5, 7)(rng.normal(size=(100, 256))))
    assert bet.best == (7, pytest.approx(-0.5, abs=0.03))
    _, bet = logs(drawn_back(rng.normal(size=(200, 256))))
    assert bet.best[0] == 0
    assert ForecastBet().left == ForecastBet().ratio == 1.0


def test_noise_that_is_small_is_found_without_a_forecast_and_said_to_be_told_by_none() -> None:
    found, bet = logs(0.5 * np.random.default_rng(4).normal(size=(20, 128)))
    assert found[-1] > FLAGS
    assert bet.left > 0.99
    assert bet.ratio == pytest.approx(0.5, abs=0.02)


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
def test_it_is_what_its_definition_gives(width: int) -> None:
    rows = autoregressive(-0.3)(np.random.default_rng(width).normal(size=(40, width)))
    for steps in (1, 2, 17, 40):
        assert logs(rows[:steps])[0][-1] == pytest.approx(plain_log_e(rows[:steps]), abs=1e-9)


def test_steps_that_were_not_read_are_compared_with_none() -> None:
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


def test_one_step_says_nothing() -> None:
    found, bet = logs(np.zeros((1, 8)))
    assert found == pytest.approx([0.0])
    assert not bet.compared


# ------------------------------------------------------------------ noise that is drawn anew


def following(new: FloatArray, noise: float) -> FloatArray:
    """Data that undo what the last reading was, or follow it: the worst that a past can do."""
    rows = np.zeros_like(new)
    for t in range(len(new)):
        data = 0.0 if t == 0 else (-0.9 if t % 3 else 0.5) * rows[t - 1]
        rows[t] = data + noise * new[t]
    return rows


def lattice(new: FloatArray) -> FloatArray:
    """A discrete Gaussian, of a lattice that is fine beside its size."""
    return np.asarray(np.round(new * 64.0) / 64.0)


def canaries(new: FloatArray) -> FloatArray:
    """Each entry holds a canary at half of the steps, by a coin that no past tells."""
    rng = np.random.default_rng(int(abs(new[0, 0]) * 1e6))
    return np.asarray(new + rng.integers(0, 2, new.shape))


SOUND: dict[str, Made] = {
    "new": lambda new: new,
    "twice as large": lambda new: 2.0 * new,
    "of a size that changes": lambda new: new * (1.0 + (np.arange(len(new)) % 7 == 0))[:, None],
    "large and dependent": lambda new: 1.2 * autoregressive(0.5)(new),
    "beside data that follow": lambda new: following(new, 1.0),
    "beside data that follow, larger": lambda new: following(new, 1.1),
    "on a lattice": lattice,
    "beside canaries": canaries,
}


@pytest.mark.parametrize("runs", staged(heavy=[200], nightly=[2000]))
@pytest.mark.parametrize("width", [3, 24])
@pytest.mark.parametrize("made", SOUND.values(), ids=SOUND)
@pytest.mark.heavy_one_in(6)
def test_at_no_step_is_more_than_the_level_accused(made: Made, width: int, runs: int) -> None:
    highest = [
        max(logs(made(np.random.default_rng([seed, width]).normal(size=(60, width))))[0])
        for seed in range(runs)
    ]
    accused = sum(log_e >= np.log(20.0) for log_e in highest)
    assert accused <= most_failures(runs, 0.05, 2000)


@pytest.mark.parametrize("runs", staged(quick=[400], heavy=[3000]))
def test_the_mean_of_the_e_value_is_at_most_one(runs: int) -> None:
    """At a step of one's choice, without an edge in the bets that would hide a mistake."""
    values = [
        np.exp(logs(np.random.default_rng(seed).normal(size=(6, 2)))[0][-1]) for seed in range(runs)
    ]
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) <= 1.0 + 3.0 * error
    assert np.mean(values) > 0.7
