"""Seconds that the pytest plugin adds to the start of pytest.

A session that collects an empty folder, with the plugin and without, alternately.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path

MODULE = "lightning_audit.pytest_plugin"
LIMIT = 0.05


def seconds(folder: str, *options: str) -> float:
    """Return the time of a session of pytest in an empty folder."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 5, done.stdout.decode() + done.stderr.decode()  # no tests
    return time.perf_counter() - start


def run(pairs: int = 20) -> dict[str, object]:
    """Return the median start without the plugin, and the median of what it adds."""
    installed = any(point.value == MODULE for point in entry_points(group="pytest11"))
    without = ("-p", "no:lightning_audit") if installed else ()
    with_it = () if installed else ("-p", MODULE)
    with tempfile.TemporaryDirectory() as folder:
        seconds(folder, *with_it)  # compiles
        times = [(seconds(folder, *without), seconds(folder, *with_it)) for _ in range(pairs)]
    added = statistics.median(after - before for before, after in times)
    return {
        "start without the plugin, s": round(statistics.median(before for before, _ in times), 3),
        f"added by the plugin, s (limit {LIMIT})": round(added, 3),
    }
