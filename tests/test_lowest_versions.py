"""The lowest versions that pyproject.toml states are those of constraints-lowest.txt, and work."""

import re
import subprocess
import tomllib

import pytest
from environments import environment
from places import REPOSITORY

#: An audited training, and the commands on what it wrote.
_SMOKE = """
import sys
from pathlib import Path
from training_support import PrivateModule, trainer_for
from lightning_audit import PrivacyAudit
from lightning_audit.cli.main import main
folder, BOUND = Path(sys.argv[1]), ["bound", "--method", "eps_cp", "--delta", "1e-5"]
audit = PrivacyAudit(claimed_epsilon=50.0, seed=1)
trainer_for(folder, audit, max_steps=64).fit(PrivateModule())
assert audit.report.verdict.outcome == "PASS", audit.report.verdict
assert main(["check", str(folder / "audit" / "report.json")]) == 0
assert main([*BOUND, str(folder / "audit" / "observations.npz")]) == 0
"""


def _pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints-lowest.txt").read_text(encoding="utf-8").split()
    return dict(line.split("==") for line in lines)


def test_the_lowest_versions_are_the_bounds_of_the_project():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    stated = [*project["dependencies"]]
    stated += [one for name in ("cli", "report", "examples") for one in extras[name]]
    pins = _pins()
    for one in stated:
        if match := re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one):
            name, bound = match.groups()
            if name != "torch":  # of which there is one build for a CPU
                assert re.sub(r"(\.0)+$", "", pins[name]) == bound.removesuffix(".0"), one


@pytest.mark.heavy
def test_a_training_and_the_commands_work_with_the_lowest_versions(tmp_path):
    done = subprocess.run(
        [environment("lowest") / "bin" / "python", "-c", _SMOKE, str(tmp_path)],
        cwd=REPOSITORY,
        env={"PYTHONPATH": "tests/support", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
