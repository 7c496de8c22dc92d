"""Every fault of a privatize function is found by its name."""

from __future__ import annotations

import pytest
from privatizer import BATCH, SIGMA, Privatizer, audit


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("no clipping", "no_clipping"),
        ("per tensor", "clip_per_tensor"),
        ("norm misses biases", "norm_misses_a_tensor"),
        ("clips at twice", "clipping_norm_too_large"),
        ("scales up", "no_clipping"),
        ("noise not times C", "noise_too_small"),
        ("clip after sum", "clip_after_average"),
        ("no noise", "no_noise"),
        ("small noise", "noise_too_small"),
        ("no noise on biases", "noise_too_small_in_a_tensor"),
        ("noise divided by batch", "noise_divided_by_batch"),
        ("shared noise", "noise_shared"),
        ("seeded noise", "noise_repeated"),
        ("noise follows gradients", "noise_follows_gradients"),
    ],
)
def test_a_fault_is_found_by_name(fault: str, name: str) -> None:
    found = audit(Privatizer(fault))
    assert found.verdict.outcome == "VIOLATION"
    assert found.verdict.faults[0].name == name


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("clip after average", "clip_after_average"),
        ("divides by rows", "divides_by_realised_batch"),
        ("noise divided by batch", "noise_divided_by_batch"),
        ("no clipping", "no_clipping"),
        ("per tensor", "clip_per_tensor"),
    ],
)
def test_a_fault_of_a_mean_is_found_by_name(fault: str, name: str) -> None:
    found = audit(Privatizer(fault, divisor=BATCH), expected_batch_size=BATCH)
    assert found.verdict.outcome == "VIOLATION"
    assert found.verdict.faults[0].name == name


@pytest.mark.parametrize("factor", [0.9, 0.8])
def test_noise_somewhat_too_small_is_a_violation_and_no_question_of_units(factor: float) -> None:
    found = audit(Privatizer(sigma=factor * SIGMA))
    assert found.verdict.faults[0].name == "noise_too_small"
    assert found.noises["no gradient"].ratio == pytest.approx(factor, abs=0.04)


@pytest.mark.parametrize(("divisor", "stated"), [(1.0, 32.0), (32.0, None)])
def test_another_unit_is_no_violation_and_no_pass(divisor: float, stated: float | None) -> None:
    found = audit(Privatizer(divisor=divisor), expected_batch_size=stated)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert "sum and noise alike" in str(found)
    assert "the unit of the sum" in str(found)
