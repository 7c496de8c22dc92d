"""Sends a training to other processes, and runs it there."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import sys
from concurrent.futures import Future, InvalidStateError
from typing import Any

from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work

#: Libraries that a worker imports before its first training, so that no limit counts them.
IMPORTS = ("torch", "opacus")
_works: dict[str, Work] = {}


class Unpicklable(BadArgument):
    """A function, data set or score that cannot be sent to another process."""


def packed(work: Work) -> bytes:
    """Return the training as bytes, functions of the user's script by value.

    Raises:
        BadArgument: if cloudpickle is not installed.
        Unpicklable: if a part cannot be pickled; the message names it.
    """
    cloudpickle = installed("cloudpickle")
    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        parts = {"train": work.train, "dataset": work.worlds, "score": work.score}
        names = [name for name, part in parts.items() if not _picklable(cloudpickle, part)]
        raise Unpicklable(
            f"{' and '.join(names) or 'the training'} cannot be sent to another process "
            f"({type(error).__name__}: {shown(str(error))}); open files, connections and "
            "generators inside train, or give engine=ThisProcess()."
        ) from error


def _picklable(cloudpickle: Any, part: Any) -> bool:
    try:
        cloudpickle.dumps(part)
    except Exception:
        return False
    return True


def run_packed(work: bytes, block: Block) -> list[Outcome]:
    """Run a block in a process of an executor."""
    loaded: Work = pickle.loads(work)
    return loaded.run(block)


def prepare(key: str, work: bytes, imports: tuple[str, ...]) -> None:
    """Load the training in a worker once, with one thread, before any limit counts."""
    if key in _works:
        return
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _works[key] = pickle.loads(work)


def run_prepared(key: str, block: Block) -> list[Outcome]:
    """Run a block of the training that `prepare` loaded under this key."""
    return _works[key].run(block)


def settle(future: Future[Any], value: Any) -> None:
    """Give a future its result or exception, unless it has one."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


def installed(name: str, extra: str = "many") -> Any:
    """Return a package that only some engines need.

    Raises:
        BadArgument: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArgument(
            f"{name} is not installed, and trainings in other processes need it; pip install "
            f"'lightning-audit[{extra}]', or give engine=ThisProcess()."
        ) from error
