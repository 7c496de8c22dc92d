"""Input canaries: what they are made of, and what they refuse."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_audit.canaries import Adversarial, Blank, Crafted, Mislabeled, inputs

# --- `Crafted`: an input whose gradient is orthogonal to the data's.


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator) + 0.5
    return x, torch.randint(0, 10, (64,), generator=generator)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 10))


def _cosine(canary: Crafted, net: nn.Module, sample: inputs.Sample) -> float:
    params = list(net.parameters())
    gradients = [
        torch.autograd.grad(inputs.loss_of(canary, net, batch, sample), params)
        for batch in (sample.batch, _batch())
    ]
    return abs(float(inputs.cosine(*gradients)))


@pytest.mark.parametrize("amplitude", [1.0, 10.0])
def test_its_gradient_is_nearly_orthogonal_to_the_batchs(amplitude):
    net, canary = _net(), Crafted(amplitude=amplitude)
    before, after = [], []
    for row in range(4):
        sample = inputs.sample_of(_batch(), row, None, None)
        made = canary.made(net, sample, _batch(), list(net.parameters()))
        assert made.label is not None
        scaled = sample.with_input(amplitude * sample.input).with_label(int(made.label))
        before.append(_cosine(canary, net, scaled))
        after.append(_cosine(canary, net, made))
    assert max(after) < 0.02
    assert max(after) < 0.3 * max(before)
    assert canary.at_step(net, made) is made


def test_crafting_leaves_module_and_batch_alone():
    net, batch = _net(), _batch()
    before = [p.detach().clone() for p in net.parameters()]
    sample = inputs.sample_of(batch, 0, None, None)
    unused = nn.Parameter(torch.ones(3))
    made = Crafted(steps=3).made(net, sample, batch, [*net.parameters(), unused])
    assert torch.isfinite(made.input).all()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(batch[0], _batch()[0])
    assert torch.equal(sample.input, batch[0][:1])
    # An empty batch has no direction to avoid.
    made = Crafted().made(net, sample, (batch[0][:0], batch[1][:0]), list(net.parameters()))
    assert torch.equal(made.input, sample.input)


def test_cosine_is_that_of_the_flattened_gradients_and_zero_for_none():
    first, second = (
        [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])],
        [torch.ones(2), torch.ones(1, 1)],
    )
    assert float(inputs.cosine(first, second)) == pytest.approx(7.0 / (5.0 * 3.0**0.5))
    assert float(inputs.cosine(first, [torch.zeros(2), torch.zeros(1, 1)])) == 0.0


def _x(n: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * n).reshape(n, 4)


def _y(n: int = 3) -> torch.Tensor:
    return torch.arange(n)


def _classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))


def _params(net: nn.Module) -> list[nn.Parameter]:
    return list(net.parameters())


def _loss(net: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(net(batch[0]), batch[1])


@pytest.mark.parametrize(
    "canary",
    [Mislabeled(), Mislabeled(num_classes=5), Mislabeled(loss=_loss, num_classes=5), Blank()],
)
def test_the_label_is_the_least_likely_class_of_the_present_weights(canary):
    net = _classifier()
    made = canary.made(net, _cut((_x(), _y())), (_x(), _y()), _params(net))
    for _ in range(3):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        label = canary.at_step(net, made).label
        assert label is not None
        assert int(label) == int(net(made.input)[0].argmin())


def test_the_amplitude_multiplies_the_input_and_a_blank_is_zero():
    net, sample = _classifier(), _cut((_x(), _y()))
    canary = Mislabeled(amplitude=50.0, loss=lambda net, batch: batch[0].sum() * 2)
    made = canary.made(net, sample, None, _params(net))
    assert float(inputs.loss_of(canary, None, sample.batch, sample)) == float(_x()[1].sum() * 2)
    assert torch.equal(made.input, 50.0 * sample.input)
    assert not Blank().made(net, sample, None, _params(net)).input.any()


def test_adversarial_raises_the_loss_within_its_radius():
    net, sample = _classifier(), _cut((_x(), _y()))
    canary = Adversarial(steps=20, step_size=0.1, radius=0.3)
    made = canary.made(net, sample, (_x(), _y()), _params(net))
    assert (made.input - sample.input).abs().max() <= 0.3 + 1e-6
    before, after = (float(_loss(net, one.batch).detach()) for one in (sample, made))
    assert after > before + 0.1
    assert torch.equal(canary.at_step(net, made).leaves[1], sample.leaves[1])
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("kind", [Mislabeled, Blank, Adversarial, Crafted])
def test_canaries_are_compared_copied_and_written_by_their_arguments(kind):
    canary = kind(amplitude=3.0)
    assert canary == kind(**asdict(canary))
    assert eval(repr(canary)) == canary


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mislabeled(amplitude=0.0), "amplitude=0.0 must be"),
        (lambda: Blank(sampling_rate=0.0), r"sampling_rate=0.0 must be in \(0, 1\)"),
        (lambda: Crafted(sampling_rate=1.0), "sampling_rate=1.0 must be .* has no coin"),
        (lambda: Blank(game="sub"), r"game='sub' must be one of \['step', 'subsampled'\]"),
        (lambda: Blank(loss="loss"), "loss='loss' must be a function"),
        (lambda: Blank(num_classes=0), "num_classes=0 must be"),
        (lambda: Adversarial(steps=0), "steps=0 must be"),
        (lambda: Adversarial(step_size=0.0), "step_size=0.0 must be"),
        (lambda: Adversarial(radius=-1.0), "radius=-1.0 must be"),
        (lambda: Crafted(remake_every_n_steps=0), "remake_every_n_steps=0 must be"),
    ],
)
def test_arguments_are_checked(make, words):
    with pytest.raises(ValueError, match=words):
        make()


class _NoForward(nn.Module):
    pass


class _Sequences(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, None, :]


@pytest.mark.parametrize(
    ("canary", "net", "batch", "words"),
    [
        (Mislabeled(), _NoForward(), (_x(), _y()), "_NoForward has no forward"),
        (Mislabeled(), _Sequences(), (_x(), _y()), "and not one number a class"),
        (Mislabeled(), _classifier(), (_x(), _x()), "Mislabeled needs a label"),
        (Adversarial(), _classifier(), (_x(), _x()), "give loss=, a function of"),
        (Adversarial(), _classifier(), (_y(), _y()), "which is of torch.int64"),
        (
            Adversarial(loss=lambda net, b: b[0]),
            _classifier(),
            (_x(), _y()),
            "must give one number",
        ),
    ],
)
def test_each_says_its_limits(canary, net, batch, words):
    with pytest.raises(ValueError, match=words):
        canary.at_step(net, canary.made(net, _cut(batch), batch, _params(net)))


# --- One sample is cut out of a batch, and put behind another, in the containers that users write.

Pair = namedtuple("Pair", "image target")  # as users write them


CONTAINERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"image": x, "target": y},
    "named tuple": Pair,
    "nested": lambda x, y: {"views": (x, [x + 1]), "target": Pair(x, y)},
}


def _cut(batch: Any, **kwargs: Any) -> inputs.Sample:
    return inputs.sample_of(batch, 1, kwargs.get("input_name"), kwargs.get("label_name"))


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=list(CONTAINERS))
def test_the_canary_is_one_more_row_of_the_same_containers(make):
    x, y = _x(), _y()
    batch = make(x, y)
    sample = _cut(batch).with_label(7)
    longer = inputs.appended(batch, sample.with_input(torch.full((1, 4), 9.0)))
    sample.leaves[0].add_(100.0)
    assert torch.equal(x, _x())
    assert torch.equal(y, _y())
    assert inputs.rows(batch) == 3
    assert type(longer) is type(batch)
    assert inputs.rows(longer) == 4
    leaves = torch.utils._pytree.tree_leaves(longer)
    assert torch.equal(leaves[0], torch.cat([_x(), torch.full((1, 4), 9.0)]))
    assert leaves[-1].tolist() == [0, 1, 2, 7]


def test_input_and_label_are_found_by_their_type_or_named():
    batch = {"id": torch.arange(3), "far": {"x": _x()}, "y": _y(), "mask": torch.ones(3).bool()}
    found = _cut(batch)
    assert torch.equal(found.input, _x()[1:2])
    assert found.label_at == 2
    assert _cut(batch, input_name="far.x", label_name="id").label_at == 0
    with pytest.raises(ValueError, match=r"label='z' must name a tensor .* \['0', '1'\]"):
        _cut((_x(), _y()), label_name="z")


class _Opaque:
    pass


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (_Opaque(), ["_Opaque", "register_pytree_node"]),
        ((_x(), _Opaque()), ["_Opaque", "'1'", "collate_fn"]),
        ({"x": _x(), "names": ["a", "b", "c"]}, ["builtins.str", "'names.0'"]),
        ((_x(), torch.tensor(1.0)), ["without dimensions", "'1'"]),
        ((_x(), torch.ones(2)), ["'0': 3", "'1': 2"]),
        ((), ["holds no tensor"]),
    ],
)
def test_other_batches_are_refused_by_type_and_place(batch, words):
    with pytest.raises(ValueError, match="the batch") as raised:
        inputs.rows(batch)
    for word in words:
        assert word in str(raised.value)


def test_a_batch_of_another_kind_than_the_canarys_is_refused():
    sample = _cut((_x(), _y()))
    with pytest.raises(ValueError, match="other containers"):
        inputs.appended([_x(), _y()], sample)
    with pytest.raises(ValueError, match=r"shape \(5,\), the canary has \(4,\)"):
        inputs.appended((torch.ones(2, 5), _y(2)), sample)
    alone = inputs.appended((_x()[:0], _y()[:0]), sample)
    assert torch.equal(alone[0], _x()[1:2])


def test_any_part_of_the_mixed_batch_has_copies_and_others():
    alone, mixed, count = inputs.copies({"x": _x(8), "y": (_y(8),)})
    assert alone["y"][0].tolist() == [0] * 8
    assert torch.equal(alone["x"], _x(8)[:1].repeat(8, 1))
    kept = mixed["y"][0]
    assert torch.equal(mixed["x"], _x(8)[kept])
    assert count == int((kept == 0).sum()) == 5
    for part in (kept[::2], kept[1::2], kept[:4], kept[4:]):
        assert 0 < int((part == 0).sum()) < len(part)


# --- Leaves that belong to no record.


def test_what_is_equal_in_two_batches_and_has_other_rows_than_the_rest_is_apart():
    x, y, anchors = torch.randn(2, 5, 3), torch.arange(5), torch.randn(4, 3)
    first, second = ({"x": x[n], "y": y, "of": [anchors, 0.5, None, "sum"]} for n in (0, 1))
    apart = inputs.constants_apart(second, first)
    assert inputs.rows(apart) == 5
    assert len(inputs.leaves(apart)) == 2
    shorter = inputs.with_constants(inputs.taken(apart, [4, 0]))
    assert shorter["of"] == second["of"]
    assert torch.equal(shorter["x"], x[1][[4, 0]])
    # The next batch is compared with one whose constants are apart.
    assert inputs.rows(inputs.constants_apart(first, apart)) == 5


@pytest.mark.parametrize(
    ("batch", "earlier"),
    [
        ((torch.zeros(5, 3), torch.ones(4)), (torch.ones(5, 3), torch.zeros(4))),  # both changed
        ((torch.zeros(5, 3), 0.5), (torch.ones(5, 3), 0.4)),
        ((torch.zeros(5, 3), torch.ones(4)), (torch.ones(5, 3), torch.ones(4, dtype=torch.int))),
        ((torch.zeros(5, 3), torch.ones(4)), None),
        ((torch.zeros(5, 3), torch.ones(4)), (torch.zeros(5, 3), torch.ones(4))),  # all again
        ((torch.zeros(5), torch.ones(4).to_sparse()), (torch.ones(5), torch.ones(4).to_sparse())),
    ],
)
def test_nothing_is_apart_that_may_belong_to_records(batch, earlier):
    assert inputs.constants_apart(batch, earlier) is batch
