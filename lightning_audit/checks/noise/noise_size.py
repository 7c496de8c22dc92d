"""Checks of the noise's size: over all tensors, per tensor, per step, and along the canaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.checks.noise.noise_size_checks import (
    NOISE,
    NOISE_CANARY,
    NOISE_STEP,
    NOISE_TENSOR,
)
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_scale import (
    INTERVAL_SIGNIFICANCE,
    chosen_upper,
    interval_in_words,
    noise_log_e,
    rounded_up,
    units_upper,
)
from lightning_audit.stats.evalues.sequential import (
    PredictableCentre,
    SingleStepBet,
    is_look,
    log_mean_exp,
)

#: Advice if too little noise may be a fault, or post-processing of correct noise.
SHOW_THE_RELEASE = (
    "if the noisy gradient is post-processed before the update, do so after Opacus' add_noise, or "
    "show the noisy gradient first: grads = lightning_audit.released(grads, module=self)"
)

#: Least number of steps before and after an onset; ratio of noise below which it is clearly less.
_SEVERAL, _LESS = 3, 0.9
_ADVICE = (
    "compare the noise that is drawn (Opacus: in add_noise) with noise_multiplier * max_grad_norm, "
    "and look for code that changes the gradient after the noise was added"
)


def _upper(test: Evidence, upper: float) -> dict[str, float]:
    """Return the limit as evidence, rounded as in the message."""
    return {"noise_ratio_upper": rounded_up(upper)} if test.violated else {}


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
        self.count = np.zeros(units)
        self.squares = np.zeros(units)
        self.pooled_count = 0.0
        self.pooled_squares = 0.0
        # No unit is pooled at the first step: nothing is known of it yet.
        self._recent = np.ones(units)

    def update(self, counts: FloatArray, squares: FloatArray) -> None:
        """Update with a step's number of terms and sum of squares of each unit, ``[n]`` each."""
        chosen = self._recent < 1.0
        self.pooled_count += float(counts[chosen].sum())
        self.pooled_squares += float(squares[chosen].sum())
        self.count += counts
        self.squares += squares
        mean = squares / np.maximum(counts, 1.0)
        heard = np.where(counts > 0, np.minimum(mean, self._LOUDEST), self._recent)
        self._recent = self._DECAY * self._recent + (1 - self._DECAY) * heard

    @property
    def mean_square(self) -> FloatArray:
        """Mean square of each unit so far, ``[n]``; 1 for a unit that was not read."""
        return np.where(self.count > 0, self.squares / np.maximum(self.count, 1.0), 1.0)

    @property
    def unit_log_e(self) -> FloatArray:
        """Log e-value of each unit."""
        return noise_log_e(self.count, self.squares)

    @property
    def pooled_log_e(self) -> float:
        """Log e-value of the pooled sums."""
        return float(noise_log_e(self.pooled_count, self.pooled_squares))

    def noise_upper(self, significance: float = INTERVAL_SIGNIFICANCE) -> float:
        """Upper limit of the noise over its claim; see `lightning_audit.stats.evalues.noise_scale`.

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

    def update(self, mean_squares: FloatArray, *, quiet: bool, flagged: bool) -> None:
        """Update with a step, and with whether a step has been flagged by now."""
        self.steps += flagged
        self.quiet += flagged and quiet
        self._before += not flagged
        if self.steps == 1 and flagged:
            self._chosen = mean_squares
        self._squares[int(flagged)] += mean_squares

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


class WitnessNoiseCheck:
    """Statistic of `noise`, `noise.tensor` and `noise.step`, from the probe coordinates."""

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._names = header.tensors
        self._counts = np.array(header.witnesses, dtype=np.float64)
        self.sums = PooledSums(len(self._names))
        self.pooled = NOISE.test(significance)
        self.burst = NOISE_STEP.test(significance)
        self._bet = SingleStepBet()
        self._seen = 0
        self.onset = Onset(len(self._names))
        #: Largest log e-value of each tensor at any look.
        self._largest = np.zeros(len(self._names))
        self.single = NOISE_TENSOR.test(significance)

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry of the record."""
        squares = np.asarray(entry["tensor_squares"])
        if not np.isfinite(squares).all():
            return
        self.sums.update(self._counts, squares)
        step = int(entry["step"])
        together = float(noise_log_e(self._counts.sum(), squares.sum()))
        each = float(log_mean_exp(noise_log_e(self._counts, squares)))
        alone = float(log_mean_exp([together, each]))
        self._bet.update(alone)
        self.burst.update(float(self._bet.log_e), step)
        mean_squares = squares / np.maximum(self._counts, 1.0)
        self.onset.update(mean_squares, quiet=alone > 0.0, flagged=self.burst.violated)
        self._seen += 1
        if is_look(self._seen):
            self.pooled.update(self.sums.pooled_log_e, step)
            unit_log_e = self.sums.unit_log_e
            self.single.update(float(log_mean_exp(unit_log_e)), step)
            self._largest = np.fmax(self._largest, unit_log_e)

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
        ratios = dict(zip(self._names, self.ratios(), strict=True))
        level = self.single.threshold + np.log(len(self._names))
        flagged = [self._names[j] for j in np.flatnonzero(self._largest >= level)]
        return sorted(flagged, key=lambda name: ratios[name])

    def results(self) -> tuple[CheckResult, ...]:
        """Return the results of the three checks."""
        ratios = self.ratios()
        evidence: dict[str, Any] = {
            "ratio": dict(zip(self._names, ratios.round(4).tolist(), strict=True)),
            "smallest_ratio": self.smallest_ratio,
            "coordinates": int(self._counts.sum()),
        }
        flagged = self.flagged_tensors()
        shown = ", ".join(f"`{name}`" for name in flagged[:5])
        least = each = math.inf  # not computed unless a check is violated
        if self.pooled.violated or self.single.violated:
            least = self.sums.noise_upper()
            each = self.sums.largest_upper(map(self._names.index, flagged))
        return (
            NOISE.result(
                self.pooled,
                "noise and data together are at least the claimed noise",
                f"too little noise: in some tensor it is {interval_in_words(None, least)}",
                _ADVICE,
                evidence | _upper(self.pooled, least),
            ),
            NOISE_TENSOR.result(
                self.single,
                "no tensor has less noise than claimed",
                f"too little noise on {shown or 'some tensor'} ({len(flagged)} of "
                f"{len(self._names)} tensors): in each it is {interval_in_words(None, each)}",
                _ADVICE,
                {**evidence, "flagged": flagged} | _upper(self.single, each),
            ),
            NOISE_STEP.result(
                self.burst,
                "no step has less noise than claimed",
                "some steps have too little noise",
                _ADVICE,
                {},
            ),
        )


