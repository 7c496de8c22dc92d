"""Ghost clipping: a canary's row, clipped and summed, without per-sample gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample.utils import wrap_model
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from lightning_audit.canaries import Dirac, Random, Spread
from lightning_audit.canaries.gradient import place
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.layout import Direction

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)

C = 0.7
SETTINGS: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": C, "expected_batch_size": 8}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))


def batch(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4, generator=generator)
    return 5.0 * x, torch.randint(3, (rows,), generator=generator)


def ghost() -> tuple[GhostStep, nn.Module, DPLossFastGradientClipping]:
    model = wrap_model(net(), grad_sample_mode="ghost", max_grad_norm=C)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizerFastGradientClipping(plain, **SETTINGS)
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())
    step = opacus_step(optimizer, {})
    assert isinstance(step, GhostStep)
    return step, model, criterion


def directions_over(step: OpacusStep) -> list[Direction]:
    rng = np.random.default_rng(0)
    canaries = [Dirac(), Spread(), Dirac(tensor="last_bias"), Random()]
    return place(canaries, step.layout, rng).draw(rng)


def backward(
    step: GhostStep, loss: torch.Tensor, directions: list[Direction] | None, norm: float = 1000 * C
) -> None:
    """The backward pass, with these canaries waiting; without an audit for None."""
    if directions is not None:
        assert step.obstacle(Backward(loss)) == ""
        step.lay_out(directions, norm)
    loss.backward()


def sums(step: OpacusStep) -> list[torch.Tensor]:
    step.optimizer.step()
    return [p.summed_grad.double() for p in step.params]


@pytest.mark.parametrize("norm", [1000 * C, 0.5 * C])
@pytest.mark.parametrize("rows", [5, 0])
def test_sum_is_that_of_per_sample_gradients_with_the_canaries_rows(norm, rows):
    x, y = batch(rows)
    step, model, criterion = ghost()
    directions = directions_over(step)
    directions[1] = directions[1].scaled(0.01)
    backward(step, criterion(model(x), y), directions, norm)
    assert step.put_in()
    plain_model = wrap_model(net(), grad_sample_mode="hooks")
    inner = torch.optim.SGD(plain_model.parameters(), lr=0.1)
    plain = OpacusStep(DPOptimizer(inner, **SETTINGS), {})
    if rows:
        nn.functional.cross_entropy(plain_model(x), y).backward()
    else:  # torch's mean of no loss is NaN: the gradients are those of no record
        for p in plain.params:
            p.grad_sample = torch.zeros(0, *p.shape)
    plain.copy_in(directions, norm)
    for got, expected in zip(sums(step), sums(plain), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("canaries", [True, False])
def test_nothing_is_seen_of_the_canaries_before_the_step_and_without_one_in_it(canaries):
    x, y = batch()
    gradients, results = [], []
    for audited in (False, True):
        step, model, criterion = ghost()
        loss = criterion(model(x), y)
        terms, value = loss.loss_per_sample, loss.item()
        backward(step, loss, directions_over(step) * canaries if audited else None)
        gradients.append([p.grad.clone() for p in step.params])
        step.conceal()
        assert loss.loss_per_sample is terms
        assert loss.item() == value
        assert step.put_in() == audited
        results.append(sums(step))
    assert all(map(torch.equal, *gradients))
    assert canaries or all(map(torch.equal, *results))


@pytest.mark.parametrize(("factor", "ratio"), [(1.0, 1.0), (1e-3, 1e3)])
def test_norms_are_compared_with_those_of_the_gradients(factor, ratio):
    step, model, criterion = ghost()
    own = model.get_norm_sample
    model.__dict__["get_norm_sample"] = lambda: factor * own()
    for rows in (5, 4, 3):
        x, y = batch(rows)
        backward(step, criterion(model(x), y), directions_over(step))
        step.conceal()
        assert step.put_in()
        step.optimizer.step()
        step.take_out()
    assert (step.norms.checked, step.norms.largest_ratio) == (3, pytest.approx(ratio, rel=1e-3))
    assert model.get_norm_sample() is not None


def test_a_backward_pass_that_never_ran_leaves_the_module_as_it_was():
    x, y = batch()
    step, model, criterion = ghost()
    step.obstacle(Backward(criterion(model(x), y)))
    step.lay_out(directions_over(step), 1000 * C)
    assert "get_norm_sample" in model.__dict__
    step.take_out()
    assert "get_norm_sample" not in model.__dict__
    assert not step.put_in()


def test_another_loss_and_a_late_injection_are_said():
    step, _, _ = ghost()
    assert "{'loss': loss}" in step.obstacle(Backward(torch.zeros(())))
    with pytest.raises(ValueError, match="was not announced"):
        step.copy_in(directions_over(step), 1000 * C)


@pytest.mark.parametrize(("factors", "largest"), [((1.0, 0.5, 2.0), 0.5), ((1.0, 2.0), 1.0)])
def test_clipping_norms_are_compared_each_step(factors, largest):
    step, model, criterion = ghost()
    assert step.norms.clipped_at == (0.0, 0.0)
    for factor in factors:
        step.optimizer.max_grad_norm = factor * C
        x, y = batch()
        backward(step, criterion(model(x), y), directions_over(step))
        step.conceal()
        assert step.put_in()
        step.optimizer.step()
        step.take_out()
        step.optimizer.zero_grad()
    assert step.norms.clipped_at == (C, pytest.approx(largest * C))
