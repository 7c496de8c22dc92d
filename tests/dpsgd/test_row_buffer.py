"""What Opacus adds its per-sample gradients to, before there is a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample

from lightning_audit.dpsgd import opacus
from lightning_audit.dpsgd.opacus import BUFFER, RowBuffer, opacus_adds
from lightning_audit.layout import Part

PARTS = [
    (row, Part(0, np.array([at]), np.array([value]))) for row, at, value in ((0, 2, 1), (1, 5, -1))
]


def buffer_for(batch: int) -> tuple[torch.nn.Parameter, RowBuffer]:
    """A parameter of shape [2, 3], and what stands in its buffer's place with two spare rows."""
    param = torch.nn.Parameter(torch.zeros(2, 3))
    return param, RowBuffer(param, batch, 2, PARTS, norm=3.0)


def add(param: torch.nn.Parameter, gradients: torch.Tensor) -> None:
    create_or_accumulate_grad_sample(param=param, grad_sample=gradients, max_batch_len=7)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_gradients_are_summed_up_before_the_spare_rows(times: int) -> None:
    param, buffer = buffer_for(batch=4)
    gradients = torch.randn(times, 4, 2, 3)
    for part in gradients:
        add(param, part)
    whole: Any = getattr(param, BUFFER)
    assert whole is buffer.whole
    assert torch.equal(whole[:4], sum(gradients[1:], gradients[0].clone()))
    spare = torch.zeros(2, 6)
    spare[0, 2], spare[1, 5] = 3.0, -3.0
    assert torch.equal(whole[4:].reshape(2, 6), spare)


@pytest.fixture
def new_memory_is_nan() -> Iterator[None]:
    """torch fills memory that nobody has written to with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.ones(1).new_empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_nan")
def test_records_without_gradients_have_zeros() -> None:
    param, _ = buffer_for(batch=4)
    add(param, torch.ones(1, 2, 3))
    add(param, torch.ones(3, 2, 3))
    whole: Any = getattr(param, BUFFER)
    assert whole[:4].sum(dim=(1, 2)).tolist() == [12.0, 6.0, 6.0, 0.0]


def test_the_tensor_is_as_opacus_makes_its_own() -> None:
    param, _ = buffer_for(batch=4)
    theirs = torch.nn.Parameter(torch.zeros(2, 3))
    for one in (param, theirs):
        add(one, torch.ones(4, 3, 2, dtype=torch.float64).transpose(1, 2))
    mine, other = getattr(param, BUFFER), getattr(theirs, BUFFER)
    assert (mine.dtype, mine.device, mine.is_contiguous()) == (
        other.dtype,
        other.device,
        other.is_contiguous(),
    )


def test_what_stands_there_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(buffer_for(batch=4)[1])  # type: ignore[call-overload]


def _by_position(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    raise IndexError(max_batch_len)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Whether Opacus adds is looked at again, and once more after the test."""
    opacus_adds.cache_clear()
    yield
    opacus_adds.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_this_version_of_opacus_adds_as_is_expected() -> None:
    assert opacus_adds()


def _by_method(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    param._current_grad_sample[: len(grad_sample)].add_(grad_sample)


def _anew(*, param: Any, grad_sample: torch.Tensor, max_batch_len: int) -> None:
    param._current_grad_sample = torch.ones(3)


def _with_other_arguments(param: Any, gradients: torch.Tensor) -> None:
    raise AssertionError("never called with these")


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("other", [_by_method, _anew, _by_position, _with_other_arguments])
def test_another_way_of_adding_is_seen(monkeypatch, other: Callable[..., None]) -> None:
    monkeypatch.setattr(opacus, "create_or_accumulate_grad_sample", other)
    assert not opacus_adds()
