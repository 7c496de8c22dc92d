"""Findings point to the user's own classes and methods, and to no library's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from places import REPOSITORY
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from lightning_audit.checks.check import REGISTRY
from lightning_audit.lints.own_code import OwnCode
from lightning_audit.results.audit_report import CheckResult

HERE = f"{Path(__file__).relative_to(REPOSITORY)}:"


class OwnOptimizer(DPOptimizer):
    """Of the user."""


class OwnSampler(BatchSampler):
    """Of the user."""


class Net(nn.Module):
    """Of the user, with a layer of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))


class Lit(pl.LightningModule):
    """Of the user, over a hook of Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Of the user."""

    def configure_optimizers(self) -> None:
        """Of the user."""

    def train_dataloader(self) -> None:
        """Of the user."""

    def configure_gradient_clipping(self, *args: Any) -> None:
        """Of the user."""


class Inherits(Lit):
    """With nothing of its own."""


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def trainer(
    optimizer: type | None = None, sampler: Any = None, callbacks: tuple[Any, ...] = ()
) -> Any:
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    if optimizer is not None:
        made = optimizer(made, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    data = TensorDataset(torch.zeros(4))
    order = SequentialSampler(data)
    loader = DataLoader(data, batch_sampler=(sampler or BatchSampler)(order, 2, False))
    return SimpleNamespace(
        optimizers=[made], train_dataloader=loader, datamodule=None, callbacks=list(callbacks)
    )


def places(finding: str, module: Any, **kwargs: Any) -> str:
    return OwnCode(trainer(**kwargs), module).places(finding)


def test_each_finding_is_of_the_code_that_may_cause_it() -> None:
    own, step = line_of("class OwnOptimizer"), line_of("def training_step")
    hook = line_of("def configure_gradient_clipping")
    expected = {
        "noise": f"OwnOptimizer at {HERE}{own}, Lit.configure_gradient_clipping at {HERE}{hook}",
        "replay.clipping": f"OwnOptimizer at {HERE}{own}, Lit.configure_gradient_clipping at "
        f"{HERE}{hook}, Lit.training_step at {HERE}{step}",
        "coupling": f"layer `net.layers.1` of Net at {HERE}{line_of('class Net')}, "
        f"Lit.training_step at {HERE}{step}",
        "accounting": f"Lit.configure_optimizers at {HERE}{line_of('def configure_optimizers')}",
        "sampling.not_poisson": f"OwnSampler at {HERE}{line_of('class OwnSampler')}, "
        f"Lit.train_dataloader at {HERE}{line_of('def train_dataloader')}",
        "unsynchronised": "",
    }
    for finding, told in expected.items():
        found = places(finding, Inherits(), optimizer=OwnOptimizer, sampler=OwnSampler)
        assert found == told, finding


def test_a_step_by_hand_is_where_its_noise_is() -> None:
    module = Lit()
    assert "training_step" not in places("noise", module)
    module.automatic_optimization = False
    assert "Lit.training_step at" in places("noise", module)


def test_the_users_own_callback_may_change_gradients_and_lightnings_may_not() -> None:
    class Own(pl.Callback):
        def on_after_backward(self, *args: Any) -> None:
            """Of the user."""

    found = places(
        "gradient_replaced", pl.LightningModule(), callbacks=(Own(), pl.callbacks.Timer())
    )
    assert found.count(" at ") == 1
    assert "Own.on_after_backward at" in found


@pytest.mark.parametrize("finding", REGISTRY)
def test_code_of_libraries_is_no_place(finding: str) -> None:
    assert places(finding, pl.LightningModule(), optimizer=DPOptimizer) == ""


def test_what_was_typed_in_has_no_place_and_raises_nothing(tmp_path: Path) -> None:
    typed: dict[str, Any] = {"__name__": "__main__", "Lit": Lit}
    source = "class Typed(Lit):\n    def training_step(self, batch, batch_idx): pass\n"
    for file in ("<stdin>", str(tmp_path / "ipykernel_7" / "123.py")):
        exec(compile(source, file, "exec"), typed)
        assert "training_step" not in places("finite", typed["Typed"]())


@pytest.mark.parametrize("status", ["violated", "undecided", "ok", "not_run"])
def test_only_what_is_found_has_a_place_and_only_advice_alone_repeats_it(status: Any) -> None:
    check = CheckResult("finite", "mechanism", status, "it is not", "look")
    (found,) = OwnCode(trainer(), Lit()).located([check])
    place = f"Lit.training_step at {HERE}{line_of('def training_step')}"
    if status in ("ok", "not_run"):
        assert found == check
    else:
        assert found.evidence == ({"where": place} if status == "violated" else {})
        assert found.advice == ("look" if status == "violated" else f"look; see {place}")
