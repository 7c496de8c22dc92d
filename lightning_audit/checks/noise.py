"""Checks of the noise against its claim: size, mean, distribution, single entries, divisor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_audit.checks.check import NOISED, Check, Evidence, Fault, Statistic
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.noise_tests import (
    INTERVAL_SIGNIFICANCE,
    EntryBets,
    TailBet,
    TieBet,
    chosen_upper,
    excess_log_e,
    interval_in_words,
    limits_of_each,
    noise_interval,
    noise_log_e,
    quiet_entries,
    repeated_share,
    rounded_down,
    rounded_up,
    sign_log_e,
    units_upper,
)
from lightning_audit.stats.sampling_tests import DivisorTest, QuietEntries
from lightning_audit.stats.sequential import (
    PredictableCentre,
    SingleStepBet,
    log_mean_exp,
    looks_after,
    running,
)

# --- Sums of squares of tensors or canaries over the steps, and those after a step that flagged.

#: Least number of steps before and after an onset; ratio of noise below which it is clearly less.
_SEVERAL, _LESS = 3, 0.9


class PooledSums:
    """Sums of squares of several units, also pooled over units with recent mean square below 1.

    The choice of units to pool depends on earlier steps alone, so the pooled test stays valid, and
    units with large data do not mask the others.

    Args:
        units: number of units (tensors, or canaries).
    """

    _DECAY = 0.9
    #: Clip the mean square at 2x the claim: one high-variance step must not mask later ones.
    _LOUDEST = 2.0

    def __init__(self, units: int) -> None:
        self.count, self.squares = np.zeros(units), np.zeros(units)
        self.pooled_count = self.pooled_squares = 0.0
        # No unit is pooled at the first step: nothing is known of it yet.
        self._recent = np.ones(units)

    def update(self, counts: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Update with a step, or several; return counts and sums after each, ``[steps, 1 + n]``.

        Args:
            counts: number of terms of each unit, alike in all steps, ``[n]``.
            squares: sums of squares of each unit, ``[n]`` or ``[steps, n]``.
        """
        squares, recent = np.atleast_2d(squares), [self._recent]
        weight = (1.0 - self._DECAY) * (counts > 0)
        for mean in np.minimum(squares / np.maximum(counts, 1.0), self._LOUDEST):
            recent.append(recent[-1] + weight * (mean - recent[-1]))
        self._recent = recent.pop()
        added = np.stack([np.broadcast_to(counts, squares.shape), squares], axis=1)
        chosen = (np.stack(recent) < 1.0)[:, None]
        pooled = np.where(chosen, added, 0.0).sum(axis=-1, keepdims=True)
        before = [[self.pooled_count, *self.count], [self.pooled_squares, *self.squares]]
        sums = running(before, np.concatenate([pooled, added], axis=-1))[1:]
        count, total = np.moveaxis(sums, 1, 0)
        self.pooled_count, self.pooled_squares = sums[-1, :, 0].tolist()
        self.count, self.squares = count[-1, 1:], total[-1, 1:]
        return count, total

    @property
    def mean_square(self) -> FloatArray:
        """Mean square of each unit so far, ``[n]``; 1 for a unit that was not read."""
        return np.where(self.count > 0, self.squares / np.maximum(self.count, 1.0), 1.0)

    def noise_upper(self, significance: float = INTERVAL_SIGNIFICANCE) -> float:
        """Upper limit of the noise over its claim; see `lightning_audit.stats.noise_tests`.

        Half of the stake is on all units together, and half is on each unit alone. The pooled sums
        are not used: they omit steps in which every unit had a large mean square, and would compare
        the noise of the other steps with the signal of all steps.
        """
        return units_upper(self.count, self.squares, significance)

    def largest_upper(self, units: Iterable[int]) -> float:
        """Return the largest upper limit of the noise over its claim among the given units.

        The units may be chosen by their readings; see `chosen_upper`. Infinite without a unit.
        """
        among = len(self.count)
        limits = (chosen_upper(self.count[j], self.squares[j], among) for j in units)
        return max(limits, default=math.inf)


