"""Logical batches that run together: `logical_batch`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def logical_batch_result(carried: int, epochs: int) -> CheckResult:
    """Result of `logical_batch`: what a batch memory manager splits must stay one batch.

    Args:
        carried: epochs that began with the rest of a logical batch of the epoch before.
        epochs: epochs seen since the batches are split.
    """
    return LOGICAL_BATCH.judged(
        {"carried_over": carried, "epochs": epochs},
        LOGICAL_BATCH.fine,
        f"{carried} of {epochs} epochs began with the rest of a logical batch of the epoch before, "
        "which is added to the next one: a record that is in both counts twice, with one noise",
        "Lightning ends an epoch at the length that Opacus' BatchSplittingSampler estimates, amid "
        "a logical batch. Give it no length, so that every batch is taken: `class "
        "Whole(BatchSplittingSampler): def __len__(self): raise TypeError`, and return "
        "DataLoader(dataset, batch_sampler=Whole(sampler=..., max_batch_size=..., optimizer=...), "
        "collate_fn=loader.collate_fn) from train_dataloader",
    )


LOGICAL_BATCH = Check(
    "logical_batch",
    "a rest of one logical batch is added to the next, where a record can count twice",
    wrong=lambda seen: seen["carried_over"] > 0,
    private=True,
    fine="every epoch began with a logical batch of its own",
    faults=(
        FaultRule(
            "batches_run_together",
            "logical batches run together: a record can count twice in one step",
            "how the loader that splits batches ends an epoch",
            rank=-2,
        ),
    ),
)

CHECKS = (LOGICAL_BATCH,)
