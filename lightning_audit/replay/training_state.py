"""The state that a training step may change, saved before a replay and restored after it.

Saved is all that can be reached from the module, its optimizers, schedulers and callbacks: tensors
(parameters, buffers, gradients, per-sample gradients, optimizer states), containers, attributes of
objects, variables in closures, attributes of the user's own classes, plain values, containers and
generators among the global variables of their modules, and every random number generator, including
the global ones. Loaders, data sets, loggers and the Trainer are not followed: a replay does not
touch them. An iterator cannot be restored: if the training holds one, no step is replayed.

**Make the system's entropy repeatable in a replay, for the replaying thread and its backward
passes.** ``secrets``,
``random.SystemRandom``, ``uuid`` and NumPy's generators without a seed all read ``os.urandom``, or
the name under which ``random`` holds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import operator
import os
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, Sampler

from lightning_audit.dpsgd.opacus import chain, own_name
from lightning_audit.hooks.boundary import attempt, raised_in_audit
from lightning_audit.replay.device import (
    CountedDraws,
    free_memory,
    in_autograds_thread,
    is_coarse,
)

# --- Make the system's entropy repeatable in a replay, also in its backward passes.


class OwnEntropy:
    """Context in which seeded bytes replace the system's entropy."""

    def __init__(self) -> None:
        self._bits, self._seed = random.Random(0), 0
        #: Number of words that were read since the last seed.
        self.mark = 0
        self._thread = 0
        self._theirs: tuple[Any, Any] = (os.urandom, random._urandom)  # type: ignore[attr-defined]

    def seed(self, number: int) -> None:
        """Seed the next bytes."""
        self._seed, self.mark = number, 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._theirs = (os.urandom, random._urandom)  # type: ignore[attr-defined]
        os.urandom, random._urandom = self._read, self._read  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        os.urandom, random._urandom = self._theirs  # type: ignore[attr-defined]

    def _read(self, size: int, /) -> bytes:
        if threading.get_ident() != self._thread and not in_autograds_thread():
            entropy: bytes = self._theirs[0](size)
            return entropy
        if not self.mark:
            self._bits.seed(self._seed)
        self.mark += 1 + size // 4
        return self._bits.randbytes(size)


# --- The state after a step that later steps or a checkpoint use.

#: Attributes of Opacus' optimizers that affect the next step. Attributes of the user's own classes
#: may be for display only; their effects show in the next step.
_SETTINGS = ("max_grad_norm", "noise_multiplier", "expected_batch_size", "max_grad_norms")


