"""The checks `sampling.not_poisson` and `sampling.rate`, for samplers of unknown type."""

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

#: Name of the check of `drawn_batches`, which faults of the loader violate as well.
DRAWS = "ledger.draws"
#: Largest ratio of rates without a finding: a loader's rate is often rounded.
RATE_TOLERANCE = 1.01

#: What to do if the claim states another sampling than the loader's.
LEAVE_OUT = "leave sampling out of the claim"


def _unknown_sampling(found: CheckResult) -> str:
    # If no subsampling is accounted for, any sampling is fine.
    stated = [found.evidence.get(name) for name in ("accounted_rate", "sampling")]
    if found.status != "not_run" or stated == [None, None]:
        return ""
    if found.message.endswith(LEAVE_OUT):
        return found.message
    return f"{found.message}; if it does, set allow={found.name!r}"


# For samplers whose type does not show how they draw; a wrong one is detected in a few batches.
NOT_POISSON = Check(
    "sampling.not_poisson",
    "the loader draws otherwise than the accountant assumes",
    title="How batches are drawn",
    failed_title="Batches are not Poisson-sampled",
    meaning="The accountant assumes that each record enters a batch independently with the same "
    "probability, and the loader draws otherwise.",
    look_at="Return `DPDataLoader.from_data_loader(loader)` from `train_dataloader`; Lightning "
    "does not use the loader that `make_private` returns.",
    topic="Sampling and bookkeeping",
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
            "wrong sampling: a batch contains a record twice, which adds up to twice the clipping "
            "norm",
            "the sampler, and what fills batches up",
            headline="A batch contains a record twice",
            rank=6,
            explains=("sampling.rate", DRAWS),
            applies=lambda seen: bool(seen.get("doubled")),
        ),
        FaultRule(
            "not_poisson",
            "wrong sampling: the loader is not Poisson although the accountant assumes it",
            "which loader train_dataloader returns: Lightning does not use the one of make_private",
            headline="Batches are not Poisson-sampled",
            rank=6,
            explains=("sampling.rate", DRAWS),
        ),
    ),
)

SAMPLING_RATE = dataclasses.replace(
    NOT_POISSON,
    name="sampling.rate",
    title="Sampling rate of the loader",
    failed_title="Records are drawn too often",
    meaning="Records enter batches more often than the accountant assumes, so the steps cost more "
    "than is accounted.",
    look_at="Compare the batch size of the loader that is trained on with that of the loader given "
    "to `make_private`, and check that the sampler favors no record.",
    topic="Sampling and bookkeeping",
    needs="no batch was seen for which the accountant recorded a rate",
    fine="the batches hold no more records than the accountant's rate allows",
    always=False,
    wrong=lambda seen: seen["loader_rate"] > RATE_TOLERANCE * seen["accounted_rate"],
    blocks=None,
    faults=(
        FaultRule(
            "records_drawn_too_often",
            "wrong sampling: some records are drawn more often than the accountant assumes",
            "the sampler: records that it favors or repeats early, and its rate compared with the "
            "accountant's",
            headline="Some records are drawn more often than accounted",
            rank=9,
            explains=(DRAWS,),
            applies=lambda seen: "loader_rate" not in seen,  # found in the batches themselves
        ),
        FaultRule(
            "sampled_too_often_later",
            "wrong sampling: from a later epoch on the loader draws more often than the accountant "
            "assumes",
            "what replaces the loader, or sets its batch sampler's sample_rate, between epochs: "
            "the accountant's step hook needs the new rate, or the loader keeps the old one",
            headline="The loader draws more often from some epoch on",
            rank=9,
            explains=(DRAWS,),
            applies=lambda seen: seen.get("raised_in") is not None,
        ),
        FaultRule(
            "sampled_too_often",
            "wrong sampling: the loader draws more often than the accountant assumes",
            "the batch sizes of the loader that is trained on and of the one that make_private was "
            "given",
            headline="The loader draws more often than accounted",
            rank=9,
            explains=(DRAWS,),
        ),
    ),
)

