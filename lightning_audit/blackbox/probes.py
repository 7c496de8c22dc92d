"""Batches of per-sample gradients that reveal faulty clipping and noise, and their readings.

**Calls a privatize function twice with the same random numbers, so that its noise cancels.** Seeded
and restored are the generators of torch, NumPy and Python, and those that the function holds: in
attributes, closure variables, argument defaults, and the globals of its module that it, or a
function that it names, uses.

**Exact test of a privatize function's clipping: two calls with the same noise.** The releases of a
batch and of the batch without one gradient differ by that gradient's contribution alone, which must
be at most the clipping norm. The test costs no error probability.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from lightning_audit.blackbox.mechanism import MechanismError
from lightning_audit.replay.clipping import CraftedGradients, Trial
from lightning_audit.replay.training_state import TrainingState
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.noise_tests import (
    INTERVAL_SIGNIFICANCE,
    chosen_upper,
    interval_in_words,
    noise_interval,
    noise_log_e,
)
from lightning_audit.stats.sequential import log_mean_exp

# --- Batches of per-sample gradients that reveal faulty clipping and noise, and their readings.

Arrays = Literal["torch", "numpy"]

#: Function of per-sample gradients (one array, or a list of them) that returns the noisy gradient.
Privatize = Callable[[Any], Any]

#: Number of calls after which a shift is known well enough to distinguish faults.
LEAST_CALLS = 60
#: A shift may exceed the claim by the rounding of single precision.
ROUNDING = 1.0 + 2.0**-10


@dataclass
class Released:
    """Calls a privatize function, and returns its release in units of the clipping norm.

    Args:
        privatize: The function.
        shapes: Shape of each tensor of the gradient.
        single: Whether it takes one array instead of a list.
        max_grad_norm: The clipping norm.
        divisor: Number by which it divides the noisy sum.
        arrays: Array library that it uses.
        calls: Number of calls so far.
    """

    privatize: Privatize
    shapes: Sequence[tuple[int, ...]]
    single: bool
    max_grad_norm: float
    divisor: float
    arrays: Arrays
    calls: int = 0

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    def __call__(self, rows: Floats) -> Floats:
        """Return the release for gradients ``[n, d]``, times the divisor, ``[d]``.

        Both are in clipping norms.

        Raises:
            MechanismError: If the function raised an exception, or returned anything but finite
                numbers of the gradient's shapes.
        """
        self.calls += 1
        parts = np.split(rows * self.max_grad_norm, np.cumsum(self.sizes)[:-1], axis=1)
        tensors = [
            self._array(part.reshape(len(rows), *shape))
            for part, shape in zip(parts, self.shapes, strict=True)
        ]
        try:
            released = self.privatize(tensors[0] if self.single else tensors)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}", rows) from error
        values = [released] if self.single else list(released)
        found = [tuple(np.shape(value)) for value in values]
        if found != list(self.shapes):
            raise self._failed(f"returned shapes {found}, must be {list(self.shapes)}", rows)
        flat = np.concatenate([_numbers(value).ravel() for value in values])
        if not np.isfinite(flat).all():
            raise self._failed("returned numbers that are not finite", rows)
        return flat * self.divisor / self.max_grad_norm

    def _array(self, values: Floats) -> Any:
        if self.arrays == "numpy":
            return values.astype(np.float32)
        return torch.tensor(values, dtype=torch.float32)

    def _failed(self, what: str, rows: Floats) -> MechanismError:
        norms = np.linalg.norm(rows, axis=1) * self.max_grad_norm
        return MechanismError(
            f"privatize(per_sample_grads) {what} (call {self.calls}, {len(rows)} gradients of "
            f"norms {norms.min():.3g} to {norms.max():.3g})."
        )


@dataclass(frozen=True)
class Probe:
    """Gradients that are included or left out, in clipping norms.

    Args:
        batches: Batches with them, ``[n, d]``, used in turn.
        without: The batch with rows of zeros instead of them, ``[n, d]``.
        along: Vector along which the release is read, ``[d]``: its product with each gradient's
            direction is one.
        gradients: Number of gradients that are included or left out.
    """

    batches: Sequence[Floats]
    without: Floats
    along: Floats
    gradients: int = 1


@dataclass
class ShiftReading:
    """Increase of the release along a direction if some gradients are included.

    Args:
        shift: Mean difference over the number of gradients; at most 1 if clipping is correct.
        log_e: Largest log e-value against a shift of at most 1. If the shift was read exactly:
            infinite if it is larger, else 0.
        gradients: Number of gradients that are included or left out together.
        calls: Number of calls used.
    """

    shift: float
    log_e: float
    gradients: int
    calls: int


def read_shift(
    released: Released,
    probe: Probe,
    noise_multiplier: float,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> ShiftReading:
    """Flip a coin in each call, and include the gradients of a probe or not.

    Args:
        released: The function under audit.
        probe: The gradients.
        noise_multiplier: Claimed noise, in clipping norms.
        calls: Largest number of calls.
        goal: Log e-value at which to stop, after at least `LEAST_CALLS` calls.
        rng: Generator of the coins.

    Returns:
        The shift and its largest log e-value.
    """
    m, along, batches = probe.gradients, probe.along, probe.batches
    bet = CoinBet((1,), m * ROUNDING, noise_multiplier * float(np.linalg.norm(along)))
    # The first reading is subtracted, so that the base does not count as noise.
    offset = float(released(probe.without) @ along)
    sums, counts, best, done = np.zeros(2), np.zeros(2), 0.0, 0
    while done < calls and (best < goal or done < LEAST_CALLS):
        coin = int(rng.integers(2))
        rows = batches[done % len(batches)] if coin else probe.without
        reading = float(released(rows) @ along) - offset
        bet.update(np.array([float(coin)]), np.array([reading]))
        sums[coin] += reading
        counts[coin] += 1
        best = max(best, float(bet.log_e))
        done += 1
    means = sums / np.maximum(counts, 1)
    return ShiftReading(float(means[1] - means[0]) / m, best, m, done + 1)


@dataclass
class NoiseReading:
    """The noise over the claimed noise.

    Args:
        ratio: Standard deviation of all coordinates over the claim.
        tensors: Standard deviation over the claim, for each tensor.
        interval: Confidence interval of the noise over the claim, valid at any stopping time for
            Gaussian noise; it starts at 0 if the tensors differ in their ratio.
        quietest: Upper limit of the noise over the claim in the tensor with the smallest reading.
        log_e: Largest log e-value against noise of at least the claimed size.
        log_e_repeated: Largest log e-value for differences between successive calls.
        ratio_repeated: Standard deviation of these differences, over that of independent noise of
            the claimed size: small compared with ``ratio`` if noise is repeated.
        log_e_shared: Largest log e-value for differences between adjacent coordinates.
        ratio_shared: Standard deviation of these differences, scaled in the same way: small if
            coordinates share one number.
        calls: Number of calls used.
        error: Standard error of the ratio.
    """

    ratio: float
    tensors: list[float]
    interval: tuple[float, float]
    quietest: float
    log_e: float
    log_e_repeated: float
    ratio_repeated: float
    log_e_shared: float
    ratio_shared: float
    calls: int
    error: float

    @property
    def in_words(self) -> str:
        """The interval as text that continues "the noise is"."""
        return interval_in_words(*self.interval)

    def refuted(self, goal: float) -> bool:
        """Return whether one of the e-values refutes the claim."""
        return max(self.log_e, self.log_e_repeated, self.log_e_shared) >= goal


def read_noise(
    released: Released, rows: Floats, noise_multiplier: float, calls: int, goal: float
) -> NoiseReading:
    """Release the same gradients repeatedly, and measure the noise.

    Args:
        released: The function under audit.
        rows: The gradients, in clipping norms, ``[n, d]``.
        noise_multiplier: Claimed noise, in clipping norms.
        calls: Largest number of calls.
        goal: Log e-value at which to stop, after at least ten calls.

    Returns:
        The noise, its confidence interval and its e-values.
    """
    tensor = np.repeat(np.arange(len(released.sizes)), released.sizes)
    counts, squares = np.zeros(len(released.sizes)), np.zeros(len(released.sizes))
    # The mean release if clipping is correct. If it is not, the noise appears larger than it is.
    centre = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)).sum(axis=0)
    before = released(rows)
    others = np.zeros((2, 2))  # repeated, shared: number and sum of squares
    best, done = np.zeros(3), 0
    while done < calls and (best.max() < goal or done < 10):
        now = released(rows)
        x = (now - centre) / noise_multiplier
        counts += released.sizes
        squares += np.bincount(tensor, x**2, len(squares))
        repeated = (now - before) / noise_multiplier
        shared = np.diff(x)
        others[:, 0] += len(x), len(shared)
        others[:, 1] += repeated @ repeated, shared @ shared
        before = now
        each = log_mean_exp(noise_log_e(counts, squares))
        pooled = float(noise_log_e(counts.sum(), squares.sum()))
        log_e = [float(log_mean_exp([pooled, float(each)])), *noise_log_e(*others.T)]
        best = np.maximum(best, log_e)
        done += 1
    quietest = int(np.argmin(squares / counts))
    # A difference of two independent values has twice the variance.
    spread = np.sqrt(0.5 * others[:, 1] / np.maximum(others[:, 0], 1))
    return NoiseReading(
        ratio=float(np.sqrt(squares.sum() / counts.sum())),
        tensors=np.sqrt(squares / counts).tolist(),
        interval=noise_interval(counts, squares, INTERVAL_SIGNIFICANCE)[:2],
        quietest=chosen_upper(counts[quietest], squares[quietest], len(counts)),
        log_e=float(best[0]),
        log_e_repeated=float(best[1]),
        ratio_repeated=float(spread[0]),
        log_e_shared=float(best[2]),
        ratio_shared=float(spread[1]),
        calls=done + 1,
        error=float(1.0 / np.sqrt(2.0 * counts.sum())),
    )


def direction(sizes: Sequence[int], rng: np.random.Generator) -> Floats:
    """Return a random unit vector with a part of the same length in every tensor, ``[d]``."""
    parts = [rng.normal(size=size) for size in sizes]
    return np.concatenate([p / np.linalg.norm(p) for p in parts]) / math.sqrt(len(parts))


def _numbers(value: Any) -> Floats:
    if hasattr(value, "detach"):
        value = value.detach().cpu().double()  # numpy has no bfloat16
    return np.asarray(value, dtype=np.float64)


# --- Calls a privatize function twice with the same random numbers, so that its noise cancels.

#: Modules whose globals hold no generator of the user's.
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "opacus", "lightning_audit"}

#: Types that hold no generator. Arrays hold none either, and may be large.
_WITHOUT = (
    *(types.ModuleType, types.BuiltinFunctionType, type, type(None)),
    *(bool, int, float, str, bytes, torch.dtype, torch.device, torch.Tensor, np.ndarray),
)


class FrozenNoise:
    """Calls a privatize function twice from one state of all its generators.

    Args:
        released: The function under audit.
    """

    def __init__(self, released: Released) -> None:
        self._released = released
        self._roots = _roots(released.privatize)
        self._first = _state_of(self._roots)

    def put_back(self) -> None:
        """Restore the first state of the function and of all generators."""
        self._first.put_back()

    def obstacle(self, rows: Floats, seed: int) -> str:
        """Return why differences of calls do not show what gradients add; empty if they do.

        Args:
            rows: A batch, ``[n, d]``, in clipping norms.
            seed: Seed of two calls; a third call uses the next number.
        """
        state = _state_of(self._roots)
        one, again, same_draws = self._both((rows, seed), (rows, seed), state)
        if not same_draws or not np.array_equal(one, again):
            return "equal calls under equal seeds release different values"
        state.put_back()
        if np.array_equal(*self._both((rows, seed), (rows, seed + 1), state)[:2]):
            return "the release does not depend on the generators that can be set"
        return ""

    def release(self, rows: Floats, seed: int) -> Floats:
        """Return the release of rows, ``[n, d]``, under a seed, in clipping norms, ``[d]``."""
        _state_of(self._roots).seed(seed)
        return self._released(rows)

    def difference(
        self, rows: Floats, others: Floats, seed: int, *, sure: bool = True
    ) -> Floats | None:
        """Return the release of ``rows`` less that of ``others``; None if their noise differs.

        The state of the function advances by one call, so that a fault that affects only some
        calls is found.

        Args:
            rows: A batch, ``[n, d]``, in clipping norms.
            others: Another batch, ``[m, d]``.
            seed: Seed of both calls.
            sure: Whether to repeat both calls if the difference exceeds the clipping norm, to rule
                out random numbers that sometimes come from another source.

        Raises:
            MechanismError: As in `Released`.
        """
        calls = (rows, seed), (others, seed)
        state = _state_of(self._roots)
        one, other, same_draws = self._both(*calls, state)
        if not same_draws:
            return None
        if sure and np.linalg.norm(one - other) > 1.0:
            state.put_back()
            again = self._both(*calls, state)
            if not (np.array_equal(one, again[0]) and np.array_equal(other, again[1])):
                return None
        return one - other

    def _both(
        self, first: tuple[Floats, int], second: tuple[Floats, int], state: TrainingState
    ) -> tuple[Floats, Floats, bool]:
        """Return two releases from one state, and whether both drew equally many numbers."""
        state.seed(first[1])
        one, drawn = self._released(first[0]), state.mark()
        state.put_back()
        state.seed(second[1])
        other = self._released(second[0])
        return one, other, drawn == state.mark()


def _state_of(roots: list[object]) -> TrainingState:
    # A function that counts its calls with an iterator releases different values in equal calls.
    return TrainingState(roots, iterators=True)


def _roots(privatize: object) -> list[object]:
    """Return the function and all objects that may hold its generators."""
    roots, known = [privatize], {id(privatize)}
    for item in roots:  # the list grows
        for held in _named_by(item):
            if id(held) not in known and not _holds_none(held):
                known.add(id(held))
                roots.append(held)
    return roots


def _holds_none(item: object) -> bool:
    """Return whether no generator can be reached from an object."""
    if isinstance(item, _WITHOUT):
        return True
    return isinstance(item, types.FunctionType) and _is_library(item)


def _named_by(item: object) -> Iterator[object]:
    """Yield what the user's code uses in addition to its arguments."""
    if isinstance(item, types.FunctionType):
        if not _is_library(item):
            yield from (item.__globals__.get(name) for name in _names(item.__code__))
            yield from (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
            yield from (cell.cell_contents for cell in item.__closure__ or () if _bound(cell))
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif not _is_library(type(item)):
        for kind in type(item).__mro__:
            yield from (each for each in vars(kind).values() if not _is_library(kind))
        yield from getattr(item, "__dict__", {}).values()


def _is_library(item: Any) -> bool:
    return (item.__module__ or "").partition(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _bound(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


# --- Exact test of a privatize function's clipping: two calls with the same noise.

#: Tolerated rounding, in clipping norms: in single precision, and in lower precision.
_TOLERATED, _TOLERATED_LOW = 2e-3, 0.1
#: Error of a sum of unclipped gradients, in clipping norms, above which the precision is lower,
#: and above which it cannot be rounding.
_LOW_PRECISION, _NO_ROUNDING = 1e-4, 0.075
#: Smallest number of seeds under which each probe is read.
_LOOKS = 8
#: Noise entries that are searched for equal values, and the most that continuous noise may have.
_ENTRIES, _EQUAL = 1000, 2
#: For releases on a lattice: largest number of calls for a shift, number of calls after which a
#: shift within the limit is accepted, least shift that is detected, and number of standard errors.
_LATTICE_CALLS, _FEW, _LATTICE_RESOLUTION, _ERRORS = 256, 16, 1.15, 6.0
_MILLION, _SAME = math.log(1e6), 1e-5
#: Norm from which clipping is clearly visible, and relative difference of equal sizes.
_PLAIN, _ALIKE = 2.9, 0.1


@dataclass(frozen=True)
class ExactReading:
    """How far single gradients move the release, with the noise held fixed.

    Args:
        sizes: Norm of the difference over C, by trial.
        found: Trials whose size exceeds what clipping allows, the largest first.
        limit: Largest size that rounding explains.
        alike: Whether all gradients of at least three times C move the release as if they were
            clipped to one norm above C, or not clipped.
        reason: Why nothing was read; empty if it was.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    found: Sequence[str] = ()
    limit: float = 1.0
    alike: bool = False
    reason: str = ""

    def describe(self) -> str:
        """Return the finding as text: two digits, or as many as show that the size exceeds C."""
        largest = self.found[0]
        size = self.sizes[largest]
        told = f"{size:.2g}" if size >= 1.1 else f"{size:.4g}"
        return (
            f"a single gradient moves the release by {told} times C "
            f'("{largest}"; {len(self.found)} of {len(self.sizes)} crafted gradients)'
        )


def read_exactly(
    released: Released,
    probes: Mapping[str, Probe],
    along: Floats,
    batch_size: int,
    batches: str,
    calls: int,
    seed: int,
) -> tuple[ExactReading, dict[str, ShiftReading]]:
    """Read the crafted gradients and the shifts of the probes.

    Args:
        released: The function under audit.
        probes: Gradients whose shifts distinguish faults.
        along: Unit vector with a part in every tensor, ``[d]``.
        batch_size: Number of gradients in a usual batch.
        batches: "fixed" if a gradient is replaced by zeros, so that all batches have the same
            size; "poisson" if it is left out.
        calls: Ten times the number of seeds under which each probe is read.
        seed: Seed of the gradients and of all calls.

    Returns:
        The reading, and the shift of each probe; no shifts if the reading gives a reason.

    Raises:
        MechanismError: As in `Released`, for batches of the usual size.
    """
    frozen = FrozenNoise(released)
    crafted = CraftedGradients(released.sizes, batch_size, seed)
    looks, seeds = max(calls // 10, _LOOKS), itertools.count(1_000_003 * (seed + 1))
    reader = _Reader(frozen, crafted, along, batch_size, batches == "fixed", looks, seeds)
    try:
        if reason := reader.obstacle():
            return ExactReading(reason=reason), {}
        shifts = {name: reader.shift(probe) for name, probe in probes.items()}
        if any(shift is None for shift in shifts.values()):
            reason = (
                "its random numbers depend on the gradients, or sometimes come from another source"
            )
            return ExactReading(reason=reason), {}
        return reader.trials(), {n: shift for n, shift in shifts.items() if shift is not None}
    finally:
        frozen.put_back()


@dataclass
class _Reader:
    """Reads one function with fixed noise, each probe under ``looks`` seeds."""

    frozen: FrozenNoise
    crafted: CraftedGradients
    along: Floats
    batch: int
    fixed: bool
    looks: int
    seeds: Iterator[int]

    def obstacle(self) -> str:
        """Return why nothing can be read; empty if it can."""
        return self.frozen.obstacle(self._equal_ones, next(self.seeds))

    def shift(self, probe: Probe) -> ShiftReading | None:
        """Return the shift of a probe; None if the noise differs between the calls."""
        jumps = self._on_a_lattice
        calls = self._lattice_calls if jumps else max(self.looks, len(probe.batches))
        values = []
        for number in range(calls):
            rows = probe.batches[number % len(probe.batches)]
            gap = self.frozen.difference(rows, probe.without, next(self.seeds), sure=not jumps)
            if gap is None:
                return None
            values.append(float(gap @ probe.along) / probe.gradients)
        found = (_surely(values) if jumps else max(values)) > self._limit
        return ShiftReading(
            float(np.mean(values)), math.inf if found else 0.0, probe.gradients, 2 * calls
        )

    def trials(self) -> ExactReading:
        """Leave out each crafted gradient in turn, and read the difference."""
        sizes: dict[str, float] = {}
        norms: dict[str, float] = {}
        for trial in self.crafted.trials():
            if self.fixed and len(trial.rows) != self.batch:
                continue
            size = self._size_of(trial)
            if size is None:
                continue
            sizes[trial.name] = size
            norms[trial.name] = float(trial.rows[trial.left_out].norm())
        found = [
            name for name in sorted(sizes, key=lambda n: -sizes[n]) if sizes[name] > self._limit
        ]
        largest = max(sizes.values(), default=0.0)
        alike = bool(found) and all(
            abs(sizes[name] / min(norm, largest) - 1.0) < _ALIKE
            for name, norm in norms.items()
            if norm >= _PLAIN
        )
        return ExactReading(sizes, found, self._limit, alike)

    # ------------------------------------------------------------------ one trial

    def _size_of(self, trial: Trial) -> float | None:
        """Return the norm of the difference; None if it cannot be read."""
        neighbours = [trial.with_zeros] if self.fixed else [trial.neighbour, trial.with_zeros]
        for neighbour in neighbours:
            rows, others = trial.rows.dense().numpy(), neighbour.dense().numpy()
            seed = next(self.seeds)
            # Some functions reject batches of another size.
            try:
                gap = self.frozen.difference(rows, others, seed)
            except MechanismError:
                continue
            if gap is None:
                continue
            size = float(np.linalg.norm(gap))
            if size > 1.0 + self._tolerated and self._on_a_lattice:
                return self._on_average(rows, others)
            return size
        return None

    def _on_average(self, rows: Floats, others: Floats) -> float | None:
        """Return the norm of the mean difference on a lattice, as a safe lower value.

        A release on a lattice jumps in whole steps, at positions that depend on its noise. Half of
        the calls gives the direction, and the other half is read along it.
        """
        gaps: list[Floats] = []
        while len(gaps) < self._lattice_calls:
            gap = self.frozen.difference(rows, others, next(self.seeds), sure=False)
            if gap is None:
                return None
            gaps.append(gap)
            if len(gaps) == _FEW and (mean := float(np.mean(_halved(gaps)))) <= self._limit:
                return mean
        return _surely(_halved(gaps))

    # ------------------------------------------------------------------ precision

    @cached_property
    def _equal_ones(self) -> Floats:
        """A batch of equal gradients of norm C / 2: none is clipped, and all add up."""
        return np.tile(0.5 * self.along, (self.batch, 1))

    @cached_property
    def _tolerated(self) -> float:
        """Tolerated rounding, from the error of a sum of unclipped gradients."""
        rows = self._equal_ones
        gap = self.frozen.difference(rows, np.zeros_like(rows), next(self.seeds))
        if gap is None:
            return _TOLERATED
        # A common scale factor is not rounding.
        error = float(np.linalg.norm(gap - (gap @ self.along) * self.along))
        if error <= _LOW_PRECISION:
            return _TOLERATED
        # Gradients of norm C add up to twice as much.
        return max(_TOLERATED_LOW, 6.0 * error if error <= _NO_ROUNDING else 0.0)

    @cached_property
    def _limit(self) -> float:
        least = _LATTICE_RESOLUTION if self._on_a_lattice else 1.0
        return max(least, 1.0 + self._tolerated)

    @property
    def _lattice_calls(self) -> int:
        return min(max(2 * self._noise_calls, 64), _LATTICE_CALLS)

    @property
    def _noise_calls(self) -> int:
        return min(math.ceil(_ENTRIES / len(self.along)), _LATTICE_CALLS)

    @cached_property
    def _on_a_lattice(self) -> bool:
        """Whether releases take few values: integer noise, rounded noise or low precision."""
        rows = np.zeros_like(self._equal_ones)
        calls = range(self._noise_calls)
        noise = [self.frozen.release(rows, next(self.seeds)) for _ in calls]
        values = np.array(noise)[:, np.any(noise, axis=0)].ravel()[:_ENTRIES]
        return not len(values) or len(values) - len(np.unique(values)) > _EQUAL


def _halved(gaps: Sequence[Floats]) -> Floats:
    """Return the second half of differences along the mean of the first half."""
    half = len(gaps) // 2
    along: Floats = np.mean(gaps[:half], axis=0)
    along /= max(float(np.linalg.norm(along)), 1e-12)
    return np.array([gap @ along for gap in gaps[half:]])


def _surely(values: Sequence[float] | Floats) -> float:
    """Return a value that the mean of jumps exceeds: the mean less six standard errors.

    If all values are equal, the mean is scaled by the smallest probability of a jump for which
    this outcome has a probability of one in a million.
    """
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    if np.ptp(values) <= _SAME * abs(mean):
        return mean * math.exp(-_MILLION / len(values))
    return mean - _ERRORS * error