class Onset:
    """Mean squares of the tensors before the first step that `noise.step` flags, and since then.

    Args:
        units: number of tensors.
    """

    #: Mean squares of the flagged step: that step is chosen by its readings, later ones are not.
    #: Checkpoints of earlier versions have none.
    _chosen: FloatArray | float = 0.0

    def __init__(self, units: int) -> None:
        self.steps = 0
        #: Number of steps since the flag whose own e-value is above 1.
        self.quiet = 0
        # Number of steps before; the tensors' mean squares before and since, summed over steps.
        self._before, self._squares = 0, np.zeros((2, units))

    def update(self, mean_squares: FloatArray, *, quiet: Any, flagged: Any) -> None:
        """Update with steps.

        Args:
            mean_squares: of each tensor, ``[steps, units]``.
            quiet: whether the step's own e-value is above 1, ``[steps]``.
            flagged: whether a step has been flagged by then, ``[steps]``.
        """
        if not self.steps and flagged.any():
            self._chosen = mean_squares[flagged][0]
        self.steps += int(flagged.sum())
        self.quiet += int((flagged & quiet).sum())
        self._before += int((~flagged).sum())
        for since, of_step in zip(flagged.astype(int), mean_squares, strict=True):
            self._squares[since] += of_step

    def ratios(self) -> dict[int, float]:
        """Return tensor -> noise and data over the claim since, if it was as claimed before.

        Empty unless at least `_SEVERAL` steps came before the flag and at least as many since, and
        the own e-value of each step since is above 1.
        """
        if self.steps < _SEVERAL or self.quiet < self.steps or self._before < _SEVERAL:
            return {}
        before, since = np.sqrt(self._squares / [[self._before], [self.steps]])
        smaller = np.flatnonzero((since < _LESS) & (since < _LESS * before) & (before > _LESS))
        return {int(j): float(since[j]) for j in smaller}

    def upper(self, counts: FloatArray, units: Sequence[int]) -> float:
        """Return an upper limit of the noise over its claim in each given tensor, after the flag.

        The limit comes from a confidence sequence that starts at a step which the past determines.
        The tensors may be chosen by their readings, since the limits of all tensors hold at once.

        Args:
            counts: coordinates that a step reads of each tensor, ``[n]``.
            units: the tensors.
        """
        sums = PooledSums(len(counts))
        sums.count = counts * max(self.steps - 1, 0)
        sums.squares = counts * (self._squares[1] - self._chosen)
        return sums.largest_upper(units)


# --- Checks of the noise's size: over all tensors, per tensor, per step, and along the canaries.

#: Advice if too little noise may be a fault, or post-processing of correct noise.
SHOW_THE_RELEASE = (
    "if the noisy gradient is post-processed before the update, do so after Opacus' add_noise, or "
    "show the noisy gradient first: grads = lightning_audit.released(grads, module=net)"
)


def _upper(test: Evidence, upper: float) -> dict[str, float]:
    """Return the limit as evidence, rounded as in the message."""
    return {"noise_ratio_upper": rounded_up(upper)} if test.violated else {}


def _at_most(seen: Mapping[str, Any]) -> str:
    return interval_in_words(None, seen["noise_ratio_upper"])


