"""Whatever a step changes is put back, to the bit."""

import importlib
import io
import os
import random
import secrets
import threading
import time
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from lightning_audit.replay import other_threads, training_state

# --- What a step leaves behind is copied by name.


def test_parameters_buffers_and_the_optimizers_state_are_copied():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.125)
    net(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    found = training_state.left_behind(net, optimizer)
    assert found["lr of group 0"].item() == 0.125
    assert {"parameters of 0.weight", "buffers of 1.running_mean"} <= set(found)
    assert {"optimizer state exp_avg of 0.weight", "optimizer state step of 0.bias"} <= set(found)
    weights = found["parameters of 0.weight"]
    with torch.no_grad():
        net[0].weight += 1.0
    assert not torch.equal(weights, net[0].weight.double().flatten())


# --- A thread is harmless unless it computes with torch or NumPy.


@contextmanager
def thread(work: Callable[..., Any], held: Any, *args: Any) -> Iterator[None]:
    """A thread that runs something."""
    runs = threading.Thread(target=work, args=args, name="other", daemon=True)
    runs.start()
    time.sleep(0.1)
    try:
        yield
    finally:
        held.set() if isinstance(held, threading.Event) else held.put(None)
        runs.join()


def waits(event: threading.Event) -> None:
    event.wait()


def polls(event: threading.Event) -> None:
    """As a poller of metrics: tensors are held, and now and then something is computed."""
    held = torch.zeros(3)
    while not event.wait(0.1):
        held = held + 1


def counts(event: threading.Event) -> None:
    """Computes without torch and NumPy."""
    while not event.is_set():
        sum(range(1000))


def draws(event: threading.Event) -> None:
    while not event.is_set():
        torch.rand(1000)


def sorts(event: threading.Event) -> None:
    generator = np.random.default_rng(0)
    while not event.is_set():
        generator.normal(size=1000).sort()


def trains(event: threading.Event) -> None:
    net = torch.nn.Linear(8, 8)
    while not event.is_set():
        net(torch.zeros(4, 8)).sum().backward()


def loads(event: threading.Event) -> None:
    loader: Any = torch.utils.data.DataLoader(range(10**6), batch_size=200)  # type: ignore[arg-type,var-annotated]
    while True:
        for _ in loader:
            if event.is_set():
                return


def test_alone_no_other_thread_computes():
    assert other_threads.training_thread() == ""


@pytest.mark.parametrize(
    ("work", "named"),
    [*((w, "") for w in (waits, polls, counts)), *((w, "other") for w in (draws, sorts, trains))],
)
@pytest.mark.parametrize("forked", [True, False])
def test_a_thread_that_computes_is_named_and_others_are_harmless(work, named, forked):
    event = threading.Event()
    with thread(work, event, event):
        assert other_threads.training_thread(forked=forked) == named
    assert other_threads.training_thread() == ""


def test_a_thread_that_loads_data_is_harmless_to_a_fork_alone():
    event = threading.Event()
    with thread(loads, event, event):
        assert other_threads.training_thread(forked=True) == ""
        assert other_threads.training_thread() == "other"


@pytest.mark.parametrize("made", [threading.Event, Queue])
def test_a_thread_of_the_standard_library_is_harmless(made):
    held = made()
    with thread(held.wait if isinstance(held, threading.Event) else held.get, held):
        assert other_threads.training_thread() == ""


def test_an_idle_worker_is_harmless_and_a_busy_one_is_not():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert other_threads.training_thread() == ""
        done = threading.Event()
        pool.submit(draws, done)
        time.sleep(0.1)
        assert other_threads.training_thread() != ""
        done.set()


@pytest.mark.parametrize("busy", [False, True])
def test_a_function_in_c_has_no_frame_and_counts_while_it_computes(busy):
    call = (torch.sort, torch.rand(3 * 10**6)) if busy else (time.sleep, 0.4)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(*call)
        time.sleep(0.02)
        named = other_threads.training_thread() != ""
        assert named == busy or (busy and done.done())


def test_the_threads_of_loaders_and_progress_bars_are_harmless():
    from tqdm import TMonitor, tqdm

    monitor = TMonitor(tqdm, 10)
    loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    list(loader)
    time.sleep(0.1)
    assert threading.active_count() > 1
    assert other_threads.training_thread() == ""
    monitor.exit()


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_the_thread_of_lightnings_progress_bar_is_harmless(package):
    progress = importlib.import_module(f"{package}.callbacks.progress.rich_progress")
    bar = progress.CustomProgress(console=Console(file=io.StringIO()))
    bar.start()
    try:
        for _ in range(50):  # it sleeps, or draws
            bar.soft_refresh()
            assert threading.active_count() > 1
            assert other_threads.training_thread() == ""
            time.sleep(0.002)
    finally:
        bar.stop()


# --- Within a replay the system's entropy repeats, for the replaying thread alone.

SOURCES: dict[str, Callable[[], Any]] = {
    "os.urandom": lambda: os.urandom(16),
    "secrets": lambda: secrets.token_hex(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "default_rng": lambda: np.random.default_rng().random(),
    "SeedSequence": lambda: np.random.SeedSequence().entropy,
    "uuid": lambda: str(uuid.uuid4()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_reads_the_systems_entropy_repeats_under_one_seed_alone(source):
    entropy, draw = training_state.OwnEntropy(), SOURCES[source]
    seen = []
    for seed in (1, 1, 2):
        with entropy:
            entropy.seed(seed)
            before = entropy.mark
            seen.append(draw())
            assert entropy.mark != before
    assert seen[0] == seen[1] != seen[2]
    assert draw() not in seen


def test_another_thread_reads_the_systems_own_entropy():
    entropy, seen = training_state.OwnEntropy(), list[bytes]()
    for _ in range(2):
        with entropy:
            entropy.seed(1)
            thread = threading.Thread(target=lambda: seen.append(os.urandom(16)))
            thread.start()
            thread.join()
    assert seen[0] != seen[1]


def test_what_os_urandom_was_before_is_put_back_after_an_exception():
    theirs = os.urandom, random._urandom
    with pytest.raises(RuntimeError), training_state.OwnEntropy():
        raise RuntimeError
    assert (os.urandom, random._urandom) == theirs


# --- Containers are put back as they were, whatever their methods do.


class Upper(dict[str, int]):
    """Keeps its keys in capitals, and counts how often it was written to."""

    written = 0

    def __setitem__(self, key: str, value: int) -> None:
        self.written += 1
        super().__setitem__(key.upper(), value)

    def clear(self) -> None:
        raise RuntimeError("never empty")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counter("abracadabra"),
        lambda: OrderedDict([("b", 1), ("a", 2)]),
        lambda: defaultdict(int, {"x": 3}),
        lambda: {"plain": 1},
        lambda: Upper({"low": 1}),
    ],
)
def test_a_dictionary_of_any_kind_is_what_it_was(make):
    held, before = make(), make()
    keys, values = list(held), list(held.values())
    dict.__setitem__(held, "new", 7) if isinstance(held, Upper) else held.update({"new": 7})
    first = keys[0]
    held.move_to_end(first) if isinstance(held, OrderedDict) else held.pop(first)
    training_state.refill_dict(held, keys, values)
    assert (held, list(held)) == (before, list(before))
    assert type(held) is type(before)
    assert not isinstance(held, Upper) or held.written == 0
    if isinstance(held, OrderedDict):  # it can be used on
        held.move_to_end("b")
        assert list(held) == ["a", "b"]


@pytest.mark.parametrize("make", [lambda: [1, 2], lambda: deque([1, 2], 3), lambda: {1, 2}])
def test_a_container_is_what_it_was(make):
    held, items = make(), list(make())
    held.clear()
    training_state.refill(held, items)
    assert held == make()


def test_attributes_and_slots_have_their_values_back():
    class Owner:
        number, name = 1, "a"

    put_back = training_state.set_atoms(dict(vars(Owner)), Owner)
    Owner.number, Owner.name = 2, "b"
    put_back()
    assert (Owner.number, Owner.name) == (1, "a")
    training_state.set_slot(Owner, "number", 5)
    assert Owner.number == 5


def test_bits_are_compared_and_not_values_alone():
    assert training_state.same_bits(torch.ones(2), torch.ones(2))
    assert not training_state.same_bits(torch.ones(2), torch.ones(3))
    assert not training_state.same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), np.random.random, random.random], ids=["torch", "numpy", "own"]
)
@pytest.mark.parametrize("when", ["before a replay", "behind it", "never"])
def test_generators_that_another_thread_moved_stay(draw, when):
    generators = training_state.GlobalGenerators()
    before = repr(training_state.GlobalGenerators._states())
    if when == "before a replay":
        draw()
    generators.look()
    draw()  # of the replay
    generators.leave()
    if when == "behind it":
        draw()
    now = repr(training_state.GlobalGenerators._states())
    generators.put_back()
    assert generators.shared == (when != "never")
    assert repr(training_state.GlobalGenerators._states()) == (before if when == "never" else now)


