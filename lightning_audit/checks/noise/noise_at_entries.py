"""Checks of the noise of single entries and of whole tensors: `noise.entries`, `noise.whole`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.noise.noise_size import NOISE_TENSOR
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_scale import (
    INTERVAL_SIGNIFICANCE,
    chosen_upper,
    interval_in_words,
    noise_interval,
    noise_log_e,
    rounded_down,
    rounded_up,
    units_upper,
)
from lightning_audit.stats.evalues.sequential import SingleStepBet, log_mean_exp
from lightning_audit.stats.evalues.single_entries import EntryBets, quiet_entries

#: Below this ratio a tensor lacks more noise than a few entries without noise account for.
_MORE_THAN_ENTRIES = 0.9

NOISE_ENTRIES = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.entries",
    weight=5,
    finds="single entries of the gradient with too little noise, or with the same at every step",
    title="Noise at single entries",
    failed_title="Single entries lack noise",
    meaning="Some entries of the gradient have too little noise, or the same noise at every step.",
    look_at="Check that the noise has the shape of the gradient, and look for later writes to "
    "single entries: a mask, an index, a slice.",
    topic="Noise",
    needs="no step's noise was read apart from its clipped sums",
    fine="every entry that is read has its own noise, of at least the claimed size",
    faults=(
        FaultRule(
            "noise_missing_at_entries",
            "noise of some entries: single entries of the gradient have too little noise, or none",
            "whether the noise has the gradient's shape, and what writes to single entries after "
            "it was added: a mask, an index, a slice",
            headline="Single entries get too little noise or none",
            rank=0.7,
            explains=(NOISE_TENSOR.name,),
            explains_groups=("reuse", "channel", "leakage"),
        ),
    ),
    reads="noise",
    init=lambda _, significance: SingleEntries(significance),
)

_OVER_A_TENSOR = FaultRule(
    "noise_too_small_over_a_tensor",
    "noise too small: over all entries of a tensor it is smaller than claimed",
    "the standard deviation with which this tensor's noise is drawn, and what is done to it before "
    "it is added",
    headline="A whole tensor gets too little noise",
    rank=0.65,
    explains_groups=("reuse", "channel", "leakage"),
    applies=lambda seen: seen["smallest_ratio"] < _MORE_THAN_ENTRIES,
)

NOISE_WHOLE = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.whole",
    weight=5,
    finds="too little noise over all entries of a tensor, at one step or more (Opacus, in one "
    "process)",
    needs="no step's whole tensors were read together with their clipped sums",
    title="Noise over whole tensors",
    failed_title="A whole tensor lacks noise",
    meaning="Over all entries of a tensor, the noise of a step is smaller than claimed, if only "
    "slightly.",
    look_at="Check the shape and the scale of the noise that is drawn for this tensor.",
    topic="Noise",
    fine="over all entries of each tensor, no step's noise is smaller than claimed",
    # The rank of `noise.entries` lies between these two: a few entries without noise make a whole
    # tensor's noise slightly too small.
    faults=(
        _OVER_A_TENSOR,
        dataclasses.replace(_OVER_A_TENSOR, rank=0.75, applies=lambda _: True),
    ),
    reads="readings",
    init=lambda header, significance: WholeSizes(significance, header.tensors),
)

CHECKS = (NOISE_ENTRIES, NOISE_WHOLE)

#: The test looks at each of the first `_EACH` steps, and at every `_LATER`-th step after them.
_EACH, _LATER = 4, 8

_COMPARE = (
    "compare the shape and the scale of the noise that is drawn (Opacus: in add_noise) with those "
    "of the gradient, tensor by tensor"
)


class SingleEntries:
    """Statistic of `noise.entries`: the noise of each entry that is read, over the steps.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past: EntryBets | None = None
        self._test = NOISE_ENTRIES.test(significance)
        self._flagged: list[float] = []
        self._entries = 0
        #: The first step that is read; a resumed training starts at a later one.
        self._since = 0

    def update(self, at: NoiseStep) -> None:
        """Add a step's noise."""
        noise, step = at.noise, at.number
        assert noise is not None
        if self._past is None:
            self._past, self._since = EntryBets(len(noise)), step
        bets, self._entries = self._past, len(noise)
        bets.update(noise)
        if bets.steps > _EACH and bets.steps % _LATER:
            return
        log_e = bets.entry_log_e
        self._test.update(float(log_mean_exp(log_e)), step)
        found = quiet_entries(log_e, self._test.threshold)
        if len(found) > len(self._flagged):
            self._flagged = np.sort(bets.ratios[found]).tolist()

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        flagged = self._flagged
        smallest = flagged[0] if flagged else None
        return NOISE_ENTRIES.result(
            self._test,
            NOISE_ENTRIES.fine,
            f"{len(flagged) or 'some'} of the {self._entries} entries that are read have too "
            "little noise, or the same noise at every step",
            _COMPARE + "; look for a mask, or for entries that are written after noise is added",
            {
                "entries": self._entries,
                "quiet": len(flagged),
                "quietest": smallest,
                "since_step": self._since,
            },
            lack,
        )


