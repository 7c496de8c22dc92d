"""Train a fault of the registry under audit, with the settings of its entry."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.testing.fault import Fault, lightning
from lightning_audit.testing.processes import train_together


def train(
    fault: Fault,
    directory: str | os.PathLike[str],
    seed: int = 0,
    audit: type[PrivacyAudit] = PrivacyAudit,
) -> AuditReport | None:
    """Train a fault, in several processes or with a stop in the middle if it needs that.

    Args:
        fault: what to train.
        directory: for the audit's report and record.
        seed: of the training; the audit's seed is one larger.
        audit: class of the audit.

    Returns:
        The report; None if the audit made none.

    Raises:
        RuntimeError: one of several processes failed.
    """
    if fault.processes > 1:
        return train_together(fault, directory, seed, audit)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    path = Path(directory)
    if not fault.resumes:
        return _fit(fault, path, fault.steps, seed, audit)[0].report
    _, trainer = _fit(fault, path, fault.steps // 2, seed, audit)
    saved = path.parent / "stopped.ckpt"
    trainer.save_checkpoint(saved)
    return _fit(fault, path, fault.steps, seed, audit, saved)[0].report


def _fit(
    fault: Fault,
    directory: Path,
    steps: int,
    seed: int,
    audit: type[PrivacyAudit],
    checkpoint: Path | None = None,
) -> tuple[PrivacyAudit, Any]:
    package = lightning()
    callback = audit(seed=seed + 1, report_dir=directory, on_violation="warn", **fault.audit)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "callbacks": [callback],
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": directory.parent,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = package.Trainer(**{**settings, **fault.trainer})
    module = fault.module(package.LightningModule)
    if checkpoint is None:
        trainer.fit(module)
    else:
        trainer.fit(module, ckpt_path=checkpoint, weights_only=True)
    return callback, trainer
