import math
from typing import Any

import numpy as np
import pytest
from simulated_record import (
    OVERSIZE,
    TENSORS,
    by_name,
    check,
    faults_of,
    monitor_of,
    names,
    simulate,
    violated,
)

from lightning_audit.record.store import RecordHeader
from lightning_audit.verdict.diagnosis import likely_faults


def test_place_and_evidence_are_those_of_the_tensors_that_lack_noise():
    record = simulate(80, noise=[1.0, 0.4, 1.0])
    fault = faults_of(record)[0]
    assert fault.place.parameters == (TENSORS[1],)
    assert fault.finding == "noise.tensor"
    assert (
        fault.place.step == by_name(monitor_of(record))["noise.tensor"].evidence["violated_at_step"]
    )
    assert fault.evidence["noise_ratio_upper"] == {TENSORS[1]: pytest.approx(0.42, abs=0.02)}
    assert fault.evidence["median_of_the_others"] == pytest.approx(1.0, abs=0.05)


def test_noise_that_is_small_on_the_canaries_alone_is_measured_there():
    record = simulate(200, noise=1.0, canary_noise=0.5)
    assert violated(monitor_of(record)) >= {"noise.canary"}
    fault = next(f for f in faults_of(record) if f.name == "noise_too_small")
    assert fault.finding == "noise.canary"
    assert 0.5 < fault.evidence["noise_ratio_upper"] < 0.65  # along the quietest of eight


@pytest.mark.parametrize("processes", [2, 4])
def test_noise_averaged_over_processes_is_named_where_there_are_some(processes):
    record = simulate(80, noise=1 / math.sqrt(processes))
    several = faults_of(record, processes=processes)
    assert names(several) == ["noise_averaged_over_processes", "noise_too_small"]
    assert several[0].evidence["processes"] == processes
    assert f"the number of processes, {processes}" in several[0].sentence
    assert names(faults_of(record)) == ["noise_too_small"]
    assert names(faults_of(record, processes=16))[0] == "noise_too_small"


def test_a_noise_multiplier_that_comes_in_twice_is_named_by_its_size():
    faults = faults_of(simulate(80, sigma=0.6, noise=0.6))
    assert names(faults) == ["noise_of_squared_multiplier", "noise_too_small"]
    assert faults[0].evidence["noise_multiplier"] == 0.6
    assert names(faults_of(simulate(80, sigma=0.9, noise=0.6))) == ["noise_too_small"]


@pytest.mark.parametrize("fault", [{"noise": 0.5}, {"reuse": "lag 5"}, {"noise": [1, 1, 0]}])
def test_the_shape_of_small_or_re_used_noise_is_no_fault_of_its_own(fault):
    faults = faults_of(simulate(80, **fault), check("noise.shape"))
    assert "noise_of_another_shape" not in names(faults)


@pytest.mark.parametrize("noise", [0.3, 0.5, 0.7])
def test_the_first_steps_are_not_said_to_have_less_noise_than_others(noise):
    record = simulate(3, noise=noise)
    among_right = [check("noise.step", violated_at_step=39)]
    faults = likely_faults(among_right, monitor_of(simulate(40)), OVERSIZE)
    assert names(faults) == ["noise_missing_in_steps"]
    assert names(faults_of(record, check("noise.step", violated_at_step=0)))[0] == "noise_too_small"


def test_few_readings_of_the_others_do_not_show_that_they_are_right():
    """Half of the noise everywhere, which data hide in the majority of the tensors."""
    found = check("noise.tensor", flagged=[TENSORS[1]], violated_at_step=1)

    def first(steps: int, data: float) -> str:
        monitor = monitor_of(simulate(steps, noise=[0.5, 0.3, 0.5], data=[data, 0.0, data]))
        monitor.witness_noise.flagged_tensors = lambda: [TENSORS[1]]
        others = np.median(monitor.witness_noise.ratios()[[0, 2]])
        assert 0.95 < others < 1.08  # as if it were right
        return names(likely_faults([found], monitor, OVERSIZE))[0]

    assert first(2, 0.98) == "noise_too_small"
    assert first(80, 0.87) == "noise_too_small_in_tensors"


