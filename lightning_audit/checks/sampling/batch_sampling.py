"""Do the batches of a sampler of unknown type look as Poisson sampling makes them?"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.record_numbers import record_numbers
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.batch_sizes import (
    RATE_RATIOS,
    PoissonBatchBets,
    rate_log_e,
)
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: A loader's rate is often rounded: no finding for one per cent.
RATE_TOLERANCE = 1.01

#: What to do where another sampling is claimed than the loader's.
LEAVE_OUT = "leave sampling out of the claim"


def _unknown_sampling(found: CheckResult) -> str:
    # Where no subsampling is accounted for, it is of no consequence how the loader draws.
    supposed = [found.evidence.get(name) for name in ("accounted_rate", "sampling")]
    if found.status != "not_run" or supposed == [None, None]:
        return ""
    if found.message.endswith(LEAVE_OUT):
        return found.message
    return f"{found.message}; if it does, set allow={found.name!r}"


# Of samplers whose type does not tell how they draw; a wrong one is seen in a few batches.
NOT_POISSON = Check(
    "sampling.not_poisson",
    "the loader draws otherwise than the accountant supposes",
    kind="accounting",
    weight=10,
    always=True,
    wrong=lambda seen: seen["poisson"] is not True and seen.get("sampling") != "shuffled",
    blocks=_unknown_sampling,
    # The batches are private; the loader's type, and what is accounted for, are settings.
    private=True,
    fine="the batches agree with Poisson sampling",
    public=(
        "message",
        "loader",
        "loader_rate",
        "accounted_rate",
        "raised_in",
        "sampling",
        "poisson",
        "epsilon_that_holds",
    ),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "record_twice_in_a_batch",
            "wrong sampling: a record stands twice in a batch, where it adds up to twice the "
            "clipping norm",
            "the sampler, and what fills batches up",
            rank=6,
            explains=("sampling.rate", "ledger.draws"),
            applies=lambda seen: bool(seen.get("doubled")),
        ),
        FaultRule(
            "not_poisson",
            "wrong sampling: the loader is not Poisson although the accountant supposes it",
            "which loader train_dataloader returns: Lightning does not take the one of "
            "make_private",
            rank=6,
            explains=("sampling.rate", "ledger.draws"),
        ),
    ),
)

SAMPLING_RATE = dataclasses.replace(
    NOT_POISSON,
    name="sampling.rate",
    needs="no batch was seen whose rate the accountant was told",
    fine="the batches hold no more records than the accountant's rate allows",
    always=False,
    wrong=lambda seen: seen["loader_rate"] > RATE_TOLERANCE * seen["accounted_rate"],
    blocks=None,
    faults=(
        FaultRule(
            "records_drawn_too_often",
            "wrong sampling: some records are drawn more often than the accountant is told",
            "the sampler: records that it favours or gives again soon, and its rate beside the "
            "accountant's",
            rank=9,
            explains=("ledger.draws",),
            applies=lambda seen: "loader_rate" not in seen,  # told by the batches themselves
        ),
        FaultRule(
            "sampled_too_often_later",
            "wrong sampling: from a later epoch on the loader draws more often than the accountant "
            "is told",
            "what exchanges the loader, or sets its batch sampler's sample_rate, between epochs: "
            "the accountant's step hook needs the new rate, or the loader keeps the old one",
            rank=9,
            explains=("ledger.draws",),
            applies=lambda seen: seen.get("raised_in") is not None,
        ),
        FaultRule(
            "sampled_too_often",
            "wrong sampling: the loader draws more often than the accountant is told",
            "the batch sizes of the loader that is trained on and of the one that make_private was "
            "given",
            rank=9,
            explains=("ledger.draws",),
        ),
    ),
)

CHECKS = (NOT_POISSON, SAMPLING_RATE)

#: A record's probability above which the tests do not hold.
_LARGEST_RATE = 0.5

_SEEN = {
    "size": "batches are too equal in size: Poisson batches vary by about the root of their size",
    "unseen": "records hardly come twice in an epoch: the sampler goes through the data instead of "
    "drawing every record anew for each batch",
    "repeated": "the batches of an epoch are those of the epoch before",
}


class BatchCheck:
    """Tests the batches that a sampler yields, in memory; no index and no count leaves it.

    Args:
        records: number of records in the data set, >= 1.
        significance: of the whole run.
    """

    def __init__(self, records: int, significance: float) -> None:
        self.records = records
        self._bets = PoissonBatchBets(records)
        self._poisson = NOT_POISSON.test(significance)
        self._rate = SAMPLING_RATE.test(significance)
        self._rate_wealth = np.zeros((2, len(RATE_RATIOS)))
        self._doubled = 0
        #: Why the batches cannot be tested; empty if they can.
        self.obstacle = ""
        #: Whether a record that stands twice in a batch counts twice; code that averages its
        #: gradients before clipping, for augmentations of it, does not let it.
        self.twice_counts = True

    @property
    def batches(self) -> int:
        """Batches taken in."""
        return self._bets.batches

    def start_epoch(self) -> None:
        """Take note that the sampler starts anew."""
        self._bets.start_epoch()

    def take(self, batch: Any) -> None:
        """Take in what the sampler yields; what cannot be read ends the test."""
        if self.obstacle:
            return
        numbers = record_numbers(batch, self.records)
        if numbers is None:
            self.obstacle = "its batches are not lists of record numbers"
            return
        distinct = np.unique(numbers)
        self._doubled += len(distinct) < len(numbers)
        self._bets.update(distinct)
        self._poisson.update(self._bets.log_e, self._bets.batches)

    def settle(self, rate: float | None) -> None:
        """Let the bets on the rate count for the batches since the last call.

        Args:
            rate: the largest rate that the accountant was told of these batches; None if unknown.
        """
        allowed = 1.0 if rate is None else RATE_TOLERANCE * rate
        if allowed < 1.0:
            for row, (trials, hits) in zip(self._rate_wealth, self._bets.counts, strict=True):
                row += rate_log_e(int(trials), int(hits), allowed)
            self._rate.update(float(log_mean_exp(self._rate_wealth.ravel())), self._bets.batches)
        self._bets.counts[:] = 0

    def results(self, description: str, rate: float) -> tuple[CheckResult, ...]:
        """Results of `sampling.not_poisson` and `sampling.rate`.

        Args:
            description: the sampler, in words.
            rate: the accountant's sample rate, below 1.
        """
        self.settle(rate)
        unknown = {"accounted_rate": rate}
        if self._doubled and self.twice_counts:
            message = f"{description} yields batches in which a record stands twice"
            advice = "draw each record at most once a batch, and fill no batch up"
            found = NOT_POISSON.judged({"doubled": True, "poisson": False}, "", message, advice)
        elif self.obstacle or self._doubled or rate > _LARGEST_RATE:
            twice = "a record stands twice in a batch" if self._doubled else ""
            why = self.obstacle or twice or f"a sample rate of {rate:.3g} is too high to tell"
            message = f"it cannot be read off whether {description} draws Poisson batches: {why}"
            found = NOT_POISSON.not_run(message, unknown)
        elif not self._poisson.violated and not self._could_have_seen():
            message = (
                f"{self._bets.batches} batches are too few or too small to tell whether "
                f"{description} draws Poisson batches"
            )
            found = NOT_POISSON.not_run(message, unknown)
        else:
            seen = _SEEN[self._bets.NAMES[int(np.argmax(self._bets.wealth))]]
            found = NOT_POISSON.result(
                self._poisson,
                f"the batches of {description} agree with Poisson sampling",
                f"the accountant supposes Poisson sampling, but {description} does not draw so: "
                f"{seen}",
                "",
                {"batches": self._bets.batches},
            )
        return found, SAMPLING_RATE.result(
            self._rate,
            f"the batches hold no more records than the accountant's rate {rate:.4g} allows",
            "records come more often than with the probability that the accountant is told, "
            f"{rate:.4g}",
            "give the sampler and the accountant the same rate; records that are favoured need the "
            "largest",
            {"accounted_rate": rate},
        )

    def _could_have_seen(self) -> bool:
        """Whether equal sizes, and batches without a record in common, would have been flagged."""
        needed = self._poisson.threshold + math.log(len(self._bets.NAMES))
        return bool(self._bets.could_win.min() >= needed)
