"""Crafted gradients beside equal noise: what is right is never accused, whatever its noise."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from clippings import CORRECT, Sum, clipped, clipped_sum, noisy, of_integers, on_a_lattice
from privatizer import BATCH, NORM, SHAPES, SIGMA, Privatizer, audit
from stages import staged

from lightning_audit.blackbox.mechanism import MechanismError
from lightning_audit.blackbox.privatize import audit_privatize, probes
from lightning_audit.blackbox.probes import (
    ExactReading,
    FrozenNoise,
    Released,
    direction,
    read_exactly,
    read_noise,
)

#: Correct functions whose noise cannot be held fixed.
UNREPEATABLE = {"the operating system"}
ROWS, OTHERS = np.ones((4, 3)), np.zeros((3, 3))
MODULE_GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("seed", staged(quick=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.heavy_one_in(4)
@pytest.mark.one_in(3)
def test_a_correct_function_passes(name, seed):
    torch.manual_seed(seed)
    make, stated = CORRECT[name]
    found = audit(make(seed), calls=120 if name in UNREPEATABLE else 20, seed=seed, **stated)
    assert found.passed
    assert bool(found.exact.reason) == (name in UNREPEATABLE)
    assert bool(found.exact.sizes) != (name in UNREPEATABLE)


def reading(privatize: Any, batches: str = "poisson", divisor: float = 1.0) -> ExactReading:
    called = Released(privatize, SHAPES, False, NORM, divisor, "torch")
    along = direction(called.sizes, np.random.default_rng(0))
    plan = probes(along, called.sizes, BATCH, 12)
    return read_exactly(called, plan, along, BATCH, batches, calls=80, seed=0)[0]


def test_sizes_are_exact():
    found = reading(noisy(lambda rows: 1.05 * clipped_sum(rows)))
    assert found.sizes["norm 3 C, first"] == pytest.approx(1.05, abs=1e-4)
    assert found.sizes["norm 0.5 C, in the middle"] == pytest.approx(0.525, abs=1e-4)
    assert (found.alike, found.limit) == (True, 1.002)
    assert all(found.sizes[name] > 1.002 for name in found.found)


@pytest.mark.heavy
@pytest.mark.heavy_one_in(6)
@pytest.mark.parametrize("make", [on_a_lattice, of_integers])
@pytest.mark.parametrize("step", [0.02, 0.1, 0.3])
def test_on_a_lattice_steps_are_no_shift_and_one_twice_too_large_is_found(make, step):
    torch.manual_seed(0)
    np.random.seed(0)
    right = make(step * NORM)
    found = reading(right)
    assert (found.limit >= 1.15, found.found) == (True, [])
    assert reading(lambda grads: [2.0 * part for part in right(grads)]).found


@pytest.mark.heavy
@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_low_precision_a_shift_half_too_large_is_found(dtype, factor):
    torch.manual_seed(0)

    def privatize(grads: torch.Tensor) -> torch.Tensor:
        kept = (factor * clipped(grads)).to(dtype)
        return kept.sum(0) + (SIGMA * NORM * torch.randn(300)).to(dtype)

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "calls": 20}
    found = audit_privatize(privatize, (300,), **stated, batch_size=64)
    assert found.verdict.outcome == ("PASS" if factor == 1.0 else "VIOLATION")


def test_on_a_lattice_a_gradient_of_one_number_is_no_shift_of_a_step():
    """Jumps of 1.1 C with a probability of .91, as often as they come."""

    def privatize(grads: np.ndarray) -> np.ndarray:
        return 1.1 * np.round((grads.clip(-1, 1).sum(0) + 3.0 * np.random.normal(size=1)) / 1.1)

    for seed in range(2):
        called = Released(privatize, [(1,)], True, 1.0, 1.0, "numpy")
        plan = probes(np.ones(1), [1], BATCH, 12)
        found, shifts = read_exactly(called, plan, np.ones(1), BATCH, "poisson", 80, seed)
        assert not found.found
        assert max(shift.log_e for shift in shifts.values()) == 0.0


def now_and_then(period: int) -> Sum:
    """Clips at all calls but some."""
    calls = 0

    def total(rows: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return rows.sum(0) if calls % period == 0 else clipped_sum(rows)

    return total


def test_a_function_goes_on_from_trial_to_trial():
    found = reading(noisy(now_and_then(7)))
    assert 0 < len(found.found) < 0.4 * len(found.sizes)


def test_noise_that_is_drawn_anew_now_and_then_is_no_shift():
    count = itertools.count()

    def noise() -> torch.Tensor:
        if next(count) % 5 == 4:
            return torch.randn(17, generator=torch.Generator().manual_seed(next(count)))
        return torch.randn(17)

    assert not reading(noisy(clipped_sum, noise)).found


def test_generators_are_afterwards_as_if_nothing_had_been_called():
    torch.manual_seed(4)
    own = torch.Generator().manual_seed(4)
    reading(noisy(clipped_sum, lambda: torch.randn(17, generator=own)))
    again = torch.Generator().manual_seed(4)
    assert torch.equal(torch.randn(3, generator=own), torch.randn(3, generator=again))
    assert torch.equal(torch.randn(3), torch.randn(3, generator=again.manual_seed(4)))


def test_draws_seen_that_follow_the_gradients_are_no_shift_of_theirs():
    def privatize(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        rows = torch.cat([grad.flatten(1) for grad in grads], dim=1)
        torch.randn(int((rows.norm(dim=1) > 0).sum()))
        return noisy(clipped_sum)(grads)

    assert "its random numbers depend on the gradients" in reading(privatize).reason
    torch.manual_seed(0)
    assert audit(privatize, calls=120).passed


# --- Calls of a function under equal random numbers, wherever these come from.
def frozen(privatize: Any) -> FrozenNoise:
    return FrozenNoise(Released(privatize, [(3,)], True, 1.0, 1.0, "numpy"))


def of_the_module() -> np.ndarray:
    return MODULE_GENERATOR.normal(size=3)


class Method:
    """A function that has its generator in an attribute, and calls a method."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def noise(self) -> np.ndarray:
        return self.generator.normal(size=3) + of_the_module()

    def privatize(self, grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + self.noise()

    __call__ = privatize


def with_noise(noise: Any, grads: np.ndarray) -> np.ndarray:
    return grads.sum(0) + noise()


@pytest.mark.parametrize(
    "privatize",
    [
        functools.partial(with_noise, of_the_module),
        lambda grads: with_noise(of_the_module, grads),
        lambda grads: grads.sum(0) + sum(of_the_module() for _ in range(2)),
        Method(),
        Method().privatize,
        lambda grads: grads.sum(0) + np.random.normal(size=3) + torch.randn(3).numpy(),
    ],
    ids=["partial", "named", "inner", "object", "method", "global"],
)
def test_noise_cancels_wherever_its_generator_is(privatize):
    held = frozen(privatize)
    assert held.obstacle(ROWS, 1) == ""
    assert held.difference(ROWS, OTHERS, 2) == pytest.approx(np.full(3, 4.0))
    assert not np.array_equal(held.release(ROWS, 3), held.release(ROWS, 4))


def test_what_is_not_repeatable_is_told():
    def fresh(grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + np.random.default_rng().normal(size=3)

    def constant(grads: np.ndarray) -> np.ndarray:
        return grads.sum(0) + np.random.default_rng(len(grads)).normal(size=3)

    assert "release different values" in frozen(fresh).obstacle(ROWS, 1)
    assert "does not depend on the generators" in frozen(constant).obstacle(ROWS, 1)


def test_a_function_goes_on_by_one_call_and_is_put_back_at_the_end():
    calls: list[int] = []

    def privatize(grads: np.ndarray) -> np.ndarray:
        calls.append(len(calls))
        return grads.sum(0) + np.random.normal(size=3)

    held = frozen(privatize)
    for _ in range(5):
        held.difference(ROWS, OTHERS, 0)
    assert calls == [0, 1, 2, 3, 4]
    held.put_back()
    assert calls == []


# --- Calls of a privatize function: units, refusals, and what is read off them.
def released(privatize, divisor: float = 1.0) -> Released:
    return Released(privatize, SHAPES, False, NORM, divisor, "torch")


@pytest.mark.parametrize(
    ("privatize", "message"),
    [
        (lambda g: 1 / 0, r"privatize\(per_sample_grads\) raised ZeroDivisionError: .* \(call 1, "),
        (lambda g: g, r"returned shapes \[\(32, 4, 3\), \(32, 5\)\], must be \[\(4, 3\), \(5,\)\]"),
        (
            lambda g: [x.mean(0) + torch.randn(x.shape[1:]) / (x.norm() < 5) for x in g],
            "not finite .* 32 gradients of norms 0 to 2e.03",
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_told(privatize, message):
    zeros, large = np.zeros((2, 32, 17))
    large[-1, 0] = 1000.0
    called = released(privatize)
    with pytest.raises(MechanismError, match=message):
        list(map(called, (zeros, large)))


def test_what_is_released_is_in_clipping_norms_whatever_the_divisor_and_the_shapes():
    rows = np.random.default_rng(0).normal(size=(6, 17))
    assert released(lambda grads: [g.sum(0).bfloat16() for g in grads])(rows).dtype == np.float64
    for divisor in (1.0, 6.0):
        found = released(lambda grads, by=divisor: [g.sum(0) / by for g in grads], divisor)
        assert found(rows) == pytest.approx(rows.sum(axis=0), rel=1e-5, abs=1e-6)
        assert (found.sizes, found.calls) == ([12, 5], 1)


def test_reading_stops_at_its_goal():
    called = released(Privatizer("no noise"))
    assert read_noise(called, np.zeros((4, 17)), SIGMA, 300, 5.0).calls == 11


def test_a_direction_has_one_length_in_every_tensor():
    parts = np.split(direction([12, 5, 1], np.random.default_rng(0)), [12, 17])
    assert [np.linalg.norm(part) for part in parts] == pytest.approx([3**-0.5] * 3)
