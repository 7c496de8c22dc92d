"""What a step leaves behind is copied by name."""

from __future__ import annotations

import torch
from torch import nn

from lightning_audit.replay.training_state import left_behind


def test_parameters_buffers_and_the_optimizers_state_are_copied() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.125)
    net(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    found = left_behind(net, optimizer)
    assert found["lr of group 0"].item() == 0.125
    assert {"parameters of 0.weight", "buffers of 1.running_mean"} <= set(found)
    assert {"optimizer state exp_avg of 0.weight", "optimizer state step of 0.bias"} <= set(found)
    weights = found["parameters of 0.weight"]
    with torch.no_grad():
        net[0].weight += 1.0
    assert not torch.equal(weights, net[0].weight.double().flatten())
