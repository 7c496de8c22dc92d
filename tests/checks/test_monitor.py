from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from simulated_record import (
    SIGNIFICANCE,
    by_name,
    header,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.accounting.history import Phase
from lightning_audit.checks.monitor import AuditMonitor, replay
from lightning_audit.record.store import (
    DROPPED,
    INJECTED,
    RECORD_NAME,
    ObservationStore,
    read_observations,
)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_record_violates_nothing(seed: int) -> None:
    monitor = monitor_of(simulate(100, seed=seed, data=0.2))
    assert violated(monitor) == set()
    assert all(check.status == "ok" for check in monitor.results())
    assert 0 <= monitor.log_e_value < -math.log(SIGNIFICANCE)


@pytest.mark.parametrize("fault", [{}, {"noise": 0.5}, {"shift": 3.0}, {"reuse": "same"}])
def test_replay_gives_the_numbers_of_the_run_to_the_last_bit(
    fault: dict[str, object], tmp_path: Path
) -> None:
    made, entries = simulate(80, sigma=np.geomspace(1.2, 0.8, 80), data=0.1, **fault)  # type: ignore[arg-type]
    live = AuditMonitor(made, SIGNIFICANCE)
    store = ObservationStore(tmp_path, made)
    for entry in entries:
        live.update(entry)
        live.results()  # looking changes nothing
        store.append(entry)
    store.close(archive=False)
    again = replay(*read_observations(tmp_path / RECORD_NAME), SIGNIFICANCE)
    assert again.results() == live.results()
    assert again.history == live.history
    assert again.log_e_value == live.log_e_value
    assert again.leakage.ratio_lower(0.05) == live.leakage.ratio_lower(0.05)


@pytest.mark.parametrize("column", ["readings", "tensor_squares"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_readings_are_counted_and_never_end_in_a_pass(column: str, value: float) -> None:
    made, entries = simulate(100)
    assert verdict_of((made, entries)).outcome == "PASS"
    entries[column][40:42, 0] = value
    monitor = monitor_of((made, entries))
    assert monitor.lost_steps == 2
    assert monitor.canary_steps == 98
    assert violated(monitor) == set()
    verdict = verdict_of((made, entries))
    assert verdict.outcome == "INCONCLUSIVE"
    assert "2 of 100 steps were lost" in verdict.pass_blockers[0]


def test_one_lost_step_in_a_hundred_is_no_obstacle() -> None:
    made, entries = simulate(100)
    entries["readings"][40, 0] = np.nan
    assert verdict_of((made, entries)).outcome == "PASS"


def test_faults_are_flagged_although_steps_are_lost() -> None:
    made, entries = simulate(100, noise=0.5)
    entries["readings"][::5] = np.nan
    assert verdict_of((made, entries)).outcome == "VIOLATION"


def test_dropped_canaries_are_counted_but_their_witnesses_are_read() -> None:
    record = simulate(100, dropped=range(10, 15))
    monitor = monitor_of(record)
    assert (monitor.lost_steps, monitor.canary_steps) == (5, 95)
    assert monitor.witness_noise.sums.count.tolist() == [3200] * 3
    verdict = verdict_of(record)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "5 of 100 steps were lost to failed injections" in verdict.pass_blockers[0]


def test_audit_whose_canaries_were_all_dropped_is_inconclusive() -> None:
    verdict = verdict_of(simulate(50, dropped=range(50)))
    assert verdict.outcome == "INCONCLUSIVE"
    assert "no canary was observed" in verdict.pass_blockers


def test_steps_without_planned_canaries_are_not_lost() -> None:
    monitor = monitor_of(simulate(100, every=4))
    assert (monitor.lost_steps, monitor.canary_steps, monitor.steps) == (0, 25, 100)
    assert monitor.sensitivity.observations == 200


def test_coins_of_dropped_and_unplanned_steps_do_not_enter_the_tests() -> None:
    made, entries = simulate(60)
    spoiled = entries.copy()
    spoiled["canaries"][30] = DROPPED
    clean = spoiled.copy()
    spoiled["readings"][30], spoiled["coins"][30] = 1e6, 1
    ours, theirs = (by_name(monitor_of((made, e)))["sensitivity"] for e in (spoiled, clean))
    assert ours == theirs
    assert entries["canaries"][30] == INJECTED


def test_steps_without_noise_are_in_the_history_and_in_no_test() -> None:
    made, entries = simulate(50)
    entries["noise_multiplier"][10:] = 0.0
    monitor = monitor_of((made, entries))
    assert monitor.history == (Phase(1.0, 0.01, 10), Phase(0.0, 0.01, 40))
    assert (monitor.steps, monitor.canary_steps, monitor.lost_steps) == (50, 10, 0)


def test_pass_is_not_given_for_tests_of_a_few_steps_among_many_without_noise() -> None:
    made, entries = simulate(2000)
    entries["noise_multiplier"][60:] = 0.0
    assert verdict_of((made, entries)).outcome != "PASS"


def test_nothing_observed_is_not_ok() -> None:
    statuses = {c.status for c in AuditMonitor(header(), SIGNIFICANCE).results()}
    assert statuses == {"not_run"}
