"""Examinations show that gradients depend on other records, and accuse no sound net."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM, HandWritten, OneByOne
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader
from training_support import (
    ManualModule,
    PrivateModule,
    digits,
    fit,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit

# Opacus and torch remark on loaders and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")

FAULT = "records are not independent"


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"examinations": 1, "seed": 1, **kwargs})


def coupling(report: AuditReport) -> Any:
    return next(check for check in report.checks if check.name == "coupling")


# ------------------------------------------------------------------ nets


class OverTheBatch(nn.Module):
    """Batch normalisation without buffers, which Opacus lets pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, None, None, training=True)


class Noisy(nn.Module):
    """Dropout by function, and noise on the features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5, training=self.training) + 0.1 * torch.randn_like(x)


class Recurrent(nn.Module):
    """Each row of an image is a time step; dropout between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(8, 16, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.reshape(len(x), 8, 8))[0][:, -1])


class Words(nn.Module):
    """An embedding of the pixels' values."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(17, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words((x.flatten(1) * 16).long()).mean(1))


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), *between, nn.ReLU(), nn.Linear(32, 10))


SOUND: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: layers(nn.Dropout(0.5), nn.LayerNorm(32)),
    "functional dropout and noise": lambda: layers(Noisy()),
    "convolution and group norm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(144, 10),
    ),
    "embedding": Words,
    "lstm": Recurrent,
}


@pytest.mark.parametrize(
    ("net", "precision"),
    [
        ("dropout", "bf16-mixed"),
        ("lstm", "32-true"),
        *(pytest.param(net, "32-true", marks=pytest.mark.heavy) for net in SOUND if net != "lstm"),
        pytest.param("embedding", "bf16-mixed", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.usefixtures("all_numbers")
def test_sound_net_is_not_accused(tmp_path: Path, net: str, precision: str) -> None:
    module = PrivateModule(SOUND[net](), dataset=digits())
    report = fit(tmp_path, module, audit(), max_steps=2, precision=precision)
    assert status(report, "coupling") == "ok"
    assert coupling(report).evidence["replays"] == 1
    assert coupling(report).evidence["change"] is None


@pytest.mark.parametrize(
    ("kind", "precision"),
    [(PrivateModule, "32-true"), (PrivateModule, "bf16-mixed"), (ManualModule, "32-true")],
)
@pytest.mark.one_in(3)
def test_batch_normalisation_is_found_in_one_step(
    tmp_path: Path, kind: type, precision: str
) -> None:
    module = kind(layers(OverTheBatch()), dataset=digits())
    report = violation(tmp_path, module, audit(), max_steps=1, precision=precision)
    assert report.verdict.fault.startswith(FAULT)
    assert coupling(report).evidence["step"] == 0
    assert coupling(report).evidence["change"] > 0.2


@pytest.mark.usefixtures("all_numbers")
def test_each_examination_replays_a_batch(tmp_path: Path) -> None:
    module = PrivateModule(layers(), dataset=digits())
    report = fit(tmp_path, module, audit(examinations=2), max_steps=4)
    assert coupling(report).evidence["replays"] == 2


# ------------------------------------------------------------------ losses


class Weighted(PrivateModule):
    """The loss is divided by the sum of the batch's class weights."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, weight=torch.arange(1.0, 11.0))


class Contrastive(PrivateModule):
    """Each record is to be told from the others in its batch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        seen = functional.normalize(self.net(batch[0]))
        return functional.cross_entropy(seen @ seen.T, torch.arange(len(seen)))


class Sorted(PrivateModule):
    """Records are sorted by something of their own, before random numbers are drawn."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        order = x.sum(1).argsort()
        return functional.cross_entropy(self.net(x[order]), y[order])


