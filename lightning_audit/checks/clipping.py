"""Checks of clipping: what a canary adds, norms, finite gradients, the reduction of the loss."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_audit.checks.accounting import EPSILON
from lightning_audit.checks.check import (
    CLIPPED,
    Candidate,
    Case,
    Check,
    Fault,
    Monitored,
    Statistic,
    group,
    named_tensors,
)
from lightning_audit.checks.replay import CLIPPING, REPLAY_CLIPPING, REPLAY_SENSITIVITY
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import EARLIER, Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.sequential import PredictableCentre, running

# --- The check `finite`: gradients that are NaN or infinite.


def finite_result(lost: int, first: tuple[int, int, int] | None) -> CheckResult:
    """Return the result of `finite`: no record alone may make the released gradient non-finite.

    Args:
        lost: number of steps whose gradient was not finite.
        first: the first of them in which some records had non-finite gradients and others had not:
            its number, the number of such records, and of all records; None if there is none.
    """
    evidence: dict[str, int] = {"lost_steps": lost}
    if lost and first is None:
        message = (
            f"the gradient of {lost} steps was not finite, and it is unknown whether single "
            "records caused it"
        )
        return FINITE.not_run(message, evidence)
    if first is not None and lost:
        evidence |= dict(zip(("step", "records", "rows"), first, strict=True))
    return FINITE.judged(evidence)


def _not_finite(seen: Mapping[str, Any]) -> str:
    return (
        f"in step {seen['step'] + 1} the gradients of {seen['records']} of {seen['rows']} records "
        "looked at were not finite, and got past clipping: the released gradient reveals that such "
        "a record is in the batch"
    )


FINITE = Check(
    "finite",
    title="NaN and infinite gradients",
    failed_title="Non-finite gradients escape clipping",
    meaning="A record's gradient is NaN or infinite, which neither clipping nor noise hides, so "
    "the model reveals that the record was in the batch.",
    look_at="the loss of that record (a logarithm or a quotient of zero, an overflow), and whether "
    "samples whose norm is not finite are dropped, clamped or set to zero before clipping: no "
    "noise hides NaN",
    topic="Clipping",
    each=True,
    always=True,
    wrong=lambda seen: "records" in seen,
    private=True,
    fine="the gradient of every step was finite",
    message=_not_finite,
    public=("lost_steps", "message"),
    faults=(
        Fault(
            "not_finite",
            sentence="a record that is not finite: its gradient is not a number, no clipping "
            "bounds it, and the model shows whether the record was there",
        ).rule(-7),
    ),
)


# --- The check `clipping.norm`: norms that ghost clipping uses.


def norm_not_passed_on(seen: Mapping[str, Any]) -> bool:
    """Return whether ghost clipping clips at more than the optimizer's norm, beyond rounding."""
    # Reports of earlier releases have neither.
    return bool(seen.get("module_norm", 0.0) > (1.0 + 1e-6) * seen.get("optimizer_norm", 0.0))


def _wrong_norm(seen: Mapping[str, Any]) -> str:
    if norm_not_passed_on(seen):
        return (
            f"ghost clipping clips at module.max_grad_norm={seen['module_norm']:.4g}, and the "
            f"noise is made for optimizer.max_grad_norm={seen['optimizer_norm']:.4g}"
        )
    return (
        f"a sample's gradient norm is {seen['largest_ratio']:.3g} times the norm that it is "
        "clipped by"
    )


CLIPPING_NORM = Check(
    "clipping.norm",
    title="Norms used by ghost clipping",
    failed_title="Ghost clipping uses wrong norms",
    meaning="Ghost clipping scales samples by norms below those of their gradients, or clips at a "
    "larger norm than the noise is made for.",
    look_at="the norm samplers of ghost clipping: the norm of a layer, of a bias or of a second "
    "use of a layer may be left out or computed otherwise; grad_sample_mode='hooks' has none",
    topic="Clipping",
    each=True,
    wrong=lambda seen: seen["largest_ratio"] > NORM_TOLERANCE or norm_not_passed_on(seen),
    private=True,
    fine="the norms that clipping goes by are those of the gradients",
    message=_wrong_norm,
    # Settings, computed from no data.
    public=("module_norm", "optimizer_norm"),
    faults=(
        Fault(
            "clipping_norm_not_passed_on",
            "Module and optimizer have different clipping norms",
            "clipping norm too large: ghost clipping clips at the module's max_grad_norm, and the "
            "noise is made for the optimizer's, which is smaller",
            "what changes optimizer.max_grad_norm, as a scheduler does: it must set "
            "module.max_grad_norm to the same value (module is the one that make_private returns)",
        ).rule(-4, CLIPPED, applies=norm_not_passed_on),
        Fault(
            "wrong_norms",
            sentence="clipping by wrong norms: samples are clipped by norms that their gradients "
            "exceed",
        ).rule(-4, CLIPPED),
    ),
)


