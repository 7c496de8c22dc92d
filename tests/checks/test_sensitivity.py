from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from simulated_record import (
    CLIPPED_AFTER_AVERAGE,
    LABELS,
    OVERSIZE,
    by_name,
    header,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.clipping import SensitivityCheck
from lightning_audit.record.store import restore, snapshot

SPREAD = [label.startswith("Spread") for label in LABELS]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_canary_within_the_clipping_norm_is_not_flagged(seed: int, shift: float) -> None:
    assert violated(monitor_of(simulate(150, seed=seed, shift=shift, data=0.1))) == set()


def test_double_clipping_norm_is_flagged_and_named() -> None:
    record = simulate(150, shift=2.0)
    assert "sensitivity" in violated(monitor_of(record))
    verdict = verdict_of(record)
    assert verdict.fault.startswith("clipping norm too large: gradients are clipped at ")
    advice = by_name(monitor_of(record))["sensitivity"].advice
    assert advice.startswith("clip every per-sample gradient")
    shift = float(verdict.fault.split(" at ")[1].split(" times")[0])
    assert shift == pytest.approx(2.0, abs=0.2)


def test_clipping_after_averaging_is_named() -> None:
    record = simulate(40, shift=CLIPPED_AFTER_AVERAGE)
    assert monitor_of(record).sensitivity.sum_is_clipped
    assert verdict_of(record).fault.startswith("clipping after averaging")


def test_missing_clipping_is_named_and_not_taken_for_clipping_after_averaging() -> None:
    record = simulate(40, shift=OVERSIZE)
    assert not monitor_of(record).sensitivity.sum_is_clipped
    assert verdict_of(record).fault == "no clipping: a canary passes with its full norm"


def check_of_norms(numbers: Sequence[int], norms: Sequence[float], scale: float) -> bool:
    """Whether the sum counts as clipped, from the canaries in and the norm of their readings."""
    made = header()
    check = SensitivityCheck(made, 1e-3)
    for number, norm in zip(numbers, norms, strict=True):
        entry = np.zeros((), dtype=made.dtype)
        entry["scale"], entry["noise_multiplier"] = scale, 1.0
        entry["coins"][:number] = 1
        entry["readings"][:number] = norm / math.sqrt(number)
        check.update(entry[()])
    return check.sum_is_clipped


def clipped_share(norm_of_one: Callable[[int], float], steps: int, runs: int = 200) -> float:
    rng, clipped = np.random.default_rng(0), 0
    for _ in range(runs):
        numbers = [int(n) for n in rng.binomial(len(LABELS), 0.5, steps) if n]
        norms = [float(np.linalg.norm(norm_of_one(n) + rng.standard_normal(n))) for n in numbers]
        clipped += check_of_norms(numbers, norms, scale=16.0)
    return clipped / runs


@pytest.mark.parametrize("numbers", [[2, 4, 6, 3, 5, 4], [4, 5, 3, 4], [1, 7, 4, 4, 3, 5, 2, 6]])
def test_clipping_one_by_one_is_not_taken_for_that_of_the_sum(numbers: list[int]) -> None:
    # Four canaries in on average: their norms are those of a clipped sum on average, too.
    norms = [8.0 * math.sqrt(n) for n in numbers]
    assert np.mean(norms) == pytest.approx(16.0, rel=0.06)
    assert not check_of_norms(numbers, norms, scale=16.0)
    assert clipped_share(lambda _: 8.0, steps=12) <= 0.01


def test_clipping_of_the_sum_is_seen_through_the_noise() -> None:
    assert check_of_norms([3, 5, 4, 4], [17.87, 16.24, 13.3, 15.88], scale=16.0)
    assert check_of_norms([3, 5, 4, 4], [16.0] * 4, scale=16.0)
    assert clipped_share(lambda n: 16.0 / math.sqrt(n), steps=12) >= 0.97
    assert clipped_share(lambda n: 16.0 / math.sqrt(n), steps=4) >= 0.9


def test_clipping_of_each_tensor_is_named() -> None:
    # The gradient has three tensors: one that is spread over them passes with sqrt(3).
    shift = np.where(SPREAD, math.sqrt(3), 1.0)
    record = simulate(600, shift=shift, sigma=0.5)
    assert verdict_of(record).fault.startswith("clipping per tensor")


@pytest.mark.parametrize("seed", range(3))
def test_what_one_kind_of_canary_shows_is_not_drowned_by_the_others(seed: int) -> None:
    # Clipping of each of six tensors: two canaries of eight pass with sqrt(6).
    monitor = monitor_of(simulate(90, seed=seed, shift=np.where(SPREAD, math.sqrt(6), 1.0)))
    assert "sensitivity" in violated(monitor)
    assert monitor.sensitivity.shift < 1.6


def test_a_restored_check_goes_on_as_if_it_had_not_stopped() -> None:
    made, entries = simulate(40, shift=1.5)
    whole, part = SensitivityCheck(made, 1e-3), SensitivityCheck(made, 1e-3)
    for entry in entries[:20]:
        whole.update(entry)
        part.update(entry)
    again = restore(snapshot(part))
    for entry in entries[20:]:
        whole.update(entry)
        again.update(entry)
    assert again.results() == whole.results()


def test_larger_clipping_norm_of_all_tensors_is_not_taken_for_clipping_of_each() -> None:
    fault = verdict_of(simulate(600, shift=1.7, sigma=0.5)).fault
    assert fault.startswith("clipping norm too large")


@pytest.mark.parametrize("fault", [OVERSIZE, CLIPPED_AFTER_AVERAGE])
def test_gross_clipping_faults_tell_the_audit_to_stop_injecting_within_a_dozen_steps(
    fault: float | str,
) -> None:
    monitor = monitor_of(simulate(40, shift=fault))
    assert monitor.clipping_is_broken
    assert by_name(monitor)["sensitivity"].evidence["violated_at_step"] < 12


def test_shift_and_its_lower_limit_are_estimated() -> None:
    check = monitor_of(simulate(800, shift=1.0, sigma=1.0)).sensitivity
    error = 2 / math.sqrt(8 * 800)
    assert check.shift == pytest.approx(1.0, abs=4 * error)
    assert check.shift_lower == pytest.approx(check.shift - 1.645 * error, abs=0.2 * error)
    assert check.residual_std == pytest.approx(1.0, abs=0.05)
    assert check.observations == 8 * 800
    assert check.shifts() == pytest.approx(np.ones(8), abs=0.35)


@pytest.mark.heavy
def test_lower_limit_of_the_shift_errs_in_one_of_twenty_runs() -> None:
    # 100 runs; the limit of the binomial is three standard errors.
    misses = sum(monitor_of(simulate(25, seed=s)).sensitivity.shift_lower > 1 for s in range(100))
    assert misses <= 100 * 0.05 + 3 * math.sqrt(100 * 0.05 * 0.95)


def test_a_short_canary_that_was_in_alone_does_not_hide_that_the_sum_is_clipped() -> None:
    check, made, rng = SensitivityCheck(header(), 1e-3), header(), np.random.default_rng(0)
    for step, number in enumerate((6, 1, 5, 3)):
        entry = np.zeros((), dtype=made.dtype)
        entry["scale"], entry["noise_multiplier"] = 16.0, 1.0
        entry["coins"][:number] = 1
        norm = 3.7 if step == 1 else 16.0 + 0.3 * rng.normal()
        entry["readings"][:number] = norm / math.sqrt(number)
        check.update(entry[()])
    assert check.sum_is_clipped


def test_nothing_is_said_before_anything_was_seen() -> None:
    check = SensitivityCheck(header(), 1e-3)
    assert check.shift_lower == -math.inf
    assert math.isnan(check.residual_std)
    assert np.isnan(check.shifts()).all()
    assert not check.sum_is_clipped
    assert check.results()[0].status == "not_run"


def test_changing_noise_multipliers_do_not_alarm() -> None:
    for sigma in (np.geomspace(3, 0.5, 150), np.geomspace(0.5, 3, 150)):
        assert "sensitivity" not in violated(monitor_of(simulate(150, sigma=sigma)))


# ------------------------------------------------------------------ parts of a split batch
