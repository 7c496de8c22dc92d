"""Two gloo processes that train together in a plain loop, started by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import plain_process
import pytest
from places import REPOSITORY

from lightning_audit import AuditReport


def trained(directory: Path, fault: str) -> list[dict[str, object]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", plain_process.__file__, directory, str(rank), fault],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )
        for rank in range(plain_process.PROCESSES)
    ]
    shown = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], shown
    return [
        json.loads((directory / f"rank-{rank}.json").read_text())
        for rank in range(plain_process.PROCESSES)
    ]


@pytest.mark.heavy
@pytest.mark.heavy_one_in(1)
@pytest.mark.parametrize(
    ("fault", "outcome"), [("none", "PASS"), ("half_noise", "VIOLATION")], ids=["sound", "half"]
)
def test_processes_are_audited_together(tmp_path, fault, outcome):
    one, other = trained(tmp_path, fault)
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert one["outcome"] == other["outcome"] == report.verdict.outcome == outcome
    assert one["steps"] == other["steps"]
    assert one["digest"] == other["digest"]
    assert one["raised"] == other["raised"] == ("PrivacyViolation" if outcome != "PASS" else "")
    if outcome == "PASS":
        assert report.steps == plain_process.EPOCHS * 32
    else:
        assert str(one["fault"]).startswith("noise scale too small")
        assert report.steps < 10
