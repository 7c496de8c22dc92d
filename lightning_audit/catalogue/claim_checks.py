"""The checks of the accounting, the sampling and the divisor against the claim."""

from __future__ import annotations

import dataclasses

from lightning_audit.accounting.margin import exceeds
from lightning_audit.catalogue.check import OF_BATCHES, Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: Why nothing is composed of steps whose noise is correlated by the claim's `noise_coefficients`.
NOT_COMPOSED = (
    "noise_coefficients claim noise that is correlated over steps, and steps are composed here "
    "only where their noise is independent"
)

_SPENT_MORE = FaultRule(
    "wrong_accounting",
    "wrong accounting: the steps cost more than is claimed",
    "the number of steps, the sample rate and the noise multiplier that the claim was made for",
    rank=15,
)

_OF_REPLACEMENT = FaultRule(
    "replacement_accounted_as_removal",
    "wrong accounting: epsilon is promised where a record is replaced, and the claim covers only a "
    "record more or less",
    "which data sets are neighbours for the accountant: Opacus' suppose a record more or less, and "
    "another record in the place of one moves the sum of the gradients twice as far",
    rank=15,
    # The claim would hold if no record were replaced, but one added or removed.
    applies=lambda seen: (
        seen.get("epsilon_by_removal") is not None
        and not exceeds(seen["epsilon_by_removal"], seen["claimed_epsilon"])
    ),
)

ACCOUNTING = Check(
    "accounting",
    "the steps, or those that are planned, cost more than the claim",
    kind="accounting",
    always=True,
    wrong=lambda seen: exceeds(
        seen.get("epsilon_planned") or seen["epsilon_spent"], seen["claimed_epsilon"]
    ),
    faults=(_OF_REPLACEMENT, _SPENT_MORE),
    refutes=("claimed",),  # what the steps cost holds
)

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

REPEATED = Check(
    "sampling.repeated",
    "every process draws from all records, so that one may enter a step several times",
    kind="accounting",
    wrong=lambda seen: seen["processes"] > 1,
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "sampled_by_every_process",
            "wrong sampling: every process draws from all records, so a record may enter a step "
            "several times",
            "whether the loader deals the records out to the processes",
            rank=8,
        ),
    ),
)


def _unpaid(found: CheckResult) -> str:
    # The divisor's cost alone is within the claim; what it and the steps cost is not known.
    if found.status != "ok" or found.evidence.get("private_dataset_size") is not True:
        return ""
    return f"{found.message}: the epsilon of both together is unknown; {found.advice}"


EXPECTED_BATCH_SIZE = Check(
    "expected_batch_size",
    "one record more or less changes the divisor of the gradients, and what that costs (a "
    "violation only where the number of records is stated as private)",
    kind="accounting",
    each=True,
    blocks=_unpaid,
    # Where the number of records is private, and the divisor tells it at more than is claimed.
    wrong=lambda seen: (
        seen.get("private_dataset_size") is True
        and seen["claimed_epsilon"] is not None
        and exceeds(seen["epsilon_of_divisor"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "divisor_tells_the_number_of_records",
            "divided by a number that is computed of the records: the size of the noise tells how "
            "many there are, which is stated as private",
            "what the sum of gradients and noise is divided by: make_private computes it of the "
            "data set, and it can be set to a constant afterwards",
            rank=10,
        ),
    ),
)
