"""The check `ledger.draws`: whether batches repeat, or records are drawn too often.

It runs in memory and releases no index and no count. A resumed training starts it again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.batch_sampling import DRAWS, RATE_TOLERANCE, SAMPLING_RATE
from lightning_audit.checks.sampling.record_numbers import record_numbers
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.poisson_draws import RepeatBet, favoured_log_e
from lightning_audit.stats.evalues.sequential import log_mean_exp

LEDGER_DRAWS = Check(
    DRAWS,
    "batches that repeat earlier ones, or records that are drawn more often than others",
    title="Independence of the draws",
    failed_title="Draws are not independent",
    meaning="Batches repeat, or some records are drawn more often than others.",
    look_at="Check what the sampler keeps or seeds at the start of an epoch, and whether it favors "
    "some records.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    weight=20,
    needs="no batch was seen whose records are known",
    private=True,
    fine="no batch repeats an earlier one, and no record is drawn too often",
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "batches_come_again",
            "wrong sampling: earlier batches are drawn again",
            "what the sampler keeps or seeds at an epoch's start: each batch must be a new draw",
            headline="Earlier batches are drawn again",
            rank=7,
            applies=lambda seen: seen.get("of") == "again",
        ),
        FaultRule(
            "records_are_favoured",
            "wrong sampling: some records are drawn more often than the accountant assumes",
            "how the sampler chooses records: the accountant needs the largest probability of all",
            headline="Some records are drawn more often than others",
            rank=7,
            explains=(SAMPLING_RATE.name,),
        ),
    ),
)

CHECKS = (LEDGER_DRAWS,)

#: Largest number of records that are counted.
MOST_RECORDS = 50_000_000
#: Rates above the first, and data sets below the second, may give two new batches that begin alike.
_LARGE, _FEW = 0.25, 64
_AGAIN = "{again} of {batches} batches repeat earlier ones"
_FAVOURED = "some records are drawn more often than with the accountant's probability {rate:.4g}"
_ADVICE = "draw each batch independently, each record with the accountant's probability"


class DrawnBatches:
    """Test of the batches that a loader's sampler yields.

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
        #: Largest rate that the accountant recorded; None while none is known.
        self.rate: float | None = None
        #: Why the batches cannot be tested; empty if they can.
        self.obstacle = "" if len(self._counts) else f"there are {records:,} records"
        self._waiting: list[np.ndarray[Any, Any]] = []

    def take(self, batch: Any) -> None:
        """Update with a batch of the sampler; one that cannot be read ends the test."""
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
        """Update the test with the batches that were drawn before the rate was known."""
        for indices in self._waiting:
            self._bet.update(hash(indices.tobytes()), len(indices), min(rate, 0.999))
            self._counts[indices] += 1
            self._batches += 1
        self._waiting = []

    @property
    def never_again(self) -> bool:
        """Whether new batches differ with near certainty, and none was drawn twice."""
        if self.obstacle or self.rate is None or self.rate > _LARGE or self.records < _FEW:
            return False
        self._settle(self.rate)
        return self._batches > 0 and not self._bet.again

    def result(self) -> CheckResult:
        """Return the result of `ledger.draws`."""
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
