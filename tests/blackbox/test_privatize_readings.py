"""What is read off a privatize function, by kind of gradient and of batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from privatizer import BATCH, NORM, SHAPES, SIGMA, Privatizer, Unrepeatable, audit

from lightning_audit.blackbox.privatize import probes, read_noises, read_shifts
from lightning_audit.blackbox.probes import Released, direction


def test_the_calls_of_an_audit_are_counted_and_fewer_where_a_fault_is_plain() -> None:
    correct, faulty = audit(Unrepeatable()), audit(Unrepeatable("no clipping"))
    assert correct.calls == 8 * 121 + 2  # two to see that no seed repeats it
    assert faulty.calls < correct.calls
    assert math.isfinite(correct.detectable_shift)


def readings(fault: str, shapes=SHAPES, batches: str = "poisson"):
    called = Released(Privatizer(fault), shapes, False, NORM, 1.0, "torch")
    rng, plan = np.random.default_rng(0), (60, 6.0)
    along = direction(called.sizes, rng)
    noises = read_noises(called, along, SIGMA, BATCH, batches, *plan)
    return noises, read_shifts(called, probes(along, called.sizes, BATCH, 12), SIGMA, *plan, rng)


def test_each_kind_of_batch_and_of_gradient_is_read_where_it_is_there() -> None:
    noises, shifts = readings("", batches="fixed")
    assert list(noises) == ["no gradient", "an oversized gradient"]
    assert list(readings("")[0]) == [*noises, "twice as many gradients"]
    assert [reading.gradients for reading in shifts.values()] == [1, 12, 12, 1, 1]
    assert list(shifts)[-1] == "in one tensor"
    assert "in one tensor" not in readings("", shapes=[(4, 3)])[1]


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ("no clipping", {"one oversized", "oversized", "against all others", "in one tensor"}),
        ("norm misses biases", {"in one tensor", "oversized"}),
        ("clip after sum", {"against all others"}),
    ],
)
def test_a_clipping_fault_shows_in_its_kinds_of_gradients(fault: str, shown: set[str]) -> None:
    shifts = readings(fault)[1]
    assert {name for name, reading in shifts.items() if reading.log_e >= 6.0} == shown


def test_noise_that_follows_gradients_is_small_beside_large_ones_alone() -> None:
    noises, _ = readings("noise follows gradients")
    found = {name: noise.ratio for name, noise in noises.items()}
    expected = {"no gradient": 1, "an oversized gradient": 0.5, "twice as many gradients": 1}
    assert found == pytest.approx(expected, abs=0.1)
