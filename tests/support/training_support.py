"""Small trainings for the tests of the callback: modules, faulty optimizers, a short way to run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.dpsgd.opacus import innermost
from lightning_audit.verdict.gate import contradictions


def random_data(records: int = 512, width: int = 8, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, width, generator=generator)
    return TensorDataset(features, torch.randint(0, 10, (records,), generator=generator))


def digits(records: int = 512, *, images: bool = False) -> TensorDataset:
    features, labels = load_digits(return_X_y=True)
    x = torch.tensor(features[:records] / 16.0, dtype=torch.float32)
    return TensorDataset(
        x.reshape(-1, 1, 8, 8) if images else x, torch.tensor(labels[:records], dtype=torch.long)
    )


def mlp(width: int = 8, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


class PrivateTraining:
    """A training with Opacus as its documentation has it, in `configure_optimizers`.

    It becomes a module together with the `LightningModule` of either package. ``inner`` makes the
    inner optimizer, which ``optimizer_class`` wraps in the place of Opacus' own. ``poisson`` says
    what loader the trainer sees, ``make_poisson`` what `make_private` is told: without it batches
    may accumulate.
    """

    #: More arguments of `make_private`.
    engine_arguments: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        dataset: TensorDataset | None = None,
        batch_size: int = 16,
        noise_multiplier: float = 1.0,
        max_grad_norm: float = 1.0,
        mode: str = "hooks",
        inner: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] | None = None,
        optimizer_class: type[DPOptimizer] | None = None,
        poisson: bool = True,
        make_poisson: bool = True,
        accountant: str = "prv",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.net = net if net is not None else mlp()
        self.dataset = dataset if dataset is not None else random_data()
        self.batch_size = batch_size
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.mode = mode
        self.inner = inner or (lambda params: torch.optim.SGD(params, lr=0.05))
        self.optimizer_class = optimizer_class
        self.poisson = poisson
        self.make_poisson = make_poisson
        self.generator = generator
        self.engine = PrivacyEngine(accountant=accountant)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size)

    def train_dataloader(self) -> DataLoader:
        if self.poisson:
            return DPDataLoader.from_data_loader(self.plain_loader())
        return self.plain_loader()

    def trainable(self) -> Iterator[nn.Parameter]:
        return (p for p in self.net.parameters() if p.requires_grad)

    def make_private(self, **more: Any) -> Any:
        """What Opacus' `make_private` returns, with further or other arguments."""
        given = {
            "module": self.net,
            "optimizer": self.inner(self.trainable()),
            "data_loader": self.plain_loader(),
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.max_grad_norm,
            "grad_sample_mode": self.mode,
            "poisson_sampling": self.make_poisson,
            "noise_generator": self.generator,
        }
        return self.engine.make_private(**{**given, **self.engine_arguments, **more})

    def configure_optimizers(self) -> Any:
        self.net, optimizer, _ = self.make_private()
        if self.optimizer_class is None:
            return optimizer
        return replace_optimizer(optimizer, self.optimizer_class)


class PrivateModule(PrivateTraining, pl.LightningModule):
    """The training as a module of `pytorch_lightning`."""


def replace_optimizer(optimizer: DPOptimizer, kind: type[DPOptimizer]) -> DPOptimizer:
    """The same private optimizer as an instance of another class, with the same accountant."""
    replaced = kind(
        optimizer.original_optimizer,
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=optimizer.max_grad_norm,
        expected_batch_size=optimizer.expected_batch_size,
        generator=optimizer.generator,
    )
    replaced.attach_step_hook(optimizer.step_hook)
    return replaced


class ManualTraining(PrivateTraining):
    """The same training, with manual optimization."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class ManualModule(ManualTraining, pl.LightningModule):
    """The manual training as a module of `pytorch_lightning`."""


# ------------------------------------------------------------------ running


def trainer_for(
    directory: Path,
    *callbacks: pl.Callback,
    trainer_class: type[pl.Trainer] = pl.Trainer,
    **kwargs: Any,
) -> pl.Trainer:
    """A quiet Trainer on one CPU that writes under ``directory``."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    if "max_steps" not in kwargs and "max_epochs" not in kwargs:
        kwargs["max_steps"] = 40
    return trainer_class(
        default_root_dir=directory, callbacks=list(callbacks), **{**defaults, **kwargs}
    )


def fit(
    directory: Path,
    module: pl.LightningModule,
    audit: PrivacyAudit,
    *callbacks: pl.Callback,
    **kwargs: Any,
) -> AuditReport:
    """Train under ``audit`` and return its report, as it lies on disk."""
    trainer_for(directory, audit, *callbacks, **kwargs).fit(module)
    report = report_in(directory)
    assert report == AuditReport.from_json(audit.report.to_json())
    return report


def violation(
    directory: Path,
    module: pl.LightningModule,
    audit: PrivacyAudit,
    *callbacks: pl.Callback,
    **kwargs: Any,
) -> AuditReport:
    """Train under ``audit``, which must raise `PrivacyViolation`; the report, as on disk."""
    raised: PrivacyViolation | None = None
    try:
        trainer_for(directory, audit, *callbacks, **kwargs).fit(module)
    except PrivacyViolation as error:
        raised = error
    assert raised is not None, audit.report.verdict
    report = report_in(directory)
    assert report.verdict == raised.report.verdict
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.exit_code == 1
    assert report.verdict.fault.partition(":")[0] in str(raised)
    assert_no_hooks_left(module)
    return report


def report_in(directory: Path) -> AuditReport:
    """The report of a training, which the gate takes for what it is."""
    report = AuditReport.load(directory / "audit" / "report.json")
    assert contradictions(report) == []
    return report


def status(report: AuditReport, name: str) -> str:
    return next(check.status for check in report.checks if check.name == name)


def assert_no_hooks_left(module: pl.LightningModule) -> None:
    """The audit's hooks on the inner optimizers are gone."""
    optimizers = module.optimizers()
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        inner = innermost(optimizer)
        assert not inner._optimizer_step_pre_hooks
        assert not inner._optimizer_step_post_hooks


def refusal_of(directory: Path, module: PrivateModule, audit: PrivacyAudit, **kwargs: Any) -> str:
    """The message of the refusal, which comes before the first step."""
    trainer = trainer_for(directory, audit, max_steps=8, **kwargs)
    with pytest.raises(MisconfigurationException) as raised:
        trainer.fit(module)
    assert trainer.global_step == 0
    report = directory / "audit" / "report.json"
    assert not report.exists() or AuditReport.load(report).verdict.outcome == "INCONCLUSIVE"
    return str(raised.value)
