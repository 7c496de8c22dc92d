"""False alarms in correct trainings: nets, batch sizes, noise multipliers and seeds at random."""

from __future__ import annotations

import itertools
import tempfile

import pytorch_lightning as pl
import torch
from support import Classifier, cells, conv_net, digits, mlp, quiet, trainer

from lightning_audit import PrivacyAudit

SETTINGS = list(
    itertools.product(
        ("digits, conv", "digits, mlp", "cells, mlp"),
        (16, 64, 256),
        (0.5, 1.0, 3.0),
        ("sgd", "adam"),
    )
)
#: Thresholds were chosen on other seeds.
FIRST_SEED = 20_000


def module(net: str, batch_size: int, noise_multiplier: float, optimizer: str) -> Classifier:
    """Return a correct training."""
    make = {"digits, conv": conv_net, "digits, mlp": mlp, "cells, mlp": lambda: mlp(30, 32, 2)}
    return Classifier(
        make[net](),
        cells() if net.startswith("cells") else digits(),
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        learning_rate=0.25 if optimizer == "sgd" else 0.01,
        make_optimizer=torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam,
    )


def outcome(run: int, steps: int) -> tuple[str, str, list[str]]:
    """Return the verdict of one correct training, its summary, and the checks that warned."""
    pl.seed_everything(FIRST_SEED + run, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(
            on_violation="warn",
            report_dir=folder,
            seed=FIRST_SEED + run,
            # One in five is examined twice, without a time limit.
            examinations="auto" if run % 5 else 2,
        )
        trainer(steps, audit).fit(module(*SETTINGS[run % len(SETTINGS)]))
        report = audit.report
    warned = [check.name for check in report.checks if check.status == "warned"]
    return report.verdict.outcome, report.verdict.summary, warned


def run(runs: int = 300, steps: int = 40) -> dict[str, object]:
    """Count the verdicts of ``runs`` correct trainings."""
    quiet()
    outcomes = [outcome(number, steps) for number in range(runs)]
    counts = {kind: sum(o == kind for o, *_ in outcomes) for kind in ("PASS", "INCONCLUSIVE")}
    alarms = [summary for o, summary, _ in outcomes if o == "VIOLATION"]
    warnings = [name for *_, names in outcomes for name in names]
    return {
        "trainings": runs,
        "alarms": len(alarms),
        "what alarmed": alarms,
        "what warned": warnings,
        **counts,
    }
