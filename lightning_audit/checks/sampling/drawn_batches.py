"""Are the batches of a sampler drawn anew, and no record more often than the accountant supposes?

In memory alone: no index and no count leaves it, and a training that goes on begins anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.batch_sampling import RATE_TOLERANCE
from lightning_audit.checks.sampling.record_numbers import record_numbers
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.poisson_draws import RepeatBet, favoured_log_e
from lightning_audit.stats.evalues.sequential import log_mean_exp

LEDGER_DRAWS = Check(
    "ledger.draws",
    "batches that were drawn before come again, or records that come more often than the others",
    kind="accounting",
    weight=20,
    needs="no batch was seen of which the records are known",
    private=True,
    fine="no batch is one that was drawn before, and no record comes too often",
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "batches_come_again",
            "wrong sampling: batches that were drawn before come again",
            "what the sampler keeps or seeds at an epoch's start: each batch must be drawn anew",
            rank=7,
            applies=lambda seen: seen.get("of") == "again",
        ),
        FaultRule(
            "records_are_favoured",
            "wrong sampling: some records come more often than the accountant supposes",
            "how the sampler chooses records: the accountant needs the largest probability of all",
            rank=7,
            explains=("sampling.rate",),
        ),
    ),
)

CHECKS = (LEDGER_DRAWS,)

#: Records of which counts are kept.
MOST_RECORDS = 50_000_000
#: Rates above, and data sets below, at which two fresh batches may begin with the same records.
_LARGE, _FEW = 0.25, 64
_AGAIN = "{again} of {batches} batches are ones that were drawn before"
_FAVOURED = "some records come more often than with the probability {rate:.4g} of the accountant"
_ADVICE = "draw each batch anew, each record with the probability that the accountant is told"


class DrawnBatches:
    """The batches that a loader's sampler yields.

    Args:
        records: number of records in the data set, >= 1.
        significance: of the whole run.
    """

    def __init__(self, records: int, significance: float) -> None:
        self.records = records
        self._test = LEDGER_DRAWS.test(significance)
        self._bet = RepeatBet(records)
        self._counts = np.zeros(records if records <= MOST_RECORDS else 0, dtype=np.int32)
        self._batches = 0
        #: Largest rate that the accountant was told; None while none is known.
        self.rate: float | None = None
        #: Why the batches cannot be looked at; empty if they can.
        self.obstacle = "" if len(self._counts) else f"there are {records:,} records"
        self._waiting: list[np.ndarray[Any, Any]] = []

    def take(self, batch: Any) -> None:
        """Take in what the sampler yields; what cannot be read ends the test."""
        if self.obstacle:
            return
        numbers = record_numbers(batch, self.records)
        if numbers is None:
            self.obstacle = "its batches are not lists of record numbers"
            self._waiting = []
            return
        self._waiting.append(np.unique(numbers))
        if self.rate is not None:
            self._settle(self.rate)

    def _settle(self, rate: float) -> None:
        """Let the batches count that came before the rate was known."""
        for indices in self._waiting:
            self._bet.update(hash(indices.tobytes()), len(indices), min(rate, 0.999))
            self._counts[indices] += 1
            self._batches += 1
        self._waiting = []

    @property
    def never_again(self) -> bool:
        """Whether batches are unlike each other, and none was drawn twice."""
        if self.obstacle or self.rate is None or self.rate > _LARGE or self.records < _FEW:
            return False
        self._settle(self.rate)
        return self._batches > 0 and not self._bet.again

    def result(self) -> CheckResult:
        """The result of `ledger.draws`."""
        if self.obstacle:
            return LEDGER_DRAWS.not_run(f"not tested: {self.obstacle}")
        if self.rate is None or self.rate >= 1.0:
            why = "the sample rate is unknown" if self.rate is None else "all records are taken"
            return LEDGER_DRAWS.not_run(f"not tested: {why}")
        self._settle(self.rate)
        favoured = 0.0
        if self._batches:
            allowed = min(RATE_TOLERANCE * self.rate, 0.999)
            favoured = favoured_log_e(self._counts, self._batches, allowed)
            self._test.update(float(log_mean_exp([self._bet.log_e, favoured])), self._batches)
        of_repeats = self._bet.log_e >= favoured
        wrong = _AGAIN if of_repeats else _FAVOURED
        numbers = {"again": self._bet.again, "batches": self._batches, "rate": self.rate}
        evidence: dict[str, Any] = {}
        if self._test.violated:
            kind = "again" if of_repeats else "favoured"
            evidence = {"batches": self._batches, "of": kind}
        return LEDGER_DRAWS.result(
            self._test,
            LEDGER_DRAWS.fine,
            wrong.format(**numbers),
            _ADVICE,
            evidence,
        )
