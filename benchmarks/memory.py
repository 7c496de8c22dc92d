"""Peak memory of an audited training over an unaudited one, in separate processes (Linux only)."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import dp_accounting.pld  # noqa: F401  (the audit imports it when an epoch ends)
import pytorch_lightning as pl
import torch
from overhead import BATCH_SIZES, NETS
from support import Classifier, quiet, trainer

from lightning_audit import PrivacyAudit

_STEPS = 30
_REPETITIONS = 3
#: Return large tensors to the system at once. Otherwise glibc keeps some of them, and peaks differ
#: by a fifth from one process to the next.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072"}


class _Peak(pl.Callback):
    """Peak memory of the process after the last step, and its growth since the first."""

    def on_train_start(self, *_) -> None:
        # Reset the peak, which the imports set.
        Path("/proc/self/clear_refs").write_text("5")
        self.start = _kilobytes("VmRSS")

    def on_train_batch_end(self, *_) -> None:
        self.end = _kilobytes("VmHWM")


def _kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", status, flags=re.MULTILINE)[1])


def peak(name: str, batch_size: int, audited: bool) -> tuple[int, int]:
    """Return this process's peak in a training in kilobytes, and the part that its steps added."""
    quiet()
    make, data = NETS[name]
    torch.manual_seed(0)
    seen = _Peak()
    with tempfile.TemporaryDirectory() as folder:
        audit = [PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)] if audited else []
        module = Classifier(make(), data(), batch_size=batch_size)
        trainer(_STEPS, seen, *audit).fit(module)
    return seen.end, seen.end - seen.start


def run() -> dict[str, object]:
    """Return ratios of median peaks and of median growths, for two nets and two batch sizes."""
    results: dict[str, object] = {}
    for name in NETS:
        for batch_size in BATCH_SIZES:
            pairs = [
                [_measured(name, batch_size, kind) for kind in (True, False)]
                for _ in range(_REPETITIONS)
            ]
            for at, what in enumerate(("whole process", "added by the steps")):
                audited, plain = (
                    statistics.median(pair[kind][at] for pair in pairs) for kind in (0, 1)
                )
                results[f"{name}, batch {batch_size}, {what}"] = round(audited / plain, 3)
    return results


def _measured(name: str, batch_size: int, audited: bool) -> tuple[int, ...]:
    command = [sys.executable, __file__, name, str(batch_size), str(int(audited))]
    environment = os.environ | _MALLOC
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return tuple(map(int, done.stdout.split()[-2:]))


if __name__ == "__main__":
    print(*peak(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"))
