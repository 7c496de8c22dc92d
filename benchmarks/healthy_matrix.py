"""False alarms in correct trainings of every kind in docs/which-trainings.md."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from support import quiet

from lightning_audit import PrivacyAudit

TESTS = Path(__file__).parents[1] / "tests" / "support"


def rows() -> list[Any]:
    """Return the training matrix, as the tests run it."""
    sys.path.insert(0, str(TESTS))
    try:
        from training_matrix import ROWS
    finally:
        sys.path.remove(str(TESTS))
    return list(ROWS)


def outcome(
    row: Any, seed: int, steps: int, accelerator: str = "cpu"
) -> tuple[str, str, list[str]]:
    """Return the verdict of one correct training, its summary, and the checks that warned."""
    from training_support import trainer_for

    pl.seed_everything(2000 + seed, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(1000.0, on_violation="warn", seed=seed, **row.audit)
        settings = {**row.trainer, "max_steps": steps, "accelerator": accelerator}
        trainer = trainer_for(Path(folder), audit, **settings)
        trainer.fit(row.module())
        report = audit.report
    warned = [check.name for check in report.checks if check.status == "warned"]
    return report.verdict.outcome, report.verdict.summary, warned


def run(seeds: int = 3, steps: int = 100) -> dict[str, object]:
    """Train every row of the matrix with ``seeds`` seeds, and count the verdicts."""
    quiet()
    matrix = rows()
    outcomes = {
        f"{row.group}: {row.name}, seed {seed}": outcome(row, seed, steps)
        for row in matrix
        for seed in range(seeds)
    }
    kinds = [kind for kind, *_ in outcomes.values()]
    return {
        "ways to train": len(matrix),
        "trainings": len(outcomes),
        "alarms": kinds.count("VIOLATION"),
        "what alarmed": [
            f"{name}: {why}" for name, (kind, why, _) in outcomes.items() if kind == "VIOLATION"
        ],
        "what warned": [f"{name}: {', '.join(w)}" for name, (*_, w) in outcomes.items() if w],
        "PASS": kinds.count("PASS"),
        "INCONCLUSIVE": kinds.count("INCONCLUSIVE"),
    }
