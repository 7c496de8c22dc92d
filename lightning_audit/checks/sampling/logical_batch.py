"""The check `logical_batch`: logical batches that run together."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def logical_batch_result(carried: int, epochs: int) -> CheckResult:
    """Return the result of `logical_batch`: the parts of a split batch must stay one batch.

    Args:
        carried: number of epochs that began with the rest of a logical batch of the previous one.
        epochs: number of epochs since batches are split.
    """
    return LOGICAL_BATCH.judged(
        {"carried_over": carried, "epochs": epochs},
        LOGICAL_BATCH.fine,
        f"{carried} of {epochs} epochs began with the rest of a logical batch of the previous one, "
        "which is added to the next batch: a record in both counts twice, with noise for one",
        "Lightning ends an epoch at the length that Opacus' BatchSplittingSampler estimates, in a "
        "logical batch. Give it no length, so that every batch is used: `class "
        "Whole(BatchSplittingSampler): def __len__(self): raise TypeError`, and return "
        "DataLoader(dataset, batch_sampler=Whole(sampler=..., max_batch_size=..., optimizer=...), "
        "collate_fn=loader.collate_fn) from train_dataloader",
    )


LOGICAL_BATCH = Check(
    "logical_batch",
    "a rest of one logical batch is added to the next, where a record can count twice",
    title="Boundaries of split batches",
    failed_title="Split batches run together",
    meaning="The rest of one logical batch is added to the next one, where a record can count "
    "twice.",
    look_at="Check how the loader that splits batches ends an epoch.",
    topic="Sampling and bookkeeping",
    wrong=lambda seen: seen["carried_over"] > 0,
    private=True,
    fine="every epoch began with a logical batch of its own",
    faults=(
        FaultRule(
            "batches_run_together",
            "logical batches run together: a record can count twice in one step",
            "how the loader that splits batches ends an epoch",
            headline="Split batches run together",
            rank=-2,
        ),
    ),
)

CHECKS = (LOGICAL_BATCH,)