class Counted:
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.count, self.nested = 0, {"rows": [torch.zeros(2)], "names": {"a"}}


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Training(nn.Module):
    """A module with all kinds of state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.counter, self.slotted, self.kept = Counted(), Slotted(), deque([1, 2])
        self.generator = torch.Generator().manual_seed(1)
        self.numpy, self.python = np.random.default_rng(1), random.Random(1)
        self.array, self.nothing = np.zeros(3), float("nan")
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.enclosed = count

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Change all of it."""
        optimizer.zero_grad()
        self.net(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        self.counter.count += 1
        self.counter.seen.append(1)
        self.counter.nested["rows"][0].add_(1.0)  # type: ignore[attr-defined]
        self.counter.nested["rows"].append(torch.ones(1))  # type: ignore[attr-defined]
        self.counter.nested["names"].add("b")  # type: ignore[attr-defined]
        self.slotted.count += 1
        self.kept.append(len(self.kept))
        self.array += self.numpy.random() + self.python.random() + random.random()
        self.array += float(torch.rand(1, generator=self.generator)) + np.random.random()
        self.enclosed()
        self.fresh = torch.ones(3)


def everything(module: Training, optimizer: torch.optim.Optimizer) -> str:
    held: dict[str, Any] = {name: value.tolist() for name, value in module.state_dict().items()}
    held["grads"] = [None if p.grad is None else p.grad.tolist() for p in module.parameters()]
    held["optimizer"] = repr(optimizer.state_dict())
    counter = module.counter
    held["counter"] = repr((counter.count, counter.seen, counter.nested, module.slotted.count))
    held["others"] = repr((module.kept, module.array, sorted(vars(module))))
    held["calls"] = module.enclosed.__closure__[0].cell_contents  # type: ignore[index]
    held["drawn"] = repr(
        (
            module.generator.get_state().tolist(),
            module.numpy.bit_generator.state,
            module.python.getstate(),
            torch.get_rng_state().tolist(),
            np.random.get_state(),
            random.getstate(),
        )
    )
    return repr(held)


@pytest.fixture
def training():
    torch.manual_seed(0)
    Counted.seen.clear()
    module = Training()
    return module, torch.optim.Adam(module.parameters())


@pytest.mark.parametrize("steps", [0, 2])
def test_all_is_put_back(training, steps):
    module, optimizer = training
    for _ in range(steps):
        module.step(optimizer)
    before = everything(module, optimizer)
    state = training_state.TrainingState([module, optimizer])
    for _ in range(3):
        module.step(optimizer)
        module.step(optimizer)
        assert everything(module, optimizer) != before
        state.put_back()
        assert everything(module, optimizer) == before
    assert state.lost == []


def test_a_change_that_bypasses_autograd_and_not_a_number_are_put_back():
    weight, tensor = nn.Parameter(torch.zeros(3)), torch.tensor([float("nan"), 1.0])
    state = training_state.TrainingState([weight, tensor])
    weight.data.add_(1.0)
    tensor.fill_(2.0)
    state.put_back()
    assert weight.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(torch.isnan(tensor), torch.tensor([True, False]))


def test_one_seed_sets_every_generator(training):
    module, _ = training
    state = training_state.TrainingState([module])

    def drawn(seed: int) -> tuple[float, ...]:
        state.seed(seed)
        return (
            float(torch.rand(1)),
            float(np.random.random()),
            random.random(),
            float(torch.rand(1, generator=module.generator)),
            float(module.numpy.random()),
        )

    assert drawn(5) == drawn(5)
    assert len({*drawn(5), *drawn(6)}) == 10


def test_what_is_not_followed_is_left_alone():
    other = SimpleNamespace(count=0)
    held = SimpleNamespace(other=other, count=0)
    state = training_state.TrainingState([held], not_followed=[other])
    held.count = other.count = 3
    state.put_back()
    assert (held.count, other.count) == (0, 3)


def test_what_does_not_fit_is_not_kept():
    held = SimpleNamespace(cache=torch.zeros(8), array=np.zeros(8))
    training_state.TrainingState([held], room=4 * 8 + 8 * 8)
    with pytest.raises(training_state.CannotKeep, match="keep data in a Dataset"):
        training_state.TrainingState([held], room=4 * 8 + 8 * 8 - 1)


def test_the_room_is_that_of_parameters_gradients_and_states():
    net = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(net.parameters())
    before = training_state.room_for(net.parameters(), [optimizer])
    net(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    entries = 1000 * 1000 + 1000
    assert training_state.room_for(net.parameters(), [optimizer]) - before == pytest.approx(
        3 * 4 * entries, 1e-3
    )


def test_what_cannot_be_put_back_is_named():
    held = SimpleNamespace(cache=torch.zeros(8))
    state = training_state.TrainingState([held])
    held.cache.resize_(4)
    state.put_back()
    assert state.lost == ["a tensor has another shape now"]


COUNT, SEEN, GENERATOR = 0, [1], torch.Generator().manual_seed(1)


class Counts:
    """Counts in its class and in its module."""

    total = 0

    def step(self) -> None:
        global COUNT
        COUNT += 1
        Counts.total += 1
        SEEN.append(2)
        torch.rand(3, generator=GENERATOR)


def test_variables_of_the_users_module_and_classes_are_put_back():
    held, drawn = Counts(), GENERATOR.get_state()
    state = training_state.TrainingState([held])
    held.step()
    state.put_back()
    assert (COUNT, Counts.total, SEEN) == (0, 0, [1])
    assert torch.equal(GENERATOR.get_state(), drawn)
    assert GENERATOR in state.generators


@pytest.mark.parametrize("made", [lambda: iter([1, 2]), lambda: (x for x in [1]), lambda: zip([1])])
def test_an_iterator_cannot_be_put_back_and_is_refused(made):
    with pytest.raises(training_state.CannotKeep, match="holds an iterator"):
        training_state.TrainingState([SimpleNamespace(stream=made())])


def test_an_open_file_is_left_alone(tmp_path):
    with (tmp_path / "log").open("w") as file:
        training_state.TrainingState([SimpleNamespace(log=file)]).put_back()
        file.write("still open")


def test_a_file_that_is_read_and_environment_variables_are_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "6")
    (tmp_path / "words").write_text("one two")
    with (tmp_path / "words").open("rb") as file:
        file.read(3)
        state = training_state.TrainingState([SimpleNamespace(words=file)])
        os.environ.update(STEPS="7", REPLAYS="1")
        file.read()
        state.put_back()
        assert file.read() == b" two"
    with (tmp_path / "words").open() as lines:
        state = training_state.TrainingState([SimpleNamespace(words=lines)])
        next(lines)  # after which `tell` raises
        state.put_back()
        assert lines.read() == "one two"
    assert os.environ["STEPS"] == "6"
    assert "REPLAYS" not in os.environ


def test_a_frozen_teacher_that_is_averaged_by_its_data_is_restored():
    teacher = nn.Linear(3, 2).requires_grad_(False)
    state = training_state.TrainingState([teacher], forks=True)
    before = [p.clone() for p in teacher.parameters()]
    for p in teacher.parameters():
        p.data.mul_(0.9)  # which no version shows
    state.put_back()
    assert all(map(torch.equal, teacher.parameters(), before))
