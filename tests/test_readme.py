"""README and docs say what happens."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import pytorch_lightning as pl
from places import REPOSITORY
from stages import staged

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Dirac, Spread
from lightning_audit.cli import main as cli
from lightning_audit.config.audit_config import findings
from lightning_audit.stats.bounds.named_bounds import METHODS
from lightning_audit.testing.faults import FAULTS

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.manual_seed(0)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def run(code: str, names: dict | None = None) -> dict:
    """What a block of the README leaves, with these names given."""
    names = {} if names is None else names
    exec(compile(code, "README.md", "exec"), names)
    return names


def trained(kind: type, names: dict, steps: int):
    """The audit of a block, after a training."""
    audit = names["audit"]
    pl.Trainer(max_steps=steps, callbacks=[audit], accelerator="cpu", logger=False).fit(kind())
    return audit


def normalised(text: str) -> set[str]:
    """Words without table rules, numbers by their form alone: they differ between processors."""
    words = re.sub(r"[│┃━┏┓┡┩└┘┴┬┼─╇┳╋┻]", " ", text).split()
    return {re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", word) for word in words} - {"..."}


def _example(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture
def digits():
    yield from _example("digits")


def test_the_ten_lines_audit_a_training_and_the_gate_passes_it(
    digits, tmp_path, monkeypatch, capsys
):
    code, *_ = blocks("python")
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 10
    monkeypatch.chdir(tmp_path)
    model = digits.Digits()
    # With the bound of the command below, to compare with what it prints.
    code = code.replace("PrivacyAudit(", 'PrivacyAudit(bounds="all", ')
    names = run(code, {"model": model, "data": model.train_dataloader()})
    command = next(b for b in blocks("console") if b.startswith("lightning-audit check")).split()
    script = Path(sysconfig.get_path("scripts")) / command[0]
    done = subprocess.run([script, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    command = next(b for b in blocks("console") if b.startswith("lightning-audit bound")).split()
    capsys.readouterr()
    assert cli.main(command[1:]) == 0
    (bound,) = [b for b in names["trainer"].callbacks[0].report.bounds if b.name == command[4]]
    # The run takes out of a reading what its past residuals were.
    assert json.loads(capsys.readouterr().out)["epsilon_lower"] == pytest.approx(
        bound.epsilon_step_lower, rel=0.3
    )


@pytest.fixture
def hand_written():
    yield from _example("hand_written")


def test_the_line_for_hand_written_dp_sgd_lets_canaries_in(hand_written, tmp_path, monkeypatch):
    _, code, *_ = blocks("python")
    monkeypatch.chdir(tmp_path)
    names = run(code, dict(vars(hand_written)))
    kind = type("Model", (hand_written.ByVmap,), {"training_step": names["training_step"]})
    report = trained(kind, names, 12).report
    assert report.observations == 12 * 8
    assert not [c.name for c in report.checks if c.status == "violated"]


@pytest.mark.heavy
def test_a_release_that_is_shown_may_be_processed(hand_written, tmp_path, monkeypatch):
    stated, processed = (code for code in blocks("python") if "def training_step" in code)
    monkeypatch.chdir(tmp_path)
    names = run(processed, run(stated, dict(vars(hand_written))))
    kind = type("Model", (hand_written.ByVmap,), {"training_step": names["training_step"]})
    # Twice the steps that the power needs: the audit draws its seed.
    assert trained(kind, names, 120).report.verdict.outcome == "PASS"


def test_the_input_canary_audits_a_module_that_has_a_forward(digits, tmp_path, monkeypatch):
    code = next(block for block in blocks("python") if "Mislabeled" in block)
    monkeypatch.chdir(tmp_path)
    kind = type("Model", (digits.Digits,), {"forward": lambda self, x: self.net(x)})
    assert trained(kind, run(code), 12).report.observations == 12


@pytest.mark.heavy
def test_the_banded_noise_is_that_of_its_claim(digits, tmp_path, monkeypatch):
    code = next(block for block in blocks("python") if "noise_coefficients" in block)
    monkeypatch.chdir(tmp_path)
    names = run(code)

    class Model(digits.Digits):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            optimizer.__class__ = names["Banded"]
            return optimizer

    report = trained(Model, names, 300).report
    assert report.verdict.outcome == "PASS"
    assert (report.epsilon_spent, report.epsilon_lower) == (None, None)
    assert "the mechanism alone was judged" in report.verdict.summary


def test_a_planted_fault_fails_the_training_by_name(digits, tmp_path, monkeypatch):
    *_, code = blocks("python")
    monkeypatch.chdir(tmp_path)
    names = run(code, {"Model": digits.Digits})
    assert names["trainer"].callbacks[0].report.verdict.exit_code == 1


def test_the_number_of_faults_is_as_stated():
    assert "holds eighty-nine faults" in README
    assert len(FAULTS) == 89


@pytest.mark.parametrize("name", staged(quick=["vmap"], heavy=["own optimizer", "one by one"]))
def test_the_hand_written_trainings_pass(hand_written, tmp_path, name):
    assert set(hand_written.RUNS) == {"vmap", "one by one", "own optimizer"}
    assert hand_written.train(name, tmp_path) == "PASS"


def test_every_bound_of_the_literature_is_named_with_its_kind():
    table = README.split("| name | from | is |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", table, flags=re.MULTILINE)
    assert rows == [(name, method.interpretation) for name, method in METHODS.items()]


def test_the_pictures_are_there():
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (REPOSITORY / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
def test_the_command_with_yaml_audits_a_training_and_passes(tmp_path):
    command = next(b for b in blocks("console") if b.startswith("python examples/")).split()
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert report.verdict.outcome == "PASS"
    assert " ".join(command) in (REPOSITORY / "examples" / "cli.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_the_yaml_configures_the_audit_in_either_lightning(package, tmp_path, monkeypatch):
    (block,) = blocks("yaml")
    config = tmp_path / "audit.yaml"
    config.write_text(block, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    lightning_cli = importlib.import_module(f"{package}.cli").LightningCLI
    boring = importlib.import_module(f"{package}.demos.boring_classes").BoringModel
    cli = lightning_cli(boring, run=False, args=["--config", str(config)])
    (audit,) = [c for c in cli.trainer.callbacks if isinstance(c, PrivacyAudit)]
    assert audit.canaries == (Dirac(tensor="last_bias"), Spread())
    assert audit.claim == PrivacyClaim(delta=1e-5, noise_multiplier=1.0)
    assert (audit.claimed_epsilon, audit.delta) == (8.0, 1e-5)


def test_the_failing_audit_ends_as_shown(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "96")
    outcome, fault = digits.train("half noise", Path("demo/half-noise"))
    assert outcome == "VIOLATION"
    assert fault.startswith("noise scale too small")
    (shown,) = blocks("text")
    printed = normalised(capsys.readouterr().out)
    assert normalised(shown) <= printed


def test_every_finding_is_explained():
    table = README.split("| finding |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z_.]+)`", table)) == set(findings())


def test_a_mechanism_of_half_the_noise_is_refuted_as_shown(capsys):
    code = next(block for block in blocks("python") if "audit_mechanism" in block)
    run(code)
    shown = re.search(r"print\(audit\)  # (.*)", code).group(1)
    assert " ".join(capsys.readouterr().out.split()).startswith(shown)


def test_what_is_used_outside_of_a_training_is_there():
    table = README.split("## Outside of a training")[1].split("```")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 8
    for row in rows:
        for name in re.findall(r"`(.*?)`", row[2]):
            if name.startswith("lightning-audit "):
                assert name.split()[1] in cli._parser().format_help()
            elif "." in name:
                importlib.import_module(name)
            else:
                assert callable(getattr(lightning_audit, name))
        pages = re.findall(r"\]\((.*?)\)", row[3])
        assert pages
        assert all((REPOSITORY / page).is_file() for page in pages)


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    commands = [line.split("#")[0].strip() for line in blocks("console")[0].splitlines()]
    assert commands == ["make demo", "make test"]
    for command in commands:
        assert re.search(rf"^{command.split()[1]}:", makefile, flags=re.MULTILINE)
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
