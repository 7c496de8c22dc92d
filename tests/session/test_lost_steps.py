"""A record whose gradient is not a number is found, and told from a training that diverged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM, HandWritten
from opacus import GradSampleModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_matrix import Ghost
from training_support import (
    ManualModule,
    PrivateModule,
    fit,
    mlp,
    random_data,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.session.recorder import LostSteps

# Opacus and torch remark on loaders and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")

ROWS = 8


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def data(*lost: int, value: float = torch.nan) -> TensorDataset:
    """Sixty-four records; the features of some have one that is not finite."""
    made = random_data(64)
    made.tensors[0][list(lost), 0] = value
    return made


class InOrder(PrivateModule):
    """Batches of eight, in order, so that it is known which records are in a step."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=ROWS)


def without_place(report: AuditReport) -> dict[str, object]:
    """The evidence, without the user's code that it points to."""
    evidence = dict(finite(report).evidence)
    assert ".training_step at tests/support/" in str(evidence.pop("where"))
    return evidence


def finite(report: AuditReport) -> Any:
    return next(check for check in report.checks if check.name == "finite")


def audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"seed": 1, "allow": ["sampling.not_poisson"], **kwargs})


# ------------------------------------------------------------------ found


@pytest.mark.parametrize(
    ("value", "precision"),
    [
        (torch.nan, "32-true"),
        (torch.inf, "bf16-mixed"),
        pytest.param(torch.nan, "bf16-mixed", marks=pytest.mark.heavy),
        pytest.param(torch.inf, "32-true", marks=pytest.mark.heavy),
    ],
)
def test_record_that_is_not_finite_is_found_at_its_step(
    tmp_path: Path, value: float, precision: str
) -> None:
    module = InOrder(dataset=data(11, 13, value=value))
    report = violation(tmp_path, module, audit(), max_steps=4, precision=precision)
    assert report.verdict.fault.startswith("a record that is not finite")
    assert "in step 2 the gradients of 2 of 8 records" in finite(report).message
    assert finite(report).evidence["lost_steps"] == 3  # the weights are lost with the second step


def test_canary_in_the_batch_is_not_counted(tmp_path: Path) -> None:
    module = InOrder(dataset=data(*range(3, 16)))
    allowed = audit(canaries=[Mislabeled(loss=_loss, num_classes=10, sampling_rate=0.999)])
    report = violation(tmp_path, module, allowed, max_steps=2)
    assert finite(report).evidence["records"] == 5
    assert finite(report).evidence["rows"] == ROWS


def _loss(module: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


def test_manual_optimization_is_looked_at_too(tmp_path: Path) -> None:
    class Manual(ManualModule, InOrder):
        pass

    report = violation(tmp_path, Manual(dataset=data(2)), audit(), max_steps=1)
    assert without_place(report) == {"lost_steps": 1, "step": 0, "records": 1, "rows": ROWS}


def test_record_in_an_early_part_of_a_batch_is_found(tmp_path: Path) -> None:
    class InParts(InOrder):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            for i, part in enumerate(zip(*(t.chunk(4) for t in batch), strict=True)):
                optimizer.optimizer.signal_skip_step(do_skip=i < 3)
                optimizer.zero_grad()
                self.manual_backward(super().training_step(part, batch_idx))
                optimizer.step()

    report = violation(tmp_path, InParts(dataset=data(1)), audit(), max_steps=1)
    assert finite(report).evidence["step"] == 0


def test_ghost_clipping_is_looked_at_by_its_norms(tmp_path: Path) -> None:
    class GhostInOrder(Ghost):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(self.dataset, batch_size=ROWS)

    report = violation(tmp_path, GhostInOrder(dataset=data(9)), audit(), max_steps=2)
    assert without_place(report) == {"lost_steps": 1, "step": 1, "records": 1, "rows": ROWS}


class ByHand(HandWritten):
    """Hands over in two calls, and may drop what is not finite."""

    drops = False

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=ROWS)

    def sample_gradients(self, batch: Any) -> Any:
        x, y = batch
        parts = [super(ByHand, self).sample_gradients((x[i::2], y[i::2])) for i in range(2)]
        grads = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if self.drops:
            grads = {name: g.nan_to_num(0.0, 0.0, 0.0) for name, g in grads.items()}
        return grads


def test_hand_written_gradients_are_looked_at(tmp_path: Path) -> None:
    module = ByHand(dataset=data(8, 11, 12))
    report = violation(tmp_path, module, audit(claim=CLAIM), max_steps=3)
    assert without_place(report) == {"lost_steps": 2, "step": 1, "records": 3, "rows": ROWS}


