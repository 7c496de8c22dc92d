"""Environments of their own for packages that most tests do not need, made by the Makefile."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock
from places import REPOSITORY

_FOLDER = REPOSITORY / "benchmarks" / ".environments"


def environment(name: str) -> Path:
    """Make an environment if it is missing or old, and return its folder.

    Several processes run the tests, and one at a time makes an environment.
    """
    folder = _FOLDER / name
    _FOLDER.mkdir(exist_ok=True)
    make = ["make", str((folder / ".dev").relative_to(REPOSITORY)), f"PYTHON={sys.executable}"]
    with FileLock(_FOLDER / f"{name}.lock"):
        subprocess.run(make, cwd=REPOSITORY, check=True)
    return folder


def printed_by(name: str, script: str, home: Path, *arguments: str, **variables: str) -> Any:
    """Run a script of tests/support in an environment, and return the JSON of its last line."""
    python = environment(name) / "bin" / "python"
    done = subprocess.run(
        [python, "-W", "ignore", f"tests/support/{script}", *arguments],
        cwd=REPOSITORY,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'support'}",
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        capture_output=True,
        timeout=1500,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
