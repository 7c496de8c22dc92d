"""What the pages of docs show of a training happens; their code has names of the user's."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
from places import DOCS, REPOSITORY
from shown_code import blocks, example, formed, run, text_of, trained
from stages import staged

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim, PrivacyViolation
from lightning_audit.callbacks.preview import preview
from lightning_audit.canaries import Dirac, Spread
from lightning_audit.cli import main
from lightning_audit.config import findings
from lightning_audit.loops.plan import plan
from lightning_audit.stats.named_bounds import METHODS
from lightning_audit.testing.faults import FAULTS, plant

# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = pytest.mark.filterwarnings("default")

HAND_WRITTEN = DOCS / "hand-written.md"


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def digits():
    yield from example("digits")


@pytest.mark.nightly
def test_the_bound_of_a_reports_observations_is_near_the_one_in_the_report(
    digits, tmp_path, monkeypatch, capsys
):
    command, _ = blocks(DOCS / "bounds.md", "console")[0].splitlines()
    _, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    audit = PrivacyAudit(claimed_epsilon=8.0, delta=1e-5, bounds="all")
    pl.Trainer(max_epochs=10, callbacks=[audit]).fit(digits.Digits())
    capsys.readouterr()
    assert main.main(arguments) == 0
    (bound,) = [b for b in audit.report.bounds if b.name == arguments[3]]
    # The run subtracts from a reading what its past residuals were.
    assert json.loads(capsys.readouterr().out)["epsilon_lower"] == pytest.approx(
        bound.epsilon_step_lower, rel=0.3
    )


def test_the_scores_of_one_training_are_not_read_as_independent(tmp_path, monkeypatch, capsys):
    _, command = blocks(DOCS / "bounds.md", "console")[0].splitlines()
    _, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    members = rng.random(2000) < 0.5
    scores = 1.5 * members + rng.standard_normal(2000)
    np.savez(arguments[1], scores=scores, memberships=members)
    np.save("scores.npy", scores)
    np.save("mask.npy", members)

    def epsilon_lower(*given: str) -> float:
        assert main.main(["bound", *given, *arguments[2:], "--json"]) == 0
        return json.loads(capsys.readouterr().out)["epsilon_lower"]

    one_training = epsilon_lower("scores.npz")
    assert 1 < one_training == epsilon_lower("scores.npy", "--members", "mask.npy")
    arguments[3] = "fdp_cp"
    assert epsilon_lower("scores.npz") > 1.5 * one_training
    assert main.main(["bound", "scores.npy", "mask.npy", *arguments[2:]]) == 2
    assert "write --members before it" in capsys.readouterr().err


@pytest.fixture
def hand_written():
    yield from example("hand_written")


def test_the_line_for_hand_written_dp_sgd_lets_canaries_in(hand_written, tmp_path, monkeypatch):
    code, *_ = blocks(HAND_WRITTEN, "python")
    monkeypatch.chdir(tmp_path)
    names = run(code, dict(vars(hand_written)))
    kind = type("Model", (hand_written.ByVmap,), {"training_step": names["training_step"]})
    report = trained(kind, names, 12).report
    assert report.observations == 12 * 8
    assert not [c.name for c in report.checks if c.status == "violated"]


@pytest.mark.parametrize("allowed", staged(quick=[True], nightly=[False]))
def test_own_poisson_draws_of_a_plain_loop_pass_if_they_are_stated(
    hand_written, allowed, tmp_path, monkeypatch
):
    stated, plain, _ = blocks(HAND_WRITTEN, "python")
    monkeypatch.chdir(tmp_path)
    images, labels = hand_written.Digits().train_dataloader().dataset.tensors
    net = hand_written.Digits().net
    optimizer = hand_written.torch.optim.SGD(net.parameters(), lr=0.5)
    yours = {"net": net, "optimizer": optimizer, "images": images, "labels": labels}
    names = run(stated, {**vars(hand_written), **yours})
    code = plain if allowed else plain.replace("allow=own", "allow=()")
    verdict = run(code, names)["audit"].report.verdict
    assert (verdict.outcome, verdict.allowed) == (
        ("PASS", ("sampling.not_poisson",)) if allowed else ("INCONCLUSIVE", ())
    )


@pytest.mark.nightly
def test_a_release_that_is_shown_may_be_processed(hand_written, tmp_path, monkeypatch):
    stated, _, processed = blocks(HAND_WRITTEN, "python")
    monkeypatch.chdir(tmp_path)
    names = run(processed, run(stated, dict(vars(hand_written))))
    kind = type("Model", (hand_written.ByVmap,), {"training_step": names["training_step"]})
    # Twice the steps that the power needs: the audit draws its seed.
    assert trained(kind, names, 120).report.verdict.outcome == "PASS"


@pytest.mark.nightly
def test_the_input_canary_audits_a_module_that_has_a_forward(digits, tmp_path, monkeypatch):
    (code,) = blocks(DOCS / "input-canaries.md", "python")
    monkeypatch.chdir(tmp_path)
    kind = type("Model", (digits.Digits,), {"forward": lambda self, x: self.net(x)})
    assert trained(kind, run(code), 12).report.observations == 12


@pytest.mark.nightly
def test_the_banded_noise_is_that_of_its_claim(digits, tmp_path, monkeypatch):
    (code,) = blocks(DOCS / "correlated-noise.md", "python")
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


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "seen"), [("Resumable", "ok"), ("Classifier", "violated")])
def test_the_lines_for_the_random_state_keep_a_resumed_training_from_a_violation(
    kind, seen, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(DOCS / "lightning.md", "python")
    definitions, _ = code.split("\naudit = ")
    (lines,) = blocks(DOCS / "resume.md", "python")
    for epochs, path in ((1, None), (2, "last.ckpt")):
        pl.seed_everything(1)  # each process begins with it
        names = run(lines, run(definitions, {"__name__": "page"}))
        audit = PrivacyAudit(claimed_epsilon=8.0, seed=1, on_violation="warn")
        trainer = pl.Trainer(max_epochs=epochs, callbacks=[audit], accelerator="cpu", logger=False)
        trainer.fit(names[kind](), names["loader"], ckpt_path=path)
        trainer.save_checkpoint("last.ckpt")
    assert {c.name: c.status for c in audit.report.checks}["reuse.resume"] == seen
    assert audit.report.verdict.outcome == {"ok": "PASS", "violated": "VIOLATION"}[seen]
    assert audit.report.steps == 64


@pytest.mark.nightly
def test_the_plain_loop_of_the_plan_states_its_planned_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer, loop = blocks(DOCS / "plan.md", "python")
    names = run(loop, run(trainer, {"__name__": "page"}))
    of_trainer = preview(*names["build"]())
    assert max(of_trainer.steps_needed) < of_trainer.steps_planned == 87
    *given, arguments = names["build_loop"]()
    found = plan(*given, **arguments)
    assert found.can_be_audited
    assert found.steps_planned == arguments.pop("epochs") * len(names["loader"]) == 87
    assert "are planned" in str(found)
    assert "are planned" not in str(plan(*names["build_loop"]()[:-1], **arguments))


@pytest.mark.nightly
def test_a_planted_fault_fails_the_training_by_name(digits, tmp_path, monkeypatch):
    (code,) = blocks(DOCS / "test-your-gate.md", "python")
    monkeypatch.chdir(tmp_path)
    names = run(code, {"Model": digits.Digits})
    assert names["trainer"].callbacks[0].report.verdict.exit_code == 1


def test_a_planted_fault_fails_a_plain_loop_by_name(tmp_path, monkeypatch):
    assert '`plant(optimizer, "half_noise")`' in text_of(DOCS / "test-your-gate.md")
    monkeypatch.chdir(tmp_path)
    before, loop = blocks(DOCS / "plain-loops.md", "python")[0].split("\nwith ")
    names = run(before, {"__name__": "page"})
    plant(names["optimizer"], "half_noise")
    with pytest.raises(PrivacyViolation, match="noise scale too small"):
        run(f"with {loop}", names)


def test_the_number_of_faults_is_as_stated():
    assert "has 101 faults" in text_of(DOCS / "test-your-gate.md")
    assert len(FAULTS) == 101


@pytest.mark.parametrize("name", staged(nightly=["vmap", "own optimizer", "one by one"]))
def test_the_hand_written_trainings_pass(hand_written, tmp_path, name):
    assert set(hand_written.RUNS) == {"vmap", "one by one", "own optimizer"}
    assert hand_written.train(name, tmp_path) == "PASS"


def test_every_bound_of_the_literature_is_named_with_its_kind():
    table = text_of(DOCS / "bounds.md").split("| name | from | is |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", table, flags=re.MULTILINE)
    assert rows == [(name, method.interpretation) for name, method in METHODS.items()]


@pytest.mark.nightly
def test_the_command_with_yaml_audits_a_training_and_passes(tmp_path):
    (command,) = (block.split() for block in blocks(DOCS / "lightning-cli.md", "console"))
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
    (block,) = blocks(DOCS / "lightning-cli.md", "yaml")
    config = tmp_path / "audit.yaml"
    config.write_text(block, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    lightning_cli = importlib.import_module(f"{package}.cli").LightningCLI
    boring = importlib.import_module(f"{package}.demos.boring_classes").BoringModel
    main = lightning_cli(boring, run=False, args=["--config", str(config)])
    (audit,) = [c for c in main.trainer.callbacks if isinstance(c, PrivacyAudit)]
    assert audit.canaries == (Dirac(tensor="last_bias"), Spread())
    assert audit.claim == PrivacyClaim(delta=1e-5, noise_multiplier=1.0)
    assert (audit.claimed_epsilon, audit.delta) == (8.0, 1e-5)


def test_the_failing_audit_ends_as_shown(digits, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    verdict = digits.train("half noise", Path("demo/half-noise"))
    assert verdict.outcome == "VIOLATION"
    assert verdict.fault.startswith("noise scale too small")
    shown, logged = blocks(DOCS / "reports.md", "text")
    assert set(formed(shown)) <= set(formed(capsys.readouterr().out))
    (line,) = [r.getMessage() for r in caplog.records if "VIOLATION" in r.getMessage()]
    told = f"{line}; the training stops"  # by default
    assert formed(told) == formed(logged)


def test_every_finding_is_explained():
    rows = re.findall(r"^(?:Finding|Warning|-) `([a-z_.]+)`", text_of(DOCS / "checks.md"), re.M)
    assert set(findings()) <= set(rows)


def test_a_mechanism_of_half_the_noise_is_refuted_as_shown(capsys):
    (code,) = blocks(DOCS / "without-a-training.md", "python")
    run(code)
    (shown,) = blocks(DOCS / "without-a-training.md", "text")
    assert " ".join(capsys.readouterr().out.split()).startswith(" ".join(shown.split()))


def test_what_is_used_outside_of_a_training_is_there():
    table = text_of(DOCS / "without-a-training.md").split("```")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 10
    for row in rows:
        for name in re.findall(r"`(.*?)`", row[2]):
            if name.startswith("lightning-audit "):
                assert name.split()[1] in main._parser().format_help()
            elif "." in name:
                importlib.import_module(name)
            else:
                assert callable(getattr(lightning_audit, name))
        pages = re.findall(r"\]\((.*?)\)", row[3])
        assert pages
        assert all((DOCS / page).is_file() for page in pages)