CHECKS = (NOT_POISSON, SAMPLING_RATE)

#: Largest sampling rate for which the tests are valid.
_LARGEST_RATE = 0.5

_SEEN = {
    "size": "batches are too equal in size: Poisson batches vary by about the root of their size",
    "unseen": "records are hardly ever drawn twice in an epoch: the sampler goes through the data "
    "instead of drawing every record independently for each batch",
    "repeated": "the batches of an epoch are those of the previous epoch",
}


class BatchCheck:
    """Test of the batches that a sampler yields, in memory: it releases no index and no count.

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
        #: Whether a record that is in a batch twice counts twice. It does not if the step averages
        #: its gradients before clipping, as for augmentations.
        self.twice_counts = True

    @property
    def batches(self) -> int:
        """Number of batches so far."""
        return self._bets.batches

    def start_epoch(self) -> None:
        """Record that the sampler starts an epoch."""
        self._bets.start_epoch()

    def take(self, batch: Any) -> None:
        """Update with a batch of the sampler; one that cannot be read ends the test."""
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
        """Update the bets on the rate with the batches since the last call.

        Args:
            rate: the largest rate that the accountant recorded for these batches; None if unknown.
        """
        allowed = 1.0 if rate is None else RATE_TOLERANCE * rate
        if allowed < 1.0:
            for row, (trials, hits) in zip(self._rate_wealth, self._bets.counts, strict=True):
                row += rate_log_e(int(trials), int(hits), allowed)
            self._rate.update(float(log_mean_exp(self._rate_wealth.ravel())), self._bets.batches)
        self._bets.counts[:] = 0

    def results(self, description: str, rate: float) -> tuple[CheckResult, ...]:
        """Return the results of `sampling.not_poisson` and `sampling.rate`.

        Args:
            description: the sampler, in words.
            rate: the accountant's sample rate, below 1.
        """
        self.settle(rate)
        unknown = {"accounted_rate": rate}
        if self._doubled and self.twice_counts:
            message = f"{description} yields batches that contain a record twice"
            advice = "draw each record at most once per batch, and do not pad batches"
            found = NOT_POISSON.judged({"doubled": True, "poisson": False}, "", message, advice)
        elif self.obstacle or self._doubled or rate > _LARGEST_RATE:
            twice = "a batch contains a record twice" if self._doubled else ""
            why = self.obstacle or twice or f"a sample rate of {rate:.3g} is too high to test"
            message = f"it is unknown whether {description} draws Poisson batches: {why}"
            found = NOT_POISSON.not_run(message, unknown)
        elif not self._poisson.violated and not self._could_have_seen():
            message = (
                f"{self._bets.batches} batches are too few or too small to test whether "
                f"{description} draws Poisson batches"
            )
            found = NOT_POISSON.not_run(message, unknown)
        else:
            seen = _SEEN[self._bets.NAMES[int(np.argmax(self._bets.wealth))]]
            found = NOT_POISSON.result(
                self._poisson,
                f"the batches of {description} agree with Poisson sampling",
                f"the accountant assumes Poisson sampling, but {description} draws otherwise: "
                f"{seen}",
                "",
                {"batches": self._bets.batches},
            )
        return found, SAMPLING_RATE.result(
            self._rate,
            f"the batches hold no more records than the accountant's rate {rate:.4g} allows",
            f"records are drawn more often than with the accountant's probability {rate:.4g}",
            "give the sampler and the accountant the same rate; if records have different rates, "
            "give the accountant the largest",
            {"accounted_rate": rate},
        )

    def _could_have_seen(self) -> bool:
        """Return whether equal sizes, and batches without common records, would be detected."""
        needed = self._poisson.threshold + math.log(len(self._bets.NAMES))
        return bool(self._bets.could_win.min() >= needed)
