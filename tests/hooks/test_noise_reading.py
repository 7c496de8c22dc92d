"""The gradient beside its clipped sum, of real steps of Opacus' optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.hooks import gradient_tap
from lightning_audit.hooks.gradient_tap import NoiseReading, read_noise, read_tensors

# Opacus and torch remark on secure mode and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")

COORDINATES = {0: np.array([0, 5, 11]), 1: np.array([1])}


def gradients(params: Any) -> list[torch.Tensor | None]:
    return [p.grad for p in params]


def stepped(sigma: float = 0.0, mode: str = "hooks", **settings: Any) -> Any:
    """A private optimizer as it is when its inner step starts; it takes none."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    more = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.zeros(8, 4)), 8),
        noise_multiplier=sigma,
        max_grad_norm=0.7,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **more,
        **settings,
    )
    private, optimizer = made[0], made[1]
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    loss = criterion(private(torch.randn(8, 4)), torch.arange(8) % 3)
    loss.backward()
    optimizer.pre_step()
    return optimizer


def reading(optimizer: Any, **wanted: bool) -> NoiseReading:
    found = read_noise(
        optimizer.params,
        gradients(optimizer.params),
        COORDINATES,
        **{"sums": True, "norm": True, **wanted},
    )
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_without_noise_the_gradient_is_the_sum_over_the_batch_size(mode: str) -> None:
    optimizer = stepped(mode=mode)
    found = reading(optimizer)
    assert found.sums is not None
    np.testing.assert_allclose(8 * found.released, found.sums, rtol=1e-5)
    assert np.abs(found.sums).max() > 0.01
    whole = torch.cat([p.summed_grad.flatten() for p in optimizer.params])
    assert found.sum_norm == pytest.approx(float(whole.norm()), rel=1e-6)
    assert found.sum_norm <= 8 * 0.7


def test_the_entries_are_those_of_the_coordinates() -> None:
    optimizer = stepped(1.0)
    found = reading(optimizer)
    grads = [p.grad.flatten().double().numpy() for p in optimizer.params]
    expected = np.concatenate([grads[0][[0, 5, 11]], grads[1][[1]]])
    np.testing.assert_array_equal(found.released, expected)


def test_what_is_left_is_the_noise() -> None:
    generator = torch.Generator().manual_seed(7)
    noisy, plain = reading(stepped(2.0, noise_generator=generator)), reading(stepped(0.0))
    again = torch.Generator().manual_seed(7)
    weight = torch.normal(0, 2.0 * 0.7, (3, 4), generator=again).flatten()[[0, 5, 11]]
    bias = torch.normal(0, 2.0 * 0.7, (3,), generator=again)[[1]]
    assert noisy.sums is not None
    assert plain.sums is not None
    np.testing.assert_allclose(noisy.sums, plain.sums, rtol=1e-6)
    noise = 8 * noisy.released - noisy.sums
    np.testing.assert_allclose(noise, torch.cat([weight, bias]).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strided", [(0,), (1,), (0, 1)])
def test_tensors_that_are_not_contiguous_are_read_as_well(strided: tuple[int, ...]) -> None:
    optimizer = stepped(1.0)
    expected = reading(optimizer)
    for p in (optimizer.params[j] for j in strided):
        p.grad = torch.stack([p.grad, p.grad], dim=-1)[..., 0]
        p.summed_grad = torch.stack([p.summed_grad, p.summed_grad], dim=-1)[..., 0]
        assert not p.grad.is_contiguous()
    found = reading(optimizer)
    np.testing.assert_array_equal(found.released, expected.released)
    assert found.sums is not None
    np.testing.assert_array_equal(found.sums, expected.sums)


def test_tensors_of_several_precisions_are_read_as_well() -> None:
    optimizer = stepped(1.0)
    expected = reading(optimizer)
    optimizer.params[0].summed_grad = optimizer.params[0].summed_grad.double()
    assert reading(optimizer).sum_norm == pytest.approx(expected.sum_norm, rel=1e-6)


def test_a_sum_that_became_the_gradient_in_place_is_no_sum() -> None:
    optimizer = stepped(1.0)
    for p in optimizer.params:
        p.grad = p.summed_grad.view_as(p)
    found = reading(optimizer)
    assert found.sums is None
    assert found.sum_norm is None


def test_what_is_not_wanted_is_not_read() -> None:
    optimizer = stepped(1.0)
    assert reading(optimizer, norm=False).sum_norm is None
    assert reading(optimizer, sums=False).sums is None


def test_gradients_that_are_missing_or_coarse_give_no_reading() -> None:
    optimizer = stepped(1.0)
    optimizer.params[1].grad = None
    assert (
        read_noise(optimizer.params, gradients(optimizer.params), COORDINATES, sums=True, norm=True)
        is None
    )
    net = nn.Linear(4, 3).to(torch.bfloat16)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    params = list(net.parameters())
    assert read_noise(params, gradients(params), COORDINATES, sums=False, norm=False) is None


# ------------------------------------------------------------------ whole tensors


@pytest.mark.parametrize("small", [True, False])
def test_whole_tensors_are_read_beside_their_sums(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr(gradient_tap, "_SMALL", 0)
        monkeypatch.setattr(gradient_tap, "_AT_ONCE", 5)
    optimizer = stepped(sigma=1.0)
    params = optimizer.params
    divisor = float(optimizer.expected_batch_size)
    read = read_tensors(params, gradients(params), divisor, block=True)
    assert read is not None
    assert read.entries.tolist() == [12.0, 3.0]
    rest = [divisor * p.grad.flatten() - p.summed_grad.flatten() for p in params]
    assert read.noise == pytest.approx([float(r @ r) for r in rest], rel=1e-5)
    released = [float((divisor * p.grad).square().sum()) for p in params]
    assert read.released == pytest.approx(released, rel=1e-5)
    # Of three entries the first and the last.
    expected = torch.cat([rest[0], rest[1][[0, 2]]]).numpy()
    assert read.block == pytest.approx(expected, abs=1e-5)
    unasked = read_tensors(params, gradients(params), divisor, block=False)
    assert unasked is not None
    assert unasked.block is None


def test_a_block_holds_both_ends_of_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_tap, "BLOCK", 8)
    params = [nn.Parameter(torch.zeros(10)), nn.Parameter(torch.zeros(2, 2))]
    for p in params:
        p.summed_grad = torch.zeros_like(p)
        p.grad = torch.arange(float(p.numel())).view_as(p)
    read = read_tensors(params, gradients(params), 2.0, block=True)
    assert read is not None
    assert read.block is not None
    assert read.block.tolist() == [0.0, 2.0, 16.0, 18.0, 0.0, 2.0, 4.0, 6.0]


def test_whole_tensors_without_a_sum_or_of_low_precision_are_not_read() -> None:
    param = nn.Parameter(torch.zeros(4))
    param.grad = torch.ones(4)
    assert read_tensors([param], [param.grad], 1.0, block=True) is None
    assert read_tensors([param], [None], 1.0, block=True) is None
    low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    low.grad, low.summed_grad = torch.ones_like(low), torch.zeros_like(low)
    assert read_tensors([low], [low.grad], 1.0, block=True) is None
    assert read_tensors([], [], 1.0, block=True) is None