def clipping_norm_result(
    checked: int, largest_ratio: float, clipped_at: tuple[float, float] = (0.0, 0.0)
) -> CheckResult:
    """Return the result of `clipping.norm`: ghost clipping must use the true norms of gradients.

    Args:
        checked: number of samples whose gradients were computed to get their norms.
        largest_ratio: largest ratio of a true norm to the norm that clipping used.
        clipped_at: clipping norms of the module and of the optimizer, in the step with the largest
            ratio of the two; zeros if no step was observed.
    """
    module_norm, optimizer_norm = clipped_at
    norms = {"module_norm": module_norm, "optimizer_norm": optimizer_norm}
    if not checked and not norm_not_passed_on(norms):
        return CLIPPING_NORM.not_run("no sample's norm was looked at")
    return CLIPPING_NORM.judged({"checked": checked, "largest_ratio": largest_ratio, **norms})


#: Ratio of norms that rounding in low precision does not reach.
NORM_TOLERANCE = 1.1


# --- The check `loss_reduction`: a warning if the loss is reduced otherwise than declared.


def loss_reduction_result(found: str | None, supposed: str | None) -> tuple[CheckResult, ...]:
    """Return the result of `loss_reduction`: a loss scaled by the batch size costs accuracy.

    Args:
        found: how the loss reduces its batch, "mean" or "sum"; None if unknown.
        supposed: the reduction that the optimizer assumes; None if it has none.

    Returns:
        One result, or none if either is unknown.
    """
    if found is None or supposed is None:
        return ()
    return (
        LOSS_REDUCTION.judged(
            {"loss": found, "optimizer": supposed},
            f"the loss is a {found} over its batch, as the optimizer takes it to be",
        ),
    )


def _reduced_otherwise(seen: Mapping[str, Any]) -> str:
    effect = (
        "per-sample gradients are too large by a factor of the batch size, and all are clipped"
        if seen["loss"] == "sum"
        else "per-sample gradients are too small by a factor of the batch size, and the noise "
        "dominates"
    )
    return (
        f"the loss is a {seen['loss']} over its batch where the optimizer takes it for a "
        f"{seen['optimizer']}: {effect}; that loses no privacy, but accuracy"
    )


LOSS_REDUCTION = Check(
    "loss_reduction",
    title="Mean or sum of losses",
    failed_title="Loss reduction is set wrongly",
    meaning="The loss is a sum over the batch and the optimizer takes it for a mean, or the "
    "reverse; no privacy is lost, but every per-sample gradient is off by a factor of the "
    "batch size.",
    look_at="`loss_reduction` of `make_private`, which must be the reduction of the loss that runs "
    "backward",
    topic="Clipping",
    warns=True,
    wrong=lambda seen: seen["loss"] != seen["optimizer"],
    message=_reduced_otherwise,
)


# --- Shifts of canaries, by the part of a split batch that they enter.

#: Least difference of the shifts of parts that count differently, and in standard errors.
_GAP, _ERRORS = 0.25, 3.0


