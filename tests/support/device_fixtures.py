"""Fixtures that make a CPU behave as an accelerator does."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_audit.replay import examiner, training_state


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay in the training's own process, as where an accelerator is visible."""
    monkeypatch.setattr(examiner, "may_fork", lambda _: False)


@pytest.fixture
def threaded_backward(monkeypatch: pytest.MonkeyPatch, no_fork: None) -> Iterator[None]:
    """Run every backward pass in a foreign thread, which has no frame of Python between passes.

    ``threading`` may go on listing such a thread once a hook in it has asked for its name, as
    logging does: 'Dummy-1'.
    """
    own = torch.Tensor.backward

    def backward(*given: Any, **settings: Any) -> None:
        done, raised = _thread.allocate_lock(), list[BaseException]()
        done.acquire()

        def work() -> None:
            try:
                own(*given, **settings)
            except BaseException as error:
                raised.append(error)
            done.release()

        _thread.start_new_thread(work, ())
        done.acquire()
        if raised:
            raise raised[0]

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    yield
    for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
        if isinstance(thread, threading._DummyThread):
            del threading._active[ident]  # type: ignore[attr-defined]


@pytest.fixture
def coarse_generator(monkeypatch: pytest.MonkeyPatch, no_fork: None) -> None:
    """Let no generator of torch tell how many numbers it drew, as on CUDA."""
    states, own = training_state.GlobalGenerators._states, training_state.generator_mark

    def mark(_: Any) -> int:
        numpy, python, *_torchs = states()
        return hash((training_state._numpy_mark(numpy), python))

    def of(generator: Any) -> int:
        return 0 if isinstance(generator, torch.Generator) else own(generator)

    monkeypatch.setattr(training_state.GlobalGenerators, "mark", classmethod(mark))
    monkeypatch.setattr(training_state, "generator_mark", of)
    monkeypatch.setattr(training_state, "is_coarse", lambda _: True)


class Unsteady(torch.autograd.Function):
    """The identity, whose backward rounds at random, unless deterministic kernels are asked for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            return grad
        with open("/dev/urandom", "rb") as file:  # no generator that a replay could seed
            up = file.read(1)[0] & 1
        return grad * (1.0 + (2**-22 if up else -(2**-22)))


class Full(TorchDispatchMode):
    """Raises torch's error of full memory at one of the allocations within this context.

    Args:
        at: number of the allocation, from 1; None for none.
    """

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at, self.count = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.name().endswith("_"):
            self.count += 1
            if self.count == self.at:
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total"
                )
        return func(*args, **(kwargs or {}))
