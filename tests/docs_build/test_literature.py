from __future__ import annotations

import numpy as np
import pytest
from literature import (
    CHOICES,
    EACH,
    METHODS,
    SIGNIFICANCE,
    holds_from,
    looks,
    steps_needed,
)

from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED, RecordHeader
from lightning_audit.stats.named_bounds import named_bound
from lightning_audit.stats.tradeoff import gaussian_epsilon

HEADER = RecordHeader(("Dirac", "Spread"), ("weight",), (4,), 2)
DELTA = 1e-5


def record(steps: int, shift: float, noise: float = 1.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    entries = np.zeros(steps, dtype=HEADER.dtype)
    entries["canaries"] = INJECTED
    entries["noise_multiplier"] = 1.0
    entries["coins"] = rng.integers(0, 2, (steps, 2))
    entries["readings"] = shift * entries["coins"] + noise * rng.standard_normal((steps, 2))
    return entries


# ------------------------------------------------------------------ the search


def test_the_search_is_that_of_looking_at_everything_from_every_look_on() -> None:
    rng = np.random.default_rng(0)
    for steps in range(1, 120):
        holds = dict.fromkeys(range(1, steps + 1), False)
        holds |= {n: bool(rng.random() < 0.8) for n in holds}
        seen = list(looks(steps))
        brute = [n for n in seen if all(holds[later] for later in seen if later >= n)]
        assert holds_from(steps, holds.__getitem__) == (brute[0] if brute else None)


def test_what_holds_for_good_is_found_at_once_or_a_tenth_later() -> None:
    for steps in (1, 7, EACH, 300):
        for first in range(1, steps + 1):
            found = holds_from(steps, lambda n, first=first: n >= first)
            assert found is not None
            assert first <= found <= first * (1.0 if first <= EACH else 1.1)


def test_the_search_finds_nothing_where_nothing_holds_at_the_end() -> None:
    assert holds_from(100, lambda n: n < 100) is None
    assert holds_from(0, lambda n: True) is None


def test_the_last_step_is_looked_at_and_no_look_is_repeated() -> None:
    for steps in range(1, 400):
        seen = list(looks(steps))
        assert seen[-1] == steps
        assert seen == sorted(set(seen))


# ------------------------------------------------------------------ the bounds


def brute(entries: np.ndarray, method: str, choice: str) -> int | None:
    """Every look, with scores gathered one by one."""
    above = {}
    for n in looks(len(entries)):
        inside, outside = [], []
        for entry in entries[:n]:
            if entry["canaries"] != INJECTED:
                continue
            for coin, reading in zip(entry["coins"], entry["readings"], strict=True):
                if np.isfinite(reading):
                    (inside if coin else outside).append(reading)
        above[n] = False
        if inside and outside:
            bound = named_bound(method, inside, outside, DELTA, SIGNIFICANCE, CHOICES[choice])
            sigma = min(entry["noise_multiplier"] for entry in entries[:n])
            above[n] = bound.epsilon_lower > gaussian_epsilon(1.0 / sigma, DELTA)
    return next((n for n in above if all(above[later] for later in above if later >= n)), None)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.one_in(4)
def test_steps_are_those_of_a_loop_over_all_observations(method: str, choice: str) -> None:
    entries = record(60, shift=3.0, noise=0.5)
    entries["canaries"][::7] = NOT_PLANNED
    entries["canaries"][1::7] = DROPPED
    entries["readings"][5, 0] = np.nan
    entries["noise_multiplier"][30:] = 0.7
    assert steps_needed(HEADER, entries, DELTA)[method][choice] == brute(entries, method, choice)


def test_a_large_shift_is_seen_by_every_bound_on_mu_and_by_none_of_a_correct_mechanism() -> None:
    broken = steps_needed(HEADER, record(100, shift=10.0), DELTA)
    sound = steps_needed(HEADER, record(100, shift=1.0), DELTA)
    for method in ("fdp_cp", "fdp_pooled_cp", "fdp_bayes"):
        first = broken[method]["fixed"]
        assert first is not None
        assert first < 40
        assert sound[method]["fixed"] is None


def test_observations_that_say_nothing_refute_nothing() -> None:
    nothing = {method: dict.fromkeys(CHOICES) for method in METHODS}
    replaced = record(30, shift=10.0)
    replaced["readings"] = np.nan
    without = record(30, shift=10.0)
    without["canaries"] = NOT_PLANNED
    for entries in (replaced, without, record(0, shift=10.0)):
        assert steps_needed(HEADER, entries, DELTA) == nothing
