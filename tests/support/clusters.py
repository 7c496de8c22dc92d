"""Runs cases of clusters_worker.py in the environment of Ray and Dask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import REPOSITORY

_ENVIRONMENT = "benchmarks/.environments/clusters"


def on_cluster(kind: str, case: str, folder: Path) -> Any:
    """Return what a case of a cluster ("ray", "dask") prints."""
    make = ["make", f"{_ENVIRONMENT}/.dev", f"PYTHON={sys.executable}"]
    subprocess.run(make, cwd=REPOSITORY, check=True)
    worker = ["-W", "ignore", "tests/support/clusters_worker.py", kind, case, str(folder)]
    done = subprocess.run(
        [f"{_ENVIRONMENT}/bin/python", *worker],
        cwd=REPOSITORY,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'support'}",
            "OMP_NUM_THREADS": "1",
            "RAY_raylet_start_wait_time_s": "300",  # 30 are too few on a busy machine
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
