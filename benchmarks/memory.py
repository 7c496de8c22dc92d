"""Peak memory of an audited training over an unaudited one, each in a process (Linux only)."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytorch_lightning as pl
import torch
from overhead import BATCH_SIZES, NETS
from support import Classifier, quiet, trainer

from lightning_audit import PrivacyAudit

_STEPS = 30


class _Peak(pl.Callback):
    """The process's peak memory when the last step is done, before reports are drawn."""

    def on_train_start(self, *_) -> None:
        # Forget the peak of the imports.
        Path("/proc/self/clear_refs").write_text("5")
        self.start = _kilobytes("VmRSS")

    def on_train_batch_end(self, *_) -> None:
        self.end = _kilobytes("VmHWM")


def _kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", status, flags=re.MULTILINE)[1])


def growth(name: str, batch_size: int, audited: bool) -> int:
    """Kilobytes by which the steps of a training raise this process's peak."""
    quiet()
    make, data = NETS[name]
    torch.manual_seed(0)
    peak = _Peak()
    with tempfile.TemporaryDirectory() as folder:
        audit = [PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)] if audited else []
        module = Classifier(make(), data(), batch_size=batch_size)
        trainer(_STEPS, peak, *audit).fit(module)
    return peak.end - peak.start


def run() -> dict[str, object]:
    """Ratio of the growths, for two nets and two batch sizes."""
    results: dict[str, object] = {}
    for name in NETS:
        for batch_size in BATCH_SIZES:
            audited, plain = (_measured(name, batch_size, kind) for kind in (True, False))
            results[f"{name}, batch {batch_size}"] = round(audited / plain, 3)
    return results


def _measured(name: str, batch_size: int, audited: bool) -> int:
    command = [sys.executable, __file__, name, str(batch_size), str(int(audited))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    print(growth(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"))
