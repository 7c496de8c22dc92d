import inspect

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import nn

from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim, UnsupportedOptimizer
from lightning_audit.layout import same_objects

METHODS = [name for name, _ in inspect.getmembers(DPSGDStep, inspect.isfunction) if name[0] != "_"]


def adapters() -> list[DPSGDStep]:
    net = GradSampleModule(nn.Linear(2, 1))
    made: list[DPSGDStep] = []
    for kind in (DPOptimizer, DPOptimizerFastGradientClipping):
        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = kind(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
        made.append(opacus_step(optimizer, {}))
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    return [*made, ManualStep(plain, {}, StepClaim(1.0, 1.0, 4.0))]


@pytest.mark.parametrize("step", adapters(), ids=lambda step: type(step).__name__)
def test_each_adapter_is_called_as_the_protocol_says(step):
    for name in METHODS:
        asked = inspect.signature(getattr(DPSGDStep, name)).parameters.values()
        given = inspect.signature(getattr(type(step), name)).parameters.values()
        assert [(p.name, p.default) for p in asked] == [(p.name, p.default) for p in given], name
    assert set(DPSGDStep.__annotations__) <= set(vars(step))
    assert step.adapts_its_norm is False


@pytest.mark.parametrize("step", adapters(), ids=lambda step: type(step).__name__)
def test_a_step_that_nobody_prepared_confirms_nothing_and_withdraws(step):
    step.conceal()
    assert not step.put_in()
    step.take_out()
    assert same_objects(step.trained(), step.params)
    assert step.batch_size() is None


def test_optimizers_that_repeat_their_closure_are_refused_by_every_adapter():
    plain = torch.optim.LBFGS([nn.Parameter(torch.zeros(1))])
    private = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
    with pytest.raises(UnsupportedOptimizer, match=r"LBFGS .* such as SGD or Adam") as one:
        opacus_step(private, {})
    with pytest.raises(UnsupportedOptimizer) as other:
        ManualStep(plain, {}, StepClaim(1.0, 1.0, 4.0))
    assert str(one.value) == str(other.value)
