"""The adapter of hand-written DP-SGD: names, shapes, rows, and the optimizer that updates."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.dpsgd.hand_written import ManualStep, stated_claim, updating_optimizer
from lightning_audit.dpsgd.protocol import StepClaim, UnsupportedOptimizer
from lightning_audit.layout import Direction, Part, same_objects

CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=2.0, scale=16.0)


class Outer(nn.Module):
    """A LightningModule's stand-in with a network, and one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        self.frozen = nn.Linear(2, 2)


def _step(module: nn.Module, trained: nn.Module | None = None) -> ManualStep:
    names = {id(p): name for name, p in module.named_parameters()}
    return ManualStep(torch.optim.SGD((trained or module).parameters(), lr=0.1), names, CLAIM)


def _trained() -> tuple[Outer, ManualStep]:
    """A module whose network is trained."""
    module = Outer()
    return module, _step(module, module.net)


def _stacked(module: nn.Module, batch: int = 4) -> dict[str, torch.Tensor]:
    return {name: torch.randn(batch, *p.shape) for name, p in module.named_parameters()}


def _direction(tensor: int, *index: int) -> Direction:
    value = np.full(len(index), len(index) ** -0.5)
    return Direction((Part(tensor, np.array(index, dtype=np.int64), value),))


@pytest.mark.parametrize(
    "missing", ["", "noise_multiplier", "max_grad_norm", "expected_batch_size"]
)
def test_claim_of_a_step_is_the_stated_one_and_what_it_lacks_is_named(missing):
    parts = {"noise_multiplier": 1.5, "max_grad_norm": 0.5, "expected_batch_size": 64}
    if not missing:
        assert stated_claim(PrivacyClaim(**parts)) == StepClaim(1.5, 0.5, 64.0)
        return
    del parts[missing]
    with pytest.raises(ValueError, match=rf"^claim\.{missing}=None must be stated"):
        stated_claim(PrivacyClaim(**parts))


def test_layout_has_the_names_of_the_outer_module():
    module = Outer()
    module.net[1].bias.requires_grad_(False)
    step = _step(module, module.net)
    assert [slot.name for slot in step.layout] == ["net.0.weight", "net.0.bias", "net.1.weight"]
    assert same_objects(step.trained(), step.params)
    module.net[1].bias.requires_grad_(True)
    assert not same_objects(step.trained(), step.params)


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("given", ["root", "net", "child"])
def test_names_may_be_those_of_the_module_or_of_the_network(given):
    module, step = _trained()
    at = {"root": module, "net": module.net, "child": module.net[0]}[given]
    places = {"1.bias": 3, "0.weight": 0, "0.bias": 1, "1.weight": 2}
    assert step.places(list(places), at, module) == places
    places = {f"net.{name}": number for name, number in places.items()}
    not_trained = {"frozen.weight": None} if given == "root" else {}
    assert step.places([*places, *not_trained], at, module) == {**places, **not_trained}


def test_names_that_fit_two_networks_need_the_right_module():
    class Crossed(nn.Module):
        """The same two layers under exchanged names."""

        def __init__(self) -> None:
            super().__init__()
            first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.one = nn.ModuleDict({"a": first, "b": second})
            self.two = nn.ModuleDict({"a": second, "b": first})

    module = Crossed()
    step = _step(module)
    with pytest.raises(ValueError, match="fit several submodules of Crossed; pass module="):
        step.places(["a.weight", "b.weight"], module, module)
    assert step.places(["a.weight", "b.weight"], module.two, module) == {
        "a.weight": 1,
        "b.weight": 0,
    }


def test_tied_parameter_under_two_names_is_refused():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    step = _step(module)
    with pytest.raises(ValueError, match=r"more than once: `0\.weight`, `1\.weight`"):
        step.places(["0.weight", "1.weight"], module, module)
    assert step.places(["1.weight"], module, module) == {"1.weight": 0}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["0.weight", "0.bias", "1.weight"], r"lacks parameters .*: `net\.1\.bias`;"),
        (["w", "0.bias", "1.weight", "1.bias"], "names `w` belong to no submodule of Outer"),
    ],
)
def test_missing_or_unknown_parameter_is_named(names, told):
    module, step = _trained()
    with pytest.raises(ValueError, match=told):
        step.places(names, module, module)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("0.weight", torch.zeros(4, 3, 2), " has shape"),
        ("0.weight", torch.zeros(2, 3), " has shape"),
        ("1.bias", torch.zeros(5, 1), " has shape"),
        ("1.bias", torch.zeros(()), " has shape"),
        ("0.weight", None, "=None must be a tensor"),
    ],
)
def test_wrong_shape_is_named(name, given, told):
    module, step = _trained()
    grads = _stacked(module.net)
    places = step.places(list(grads), module, module)
    for right in (grads, _stacked(module.net, batch=0)):
        step.check_shapes(right, places)
    with pytest.raises(ValueError, match=rf"grads\['.*'\]{told}"):
        step.check_shapes({**grads, name: given}, places)


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_stand_behind_the_samples_in_new_tensors(dtype):
    module, step = _trained()
    grads = OrderedDict((n, g.to(dtype)) for n, g in _stacked(module.net).items())
    kept = {name: g.clone() for name, g in grads.items()}
    step.copy_in([_direction(0, 1), _direction(3, 0)], norm=50.0)
    grown = step.append(grads, step.places(list(grads), module, module))
    assert type(grown) is OrderedDict
    assert list(grown) == list(grads)
    for name, g in grown.items():
        assert g.dtype == dtype
        assert torch.equal(g[:4], kept[name])
        assert torch.equal(grads[name], kept[name])
    assert grown["0.weight"][4:].flatten(1).tolist() == [[0, 50, 0, 0, 0, 0], [0] * 6]
    assert grown["1.bias"][4:].tolist() == [[0], [50]]
    assert not grown["0.bias"][4:].any()
    assert not grown["1.weight"][4:].any()
    # Each row is handed over once.
    assert step.append(grads, step.places(list(grads), module, module)) is grads


def test_single_rows_are_whole_gradients_of_their_own():
    module, step = _trained()
    names = [name for name, _ in module.net.named_parameters()]
    step.copy_in([_direction(0, 0, 4), _direction(1, 1)], norm=2.0)
    first, second = step.singles(step.places(names, module.net, module))
    assert {n: g.shape for n, g in first.items()} == {
        n: p.shape for n, p in module.net.named_parameters()
    }
    half = 2.0**0.5
    assert first["0.weight"].flatten().tolist() == pytest.approx([half, 0, 0, 0, half, 0])
    assert second["0.bias"].tolist() == [0.0, 2.0]
    first["0.weight"].mul_(0.0)  # users clip in place
    assert not second["0.weight"].any()
    assert step.singles(step.places(names, module.net, module)) == []


def test_optimizer_held_by_another_is_the_one_that_updates():
    class Holder:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            self.param_groups = inner.param_groups

        def step(self) -> None:
            self.inner.step()

    inner = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    assert updating_optimizer(inner) is inner
    assert updating_optimizer(Holder(Holder(inner))) is inner


def test_holder_of_two_optimizers_is_refused():
    param = nn.Parameter(torch.zeros(1))
    outer, first, second = (torch.optim.SGD([param], lr=0.1) for _ in range(3))
    outer.first, outer.second = first, second
    with pytest.raises(UnsupportedOptimizer, match="SGD holds 2 optimizers"):
        updating_optimizer(outer)
