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


def test_the_page_of_versions_has_those_that_are_pinned():
    page = (REPOSITORY / "docs" / "versions.md").read_text(encoding="utf-8")
    for file, names in {
        "": {"torch": "2.13", "opacus": "Opacus 1.6.0", "lightning": "Lightning 2.6.6"},
        "-lowest": {"lightning": "Lightning 2.6.0"},
        "-transformers": {"transformers": "transformers 5.24", "peft": "peft 0.21"},
    }.items():
        text = (REPOSITORY / f"constraints{file}.txt").read_text(encoding="utf-8")
        pins = dict(line.split("==") for line in text.split())
        for name, shown in names.items():
            assert shown in page
            assert pins[name].startswith(shown.split()[-1])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [one.split()[-1] for one in project["classifiers"] if "Python :: 3." in one]
    tested = "\n".join(line for line in page.splitlines() if "| tested" in line)
    assert named == sorted(set(re.findall(r"Python (3\.\d+); torch", tested)))


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
