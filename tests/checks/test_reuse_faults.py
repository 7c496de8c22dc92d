from __future__ import annotations

import pytest
from named_faults import check, faults_of, names
from simulated_record import (
    OVERSIZE,
    monitor_of,
    simulate,
)

from lightning_audit.checks.check import Case
from lightning_audit.checks.noise import NOISE
from lightning_audit.checks.randomness import reuse_is_seen
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy


@pytest.mark.parametrize("lag", [5, 16])
def test_small_noise_that_comes_back_is_named_re_used_and_never_harmless(lag: int) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.7, reuse=f"lag {lag}"))
    found = [check for check in monitor.results() if check.status == "violated"]
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "reuse.lag"
    assert not loses_no_privacy(found, monitor)


def test_evidence_of_a_cycle_is_its_length() -> None:
    fault = faults_of(simulate(80, reuse="lag 5", data=0.1))[0]
    assert fault.evidence["lag"] == 5
    assert fault.evidence["difference_ratio"] == pytest.approx(0.1, abs=0.02)
    # A lag of 5 shows from the sixth step on.
    assert fault.place.step is not None
    assert 5 <= fault.place.step < 16


def test_noise_that_is_shared_in_a_step_is_not_taken_for_another_divisor() -> None:
    seen = check("batch_normalised")
    faults = faults_of(simulate(80, reuse="broadcast", data=0.1), seen)
    assert names(faults) == ["one_value_for_all_coordinates"]


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0.45, ["noise_too_small"]), (0.01, ["few_seeds", "noise_too_small"])],
)
def test_noise_that_is_too_small_is_not_taken_for_few_seeds(
    difference: float, expected: list[str]
) -> None:
    seen = check("reuse.recurrence", difference_ratio=difference)
    assert names(faults_of(simulate(80, noise=0.5), seen)) == expected


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [("", ["few_seeds"]), ("lag 3", ["noise_in_a_cycle"]), ("same", ["same_noise_at_every_step"])],
)
def test_a_pair_that_happens_to_lie_at_a_lag_is_not_taken_for_a_cycle(
    reuse: str, expected: list[str]
) -> None:
    """With few seeds some step soon repeats one of the last 32, which `reuse.lag` flags as well."""
    seen = [check("reuse.lag"), check("reuse.recurrence", difference_ratio=0.0)]
    assert names(faults_of(simulate(80, reuse=reuse), *seen)) == expected


@pytest.mark.parametrize(
    ("alike_at", "expected"),
    [(151, ["noise_missing_in_steps"]), (90, ["few_seeds", "noise_missing_in_steps"])],
)
def test_steps_without_noise_are_not_taken_for_few_seeds(
    alike_at: int, expected: list[str]
) -> None:
    found = [
        check("noise.step", violated_at_step=150),
        check("reuse.recurrence", violated_at_step=alike_at),
    ]
    assert names(likely_faults(found, monitor_of(simulate(20)), OVERSIZE)) == expected


def test_few_seeds_are_not_seen_in_noise_that_is_missing() -> None:
    seen = check("reuse.recurrence")
    assert names(faults_of(simulate(80, noise=0.0, data=0.05), seen))[0] == "no_noise"
    assert names(faults_of(simulate(80, noise=0.7), seen)) == ["few_seeds", "noise_too_small"]


@pytest.mark.parametrize(
    ("coefficient", "ratio", "difference", "expected"),
    [
        (0.8, 1.0, 0.45, "noise_correlated_over_steps"),
        (0.98, 1.0, 0.1, "same_noise_at_every_step"),
        # Beside data a coefficient is smaller than the part that comes back.
        (0.8, 1.15, 0.4, "same_noise_at_every_step"),
    ],
)
def test_a_part_of_earlier_noise_is_told_from_all_of_it(
    coefficient: float, ratio: float, difference: float, expected: str
) -> None:
    seen = [
        check("reuse.recurrence", difference_ratio=difference),
        check("reuse.forecast", lag=1, coefficient=coefficient, left=0.4, ratio=ratio),
    ]
    assert names(faults_of(simulate(80, reuse="same"), *seen))[0] == expected


@pytest.mark.parametrize(
    ("difference", "expected"), [(0.45, "noise_correlated_over_steps"), (0.01, "few_seeds")]
)
def test_steps_that_resemble_each_other_in_part_are_not_taken_for_few_seeds(
    difference: float, expected: str
) -> None:
    seen = [
        check("reuse.recurrence", difference_ratio=difference),
        check("reuse.forecast", lag=1, coefficient=0.5, left=0.7, ratio=1.0),
    ]
    assert names(faults_of(simulate(80), *seen)) == [expected]


@pytest.mark.parametrize(
    ("distances", "name", "sentence"),
    [
        ([40, 40, 40], "noise_in_a_cycle", "the same noise is added again after 40 steps"),
        ([40], "few_seeds", "the noise of an earlier step comes back"),
        ([40, 7, 40], "few_seeds", "the noise comes back at irregular steps"),
    ],
)
def test_noise_that_comes_back_is_named_by_the_distances_at_which_it_does(
    distances: list[int], name: str, sentence: str
) -> None:
    found = check("reuse.recurrence", difference_ratio=0.001, distances=distances)
    (fault,) = faults_of(simulate(80), found)
    assert fault.name == name
    assert sentence in fault.sentence


@pytest.mark.parametrize(("noise", "reuse", "seen"), [(0.4, "", False), (0.4, "same", True)])
def test_noise_that_is_small_without_the_data_is_not_taken_for_noise_that_comes_back(
    noise: float, reuse: str, seen: bool
) -> None:
    monitor = monitor_of(simulate(20, noise=noise, reuse=reuse))
    monitor.witness_noise.pooled = NOISE.test(1e-3)  # as under loud data that stay the same
    small = check("noise.whole", flagged=[], tensors=3, added_ratio=noise)
    lag = check("reuse.lag", violated_at_step=1)
    for others, expected in (([small], seen), ([], True)):
        case = Case({c.name: c for c in [lag, *others]}, monitor, OVERSIZE)
        assert reuse_is_seen(case, monitor, "reuse.lag") == expected
