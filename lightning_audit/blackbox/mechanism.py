"""Audit of a mechanism given as a function, against any claim of differential privacy.

Example:
    A sum of values in [0, 1], with Laplace noise at half the required scale:

    >>> def noisy_sum(data, rng):
    ...     return sum(data) + rng.laplace(0, 0.5)
    >>> audit = audit_mechanism(noisy_sum, [0.2], [0.2, 1.0], claim=(1.0, 0.0))
    >>> audit.verdict.outcome, audit.epsilon_lower > 1
    ('VIOLATION', True)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.results.audit_report import HasVerdict, Verdict
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.output_estimates import (
    LARGEST,
    TradeoffEstimate,
    estimate_by_kernel,
    estimate_by_neighbours,
)
from lightning_audit.stats.output_tests import FIRST_FIT, SequentialTradeoffTest, common_error_rate
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, TradeoffFunction

# --- Outputs of a mechanism, drawn one at a time and validated.

#: Function of a data set and a generator that returns a number or an array of any shape.
Mechanism = Callable[[Any, np.random.Generator], Any]


class MechanismError(Exception):
    """A mechanism cannot be audited; the message states the call and the reason."""


class OutputSource:
    """Calls a mechanism alternately on two data sets, named d0 and d1 in messages."""

    def __init__(
        self, mechanism: Mechanism, datasets: tuple[Any, Any], rng: np.random.Generator
    ) -> None:
        if not callable(mechanism):
            raise TypeError(
                f"mechanism={mechanism!r} must be a function of a data set and a generator."
            )
        self._mechanism = mechanism
        self._datasets = datasets
        self._rng = rng
        self._calls = 0
        #: Shape of an output, None before the first.
        self.shape: tuple[int, ...] | None = None

    def draw(self, number: int) -> tuple[Floats, Floats]:
        """Return ``number`` outputs on each data set, ``[number, ...]``.

        Raises:
            MechanismError: If the mechanism raised an exception, or returned anything but an array
                of finite numbers in the shape of the first output.
        """
        outputs: tuple[list[Floats], list[Floats]] = ([], [])
        for _ in range(number):
            for world in (0, 1):
                outputs[world].append(self._call(world))
        return np.stack(outputs[0]), np.stack(outputs[1])

    def _call(self, world: int) -> Floats:
        self._calls += 1
        try:
            returned = self._mechanism(self._datasets[world], self._rng)
        except Exception as error:
            raise self._failed(world, f"raised {type(error).__name__}: {error}") from error
        output = self._as_array(world, returned)
        if self.shape is None:
            self.shape = output.shape
        if output.shape != self.shape:
            what = f"returned shape {output.shape} after {self.shape}; outputs must be of one shape"
            raise self._failed(world, f"{what}, because a varying shape can itself reveal the data")
        if not np.isfinite(output).all():
            count = int(np.count_nonzero(~np.isfinite(output)))
            what = f"returned {count} of {output.size} numbers that are not finite"
            raise self._failed(world, f"{what}; return a finite number in case of a failure")
        return output

    def _as_array(self, world: int, returned: Any) -> Floats:
        if hasattr(returned, "detach"):  # a tensor, perhaps with a gradient or on a device
            returned = returned.detach().cpu()
        try:
            output = np.asarray(returned)
        except (TypeError, ValueError) as error:
            raise self._failed(world, f"returned {type(returned).__name__}: {error}") from error
        if output.dtype.kind not in "iufb" or not output.size:
            what = f"returned {type(returned).__name__} of dtype {output.dtype}"
            raise self._failed(world, f"{what} and shape {output.shape}; return real numbers")
        numbers = output.astype(np.float64)
        if np.isfinite(numbers).all() and np.abs(numbers).max() > LARGEST:
            raise self._failed(world, f"returned numbers beyond {LARGEST:g}; rescale them")
        return numbers

    def _failed(self, world: int, what: str) -> MechanismError:
        return MechanismError(f"mechanism(d{world}, rng) {what} (call {self._calls}).")


# --- Audit of a mechanism given as a function, against any claim of differential privacy.

#: Possible claims: (epsilon, delta), a trade-off function, or a `PrivacyClaim`.
Claim = tuple[float, float] | TradeoffFunction | PrivacyClaim

_DELTA = 1e-5
# Before each look, one new output per this many so far.
_PART = 8
# Number of outputs used to estimate a curve in several dimensions.
_ESTIMATED = 5000
# For a PASS, an attack with this fraction of the errors that the claim allows must be detectable.
_RESOLUTION = 0.5


@dataclass(frozen=True, eq=False)
class MechanismAudit(HasVerdict):
    """Result of an audit of a mechanism's outputs on two data sets.

    Args:
        verdict: VIOLATION if the claim is refuted; INCONCLUSIVE if the outputs were too few to
            refute an attack with half the errors that the claim allows; else PASS, which holds for
            these two data sets only.
        claim: The claimed trade-off function.
        significance: Probability of a VIOLATION although the claim is true.
        log_e_value: Natural logarithm of the largest e-value seen; the claim is refuted at
            ``log(1 / significance)``.
        epsilon_lower: Lower bound on epsilon at ``delta``, valid at any sample size.
        delta: Delta of the bound.
        bound_significance: Probability with which the bound may fail.
        samples: Number of outputs drawn on each data set.
        detectable_error_rate: Largest common error rate of an attack with which this number of
            outputs would have refuted the claim; -1 if there is none.
        estimate: Estimated trade-off curve, which is not a bound.
    """

    verdict: Verdict
    claim: TradeoffFunction
    significance: float
    log_e_value: float
    epsilon_lower: float
    delta: float
    bound_significance: float
    samples: int
    detectable_error_rate: float
    estimate: TradeoffEstimate


def audit_mechanism(
    mechanism: Mechanism,
    d0: Any,
    d1: Any,
    claim: Claim,
    *,
    significance: float = 1e-3,
    max_samples: int = 20_000,
    delta: float | None = None,
    bound_significance: float = 0.05,
    rng: np.random.Generator | int = 0,
) -> MechanismAudit:
    """Audit any mechanism on two neighboring data sets, from its outputs alone.

    Outputs are drawn in growing portions until the claim is refuted or ``max_samples`` is reached.
    The test is valid at each look (`SequentialTradeoffTest`). It assumes only that calls are
    independent of each other, for outputs of any distribution and dimension.

    Args:
        mechanism: Function of a data set and a `numpy.random.Generator` that returns a number or an
            array, always of one shape. All of its randomness must come from the generator, or from
            a generator that is new in each call.
        d0: A data set, passed to ``mechanism`` unchanged.
        d1: A neighbor of ``d0`` in the sense of the claim. Choose the pair that is suspected to
            differ most, e.g. without and with one extreme record. It must not be the same object,
            nor an equal array, number or list.
        claim: (epsilon, delta), a trade-off function, or a `PrivacyClaim` that states an epsilon or
            a whole training. A trade-off function must be claimed for both orders of the data sets.
        significance: Probability in (0, 1) of a VIOLATION although the claim is true.
        max_samples: Largest number of outputs to draw on each data set, >= 32.
        delta: Delta in [0, 1) of the lower bound on epsilon; None for that of the claim, or 1e-5.
        bound_significance: Probability in (0, 1) with which that bound may fail.
        rng: Generator, or its seed, which makes the audit repeatable.

    Returns:
        The verdict, the evidence, a lower bound on epsilon and the estimated curve.

    Raises:
        MechanismError: If the mechanism raises an exception, or returns anything but finite
            numbers of one shape.
        ValueError: If an argument is outside its range, or the claim promises nothing.
        TypeError: If ``mechanism`` is not a function or ``claim`` is not a claim.
    """
    tradeoff, claimed_delta = _as_tradeoff(claim)
    level = _validate.open_unit("significance", significance, "such as 1e-3")
    bound_level = _validate.open_unit("bound_significance", bound_significance, "such as 0.05")
    most = _validate.positive_int("max_samples", max_samples)
    promised = common_error_rate(tradeoff)
    _refuse_nothing_to_refute(most, claim, promised, d0, d1)
    source = OutputSource(mechanism, (d0, d1), np.random.default_rng(rng))
    test = SequentialTradeoffTest(tradeoff, claimed_delta if delta is None else delta)
    goal, largest = -math.log(level), 0.0
    while test.samples < most and largest < goal:
        part = max(FIRST_FIT, test.samples // _PART)
        test.update(*source.draw(min(part, most - test.samples)))
        largest = max(largest, test.log_e)
    found, bound = test.detectable_error_rate(level), test.epsilon_lower(bound_level)
    return MechanismAudit(
        verdict=_verdict(test, largest >= goal, level, bound, found, promised),
        claim=tradeoff,
        significance=level,
        log_e_value=largest,
        epsilon_lower=bound,
        delta=test.delta,
        bound_significance=bound_level,
        samples=test.samples,
        detectable_error_rate=found,
        estimate=_estimated(*test.outputs()),
    )


def _refuse_nothing_to_refute(most: int, claim: Claim, promised: float, d0: Any, d1: Any) -> None:
    """Raise if nothing can be refuted; ``promised`` is the least common error rate of the claim."""
    if most < 2 * FIRST_FIT:
        raise ValueError(
            f"max_samples={most!r} must be at least {2 * FIRST_FIT}: the first {FIRST_FIT} "
            "outputs only train the attack; thousands are usual."
        )
    if promised <= 0:
        raise ValueError(f"claim={claim!r} promises no privacy, so there is nothing to refute.")
    if _same(d0, d1):
        told = f"d0={_validate.shown(d0)} and d1={_validate.shown(d1)}"
        raise ValueError(
            f"{told} must differ: outputs on one data set do not test a claim; change "
            "or leave out one record in d1."
        )


def _same(d0: Any, d1: Any) -> bool:
    """Return whether two data sets are the same; compares only types whose equality is known."""
    if d0 is d1:
        return True
    torch = sys.modules.get("torch")  # no tensor exists unless torch is loaded
    if torch is not None and isinstance(d0, torch.Tensor) and isinstance(d1, torch.Tensor):
        alike = (d0.dtype, d0.device, d0.layout) == (d1.dtype, d1.device, d1.layout)
        return alike and d0.layout == torch.strided and bool(torch.equal(d0, d1))
    if isinstance(d0, np.ndarray) and isinstance(d1, np.ndarray):
        alike = d0.dtype == d1.dtype and d0.dtype.kind in "biufcSU"
        return alike and np.array_equal(d0, d1)
    return _is_plain(d0) and _is_plain(d1) and bool(d0 == d1)


def _is_plain(data: Any) -> bool:
    """Return whether this is a number, a text, or a list or tuple of these."""
    if isinstance(data, list | tuple):
        return all(_is_plain(item) for item in data)
    return isinstance(data, bool | int | float | str)


def _as_tradeoff(claim: Claim) -> tuple[TradeoffFunction, float]:
    """Return the claimed trade-off function, and the delta at which to report epsilon."""
    if isinstance(claim, PrivacyClaim):
        if claim.delta is None:
            raise ValueError(f"claim={claim!r} has no delta; state PrivacyClaim(delta=...).")
        epsilon = claim.composed_epsilon() if claim.epsilon is None else claim.epsilon
        return ApproxDPTradeoff(epsilon, claim.delta), claim.delta
    if isinstance(claim, tuple) and len(claim) == 2:
        return ApproxDPTradeoff(*claim), claim[1]
    if callable(claim):
        return claim, float(getattr(claim, "delta", _DELTA))
    raise TypeError(
        f"claim={claim!r} must be (epsilon, delta), a trade-off function or a PrivacyClaim."
    )


def _estimated(p: Floats, q: Floats) -> TradeoffEstimate:
    if p.shape[1] == 1:
        return estimate_by_kernel(p, q)
    return estimate_by_neighbours(p[:_ESTIMATED], q[:_ESTIMATED])


def _verdict(
    test: SequentialTradeoffTest,
    refuted: bool,
    level: float,
    bound: float,
    found: float,
    promised: float,
) -> Verdict:
    drawn = f"{test.samples:,} outputs on each data set"
    proved = f"epsilon is at least {bound:.3g} at delta {test.delta:g}"
    if refuted:
        return Verdict(
            "VIOLATION",
            "epsilon",
            f"the outputs distinguish the data sets better than the claim allows, at significance "
            f"{level:g} after {drawn}; {proved}",
            advice="compare the scale of the noise, and what one record can change before the "
            "noise, with the claim",
        )
    reach = f"an attack with error rates of {max(found, 0.0):.3g} would usually have been found"
    if found < _RESOLUTION * promised:
        return Verdict(
            "INCONCLUSIVE",
            None,
            f"{drawn} are too few to refute the claim clearly; {proved}",
            pass_blockers=(
                f"outputs: {reach if found >= 0 else 'not even a perfect attack could be found'}, "
                f"the claim allows {promised:.3g}",
            ),
            advice="raise max_samples",
        )
    return Verdict(
        "PASS",
        None,
        f"the claim is not refuted by {drawn}; {reach}, the claim allows {promised:.3g}; "
        "other data sets may show more",
    )
