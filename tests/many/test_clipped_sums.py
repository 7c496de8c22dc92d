"""Clipped sums: ghost norms and per-sample gradients give those of one backward pass a record."""

from __future__ import annotations

import pytest
import torch
from naive_dpsgd import differences, looped
from torch import nn
from torch.nn import functional

from lightning_audit.many.records import GhostSums, PerSampleSums, clipped_sums, linear_stack
from lightning_audit.many.vectorised import DPSGDMany

MODELS, RECORDS = 3, 5


def squares(outputs, targets):
    return (outputs - torch.eye(4)[targets]).square().mean()


def stack():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5, bias=False), nn.Sequential(nn.ReLU(), nn.Linear(5, 4))
    )


def batch():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(MODELS, RECORDS, 2, 3, generator=draw)
    targets = torch.randint(4, (MODELS, RECORDS), generator=draw)
    counts = torch.ones(MODELS, RECORDS)
    counts[1, 3:] = 0.0
    return inputs, targets, counts


@pytest.mark.parametrize("loss", [None, squares])
@pytest.mark.parametrize("kind", ["ghost", "per sample"])
def test_the_sums_are_those_of_one_backward_pass_a_record(kind, loss):
    models = [stack() for _ in range(MODELS)]
    names = [name for name, _ in models[0].named_parameters()]
    trained = {n: torch.stack([m.get_parameter(n).detach() for m in models]) for n in names}
    inputs, targets, counts = batch()
    layers = linear_stack(models[0])
    assert layers is not None
    sums = GhostSums(layers, loss, 0.5) if kind == "ghost" else PerSampleSums(models[0], loss, 0.5)
    with torch.no_grad():
        found = sums(trained, {}, inputs, targets, counts)
    assert set(found) == set(names)
    clipped = 0
    for number, model in enumerate(models):
        expected = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
        for record in range(int(counts[number].sum())):
            outputs = model(inputs[number, record : record + 1])
            value = (loss or functional.cross_entropy)(outputs, targets[number, record, None])
            gradients = torch.autograd.grad(value, [model.get_parameter(n) for n in names])
            norm = float(torch.cat([g.flatten() for g in gradients]).norm())
            clipped += norm > 0.5
            for name, gradient in zip(names, gradients, strict=True):
                expected[name] += gradient * min(1.0, 0.5 / (norm + 1e-6))
        for name in names:
            assert torch.allclose(found[name][number], expected[name], atol=1e-6)
    assert clipped


def hooked():
    model = stack()
    model[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def tied():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def frozen():
    model = stack()
    model[1].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Linear(3, 2), GhostSums),
        (stack(), GhostSums),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), PerSampleSums),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), PerSampleSums),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), PerSampleSums),
        (nn.Conv1d(1, 2, 3), PerSampleSums),
        (hooked(), PerSampleSums),
        (tied(), PerSampleSums),
        (frozen(), PerSampleSums),
    ],
    ids=["linear", "stack", "in place", "norm", "softmax", "conv", "hook", "tied", "frozen"],
)
def test_only_stacks_of_linear_layers_have_ghost_norms(model, kind):
    assert type(clipped_sums(model, None, 1.0)) is kind


def test_a_loss_of_the_user_is_that_of_one_record():
    train = DPSGDMany(
        lambda: nn.Linear(6, 4),
        squares,
        noise_multiplier=1.0,
        max_grad_norm=0.3,
        sample_rate=0.5,
        expected_batch_size=5,
        steps=8,
        learning_rate=0.5,
    )
    draw = torch.Generator().manual_seed(0)
    data = (torch.randn(10, 6, generator=draw), torch.randint(4, (10,), generator=draw))
    plain = looped(train, data, 3, squares)
    assert differences([train(data, 3)], [plain]) < 1e-6