class WitnessNoiseCheck(Statistic):
    """Statistic of `noise`, `noise.tensor` and `noise.step`, from the probe coordinates."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._names = header.tensors
        self._counts = np.array(header.witnesses, dtype=np.float64)
        self.sums = PooledSums(len(self._names))
        self.burst = NOISE_STEP.test(self.test.significance)
        self._bet = SingleStepBet()
        self._seen = 0
        self.onset = Onset(len(self._names))
        #: Largest log e-value of each tensor at any look.
        self._largest = np.zeros(len(self._names))
        self.single = NOISE_TENSOR.test(self.test.significance)

    def update(self, seen: Observation) -> None:
        """Update with steps."""
        squares, step = seen.tensor_squares, seen.step
        count, total = self.sums.update(self._counts, squares)
        together = noise_log_e(self._counts.sum(), squares.sum(axis=1))
        each = log_mean_exp(noise_log_e(self._counts, squares))
        alone = log_mean_exp([together, each], axis=0)
        self.burst.update(self._bet.update(alone), step)
        flagged = step >= (step[-1] + 1 if (at := self.burst.violated_at) is None else at)
        mean_squares = squares / np.maximum(self._counts, 1.0)
        self.onset.update(mean_squares, quiet=alone > 0.0, flagged=flagged)
        looks, self._seen = looks_after(self._seen, len(step))
        log_e = noise_log_e(count[looks], total[looks])
        self.test.update(log_e[:, 0], step[looks])
        self.single.update(log_mean_exp(log_e[:, 1:]), step[looks])
        self._largest = np.fmax.reduce(np.vstack([self._largest, log_e[:, 1:]]))

    def ratios(self) -> FloatArray:
        """Return an upper estimate of each tensor's noise over the claim: noise plus data."""
        return np.sqrt(self.sums.mean_square)

    def upper_since_onset(self, names: Iterable[str]) -> float:
        """Return an upper limit of the noise over its claim in each tensor; see `Onset.upper`."""
        return self.onset.upper(self._counts, [self._names.index(name) for name in names])

    def upper_of_each(self, names: Iterable[str]) -> dict[str, float]:
        """Return upper limits of the noise over its claim by tensor, which hold at once."""
        return {name: self.sums.largest_upper([self._names.index(name)]) for name in names}

    @property
    def smallest_ratio(self) -> float:
        """The smallest of `ratios`."""
        return float(self.ratios().min())

    def flagged_tensors(self) -> list[str]:
        """Return the tensors whose own e-value crossed the threshold, least noise first."""
        level, ratios = self.single.threshold + np.log(len(self._names)), self.ratios()
        flagged = sorted(np.flatnonzero(self._largest >= level), key=lambda j: float(ratios[j]))
        return [self._names[j] for j in flagged]

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the results of the three checks."""
        evidence: dict[str, Any] = {
            "ratio": dict(zip(self._names, self.ratios().round(4).tolist(), strict=True)),
            "smallest_ratio": self.smallest_ratio,
            "coordinates": int(self._counts.sum()),
        }
        flagged = self.flagged_tensors()
        least = each = math.inf  # not computed unless a check is violated
        if self.test.violated or self.single.violated:
            least = self.sums.noise_upper()
            each = self.sums.largest_upper(map(self._names.index, flagged))
        of_tensors = {**evidence, "flagged": flagged} | _upper(self.single, each)
        return (
            NOISE.result(self.test, evidence | _upper(self.test, least), lack),
            NOISE_TENSOR.result(self.single, of_tensors, lack),
            NOISE_STEP.result(self.burst, {}, lack),
        )


class CanaryNoiseCheck(Statistic):
    """Statistic of `noise.canary`: the noise along the canaries, pooled and for each canary."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._labels = header.canaries
        self._centre = PredictableCentre((len(self._labels),))
        self.sums = PooledSums(len(self._labels))
        self._seen = 0

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        residual = seen.readings - seen.coins
        squares = ((residual - self._centre.update(residual)) / seen.noise_multiplier) ** 2
        count, total = self.sums.update(np.ones(squares.shape[1]), squares)
        looks, self._seen = looks_after(self._seen, len(squares))
        log_e = noise_log_e(count[looks], total[looks])
        both = [log_e[:, 0], log_mean_exp(log_e[:, 1:])]
        self.test.update(log_mean_exp(both, axis=0), seen.step[looks])

    def ratios(self) -> FloatArray:
        """Return an upper estimate of the noise along each canary over the claim, ``[k]``."""
        return np.sqrt(self.sums.mean_square)

    def evidence(self) -> dict[str, Any]:
        """Return the noise along each canary, over the claim."""
        ratios = self.ratios()
        quietest = [int(np.argmin(ratios))] if self.test.violated else []
        return {
            "ratio": [round(float(r), 4) for r in ratios],
            "canaries": list(self._labels),
        } | _upper(self.test, self.sums.largest_upper(quietest))


NOISE = Check(
    "noise",
    title="Size of the noise",
    failed_title="Too little noise overall",
    meaning="The gradients have less noise than the privacy guarantee is computed from.",
    look_at="the standard deviation that `add_noise` draws, compared with `noise_multiplier * "
    "max_grad_norm`, and code that changes the gradient after the noise is added",
    topic="Noise",
    weight=100,
    group="noise",
    needs="no finite gradient was read at a step with claimed noise",
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="noise",
    fine="noise and data together are at least the claimed noise",
    message=lambda seen: f"too little noise: in some tensor it is {_at_most(seen)}",
    reads="steps",
    statistic=WitnessNoiseCheck,
)


def _in_tensors(seen: Mapping[str, Any]) -> str:
    where = _share(seen["flagged"], len(seen["ratio"]))
    return f"too little noise on {where}: in each it is {_at_most(seen)}"


def _share(names: Sequence[str], count: int) -> str:
    """Return the first of some tensors, and how many of all they are, as text."""
    shown = ", ".join(f"`{name}`" for name in names[:5]) or "some tensor"
    return f"{shown} ({len(names)} of {count} tensors)"


