from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from named_faults import check, faults_of, names
from simulated_record import (
    CLIPPED_AFTER_AVERAGE,
    OVERSIZE,
    monitor_of,
    simulate,
)

from lightning_audit.verdict.diagnosis import likely_faults


def test_tensors_that_clipping_misses_are_named() -> None:
    shift = [1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]
    monitor = monitor_of(simulate(40, shift=shift))
    found = [c for c in monitor.results() if c.status == "violated"]
    fault = likely_faults(found, monitor, OVERSIZE)[0]
    assert fault.sentence.startswith(
        "clipping misses some tensors: `Dirac(fc.bias)`, `BlockPair(2 tensors)` passed"
    )


@pytest.mark.parametrize("seed", range(4))
def test_clipping_per_tensor_is_named_though_pairs_pass_with_more_as_well(seed: int) -> None:
    shift = [1.0, 4.0, 1.0, 2.0**0.5, 1.0, 1.0, 4.0, 1.0]
    monitor = monitor_of(simulate(30, seed=seed, shift=shift))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping per tensor:")


@pytest.mark.parametrize("seed", range(4))
def test_a_norm_that_is_too_large_everywhere_is_not_called_clipping_per_tensor(seed: int) -> None:
    monitor = monitor_of(simulate(30, seed=seed, shift=2.0))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping norm too large:")


def test_place_and_evidence_are_those_of_the_canaries_that_are_not_clipped() -> None:
    shift = [1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]
    fault = faults_of(simulate(40, shift=shift))[0]
    # A pair over two tensors does not tell which ones in its label.
    assert fault.place.parameters == ("fc.bias",)
    assert fault.evidence["unclipped_canaries"] == ["Dirac(fc.bias)", "BlockPair(2 tensors)"]
    assert fault.place.step is not None
    assert fault.place.step < 20


def test_evidence_of_a_clipping_fault_is_its_shift() -> None:
    fault = faults_of(simulate(150, shift=2.0))[0]
    assert fault.evidence["shift"] == pytest.approx(2.0, abs=0.2)
    assert 1.0 < fault.evidence["shift_lower"] < fault.evidence["shift"]


@pytest.mark.parametrize(("norm", "named"), [(0.6, True), (0.9, False), (2.0, False)])
def test_a_clipping_norm_that_comes_in_twice_is_named_by_its_size(norm: float, named: bool) -> None:
    made, entries = simulate(80, noise=0.6)
    entries["max_grad_norm"] = norm
    expected = ["noise_of_squared_norm"] * named + ["noise_too_small"]
    assert names(faults_of((made, entries))) == expected


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (4.0, ["record_counts_twice", "clipping_norm_too_large"]),
        (2.5, ["clipping_norm_too_large"]),
    ],
)
@pytest.mark.parametrize("label", ["Mislabeled(input)", "Blank(input, sampling_rate=0.25)"])
def test_an_input_canary_of_a_whole_number_of_norms_counts_so_many_times(
    shift: float, expected: list[str], label: str
) -> None:
    made, entries = simulate(300, shift=shift, sigma=0.5)
    made = dataclasses.replace(made, canaries=(label,) * len(made.canaries))
    faults = faults_of((made, entries))
    assert names(faults) == expected
    assert faults[0].sentence.startswith(
        "a record counts more than once: it adds about 4 times"
        if shift == 4.0
        else "clipping norm too large: a record adds 2."
    )


def one_step_in(every: int, shift: float = OVERSIZE, *, data: float = 0.0) -> tuple[Any, Any]:
    """A record whose canaries are clipped but for one step in so many."""
    made, entries = simulate(120, data=data)
    loose = entries["step"] % every == every - 1
    entries["readings"] += (shift - 1.0) * (entries["coins"] == 1) * loose[:, None]
    return made, entries


@pytest.mark.parametrize(("every", "shift"), [(16, OVERSIZE), (10, OVERSIZE), (4, 30.0)])
def test_clipping_that_is_missing_in_some_steps_is_named(every: int, shift: float) -> None:
    fault = faults_of(one_step_in(every, shift))[0]
    assert fault.name == "clipping_missing_at_times"
    assert fault.evidence["loud_steps"][0] == every - 1
    assert len(fault.evidence["loud_steps"]) <= 8


def test_clipping_that_is_missing_in_most_steps_is_no_matter_of_some() -> None:
    assert "clipping_missing_at_times" not in names(faults_of(simulate(40, shift=OVERSIZE)))
    made, entries = simulate(120)
    loose = entries["step"] % 4 != 0
    entries["readings"] += 99.0 * (entries["coins"] == 1) * loose[:, None]
    assert "clipping_missing_at_times" not in names(faults_of((made, entries)))


def test_loud_data_are_not_taken_for_steps_without_clipping() -> None:
    made, entries = simulate(120, shift=3.0)
    entries["readings"][::20] += 40.0  # whether a canary is in or not
    assert "clipping_missing_at_times" not in names(faults_of((made, entries)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("sum", "clip_after_average"),
        ("none", "no_clipping"),
        ("norm", "clipping_norm_too_large"),
        ("tensors", "clip_per_tensor"),
        ("some", "clipping_misses_tensors"),
        ("batch", "clipping_norm_of_the_batch"),
        ("", "one_record_moves_too_much"),
    ],
)
def test_what_replays_show_of_the_clipping_comes_before_no_bounded_sensitivity(
    kind: str, name: str
) -> None:
    found = [
        check("replay.sensitivity", findings=2),
        check("replay.clipping", findings=3, kind=kind),
    ]
    (fault,) = likely_faults(found, monitor_of(simulate(1)), OVERSIZE)
    assert fault.name == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("none", "no_clipping"),
        ("norm", "clipping_norm_too_large"),
        ("rows", "record_counts_twice"),
        ("parts", "parts_count_differently"),
        ("", "one_record_moves_too_much"),
    ],
)
def test_a_record_that_moves_too_much_has_the_name_that_replays_show(kind: str, name: str) -> None:
    found = [check("replay.sensitivity", findings=2, kind=kind)]
    faults = likely_faults(found, monitor_of(simulate(1)), OVERSIZE)
    assert names(faults) == [name]
    canary = check("sensitivity")
    faults = likely_faults([canary, *found], monitor_of(simulate(80, shift=2.0)), OVERSIZE)
    assert names(faults) == [name if kind and kind != "none" else "clipping_norm_too_large"]


def test_canaries_that_are_clipped_together_have_one_name_beside_their_replay() -> None:
    record = simulate(80, shift=CLIPPED_AFTER_AVERAGE)
    faults = faults_of(record, check("replay.clipping", findings=3, kind="sum"))
    assert names(faults) == ["clip_after_average"]


@pytest.mark.parametrize("steps", [4, 12])
def test_clipping_that_ends_at_a_step_is_not_called_missing_at_times(steps: int) -> None:
    (header, sound), (_, loud) = simulate(60), simulate(steps, seed=1, shift=OVERSIZE)
    entries = np.concatenate([sound, loud])
    entries["step"] = np.arange(len(entries))
    fault = faults_of((header, entries), check("sensitivity"))[0]
    assert fault.name == "clipping_missing_from_a_step_on"
    assert fault.sentence.startswith("clipping is missing from step 61 on")
    spared = np.concatenate([entries, sound[:10]])
    spared["step"] = np.arange(len(spared))
    again = faults_of((header, spared), check("sensitivity"))
    assert again[0].name == "clipping_missing_at_times"
