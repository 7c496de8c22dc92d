"""Time of the report of 10^5 observations, and of the gate on a hundred reports."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from support import Classifier, digits, mlp, quiet, trainer

from lightning_audit import PrivacyAudit
from lightning_audit.run.audit_run import AuditRun

#: Canaries of a step. With the default of 8, 10^5 observations take 12,500 steps.
CANARIES = 100


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of a call in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def _command(outcome: str, count: int, path: str) -> tuple[float, float]:
    """Return wall and CPU seconds of `check`, its start included, which shows an outcome."""

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    wall, before = time.perf_counter(), cpu()
    command = [sys.executable, "-m", "lightning_audit.cli.main", "check", path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stdout.count(outcome) < count:
        raise RuntimeError(done.stderr or done.stdout)
    return time.perf_counter() - wall, cpu() - before


def run(steps: int = 1200, copies: int = 100) -> dict[str, object]:
    """Return seconds, wall and CPU, of what happens to a report.

    Args:
        steps: of the training, with 100 canaries each.
        copies: reports that the gate checks at once.
    """
    quiet()
    torch.manual_seed(0)
    ended: list[tuple[float, float]] = []
    end = AuditRun.end
    AuditRun.end = lambda run: ended.append(_timed(lambda: end(run)))  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(
            num_canaries=CANARIES, report_dir=folder, on_violation="warn", seed=0, examinations=0
        )
        try:
            trainer(steps, audit).fit(Classifier(mlp(), digits()))
        finally:
            AuditRun.end = end  # type: ignore[method-assign]
        report, file = audit.report, Path(folder) / "report.json"
        many = Path(folder) / "many"
        for number in range(copies):
            (many / f"{number:03}").mkdir(parents=True)
            shutil.copy(file, many / f"{number:03}" / "report.json")
        written = _timed(lambda: report.save(file))
        shown = _command(report.verdict.outcome, 1, str(file))
        measured = {
            "computed and written at the end of the training": ended[0],
            "written": written,
            "read and shown by `check`, a process": shown,
            f"`check` of {copies}, a process": _command(report.verdict.outcome, copies, str(many)),
        }
        size = file.stat().st_size
    return {
        "observations": report.observations,
        "report.json, kB": round(size / 1000),
        **{f"{name}, s (CPU)": f"{w:.2f} ({c:.2f})" for name, (w, c) in measured.items()},
    }