NOISE_TENSOR = dataclasses.replace(
    NOISE,
    name="noise.tensor",
    title="Noise in each tensor",
    failed_title="Some tensors lack noise",
    meaning="Some tensors get less noise than claimed, so what they learn can be traced to single "
    "records.",
    look_at="which parameters get noise, and at which scale: biases, frozen or late layers, "
    "parameter groups",
    fine="no tensor has less noise than claimed",
    message=_in_tensors,
    reads=None,
    statistic=None,
)

NOISE_STEP = dataclasses.replace(
    NOISE_TENSOR,
    name="noise.step",
    title="Noise in each step",
    failed_title="Some steps lack noise",
    meaning="Some steps add less noise than claimed, and each of them reveals more of its records "
    "than is accounted.",
    look_at="branches around `add_noise` (the last batch, skipped steps, gradient accumulation, "
    "warm-up), and what the noisy sum is divided by",
    size_of=None,
    fine="no step has less noise than claimed",
    message="some steps have too little noise",
)


def _along_canary(seen: Mapping[str, Any]) -> str:
    return f"the noise along {seen['canaries'][np.argmin(seen['ratio'])]} is {_at_most(seen)}"


NOISE_CANARY = dataclasses.replace(
    NOISE,
    name="noise.canary",
    title="Noise along the canaries",
    failed_title="Canary directions lack noise",
    meaning="The noise along the directions of the audit's canaries is smaller than claimed.",
    look_at="the scale of the noise, and if one canary alone is affected, the tensors that it lies "
    "in",
    needs="no finite gradient was read at a step with canaries",
    fine="the noise along the canaries is at least as large as claimed",
    message=_along_canary,
    reads="canaries",
    statistic=CanaryNoiseCheck,
)


# --- Check of the noise's distribution: `noise.shape`.

#: Smallest shift of `TailBet`, in standard deviations; rounding is as large as a smaller one.
_SMALLEST_SHIFT = 0.01


class NormalNoise(Statistic):
    """Statistic of `noise.shape`: tails and ties of the readings."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._tails, self._ties = TailBet(), TieBet()
        #: Share of values that occur more than once in the step at which the test flagged.
        self._repeated = 0.0

    def update(self, seen: Observation) -> None:
        """Update with a step's readings."""
        shift, readings = max(1.0 / seen.noise_multiplier, _SMALLEST_SHIFT), seen.noise_readings
        self._tails.update(readings, min(1.0, shift))
        self._ties.update(readings)
        before = self.test.violated
        both = [self._tails.log_e, self._ties.log_e]
        self.test.update(float(log_mean_exp(both)), seen.step)
        if self.test.violated and not before:
            self._repeated = repeated_share(readings)

    def evidence(self) -> dict[str, Any]:
        """Return both log e-values, and the share of repeated values."""
        return {
            "log_e_tails": self._tails.log_e,
            "log_e_ties": self._ties.log_e,
            "repeated": self._repeated,
        }


def _not_normal(seen: Mapping[str, Any]) -> str:
    what = (
        "values of the noise repeat exactly, as if it were rounded to a lattice"
        if seen["log_e_ties"] > seen["log_e_tails"]
        else "the noise does not have the distribution of normal noise of the claimed size"
    )
    return f"{what}: some events reveal one record more than the claim allows"


ANOTHER_SHAPE = Fault(
    "noise_of_another_shape",
    "The noise is not Gaussian",
    "noise of another shape: its standard deviation is right and its distribution is not the "
    "normal one that the accountant assumes",
    "which distribution the noise is drawn from (torch.normal and torch.randn in single precision "
    "are normal), and whether it is rounded, clipped or cast to a type of low precision afterwards",
)
# One or two steps show most of these faults, with enough evidence for a small share.
NOISE_SHAPE = Check(
    "noise.shape",
    title="Distribution of the noise",
    failed_title="Noise is not Gaussian",
    meaning="The noise does not have the tails of a normal distribution, or lies on a lattice, so "
    "the accountant's epsilon does not apply.",
    look_at=ANOTHER_SHAPE.look_at,
    topic="Noise",
    weight=10,
    group="channel",
    needs="no step's entries were read between its noise and its update",
    each=True,
    always=True,
    doubtful=True,
    private=True,
    fine="the noise has the tails of normal noise, and lies on no lattice",
    message=_not_normal,
    reads="readings",
    statistic=NormalNoise,
)


# --- Warning about noise whose mean is not zero: `noise.mean`.


