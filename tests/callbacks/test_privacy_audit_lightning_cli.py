"""The audit by YAML and by command line, through the LightningCLI of both packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import lightning.pytorch.cli
import pytest
import pytorch_lightning
import pytorch_lightning.cli
import torch
import yaml
from places import EXAMPLES
from training_support import PrivateTraining, report_in

from lightning_audit import (
    Allow,
    AuditReport,
    PrivacyAudit,
    PrivacyClaim,
    PrivacyViolation,
    Resolution,
)
from lightning_audit.canaries import BlockPair, Crafted, Dirac, Mislabeled, Random, Spread
from lightning_audit.testing.faulty import HalfNoise


class StandaloneModule(PrivateTraining, pytorch_lightning.LightningModule):
    """A module that a command line can make."""

    def __init__(self, faulty: bool = False) -> None:
        super().__init__(optimizer_class=HalfNoise if faulty else None)


class UnifiedModule(PrivateTraining, lightning.pytorch.LightningModule):
    """The same, of the other package."""

    def __init__(self, faulty: bool = False) -> None:
        super().__init__(optimizer_class=HalfNoise if faulty else None)


PACKAGES = {
    "pytorch_lightning": (pytorch_lightning, StandaloneModule),
    "lightning.pytorch": (lightning.pytorch, UnifiedModule),
}

# Lightning calls jsonargparse in a way that the latter will drop.
pytestmark = pytest.mark.filterwarnings(
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"
)


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return PACKAGES[request.param][0]


def module_of(package: ModuleType) -> type:
    return PACKAGES[package.__name__][1]


def with_audit(**arguments: Any) -> dict[str, Any]:
    """A configuration with an audit as it would be read from YAML."""
    audit = {"class_path": "lightning_audit.PrivacyAudit", "init_args": arguments}
    return {
        "seed_everything": False,
        "trainer": {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [audit],
        },
    }


def parse(package: ModuleType, args: Any) -> PrivacyAudit:
    """The audit of the Trainer that a LightningCLI makes."""
    cli = package.cli.LightningCLI(module_of(package), run=False, args=args)
    (audit,) = [c for c in cli.trainer.callbacks if isinstance(c, PrivacyAudit)]
    return audit


CLAIM = {"noise_multiplier": 1.0, "sample_rate": 0.1, "private_dataset_size": True}
ARGUMENTS: dict[str, Any] = {
    "claimed_epsilon": 8.0,
    "delta": 1e-6,
    "claim": {
        "class_path": "lightning_audit.PrivacyClaim",
        "init_args": CLAIM,
    },
    "canaries": [
        {"class_path": "lightning_audit.canaries.Dirac", "init_args": {"tensor": "last_bias"}},
        {"class_path": "lightning_audit.canaries.gradient.Random", "init_args": {"moving": True}},
        {"class_path": "BlockPair"},
        "Spread",
    ],
    "resolution": {"class_path": "lightning_audit.Resolution", "init_args": {"noise": 0.7}},
    "allow": ["noise.canary", "sampling.not_poisson"],
    "on_violation": "stop",
    "report_dir": "reports",
    "seed": 7,
}


def assert_as_configured(audit: PrivacyAudit) -> None:
    assert (audit.claimed_epsilon, audit.delta, audit.seed) == (8.0, 1e-6, 7)
    assert audit.claim == PrivacyClaim(**CLAIM)
    assert audit.canaries == (
        Dirac(tensor="last_bias"),
        Random(moving=True),
        BlockPair(),
        Spread(),
    )
    assert audit.resolution == Resolution(noise=0.7)
    assert audit.allow == ("noise.canary", "sampling.not_poisson")
    assert (audit.on_violation, str(audit.report_dir)) == ("stop", "reports")


def test_yaml_makes_the_audit_with_all_that_is_nested(package: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(yaml.safe_dump(with_audit(**ARGUMENTS)))
    assert_as_configured(parse(package, ["--config", str(path)]))


def test_printed_configuration_makes_the_same_audit(
    package: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, printed = tmp_path / "given.yaml", tmp_path / "printed.yaml"
    given.write_text(yaml.safe_dump(with_audit(**ARGUMENTS)))
    with pytest.raises(SystemExit) as ended:
        parse(package, ["--config", str(given), "--print_config"])
    assert ended.value.code == 0
    printed.write_text(capsys.readouterr().out)
    assert "on_inconclusive: warn" in printed.read_text()  # defaults are spelled out
    assert_as_configured(parse(package, ["--config", str(printed)]))


def test_dataclasses_need_no_class_path(package: ModuleType) -> None:
    plain = {"claim": CLAIM, "resolution": {"noise": 0.7}}
    assert_as_configured(parse(package, with_audit(**ARGUMENTS | plain)))


def test_an_exemption_is_made_with_its_scope_and_reason(package: ModuleType) -> None:
    allow = ["accounting", {"finding": "no_dp", "optimizer": "G", "reason": "sees no record"}]
    config = parse(package, with_audit(allow=allow)).config
    assert config.allow == ("accounting",)
    assert config.exemptions == (Allow("no_dp", optimizer="G", reason="sees no record"),)


def test_an_input_canary_is_made_with_its_loss_by_name(package: ModuleType) -> None:
    arguments = {
        "amplitude": 100.0,
        "loss": "torch.nn.functional.cross_entropy",
        "num_classes": 10,
    }
    canaries = [{"class_path": "lightning_audit.canaries.Mislabeled", "init_args": arguments}]
    audit = parse(package, with_audit(canaries=canaries))
    loss = torch.nn.functional.cross_entropy
    assert audit.canaries == (Mislabeled(amplitude=100.0, loss=loss, num_classes=10),)
    assert parse(package, with_audit(canaries=["Crafted"])).canaries == (Crafted(),)


def test_audit_that_a_cli_always_adds_is_set_on_the_command_line(package: ModuleType) -> None:
    class Audited(package.cli.LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_lightning_class_args(PrivacyAudit, "audit")

    args = ["--audit.claimed_epsilon=8", "--audit.canaries+=Dirac", "--audit.seed=7"]
    quiet = ["--trainer.logger=false", "--trainer.accelerator=cpu", "--seed_everything=false"]
    cli = Audited(module_of(package), run=False, args=args + quiet)
    (audit,) = [c for c in cli.trainer.callbacks if isinstance(c, PrivacyAudit)]
    assert (audit.claimed_epsilon, audit.canaries, audit.seed) == (8.0, (Dirac(),), 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"claimed_epsilon": -1.0}, "claimed_epsilon=-1.0 must be a finite number > 0; leave it"),
        ({"delta": 2.0}, "delta=2.0 must be in (0, 1); take less than one over"),
        ({"resolution": {"noise": 1.5}}, "noise=1.5 must be in (0, 1)"),
        ({"claim": {"epsilon": 3.0}}, "delta=None must be in (0, 1); epsilon=3.0 is claimed at"),
        ({"canaries": []}, "canaries=[] must hold a canary"),
        ({"canaries": ["GradientCanary"]}, "must hold objects of lightning_audit.canaries, such"),
        (
            {"canaries": [{"class_path": "Constant", "init_args": {"moving": True}}]},
            "moving=True must be False for Constant",
        ),
        ({"allow": ["unheard"]}, "allow holds 'unheard'; it must hold names of findings"),
    ],
)
def test_wrong_value_gives_the_librarys_own_error(
    package: ModuleType, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="must") as raised:
        parse(package, with_audit(**arguments))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"on_violation": "explode"}, ["on_violation", "explode"]),
        ({"canary": 3}, ["lightning_audit.PrivacyAudit", "canary"]),
        ({"canaries": [{"class_path": "Unheard"}]}, ["canaries", "Unheard"]),
    ],
)
def test_wrong_name_is_refused_by_the_command_line(
    package: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: dict[str, Any],
    named: list[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(package, with_audit(**arguments))
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert all(name in message for name in named), message


def test_violation_leaves_the_command_line_as_an_error(package: ModuleType, tmp_path: Path) -> None:
    config = with_audit(seed=1)
    config["trainer"] |= {"max_steps": 32, "default_root_dir": str(tmp_path)}
    config["model"] = {"faulty": True}
    with pytest.raises(PrivacyViolation, match="noise scale too small"):
        package.cli.LightningCLI(module_of(package), args={"subcommand": "fit", "fit": config})
    assert report_in(tmp_path).verdict.outcome == "VIOLATION"
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["trainer"]["callbacks"][0]["init_args"]["seed"] == 1


@pytest.mark.heavy
def test_the_example_passes_with_the_other_package_in_its_place(tmp_path: Path) -> None:
    """As it stands it is run as the README's command."""
    script = tmp_path / "cli.py"
    source = (EXAMPLES / "cli.py").read_text(encoding="utf-8")
    assert source.count("import pytorch_lightning as pl") == 1
    script.write_text(source.replace("pytorch_lightning", "lightning.pytorch"), encoding="utf-8")
    command = [sys.executable, str(script), "fit", "--config", str(EXAMPLES / "audit.yaml")]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.observations == 4 * report.steps == 4 * 145
    configured = yaml.safe_load((EXAMPLES / "audit.yaml").read_text(encoding="utf-8"))
    arguments = configured["trainer"]["callbacks"][0]["init_args"]
    assert report.settings["claim"]["noise_multiplier"] == arguments["claim"]["noise_multiplier"]
    assert len(report.settings["canaries"]) == len(arguments["canaries"])
