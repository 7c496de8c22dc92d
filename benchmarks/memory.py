"""Peak memory of an audited training over that of an unaudited one, in processes of their own."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile

import pytorch_lightning as pl
import torch
from overhead import BATCH_SIZES, NETS
from support import Classifier, quiet, trainer

from lightning_audit import PrivacyAudit

_STEPS = 30


class _Peak(pl.Callback):
    """The process's peak memory when the last step is done, before reports are drawn."""

    def on_train_start(self, *_) -> None:
        self.start = _kilobytes()

    def on_train_batch_end(self, *_) -> None:
        self.end = _kilobytes()


def _kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
