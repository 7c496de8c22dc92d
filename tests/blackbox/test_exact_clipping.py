"""Crafted gradients beside equal noise: what is right is never accused, whatever its noise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from clippings import CORRECT, FAULTY, Sum, clipped, clipped_sum, noisy, of_integers, on_a_lattice
from privatizer import BATCH, NORM, SHAPES, SIGMA, audit
from stages import staged

from lightning_audit.blackbox.privatize import audit_privatize, probes
from lightning_audit.blackbox.probes import ExactReading, Released, direction, read_exactly

#: Correct functions whose noise cannot be held fixed.
UNREPEATABLE = {"the operating system"}


@pytest.mark.parametrize("seed", staged(quick=[0], heavy=[1, 2]))
@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.heavy_one_in(4)
@pytest.mark.one_in(3)
def test_a_correct_function_passes(name: str, seed: int) -> None:
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


def test_sizes_are_exact() -> None:
    found = reading(noisy(lambda rows: 1.05 * clipped_sum(rows)))
    assert found.sizes["norm 3 C, first"] == pytest.approx(1.05, abs=1e-4)
    assert found.sizes["norm 0.5 C, in the middle"] == pytest.approx(0.525, abs=1e-4)
    assert (found.alike, found.limit) == (True, 1.002)
    assert all(found.sizes[name] > 1.002 for name in found.found)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [on_a_lattice, of_integers])
@pytest.mark.parametrize("step", [0.02, 0.1, 0.3])
def test_on_a_lattice_steps_are_no_shift_and_one_twice_too_large_is_found(
    make: Any, step: float
) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    right = make(step * NORM)
    found = reading(right)
    assert (found.limit >= 1.15, found.found) == (True, [])
    assert reading(lambda grads: [2.0 * part for part in right(grads)]).found


@pytest.mark.heavy
@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_low_precision_a_shift_half_too_large_is_found(
    dtype: torch.dtype, factor: float
) -> None:
    torch.manual_seed(0)

    def privatize(grads: torch.Tensor) -> torch.Tensor:
        kept = (factor * clipped(grads)).to(dtype)
        return kept.sum(0) + (SIGMA * NORM * torch.randn(300)).to(dtype)

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "calls": 20}
    found = audit_privatize(privatize, (300,), **stated, batch_size=64)
    assert found.verdict.outcome == ("PASS" if factor == 1.0 else "VIOLATION")


def test_on_a_lattice_a_gradient_of_one_number_is_no_shift_of_a_step() -> None:
    """Jumps of 1.1 C with a probability of .91, as often as they come."""

    def privatize(grads: np.ndarray) -> np.ndarray:
        return 1.1 * np.round((grads.clip(-1, 1).sum(0) + 3.0 * np.random.normal(size=1)) / 1.1)

    for seed in range(2):
        called = Released(privatize, [(1,)], True, 1.0, 1.0, "numpy")
        plan = probes(np.ones(1), [1], BATCH, 12)
        found, shifts = read_exactly(called, plan, np.ones(1), BATCH, "poisson", 80, seed)
        assert not found.found
        assert max(shift.log_e for shift in shifts.values()) == 0.0


def test_a_divisor_of_the_rows_is_found_unless_batches_are_fixed() -> None:
    def mean(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        return [part / len(grads[0]) for part in noisy(clipped_sum)(grads)]

    fixed = reading(mean, "fixed", BATCH)
    assert not fixed.found
    assert len(fixed.sizes) == len(reading(mean, "poisson", BATCH).sizes) - 4
    assert reading(mean, "poisson", BATCH).found


def test_noise_that_grows_with_the_batch_is_found() -> None:
    def privatize(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        share = (len(grads[0]) / BATCH) ** 0.5
        return noisy(clipped_sum, lambda: share * torch.randn(17))(grads)

    found = reading(privatize)
    assert 1.002 < found.sizes[found.found[0]] < 1.4
    assert not reading(privatize, "fixed").found


def now_and_then(period: int) -> Sum:
    """Clips at all calls but some."""
    calls = 0

    def total(rows: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return rows.sum(0) if calls % period == 0 else clipped_sum(rows)

    return total


def test_a_function_goes_on_from_trial_to_trial() -> None:
    found = reading(noisy(now_and_then(7)))
    assert 0 < len(found.found) < 0.4 * len(found.sizes)


def test_clipping_by_chance_is_found() -> None:
    def total(rows: torch.Tensor) -> torch.Tensor:
        return rows.sum(0) if torch.rand(()) < 0.2 else clipped_sum(rows)

    assert 0 < len(reading(noisy(total)).found) < 12


def test_noise_that_is_drawn_anew_now_and_then_is_no_shift() -> None:
    count = itertools.count()

    def noise() -> torch.Tensor:
        if next(count) % 5 == 4:
            return torch.randn(17, generator=torch.Generator().manual_seed(next(count)))
        return torch.randn(17)

    assert not reading(noisy(clipped_sum, noise)).found


def test_generators_are_afterwards_as_if_nothing_had_been_called() -> None:
    torch.manual_seed(4)
    own = torch.Generator().manual_seed(4)
    reading(noisy(clipped_sum, lambda: torch.randn(17, generator=own)))
    again = torch.Generator().manual_seed(4)
    assert torch.equal(torch.randn(3, generator=own), torch.randn(3, generator=again))
    assert torch.equal(torch.randn(3), torch.randn(3, generator=again.manual_seed(4)))


def draws_seen_that_follow_the_gradients_are_no_shift_of_theirs() -> None:
    def privatize(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        rows = torch.cat([grad.flatten(1) for grad in grads], dim=1)
        torch.randn(int((rows.norm(dim=1) > 0).sum()))
        return noisy(clipped_sum)(grads)

    found = reading(privatize)
    assert "its random numbers follow the gradients" in found.reason
    torch.manual_seed(0)
    assert audit(privatize, calls=120).passed


def test_a_line_says_what_was_found() -> None:
    line = reading(noisy(FAULTY["first row not clipped"])).describe()
    assert line.startswith("a single gradient moves the release by 1e+03 times C (")
