"""Memory of the first examination of 4 million weights, forked process included (Linux only)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from support import Classifier, counted_replays, quiet, trainer
from torch import nn
from torch.utils.data import TensorDataset

from lightning_audit import PrivacyAudit

_STEPS, _RECORDS, _BATCH = 2, 512, 32
#: Return large tensors to the system at once, as in `memory.py`.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072"}


class _Steps(pl.Callback):
    """Seconds of each step, hooks included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_) -> None:
        self._begun = time.perf_counter()

    def on_train_batch_end(self, *_) -> None:
        self.seconds.append(time.perf_counter() - self._begun)


def train(examinations: str) -> dict[str, object]:
    """Run a short training and return its cost.

    Args:
        examinations: argument of the audit, "auto" or "0".
    """
    quiet()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 1000), nn.ReLU())
    module = Classifier(
        nn.Sequential(net, nn.Linear(1000, 10)),
        TensorDataset(torch.randn(_RECORDS, 1000), torch.arange(_RECORDS) % 10),
        batch_size=_BATCH,
    )
    steps = _Steps()
    with tempfile.TemporaryDirectory() as folder:
        number = examinations if examinations == "auto" else int(examinations)
        audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0, examinations=number)
        with counted_replays() as replays:
            trainer(_STEPS, steps, audit).fit(module)
    assert audit.report is not None
    checks = {
        c.name: c.message for c in audit.report.checks if c.name.startswith(("replay", "coup"))
    }
    cost = dict(audit.report.examination_cost)
    return {"cost": cost, "replays": replays[:1], "steps": steps.seconds, "checks": checks}


def _family(pid: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _family(int(child))
    return found


def _memory(pid: int) -> int:
    """Return the bytes held by a process and its descendants, shared pages counted once."""
    total = 0
    for each in _family(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


def _in_a_process(examinations: str) -> tuple[dict[str, object], int]:
    command = [sys.executable, __file__, examinations]
    environment = os.environ | _MALLOC
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        peak = 0
        while process.poll() is None:
            with contextlib.suppress(OSError):  # one of them has just ended
                peak = max(peak, _memory(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        return json.loads(process.stdout.read().splitlines()[-1]), peak


def run() -> dict[str, object]:
    """Return the cost of the first examination on top of the training: GiB, seconds, replays."""
    (_, without), (seen, peak) = (_in_a_process(each) for each in ("0", "auto"))
    return {
        "memory of the training, GiB": round(without / 2**30, 2),
        "more for the first examination, GiB": round((peak - without) / 2**30, 2),
        **seen,
    }


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1])))
