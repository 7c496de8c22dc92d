"""The selftest's trainings in a plain loop, as Lightning runs them."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from opacus.data_loader import DPDataLoader
from torch import nn

from lightning_audit import AuditReport, PrivacyViolation, attach
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.runs import train

#: Words that only users of Lightning know.
OF_LIGHTNING = re.compile(
    r"Lightning|Trainer|training_step|configure_optimizers|manual_backward|self\.\w|"
    r"\b(a|an|this|earlier) fits?\b|PrivacyAudit\b|train_dataloader|"
    r"automatic_optimization|ckpt_path|devices="
)


def sentences(value: Any) -> Iterator[str]:
    """Yield all texts of a report but those of the environment."""
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in ("environment", "code"):
                yield from sentences(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from sentences(one)


def of_lightning(report: AuditReport) -> list[str]:
    """Return the sentences of a report that only users of Lightning understand."""
    return [text for text in sentences(report) if OF_LIGHTNING.search(text)]


class Plain(nn.Module):
    """What the selftest's trainings ask of a LightningModule."""

    automatic_optimization = True

    def optimizers(self) -> Any:
        wrapped = [_Wrapped(one, self.trainer) for one in self.trainer.optimizers]
        return wrapped if len(wrapped) > 1 else wrapped[0]

    def manual_backward(self, loss: Any) -> None:
        loss.backward()


class _Wrapped:
    """An optimizer whose steps count towards the last one, as in Lightning."""

    def __init__(self, optimizer: Any, trainer: Any) -> None:
        self.optimizer, self._trainer = optimizer, trainer
        self.zero_grad = optimizer.zero_grad

    def step(self) -> None:
        self.optimizer.step()
        self._trainer.global_step += 1


def by_lightning(fault: Fault, directory: Path) -> AuditReport:
    report = train(fault, directory)
    assert report is not None
    return report


def by_loop(fault: Fault, directory: Path) -> AuditReport:
    """Train a fault in a plain loop, from the same seeds and in the same order."""
    torch.manual_seed(0)
    module = fault.module(Plain)
    module.__dict__["trainer"] = SimpleNamespace(optimizers=[], global_step=0)
    optimizers = module.configure_optimizers()
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    module.trainer.optimizers = optimizers
    loader = module.train_dataloader()
    audit = attach(
        module, optimizers, loader, seed=1, report_dir=directory, on_violation="warn", **fault.audit
    )
    loop(module, optimizers, loader, fault.steps)
    try:
        audit.close()
    except PrivacyViolation as error:
        return error.report
    assert audit.report is not None
    return audit.report


def loop(module: Any, optimizers: list[Any], loader: Any, steps: int) -> None:
    """Train as Lightning's loop does."""
    module.train()
    while True:
        for number, batch in enumerate(loader):
            if module.automatic_optimization:

                def closure(batch: Any = batch, number: int = number) -> Any:
                    loss = module.training_step(batch, number)
                    loss = loss["loss"] if isinstance(loss, dict) else loss
                    optimizers[0].zero_grad()
                    loss.backward()
                    return loss

                optimizers[0].step(closure)
                module.trainer.global_step += 1
            else:
                module.training_step(batch, number)
            if module.trainer.global_step >= steps:
                return


def drawn_apart(monkeypatch: Any) -> None:
    """Let batches be drawn from a generator of their own: Lightning fetches one batch ahead."""
    own = DPDataLoader.from_data_loader.__func__

    def from_data_loader(kind: Any, loader: Any, **given: Any) -> Any:
        generator = torch.Generator().manual_seed(5)
        return own(kind, loader, **{"generator": generator, **given})

    monkeypatch.setattr(DPDataLoader, "from_data_loader", classmethod(from_data_loader))