class NoiseMean(Statistic):
    """Test of the noise's signs against fair coins; its size and its tails do not matter."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._signs = np.zeros(2, dtype=np.int64)

    def update(self, seen: Observation) -> None:
        """Update with a step's noise."""
        assert seen.noise is not None
        self._signs += [np.sum(seen.noise > 0), np.sum(seen.noise < 0)]
        self.test.update(sign_log_e(*self._signs.tolist()), seen.step)

    def evidence(self) -> dict[str, Any]:
        """Return the number of entries above and below zero."""
        positive, negative = self._signs.tolist()
        return {"positive": positive, "negative": negative}


NOISE_MEAN = Check(
    "noise.mean",
    title="Mean of the noise",
    failed_title="Noise mean is not zero",
    meaning="The noise is not centered at zero; no privacy is lost, but the training drifts.",
    look_at="the mean that the noise is drawn with, and whether anything else, such as momentum or "
    "weight decay, is added to the gradient before the update",
    topic="Noise",
    weight=500,
    needs=NOISE_SHAPE.needs,
    each=True,
    always=True,
    warns=True,
    private=True,
    fine="the noise is as often above zero as below",
    message="the mean of the noise is not zero; that loses no privacy, but biases the training",
    reads="noise",
    statistic=NoiseMean,
)


# --- Warning about noise that is larger than claimed: `noise.excess`.

#: Largest norm of a clipped sum over its number of terms that rounding explains.
_ROUNDING = 1.05
#: What the check says of noise that is larger, of sums that are too long, and of processes.
MORE_NOISE = (
    "too much noise: it is larger than claimed, or something else was added to the clipped sums; "
    "that loses no privacy, but accuracy"
)
ADDED_IN_PARTS = (
    "too much noise: clipped sums are longer than clipping allows, so noise is added before a sum "
    "is complete, perhaps to each part of a split batch; that loses no privacy, but accuracy"
)
DRAWN_ALIKE = (
    "too much noise: several of the processes draw the same noise, whose sum is larger than that "
    "of independent draws; that loses no privacy, but accuracy"
)


class NoiseExcess(Statistic):
    """Statistic of `noise.excess`: squares of the noise, and clipped sums that are too long."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._sums, self._bounded = np.zeros(2), False
        self._longest, self._long_at = 0.0, -1

    def update(self, seen: Observation) -> None:
        """Update with a step's noise, if it is known separately, and its clipped sum's norm.

        Noise that was added in place is part of the sum that is read. That is correct unless the
        sum was made in several parts. If the sum is unknown, its norm is at most its number of
        terms, and what exceeds that in the norm of the gradient is noise.
        """
        noise, released = seen.noise, seen.released
        if noise is not None:
            self._sums += [len(noise), float(noise @ noise)]
            self.test.update(float(excess_log_e(*self._sums)), seen.step)
        elif released is not None and seen.sums is None and seen.terms:
            most = _ROUNDING * seen.terms
            rest = max(float(np.linalg.norm(released)) - most, 0.0) / seen.noise_multiplier
            self._sums += [len(released), rest**2]
            log_e = float(excess_log_e(*self._sums))
            if log_e >= self.test.threshold:  # less is no sign that the noise is as claimed
                self._bounded = True
                self.test.update(log_e, seen.step)
        elif not seen.split:
            return
        if seen.sum_norm is None or not seen.terms or not math.isfinite(seen.sum_norm):
            return
        ratio = seen.sum_norm / seen.terms
        if ratio > _ROUNDING and self._long_at < 0:
            self._long_at = seen.step
        self._longest = max(self._longest, ratio)

    @property
    def sums_are_long(self) -> bool:
        """Whether a sum's norm exceeded what its clipped terms can add up to."""
        return self._long_at >= 0

    def evidence(self) -> dict[str, Any]:
        """Return the noise over the claim, and the longest sum over what clipping allows."""
        count, squares = self._sums.tolist()
        ratio = math.sqrt(squares / count) if count else math.nan
        return {"ratio": ratio, "sum_norm_over_terms": self._longest}

    def results(self, lack: str = "", *, clips: bool = True) -> tuple[CheckResult, ...]:
        """Return the check's result.

        Args:
            lack: the reason why the latest step's noise is unknown, or empty.
            clips: whether no check contradicts the clipping; if one does, a long sum is no sign of
                noise.
        """
        test, evidence = self.test, self.evidence()
        if self._bounded and not clips:
            test = self.check.test(test.significance)  # as if nothing had been observed
        if clips and self.sums_are_long and not self.test.violated:
            seen = {**evidence, "violated_at_step": self._long_at}
            return (self.check.judged(seen, how=ADDED_IN_PARTS),)
        return (self.check.result(test, evidence, lack, how=MORE_NOISE),)


