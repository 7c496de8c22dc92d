"""Every fault of a privatize function is found by its name."""

from __future__ import annotations

import pytest
import torch
from clippings import FAULTY, noisy
from privatizer import BATCH, SIGMA, Privatizer, Unrepeatable, audit
from stages import staged

FAULTS = [
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
]

#: Names of faulty clippings that a rule knows; the others' trial tells.
NAMES = {
    "by the mean norm of the batch": "clip_after_average",
    "two together, their mean": "clip_after_average",
    "micro-batches, their mean": "clip_after_average",
    "the mean of all": "clip_after_average",
    "the sum of all": "clip_after_average",
    "per tensor": "clip_per_tensor",
    "norm of the first half": "norm_misses_a_tensor",
    "to a norm 5 % too large": "clipping_norm_too_large",
}


@pytest.mark.parametrize("function", staged(quick=[Privatizer], heavy=[Unrepeatable]))
@pytest.mark.parametrize(("fault", "name"), FAULTS)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_a_fault_is_found_by_name_whether_or_not_the_noise_repeats(
    function: type[Privatizer], fault: str, name: str
) -> None:
    found = audit(function(fault))
    assert found.verdict.outcome == "VIOLATION"
    assert found.verdict.faults[0].name == name


@pytest.mark.parametrize("fault", FAULTY)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_a_faulty_clipping_is_found_and_named_by_a_gradient_that_shows_it(fault: str) -> None:
    torch.manual_seed(0)
    # More calls tell a norm that is somewhat too large from another unit.
    found = audit(noisy(FAULTY[fault]), calls=120 if "too large" in fault else 20).verdict
    assert found.outcome == "VIOLATION"
    assert found.faults[0].name == NAMES.get(fault, "clipping_misses_gradients")
    assert ("a single gradient moves" in found.faults[0].sentence) == (fault not in NAMES)


def test_a_fault_by_its_trial_has_the_size_by_two_digits() -> None:
    torch.manual_seed(0)
    found = audit(noisy(FAULTY["spikes not clipped"])).verdict.faults[0]
    assert 'moves the release by 30 times C ("in one entry, norm 30 C"; 2 of' in found.sentence
    assert {f"{size:.2g}" for size in found.evidence.values()} == {"30", "1.5"}


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
