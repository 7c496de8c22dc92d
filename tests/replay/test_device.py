"""A CPU that behaves as an accelerator: steps are examined, and no correct training is accused."""

from __future__ import annotations

import _thread
import gc
import logging
import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from plain_step import ANSWERED
from stages import staged
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from training_matrix import ROWS
from training_support import PrivateModule, random_data, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.hooks.boundary import users_frame
from lightning_audit.replay import (
    device,
    examiner,
    records,
    releases,
    training_state,
)
from lightning_audit.replay.device import CountedDraws, Room, SteadyKernels, no_room
from lightning_audit.replay.releases import Release
from lightning_audit.replay.step_replay import Replay, StepReplay
from lightning_audit.testing.faulty import HalfNoise

AUDIT = "lightning_audit."

pytestmark = pytest.mark.filterwarnings("default")


# --- What makes a CPU behave as an accelerator does.


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
        return hash((numpy, python))

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


# --- Trainings.


class Touched(PrivateModule):
    """A small classifier; ``touch`` is applied to its inputs, ``between`` between its layers."""

    def __init__(self, touch: Any = None, between: Any = None, **settings: Any) -> None:
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
        super().__init__(net, dataset=random_data(240), batch_size=24, **settings)
        self.touch, self.between = touch, between

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        x = x if self.touch is None else self.touch(x)
        if self.between is None:
            return functional.cross_entropy(self.net(x), y)
        first, *rest = getattr(self.net, "_module", self.net)
        hidden = self.between(first(x))
        for layer in rest:
            hidden = layer(hidden)
        return functional.cross_entropy(hidden, y)


def train(folder: Path, module: PrivateModule, steps: int = 40, **settings: Any) -> Any:
    torch.manual_seed(0)
    audit = PrivacyAudit(seed=1, examinations="auto", on_violation="warn", bounds=[], **settings)
    trainer_for(folder, audit, max_steps=steps).fit(module)
    return audit.report


def unanswered(report: Any) -> list[str]:
    asked = [check for check in report.checks if check.name in ANSWERED]
    assert len(asked) == len(ANSWERED) == 5
    return [f"{c.name}: {c.message}" for c in asked if c.status not in ("ok", "violated")]


# --- Backward passes run in threads of their own.


class Talks(torch.autograd.Function):
    """The identity, whose backward pass logs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        logging.getLogger("user").warning("in backward")
        return grad


@pytest.mark.usefixtures("threaded_backward")
@pytest.mark.parametrize("between", [None, Talks.apply])
def test_autograds_own_thread_does_not_end_the_examinations(tmp_path, between):
    report = train(tmp_path, Touched(between=between))
    assert report.verdict.outcome == "PASS", report.verdict
    assert not unanswered(report)


class Rounds(torch.autograd.Function):
    """The identity, whose backward pass rounds by the system's entropy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (1.0 + 2**-20 * (os.urandom(1)[0] & 1))


@pytest.mark.usefixtures("threaded_backward")
def test_the_systems_entropy_repeats_in_autograds_thread(tmp_path):
    report = train(tmp_path, Touched(between=Rounds.apply))
    assert not any("other bits" in text for text in unanswered(report))


# --- Generators do not tell how many numbers they drew.


def masked(x: torch.Tensor) -> torch.Tensor:
    """Add noise to the large entries: how much is drawn depends on the records."""
    large = x > 0.5
    return x.masked_scatter(large, x[large] + 2.0 * torch.randn(int(large.sum())))


@pytest.mark.usefixtures("coarse_generator")
@pytest.mark.parametrize("seed", staged(quick=[0], nightly=[1, 2]))
def test_draws_that_depend_on_the_records_are_no_coupling(tmp_path, seed):
    report = train(tmp_path, Touched(masked), 4 + seed)
    assert report.verdict.outcome != "VIOLATION", report.verdict


@pytest.mark.usefixtures("coarse_generator")
def test_a_coupled_training_is_still_found(tmp_path):
    report = train(tmp_path, Touched(lambda x: x - x.mean(0) * 3.0), 6)
    assert "coupling" in [check.name for check in report.checks if check.status == "violated"]


def test_draws_are_counted_by_operation_and_number():
    counts = CountedDraws()

    def mark(*sizes: int, generator: Any = None) -> int:
        counts.reset()
        with counts:
            for size in sizes:
                torch.rand(size, generator=generator)
                functional.dropout(torch.ones(size)) if generator is None else None
        return counts.mark

    assert mark(3) == mark(3) != mark(300)
    assert mark(2, 1) != mark(1, 2)
    assert mark(3, generator=torch.Generator()) == mark()