NOISE_EXCESS = dataclasses.replace(
    NOISE_MEAN,
    name="noise.excess",
    title="Noise above the claim",
    failed_title="More noise than claimed",
    meaning="The noise is larger than claimed; no privacy is lost, but accuracy is.",
    look_at="whether noise is added more than once a step, such as in each part of a split batch "
    "or in each process with one seed (let one process add it, or seed the generator of each with "
    "its rank), or to the mean instead of the sum; its scale, compared with noise_multiplier * "
    "max_grad_norm; and what else is added to the gradient before the update, such as momentum, "
    "which looks like noise as well",
    fine="the noise is no larger than claimed",
    message="{how}",
    # Clipped sums that are too long, and processes with equal noise, are found without an e-value.
    wrong=lambda _: True,
    reads=None,
    statistic=None,
)


def equal_noise_result(processes: int) -> CheckResult:
    """Return the result of `noise.excess` if processes draw the same noise: the sum is too large.

    Args:
        processes: number of processes.
    """
    return NOISE_EXCESS.judged({"processes": processes}, how=DRAWN_ALIKE)


# --- Checks of the noise of single entries and of whole tensors: `noise.entries`, `noise.whole`.

#: Below this ratio a tensor lacks more noise than a few entries without noise account for.
_MORE_THAN_ENTRIES = 0.9

#: The test looks at each of the first `_EACH` steps, and at every `_LATER`-th step after them.
_EACH, _LATER = 4, 8


class SingleEntries(Statistic):
    """Statistic of `noise.entries`: the noise of each entry that is read, over the steps."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._past: EntryBets | None = None
        self._flagged: list[float] = []
        self._entries = 0
        #: The first step that is read; a resumed training starts at a later one.
        self._since = 0

    def update(self, seen: Observation) -> None:
        """Add a step's noise."""
        noise, step = seen.noise, seen.step
        assert noise is not None
        if self._past is None:
            self._past, self._since = EntryBets(len(noise)), step
        bets, self._entries = self._past, len(noise)
        bets.update(noise)
        if bets.steps > _EACH and bets.steps % _LATER:
            return
        log_e = bets.entry_log_e
        self.test.update(float(log_mean_exp(log_e)), step)
        found = quiet_entries(log_e, self.test.threshold)
        if len(found) > len(self._flagged):
            self._flagged = np.sort(bets.ratios[found]).tolist()

    def evidence(self) -> dict[str, Any]:
        """Return the number of entries, and those that are flagged."""
        return {
            "entries": self._entries,
            "quiet": len(self._flagged),
            "quietest": next(iter(self._flagged), None),
            "since_step": self._since,
        }


_EXPLAINS = NOISED[1:]
MISSING_AT_ENTRIES = Fault(
    "noise_missing_at_entries",
    "Single entries get too little noise or none",
    "noise of some entries: single entries of the gradient have too little noise, or none",
    "whether the noise has the gradient's shape and scale in each tensor (Opacus: in add_noise), "
    "and what writes to single entries after it was added: a mask, an index, a slice",
)

NOISE_ENTRIES = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.entries",
    weight=5,
    title="Noise at single entries",
    failed_title="Single entries lack noise",
    meaning="Some entries of the gradient have too little noise, or the same noise at every step.",
    look_at=MISSING_AT_ENTRIES.look_at,
    needs="no step's noise was read apart from its clipped sums",
    fine="every entry that is read has its own noise, of at least the claimed size",
    message=lambda seen: (
        f"{seen['quiet'] or 'some'} of the {seen['entries']} entries that are read have too little "
        "noise, or the same noise at every step"
    ),
    faults=(MISSING_AT_ENTRIES.rule(0.7, _EXPLAINS, explains=(NOISE_TENSOR.name,)),),
    reads="noise",
    statistic=SingleEntries,
)