class WholeSizes:
    """Statistic of `noise.whole`: the size of each step's noise over all entries of each tensor.

    Reads the noise if it is known separately, else the release: data make the squares
    stochastically larger, so the test stays valid.

    Args:
        significance: of the whole run.
        tensors: names of the tensors, ``[L]``.
    """

    def __init__(self, significance: float, tensors: Sequence[str]) -> None:
        self._tensors = list(tensors)
        self._test = NOISE_WHOLE.test(significance)
        self._count, self._squares = np.zeros(len(tensors)), np.zeros(len(tensors))
        # Squares of what was added to the clipped sums, whether or not it is noise alone.
        self._added, self._all_alone = np.zeros(len(tensors)), True
        self._single = SingleStepBet()
        self._smallest = np.full(len(tensors), np.inf)
        # Entries read at the step with the smallest ratio, and how many steps were read by then.
        self._of_smallest, self._steps = np.zeros((2, len(tensors))), 0
        self._largest = np.zeros(len(tensors))

    def update(self, at: NoiseStep) -> None:
        """Update with a step, if its whole tensors were read."""
        seen, alone, step = at.seen.whole, at.noise is not None, at.number
        if seen is None:
            return
        count, squares = seen.entries, seen.noise if alone else seen.released
        if not np.isfinite(squares).all():
            return
        self._count, self._squares = self._count + count, self._squares + squares
        self._added, self._all_alone = self._added + seen.noise, self._all_alone and alone
        now = noise_log_e(count, squares)
        steady = noise_log_e(self._count, self._squares)
        self._single.update(log_mean_exp(now))
        each = float(log_mean_exp(steady))
        self._test.update(float(log_mean_exp([each, float(self._single.log_e)])), step)
        ratio = np.sqrt(squares / np.maximum(count, 1.0))
        self._steps += 1
        self._of_smallest[:, ratio < self._smallest] = np.stack(
            [count, np.full(len(count), self._steps)]
        )[:, ratio < self._smallest]
        self._smallest = np.fmin(self._smallest, ratio)
        self._largest = np.fmax(self._largest, np.fmax(now, steady))

    def _flagged(self) -> list[int]:
        """Return the tensors that are flagged after a Bonferroni correction, least noise first."""
        level = self._test.threshold + math.log(max(len(self._tensors), 1))
        found = np.flatnonzero(self._largest >= level)
        return sorted(found.tolist(), key=lambda j: float(self._smallest[j]))

    def _added_ratio(self, which: NDArray[np.intp]) -> float:
        """Return what all steps added to the sums of some tensors, over the claimed noise."""
        return math.sqrt(self._added[which].sum() / max(self._count[which].sum(), 1.0))

    def _interval_of_each(self, which: Sequence[int]) -> tuple[float, float]:
        """Return an interval that covers each given tensor's ratio of noise to claim.

        The tensors may be chosen by their readings: the intervals of all tensors hold at once.
        """
        level = INTERVAL_SIGNIFICANCE / len(self._tensors)
        found = [noise_interval(self._count[[j]], self._added[[j]], level) for j in which]
        ends = np.array([one for one in found if one is not None])
        return float(ends[:, 0].min()), float(ends[:, 1].max())

    def _upper_at_one_step(self, which: Sequence[int]) -> float:
        """Return an upper limit of the smallest noise that one tensor had at one step.

        In units of the claimed noise. The step is chosen by its readings, so the limit of step t
        gets the share 1 / (t (t + 1)) of the significance.
        """
        j = min(which, key=lambda j: float(self._smallest[j]))
        count, step = self._of_smallest[:, j]
        among = len(self._tensors) * step * (step + 1.0)
        return chosen_upper(count, count * self._smallest[j] ** 2, among)

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no step was read."""
        flagged = self._flagged()
        names = [self._tensors[j] for j in flagged]
        shown = ", ".join(f"`{name}`" for name in names[:5]) or "some tensor"
        of = np.array(flagged or range(len(self._tensors)), dtype=np.intp)
        smallest = float(self._smallest[of].min(initial=math.inf))
        evidence: dict[str, Any] = {"flagged": names, "tensors": len(self._tensors)}
        if math.isfinite(smallest) and self._test.violated:
            evidence["smallest_ratio"] = smallest
            evidence["added_ratio"] = self._added_ratio(np.arange(len(self._tensors)))
            sums = self._count, self._added, INTERVAL_SIGNIFICANCE
            if interval := noise_interval(*sums):
                evidence["noise_ratio"] = _rounded(interval)
            else:
                evidence["noise_ratio_upper"] = rounded_up(units_upper(*sums))
        if flagged and self._all_alone:
            rest = np.setdiff1d(np.arange(len(self._tensors)), flagged)
            evidence["flagged_ratio"] = self._added_ratio(np.array(flagged))
            evidence["flagged_noise_ratio"] = _rounded(self._interval_of_each(flagged))
            evidence["ratio_of_the_others"] = self._added_ratio(rest) if len(rest) else None
        upper = self._upper_at_one_step(of.tolist()) if math.isfinite(smallest) else math.inf
        return NOISE_WHOLE.result(
            self._test,
            NOISE_WHOLE.fine,
            f"too little noise over all entries of {shown} ({len(names)} of "
            f"{len(self._tensors)} tensors): at one step it is "
            f"{interval_in_words(None, upper)}",
            _COMPARE,
            evidence,
            lack,
        )


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [rounded_down(interval[0]), rounded_up(interval[1])]
