"""One block of attention with more than a million parameters, at noise multiplier 0.7."""

from __future__ import annotations

import tempfile

import pytorch_lightning as pl
from support import Classifier, Transformer, digit_tokens, quiet, trainer

from lightning_audit import PrivacyAudit


def verdict(noise_factor: float, steps: int, width: int = 304) -> tuple[str, str]:
    """Return the outcome and likely fault of one training.

    Args:
        noise_factor: true noise over stated noise.
        steps: length of the training.
        width: of the tokens; 304 for more than a million parameters.
    """
    pl.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(on_violation="stop", report_dir=folder, seed=0)
        module = Classifier(
            Transformer(width),
            digit_tokens(),
            batch_size=256,
            noise_multiplier=0.7,
            noise_factor=noise_factor,
        )
        trainer(steps, audit).fit(module)
        found = audit.report.verdict
    return found.outcome, found.fault


def run(width: int = 304) -> dict[str, object]:
    """Return the verdicts on a correct training of 24 steps and on one with half the noise."""
    quiet()
    return {
        "parameters": sum(p.numel() for p in Transformer(width).parameters()),
        "correct": verdict(1.0, 24, width)[0],
        "half noise": ": ".join(verdict(0.5, 8, width)),
    }
