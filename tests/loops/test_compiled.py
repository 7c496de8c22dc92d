"""Compiled modules: the audit sees their steps, and neither breaks graphs nor compiles again."""

import warnings
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import pytorch_lightning as pl
import torch
from plain_loops import Made, made
from torch._dynamo.utils import counters
from torch.nn import functional
from training_support import trainer_for

from lightning_audit import attach
from lightning_audit.callbacks import PrivacyAudit

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):
    """Trains a compiled module that is made private."""

    def __init__(self, training: Made) -> None:
        super().__init__()
        self.model, self.training_of = training.model, training

    def training_step(self, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.training_of.optimizer

    def train_dataloader(self) -> Any:
        return self.training_of.loader


def train(
    door: str, backend: str, directory: Path, *, audited: bool = True
) -> tuple[Any, tuple[int, int]]:
    """Train for two epochs; the report, and how many graphs and graph breaks there were."""
    torch._dynamo.reset()
    counters.clear()
    training = made()
    if door == "in place":
        training.model.compile(backend=backend)
    else:
        training.model = torch.compile(training.model, backend=backend)
    given = {"claimed_epsilon": 50.0, "report_dir": directory, "seed": 1}
    if door == "Lightning":
        audit = PrivacyAudit(**given)
        trainer_for(directory, *[audit] * audited, max_epochs=2).fit(Module(training))
    elif not audited:
        plain_loops.mnist_form(training)
    else:
        with attach(*training.training, **given) as audit:
            plain_loops.mnist_form(training)
    graphs = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return audit.report if audited else None, graphs


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("door", "backend"),
    [("plain loop", "inductor"), ("in place", "aot_eager"), ("Lightning", "aot_eager")],
)
def test_a_compiled_training_passes_with_the_graphs_that_it_has(door, backend, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, alone = train(door, backend, tmp_path, audited=False)
        report, audited = train(door, backend, tmp_path)
    assert report.verdict.outcome == "PASS", report.verdict
    assert audited == alone
    assert alone[0] > 0
