"""Train a kind with and without the audit; `python -m correct_kinds.run` prints what it says.

In `tests/support`, optionally with a seed and names of kinds after it.
"""

import logging
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from functools import lru_cache
from io import StringIO
from pathlib import Path

import pytorch_lightning as pl
import torch
from expected_warnings import EXPECTED_WARNINGS
from training_support import trainer_for

from correct_kinds import KINDS
from correct_kinds.base import STEPS, Kind
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
    """Train under the audit, which does not stop the training at a violation.

    Examinations of seed 0 are as by default. Those of the other seeds are two, each of which asks
    all its questions, whereas the default asks as many as there is time for.

    Args:
        kind: what is trained.
        seed: of the training.
        folder: where the report is written.

    Returns:
        The report.
    """
    made = kind.build(seed)
    audit = PrivacyAudit(
        on_violation="warn",
        report_dir=folder / "audit",
        examinations=2 if seed else "auto",
        **made.audit,
    )
    trainer_for(folder, audit, **made.trainer).fit(made.module, datamodule=made.datamodule)
    return audit.report


def differs(kind: Kind, seed: int, folder: Path) -> tuple[AuditReport, float]:
    """The report, and how far the model is from that of a training without the audit.

    Args:
        kind: what is trained.
        seed: of the trainings.
        folder: where they write.

    Returns:
        The largest difference of a parameter is relative to the largest entry of its tensor;
        infinite if the audited training took other steps.
    """
    plain = train(kind, seed, folder)
    made = kind.build(seed)
    audit = PrivacyAudit(
        on_violation="warn",
        on_budget="stop",
        report_dir=folder / "audit",
        examinations=2 if seed else "auto",
        **made.audit,
    )
    trainer = trainer_for(folder, audit, **made.trainer)
    trainer.fit(made.module, datamodule=made.datamodule)
    if trainer.global_step != plain.global_step:
        return audit.report, float("inf")
    models = [one.lightning_module.state_dict() for one in (plain, trainer)]
    off = [
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
        for a, b in zip(*(m.values() for m in models), strict=True)
        if a.is_floating_point() and a.numel()
    ]
    return audit.report, max(off)


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
    """Print the table's lines."""
    from opacus.accountants.analysis import rdp

    rdp._compute_log_a = lru_cache(maxsize=None)(rdp._compute_log_a)
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("error")
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    seed, names = int((sys.argv[1:] or ["0"])[0]), sys.argv[2:]
    for kind in KINDS:
        if kind.name in names or not names:
            with redirect_stdout(StringIO()):
                told = line(kind, seed)
            print(told, flush=True)


if __name__ == "__main__":
    main()
