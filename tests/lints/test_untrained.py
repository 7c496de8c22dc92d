from __future__ import annotations

import torch
from torch import nn

from lightning_audit.lints.settings import fingerprints


def test_only_what_the_private_optimizer_leaves_alone_is_looked_at_and_seen_to_change() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    before = fingerprints(net, net[0].parameters())
    assert set(before) == {"1.weight"}
    with torch.no_grad():
        net[0].weight.add_(1.0)
    assert fingerprints(net, net[0].parameters()) == before
    with torch.no_grad():
        net[1].weight.neg_()
    assert fingerprints(net, net[0].parameters()) != before


def test_entries_that_change_by_opposite_amounts_are_seen() -> None:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    before = fingerprints(layer, ())
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0]]))
    assert fingerprints(layer, ()) == {"weight": (0.0, 2.0)} != before