def test_records_that_hand_written_code_drops_do_no_harm(tmp_path: Path) -> None:
    module = ByHand(dataset=data(8, 11, 12))
    module.drops = True
    report = fit(tmp_path, module, audit(claim=CLAIM), max_steps=3)
    assert status(report, "finite") == "ok"


class TwoNets(InOrder):
    """Two nets with a private optimizer each; one of them sees what is not finite."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nn.ModuleDict({"one": mlp(), "two": mlp()}), **kwargs)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        made = []
        for name in self.net:
            self.net[name], optimizer, _ = self.engine.make_private(
                module=self.net[name],
                optimizer=torch.optim.SGD(self.net[name].parameters(), lr=0.05),
                data_loader=self.plain_loader(),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            made.append(optimizer)
        return made

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        for optimizer, name in zip(self.optimizers(), self.net, strict=True):
            optimizer.zero_grad()
            scores = self.net[name](x if name == "two" else x.nan_to_num(0.0))
            self.manual_backward(functional.cross_entropy(scores, y))
            optimizer.step()


def test_one_of_two_optimizers_is_named(tmp_path: Path) -> None:
    report = violation(tmp_path, TwoNets(dataset=data(2)), audit(), max_steps=2)
    found = [check for check in report.checks if check.name == "finite"]
    assert sorted(check.status for check in found) == ["ok", "violated"]
    assert "finite: optimizer 2 (`net.two" in report.verdict.summary


# ------------------------------------------------------------------ not called so


@pytest.mark.parametrize("canaries", [None, [Mislabeled(loss=_loss, num_classes=10)]])
def test_batch_that_is_lost_as_a_whole_is_not_said_to_tell_of_a_record(
    tmp_path: Path, canaries: Any
) -> None:
    module = InOrder(dataset=data(*range(8, 64)))
    report = fit(tmp_path, module, audit(canaries=canaries), max_steps=4)
    assert finite(report).status == "not_run"
    assert finite(report).evidence == {"lost_steps": 3}
    assert report.verdict.outcome == "INCONCLUSIVE"


def test_training_that_diverges_is_not_said_to_tell_of_a_record(tmp_path: Path) -> None:
    class Diverging(InOrder):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                for p in self.net.parameters():
                    p.data.fill_(torch.nan)

    report = fit(tmp_path, Diverging(dataset=data()), audit(), max_steps=4)
    assert finite(report).status == "not_run"
    assert finite(report).evidence == {"lost_steps": 2}


def test_healthy_training_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(LostSteps, "add", lambda *_: looked.append(1))
    report = fit(tmp_path, InOrder(dataset=data()), audit(), max_steps=4)
    assert status(report, "finite") == "ok"
    assert not looked


def test_finding_may_be_allowed(tmp_path: Path) -> None:
    allowed = audit(allow=["sampling.not_poisson", "finite"])
    report = fit(tmp_path, InOrder(dataset=data(2)), allowed, max_steps=1)
    assert status(report, "finite") == "allowed"


# ------------------------------------------------------------------ kept


class Resumable(InOrder):
    """Wrapped before Lightning loads a checkpoint: the names of the weights are the same."""

    def __init__(self) -> None:
        super().__init__(dataset=data(2))
        self.net = GradSampleModule(self.net)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for value in checkpoint["state_dict"].values():
            value.nan_to_num_(0.0)


def test_finding_is_kept_when_the_training_goes_on(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, audit(on_violation="warn"), max_steps=1)
    trainer.fit(Resumable())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = audit(on_violation="warn")
    trainer = trainer_for(tmp_path, again, max_steps=2)
    trainer.fit(Resumable(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.report.steps == 2
    assert finite(again.report).evidence["step"] == 0


def _rows(lost: int, rows: int) -> torch.Tensor:
    return torch.arange(rows) < lost


def test_processes_add_up_what_they_saw_of_a_step() -> None:
    ranks = [LostSteps(), LostSteps()]
    for step, shares in {3: (0, 0), 5: (4, 0), 7: (2, 1)}.items():
        for rank, lost in zip(ranks, shares, strict=True):
            rank.add(step, _rows(lost, 4))
    assert ranks[1].first == (7, 1, 4)  # of itself it knows no better
    told = [rank.numbers() for rank in ranks]
    for _ in range(2):  # what was told counts once
        for rank in ranks:
            rank.hear(told)
        assert [rank.first for rank in ranks] == [(5, 4, 8)] * 2
        told = [rank.numbers() for rank in ranks]
    again = LostSteps()
    again.load(ranks[0].state())
    assert (again.first, again.count) == (None, 3)  # no checkpoint holds numbers of samples
