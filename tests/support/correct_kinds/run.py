"""Train a kind, and write what the audit says of all: `python -m correct_kinds.run` in support."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from functools import lru_cache
from pathlib import Path

import pytorch_lightning as pl
import torch
from correct_kinds import KINDS
from correct_kinds.base import STEPS, Kind
from expected_warnings import EXPECTED_WARNINGS
from training_support import trainer_for

from lightning_audit import AuditReport, PrivacyAudit


def train(kind: Kind, seed: int, folder: Path) -> pl.Trainer:
    """Train without the audit.

    Args:
        kind: what is trained.
        seed: of the training.
        folder: where the Trainer writes.

    Returns:
        The Trainer, after its last step.
    """
    made = kind.build(seed)
    trainer = trainer_for(folder, **made.trainer)
    trainer.fit(made.module, datamodule=made.datamodule)
    return trainer


def audited(kind: Kind, seed: int, folder: Path) -> AuditReport:
    """Train under the audit as it is by default, but for violations, which do not stop it.

    Args:
        kind: what is trained.
        seed: of the training.
        folder: where the report is written.

    Returns:
        The report.
    """
    made = kind.build(seed)
    audit = PrivacyAudit(
        on_violation="warn", report_dir=folder / "audit", examinations="auto", **made.audit
    )
    trainer_for(folder, audit, **made.trainer).fit(made.module, datamodule=made.datamodule)
    return audit.report


def violated(report: AuditReport) -> list[str]:
    """The findings of a report that are violations."""
    return [check.name for check in report.checks if check.status == "violated"]


def line(kind: Kind, seed: int) -> str:
    """A line of the table, of one training without the audit and one with it."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        trainer = train(kind, seed, Path(folder))
        alone = time.perf_counter() - begun
        assert trainer.global_step == STEPS, (kind.name, trainer.global_step)
        begun = time.perf_counter()
        try:
            report = audited(kind, seed, Path(folder))
            outcome, found = report.verdict.outcome, ", ".join(violated(report)) or "-"
        except Exception as error:  # what ends a training is a finding of its own
            outcome, found = f"ended by {type(error).__name__}", str(error).partition("\n")[0][:150]
        took = time.perf_counter() - begun
    return f"| {kind.name} | {outcome} | {found} | {alone:.1f} | {took:.1f} |"


def main() -> None:
    """Print the table's lines, of the kinds that are named or of all."""
    from opacus.accountants.analysis import rdp

    rdp._compute_log_a = lru_cache(maxsize=None)(rdp._compute_log_a)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    for kind in KINDS:
        if len(sys.argv) < 2 or kind.name in sys.argv[1:]:
            print(line(kind, seed=0), flush=True)


if __name__ == "__main__":
    main()
