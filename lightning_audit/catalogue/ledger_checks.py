"""The checks of the ledger: batches as they were drawn, steps as the accountant was told."""

from __future__ import annotations

from lightning_audit.catalogue.check import OF_BATCHES, Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def _unread(found: CheckResult) -> str:
    return found.message if found.evidence.get("hook") == "unread" else ""


LEDGER_ACCOUNTANT = Check(
    "ledger.accountant",
    "the accountant was told of fewer steps, or of more noise, than the optimizer took and stated",
    kind="accounting",
    always=True,
    wrong=lambda seen: seen["missing"] > 0 or seen["told_noise"] is not None,
    blocks=_unread,
    refutes=("claimed",),  # by an accountant; the steps are composed as they were taken
    faults=(
        FaultRule(
            "accountant_not_told",
            "wrong accounting: the accountant was not told of all steps",
            "who calls accountant.step: with attach_step_hook the optimizer does it at each step",
            rank=4,
            explains=("accounting", "epsilon"),
            applies=lambda seen: seen["missing"] > 0,
        ),
        FaultRule(
            "accountant_told_of_more_noise",
            "wrong accounting: the accountant was told of more noise than the optimizer states",
            "the noise_multiplier that accountant.step is given",
            rank=4,
            explains=("accounting", "epsilon"),
        ),
    ),
)

LEDGER_STEPS = Check(
    "ledger.steps",
    "several steps were taken on one batch, at once or later, which is accounted for as if each "
    "drew its own",
    kind="accounting",
    wrong=lambda seen: seen["again"] > 0 or seen["stale"] > 0,
    private=True,
    fine="each step had a batch of its own",
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "several_steps_on_one_batch",
            "wrong sampling: several steps were taken on one batch",
            "loops over optimizer.step within a batch, and batches that are kept for later: each "
            "step needs a batch that is drawn anew",
            rank=11,
            explains=("sampling.rate",),
        ),
    ),
)

#: Behind what was seen of the steps.
UNKNOWN_SCHEDULE = (
    "no schedule that is known: if a loss or another value without noise decides it, no epsilon "
    "holds. Step on every batch, or every k-th; set the noise by opacus.schedulers, stepped once a "
    "step or an epoch; or state allow=['ledger.schedule'] where steps, epochs, public data or "
    "released values alone decide it"
)


def _unknown(found: CheckResult) -> str:
    return found.message if found.status == "not_run" and found.evidence else ""


LEDGER_SCHEDULE = Check(
    "ledger.schedule",
    "batches are left out, or noise_multiplier changes, by no schedule that is known, as where a "
    "loss decides it (never a violation; replay.release tells whether records do)",
    kind="accounting",
    wrong=lambda _: False,
    blocks=_unknown,
)

LEDGER_RECORDS = Check(
    "ledger.records",
    "the data set holds records several times, so that they are drawn more often than is accounted",
    kind="accounting",
    wrong=lambda seen: seen["repeated"] > 0,
    private=True,
    fine="the data set holds each index once",
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "records_stand_several_times",
            "wrong sampling: the data set holds indices several times",
            "how its Subset or ConcatDataset is made: an index that stands there k times is drawn "
            "k times as often",
            rank=12,
            explains=("sampling.rate", "ledger.draws"),
        ),
    ),
)

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