class CanaryNoiseCheck:
    """Statistic of `noise.canary`: the noise along the canaries, pooled and for each canary."""

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._labels = header.canaries
        self._centre = PredictableCentre((len(self._labels),))
        self.sums = PooledSums(len(self._labels))
        self.evidence = NOISE_CANARY.test(significance)
        self._seen = 0

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry of the record whose coins count."""
        residual = np.asarray(entry["readings"]) - entry["coins"]
        squares = ((residual - self._centre.value) / float(entry["noise_multiplier"])) ** 2
        self.sums.update(np.ones(len(squares)), squares)
        self._centre.update(residual)
        self._seen += 1
        if is_look(self._seen):
            both = [self.sums.pooled_log_e, float(log_mean_exp(self.sums.unit_log_e))]
            self.evidence.update(float(log_mean_exp(both)), int(entry["step"]))

    def ratios(self) -> FloatArray:
        """Return an upper estimate of the noise along each canary over the claim, ``[k]``."""
        return np.sqrt(self.sums.mean_square)

    def results(self) -> tuple[CheckResult, ...]:
        """Return the result of the check."""
        ratios = self.ratios()
        quietest = int(np.argmin(ratios))
        upper = self.sums.largest_upper([quietest] if self.evidence.violated else [])
        return (
            NOISE_CANARY.result(
                self.evidence,
                "the noise along the canaries is at least as large as claimed",
                f"the noise along {self._labels[quietest]} is {interval_in_words(None, upper)}",
                _ADVICE,
                {
                    "ratio": [round(float(r), 4) for r in ratios],
                    "canaries": list(self._labels),
                }
                | _upper(self.evidence, upper),
            ),
        )