class WholeSizes(Statistic):
    """Statistic of `noise.whole`: the size of each step's noise over all entries of each tensor.

    Reads the noise if it is known separately, else the release: data make the squares
    stochastically larger, so the test stays valid.
    """

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        tensors = header.tensors
        self._tensors = list(tensors)
        self._count, self._squares = np.zeros(len(tensors)), np.zeros(len(tensors))
        # Squares of what was added to the clipped sums, whether or not it is noise alone.
        self._added, self._all_alone = np.zeros(len(tensors)), True
        self._single = SingleStepBet()
        self._smallest = np.full(len(tensors), np.inf)
        # Entries read at the step with the smallest ratio, and how many steps were read by then.
        self._of_smallest, self._steps = np.zeros((2, len(tensors))), 0
        self._largest = np.zeros(len(tensors))

    def update(self, seen: Observation) -> None:
        """Update with a step, if its whole tensors were read."""
        count, added, alone = seen.entries, seen.noise_squares, seen.noise is not None
        squares = added if alone else seen.squares
        if count is None or added is None or squares is None or not np.isfinite(squares).all():
            return
        self._count, self._squares = self._count + count, self._squares + squares
        self._added, self._all_alone = self._added + added, self._all_alone and alone
        now = noise_log_e(count, squares)
        steady = noise_log_e(self._count, self._squares)
        self._single.update(log_mean_exp(now))
        each = float(log_mean_exp(steady))
        self.test.update(float(log_mean_exp([each, float(self._single.log_e)])), seen.step)
        ratio = np.sqrt(squares / np.maximum(count, 1.0))
        self._steps += 1
        less = ratio < self._smallest
        self._of_smallest[:, less] = count[less], np.full(less.sum(), self._steps)
        self._smallest = np.fmin(self._smallest, ratio)
        self._largest = np.fmax(self._largest, np.fmax(now, steady))

    def _flagged(self) -> list[int]:
        """Return the tensors that are flagged after a Bonferroni correction, least noise first."""
        level = self.test.threshold + math.log(max(len(self._tensors), 1))
        found = np.flatnonzero(self._largest >= level)
        return sorted(found.tolist(), key=lambda j: float(self._smallest[j]))

    def _added_ratio(self, which: Sequence[int]) -> float:
        """Return what all steps added to the sums of some tensors, over the claimed noise."""
        of = np.array(which, dtype=np.intp)
        return math.sqrt(self._added[of].sum() / max(self._count[of].sum(), 1.0))

    def _interval_of_each(self, which: Sequence[int]) -> tuple[float, float]:
        """Return an interval that covers each given tensor's ratio of noise to claim.

        The tensors may be chosen by their readings: the intervals of all tensors hold at once.
        """
        lower, upper = limits_of_each(self._count, self._added, INTERVAL_SIGNIFICANCE / 2)
        return float(lower[[*which]].min()), float(upper[[*which]].max())

    def _quietest(self) -> int:
        """Return the tensor with the smallest noise at one step; of the flagged, if there are."""
        which = self._flagged() or range(len(self._tensors))
        return min(which, key=lambda j: float(self._smallest[j]))

    def _upper_at_one_step(self, j: int) -> float:
        """Return an upper limit of the smallest noise that a tensor had at one step.

        In units of the claimed noise. The step is chosen by its readings, so the limit of step t
        gets the share 1 / (t (t + 1)) of the significance.
        """
        count, step = self._of_smallest[:, j]
        among = len(self._tensors) * step * (step + 1.0)
        return chosen_upper(count, count * self._smallest[j] ** 2, among)

    def evidence(self) -> dict[str, Any]:
        """Return the flagged tensors, and what is known of the noise if there are any."""
        flagged = self._flagged()
        names = [self._tensors[j] for j in flagged]
        smallest = float(self._smallest[self._quietest()])
        evidence: dict[str, Any] = {"flagged": names, "tensors": len(self._tensors)}
        if math.isfinite(smallest) and self.test.violated:
            evidence["smallest_ratio"] = smallest
            evidence["added_ratio"] = self._added_ratio(range(len(self._tensors)))
            sums = self._count, self._added, INTERVAL_SIGNIFICANCE
            interval = noise_interval(*sums)
            evidence["noise_ratio"] = _rounded(interval)
            if (j := interval.least_noise) is not None:
                evidence["least_noise"] = {self._tensors[j]: self._added_ratio([j])}
                evidence["noise_ratio_upper"] = rounded_up(units_upper(*sums))
        if flagged and self._all_alone:
            rest = [j for j in range(len(self._tensors)) if j not in flagged]
            evidence["flagged_ratio"] = self._added_ratio(flagged)
            evidence["flagged_noise_ratio"] = _rounded(self._interval_of_each(flagged))
            evidence["ratio_of_the_others"] = self._added_ratio(rest) if rest else None
        return evidence

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the check's result; ``lack`` is the reason why no step was read."""
        j = self._quietest()
        at_most = self._upper_at_one_step(j) if math.isfinite(self._smallest[j]) else math.inf
        return (self.check.result(self.test, self.evidence(), lack, at_most=at_most),)


