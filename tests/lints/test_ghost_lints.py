from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.lints.settings import adaptive_remark, ghost_remarks

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")


def made_by(engine: PrivacyEngine) -> tuple[nn.Module, DPOptimizer, Any]:
    """A module that holds its criterion, its optimizer, and a loss."""
    net, data = nn.Linear(2, 2), TensorDataset(torch.ones(8, 2), torch.zeros(8, dtype=torch.long))
    wrapped, optimizer, criterion, _ = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    wrapped.criterion = criterion
    return wrapped, optimizer, criterion(wrapped(torch.ones(4, 2)), torch.zeros(4).long())


def test_each_argument_of_the_trainer_that_takes_from_ghost_clipping_is_said() -> None:
    _, optimizer, _ = made_by(PrivacyEngine())
    assert ghost_remarks(optimizer, 1, None) == []
    dropped, shortened = ghost_remarks(optimizer, 3, 0.5)
    assert "accumulate_grad_batches=3 trains on one batch in 3 only" in dropped
    assert "gradient_clip_val=0.5 shortens the sum" in shortened


def test_a_division_takes_adaptive_clipping_off_the_loss_and_is_said() -> None:
    module, _, loss = made_by(PrivacyEngineAdaptiveClipping())
    assert adaptive_remark(module, loss) == ""
    assert "self.automatic_optimization = False" in adaptive_remark(module, loss / 1)
    assert adaptive_remark(module, torch.zeros(())) == ""


def test_plain_ghost_clipping_has_nothing_to_lose_by_a_division() -> None:
    module, _, loss = made_by(PrivacyEngine())
    assert adaptive_remark(module, loss / 1) == ""
