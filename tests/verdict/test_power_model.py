from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import SIGNIFICANCE, monitor_of, simulate, verdict_of, violated
from stages import staged

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.record.store import INJECTED, RecordHeader
from lightning_audit.verdict.judge import TARGET, PowerModel, Resolution

DEFAULT = Resolution()


def test_power_rises_with_the_steps_and_reaches_its_target_where_it_says() -> None:
    model = PowerModel(monitor_of(simulate(10)))
    reached = model.at(DEFAULT)["sensitivity"]
    assert reached.power < TARGET
    powers = [model.sensitivity(2.0, steps) for steps in (10, 20, 40, 80)]
    assert powers == sorted(powers)
    assert model.sensitivity(2.0, reached.steps_needed) >= TARGET
    assert model.sensitivity(2.0, reached.steps_needed - 1) < TARGET


def test_healthy_run_can_see_the_default_resolution_and_says_what_it_cannot_exclude() -> None:
    model = PowerModel(monitor_of(simulate(200)))
    assert min(power.power for power in model.at(DEFAULT).values()) >= TARGET
    ratio, shift = model.not_excluded()
    assert 0.8 < ratio < 1
    assert 1 < shift < 2
    assert model.noise(ratio) >= TARGET
    assert model.sensitivity(shift) >= TARGET


def test_too_few_steps_exclude_nothing() -> None:
    assert PowerModel(monitor_of(simulate(1))).not_excluded()[0] < 0.6
    made, entries = simulate(2)
    entries["canaries"] = 0
    assert PowerModel(monitor_of((made, entries))).not_excluded()[1] == math.inf


def test_data_that_dominate_leave_no_power_over_the_noise() -> None:
    model = PowerModel(monitor_of(simulate(100, data=5.0)))
    assert model.noise(0.8) < 1e-6
    assert model.at(DEFAULT)["noise"].steps_needed >= 10**6
    assert model.not_excluded()[0] < 0.2


def test_one_quiet_tensor_gives_power_although_the_others_are_loud() -> None:
    model = PowerModel(monitor_of(simulate(200, data=[5.0, 5.0, 0.0])))
    assert model.noise(0.8) >= TARGET


def test_canaries_at_every_fourth_step_need_four_times_the_steps() -> None:
    each = PowerModel(monitor_of(simulate(400))).at(DEFAULT)["sensitivity"].steps_needed
    fourth = PowerModel(monitor_of(simulate(400, every=4))).at(DEFAULT)["sensitivity"].steps_needed
    assert fourth == pytest.approx(4 * each, rel=0.25)


@pytest.mark.parametrize("noise", [0.8, 0.7])
@pytest.mark.parametrize("steps", [4, 8])
def test_power_over_the_noise_is_kept_by_the_checks(noise: float, steps: int) -> None:
    promised = PowerModel(monitor_of(simulate(steps))).noise(noise)
    runs = 60
    seen = np.mean(
        [bool(violated(monitor_of(simulate(steps, seed=s, noise=noise)))) for s in range(runs)]
    )
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


@pytest.mark.parametrize("steps", staged(quick=[20], heavy=[60]))
def test_power_over_the_shift_is_kept_by_the_checks(steps: int) -> None:
    promised = PowerModel(monitor_of(simulate(steps, sigma=2.0))).sensitivity(2.0)
    runs = 40
    runs_seen = [
        violated(monitor_of(simulate(steps, seed=s, sigma=2.0, shift=2.0))) for s in range(runs)
    ]
    seen = np.mean(["sensitivity" in found for found in runs_seen])
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


def half_loud(noise: float, seed: int, steps: int = 60, loudness: float = 30.0) -> AuditMonitor:
    """Twenty tensors with two witnesses each; data dominate in ten of them, and on canaries."""
    rng, tensors, each, k = np.random.default_rng(seed), 20, 2, 8
    made = RecordHeader(("Dirac",) * k, tuple(map(str, range(tensors))), (each,) * tensors, 4)
    reducer = WitnessReducer(Witnesses({j: np.arange(each) for j in range(tensors)}), lags=4)
    data = np.repeat(loudness * (np.arange(tensors) < tensors // 2), each)
    monitor = AuditMonitor(made, SIGNIFICANCE)
    for t in range(steps):
        entry = np.zeros((), dtype=made.dtype)
        coins = rng.integers(0, 2, k).astype(float)
        released = noise * rng.standard_normal(len(data)) + data * rng.standard_normal(len(data))
        fields = {
            "step": t,
            "canaries": INJECTED,
            "noise_multiplier": 1.0,
            "scale": 64.0,
            "coins": coins,
            "readings": coins + loudness * rng.standard_normal(k),
            **reducer.reduce(released, 1.0),
        }
        for name, value in fields.items():
            entry[name] = value
        monitor.update(entry)
    return monitor


@pytest.mark.heavy
def test_power_over_the_noise_is_kept_where_half_of_the_tensors_are_loud() -> None:
    promised = np.mean([PowerModel(half_loud(1.0, seed)).noise(0.8) for seed in range(3)])
    runs = 40
    seen = np.mean([bool(violated(half_loud(0.8, seed))) for seed in range(100, 100 + runs)])
    assert promised > 0.9
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


def test_coarser_resolution_passes_where_the_default_does_not() -> None:
    record = simulate(14)
    assert verdict_of(record).outcome == "INCONCLUSIVE"
    assert verdict_of(record, resolution=Resolution(0.5, 50.0)).outcome == "PASS"
