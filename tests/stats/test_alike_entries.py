"""Entries of a step that share their noise, at distances that nobody was told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from stages import most_failures, staged

from lightning_audit.stats.dependence import AlikeBet, at_distance, mirrored

FloatArray = NDArray[np.float64]
Made = Callable[[FloatArray], FloatArray]
FLAGS = np.log(1e5)


def after(
    made: Made, *, n: int = 800, steps: int = 40, seed: int = 0
) -> tuple[list[float], AlikeBet]:
    """Log e-value after each step."""
    rng, bet, found = np.random.default_rng(seed), AlikeBet(), []
    for _ in range(steps):
        bet.update(made(rng.normal(size=n)))
        found.append(bet.log_e)
    return found, bet


def tiled(period: int) -> Made:
    return lambda new: np.resize(new[:period], len(new))


def repeated(times: int) -> Made:
    return lambda new: np.repeat(new, times)[: len(new)]


def mirror(sign: float) -> Made:
    def made(new: FloatArray) -> FloatArray:
        half = len(new) // 2
        return np.concatenate([new[: len(new) - half], sign * new[:half][::-1]])

    return made


def smoothed(new: FloatArray) -> FloatArray:
    """Neighbours that have a part in common."""
    return np.asarray(np.sqrt(0.5) * (new + np.roll(new, 1)))


def part(new: FloatArray) -> FloatArray:
    """A tenth of the entries has the noise of others."""
    tenth = len(new) // 10
    new[5 * tenth : 6 * tenth] = new[:tenth]
    return new


SHARED = {
    "tiled": tiled(37),
    "tiled in rows": tiled(200),
    "each value twice": repeated(2),
    "each value ten times": repeated(10),
    "mirrored": mirror(1.0),
    "mirrored with the other sign": mirror(-1.0),
    "smoothed": smoothed,
    "a tenth": part,
}


@pytest.mark.parametrize("made", SHARED.values(), ids=SHARED)
def test_shared_noise_is_found_in_a_few_steps(made: Made) -> None:
    for seed in range(3):
        found, bet = after(made, seed=seed)
        assert next(step for step, log_e in enumerate(found) if log_e >= FLAGS) < 20
        assert bet.left < 0.97


def test_where_it_is_shared_is_told() -> None:
    assert after(tiled(200))[1].distance in (200, 400, 600)
    assert after(mirror(1.0), n=801)[1].mirror == 800


def test_noise_of_its_own_is_told_from_noise_that_is_small() -> None:
    found, bet = after(lambda new: 0.7 * new)
    assert found[-1] > FLAGS
    assert bet.left > 0.97
    found, bet = after(lambda new: new)
    assert max(found) < FLAGS
    assert bet.left > 0.97
    assert AlikeBet().left == 1.0


@pytest.mark.parametrize("n", [2, 3, 7, 30])
def test_pairs_are_disjoint_and_as_they_are_called(n: int) -> None:
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
def test_what_was_most_alike_is_what_a_plain_search_finds(n: int) -> None:
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


def test_one_entry_says_nothing() -> None:
    bet = AlikeBet()
    bet.update(np.zeros(1))
    assert bet.log_e == pytest.approx(0.0)


SOUND: dict[str, Made] = {
    "new": lambda new: new,
    "larger": lambda new: 1.5 * new,
    "on a fine lattice": lambda new: np.round(new * 64.0) / 64.0,
    "beside data of one sign": lambda new: new + np.linspace(0.0, 1.0, len(new)),
}


@pytest.mark.parametrize("runs", staged(heavy=[300], nightly=[3000]))
@pytest.mark.parametrize("n", [4, 60])
@pytest.mark.parametrize("made", SOUND.values(), ids=SOUND)
def test_noise_as_claimed_is_accused_at_the_level_at_most(made: Made, n: int, runs: int) -> None:
    highest = [max(after(made, n=n, seed=seed)[0]) for seed in range(runs)]
    assert sum(log_e >= np.log(20.0) for log_e in highest) <= most_failures(runs, 0.05, 3000)
