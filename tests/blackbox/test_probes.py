"""Calls of a privatize function: units, refusals, and what is read off them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from privatizer import BATCH, NORM, SHAPES, SIGMA, Privatizer

from lightning_audit.blackbox.mechanism import MechanismError
from lightning_audit.blackbox.probes import (
    NoiseReading,
    Probe,
    Released,
    ShiftReading,
    direction,
    read_noise,
    read_shift,
)


def released(privatize, divisor: float = 1.0) -> Released:
    return Released(privatize, SHAPES, False, NORM, divisor, "torch")


@pytest.mark.parametrize(
    ("privatize", "message"),
    [
        (
            lambda g: 1 / 0,
            r"privatize\(per_sample_grads\) raised ZeroDivisionError: .* \(call 1, 3",
        ),
        (lambda g: g, r"returned shapes \[\(32, 4, 3\), \(32, 5\)\], must be \[\(4, 3\), \(5,\)\]"),
        (lambda g: [x.sum(0) / 0 for x in g], "returned numbers that are not finite .* norms 0 to"),
        (
            lambda g: [x.mean(0) + torch.randn(x.shape[1:]) / (x.norm() < 5) for x in g],
            "not finite .* 32 gradients of norms 0 to 2e.03",
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_told(privatize, message: str) -> None:
    zeros, large = np.zeros((32, 17)), np.zeros((32, 17))
    large[-1, 0] = 1000.0
    called = released(privatize)
    with pytest.raises(MechanismError, match=message):
        list(map(called, (zeros, large)))


def test_what_is_released_is_in_clipping_norms_whatever_the_divisor_and_the_shapes() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 17))
    assert released(lambda grads: [g.sum(0).bfloat16() for g in grads])(rows).dtype == np.float64
    for divisor in (1.0, 6.0):
        found = released(lambda grads, by=divisor: [g.sum(0) / by for g in grads], divisor)
        assert found(rows) == pytest.approx(rows.sum(axis=0), rel=1e-5, abs=1e-6)
        assert found.sizes == [12, 5]
        assert found.calls == 1


def read(fault: str, calls: int = 100) -> tuple[ShiftReading, NoiseReading]:
    """The shift of one gradient of a thousand times C, and the noise beside no gradient."""
    called = released(Privatizer(fault))
    along, zeros = direction(called.sizes, np.random.default_rng(1)), np.zeros((BATCH, 17))
    probe = Probe([np.vstack([zeros[1:], 1e3 * along])], zeros, along)
    shift = read_shift(called, probe, SIGMA, calls, math.inf, np.random.default_rng(2))
    return shift, read_noise(called, zeros, SIGMA, calls, math.inf)


def test_correct_clipping_and_noise_read_the_claim() -> None:
    shift, noise = read("", calls=400)
    assert shift.shift == pytest.approx(1, abs=4 * 2 * SIGMA / math.sqrt(400))
    assert (shift.gradients, shift.calls, noise.calls) == (1, 401, 401)
    assert shift.log_e < 5
    assert noise.ratio == pytest.approx(1, abs=4 / math.sqrt(2 * 400 * 17))
    assert noise.tensors == pytest.approx([1, 1], abs=4 / math.sqrt(2 * 400 * 5))
    assert (noise.ratio_repeated, noise.ratio_shared) == pytest.approx((1, 1), abs=0.1)
    assert max(noise.log_e, noise.log_e_repeated, noise.log_e_shared) < 5


def test_each_reading_shows_its_own_fault() -> None:
    shift, noise = read("no clipping")
    assert shift.shift == pytest.approx(1000, rel=0.01)
    assert shift.log_e > 20 > 5 > noise.log_e
    noise = read("no noise on biases")[1]
    assert noise.tensors == pytest.approx([1, 0], abs=0.1)
    assert noise.log_e > 20
    seeded, shared = (read(fault)[1] for fault in ("seeded noise", "shared noise"))
    assert seeded.ratio_repeated == 0 < seeded.ratio
    assert shared.ratio_shared < 0.4 < shared.ratio
    assert min(seeded.log_e_repeated, shared.log_e_shared) > 20


def test_the_error_of_the_noise_is_that_of_a_standard_deviation_of_as_many_numbers() -> None:
    assert read("", calls=100)[1].error == pytest.approx(1 / math.sqrt(2 * 100 * 17))


def test_reading_stops_at_its_goal() -> None:
    called = released(Privatizer("no noise"))
    assert read_noise(called, np.zeros((4, 17)), SIGMA, 300, 5.0).calls == 11


def test_a_direction_has_one_length_in_every_tensor() -> None:
    along = direction([12, 5, 1], np.random.default_rng(0))
    parts = np.split(along, [12, 17])
    assert [np.linalg.norm(part) for part in parts] == pytest.approx([3**-0.5] * 3)
