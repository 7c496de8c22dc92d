"""Sends a training to other processes, functions of the user's script by value."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work


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


def installed(name: str) -> Any:
    """Return a package that only some engines need.

    Raises:
        BadArgument: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArgument(
            f"{name} is not installed, and trainings in other processes need it; pip install "
            "'lightning-audit[many]', or give engine=ThisProcess()."
        ) from error
