from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import (
    LABELS,
    SIGNIFICANCE,
    TENSORS,
    by_name,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.noise import Onset, PooledSums
from lightning_audit.stats.noise_tests import noise_log_e

NOISE = {"noise", "noise.tensor", "noise.canary"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("data", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("noise", [1.0, 1.3])
def test_enough_noise_is_not_flagged(seed: int, data: float, noise: float) -> None:
    assert violated(monitor_of(simulate(100, seed=seed, data=data, noise=noise))) == set()


def test_half_noise_is_flagged_within_ten_steps_by_all_three_checks() -> None:
    monitor = monitor_of(simulate(40, noise=0.5))
    checks = by_name(monitor)
    assert violated(monitor) >= NOISE
    assert checks["noise"].evidence["violated_at_step"] < 10
    assert checks["noise"].evidence["smallest_ratio"] == pytest.approx(0.5, abs=0.05)


def test_half_noise_is_named() -> None:
    record = simulate(40, noise=0.5)
    verdict = verdict_of(record)
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "mechanism")
    assert verdict.fault.startswith("noise scale too small: the noise is at most 0.53 times the")
    assert by_name(monitor_of(record))["noise"].advice.startswith("compare the noise that is drawn")


@pytest.mark.parametrize("tensor", range(len(TENSORS)))
def test_tensor_without_noise_is_named(tensor: int) -> None:
    noise = [float(j != tensor) for j in range(len(TENSORS))]
    record = simulate(60, noise=noise, canary_noise=1.0, data=0.05)
    checks = by_name(monitor_of(record))
    assert checks["noise.tensor"].evidence["flagged"] == [TENSORS[tensor]]
    assert f"`{TENSORS[tensor]}`" in checks["noise.tensor"].message
    fault = verdict_of(record).fault
    assert fault == f"noise of some tensors: the noise of `{TENSORS[tensor]}` is missing"


def test_tensor_with_half_noise_is_named_with_its_ratio() -> None:
    fault = verdict_of(simulate(60, noise=[1.0, 0.5, 1.0], canary_noise=1.0)).fault
    assert "`fc.weight` is at most 0.53 times the stated (99 % confidence at any stop" in fault


def test_noise_divided_by_the_batch_size_is_named() -> None:
    fault = verdict_of(simulate(30, noise=1 / 64)).fault
    assert fault.startswith("noise divided by the batch size")
    assert "batch size of 64" in fault


def test_missing_noise_is_named() -> None:
    assert verdict_of(simulate(30, noise=0.0, data=0.01)).fault.startswith("no noise")


def test_small_noise_on_the_canaries_alone_is_flagged() -> None:
    monitor = monitor_of(simulate(100, noise=1.0, canary_noise=0.5))
    assert "noise.canary" in violated(monitor)
    assert not {"noise", "noise.tensor"} & violated(monitor)


def test_small_noise_on_one_canary_is_flagged_and_named() -> None:
    made, entries = simulate(200)
    quiet = 2
    residual = entries["readings"][:, quiet] - entries["coins"][:, quiet]
    entries["readings"][:, quiet] = entries["coins"][:, quiet] + 0.3 * residual
    monitor = monitor_of((made, entries))
    assert "noise.canary" in violated(monitor)
    assert LABELS[quiet] in by_name(monitor)["noise.canary"].message


def test_tensors_where_data_dominate_do_not_hide_small_noise_elsewhere() -> None:
    monitor = monitor_of(simulate(60, noise=0.6, data=[8.0, 8.0, 0.0], canary_noise=1.0))
    assert "noise.tensor" in violated(monitor)
    assert monitor.witness_noise.flagged_tensors() == [TENSORS[2]]


def test_decaying_noise_multipliers_do_not_alarm_and_half_of_them_do() -> None:
    sigma = np.geomspace(2.0, 0.5, 100)
    assert violated(monitor_of(simulate(100, sigma=sigma))) == set()
    assert violated(monitor_of(simulate(100, sigma=sigma, noise=0.5))) >= NOISE


def test_pooled_sums_take_a_unit_in_by_its_past_alone() -> None:
    sums, counts = PooledSums(2), np.array([4.0, 4.0])
    sums.update(counts, np.array([3.0, 400.0]))  # nothing is known of them yet
    assert (sums.pooled_count, sums.pooled_squares) == (0, 0)
    sums.update(counts, np.array([2.0, 0.0]))  # the second was loud, whatever it is now
    assert (sums.pooled_count, sums.pooled_squares) == (4, 2)
    assert sums.pooled_log_e == pytest.approx(float(noise_log_e(4, 2)))
    assert sums.unit_log_e == pytest.approx(noise_log_e([8, 8], [5, 400]))
    assert sums.mean_square == pytest.approx([5 / 8, 50])


def test_unit_that_was_loud_once_is_pooled_again_soon() -> None:
    sums, counts = PooledSums(1), np.array([4.0])
    sums.update(counts, np.array([4e6]))  # counts as 2: 0.9 + 0.1 * 2 = 1.1
    sums.update(counts, np.array([0.0]))  # 0.99
    assert sums.pooled_count == 0
    sums.update(counts, np.array([400.0]))
    assert (sums.pooled_count, sums.pooled_squares) == (4, 400)


def test_unit_without_terms_stays_as_loud_or_as_quiet_as_it_was() -> None:
    sums = PooledSums(2)
    sums.update(np.array([4.0, 4.0]), np.array([3.0, 8.0]))  # quiet, and loud
    for _ in range(30):
        sums.update(np.zeros(2), np.zeros(2))
    assert sums.pooled_count == 0
    sums.update(np.array([4.0, 4.0]), np.array([5.0, 6.0]))
    assert (sums.pooled_count, sums.pooled_squares) == (4, 5)


def test_units_that_were_not_seen_read_the_claim() -> None:
    assert PooledSums(3).mean_square.tolist() == [1, 1, 1]
    assert PooledSums(3).pooled_log_e == pytest.approx(0.0)


def test_a_flag_stays_and_keeps_its_step() -> None:
    made, entries = simulate(30, noise=0.5)
    _, later = simulate(400, seed=1, noise=1.5)
    later["step"] += 30
    before, after = (
        monitor_of((made, entries)),
        monitor_of((made, np.concatenate([entries, later]))),
    )
    for check in NOISE:
        first, last = by_name(before)[check], by_name(after)[check]
        assert last.status == "violated"
        assert last.evidence["violated_at_step"] == first.evidence["violated_at_step"]
        assert last.log_e_value is not None
        assert last.log_e_value >= -math.log(0.1 * SIGNIFICANCE)


def test_the_limit_since_a_step_leaves_out_the_step_that_was_chosen_by_its_readings() -> None:
    rng, counts, runs = np.random.default_rng(5), np.array([8.0, 8.0, 8.0]), 200
    missed = 0
    for _ in range(runs):
        onset = Onset(3)
        for _ in range(10):
            onset.update(rng.chisquare(8, 3) / 8, quiet=False, flagged=False)
        onset.update(np.zeros(3), quiet=True, flagged=True)
        for _ in range(4):
            onset.update(0.25 * rng.chisquare(8, 3) / 8, quiet=True, flagged=True)
        quietest = int(np.argmin(list(onset.ratios().values())))
        missed += onset.upper(counts, [quietest]) < 0.5
    assert missed <= 0.01 * runs + 2


def test_the_limit_of_the_quietest_tensor_holds_though_it_is_chosen() -> None:
    rng, counts, runs = np.random.default_rng(6), np.full(10, 6.0), 200
    missed = 0
    for _ in range(runs):
        sums = PooledSums(10)
        for _ in range(5):
            sums.update(counts, 0.25 * rng.chisquare(6, 10))
        missed += sums.largest_upper([int(np.argmin(sums.mean_square))]) < 0.5
    assert missed <= 0.01 * runs + 2
