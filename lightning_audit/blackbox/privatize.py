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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from lightning_audit import _validate
from lightning_audit.blackbox.probes import (
    Arrays,
    ExactReading,
    NoiseReading,
    Privatize,
    Probe,
    Released,
    ShiftReading,
    direction,
    read_exactly,
    read_noise,
    read_shift,
)
from lightning_audit.replay.clipping import OVERSIZE, Trial, against_others, alone
from lightning_audit.results.audit_report import HasVerdict, LikelyFault, Verdict
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.noise_tests import interval_in_words

# --- Readings of a privatize function, for several kinds of gradients and batches.

#: Number of noise readings, coordinates times calls, after which reading stops.
_NOISE_READINGS = 10_000
#: If gradients of norm C add less than this, they do not add up as stated.
ADDS_UP = 0.5
#: Log e-value above the threshold that mixing over stakes costs.
LEARNING = 2.0


def read_noises(
    released: Released,
    along: Floats,
    sigma: float,
    batch_size: int,
    batches: str,
    calls: int,
    goal: float,
) -> dict[str, NoiseReading]:
    """Read the noise of several kinds of batches.

    Args:
        released: The function under audit.
        along: Direction of oversized gradients, unit vector ``[d]``.
        sigma: Claimed noise multiplier, > 0.
        batch_size: Number of gradients in a batch.
        batches: "poisson" adds a batch of twice the size.
        calls: Largest number of calls for each batch.
        goal: Log e-value at which reading stops.

    Returns:
        The reading of each batch, by name.
    """
    most = max(20, min(calls, -(-_NOISE_READINGS // len(along))))
    zeros = np.zeros((batch_size, len(along)))
    loaded = np.vstack([zeros[1:], OVERSIZE * along])
    rows = {"no gradient": zeros, "an oversized gradient": loaded}
    if batches == "poisson":
        rows["twice as many gradients"] = np.vstack([zeros, zeros])
    return {name: read_noise(released, batch, sigma, most, goal) for name, batch in rows.items()}


def probes(along: Floats, sizes: Sequence[int], batch_size: int, group: int) -> dict[str, Probe]:
    """Return the gradients whose shifts distinguish faults of clipping, by name.

    Args:
        along: Unit vector with a part of the same length in every tensor, ``[d]``.
        sizes: Number of entries of each tensor.
        batch_size: Rows of each batch, including rows of zeros.
        group: Number of gradients that are included or left out together.
    """
    unit = torch.from_numpy(along)
    zeros = np.zeros((batch_size, len(along)))
    many = np.vstack([zeros[group:], np.tile(along, (group, 1))])
    one = [alone(OVERSIZE * unit, batch_size)]
    found = {
        "one oversized": _of_trials(one, along),
        "oversized": Probe([OVERSIZE * many], zeros, along, group),
        "of norm C": Probe([many], zeros, along, group),
        "against all others": _of_trials([against_others(unit, batch_size)], along),
    }
    if len(sizes) > 1:
        tensor = torch.repeat_interleave(torch.tensor(sizes))
        each = math.sqrt(len(sizes)) * unit
        alone_in = [alone(OVERSIZE * each * (tensor == k), batch_size) for k in range(len(sizes))]
        found["in one tensor"] = _of_trials(alone_in, each.numpy())
    return found


def _of_trials(trials: Sequence[Trial], along: Floats) -> Probe:
    """Return a probe from trials that share one neighboring batch."""
    return Probe(
        [t.rows.dense().numpy() for t in trials], trials[0].with_zeros.dense().numpy(), along
    )


def read_shifts(
    released: Released,
    probes: Mapping[str, Probe],
    sigma: float,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> dict[str, ShiftReading]:
    """Read the shift of every probe through the noise, by name; arguments as in `read_shift`."""
    readings: dict[str, ShiftReading] = {}
    for name, probe in probes.items():
        most = calls
        if name == "against all others" and readings["of norm C"].shift <= ADDS_UP:
            # A sum that is clipped as a whole adds at most 2 C, which takes many calls to show.
            # It is ruled out if gradients add up.
            wanted = math.ceil(11.0 * (goal + LEARNING) * sigma**2)
            most = max(calls, min(wanted, 10 * calls))
        readings[name] = read_shift(released, probe, sigma, most, goal, rng)
    return readings


# --- Names the likely fault of a privatize function from its readings.

# Noise below this fraction of the claim is none; a shift above this many C means no clipping.
_NO_NOISE, _NO_CLIPPING = 0.02, 100.0
# Relative difference of shifts that may be equal: read through the noise, and read exactly.
_ALIKE, _ALIKE_EXACTLY = 0.07, 0.01
# A sum clipped to C moves by at most 2 C; the reading has an error.
_OF_A_SUM = 3.0
# Faults that affect every gradient.
_OF_ALL = ("no_clipping", "clipping_norm_too_large")
# Differences of noise below this fraction of the noise are none.
_SMALL = 0.4
# If a gradient in one tensor adds this many times what a gradient in all tensors adds, the norm
# does not include that tensor.
_LEFT_OUT = 10.0


_DRAWN = "the noise that is drawn: its standard deviation must be noise_multiplier * max_grad_norm"
#: Of each fault by its name: what it is found in, what is said of it, and what to look at.
_FAULTS: Mapping[str, tuple[str, str, str]] = {
    "no_clipping": (
        "clipping",
        "gradients are not clipped: one of 1000 times C adds {shift:.3g} times C",
        "where each per-sample gradient is scaled by min(1, C / norm)",
    ),
    "norm_misses_a_tensor": (
        "clipping",
        "a tensor is left out of the norm by which gradients are clipped: alone it adds "
        "{shift:.3g} times C on average over tensors",
        "the norm must be of all tensors of a sample together",
    ),
    "clip_after_average": (
        "clipping",
        "the sum or mean is clipped as a whole, after the gradients were added up",
        "over which axis the norm is taken: there must be one norm for each sample",
    ),
    "clip_per_tensor": (
        "clipping",
        "each tensor is clipped to the norm of the whole gradient: {tensors} tensors add "
        "{shift:.3g} times C",
        "the norm must be of all tensors of a sample together, or each tensor's C a part of it",
    ),
    "clipping_norm_too_large": (
        "clipping",
        "a gradient adds {shift:.3g} times C after clipping",
        "the norm that is clipped to, and what scales the gradient after clipping",
    ),
    "clipping_misses_gradients": (
        "clipping",
        "{trial}",
        "which gradients are clipped, to which norm, and how that depends on the rest of the batch",
    ),
    "no_noise": ("noise", "no noise is added", _DRAWN),
    "noise_repeated": (
        "reuse",
        "the noise is repeated: two calls get the same",
        "where the generator is seeded",
    ),
    "noise_shared": (
        "reuse",
        "the noise is shared: one number is added to many coordinates",
        "the shape of what is drawn",
    ),
    "noise_too_small_in_a_tensor": (
        "noise",
        "the noise is too small in a tensor: {noise}",
        _DRAWN,
    ),
    "noise_divided_by_batch": (
        "noise",
        "the noise is divided by the batch once more: {noise}",
        _DRAWN,
    ),
    "noise_too_small": ("noise", "the noise is too small: {noise}", _DRAWN),
    "noise_follows_gradients": (
        "noise",
        "the noise is too small if gradients are large: {noise}",
        _DRAWN,
    ),
    "divides_by_realised_batch": (
        "noise",
        "the noise depends on the number of gradients: with twice as many it is {noise}",
        "what the noisy sum is divided by: for Poisson batches it must be a constant",
    ),
    "another_unit": (
        "noise",
        "what is released is {ratio:.3g} times what is stated, for sum and noise alike: "
        "expected_batch_size or max_grad_norm does not fit",
        "what the noisy sum is divided by",
    ),
}


@dataclass(frozen=True)
class Readings:
    """What was read of a function, and what it is compared with.

    Args:
        shifts: By probe, what gradients add.
        noises: By batch, the noise.
        exact: How far single gradients move the release with the noise held fixed.
        goal: Log e-value at which the claim is refuted.
        tensors: Number of tensors of a gradient.
        batch_size: Number of gradients in a usual batch.
    """

    shifts: dict[str, ShiftReading]
    noises: dict[str, NoiseReading]
    exact: ExactReading
    goal: float
    tensors: int
    batch_size: int

    @property
    def noisy(self) -> list[str]:
        """The batches whose noise refutes the claim."""
        return [name for name, reading in self.noises.items() if reading.refuted(self.goal)]

    @property
    def fired(self) -> set[str]:
        """The probes whose shift refutes the claim."""
        return {name for name, reading in self.shifts.items() if reading.log_e >= self.goal}


def likely_fault(seen: Readings) -> LikelyFault:
    """Return the fault that fits the readings best; at least one of them refutes the claim."""
    exact, noisy = seen.exact, seen.noisy
    # If the noise depends on the gradients, a difference is not theirs alone.
    follows = not exact.reason and noisy and "no gradient" not in noisy
    if not follows and seen.fired:
        fault = _of_clipping(seen)
        some = exact.found and not exact.alike
        return _of_some(exact) if some and fault.name in _OF_ALL else fault
    return _of_noise(seen) if noisy else _of_some(exact)


def _fault(name: str, evidence: Mapping[str, Any], **said: Any) -> LikelyFault:
    finding, sentence, look_at = _FAULTS[name]
    return LikelyFault(name, sentence.format(**said), finding, look_at, evidence)


def _of_some(exact: ExactReading) -> LikelyFault:
    """Return a fault of some gradients only; the trial states which."""
    evidence = {name: exact.sizes[name] for name in exact.found}
    return _fault("clipping_misses_gradients", evidence, trial=exact.describe())


def _of_clipping(seen: Readings) -> LikelyFault:
    shifts, fired, exact = seen.shifts, seen.fired, seen.exact
    one, group = shifts["one oversized"].shift, shifts["oversized"].shift
    evidence = {f"shift, {name}": reading.shift for name, reading in shifts.items()}
    members, plain = shifts["oversized"].gradients, seen.noises["no gradient"]
    unsure = 0.0 if exact.reason else 4.0 * plain.error
    if all(
        s > 1.0 and (_as_the_noise(s, plain.ratio) or abs(s - plain.ratio) < unsure)
        for s in (group, shifts["of norm C"].shift)
    ):
        return _fault("another_unit", evidence, ratio=plain.ratio)
    if one > _NO_CLIPPING:
        return _fault("no_clipping", evidence, shift=one)
    if "in one tensor" in fired and shifts["in one tensor"].shift > _LEFT_OUT * max(one, 1.0):
        return _fault("norm_misses_a_tensor", evidence, shift=shifts["in one tensor"].shift)
    # If the sum is clipped as a whole, a group adds no more than one gradient.
    alone = fired == {"against all others"} and shifts["against all others"].shift < _OF_A_SUM
    if alone or (members > 1 and one > 1.5 * max(group, 0.1)):
        return _fault("clip_after_average", evidence)
    alike = _ALIKE if exact.reason else _ALIKE_EXACTLY
    of_each = abs(group / seen.tensors**0.5 - 1.0) < alike
    if seen.tensors > 1 and of_each and "of norm C" not in fired:
        return _fault("clip_per_tensor", evidence, tensors=seen.tensors, shift=group)
    largest = max(shifts[name].shift for name in fired)
    return _fault("clipping_norm_too_large", evidence, shift=largest)


def _of_noise(seen: Readings) -> LikelyFault:
    noises, goal = seen.noises, seen.goal
    plain, loaded = noises["no gradient"], noises["an oversized gradient"]
    ratio, divided = plain.ratio, _near(plain.ratio, 1 / seen.batch_size)
    evidence: dict[str, Any] = {f"noise, {name}": noise.ratio for name, noise in noises.items()}
    if ratio < _NO_NOISE and not divided:
        return _fault("no_noise", evidence)
    if plain.log_e_repeated >= goal and plain.ratio_repeated < _SMALL * ratio:
        return _fault("noise_repeated", evidence)
    if plain.log_e_shared >= goal and plain.ratio_shared < _SMALL * ratio:
        return _fault("noise_shared", evidence)
    if plain.log_e >= goal:
        if _as_the_noise(seen.shifts["of norm C"].shift, ratio):
            return _fault("another_unit", evidence, ratio=ratio)
        if min(plain.tensors) < 0.5 * max(plain.tensors):
            quiet = interval_in_words(None, plain.quietest)
            evidence["by tensor"] = plain.tensors
            return _fault("noise_too_small_in_a_tensor", evidence, noise=quiet)
        name = "noise_divided_by_batch" if divided else "noise_too_small"
        return _fault(name, evidence, noise=plain.in_words)
    if loaded.log_e >= goal:
        return _fault("noise_follows_gradients", evidence, noise=loaded.in_words)
    quietest = min(noises.values(), key=lambda noise: noise.ratio)
    return _fault("divides_by_realised_batch", evidence, noise=quietest.in_words)


def _as_the_noise(shift: float, ratio: float) -> bool:
    """Return whether a shift deviates from the claim as the noise does, in size and direction."""
    return abs(shift - ratio) < 0.25 * abs(1.0 - ratio)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) < 0.15 * wanted


# --- Unit test of a function that turns per-sample gradients into a private gradient.

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
class PrivatizeAudit(HasVerdict):
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
    _validate.one_of("batches", batches, ("poisson", "fixed"))
    if _validate.positive_int("batch_size", batch_size) < 2:
        raise ValueError(f"batch_size={batch_size!r} must be at least 2; 32 is usual.")
    if _validate.positive_int("calls", calls) < 20:
        raise ValueError(f"calls={calls!r} must be at least 20; hundreds are usual.")
    _validate.positive("max_grad_norm", max_grad_norm)
    if expected_batch_size is not None:
        _validate.positive("expected_batch_size", expected_batch_size)
    _validate.one_of("arrays", arrays, ("torch", "numpy"))
    single, listed = _listed(shapes)
    divisor = expected_batch_size or 1.0
    released = Released(privatize, listed, single, max_grad_norm, divisor, arrays)
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
    seen = Readings(shifts, noises, exact, goal, len(released.sizes), batch_size)
    verdict = _verdict(seen, smallest, level, released.calls)
    return PrivatizeAudit(verdict, shifts, noises, exact, smallest, level, released.calls)


def _listed(shapes: Shapes) -> tuple[bool, list[tuple[int, ...]]]:
    """Return whether there is only one array, and the shapes of all."""
    if isinstance(shapes, int):
        raise TypeError(f"shapes={shapes!r} must be a tuple; give ({shapes},) for a vector.")
    single = bool(shapes) and all(isinstance(size, int) for size in shapes)
    given: list[Any] = [shapes] if single else list(shapes)
    if not given or not all(map(_is_shape, given)):
        raise ValueError(
            f"shapes={shapes!r} must be the shape of a gradient, such as (10, 3), or a list of "
            "the shapes of its tensors."
        )
    return single, [tuple(shape) for shape in given]


def _is_shape(shape: Any) -> bool:
    sizes = shape if isinstance(shape, tuple | list) else ()
    return bool(sizes) and all(isinstance(size, int) and size >= 1 for size in sizes)


def _verdict(seen: Readings, smallest: float, level: float, calls: int) -> Verdict:
    if seen.noisy or seen.fired or seen.exact.found:
        fault = likely_fault(seen)
        if fault.name == "another_unit":
            return Verdict(
                "INCONCLUSIVE", None, fault.sentence, pass_blockers=("the unit of the sum",)
            )
        wrong = {"clip": fault.finding == "clipping", "add noise": bool(seen.noisy)}
        what = " and ".join(part for part, hit in wrong.items() if hit)
        read = seen.noisy or seen.exact.reason
        sure = f"at significance {level:g}" if read else "exactly up to rounding"
        return Verdict(
            "VIOLATION",
            "mechanism",
            f"the function does not {what} as stated, {sure} after {calls:,} calls",
            faults=(fault,),
        )
    return _without_fault(seen, smallest, calls)


def _without_fault(seen: Readings, smallest: float, calls: int) -> Verdict:
    exact = seen.exact
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
    added = seen.shifts["of norm C"].shift
    if added <= ADDS_UP:
        return Verdict(
            "INCONCLUSIVE",
            None,
            f"gradients of norm C add {added:.3g} times C: more noise than stated, or a sum "
            "that is clipped as a whole, which more calls would show",
            pass_blockers=("gradients that add up as stated",),
            advice="raise calls, or state the clipping norm that is used",
        )
    quiet = min(seen.noises.values(), key=lambda reading: reading.ratio)
    beside = f"; clipping was read through the noise: {exact.reason}" if exact.reason else ""
    return Verdict(
        "PASS",
        None,
        f"clips and adds noise as stated, as far as {calls:,} calls show; {reach}, "
        f"the noise is {quiet.in_words}{beside}",
    )