def _rounded(interval: Sequence[Any]) -> list[float]:
    return [rounded_down(interval[0]), rounded_up(interval[1])]


def _over_a_tensor(seen: Mapping[str, Any]) -> str:
    return (
        f"too little noise over all entries of {_share(seen['flagged'], seen['tensors'])}: at one "
        f"step it is {interval_in_words(None, seen['at_most'])}"
    )


OVER_A_TENSOR = Fault(
    "noise_too_small_over_a_tensor",
    "A whole tensor gets too little noise",
    "noise too small: over all entries of a tensor it is smaller than claimed",
    "the shape and the standard deviation with which this tensor's noise is drawn (Opacus: in "
    "add_noise), and what is done to it before it is added",
)

NOISE_WHOLE = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.whole",
    weight=5,
    needs="no step's whole tensors were read together with their clipped sums",
    title="Noise over whole tensors",
    failed_title="A whole tensor lacks noise",
    meaning="Over all entries of a tensor, the noise of a step is smaller than claimed, if only "
    "slightly.",
    look_at=OVER_A_TENSOR.look_at,
    fine="over all entries of each tensor, no step's noise is smaller than claimed",
    message=_over_a_tensor,
    # The rank of `noise.entries` lies between these two: a few entries without noise make a whole
    # tensor's noise slightly too small.
    faults=(
        OVER_A_TENSOR.rule(
            0.65, _EXPLAINS, applies=lambda seen: seen["smallest_ratio"] < _MORE_THAN_ENTRIES
        ),
        OVER_A_TENSOR.rule(0.75, _EXPLAINS),
    ),
    reads="readings",
    statistic=WholeSizes,
)


# --- Check of what the noisy sum is divided by: `batch_normalised`.

#: Message if no other divisor was found, but data may mask one.
_BESIDE_DATA = (
    "no evidence against the stated divisor; the sums before the noise are not shown, so large "
    "data may mask another divisor"
)


class StatedDivisor(Statistic):
    """Statistic of `batch_normalised`: tests the stated divisor against other possible divisors."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._bet, self._small = DivisorTest(), QuietEntries()
        self._beside_data = False

    def update(self, seen: Observation) -> None:
        """Update with a step, if another divisor than the stated one is possible."""
        released, sums = seen.released, seen.sums
        if not seen.divisors or released is None:
            return
        self._beside_data |= sums is None
        if sums is None:
            released = self._small.take(released, seen.noise_multiplier)
            sums = np.zeros_like(released)
        self._bet.update(released, sums, seen.noise_multiplier, seen.divisors)
        self.test.update(self._bet.log_e, seen.step)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller in larger batches."""
        return self._bet.shrinks_with_divisor

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the check's result; ``lack`` is the reason why it cannot be tested, or empty."""
        fine = _BESIDE_DATA if self._beside_data else ""
        return (self.check.result(self.test, {}, lack, fine),)


DIVIDED_BY_BATCH = Fault(
    "divides_by_realised_batch",
    "The noisy sum is divided by the actual batch size",
    "divided by the realised batch size: the noise of a step depends on how many records it drew, "
    "and large batches have too little",
    "what the sum of gradients and noise is divided by: it must be the expected batch size, a "
    "constant",
)

BATCH_NORMALISED = dataclasses.replace(
    NOISE_SHAPE,
    name="batch_normalised",
    title="Divisor of the noisy sum",
    failed_title="Divided by actual batch size",
    meaning="The noisy sum is divided by the number of records that were drawn, so large batches "
    "have too little noise.",
    look_at=DIVIDED_BY_BATCH.look_at,
    needs="no step was read whose other possible divisors are known",
    fine="the noisy sum is divided by the stated divisor",
    message="the noisy sum is divided by the actual number of samples in the batch, so the size of "
    "the gradient and of its noise reveals that number",
    public=("message",),
    reads=None,
    statistic=None,
    faults=(
        DIVIDED_BY_BATCH.rule(
            0,
            ("clipping", "reuse", "leakage"),
            explains=(NOISE_SHAPE.name, NOISE_ENTRIES.name, NOISE_WHOLE.name),
        ),
    ),
)


#: The checks of this subject, in the order of the report.
CHECKS = (
    NOISE_ENTRIES,
    NOISE_WHOLE,
    NOISE_EXCESS,
    NOISE_MEAN,
    NOISE,
    NOISE_TENSOR,
    NOISE_STEP,
    NOISE_CANARY,
    NOISE_SHAPE,
    BATCH_NORMALISED,
)
