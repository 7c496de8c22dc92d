from __future__ import annotations

import numpy as np
import pytest
from simulated_record import (
    PER_TENSOR,
    TENSORS,
    by_name,
    header,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.checks.randomness import ReuseCheck

REUSE = {"reuse.lag", "reuse.broadcast", "reuse.pair"}


@pytest.mark.parametrize("data", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_fresh_noise_is_not_flagged(seed: int, data: float) -> None:
    assert not violated(monitor_of(simulate(80, seed=seed, data=data))) & REUSE


@pytest.mark.parametrize(
    ("reuse", "check", "steps", "fault"),
    [
        ("same", "reuse.lag", 6, "noise re-used: the same noise is added at every step"),
        ("lag 10", "reuse.lag", 16, "noise re-used: the same noise is added every 10 steps"),
        ("broadcast", "reuse.broadcast", 2, "noise re-used: one noise value is shared by all"),
        ("pair", "reuse.pair", 2, "noise re-used: one noise key is used for several tensors"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_reused_noise_is_flagged_within_the_published_steps_and_named(
    reuse: str, check: str, steps: int, fault: str, seed: int
) -> None:
    record = simulate(60, seed=seed, reuse=reuse, data=0.1)
    found = by_name(monitor_of(record))[check]
    assert found.status == "violated"
    assert found.evidence["violated_at_step"] < steps
    verdict = verdict_of(record)
    assert verdict.fault.startswith(fault)
    assert found.advice.startswith("look for")


def test_shortest_lag_of_noise_that_comes_back_is_told() -> None:
    monitor = monitor_of(simulate(60, reuse="lag 4"))
    assert monitor.reuse.lag == 4
    assert "as if the noise recurred every 4 steps" in by_name(monitor)["reuse.lag"].message


@pytest.mark.parametrize(
    ("means", "lag"),
    [
        ([2.0, 0.3, 0.04, 0.05], 3),  # far below the others: within sqrt(0.04) = 0.2
        ([2.0, 0.19, 0.04, 0.05], 2),
        ([2.0, 0.49, 0.26, 2.0], 2),  # up to 0.5 at most, though sqrt(0.26) is more
        ([2.0, 0.51, 0.26, 2.0], 3),
        ([1.9, 0.67, 0.55, 2.0], 3),  # within a fifth of the smallest, where that is more
        ([1.9, 0.65, 0.55, 2.0], 2),
        ([0.0, 0.0, 0.0, 0.0], 1),
    ],
)
def test_lag_is_the_first_that_reads_about_as_little_as_any(means: list[float], lag: int) -> None:
    made = header(lags=len(means))
    check, entry = ReuseCheck(made, 1e-3), np.zeros(1, dtype=made.dtype)
    entry["lag_count"], entry["lag_squares"] = 10.0, 10.0 * np.array(means)
    check.update(entry[0])
    assert check.lag == lag


def test_small_noise_is_not_taken_for_reused_noise() -> None:
    assert verdict_of(simulate(60, noise=0.5)).fault.startswith("noise scale too small")


def test_lag_beyond_those_looked_for_is_not_flagged() -> None:
    assert "reuse.lag" not in violated(monitor_of(simulate(60, reuse="lag 17")))


def test_same_noise_is_flagged_although_one_tensors_data_dominate() -> None:
    assert "reuse.lag" in violated(monitor_of(simulate(60, reuse="same", data=[6.0, 0.1, 0.1])))


def test_same_noise_is_flagged_while_the_noise_multiplier_decays() -> None:
    record = simulate(60, reuse="lag 2", sigma=np.geomspace(1.0, 0.9, 60))
    assert "reuse.lag" in violated(monitor_of(record))


# ------------------------------------------------------------------ the reducer


def two_tensors() -> WitnessReducer:
    flat = np.arange(4, dtype=np.int64)
    return WitnessReducer(Witnesses({0: flat, 1: flat + 2}), lags=3)


def test_sums_of_a_step_are_those_of_a_plain_loop() -> None:
    rng, reducer = np.random.default_rng(0), two_tensors()
    past: list[np.ndarray] = []
    for step in range(12):
        x, sigma = 0.5 * rng.standard_normal(8), 1.5 - 0.05 * step  # quiet: every tensor counts
        sums = reducer.reduce(x, sigma)
        centre = sum(past) / (len(past) + 10) if past else np.zeros(8)
        r = (x - centre) / sigma
        assert sums["tensor_squares"] == pytest.approx([r[:4] @ r[:4], r[4:] @ r[4:]])
        known = step > 0  # of the tensors: none is used before it was heard
        broadcast = known * sum((r[i] - np.mean(r[:i])) ** 2 for i in range(1, 8))
        assert sums["broadcast_count"] == 7 * known
        assert sums["broadcast_squares"] == pytest.approx(broadcast)
        # Flat coordinates 2 and 3 are in both tensors.
        pair = known * ((r[4] - r[2]) ** 2 + (r[5] - r[3]) ** 2)
        assert (sums["pair_count"], sums["pair_squares"]) == (2 * known, pytest.approx(pair))
        for lag in (1, 2, 3):
            seen = len(past) >= lag
            gap = (x - past[-lag]) / sigma if seen else np.zeros(8)
            assert sums["lag_count"][lag - 1] == 8 * seen
            assert sums["lag_squares"][lag - 1] == pytest.approx(gap @ gap)
        past.append(x)


def test_loud_tensor_is_left_out_from_the_step_after_it_is_heard() -> None:
    reducer = two_tensors()
    loud = np.concatenate([np.ones(4), np.full(4, 9.0)])
    assert reducer.reduce(np.ones(8), 1.0)["broadcast_count"] == 0  # nothing is known of them
    assert reducer.reduce(loud, 1.0)["broadcast_count"] == 7
    assert reducer.reduce(np.ones(8), 1.0)["broadcast_count"] == 3


def test_single_witness_has_no_partner_and_no_neighbour() -> None:
    reducer = WitnessReducer(Witnesses({0: np.zeros(1, dtype=np.int64)}), lags=2)
    sums = reducer.reduce(np.ones(1), 1.0)
    assert sums["broadcast_count"] == sums["pair_count"] == 0
    assert (sums["lag_count"] == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_step_does_not_spoil_the_witnesses_of_later_steps(value: float) -> None:
    rng = np.random.default_rng(0)
    reducer = WitnessReducer(
        Witnesses({j: np.arange(PER_TENSOR, dtype=np.int64) for j in range(len(TENSORS))}), lags=3
    )
    shape = PER_TENSOR * len(TENSORS)
    reducer.reduce(rng.standard_normal(shape), 1.0)
    reducer.reduce(np.full(shape, value), 1.0)
    for _ in range(5):
        later = reducer.reduce(rng.standard_normal(shape), 1.0)
    assert np.isfinite(later["tensor_squares"]).all()
    assert np.isfinite(later["lag_squares"]).all()
