"""Time of an audited step over an unaudited one, alternating within one training."""

from __future__ import annotations

import random
import statistics
import tempfile

import pytorch_lightning as pl
import torch
from support import (
    Classifier,
    GhostClassifier,
    digits,
    large_digits,
    medium_conv_net,
    mlp,
    now,
    quiet,
    trainer,
)

from lightning_audit import PrivacyAudit

#: Nets by name: how to make one, and its data.
NETS = {
    "mlp of 103k": (lambda: mlp(hidden=285), digits),
    "conv net of 26k": (medium_conv_net, large_digits),
}
BATCH_SIZES = (64, 256)
#: Canaries per step under ghost clipping, where a canary costs no row.
GHOST_CANARIES = 16


#: First audited steps, which are reported separately.
FIRST = 100


class Alternate(pl.Callback):
    """Switches the audit on or off at random before each step, and times the step.

    Both kinds of steps so see the same weights, memory and processor; of the audit nothing is left
    in an unaudited step but the calls of its hooks. The audit's first hundred steps, in which it
    reads the noise of each, are kept apart.
    """

    def __init__(self, audit: PrivacyAudit) -> None:
        self.seconds: dict[str, list[float]] = {"off": [], "on": [], "first": []}
        self._audit = audit
        self._coin = random.Random(0)
        self._audits: list = []

    def on_train_batch_start(self, *_) -> None:
        """Flip the step's coin and start timing."""
        self._audits = self._audit._run.optimizers.audits or self._audits
        self._on = self._coin.random() < 0.5
        for audit in self._audits:
            audit.detach()
            if self._on:
                audit.session.follow(audit.session.step)
                audit.session.watch()
        self._follow(self._audits if self._on else [])
        self._start = now()

    def on_train_batch_end(self, *_) -> None:
        """Store the step's time."""
        recorder = self._audits[0].session.recorder
        kind = ("first" if recorder.steps <= FIRST else "on") if self._on else "off"
        self.seconds[kind].append(now() - self._start)
        self._follow(self._audits)

    def _follow(self, audits: list) -> None:
        optimizers = self._audit._run.optimizers
        optimizers.audits = audits
        optimizers.sessions[:] = [audit.session for audit in audits]


def ratios(
    name: str, batch_size: int, steps: int, *, ghost: bool = False, accelerator: str = "cpu"
) -> dict[str, float]:
    """Return the step times of one training over those of its unaudited steps."""
    classifier, canaries = (GhostClassifier, GHOST_CANARIES) if ghost else (Classifier, 8)
    make, data = NETS[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        # `examination_cost` measures examinations.
        audit = PrivacyAudit(
            num_canaries=canaries,
            report_dir=folder,
            on_violation="warn",
            seed=0,
            examinations=0,
        )
        clock = Alternate(audit)
        module = classifier(make(), data(), batch_size=batch_size)
        trainer(steps, audit, clock, accelerator=accelerator).fit(module)
    off, on, first = (clock.seconds[kind][10:] for kind in ("off", "on", "first"))
    # The mean without the slowest twentieth, which other programs on the machine may cause.
    base, *means = (statistics.fmean(sorted(t)[: -len(t) // 20]) for t in (off, on, first))
    median = statistics.median(off)
    return {
        "median": statistics.median(on) / median,
        "mean": means[0] / base,
        "median of the first hundred": statistics.median(first) / median,
        "mean of the first hundred": means[1] / base,
    }


def run(steps: int = 1600, accelerator: str = "cpu") -> dict[str, object]:
    """Return ratios for two nets and two batch sizes, and for ghost clipping."""
    quiet()
    results: dict[str, object] = {}
    for name in NETS:
        ghost = ratios(name, 64, steps, ghost=True, accelerator=accelerator)
        results |= {f"{name}, ghost, batch 64, {kind}": round(r, 3) for kind, r in ghost.items()}
    for name in NETS:
        for batch_size in BATCH_SIZES:
            own = steps if batch_size == 64 else steps // 2
            measured = ratios(name, batch_size, own, accelerator=accelerator)
            for kind, ratio in measured.items():
                results[f"{name}, batch {batch_size}, {kind}"] = round(ratio, 3)
    return results
