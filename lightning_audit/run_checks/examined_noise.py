"""What examinations of the noise came to: one e-value of all looks, and what was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lightning_audit.catalogue.evidence import Evidence, log_weight
from lightning_audit.catalogue.noise_examination import REPLAY_NOISE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run_checks.drawn_noise import (
    FAMILIES,
    NOTHING,
    SCALE,
    TENSOR,
    TOGETHER,
    Seen,
)
from lightning_audit.run_checks.replay_findings import Finding
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Kinds of findings that replays show without a family of tests.
MISSING, OF_RECORDS = "missing", "records"
#: Noise that was drawn before.
EARLIER = "earlier"
#: Kinds that may be tested in a look at several draws of one step.
_OF_DRAWS = len(FAMILIES) + len((MISSING, OF_RECORDS, EARLIER))
#: Kinds that say more than that noise is too small or of another shape, and when they are clear.
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
#: Significance of a look that is not one of a run's.
_ALONE = 1e-3
_WRONG = "the noise of a step is not drawn as claimed ({finding})"
_ADVICE = "look at how the noise is drawn (Opacus: in add_noise)"


@dataclass(frozen=True)
class NoiseLook:
    """What one look at the noise saw.

    Args:
        seen: by kind, of those that were tested.
        draws: how many were made.
        entries: how many were looked at.
        kinds: how many might be tested, which share the look's e-value.
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
        """What one look alone is sure of."""
        _, seen = self.largest
        sure = self.log_e >= math.log(1.0 / _ALONE)
        return (Finding(seen.what, math.inf, 0.0),) if sure else ()

    @property
    def largest(self) -> tuple[str, Seen]:
        """The kind that says most: the sharpest that is clear, else the largest."""
        if not self.seen:
            return "", NOTHING
        clear = (kind for kind in _SHARPEST if kind in self.seen and self.seen[kind].log_e > _CLEAR)
        kind = next(clear, None) or max(self.seen, key=lambda kind: self.seen[kind].log_e)
        return kind, self.seen[kind]


@dataclass
class NoiseLog:
    """The looks at the noise of a run.

    A look's e-value is valid whatever was seen before; the k-th counts with the weight of
    `log_weight`, and what is left of 1 stays as it is, so that looks may go on without end.
    Half of the whole is the product of what all looks say of entries that go together, which no
    look alone shows where they do so a little.
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
        """Take in a look.

        Args:
            step: number of the step, from 0.
            look: what it saw; None if there was none.
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
        # What was clear first is the fault; it shows in other ways later.
        if seen.log_e > self._largest and self._largest < _CLEAR:
            self._largest, self.kind, self.finding = seen.log_e, kind, seen.what
        self.test.update(log_e, step)

    def found(self, significance: float) -> bool:
        """Whether the noise is not as claimed."""
        return self._judged(significance).violated

    def result(self, significance: float, off: str = "") -> CheckResult:
        """The result of the check `replay.noise`.

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
