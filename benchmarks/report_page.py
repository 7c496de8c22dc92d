"""CPU time and size of a report's HTML page: in a training, and of a large report."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightning_audit import AuditReport
from lightning_audit.report.page import write_page
from lightning_audit.results.report_details import CheckGrowth, CourseRow, TensorNoise

#: Trains the digits demo for an epoch, and prints the CPU seconds of its page and the whole fit.
#: The first page of a process includes the import of Jinja and the compilation of the templates.
_TRAINING = """
import json, runpy, sys, time
from lightning_audit.run.report_files import ReportFiles
seconds, write = [], ReportFiles.write_page
def timed(files, report):
    start = time.process_time()
    write(files, report)
    seconds.append(time.process_time() - start)
ReportFiles.write_page = timed
demo = runpy.run_path(sys.argv[1])
start = time.process_time()
demo["train"]("half noise", sys.argv[2])
print(json.dumps({"page": sum(seconds), "fit": time.process_time() - start}))
"""
_DEMO = Path(__file__).parents[1] / "examples" / "digits.py"
OBSERVATIONS, TENSORS, EPOCHS = 10**5, 160, 200


def trained(folder: Path) -> tuple[dict[str, float], AuditReport]:
    """Train in a process of its own; return its CPU seconds and its report."""
    command = [sys.executable, "-W", "ignore", "-c", _TRAINING, str(_DEMO), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = folder.rglob("report.json")
    return json.loads(done.stdout.splitlines()[-1]), AuditReport.load(found)


def large(report: AuditReport) -> AuditReport:
    """Return a report of many observations, tensors and epochs."""
    each = OBSERVATIONS // 4
    points = tuple(
        dataclasses.replace(point, fn=each, tp=each, fp=each, tn=each)
        for point in report.operating_points
    )
    name = "encoder.layers.{}.attention.self.query.weight"
    tensors = tuple(
        TensorNoise(name.format(i), 10**6, 64, 6400, 1.01, 0.97, 1.06, False)
        for i in range(TENSORS)
    )
    rows = [dict(row) for row in report.epochs] or [{"epsilon_spent": 1.0, "e_value": 1.0}]
    growth = tuple((i, 0.1 * i) for i in range(12))
    return dataclasses.replace(
        report,
        observations=OBSERVATIONS,
        steps=OBSERVATIONS // 8,
        operating_points=points,
        tensors=tensors,
        tests={check.name: CheckGrowth(9.2, growth) for check in report.checks if check.share},
        course=tuple(CourseRow(i, i, 0.1, 0.1, 8 * i) for i in range(EPOCHS)),
        epochs=tuple({**rows[0], "epoch": i, "step": 62 * (i + 1)} for i in range(EPOCHS)),
    )


def seconds_of(report: AuditReport, folder: Path, repeats: int) -> tuple[float, int]:
    """Return the median CPU seconds of writing a page, and its bytes."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        page = write_page(report, folder / "report.html")
        times.append(time.process_time() - start)
    return statistics.median(times), page.stat().st_size


def run(trainings: int = 5, repeats: int = 5) -> dict[str, object]:
    """Return the times and sizes."""
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as base:
        runs = [trained(Path(base) / str(number)) for number in range(trainings)]
        pages = [timed["page"] for timed, _ in runs]
        results["page in a training, imports included, CPU s (median, largest)"] = [
            round(statistics.median(pages), 3),
            round(max(pages), 3),
        ]
        shares = [timed["page"] / timed["fit"] for timed, _ in runs]
        results["page over the whole short training, median"] = round(statistics.median(shares), 4)
        report: Any = runs[0][1]
        for name, one in (("digits, half noise", report), ("10^5 observations", large(report))):
            took, size = seconds_of(one, Path(base), repeats)
            results[f"{name}: further pages, CPU s"] = round(took, 3)
            results[f"{name}: kB"] = round(size / 1000, 1)
    return results
