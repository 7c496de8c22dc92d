"""A session of pytest within a test, with the plugin, whether it is installed or not."""

from __future__ import annotations

from importlib.metadata import entry_points

PLUGIN = "lightning_audit.pytest_plugin"
_INSTALLED = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
#: Arguments by which pytest loads the plugin; of a checkout that is not installed, by its module.
WITH_PLUGIN = () if _INSTALLED else ("-p", PLUGIN)
WITHOUT_PLUGIN = ("-p", "no:lightning_audit") if _INSTALLED else ()
#: What the tests of an inner session import: trainings, and reports without one.
HEADER = """
import pytest
from made_report import made_report
from training_support import PrivateModule, digits, mlp, trainer_for
from lightning_audit import PrivacyAudit, PrivacyViolation
from lightning_audit.testing.faulty import HalfNoise

def half():
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=HalfNoise)

def fit(audit, module, steps, path):
    trainer_for(path / "trainer", audit, max_steps=steps).fit(module)

def write(audit, outcome="PASS", name="", **changes):
    folder = audit.report_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    made_report(outcome, **changes).save(folder / "report.json")
"""
