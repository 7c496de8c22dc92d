"""Checks that a package adds by entry points: in report, `allow`, gate, docs and checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from made_report import made_report
from places import REPOSITORY

from lightning_audit.results.audit_report import EXIT_CODES

#: The module of docs/own-checks.md, and a second check, whose statistic checkpoints hold.
PAGE = (REPOSITORY / "docs" / "own-checks.md").read_text(encoding="utf-8")
MODULE = PAGE.split("```python\n")[1].split("```")[0]
COUNTED = """

class Counted:
    def __init__(self):
        self.steps = 0

    def update(self, entry):
        self.steps += 1

    def results(self):
        seen = {"steps": self.steps}
        return (COUNTED.judged(seen, f"{self.steps} steps have noise", "none has", "train"),)


COUNTED = Check(
    "steps.counted",
    "no step has noise",
    each=True,
    always=True,
    wrong=lambda seen: seen["steps"] < 1,
    reads="steps",
    init=lambda header, significance: Counted(),
)
CHECKS = (MEDIAN, COUNTED)
"""

TRAINING = """
import sys

import pytorch_lightning as pl
from checks_table import table
from resume_support import StepwiseModule

from lightning_audit import PrivacyAudit
from lightning_audit.testing.faulty import ShiftedNoise

directory, fault, resume = sys.argv[1:]
kind = ShiftedNoise if fault else None
audit = PrivacyAudit(
    seed=1,
    report_dir=directory,
    examinations=0,
    allow=["noise.median"] if fault else [],
    on_violation="warn",
)
checkpoint = pl.callbacks.ModelCheckpoint(dirpath=directory, save_last=True, every_n_train_steps=8)
trainer = pl.Trainer(
    accelerator="cpu",
    callbacks=[audit, checkpoint],
    enable_progress_bar=False,
    logger=False,
    max_epochs=-1,
    max_steps=16 if resume else 8,
)
module = StepwiseModule(optimizer_class=kind)
trainer.fit(module, ckpt_path=resume or None, weights_only=True if resume else None)
print(table())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of processes that have the package with the checks."""
    site = tmp_path_factory.mktemp("site")
    # A package with a check may import this one when it is imported.
    callback = "from lightning_audit import PrivacyAudit\n"
    (site / "noise_median.py").write_text(callback + MODULE + COUNTED)
    info = site / "noise_median-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noise-median\nVersion: 1.0\n")
    assert 'median = "noise_median:CHECKS"' in PAGE
    points = "[lightning_audit.checks]\nmedian = noise_median:CHECKS\n"
    (info / "entry_points.txt").write_text(points)
    (site / "training.py").write_text(textwrap.dedent(TRAINING))
    paths = [site, REPOSITORY, REPOSITORY / "tests" / "support", REPOSITORY / "docs" / "build"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "SITE": str(site)}


def run(environment: dict[str, str], *arguments: str, module: str = "") -> tuple[int, str]:
    script = ["-m", module] if module else [str(Path(environment["SITE"]) / "training.py")]
    command = [sys.executable, *script, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def gate(environment: dict[str, str], directory: Path) -> tuple[int, str]:
    return run(
        environment, "check", str(directory / "report.json"), module="lightning_audit.cli.main"
    )


def checks_of(directory: Path) -> dict[str, dict[str, object]]:
    report = json.loads((directory / "report.json").read_text())
    return {check["name"]: check for check in report["checks"]}


def test_a_check_from_outside_is_in_report_docs_gate_and_checkpoint(
    environment: dict[str, str], tmp_path: Path
) -> None:
    code, output = run(environment, str(tmp_path), "", "")
    assert code == 0, output
    found = checks_of(tmp_path)
    assert (found["noise.median"]["status"], found["steps.counted"]["status"]) == ("ok", "ok")
    assert found["steps.counted"]["message"] == "8 steps have noise"
    assert float(str(found["noise.median"]["share"])) > 0
    assert "| `noise.median` | noise whose median is not zero |" in output
    # A training of a few steps is inconclusive; the gate reads and judges it.
    code, output = gate(environment, tmp_path)
    assert code == EXIT_CODES["INCONCLUSIVE"]
    assert output.strip().startswith("INCONCLUSIVE: no check failed")
    # The gate of an environment without the package does not know what it should judge.
    bare = {**environment, "PYTHONPATH": str(REPOSITORY)}
    code, output = gate(bare, tmp_path)
    assert code == 2
    assert "noise.median" in output
    resumed = tmp_path / "resumed"
    code, output = run(environment, str(resumed), "", str(tmp_path / "last.ckpt"))
    assert code == 0, output
    assert checks_of(resumed)["steps.counted"]["message"] == "16 steps have noise"


def test_a_check_from_outside_is_allowed_by_its_name(
    environment: dict[str, str], tmp_path: Path
) -> None:
    code, output = run(environment, str(tmp_path), "shifted", "")
    assert code == 0, output
    assert checks_of(tmp_path)["noise.median"]["status"] == "allowed"


def executed(environment: dict[str, str], code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout + done.stderr


def test_a_package_with_a_check_may_import_this_one(environment: dict[str, str]) -> None:
    code = "import noise_median; noise_median.PrivacyAudit(allow=['noise.median']); print('made')"
    assert executed(environment, code).strip() == "made"


def test_a_check_that_cannot_be_loaded_is_named_before_a_training(
    environment: dict[str, str], tmp_path: Path
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightning_audit.checks]\nbroken = absent:CHECKS\n")
    there = {**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    output = executed(there, "from lightning_audit import PrivacyAudit as A; print('here'); A()")
    assert output.startswith("here")
    assert "ImportError: the check 'absent:CHECKS' cannot be loaded" in output
    assert "the entry point 'broken' of lightning_audit.checks" in output
    (tmp_path / "report.json").write_text(made_report().to_json())
    code, output = gate(there, tmp_path)
    assert code == EXIT_CODES["INCONCLUSIVE"]
    assert output.startswith("lightning-audit: the check 'absent:CHECKS' cannot be loaded")
