"""What a replay must know of the device on which a training runs.

Kernels of an accelerator may add in any order, its generators show their position only in blocks,
its backward pass runs in threads of its own, and its memory may be full. None of this is a fault of
a training, and none may end its audit.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_audit.checks.replay_findings import Reason
from lightning_audit.hooks.boundary import users_frame

_log = logging.getLogger(__name__)

# --- Kernels that give the same bits each time.

#: torch's warnings of an operation without such a kernel.
_UNSTEADY = re.compile(
    r"(\S+) does not have a deterministic implementation|(.+) defaults to a non-deterministic"
)
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG=:4096:8"


class SteadyKernels:
    """Context in which torch chooses deterministic kernels; its choice is restored after.

    An operation without a deterministic kernel runs as it is, and is noted. cuBLAS reads its
    setting when a handle is made, so that matrix products in several streams may still differ.
    """

    def __init__(self) -> None:
        #: What has no deterministic kernel, as text.
        self.lacking: list[str] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Enter the context."""
        cudnn: Any = torch.backends.cudnn
        cuda: Any = torch.backends.cuda
        mkldnn: Any = torch.backends.mkldnn
        memory: Any = torch.utils.deterministic
        strict = torch.are_deterministic_algorithms_enabled()
        lenient = torch.is_deterministic_algorithms_warn_only_enabled()
        flags = cudnn.benchmark, cudnn.deterministic, mkldnn.deterministic
        filled = memory.fill_uninitialized_memory
        fused = [
            n for n in ("flash", "mem_efficient", "cudnn") if hasattr(cuda, f"{n}_sdp_enabled")
        ]
        attention = {name: getattr(cuda, f"{name}_sdp_enabled")() for name in fused}

        def choose(*, deterministic: bool, lenient: bool, attention: Mapping[str, bool]) -> None:
            # Not `use_deterministic_algorithms`, which sets options of torch.compile, too.
            torch._C._set_deterministic_algorithms(deterministic, warn_only=lenient)
            for name, enabled in attention.items():
                getattr(cuda, f"enable_{name}_sdp")(enabled)

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self._note
            try:
                # A training that demands them keeps its errors.
                none = dict.fromkeys(fused, False)
                choose(deterministic=True, lenient=lenient or not strict, attention=none)
                memory.fill_uninitialized_memory = False
                cudnn.benchmark, cudnn.deterministic = False, True
                yield
            finally:
                choose(deterministic=strict, lenient=lenient, attention=attention)
                memory.fill_uninitialized_memory = filled
                cudnn.benchmark, cudnn.deterministic, mkldnn.deterministic = flags

    def _note(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Note an operation, at the user's line that runs it: a backward pass has none in torch."""
        if (frame := users_frame()) is not None:
            filename, lineno = frame.f_code.co_filename, frame.f_lineno
        if found := _UNSTEADY.search(str(message)):
            place = f"{Path(filename).name}:{lineno}"
            lacking = f"{found[1] or found[2]} at {place} has no deterministic kernel"
        elif "CuBLAS" in str(message):
            lacking = f"matrix products need the environment variable {_CUBLAS}"
        else:
            return
        if lacking not in self.lacking:
            self.lacking.append(lacking)


# --- How many random numbers are drawn.


class CountedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that counts the numbers that torch draws, on any device and in any thread.

    The state of a CUDA generator is the same after one number as after a million. Autograd hands
    the context on to its own threads.

    Args:
        known: the training's own generators; draws from others, as the audit's, do not count.
    """

    def __init__(self, known: Sequence[object] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = known
        self.reset()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: code that torch compiles stays compiled within this context."""
        return True

    def reset(self) -> None:
        """Begin to count: the generators were seeded."""
        #: A hash of the operations and of their counts, in their order.
        self.mark = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count its numbers."""
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and _drops(func, args, kwargs or {}):
            own = (kwargs or {}).get("generator")
            if own is None or any(own is each for each in self._known):
                first = made[0] if isinstance(made, tuple | list) else made
                count = first.numel() if isinstance(first, torch.Tensor) else 1
                self.mark = hash((self.mark, func.name(), count))
        return made


def _drops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return False for an operation, such as attention, whose dropout is 0."""
    given = {each.name: each.default_value for each in func._schema.arguments}
    given |= {**dict(zip(given, args, strict=False)), **kwargs}
    return all(given.get(name) != 0.0 for name in ("dropout_p", "dropout"))


def is_coarse(device: torch.device) -> bool:
    """Return whether generators of a device do not show how many numbers they drew."""
    return device.type != "cpu"


# --- Threads of the backward pass.


def in_autograds_thread() -> bool:
    """Return whether this code, in a replay, runs in a thread of torch's backward passes."""
    return isinstance(threading.current_thread(), threading._DummyThread)


# --- Time that replays take.


def clock() -> float:
    """Return seconds: this thread's CPU time, or the time until a CUDA device is done."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()


# --- Memory that is left, or full.


#: Most memory of a CUDA device over what the training takes.
_OVER_ITS_PEAK = 1.2
#: Most bytes of a CUDA device that trainings took, and that this process took when a step had been
#: replayed: less than that may be the replays' alone.
_PEAKS = dict[torch.device, tuple[int, int]]()


class Room:
    """The memory of a device that a replay may take: half of what is free.

    On CUDA the process may have 1.2 times what the training took at most.

    Args:
        device: of the training, before a step of it is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, 0
        if device.type == "cuda":
            most, (own, replayed) = self._most(), _PEAKS.get(device, (0, 0))
            self._peak = most if most > replayed else own

    def _most(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def bytes(self) -> int:
        """Return the bytes that are left."""
        free = free_memory(self._device)
        if self._device.type != "cuda":
            return free // 2
        left = int(_OVER_ITS_PEAK * self._peak) - torch.cuda.memory_allocated(self._device)
        return max(min(free, left), 0)

    def leave(self) -> None:
        """Note what the process took, after the last replay."""
        if self._device.type == "cuda":
            _PEAKS[self._device] = self._peak, self._most()


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device, with those that torch caches; 2**62 if unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    if device.type == "cpu" and (meminfo := Path("/proc/meminfo")).exists():
        found = re.search(r"MemAvailable: *(\d+) kB", meminfo.read_text())
        return int(found[1]) * 1024 if found else 2**62
    return 2**62


_FULL = re.compile(r"t allocate memory|backend out of memory|error: out of memory|ALLOC_FAILED")


def no_room(error: BaseException) -> str:
    """Return why a replay does not fit into memory, or empty: the exception is another one.

    The amount is logged only: it depends on the number of the batch's records.
    """
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not full and not (isinstance(error, RuntimeError) and _FULL.search(str(error))):
        return ""
    found = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
    _log.warning("a replay needs %s more memory than is free", found[1] if found else "some")
    return Reason.NO_ROOM
