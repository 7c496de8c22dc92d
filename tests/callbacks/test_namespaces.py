"""One callback in the Trainers of both Lightning packages, and where only one is installed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException as UnifiedRefusal
from lightning_fabric.utilities.exceptions import MisconfigurationException as StandaloneRefusal
from stages import staged
from trained import UnifiedModule
from training_support import (
    ManualTraining,
    PrivateModule,
    PrivateTraining,
    assert_no_hooks_left,
    fit,
    trainer_for,
)

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.testing.faulty import HalfNoise

PACKAGES = {"pytorch_lightning": pytorch_lightning, "lightning.pytorch": lightning.pytorch}


class UnifiedManualModule(ManualTraining, lightning.pytorch.LightningModule):
    """The manual training as a module of `lightning.pytorch`."""


UNIFIED = {"trainer_class": lightning.pytorch.Trainer}


def test_sound_training_under_lightning_pytorch_passes_and_half_the_noise_does_not(
    audited, accused
):
    module = UnifiedManualModule()
    report = audited(module, **UNIFIED)
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.observations == 64 * 8
    assert_no_hooks_left(module)
    report = accused(UnifiedModule(optimizer_class=HalfNoise), steps=32, **UNIFIED)
    assert report.verdict.fault.startswith("noise scale too small")


def test_metrics_reach_the_trainer_of_lightning_pytorch(tmp_path):
    audit = PrivacyAudit(seed=1)
    fit(tmp_path, PrivateModule(), audit, max_steps=16)  # the callback serves both in turn
    trainer = trainer_for(tmp_path, audit, max_steps=32, **UNIFIED)
    trainer.fit(UnifiedModule())
    metrics = {f"audit/{name}" for name in ("epsilon_lower", "epsilon_spent", "observations")}
    assert metrics <= set(trainer.callback_metrics)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_two_audits_and_the_class_for_an_audit_are_refused_in_our_words(tmp_path, package):
    both = [PrivacyAudit(), PrivacyAudit()]
    with pytest.raises(UnifiedRefusal, match=r"has 2 PrivacyAudit callbacks.*Keep one"):
        package.Trainer(callbacks=both, logger=False, default_root_dir=tmp_path)
    trainer = package.Trainer(callbacks=[PrivacyAudit], logger=False, accelerator="cpu")
    module = PrivateModule() if package is pytorch_lightning else UnifiedModule()
    with pytest.raises(StandaloneRefusal, match=r"has the class PrivacyAudit; make one: Privacy"):
        trainer.fit(module)


class Wrapped(PrivateTraining):
    """Private from the start, so that a checkpoint's names are those of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.private = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self.private


class Plain(PrivateTraining):
    """A training without Opacus."""

    def configure_optimizers(self) -> Any:
        return self.inner(self.trainable())


def trained(directory: Path, package: Any, kind: type, audit: PrivacyAudit, **options: Any) -> Any:
    """A Trainer of a package that has fitted a training under an audit."""
    module = type(kind.__name__, (kind, package.LightningModule), {})()
    ckpt = options.pop("ckpt_path", None)
    arguments = {"max_steps": 2, "limit_train_batches": 2, **options}
    trainer = trainer_for(directory, audit, trainer_class=package.Trainer, **arguments)
    trainer.fit(module, ckpt_path=ckpt, weights_only=True if ckpt else None)
    return trainer


def at_setup(directory: Path, package: Any) -> None:
    (directory / "taken").write_text("a file")
    trained(directory, package, Wrapped, PrivacyAudit(report_dir=directory / "taken"))


def at_train_start(directory: Path, package: Any) -> None:
    class Runs(PrivateTraining):
        def configure_optimizers(self) -> Any:
            self.inner = lambda params: torch.optim.LBFGS(params, lr=0.1)
            return super().configure_optimizers()

    trained(directory, package, Runs, PrivacyAudit())


def at_the_first_batch(directory: Path, package: Any) -> None:
    trained(directory, package, Plain, PrivacyAudit(claim=PrivacyClaim(noise_multiplier=1.0)))


def at_a_batch(directory: Path, package: Any) -> None:
    canary = Mislabeled(loss=lambda module, batch: module.net(batch[0]).sum())
    trained(directory, package, Wrapped, PrivacyAudit(canaries=[canary]))


def at_a_checkpoint(directory: Path, package: Any, **edited: Any) -> Path:
    audit = PrivacyAudit(seed=1)
    path = directory / "x.ckpt"
    trained(directory, package, Wrapped, audit).save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    saved["callbacks"][audit.state_key].update(edited)
    torch.save(saved, path)
    return path


def at_load_state_dict(directory: Path, package: Any) -> None:
    path = at_a_checkpoint(directory, package, seed=2)
    trained(directory, package, Wrapped, PrivacyAudit(), ckpt_path=path)


def at_fit_end(directory: Path, package: Any) -> None:
    path = at_a_checkpoint(directory, package)  # nothing is left to train
    trained(directory, package, Wrapped, PrivacyAudit(num_canaries=3), ckpt_path=path)


@pytest.mark.parametrize("name", staged([*PACKAGES][:1], nightly=[*PACKAGES][1:]))
@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (at_setup, "cannot write its report"),
        (at_train_start, r"LBFGS.*SGD or Adam"),
        (at_the_first_batch, r"max_grad_norm=None and claim\.expected_batch_size=None must be st"),
        (at_a_batch, "has no forward"),
        (at_load_state_dict, "its checksum differs"),
        (at_fit_end, "cannot resume from this checkpoint"),
    ],
)
def test_a_refusal_at_any_hook_is_the_misconfiguration_of_both_packages(
    tmp_path, name, refused, words
):
    with pytest.raises(StandaloneRefusal, match=words) as raised:
        refused(tmp_path, PACKAGES[name])
    assert isinstance(raised.value, UnifiedRefusal)


_ALONE = """
import sys, warnings
warnings.simplefilter("ignore")
for name in {absent!r}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import torch, {package} as pl
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, TensorDataset
from lightning_audit import PrivacyAudit

torch.set_num_threads(1)
torch.manual_seed(0)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 10))
        self.loader = DataLoader(TensorDataset(torch.randn(512, 8)), batch_size=16)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def train_dataloader(self):
        return DPDataLoader.from_data_loader(self.loader)

    def configure_optimizers(self):
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net, optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.loader, noise_multiplier=1.0, max_grad_norm=1.0,
        )
        return optimizer

audit = PrivacyAudit(seed=1)
packages = ("pytorch_lightning", "lightning")
bases = [k for k in PrivacyAudit.__mro__ if k.__module__.partition(".")[0] in packages]
assert bases == [pl.Callback], bases
trainer = pl.Trainer(
    accelerator="cpu", max_steps=64, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir={directory!r},
    callbacks=[audit],
)
trainer.fit(Module())
print("outcome:", audit.report.verdict.outcome, audit.report.observations)
"""


def run_alone(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("pytorch_lightning", ["lightning"]),
        ("lightning.pytorch", ["pytorch_lightning", "lightning_fabric"]),
    ],
)
@pytest.mark.heavy_one_in(4)
def test_one_package_alone_is_enough(tmp_path, package, absent):
    done = run_alone(_ALONE.format(package=package, absent=absent, directory=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "outcome: PASS 512" in done.stdout


@pytest.mark.heavy
def test_without_lightning_the_error_says_what_to_install():
    done = run_alone(
        "import sys\n"
        "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import lightning_audit.callbacks._namespaces\n"
    )
    assert "pip install '.[lightning]'" in done.stderr