class Packed(nn.Module):
    """Sequences of several lengths; Opacus keeps a recurrent layer's rows in the order of these."""

    def __init__(self, *, ordered: bool = False) -> None:
        super().__init__()
        self.ordered = ordered
        self.lstm = DPLSTM(8, 16, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (1 + x.sum(1) % 7).long()
        packed = pack_padded_sequence(
            x.reshape(len(x), 8, 8), lengths, batch_first=True, enforce_sorted=self.ordered
        )
        return self.head(self.lstm(packed)[1][0][-1])


class ByLength(PrivateModule):
    """The batch is sorted before any layer sees it."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        order = (1 + x.sum(1) % 7).long().argsort(descending=True, stable=True)
        return functional.cross_entropy(self.net(x[order]), y[order])


UNSORTED = "enforce_sorted=False"


@pytest.mark.parametrize(
    ("kind", "net", "advice"),
    [(Weighted, layers, ""), (Contrastive, layers, ""), (PrivateModule, Packed, UNSORTED)],
    ids=["weighted loss", "contrastive loss", "sequences that Opacus puts in another order"],
)
def test_gradients_that_depend_on_other_records_are_found(
    tmp_path: Path, kind: type, net: Callable[[], nn.Module], advice: str
) -> None:
    report = violation(tmp_path, kind(net(), dataset=digits()), audit(), max_steps=1)
    assert report.verdict.fault.startswith(FAULT)
    assert advice in report.verdict.advice


@pytest.mark.parametrize(
    ("kind", "net"),
    [(Sorted, lambda: layers(Noisy())), (ByLength, lambda: Packed(ordered=True))],
)
def test_records_that_are_sorted_beforehand_are_not_accused(
    tmp_path: Path, kind: type, net: Callable[[], nn.Module]
) -> None:
    report = fit(tmp_path, kind(net(), dataset=digits()), audit(), max_steps=2)
    assert status(report, "coupling") == "ok"


# ------------------------------------------------------------------ written by hand


class NormalisedByHand(HandWritten):
    """The module's own batch normalisation, with running statistics, before the private net."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, affine=False)

    def sample_gradients(self, batch: Any) -> Any:
        return super().sample_gradients((self.norm(batch[0]), batch[1]))


class InTwoParts(HandWritten):
    """A batch is handed over in two calls."""

    def sample_gradients(self, batch: Any) -> Any:
        x, y = batch
        half = len(x) // 2
        one = super().sample_gradients((x[:half], y[:half]))
        two = super().sample_gradients((x[half:], y[half:]))
        return {name: torch.cat([g, two[name]]) for name, g in one.items()}


def test_hand_written_batch_normalisation_is_found(tmp_path: Path) -> None:
    module = NormalisedByHand()
    report = violation(tmp_path, module, audit(claim=CLAIM), max_steps=1)
    assert report.verdict.fault.startswith(FAULT)
    assert int(module.norm.num_batches_tracked) == 1


@pytest.mark.parametrize("kind", [HandWritten, InTwoParts])
@pytest.mark.usefixtures("all_numbers")
def test_sound_hand_written_training_is_not_accused(tmp_path: Path, kind: type) -> None:
    report = fit(tmp_path, kind(), audit(claim=CLAIM), max_steps=2)
    assert coupling(report).evidence["replays"] == 1


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    report = fit(tmp_path, OneByOne(), audit(claim=CLAIM), max_steps=2)
    assert status(report, "coupling") == "not_run"
    assert "does not form one per-sample gradient per record" in coupling(report).message


# ------------------------------------------------------------------ limits


@pytest.mark.usefixtures("all_numbers")
def test_a_batch_of_one_record_waits_for_the_next(tmp_path: Path) -> None:
    class Alone(PrivateModule):
        def train_dataloader(self) -> Any:
            return DataLoader(self.dataset, batch_sampler=[[0], [0, 1, 2, 3]])

    module = Alone(layers(), dataset=digits())
    report = fit(tmp_path, module, audit(on_violation="warn"), max_steps=2)
    assert coupling(report).evidence["replays"] == 1


def test_the_argument_is_a_number_or_auto() -> None:
    for wrong in ("no", -1, True, 1.5):
        with pytest.raises(ValueError, match="must be 'auto' or a whole number >= 0"):
            PrivacyAudit(examinations=wrong)  # type: ignore[arg-type]


def test_a_training_step_that_fails_on_copies_trains_on(tmp_path: Path) -> None:
    class Distinct(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if len(batch[0].unique(dim=0)) < len(batch[0]):
                raise ValueError("a record comes twice")
            return super().training_step(batch, batch_idx)

    report = fit(tmp_path, Distinct(layers(), dataset=digits()), audit(), max_steps=2)
    assert report.steps == 2
    assert coupling(report).message == "not asked: ValueError"


class Resumable(PrivateModule):
    """Wrapped before Lightning loads a checkpoint: the names of the weights are the same."""

    def __init__(self) -> None:
        super().__init__(layers(OverTheBatch()), dataset=digits())
        self.net = GradSampleModule(self.net)


def test_a_violation_is_kept_when_the_training_goes_on(tmp_path: Path) -> None:
    first, again = (audit(on_violation="warn") for _ in range(2))
    trainer = trainer_for(tmp_path, first, max_steps=1)
    trainer.fit(Resumable())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    trainer = trainer_for(tmp_path, again, max_steps=2)
    trainer.fit(Resumable(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.report.steps == 2
    assert coupling(again.report).evidence == coupling(first.report).evidence
    assert again.report.verdict.fault.startswith(FAULT)
