r"""Unit test of a function that turns per-sample gradients into a private gradient.

The function claims to release, for gradients g_i, the clipping norm C and a divisor b,

.. math:: \frac{1}{b} \Bigl(\sum_i g_i \min\{1, C / \lVert g_i \rVert\}
    + \sigma C\, \mathcal{N}(0, I)\Bigr)

With equal random numbers, two releases differ by what a gradient adds. The difference is exact,
and is read for gradients of many norms, shapes and positions in a batch (`read_exactly`). If the
function's random numbers cannot be set, coin flips include or leave out gradients that are
oversized, of norm C, in one tensor alone, or opposed to all others. A bet on the coins that wins
more than a shift of C allows shows a fault (`CoinBet`). The noise is read from batches of zeros,
from batches with an oversized gradient, and from batches of twice the size (`noise_log_e`).

Example:
    A function that clips each tensor to the norm of the whole gradient:

    >>> rng = np.random.default_rng(0)
    >>> def privatize(grads):
    ...     factors = [np.minimum(1, 1 / (np.linalg.norm(g, axis=1) + 1e-9)) for g in grads]
    ...     return [f @ g + rng.normal(size=g.shape[1]) for f, g in zip(factors, grads)]
    >>> audit = audit_privatize(
    ...     privatize, [(3,), (4,)], noise_multiplier=1.0, max_grad_norm=1.0, arrays="numpy")
    >>> audit.verdict.outcome, audit.verdict.faults[0].name
    ('VIOLATION', 'clip_per_tensor')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lightning_audit import _validate
from lightning_audit.blackbox.exact_clipping import ExactReading, read_exactly
from lightning_audit.blackbox.privatize_faults import likely_fault
from lightning_audit.blackbox.privatize_readings import (
    ADDS_UP,
    LEARNING,
    probes,
    read_noises,
    read_shifts,
)
from lightning_audit.blackbox.probes import (
    Arrays,
    NoiseReading,
    Privatize,
    Released,
    ShiftReading,
    direction,
)
from lightning_audit.results.audit_report import Verdict, describe

__all__ = ["PrivatizeAudit", "PrivatizeViolation", "assert_privatizes", "audit_privatize"]

Shapes = tuple[int, ...] | Sequence[tuple[int, ...]]

# E-values that share the significance: five shifts read by coin flips, and three noise e-values
# for each batch.
_TESTS = 14
# For a PASS, a shift of this size must be detectable.
_RESOLUTION = 1.5


class PrivatizeViolation(AssertionError):
    """The function does not clip or add noise as stated."""

    def __init__(self, audit: PrivatizeAudit) -> None:
        super().__init__(str(audit))
        self.audit = audit


@dataclass(frozen=True, eq=False)
class PrivatizeAudit:
    """Result of an audit of a privatize function's clipping and noise.

    Args:
        verdict: VIOLATION if a fault is shown at the significance; INCONCLUSIVE if the calls were
            too few to show a shift of one and a half times the claim, if the function releases its
            sum in a unit other than stated, or if gradients of norm C add less than half of it;
            else PASS.
        shifts: By probe, what gradients add, over what clipping allows.
        noises: By batch, the noise over the claim.
        exact: How far single gradients move the release with the noise held fixed, which costs no
            significance. If its ``reason`` is not empty, the shifts were read by coin flips.
        detectable_shift: Smallest shift that this number of calls would have shown.
        significance: Probability of a VIOLATION although the function is correct.
        calls: Number of calls of the function.
    """

    verdict: Verdict
    shifts: dict[str, ShiftReading]
    noises: dict[str, NoiseReading]
    exact: ExactReading
    detectable_shift: float
    significance: float
    calls: int

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.verdict.outcome == "PASS"

    def __str__(self) -> str:
        return describe(self.verdict)


def assert_privatizes(privatize: Privatize, shapes: Shapes, **stated: Any) -> PrivatizeAudit:
    """Assert that a function clips and adds noise as stated.

    Args:
        privatize: The function under audit, as in `audit_privatize`.
        shapes: Shape of the gradient, as in `audit_privatize`.
        stated: Other arguments of `audit_privatize`; ``noise_multiplier`` and ``max_grad_norm`` are
            required.

    Returns:
        The audit, whose verdict is PASS.

    Raises:
        PrivatizeViolation: An `AssertionError`, if the verdict is VIOLATION or INCONCLUSIVE.

    Example:
        >>> import torch
        >>> def privatize(grads):
        ...     factors = (1.0 / grads.norm(dim=1)).clamp(max=1.0)
        ...     return factors @ grads + 2.0 * torch.randn(grads.shape[1])
        >>> audit = assert_privatizes(privatize, (10,), noise_multiplier=2.0, max_grad_norm=1.0)
        >>> audit.passed
        True
    """
    audit = audit_privatize(privatize, shapes, **stated)
    if not audit.passed:
        raise PrivatizeViolation(audit)
    return audit


def audit_privatize(
    privatize: Privatize,
    shapes: Shapes,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch_size: float | None = None,
    batches: Literal["poisson", "fixed"] = "poisson",
    batch_size: int = 32,
    calls: int = 400,
    significance: float = 1e-3,
    arrays: Arrays = "torch",
    seed: int = 0,
) -> PrivatizeAudit:
    """Audit a function ``privatize(per_sample_grads) -> gradient`` by calling it.

    The module docstring states the claim and the tests. Calls under seeds restore all state.

    Args:
        privatize: Function of an array ``[n, *shape]``, or a list; returns ``[*shape]``, or a list.
        shapes: Shape of the gradient: of the one array, or of each array of the list. Use small
            ones: the function is called some thousand times.
        noise_multiplier: Claimed sigma, > 0.
        max_grad_norm: Claimed clipping norm C of a whole per-sample gradient, > 0.
        expected_batch_size: Constant b by which the noisy sum is divided, > 0; None if the sum
            itself is released. A function that divides by the number of gradients that it gets has
            b = ``batch_size``, and is correct for batches of a fixed size only.
        batches: "poisson" if the number of gradients varies, so that the noise must not depend on
            it; "fixed" if it does not vary.
        batch_size: Number of gradients in each call, >= 2.
        calls: Largest number of calls for each batch whose noise is read, and for each of five
            clipping probes if shifts are read by coin flips; >= 20.
        significance: Probability in (0, 1) of a false VIOLATION.
        arrays: Array library of the function, "torch" or "numpy".
        seed: Seed of coins and directions; the noise comes from the function.

    Returns:
        The verdict and the readings on which it rests.

    Raises:
        MechanismError: If it raises an exception, or returns anything but finite numbers.
        ValueError: If an argument is outside its range.
    """
    sigma = _validate.positive("noise_multiplier", noise_multiplier)
    level = _validate.open_unit("significance", significance, "such as 1e-3")
    _check_calls(batches, batch_size, calls)
    released = _released(privatize, shapes, max_grad_norm, expected_batch_size, arrays)
    goal, rng = math.log(_TESTS / level), np.random.default_rng(seed)
    along = direction(released.sizes, rng)
    noises = read_noises(released, along, sigma, batch_size, batches, calls, goal)
    group = min(batch_size, math.ceil(8.0 * sigma))
    wanted = probes(along, released.sizes, batch_size, group)
    exact, shifts = read_exactly(released, wanted, along, batch_size, batches, calls, seed)
    smallest = exact.limit
    if exact.reason:
        shifts = read_shifts(released, wanted, sigma, calls, goal, rng)
        # A group with excess x increases the log wealth by (group x / sigma)^2 / 8 a call.
        smallest = 1.0 + math.sqrt(8.0 * (goal + LEARNING) / calls) * sigma / group
    verdict = _verdict(shifts, noises, exact, goal, smallest, level, released, batch_size)
    return PrivatizeAudit(verdict, shifts, noises, exact, smallest, level, released.calls)


def _check_calls(batches: str, batch_size: int, calls: int) -> None:
    _validate.one_of("batches", batches, ("poisson", "fixed"))
    if _validate.positive_int("batch_size", batch_size) < 2:
        raise ValueError(f"batch_size={batch_size!r} must be at least 2; 32 is usual.")
    if _validate.positive_int("calls", calls) < 20:
        raise ValueError(f"calls={calls!r} must be at least 20; hundreds are usual.")


def _released(
    privatize: Privatize, shapes: Shapes, norm: float, divisor: float | None, arrays: Arrays
) -> Released:
    _validate.positive("max_grad_norm", norm)
    if divisor is not None:
        _validate.positive("expected_batch_size", divisor)
    _validate.one_of("arrays", arrays, ("torch", "numpy"))
    single, listed = _listed(shapes)
    return Released(privatize, listed, single, norm, divisor or 1.0, arrays)


def _listed(shapes: Shapes) -> tuple[bool, list[tuple[int, ...]]]:
    """Return whether there is only one array, and the shapes of all."""
    if isinstance(shapes, int):
        raise TypeError(f"shapes={shapes!r} must be a tuple; give ({shapes},) for a vector.")
    single = bool(shapes) and all(isinstance(size, int) for size in shapes)
    given: list[Any] = [shapes] if single else list(shapes)
    if not given or any(_no_shape(shape) for shape in given):
        raise ValueError(
            f"shapes={shapes!r} must be the shape of a gradient, such as (10, 3), or a list of "
            "the shapes of its tensors."
        )
    return single, [tuple(shape) for shape in given]


def _no_shape(shape: Any) -> bool:
    if not isinstance(shape, tuple | list) or not shape:
        return True
    return any(not isinstance(size, int) or size < 1 for size in shape)


def _verdict(
    shifts: dict[str, ShiftReading],
    noises: dict[str, NoiseReading],
    exact: ExactReading,
    goal: float,
    smallest: float,
    level: float,
    released: Released,
    batch_size: int,
) -> Verdict:
    noise = any(reading.refuted(goal) for reading in noises.values())
    shifted = any(reading.log_e >= goal for reading in shifts.values())
    if noise or shifted or exact.found:
        fault = likely_fault(shifts, noises, goal, len(released.sizes), batch_size, exact)
        if fault.name == "another_unit":
            return Verdict(
                "INCONCLUSIVE", None, fault.sentence, pass_blockers=("the unit of the sum",)
            )
        clipping = fault.finding == "clipping"
        what = " and ".join(part for part, hit in (("clip", clipping), ("add noise", noise)) if hit)
        sure = f"at significance {level:g}" if noise or exact.reason else "exactly up to rounding"
        return Verdict(
            "VIOLATION",
            "mechanism",
            f"the function does not {what} as stated, {sure} after {released.calls:,} calls",
            faults=(fault,),
        )
    return _without_fault(shifts, noises, exact, smallest, released.calls)


def _without_fault(
    shifts: dict[str, ShiftReading],
    noises: dict[str, NoiseReading],
    exact: ExactReading,
    smallest: float,
    calls: int,
) -> Verdict:
    reach = f"{len(exact.sizes)} crafted gradients add at most C each, up to rounding"
    if exact.reason:
        reach = f"a shift of {smallest:.3g} times C would have been found"
    if smallest > _RESOLUTION:
        return Verdict(
            "INCONCLUSIVE",
            None,
            f"{calls:,} calls are too few for noise of this size: only {reach}",
            pass_blockers=(f"calls: a shift of {_RESOLUTION:g} times C might not be found",),
            advice="raise calls or batch_size",
        )
    added = shifts["of norm C"].shift
    if added <= ADDS_UP:
        return Verdict(
            "INCONCLUSIVE",
            None,
            f"gradients of norm C add {added:.3g} times C: more noise than stated, or a sum "
            "that is clipped as a whole, which more calls would show",
            pass_blockers=("gradients that add up as stated",),
            advice="raise calls, or state the clipping norm that is used",
        )
    quiet = min(noises.values(), key=lambda reading: reading.ratio)
    beside = f"; clipping was read through the noise: {exact.reason}" if exact.reason else ""
    return Verdict(
        "PASS",
        None,
        f"clips and adds noise as stated, as far as {calls:,} calls show; {reach}, "
        f"the noise is {quiet.in_words}{beside}",
    )
