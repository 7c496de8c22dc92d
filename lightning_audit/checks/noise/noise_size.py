"""Checks of the noise's size: over all tensors, per tensor, per step, and along the canaries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.checks.noise.pooled_sums import Onset, PooledSums
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_scale import (
    interval_in_words,
    noise_log_e,
    rounded_up,
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

_FINDS = "too little noise: everywhere, in a tensor, in a few steps, on a canary"

_NO_STEP = "no finite gradient was read at a step with claimed noise"

NOISE = Check(
    "noise",
    _FINDS,
    title="Size of the noise",
    failed_title="Too little noise overall",
    meaning="The gradients have less noise than the privacy guarantee is computed from.",
    look_at="Compare the standard deviation that `add_noise` draws with `noise_multiplier * "
    "max_grad_norm`, and look for code that changes the gradient after the noise is added.",
    topic="Noise",
    weight=100,
    group="noise",
    needs=_NO_STEP,
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="noise",
    # Its statistic gives the results of `noise.tensor` and `noise.step` as well.
    reads="steps",
    init=lambda *about: WitnessNoiseCheck(*about),
)

NOISE_TENSOR = dataclasses.replace(
    NOISE,
    name="noise.tensor",
    title="Noise in each tensor",
    failed_title="Some tensors lack noise",
    meaning="Some tensors get less noise than claimed, so what they learn can be traced to single "
    "records.",
    look_at="Check which parameters get noise, and at which scale: biases, frozen or late layers, "
    "parameter groups.",
    topic="Noise",
    reads=None,
    init=None,
)

NOISE_STEP = dataclasses.replace(
    NOISE,
    name="noise.step",
    title="Noise in each step",
    failed_title="Some steps lack noise",
    meaning="Some steps add less noise than claimed, and each of them reveals more of its records "
    "than is accounted.",
    look_at="Check branches around `add_noise` (the last batch, skipped steps, gradient "
    "accumulation, warm-up), and what the noisy sum is divided by.",
    topic="Noise",
    size_of=None,
    reads=None,
    init=None,
)

NOISE_CANARY = dataclasses.replace(
    NOISE,
    name="noise.canary",
    title="Noise along the canaries",
    failed_title="Canary directions lack noise",
    meaning="The noise along the directions of the audit's canaries is smaller than claimed.",
    look_at="Check the scale of the noise, and if one canary alone is affected, the tensors that "
    "it lies in.",
    topic="Noise",
    needs="no finite gradient was read at a step with canaries",
    reads="canaries",
    init=lambda *about: CanaryNoiseCheck(*about),
)

CHECKS = (NOISE, NOISE_TENSOR, NOISE_STEP, NOISE_CANARY)

_ADVICE = (
    "compare the noise that is drawn (Opacus: in add_noise) with noise_multiplier * max_grad_norm, "
    "and look for code that changes the gradient after the noise was added"
)


def _upper(test: Evidence, upper: float) -> dict[str, float]:
    """Return the limit as evidence, rounded as in the message."""
    return {"noise_ratio_upper": rounded_up(upper)} if test.violated else {}


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