def left_behind(
    module: torch.nn.Module,
    optimizer: Any,
    *,
    saves: bool = False,
    like: Mapping[str, torch.Tensor] = types.MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    """Return copies of the module's and optimizer's state, by name, each flat and on its device.

    Args:
        module: the user's module.
        optimizer: its private optimizer.
        saves: whether to include what the module's `on_save_checkpoint` adds to a checkpoint, which
            calls the user's code.
        like: an earlier result, whose equal copies are used again, for copies take memory.
    """
    names = {id(p): own_name(name) for name, p in module.named_parameters()}
    checkpoint = _in_a_checkpoint(module) if saves else {}
    kept: dict[str, Any] = {"what a checkpoint holds of the module": checkpoint}
    for name, v in module.state_dict(keep_vars=True).items():
        other = "buffers" if isinstance(v, torch.Tensor) else "extra state"
        kept[f"{'parameters' if id(v) in names else other} of {own_name(name)}"] = v
    for each in chain(optimizer):
        for p, state in each.state.items():
            where = names.get(id(p), "another tensor")
            kept |= {f"optimizer state {key} of {where}": v for key, v in state.items()}
    return _flat(kept | _settings(optimizer), like)


def settings_of(optimizer: Any, suffix: str) -> dict[str, torch.Tensor]:
    """Return an optimizer's settings, such as learning rates, by name with a ``suffix``."""
    return _flat({f"{name} {suffix}": value for name, value in _settings(optimizer).items()})


def _settings(optimizer: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for each in chain(optimizer):
        for number, group in enumerate(each.param_groups):
            kept |= {f"{key} of group {number}": v for key, v in group.items() if key != "params"}
        own = {key: v for key, v in vars(each).items() if key in _SETTINGS}
        kept |= {f"attribute {key} of the optimizer": v for key, v in own.items()}
    return kept


def _flat(
    kept: Mapping[str, Any], like: Mapping[str, torch.Tensor] = types.MappingProxyType({})
) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    flat = (each for name, value in kept.items() for each in _numbers(name, value, seen))
    return {name: _copied(value, like.get(name)) for name, value in flat}


def _in_a_checkpoint(module: torch.nn.Module) -> dict[str, Any]:
    """Return what Lightning's hook of the module adds to a checkpoint."""
    checkpoint: dict[str, Any] = {}
    if (hook := getattr(module, "on_save_checkpoint", None)) is not None:
        with contextlib.suppress(Exception):  # the user's, which expects more of a checkpoint
            hook(checkpoint)
    return checkpoint


def _numbers(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers that a value holds, with their names; each container once."""
    if isinstance(value, dict | list | tuple | deque):
        if id(value) in seen:
            return
        seen.add(id(value))
        for key, held in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(f"{name} {key}", held, seen)
    elif isinstance(value, torch.Tensor | float) or (
        # Not a seed of more than 64 bits.
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    ):
        yield name, value


def _copied(value: Any, like: torch.Tensor | None) -> torch.Tensor:
    value = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value
    flat = torch.as_tensor(value).detach().reshape(-1)
    if like is not None and (like.dtype, like.device) == (flat.dtype, flat.device):
        return like if same_bits(like, flat) else flat.clone()
    return flat.clone()


# --- Restore single objects of a training: tensors, containers, attributes, generators.

PutBack = Callable[[], object]
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
#: Types of values that only assignment to a name can change.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Types of values of which assignment to a name of a module or class is restored.
_ASSIGNED = (*_PLAIN, tuple, torch.Tensor, np.ndarray)


def set_atoms(held: Mapping[str, Any], owner: object) -> PutBack:
    """Return a function that restores the plain values and tensors of a module or a class.

    Args:
        held: the variables of the module or class.
        owner: the module or class.
    """
    plain = {n: v for n, v in held.items() if isinstance(v, _ASSIGNED) and not n.startswith("__")}

    def put_back() -> None:
        now = vars(owner)
        for name, value in plain.items():
            if now.get(name) is not value:
                setattr(owner, name, value)

    return put_back


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal; tensors with NaN are not."""
    alike = one.shape == other.shape and one.device == other.device
    return alike and bool(torch.equal(one, other))


def set_slot(item: object, name: str, value: object) -> None:
    """Restore a slot of an object."""
    if getattr(item, name, None) is not value:
        setattr(item, name, value)


def environment_state() -> PutBack:
    """Return what restores the environment variables."""
    held = dict(os.environ)

    def put() -> None:
        if os.environ != held:
            for name in os.environ.keys() - held.keys():
                del os.environ[name]
            os.environ.update(held)

    return put


def file_position(file: io.IOBase) -> PutBack:
    """Return what restores the place at which a file is read; one that is written stays."""
    try:
        place = file.tell() if file.seekable() and not file.writable() else None
    except (OSError, ValueError):  # closed, or read line by line
        place = None

    def put() -> None:
        if place is not None and not file.closed:
            file.seek(place)  # `tell` raises where lines are read one by one

    return put


def refill_dict(held: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Restore the items of a dictionary, in their order."""
    values_stay = len(held) == len(keys) and all(map(operator.is_, held.values(), values))
    if values_stay and all(map(operator.is_, held, keys)):
        return
    # Not the subclass's methods: `Counter.update` counts, and a user's class may do anything.
    base: Any = OrderedDict if isinstance(held, OrderedDict) else dict
    base.clear(held)
    for key, value in zip(keys, values, strict=True):
        base.__setitem__(held, key, value)


def refill(held: Any, items: list[Any]) -> None:
    """Restore the items of a container, unless it still has the same ones."""
    if len(held) == len(items) and all(map(operator.is_, held, items)):
        return
    held.clear()
    held.update(items) if isinstance(held, set) else held.extend(items)


class GlobalGenerators:
    """The generators of torch, numpy and Python, which all threads of a process share.

    They are restored only if no other thread has drawn from them: otherwise that thread would draw
    the same numbers again.
    """

    def __init__(self) -> None:
        #: Whether another thread has drawn.
        self.shared = False
        self._kept, self._numpy = self._states(), np.random.get_state()
        self._left: list[Any] | None = None

    #: Words of numpy's after the last seed.
    _fresh: Any = None

    @staticmethod
    def seed(number: int) -> None:
        """Seed all of them with ``number``."""
        # Not `torch.manual_seed`, which queues calls for absent devices.
        torch.default_generator.manual_seed(number)
        if uses_cuda():
            torch.cuda.manual_seed_all(number)
        np.random.seed(number % 2**32)
        GlobalGenerators._fresh = _numpy_words()
        random.seed(number)

    @classmethod
    def mark(cls) -> int:
        """Return their state, as one number."""
        numpy, *others = cls._states()
        # One of two normal numbers is drawn ahead, which the words do not show.
        drawn = numpy if numpy == cls._fresh else _numpy_mark(np.random.get_state())
        return hash((drawn, *others))

    @staticmethod
    def _states() -> list[Any]:
        torchs = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if uses_cuda() else [])]
        return [_numpy_words(), random.getstate(), *(t.numpy().tobytes() for t in torchs)]

    def look(self) -> None:
        """Check whether another thread has drawn since they were restored."""
        self.shared = self.shared or self._states() != self._kept

    def leave(self) -> None:
        """Mark the end of a replay's draws: later draws are another thread's."""
        self._left = self._states()

    def put_back(self) -> None:
        """Restore their first state, unless another thread has drawn."""
        left, self._left = self._left, None
        if left is not None:
            self.shared = self.shared or self._states() != left
        if self.shared:
            return
        _, python, own, *devices = self._kept
        torch.set_rng_state(_as_state(own))
        np.random.set_state(self._numpy)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all([_as_state(each) for each in devices])


def _as_state(words: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def _numpy_words() -> Any:
    """Return the words and the position of numpy's generator: its `get_state` costs 35 us."""
    bits = np.random.mtrand._rand._bit_generator
    if type(bits) is np.random.MT19937:
        return ctypes.string_at(bits.ctypes.state_address, 4 * 625)
    return _numpy_mark(np.random.get_state())


def _state_of(generator: Generator) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def generator_state(generator: Generator) -> PutBack:
    """Return a function that restores a generator's current state."""
    state = _state_of(generator)
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, state)
    if isinstance(generator, np.random.Generator):
        return functools.partial(setattr, generator.bit_generator, "state", state)
    return functools.partial(generator.set_state, state)


def seed_generator(generator: Generator, number: int) -> None:
    """Seed a generator with ``number``."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(number % 2**32)
    elif isinstance(generator, random.Random):
        generator.seed(number)
    else:
        bits = generator.bit_generator
        bits.state = type(bits)(number).state


def generator_mark(generator: Generator) -> int:
    """Return a generator's state, as one number."""
    state = _state_of(generator)
    if isinstance(generator, torch.Generator):
        return hash(state.numpy().tobytes())
    if isinstance(generator, np.random.RandomState):
        return _numpy_mark(state)
    return hash(state if isinstance(generator, random.Random) else repr(state))


def _numpy_mark(state: Any) -> int:
    kind, keys, *place = state
    return hash((kind, keys.tobytes(), *place))


def uses_cuda() -> bool:
    """Return whether this process has initialized CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


# --- The state that a training step may change, saved before a replay and restored after it.

#: Bytes for tensors that neither are parameters nor belong to one.
_BESIDE = 2**28

#: Bytes of a tensor or an array of a data set that a fork restores, and of all of them.
_SMALL, _ALL_SMALL = 2**20, 2**26

#: Largest lengths of a global container and of a container in it that are saved.
_LONG, _SHORT = 10_000, 100
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_NOT_FOLLOWED = (type, types.ModuleType, threading.Thread, io.IOBase, DataLoader, Sampler)
#: Packages whose objects are not saved; objects of the user's subclasses are.
_FOREIGN = (
    *("transformers.trainer", "transformers.integrations", "accelerate.", "datasets."),
    *(
        f"{lightning}.{part}"
        for lightning in ("pytorch_lightning", "lightning.pytorch")
        for part in ("trainer", "loggers", "strategies", "accelerators")
    ),
    *("pytorch_lightning.loops.fetchers", "lightning_fabric", "lightning.fabric"),
    *("lightning_audit", "logging"),
    # What a loop logs with, displays or draws.
    *("torch.utils.tensorboard", "tensorboard", "tensorboardX", "wandb", "mlflow", "neptune"),
    *("comet_ml", "clearml", "tqdm", "rich", "matplotlib"),
)
#: The selftest's trainings are saved like a user's.
_OWN_TRAININGS = "lightning_audit.testing"
#: Packages whose classes hold no state of the user's training.
_LIBRARIES = (
    *("torch", "pytorch_lightning", "lightning", "opacus", "builtins", "numpy", "abc", "typing"),
)


class CannotKeep(Exception):
    """A training's state cannot be saved; the message says why."""


def _follows(item: object) -> bool:
    """Return whether an iterator is that of a followed loader."""
    return type(item).__module__ == "lightning_audit.loops.events"


def _follows_within(item: object) -> bool:
    """Return whether a generator iterates a followed loader now: one that runs fetches from it."""
    if not isinstance(item, types.GeneratorType):
        return False
    return item.gi_running or any(map(_follows, gc.get_referents(item)))


class TrainingState:
    """The state of a training at one moment.

    Args:
        roots: the objects that a step may change: module, optimizers, schedulers, callbacks.
        not_followed: objects that are not saved.
        room: largest number of bytes for the copies; None for no limit.
        iterators: whether iterators are ignored; they keep their later position.
        forks: whether replays run in a fork, which may break generators over the loader, and leaves
            files where they are read.

    Raises:
        CannotKeep: the copies would need more memory, or the training holds an iterator.
    """

    _not_followed: tuple[type, ...] = (*_NOT_FOLLOWED, Dataset)

    def __init__(
        self,
        roots: Iterable[object],
        not_followed: Iterable[object] = (),
        room: int | None = None,
        *,
        iterators: bool = False,
        forks: bool = False,
    ) -> None:
        #: What could not be restored, as text.
        self.lost: list[str] = []
        #: The training's own generators, in the order in which they were found.
        self.generators: list[Generator] = []
        self._room, self._iterators, self._forks = room, iterators, forks
        self._known: dict[int, object] = {id(each): each for each in not_followed}
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._leaves: list[torch.Tensor] = []
        #: Generators that other threads may draw from, and the entropy of a replay.
        self.shared, self.entropy = GlobalGenerators(), OwnEntropy()
        #: The former as they were when the state was saved.
        self.numbers = self.shared
        self._draws = CountedDraws(self.generators)
        self._back: list[PutBack] = [environment_state()]
        todo: deque[object] = deque(roots)
        while todo:
            todo.extend(self._keep(todo.popleft()))

    def put_back(self) -> None:
        """Restore the saved state; may be called many times."""
        for leaf in self._leaves:
            if not leaf.is_leaf:  # inputs with gradients were added to it
                leaf.detach_()
        with torch.no_grad():
            for tensor, value in self._tensors:
                if tensor.shape != value.shape:  # so have all tensors that share its memory
                    self._lose("a tensor has another shape now")
                elif not same_bits(tensor, value):
                    tensor.copy_(value)
        failed: Exception | None = None
        for put in self._back:
            try:
                put()
            except Exception as error:
                if raised_in_audit(error) and not isinstance(error, AttributeError | TypeError):
                    failed = error
                    attempt(put)
                else:  # an attribute that cannot be set
                    self._lose(f"{type(error).__name__}")
        self.shared.put_back()
        if failed is not None:
            raise failed

    def _lose(self, what: str) -> None:
        if what not in self.lost:
            self.lost.append(what)

    def seed(self, number: int) -> None:
        """Seed every generator, including the training's own, with ``number``."""
        self._draws.reset()
        self.shared.seed(number)
        self.entropy.seed(number + 15_485_863)
        self.seed_own(number)

    def seed_own(self, number: int) -> None:
        """Seed the generators that were found, with numbers of their own."""
        for place, generator in enumerate(self.generators, start=1):
            seed_generator(generator, number + 7919 * place)

    def mark(self) -> int:
        """Return the state of all generators as one number; equal after equally many draws."""
        return hash((self.shared.mark(), self.entropy.mark, self._draws.mark, *self.own_marks()))

    def own_marks(self) -> list[int]:
        """Return the state of each of the generators that were found."""
        return [generator_mark(each) for each in self.generators]

    def counting(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which draws are counted, if a generator does not show how many."""
        devices = {tensor.device for tensor, _ in self._tensors}
        return self._draws if any(map(is_coarse, devices)) else contextlib.nullcontext()

    # ------------------------------------------------------------------ one object

    def _keep(self, item: object) -> Iterator[object]:
        """Save an object, and yield the objects to save with it."""
        if isinstance(item, _ATOMS) or id(item) in self._known:
            return
        self._known[id(item)] = item  # held, so that its id is not reused
        match item:
            case torch.Tensor():
                yield from self._keep_tensor(item)
            case random.SystemRandom():
                """It has no state; `OwnEntropy` replaces its entropy in a replay."""
            case _ if isinstance(item, Generator):
                self.generators.append(item)
                self._back.append(generator_state(item))
            case io.IOBase():
                if not self._forks:  # whose file moves with that of the training
                    self._back.append(file_position(item))
            case Iterator() if not isinstance(item, weakref.ProxyTypes):
                if self._iterators or _follows(item) or (self._forks and _follows_within(item)):
                    return  # which no replay asks: it would fetch another batch
                raise CannotKeep(
                    f"the training holds an iterator ({type(item).__name__}), which cannot be "
                    "restored; hold its iterable and an index instead"
                )
            case np.ndarray():
                self._keep_array(item)
            case dict() | list() | set() | deque():
                yield from self._keep_container(item)
            case tuple() | frozenset():
                yield from item
            case functools.partial():
                yield from (item.func, *item.args, *item.keywords.values())
            case types.MethodType():
                yield from (item.__self__, item.__func__)
            case types.FunctionType():
                if not _is_foreign(item.__module__ or ""):
                    yield from self._keep_cells(item.__closure__ or ())
            case _ if not isinstance(item, self._not_followed) and not _is_foreign(
                type(item).__module__
            ):
                yield from self._keep_object(item)

    def _keep_tensor(self, tensor: torch.Tensor) -> Iterator[object]:
        if tensor.is_inference() or tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        if getattr(tensor, "_processed", False):
            # Per-sample gradients that Opacus has clipped and does not use again: they are large,
            # and nothing writes into them.
            return
        self._take_room(tensor.numel() * tensor.element_size())
        self._tensors.append((tensor, tensor.detach().clone()))
        if tensor.is_leaf:
            self._leaves.append(tensor)
            self._back.append(functools.partial(set_slot, tensor, "grad", tensor.grad))
            yield tensor.grad
        yield from self._keep_attributes(tensor)

    def _take_room(self, size: int) -> None:
        if self._room is None:
            return
        self._room -= size
        if self._room < 0:
            raise CannotKeep(
                "the state of the training does not fit into memory a second time, or holds more "
                "than parameters, gradients and optimizer states; keep data in a Dataset"
            )

    def _keep_array(self, array: np.ndarray) -> None:
        if not array.flags.writeable:
            return
        self._take_room(array.nbytes)
        self._back.append(functools.partial(np.copyto, array, array.copy()))

    def _keep_container(self, held: Any) -> Iterator[object]:
        items = list(held.values() if isinstance(held, dict) else held)
        if isinstance(held, dict):
            self._back.append(functools.partial(refill_dict, held, list(held), items))
        else:
            self._back.append(functools.partial(refill, held, items))
        yield from items

    def _keep_cells(self, cells: tuple[types.CellType, ...]) -> Iterator[object]:
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._back.append(functools.partial(setattr, cell, "cell_contents", value))
            yield value

    def _keep_object(self, item: object) -> Iterator[object]:
        yield from self._keep_attributes(item)
        for kind in type(item).__mro__:
            if kind.__module__.partition(".")[0] not in _LIBRARIES:
                # A user's object changes containers of its class in place.
                yield from (v for v in vars(kind).values() if isinstance(v, dict | list | set))
                self._back.append(set_atoms(dict(vars(kind)), kind))
                yield from self._keep_globals(sys.modules.get(kind.__module__))
                for name in vars(kind).get("__slots__", ()):
                    if isinstance(name, str) and hasattr(item, name):
                        value = getattr(item, name)
                        self._back.append(functools.partial(set_slot, item, name, value))
                        yield value

    def _keep_globals(self, module: types.ModuleType | None) -> Iterator[object]:
        """Save the variables of the user's module that its code may change."""
        where = getattr(module, "__file__", None) or ""
        if module is None or id(module) in self._known or "site-packages" in where:
            return
        self._known[id(module)] = module
        held = {n: v for n, v in vars(module).items() if not n.startswith("__")}
        self._back.append(set_atoms(held, module))
        for value in held.values():
            if isinstance(value, Generator):
                yield value
            elif isinstance(value, dict | list | set | deque) and len(value) <= _LONG:
                for inner in self._keep_container(value):
                    if isinstance(inner, dict | list | set | deque) and len(inner) <= _SHORT:
                        for _ in self._keep_container(inner):
                            """Not followed any further: these may be the whole data set."""

    def _keep_attributes(self, item: object) -> Iterator[object]:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            yield from self._keep_container(attributes)


class DataState(TrainingState):
    """The state of a data set and of its collate function: generators, counters, running means.

    Args:
        roots: data set and collate function.
        copied: whether large tensors and arrays are restored as well; not needed in a fork.

    Raises:
        CannotKeep: their copies would take more than 256 MiB, or they cannot be restored.
    """

    _not_followed = _NOT_FOLLOWED

    def __init__(self, roots: Iterable[object], *, copied: bool) -> None:
        self._copied, self._small = copied, _ALL_SMALL
        super().__init__(roots, room=_BESIDE, iterators=not copied, forks=not copied)

    def _fits(self, size: int) -> bool:
        small = size <= min(_SMALL, self._small)
        self._small -= size * small
        return small or self._copied

    def _keep(self, item: object) -> Iterator[object]:
        yield from super()._keep(item)
        if isinstance(item, types.FunctionType):  # it may hold the last batch
            yield from self._keep_attributes(item)
            yield from (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
            yield from self._keep_globals(sys.modules.get(item.__module__))

    def _keep_globals(self, module: types.ModuleType | None) -> Iterator[object]:
        new = id(module) not in self._known
        yield from super()._keep_globals(module)
        for value in list(vars(module).values()) if new and id(module) in self._known else ():
            short = isinstance(value, dict | list | tuple) and len(value) <= _SHORT
            if short or (isinstance(value, torch.Tensor | np.ndarray) and value.nbytes <= _SMALL):
                yield value

    def _keep_tensor(self, tensor: torch.Tensor) -> Iterator[object]:
        if self._fits(tensor.nbytes):
            yield from super()._keep_tensor(tensor)

    def _keep_array(self, array: np.ndarray) -> None:
        if self._fits(array.nbytes):
            super()._keep_array(array)

    def _keep_container(self, held: Any) -> Iterator[object]:
        values = list(super()._keep_container(held))
        if len(values) <= _LONG:
            yield from values
        elif self._copied and not all(
            isinstance(leaf, _ATOMS) for leaf in _pytree.tree_leaves(values[:1])
        ):
            raise CannotKeep(f"it holds more than {_LONG:,} objects in one container")


def room_for(
    params: Iterable[torch.nn.Parameter], optimizers: Iterable[Any], share: int = 2
) -> int:
    """Return the largest number of bytes for the copy of a training's state.

    Enough for parameters, one batch's gradients and optimizer states, plus 256 MiB; at most a share
    of a GPU's free memory.

    Args:
        params: of the module.
        optimizers: of the training.
        share: one part in how many of the free memory.
    """
    params = list(params)
    tensors: list[Any] = [*params, *(p.grad for p in params)]
    for p in params:
        own = [getattr(p, name, None) for name in ("grad_sample", "summed_grad")]
        tensors += [each for o in own for each in (o if isinstance(o, list) else [o])]
    tensors += [held for o in optimizers for state in o.state.values() for held in _values(state)]
    wanted = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    devices = {p.device for p in params if p.device.type == "cuda"}
    return min([wanted + _BESIDE, *(free_memory(device) // share for device in devices)])


def _values(state: Any) -> list[Any]:
    return list(state.values()) if isinstance(state, dict) else []


def _is_foreign(module: str) -> bool:
    return module.startswith(_FOREIGN) and not module.startswith(_OWN_TRAININGS)