def test_attention_without_dropout_draws_nothing():
    counts = CountedDraws()
    q = torch.zeros(1, 1, 2, 4)
    with counts:
        functional.scaled_dot_product_attention(q, q, q)
    assert counts.mark == 0


@pytest.mark.usefixtures("coarse_generator")
def test_a_compiled_training_stays_compiled(tmp_path):
    module = Touched()
    compiled = torch.compile(lambda x: 2.0 * x.sin(), backend="eager", fullgraph=True)
    module.touch = compiled
    report = train(tmp_path, module, 4)
    assert report.steps == 4
    assert not [text for text in unanswered(report) if "cannot be replayed" in text]


# --- Kernels add in any order.


@pytest.mark.usefixtures("no_fork")
def test_kernels_that_add_in_any_order_do_not_end_the_examinations(tmp_path):
    report = train(tmp_path, Touched(between=Unsteady.apply))
    assert report.verdict.outcome == "PASS", report.verdict
    assert not unanswered(report)
    assert not torch.are_deterministic_algorithms_enabled()


class Shaky(Unsteady):
    """Rounds at random whatever is asked for."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        with open("/dev/urandom", "rb") as file:
            return grad * (1.0 + 2**-22 * file.read(1)[0])


@pytest.mark.usefixtures("no_fork")
def test_an_operation_without_such_a_kernel_is_named_and_lacks_a_pass(tmp_path, monkeypatch):
    def between(x: torch.Tensor) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            text = "histc_cuda does not have a deterministic implementation, but you set"
            warnings.warn(text, stacklevel=1)
        return Shaky.apply(x)

    report = train(tmp_path, Touched(between=between))
    assert report.verdict.outcome == "INCONCLUSIVE"
    why = "histc_cuda at test_device.py:"
    assert all(why in text for text in unanswered(report))
    assert why in report.to_json()
    assert not any("may have changed" in note for note in report.notes)


def test_an_operation_of_a_backward_pass_is_named_at_the_users_line():
    steady, x = SteadyKernels(), torch.ones(4, requires_grad=True)
    with steady():
        put = x.put(torch.tensor([0, 1]), x[:2])
        put.sum().backward()
    line = test_an_operation_of_a_backward_pass_is_named_at_the_users_line.__code__.co_firstlineno
    lines = [f"test_device.py:{line + number}" for number in (3, 4)]
    assert steady.lacking == [f"put_ at {line} has no deterministic kernel" for line in lines]


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_the_trainings_choice_of_kernels_is_restored(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with SteadyKernels()():
            assert torch.are_deterministic_algorithms_enabled()
        now = torch.are_deterministic_algorithms_enabled()
        assert (now, torch.is_deterministic_algorithms_warn_only_enabled()) == before
        assert not torch.backends.cudnn.deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_training_on_the_cpu_beside_an_accelerator_names_the_line_for_a_fork(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    report = train(tmp_path, Touched(), 4)
    assert sum("CUDA_VISIBLE_DEVICES" in note for note in report.notes) == 1


# --- Memory is full.


def test_where_a_whole_batch_does_not_fit_fewer_records_are_replayed(tmp_path, monkeypatch):
    taken = list[int]()
    own = StepReplay.take_first

    def counted(self: StepReplay, batches: Any, rows: Any, *, alone: bool) -> None:
        taken.append(sum(len(batch[0]) for batch in batches))
        own(self, batches, rows, alone=alone)

    monkeypatch.setattr(examiner, "may_fork", lambda _: False)
    monkeypatch.setattr(Room, "bytes", lambda room: 8 * 4 * 330)
    monkeypatch.setattr(StepReplay, "take_first", counted)
    report = train(tmp_path, Touched(), 4)
    assert not unanswered(report)
    assert max(taken) <= 18  # twice the records, and two, where clipping is tested


def test_a_cuda_device_may_have_a_fifth_more_than_the_training_took_without_replays(monkeypatch):
    now = {"memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0}
    for name in now:
        monkeypatch.setattr(torch.cuda, name, lambda _, name=name: now[name])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10_000, 10_000))
    monkeypatch.setattr(device, "_PEAKS", {})

    def left(most: int, allocated: int) -> int:
        """The room of an examination, in which replays take 1150."""
        now.update(max_memory_allocated=most, memory_allocated=allocated, memory_reserved=allocated)
        room = Room(torch.device("cuda"))
        now["max_memory_allocated"] = max(most, 1150)
        found = room.bytes()
        room.leave()
        return found

    assert left(most=1000, allocated=300) == 900
    assert left(most=1150, allocated=300) == 900  # what replays took counts for no training
    assert left(most=2000, allocated=300) == 2100  # a larger training of the same process
    assert left(most=2000, allocated=2500) == 0


def examined(folder: Path, monkeypatch: pytest.MonkeyPatch, full: Full, **settings: Any) -> Any:
    """Train, with memory that is full in the examination."""
    own = examiner._examined

    def examines(*given: Any) -> Any:
        with full:
            return own(*given)

    monkeypatch.setattr(examiner, "_examined", examines)
    return train(folder, Touched(**settings), 12)


@pytest.fixture(scope="module")
def allocations(tmp_path_factory):
    """Allocations in the examination."""
    count = Full(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examiner, "may_fork", lambda _: False)
        examined(tmp_path_factory.mktemp("whole"), patch, count)
    return count.count


@pytest.mark.usefixtures("no_fork")
@pytest.mark.parametrize(
    "part", staged(quick=[0, 16, 32], nightly=[p for p in range(48) if p % 16])
)
def test_full_memory_in_a_replay_is_an_answer(tmp_path, monkeypatch, allocations, part, caplog):
    full = Full(1 + (part * allocations) // 48)
    report = examined(tmp_path, monkeypatch, full)
    assert full.count >= full.at
    assert "12.00 GiB" not in report.to_json()
    assert report.steps == 12
    assert "the audit failed" not in caplog.text
    assert report.verdict.outcome in ("PASS", "INCONCLUSIVE")
    assert len([c for c in report.checks if c.status == "ok" and c.name in ANSWERED]) >= 3


@pytest.mark.usefixtures("no_fork")
def test_nothing_holds_a_replay_after_an_examination_without_a_collection(tmp_path, monkeypatch):
    left, own = list[str](), examiner._examined

    def examines(*given: Any) -> Any:
        gc.disable()
        try:
            return own(*given)
        finally:
            found = [each for each in gc.get_objects() if isinstance(each, Replay | Release)]
            left.extend(type(each).__name__ for each in found)
            gc.enable()

    monkeypatch.setattr(examiner, "_examined", examines)
    assert not unanswered(train(tmp_path, Touched(), 4))
    assert left == []


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and the most since `mark` was called."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen = set[int]()

    def mark(self) -> int:
        """Return the most so far, and begin again."""
        most, self.most = self.most, self.now
        return most

    def _gone(self, key: int, size: int) -> None:
        self._seen.remove(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            held = each.untyped_storage() if isinstance(each, torch.Tensor) else None
            if held is not None and held._cdata not in self._seen:
                self._seen.add(held._cdata)
                self.now += held.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(held, self._gone, held._cdata, held.nbytes())
        return made


@pytest.mark.usefixtures("no_fork")
def test_an_examination_takes_little_more_memory_than_the_training(tmp_path, monkeypatch):
    alive, own, peaks = Alive(), examiner._examined, list[tuple[int, int]]()

    def examines(*given: Any) -> Any:
        before = alive.mark()
        try:
            return own(*given)
        finally:
            peaks.append((before, alive.mark()))

    monkeypatch.setattr(examiner, "_examined", examines)
    # What does not grow with the net is as small as the net.
    monkeypatch.setattr(records, "_ENTRIES", 200_000)
    monkeypatch.setattr(releases, "_AT_ONCE", 2**12)
    net = nn.Sequential(nn.Linear(8, 200), nn.ReLU(), nn.Linear(200, 200), nn.Linear(200, 10))
    module = PrivateModule(net, dataset=random_data(640), batch_size=64)
    with alive:
        trainer_for(tmp_path, PrivacyAudit(seed=1, bounds=[], examinations=1), max_steps=4).fit(
            module
        )
    training, examination = peaks[0]
    assert training > 64 * 4 * sum(p.numel() for p in module.net.parameters())
    assert examination < 1.25 * training


def test_only_full_memory_is_taken_for_it(caplog):
    assert no_room(torch.OutOfMemoryError("Tried to allocate 12.00 GiB. GPU 0")) == Reason.NO_ROOM
    assert "12.00 GiB" in caplog.text
    assert no_room(RuntimeError("DefaultCPUAllocator: can't allocate memory")) == Reason.NO_ROOM
    assert no_room(ValueError()) == no_room(RuntimeError("shapes")) == ""


# --- Releases keep their precision; sums over them are those of doubles.


def test_sums_over_a_release_are_those_of_doubles():
    like = [torch.zeros(5, 3), torch.zeros(7), torch.zeros(4, dtype=torch.float64)]
    one, two = ([torch.randn(p.shape, dtype=p.dtype) for p in like] for _ in range(2))
    a, b = Release.of(one, like, 2.0), Release.of([None, *two[1:]], like, 2.0)
    two[0].zero_()
    x, y = (torch.cat([g.reshape(-1).double() for g in grads]) / 2.0 for grads in (one, two))
    assert a.norm() == pytest.approx(float(x.norm()), rel=1e-14)
    assert a.dot(b) == pytest.approx(float(x @ y), rel=1e-12)
    assert a.distance(b) == pytest.approx(float((x - y).norm()), rel=1e-14)
    assert torch.equal(a.double(), x)
    assert a.equal(a)
    assert not a.equal(b)
    assert a.finite()
    assert not Release(torch.tensor([torch.nan])).finite()
    put = [torch.empty_like(p) for p in like]
    a.write(put, [p.numel() for p in like], 2.0)
    assert all(map(torch.equal, put, one))
    a.write(put, [p.numel() for p in like], 4.0)
    assert all(torch.allclose(new, 2.0 * old) for new, old in zip(put, one, strict=True))


def test_large_gradients_are_kept_once_and_in_single_precision():
    values = torch.ones(2**23)
    assert Release.of([values], [values], 1.0).values.dtype == torch.float32
    assert Release(values).norm() == pytest.approx(2**11.5, rel=1e-12)


def test_half_noise_is_found_without_a_fork(tmp_path, request):
    request.getfixturevalue("coarse_generator")
    report = train(tmp_path, Touched(optimizer_class=HalfNoise), 4)
    assert report.verdict.outcome == "VIOLATION"


# --- A step waits for its device three times, and sends home little.


class Waits(TorchDispatchMode):
    """Counts, by step, what the audit waits for on a device, and its copies to the host."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.waits, self.copies = Counter[int](), Counter[int]()
        self.step, own = 0, torch.Tensor.cpu

        def cpu(tensor: torch.Tensor) -> torch.Tensor:
            module = sys._getframe(1).f_globals["__name__"]
            # The sampler's batch has not left the host.
            self.copies[self.step] += module.startswith(AUDIT) and "sampler_tap" not in module
            return own(tensor)

        patch.setattr(torch.Tensor, "cpu", cpu)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame: Any = sys._getframe(1)
        while (module := frame.f_globals["__name__"]).startswith("torch."):
            frame = frame.f_back
        waits = func.name() in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
        self.waits[self.step] += module.startswith(AUDIT) and waits
        return func(*args, **(kwargs or {}))

    def next(self, x: torch.Tensor) -> torch.Tensor:
        """Begin the next step."""
        self.step += 1
        return x