class ShiftEstimate:
    """Estimate of the canaries' signal: mean residual of those that are in, minus that of the rest.

    Args:
        canaries: number of canaries of a step.
    """

    def __init__(self, canaries: int) -> None:
        self._centre = PredictableCentre((canaries,))
        # out, in: number, sum and sum of squares of residuals.
        self.sums = np.zeros((2, 3))

    def update(self, coins: FloatArray, readings: FloatArray) -> FloatArray:
        """Update with a step, or several; return their centered residuals, ``[n, k]``."""
        residual = np.atleast_2d(readings - coins)
        centred = np.asarray(residual - self._centre.update(residual))
        chosen = np.stack(np.atleast_2d(coins == 0, coins == 1), axis=1)
        x = np.where(chosen, centred[:, None], 0.0)
        added = np.stack([part.sum(axis=-1) for part in (chosen, x, x**2)], axis=-1)
        self.sums = running(self.sums, added)[-1]
        return centred

    @property
    def shift(self) -> float:
        """Estimated signal: 1 for a correct implementation, 0 for canaries without effect."""
        means = self.sums[:, 1] / np.maximum(self.sums[:, 0], 1.0)
        return float(1.0 + means[1] - means[0])

    @property
    def std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        numbers, sums, squares = self.sums.T
        within = squares - sums**2 / np.maximum(numbers, 1.0)
        freedom = float(numbers.sum()) - 2.0
        return math.sqrt(max(float(within.sum()), 0.0) / freedom) if freedom > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the shift; infinite until both groups were observed."""
        numbers = self.sums[:, 0]
        if numbers.min() < 2:
            return math.inf
        return self.std * math.sqrt(float((1.0 / numbers).sum()))


class PartShifts:
    """Bets and shifts of canaries in earlier parts of a batch, and of those in its last part.

    If parts count differently, their average may look correct. So each kind of part has its own
    bet, from the first step on whose canaries enter an earlier part. The part is drawn before the
    step, and each bet is constant in steps of the other kind. So each bet is an e-process in the
    filtration of all steps, and so is their average.

    Args:
        earlier: the bet of earlier parts.
        last: the bet of last parts.
        canaries: number of canaries of a step.
    """

    def __init__(self, earlier: CoinBet, last: CoinBet, canaries: int) -> None:
        self._bets = [earlier, last]
        self.earlier, self.last = ShiftEstimate(canaries), ShiftEstimate(canaries)

    def update(self, coins: FloatArray, readings: FloatArray, *, earlier: bool) -> FloatArray:
        """Update with steps of one kind; return the log of the mean of both e-values, ``[n]``."""
        (self.earlier if earlier else self.last).update(coins, readings)
        now, other = self._bets if earlier else self._bets[::-1]
        return np.logaddexp(now.update(coins, readings), other.log_e) - math.log(2.0)

    @property
    def differ(self) -> bool:
        """Whether the shifts of earlier parts and of last parts differ."""
        gap = abs(self.earlier.shift - self.last.shift)
        return gap > max(_GAP, _ERRORS * math.hypot(self.earlier.error, self.last.error))


# --- The check `sensitivity`: whether a canary adds more than clipping allows.

#: One-sided 95 % point of the normal distribution, for the limits of the shift.
_Z95 = 1.6448536269514722
#: Number of steps whose norm of all "in" readings is kept, to distinguish clipping faults.
_KEPT_NORMS = 64
#: A canary is unclipped if its reading exceeds the first number, and 1 plus the second number of
#: standard deviations of the noise, in clipping norms; number of such steps that are kept.
_LOUD, _DEVIATIONS, _KEPT_STEPS = 3.0, 8.0, 8
#: Least number of steps, and fraction of canaries, for clipping to be missing since a step.
_SEVERAL, _MOST = 3, 0.6
#: Fraction of the stake that is on all parts together, once batches are split.
_TOGETHER = 0.5


class LoudSteps:
    """Steps with unclipped canaries: readings far above the clipping norm.

    Args:
        count: number of canaries, k.
    """

    def __init__(self, count: int) -> None:
        #: Numbers of the first steps with an unclipped canary.
        self.numbers: list[int] = []
        # Canaries that are in, clipped and unclipped: counts, and sums of their readings.
        self._seen, self._sums = np.zeros((2, count)), np.zeros((2, count))
        self._without = 0
        # Since the first such step: steps with a canary, canaries that are in, unclipped ones.
        self._since = [0, 0, 0]

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        inside, readings = seen.coins == 1, seen.readings
        loud = readings > max(_LOUD, 1.0 + _DEVIATIONS * seen.noise_multiplier)
        for kind, chosen in enumerate((inside & ~loud, inside & loud)):
            self._seen[kind] += chosen.sum(axis=0)
            self._sums[kind] = running(self._sums[kind], np.where(chosen, readings, 0.0))[-1]
        self._without += int((loud & ~inside).any(axis=1).sum())
        found = (inside & loud).any(axis=1)
        since = np.logical_or.accumulate(found) | bool(self.numbers)
        self.numbers = [*self.numbers, *seen.step[found].tolist()][:_KEPT_STEPS]
        steps = since & inside.any(axis=1)
        counted = (steps, inside[steps], (inside & loud)[steps])
        self._since = [a + int(b.sum()) for a, b in zip(self._since, counted, strict=True)]

    @property
    def rare(self) -> bool:
        """Whether some canaries are unclipped at times, and clipped in most steps."""
        quiet, loud = self._seen[:, self._seen[1] > 0]
        if not len(loud) or self._without:  # such a reading without its canary is from the data
            return False
        most = float(np.mean(2.0 * loud <= quiet)) > 0.5
        return most and 0.5 < float(self._sums[0].sum() / max(self._seen[0].sum(), 1.0)) < 1.5

    @property
    def from_then_on(self) -> bool:
        """Whether most canaries are unclipped since the first such step, for several steps."""
        steps, inside, loud = self._since
        return steps >= _SEVERAL and loud > _MOST * inside

    @property
    def shift(self) -> float:
        """Mean reading of unclipped canaries; 0 if there are none."""
        return float(self._sums[1].sum() / max(self._seen[1].sum(), 1.0))

    @property
    def part(self) -> float:
        """Fraction of the readings of canaries that are in which are unclipped."""
        return float(self._seen[1].sum() / max(self._seen.sum(), 1.0))


class SensitivityCheck(Statistic):
    """Test of `sensitivity`: a canary shifts the readings by at most the clipping norm."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._labels = tuple(f"{i}: {label}" for i, label in enumerate(header.canaries))
        self._k = len(self._labels)
        self._kinds = header.canary_kinds
        self._signal = header.signal
        self._coin_probability = header.coin_probability
        self._bet: CoinBet | None = None
        # By part of a split batch, and the bet's log e-value when the first one was seen.
        self.parts: PartShifts | None = None
        self._before_parts = 0.0
        self._all = ShiftEstimate(self._k)
        self._each = np.zeros((2, 2, self._k))  # out, in: number and sum of residuals, by canary
        self.loud = LoudSteps(self._k)
        # Number of canaries in, norm of their readings, scale, noise multiplier; of first steps.
        self._norms: list[tuple[float, float, float, float]] = []

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        coins, readings, earlier = seen.coins, seen.readings, bool(seen.canaries[0] == EARLIER)
        if self._bet is None:
            self._bet = self._new_bet(seen)
        if earlier and self.parts is None:
            self._before_parts = float(self._bet.log_e)
            self.parts = PartShifts(self._new_bet(seen), self._new_bet(seen), self._k)
        log_e = self._bet.update(coins, readings)
        if self.parts is not None:  # the bet keeps a part of its stake, the rest is on the parts
            of_parts = self._before_parts + self.parts.update(coins, readings, earlier=earlier)
            log_e = np.logaddexp(log_e + math.log(_TOGETHER), of_parts + math.log1p(-_TOGETHER))
        self.test.update(log_e, seen.step)
        centred = self._all.update(coins, readings)
        for coin in (0, 1):
            chosen = coins == coin
            added = np.stack([chosen, np.where(chosen, centred, 0.0)], axis=1)
            self._each[coin] = running(self._each[coin], added)[-1]
        self.loud.update(seen)
        for inside, read in zip(coins == 1, readings, strict=True):
            if inside.any() and len(self._norms) < _KEPT_NORMS:
                norm = float(np.linalg.norm(read[inside]))
                self._norms.append((float(inside.sum()), norm, seen.scale, seen.noise_multiplier))

    def _new_bet(self, seen: Observation) -> CoinBet:
        scale = seen.noise_multiplier
        return CoinBet((self._k,), self._signal, scale, self._coin_probability, self._kinds)

    @property
    def together(self) -> float:
        """Fraction of the stake that is on all steps alike."""
        return 1.0 if self.parts is None else _TOGETHER

    @property
    def shift(self) -> float:
        """Estimated signal of a canary: 1 for a correct implementation, 0 if it has no effect."""
        return self._all.shift

    @property
    def largest_shift(self) -> float:
        """`shift`, or the largest shift of a part if parts of a batch count differently."""
        parts = self.parts
        if parts is None or not parts.differ:
            return self.shift
        return max(parts.earlier.shift, parts.last.shift)

    @property
    def shift_upper(self) -> float:
        """Upper 95 % limit of the largest shift of any part; inf until all were observed."""
        parts = self.parts
        upper = self.shift + _Z95 * self.shift_error
        if parts is None:
            return upper
        own = (part.shift + _Z95 * part.error for part in (parts.earlier, parts.last))
        return max(upper, *own)

    def shifts(self) -> FloatArray:
        """Return each canary's estimated signal, NaN if it was not both in and out, ``[k]``."""
        counts, sums = self._each[:, 0], self._each[:, 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return np.asarray(1.0 + means[1] - means[0])

    @property
    def shift_error(self) -> float:
        """Standard error of `shift`; infinite until both groups were observed."""
        return self._all.error

    def shift_errors(self) -> FloatArray:
        """Return standard errors of `shifts`, from the spread of all canaries, ``[k]``."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.residual_std * np.sqrt((1.0 / self._each[:, 0]).sum(axis=0)))

    @property
    def residual_std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        return self._all.std

    @property
    def shift_lower(self) -> float:
        """Lower 95 % limit of the shift; -inf until both groups were observed."""
        return self.shift - _Z95 * self.shift_error

    @property
    def observations(self) -> int:
        """Number of readings."""
        return int(self._all.sums[:, 0].sum())

    @property
    def sum_is_clipped(self) -> bool:
        """Whether all canaries together have one norm, as if their average was clipped.

        Clipped one by one at ``c``, n canaries give readings of norm ``c * sqrt(n)``. Clipped after
        averaging, they give norm ``scale`` (the expected batch size) for any n.
        """
        if not self._norms:
            return False
        number, norm, scale, sigma = np.array(self._norms).T
        # A single small canary may be hidden by the data of its batch.
        kept = (number > 1) | (norm > 0.5 * scale)
        if not kept.any():
            return False
        number, norm, scale, sigma = (x[kept] for x in (number, norm, scale, sigma))
        error = np.mean(norm / scale) - 1.0
        tolerance = 0.1 + 3.0 * np.mean(sigma / scale) / math.sqrt(len(norm))
        root = np.sqrt(number)
        one_by_one = norm - root * (norm @ root) / (root @ root)
        return bool(
            abs(error) < tolerance and np.sum((norm - norm.mean()) ** 2) <= np.sum(one_by_one**2)
        )

    def evidence(self) -> dict[str, Any]:
        """Return the shifts."""
        by_part = {}
        if self.parts is not None:
            shifts = {"earlier": self.parts.earlier.shift, "last": self.parts.last.shift}
            by_part = {"shift_by_part": {part: round(x, 3) for part, x in shifts.items()}}
        return {
            "shift": self.shift,
            "shift_lower": self.shift_lower,
            **by_part,
            "residual_std": self.residual_std,
            "sum_is_clipped": self.sum_is_clipped,
            "shift_by_canary": dict(
                zip(self._labels, self.shifts().round(3).tolist(), strict=True)
            ),
        }

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the result of the check."""
        return (
            self.check.result(self.test, self.evidence(), lack, largest_shift=self.largest_shift),
        )


SENSITIVITY = Check(
    "sensitivity",
    title="Influence of one record",
    failed_title="One record counts too much",
    meaning="A canary, a test record that the audit adds, moved the gradient by more than the "
    "clipping norm, so the noise is too small to hide one record.",
    look_at="whether each per-sample gradient is clipped at `max_grad_norm`, by its norm over all "
    "tensors, before gradients are summed or averaged",
    topic="Clipping",
    # It needs the most steps of all checks, so it gets the largest weight.
    weight=130,
    group="clipping",
    needs="no finite gradient was read of a step with canaries",
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="signal",
    fine="a canary adds no more than clipping allows",
    message="a canary adds {largest_shift:.3g} times what clipping to max_grad_norm allows",
    reads="canaries",
    statistic=SensitivityCheck,
)


# --- Names the clipping fault by which a canary adds more than the clipping norm.

MISSING_AT_TIMES = Fault(
    "clipping_missing_at_times",
    "Some steps are not clipped",
    "clipping is missing at times",
    "what differs in those steps: values, losses or norms of a batch that decide whether its "
    "gradients are clipped, the last batch of an epoch, rows that are left out",
    "canaries pass with {size:.3g} times max_grad_norm {part:.0%} of the times they enter, and are "
    "clipped the others",
)
MISSING_FROM_A_STEP_ON = Fault(
    "clipping_missing_from_a_step_on",
    "Clipping stops at some step",
    "clipping is missing from step {step} on",
    "what changes at that step: a scheduler of max_grad_norm, an epoch, a layer that is "
    "unfrozen, a flag of a warm-up",
    "since then canaries pass with {size:.3g} times max_grad_norm; before, they were clipped",
)
#: Canaries of at least this norm show whether they were clipped, for any noise.
_OVERSIZE = 20.0
#: Kinds of faults that canaries confuse with others, and the checks that distinguish them.
_BY_REPLAY = {"sum", "batch", "parts", "rows"}
_REPLAYED = REPLAY_CLIPPING, REPLAY_SENSITIVITY
#: End of the label of an input canary; labels of gradient canaries end with a tensor.
_INPUT = re.compile(r"\(input(, sampling_rate=[^)]*)?\)$")


def clipping_candidates(case: Case, monitor: Monitored) -> list[Candidate]:
    """Return the clipping faults that fit the readings, the likeliest first.

    Patterns that only one fault makes come first: the norm of the readings, unclipped tensors, an
    unclipped gradient, parts of a batch that count differently, canaries over several tensors that
    add more than the others. A clipping norm that is too large comes last, because it explains any
    shift.
    """
    finding = _finding(case, monitor)
    if finding is None or _BY_REPLAY & {case.seen(check).get("kind") for check in _REPLAYED}:
        return []  # the replay names the fault
    at_times, missed = _at_times(monitor), _missed(monitor, case.oversize)
    loose = at_times is not None or missed is not None
    if loose and case.seen(REPLAY_CLIPPING).get("passes_whole"):
        return []  # unclipped gradients occur at times, in any tensor
    shift = monitor.sensitivity.largest_shift
    evidence = {"shift": shift, "shift_lower": monitor.sensitivity.shift_lower}
    found = [at_times] if at_times else [_after_average(monitor), missed]
    if shift > 0.5 * case.oversize and not at_times:
        found.append(_Named(CLIPPING["none"], "no clipping: a canary passes with its full norm"))
    elif not loose:
        by_part = _by_part(monitor)
        found += [by_part] if by_part else _of_norm(case, monitor)
    explains = (SENSITIVITY.name, *group("clipping"), *group("replay"), *group("leakage"))
    return [
        case.candidate(
            n.fault, finding, n.sentence, {**evidence, **n.evidence}, n.parameters, explains, n.seen
        )
        for n in found
        if n is not None
    ]


def _of_norm(case: Case, monitor: Monitored) -> list[_Named | None]:
    """Return the faults that clip gradients at a norm other than the claimed one.

    Replays with crafted gradients show more than canaries. If a crafted gradient in one tensor
    adds too much, the fault is not clipping per tensor. If the norm after clipping differs between
    crafted gradients, there is no single wrong norm. In both cases the replay names the fault.
    """
    seen = case.seen(REPLAY_CLIPPING)
    found = [] if seen.get("in_one_tensor") else [_per_tensor(monitor)]
    if seen.get("alike", True):
        found += [_counts_twice(monitor), _too_large(monitor)]
    return found


@dataclass(frozen=True)
class _Named:
    """A clipping fault, without the fields that all of them share."""

    fault: Fault
    sentence: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    seen: str = ""


def _finding(case: Case, monitor: Monitored) -> str | None:
    if SENSITIVITY.name in case.violated:
        return SENSITIVITY.name
    leaks = EPSILON.name in case.violated and not case.first_of(group("noise"))
    return EPSILON.name if leaks and monitor.sensitivity.shift_lower > 2 else None


def _at_times(monitor: Monitored) -> _Named | None:
    """Name missing clipping in some steps, or from a step on, if canaries show it."""
    loud, parts = monitor.sensitivity.loud, monitor.sensitivity.parts
    if not loud.rare or (parts is not None and parts.differ):
        return None
    fault = MISSING_FROM_A_STEP_ON if loud.from_then_on else MISSING_AT_TIMES
    said = fault.sentence.format(step=loud.numbers[0] + 1)
    seen = fault.measured.format(size=loud.shift, part=loud.part)
    return _Named(fault, said, {"loud_steps": loud.numbers}, seen=seen)


def _after_average(monitor: Monitored) -> _Named | None:
    if not monitor.sensitivity.sum_is_clipped:
        return None
    return _Named(CLIPPING["sum"], evidence={"expected_batch_size": monitor.last_scale})


def _missed(monitor: Monitored, oversize: float) -> _Named | None:
    """Name the tensors that were not clipped, if most were."""
    shifts = monitor.sensitivity.shifts()
    loose = shifts > 0.5 * oversize
    clipped = shifts < 0.1 * oversize
    if oversize < _OVERSIZE or not loose.any() or clipped.sum() <= loose.sum():
        return None
    labels = list(dict.fromkeys(np.array(monitor.header.canaries)[loose].tolist()))
    return _Named(
        CLIPPING["some"],
        "clipping misses some tensors: "
        f"{', '.join(f'`{label}`' for label in labels)} passed with the full norm, and the other "
        "canaries were clipped",
        {"unclipped_canaries": labels},
        named_tensors(monitor, labels),
    )


def _by_part(monitor: Monitored) -> _Named | None:
    """Name parts that count differently, if a canary's shift depends on the part it enters."""
    parts = monitor.sensitivity.parts
    if parts is None or not parts.differ:
        return None
    earlier, last = parts.earlier.shift, parts.last.shift
    return _Named(
        CLIPPING["parts"],
        "parts of a split batch count differently",
        {"shift_of_earlier_parts": earlier, "shift_of_last_parts": last},
        seen=f"a record in its last part adds {max(last, 0.0):.2g} times max_grad_norm, one in an "
        f"earlier part {max(earlier, 0.0):.2g} times",
    )


def _per_tensor(monitor: Monitored) -> _Named | None:
    spread, single = _shifts_by_width(monitor)
    if not (spread > 1.5 and single - 1.0 < (spread - 1.0) / 3.0):
        return None
    return _Named(
        CLIPPING["tensors"],
        "clipping per tensor",
        {"shift_of_spread_canaries": spread, "shift_of_single_tensors": single},
        seen="each tensor is clipped to max_grad_norm on its own, so a whole gradient passes with "
        f"{spread:.3g} times that norm",
    )


def _shifts_by_width(monitor: Monitored) -> tuple[float, float]:
    """Return the mean shift of canaries over many tensors, and of those in one; NaN if unseen."""
    shifts = monitor.sensitivity.shifts()
    kinds = np.array(monitor.header.canary_kinds)
    wide, pair = kinds == "Spread", kinds == "BlockPair"
    seen = ~np.isnan(shifts)
    groups = (shifts[wide & seen], shifts[~wide & ~pair & seen])
    spread, single = (float(np.mean(g)) if len(g) else math.nan for g in groups)
    return spread, single


def _counts_twice(monitor: Monitored) -> _Named | None:
    """Name a record that counts several times, if an input canary adds a multiple of the norm."""
    sensitivity = monitor.sensitivity
    times = round(sensitivity.shift)
    # The lower limit lies 1.64 standard errors down.
    error = (sensitivity.shift - sensitivity.shift_lower) / 1.64
    whole = times >= 2 and abs(sensitivity.shift - times) <= max(2.0 * error, 0.1)
    if not (_is_input(monitor) and whole):
        return None
    return _Named(
        CLIPPING["rows"],
        "a record counts more than once",
        {"times": times},
        seen=f"it adds about {times} times max_grad_norm, as if {times} samples were made of it",
    )


def _too_large(monitor: Monitored) -> _Named:
    shift = monitor.sensitivity.shift
    what = "a record adds" if _is_input(monitor) else "gradients are clipped at"
    seen = f"{what} {shift:.3g} times max_grad_norm"
    return _Named(CLIPPING["norm"], "clipping norm too large", seen=seen)


def _is_input(monitor: Monitored) -> bool:
    return bool(_INPUT.search(monitor.header.canaries[0]))


#: The checks of this subject, in the order of the report.
CHECKS = (FINITE, CLIPPING_NORM, LOSS_REDUCTION, SENSITIVITY)
