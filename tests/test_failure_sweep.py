"""The sweep of exceptions in each function of the package: named functions, and what it detects."""

import importlib
import shutil
import sys
from typing import Any

import pytest
from places import REPOSITORY

from lightning_audit import PrivacyAudit

pytestmark = [
    pytest.mark.heavy,
    # Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
    pytest.mark.filterwarnings("default"),
    pytest.mark.training,
]
TRAINING = "examined in a fork"


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    yield importlib.import_module("failure_sweep")
    sys.modules.pop("failure_sweep", None)


@pytest.fixture
def made_up(sweep, monkeypatch):
    """Plants code of the package, as it were, at the start of each batch; the outcome of it."""

    def plant(hook: str) -> Any:
        source = f"def helper(): pass\ndef hook(audit, trainer, *given):\n    {hook}\n"
        code = compile(source, f"{sweep.PACKAGE}made_up.py", "exec")
        held: dict[str, Any] = {}
        exec(code, held)
        own = PrivacyAudit.on_train_batch_start

        def on_train_batch_start(audit: PrivacyAudit, *given: Any) -> None:
            held["hook"](audit, *given)
            own(audit, *given)

        monkeypatch.setattr(PrivacyAudit, "on_train_batch_start", on_train_batch_start)
        plain = sweep.unaudited(TRAINING)
        return sweep.tried(TRAINING, sweep.Function("made_up", "helper"), plain)

    return plant


def test_a_function_outside_of_the_boundary_ends_the_training(made_up):
    outcome = made_up("helper()")
    assert outcome.ended
    assert outcome.wrong == ["the training ended: Injected: "]


def test_a_pass_and_changed_weights_are_found(made_up):
    outcome = made_up(
        "try:\n        helper()\n"
        "    except Exception:\n        next(given[0].parameters()).data.add_(1e-3)"
    )
    weights, *others = outcome.wrong
    assert weights.startswith("weights are off by ")
    assert others == ["PASS", "the report does not name the failure"]


def test_an_exception_in_a_fork_changes_no_file_of_the_training(sweep, tmp_path):
    folder = tmp_path / "training"
    (folder / "audit").mkdir(parents=True)
    written, replaced = folder / "audit" / "record", folder / "report"
    replaced.write_text("before")
    with written.open("wb", buffering=0) as file:
        file.write(b"one")
        files = sweep.Files(folder)
        file.write(b"two")
        replaced.unlink()
        (folder / "more").mkdir()
        shutil.rmtree(folder / "audit")
        files.put_back()
        file.write(b"three")
    assert written.read_bytes() == b"onethree"
    assert replaced.read_text() == "before"
    assert sorted(p.name for p in folder.rglob("*")) == ["audit", "record", "report"]