def test_a_step_waits_for_its_device_three_times_and_sends_home_one_copy(tmp_path, monkeypatch):
    seen = Waits(monkeypatch)
    audit = PrivacyAudit(seed=1, examinations=0, bounds=[])
    with seen:
        trainer_for(tmp_path, audit, max_steps=40).fit(Touched(seen.next))
    steady = [step for step in range(21, 40) if step % 10]  # an epoch has ten steps
    assert {seen.copies[step] for step in steady} == {1}, seen.copies
    assert all(0 < seen.waits[step] + seen.copies[step] <= 3 for step in steady), seen.waits


# --- Every way to train draws on its own device.

_MADE = (torch.randn, torch.rand, torch.randint, torch.randperm, torch.normal, torch.zeros)
_MADE += (torch.ones, torch.full, torch.empty, torch.arange, torch.tensor)


class OnItsDevice(TorchFunctionMode, pl.Callback):
    """Notes each tensor that a training step makes without a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        users = users_frame(frame) is frame
        if func in _MADE and users and "device" not in (kwargs or {}):
            self.found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))

    def on_train_batch_start(self, *_: Any) -> None:
        self.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        self.__exit__(None, None, None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_way_to_train_makes_tensors_on_its_device(tmp_path, row):
    watch = OnItsDevice()
    trainer_for(tmp_path, watch, **{**row.trainer, "max_steps": 2}).fit(row.module())
    assert watch.found == []
