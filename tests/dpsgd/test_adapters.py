from __future__ import annotations

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from torch import nn

from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep

ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


@pytest.mark.parametrize(
    ("kind", "settings", "adapter"),
    [
        (DPOptimizer, {"max_grad_norm": 1.0}, OpacusStep),
        (DPPerLayerOptimizer, {"max_grad_norm": [1.0, 1.0]}, OpacusStep),
        (AdaClipDPOptimizer, {"max_grad_norm": 1.0, **ADAPTIVE}, OpacusStep),
        (DPOptimizerFastGradientClipping, {"max_grad_norm": 1.0}, GhostStep),
    ],
)
def test_only_what_forms_no_per_sample_gradients_is_audited_through_its_losses(
    kind: type[DPOptimizer], settings: dict[str, object], adapter: type[OpacusStep]
) -> None:
    net = GradSampleModule(nn.Linear(2, 1))
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = kind(plain, noise_multiplier=1.0, expected_batch_size=4, **settings)
    step = opacus_step(optimizer, {id(net._module.bias): "bias"}, net.modules())
    assert type(step) is adapter
    assert step.inner is plain
    assert [slot.name for slot in step.layout] == ["parameter_0", "bias"]