def test_half_the_noise_under_loud_data_is_told_by_what_was_added_to_the_sums():
    monitor = monitor_of(simulate(2, data=5.0))
    whole = {"flagged": TENSORS[:2], "tensors": 3, "smallest_ratio": 0.38, "added_ratio": 0.4}
    whole["noise_ratio"] = [0.37, 0.42]
    fault = likely_faults([check("noise.whole", **whole)], monitor, OVERSIZE)[0]
    assert fault.name == "noise_too_small"
    assert fault.sentence.startswith(
        "noise scale too small: the noise is 0.37 to 0.42 times the stated (99 % interval"
    )
    assert fault.evidence["noise_ratio"] == [0.37, 0.42]
    one = whole | {"flagged": TENSORS[:1]}
    (fault,) = likely_faults([check("noise.whole", **one)], monitor, OVERSIZE)
    assert fault.name == "noise_too_small_over_a_tensor"


@pytest.mark.parametrize(
    ("others", "name"),
    [
        (0.8, "noise_too_small"),
        (1.0, "noise_too_small_over_a_tensor"),
        (None, "noise_too_small_over_a_tensor"),
    ],
)
def test_small_tensors_that_read_as_the_large_one_tell(others, name):
    seen = {"flagged": TENSORS[:1], "tensors": 3, "smallest_ratio": 0.74, "added_ratio": 0.76}
    seen |= {"flagged_ratio": 0.75, "ratio_of_the_others": others}
    (fault,) = likely_faults([check("noise.whole", **seen)], monitor_of(simulate(1)), OVERSIZE)
    assert fault.name == name


def _one_after_the_other(*records: tuple[RecordHeader, np.ndarray]) -> Any:
    """A record whose mechanism changes."""
    entries = np.concatenate([entries for _, entries in records])
    entries["step"] = np.arange(len(entries))
    return records[0][0], entries


@pytest.mark.parametrize("noise", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("steps", [8, 60])
def test_noise_that_is_too_small_from_a_step_on_is_named_so(noise, steps):
    faults = faults_of(
        _one_after_the_other(simulate(40), simulate(steps, seed=1, noise=noise)),
        check("batch_normalised", divisor="batch"),
    )
    assert faults[0].name == "noise_too_small_from_a_step_on"
    assert noise <= faults[0].evidence["noise_ratio_upper_since"] <= max(1.35 * noise, 0.15)
    assert 40 <= faults[0].place.step <= 46
    assert f"from step {faults[0].place.step + 1} on" in faults[0].sentence
    assert faults[0].place.parameters == ()


def test_noise_of_a_tensor_that_ends_names_the_tensor():
    record = _one_after_the_other(simulate(40), simulate(20, seed=1, noise=[1.0, 0.1, 1.0]))
    fault = faults_of(record)[0]
    assert fault.name == "noise_too_small_from_a_step_on"
    assert fault.place.parameters == (TENSORS[1],)
    assert f"noise of `{TENSORS[1]}` too small from step 41 on" in fault.sentence


def test_noise_that_is_missing_now_and_then_or_always_does_not_begin_at_a_step():
    sound, quiet = simulate(10), simulate(1, seed=1, noise=0.0)
    now_and_then = _one_after_the_other(*[sound, quiet] * 4, simulate(3, seed=2))
    assert names(faults_of(now_and_then))[0] == "noise_missing_in_steps"
    # Two steps do not tell whether the others will have noise.
    assert names(faults_of(_one_after_the_other(simulate(40), quiet)))[0] == (
        "noise_missing_in_steps"
    )
    assert names(faults_of(simulate(80, noise=0.5)))[0] == "noise_too_small"
