"""The check `replay.noise`: one e-value for all looks at the noise of replayed steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lightning_audit.checks.base.check import Check, FaultRule, Group
from lightning_audit.checks.base.evidence import Evidence, log_weight
from lightning_audit.checks.noise.noise_at_entries import NOISE_WHOLE
from lightning_audit.checks.replay.drawn_noise import (
    FAMILIES,
    NOTHING,
    SCALE,
    TENSOR,
    TOGETHER,
    Seen,
)
from lightning_audit.checks.replay.replay_findings import Finding
from lightning_audit.checks.replay.unanswered import unanswered
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.sequential import log_mean_exp


def _rule(
    kinds: tuple[str, ...],
    name: str,
    headline: str,
    sentence: str,
    look_at: str,
    rank: float,
    groups: tuple[Group, ...] = (),
) -> FaultRule:
    return FaultRule(
        name,
        sentence,
        look_at,
        rank,
        headline=headline,
        explains_groups=("noise", "reuse", "channel", "leakage", *groups),
        applies=lambda seen: seen.get("of") in kinds,
    )


REPLAY_NOISE = Check(
    "replay.noise",
    "noise that replays show to be missing at some entries, too small, used twice, of few values, "
    "not normal, or dependent on the records or on earlier noise",
    title="Noise of replayed steps",
    failed_title="Replay shows wrong noise",
    meaning="Replaying a step with other random numbers shows noise that is too small, repeated, "
    "not normal, or dependent on records or on earlier noise.",
    look_at="Check how `add_noise` draws and seeds the noise: nothing in the batch may set its "
    "size or its seed.",
    topic="Noise",
    weight=20,
    group="channel",
    needs="the noise of no step was examined",
    always=True,
    blocks=unanswered,
    private=True,
    fine="the noise of replayed steps is as claimed at every entry",
    # A fault that a check of the steps can show as well has the same name there.
    faults=(
        _rule(
            ("records",),
            "noise_depends_on_records",
            "The noise depends on the records",
            "noise that depends on the records: with other records and the same random numbers, it "
            "differs",
            "what the noise's size and seed are computed from: they must not depend on a batch",
            -10,
            ("replay", "clipping"),
        ),
        _rule(
            ("one_value",),
            "one_value_for_all_coordinates",
            "All coordinates of a step get one noise value",
            "noise re-used: one noise value is shared by all coordinates of a step",
            "the shape that the noise is drawn with: it must be that of the gradient",
            -10,
        ),
        _rule(
            ("tensors",),
            "one_key_for_all_tensors",
            "Several tensors get the same noise",
            "noise re-used: one noise key is used for several tensors",
            "whether one seed or draw serves several tensors of a step",
            -10,
        ),
        _rule(
            ("twice",),
            "noise_numbers_twice",
            "Several entries of a step get the same noise",
            "noise re-used: several entries of one step's noise have the same numbers",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            -10,
        ),
        _rule(
            ("draws",),
            "few_seeds",
            "The noise comes from few seeds and repeats",
            "noise re-used: the noise comes back at irregular steps, as from few seeds",
            "how the noise is seeded: whether seeds are drawn from a small range, or noise from a "
            "pool",
            -10,
        ),
        _rule(
            ("low_rank",),
            "noise_of_low_rank",
            "The noise of a matrix has low rank",
            "noise of low rank: a matrix has noise in few directions, and none in the others",
            "the shape that the noise is drawn with, and what it is multiplied with",
            -10,
        ),
        _rule(
            ("neighbours",),
            "noise_alike_in_neighbours",
            "Neighboring entries have dependent noise",
            "noise of neighbors: the noise of an entry depends on that of entries near it",
            "what is done to the noise after it is drawn: sums, filters, interpolation",
            -10,
        ),
        _rule(
            ("together",),
            "noise_alike_at_entries",
            "Groups of entries have dependent noise",
            "noise of entries that go together: some directions have less than the claimed noise",
            "whether entries or tensors share a draw, and what the noise is multiplied with",
            -10,
        ),
        _rule(
            (
                "few_values",
                "tails",
            ),
            "noise_of_another_shape",
            "The noise is not Gaussian",
            "noise of another shape: its standard deviation is right and its distribution is not "
            "the normal one that the accountant assumes",
            "which distribution the noise is drawn from, and whether it is rounded, clipped or "
            "cast to a type of low precision afterwards",
            -10,
        ),
        _rule(
            ("earlier",),
            "noise_correlated_over_steps",
            "The noise depends on that of earlier steps",
            "noise correlated over steps: the noise of a step depends on that of earlier steps, "
            "otherwise than is claimed",
            "what the optimizer keeps of its noise from step to step; correlated noise needs an "
            "accountant for it",
            12,
        ),
        _rule(
            ("missing",),
            "noise_missing_at_entries",
            "Single entries get too little noise or none",
            "noise of some entries: single entries of the gradient have too little noise, or none",
            "masks, slices and shapes where the noise is drawn (Opacus: in add_noise)",
            12,
        ),
        _rule(
            ("scale",),
            "noise_too_small",
            "Too little noise is added",
            "noise scale too small: every tensor has less noise than claimed",
            "compare the standard deviation of the noise that is drawn (Opacus: in add_noise) with "
            "noise_multiplier * max_grad_norm",
            0.64,
        ),
        dataclasses.replace(
            NOISE_WHOLE.faults[0], rank=12, applies=lambda seen: seen.get("of") == "tensor"
        ),
        _rule(
            ("small",),
            "noise_too_small_at_entries",
            "Some entries get too little noise",
            "noise of some entries: it is smaller than claimed",
            "how the noise is drawn (Opacus: in add_noise), and what it is scaled by",
            12,
        ),
    ),
)

CHECKS = (REPLAY_NOISE,)

#: Kinds of findings without a family of tests.
MISSING, OF_RECORDS = "missing", "records"
#: Kind for noise that depends on earlier noise.
EARLIER = "earlier"
#: Number of kinds that may be tested in a look at several draws of one step.
_OF_DRAWS = len(FAMILIES) + len((MISSING, OF_RECORDS, EARLIER))
#: Kinds more specific than small noise or another shape, and the log e-value that makes one clear.
_SHARPEST = (
    OF_RECORDS,
    "one_value",
    "twice",
    "tensors",
    "draws",
    "low_rank",
    "few_values",
    "neighbours",
    TOGETHER,
    MISSING,
    EARLIER,
    SCALE,
    TENSOR,
)
_CLEAR = 14.0
#: Significance of a look outside of a run.
_ALONE = 1e-3
_WRONG = "the noise of a step is not drawn as claimed ({finding})"
_ADVICE = "look at how the noise is drawn (Opacus: in add_noise)"


@dataclass(frozen=True)
class NoiseLook:
    """Result of one look at the noise.

    Args:
        seen: results by kind, of those that were tested.
        draws: number of draws.
        entries: number of entries that were read.
        kinds: number of kinds that might be tested, which share the look's e-value.
    """

    seen: Mapping[str, Seen]
    draws: int = 0
    entries: int = 0
    kinds: int = _OF_DRAWS

    @property
    def log_e(self) -> float:
        """Log of the look's e-value: the mean over all kinds that might be tested."""
        values = [seen.log_e for seen in self.seen.values()]
        values += [0.0] * (self.kinds - len(values))
        return float(log_mean_exp(values))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that one look alone proves, at significance `_ALONE`."""
        _, seen = self.largest
        sure = self.log_e >= math.log(1.0 / _ALONE)
        return (Finding(seen.what, math.inf, 0.0),) if sure else ()

    @property
    def largest(self) -> tuple[str, Seen]:
        """The most specific kind that is clear, or else that of the largest e-value."""
        if not self.seen:
            return "", NOTHING
        clear = (kind for kind in _SHARPEST if kind in self.seen and self.seen[kind].log_e > _CLEAR)
        kind = next(clear, None) or max(self.seen, key=lambda kind: self.seen[kind].log_e)
        return kind, self.seen[kind]


@dataclass
class NoiseLog:
    """Log of the looks at the noise of a run.

    A look's e-value is valid given all earlier looks. The k-th look has the weight of `log_weight`,
    and the rest of the weights, up to 1, is on a constant 1, so the number of looks is unbounded.
    The weighted sum is half of the e-value. The other half is the product over all looks of the
    e-values of correlated entries: a weak correlation shows in no single look.
    """

    looks: int = 0
    draws: int = 0
    entries: int = 0
    reason: str = ""
    finding: str = ""
    kind: str = ""
    test: Evidence = field(default_factory=lambda: REPLAY_NOISE.test(_ALONE))
    _log_sum: float = -math.inf
    _largest: float = 0.0
    _log_product: float = 0.0

    def take(self, step: int, look: NoiseLook | None, reason: str = "") -> None:
        """Update with a look.

        Args:
            step: number of the step, from 0.
            look: its result; None if there was none.
            reason: why there was none.
        """
        self.reason = reason or self.reason
        if look is None:
            return
        self.looks += 1
        self.draws += look.draws
        self.entries = max(self.entries, look.entries)
        self._log_sum = float(np.logaddexp(self._log_sum, log_weight(self.looks) + look.log_e))
        together = look.seen.get(TOGETHER, NOTHING)
        self._log_product += together.log_e
        each = float(np.logaddexp(self._log_sum, -math.log(self.looks + 1.0)))
        log_e = float(log_mean_exp([each, self._log_product]))
        kind, seen = look.largest
        if together.what and seen.log_e <= _CLEAR < self._log_product:
            kind, seen = TOGETHER, together._replace(log_e=self._log_product)
        # The kind that was clear first is the fault; later it may show in other kinds as well.
        if seen.log_e > self._largest and self._largest < _CLEAR:
            self._largest, self.kind, self.finding = seen.log_e, kind, seen.what
        self.test.update(log_e, step)

    def found(self, significance: float) -> bool:
        """Return whether the noise is not as claimed."""
        return self._judged(significance).violated

    def result(self, significance: float, off: str = "") -> CheckResult:
        """Return the result of the check `replay.noise`.

        Args:
            significance: of the whole run.
            off: why nothing is examined, or empty.
        """
        test = self._judged(significance)
        if not self.looks:
            return REPLAY_NOISE.not_run(f"not asked: {self.reason or off}")
        evidence: dict[str, Any] = {
            "looks": self.looks,
            "draws": self.draws,
            "entries": self.entries,
        }
        if test.violated:
            evidence |= {"of": self.kind, "finding": self.finding}
        return REPLAY_NOISE.result(
            test,
            REPLAY_NOISE.fine,
            _WRONG.format(finding=self.finding),
            _ADVICE,
            evidence,
        )

    def _judged(self, significance: float) -> Evidence:
        return replace(self.test, significance=significance)
