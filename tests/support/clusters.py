"""Runs cases of clusters_worker.py in the environment of Ray and Dask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from environments import printed_by


def on_cluster(kind: str, case: str, folder: Path) -> Any:
    """Return what a case of a cluster ("ray", "dask") prints."""
    # By default, Ray gives up after 30 s, which are too few on a busy machine.
    patience = {"RAY_raylet_start_wait_time_s": "300"}
    return printed_by("clusters", "clusters_worker.py", folder, kind, case, str(folder), **patience)
