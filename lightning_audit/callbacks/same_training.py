"""Whether `Trainer.fit` goes on with the training whose audit a callback holds.

A Trainer that fits again goes on counting its steps and epochs, with the weights that the module
has by then; Lightning tells callbacks nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref


@dataclass(frozen=True)
class _End:
    """Where a Trainer stood when it let go of an audit."""

    run: str
    step: int
    module: ref[Any]


#: Not kept by the callback, which is to be copied and pickled without its Trainer.
_ends: WeakKeyDictionary[Any, _End] = WeakKeyDictionary()


def note_end(trainer: Any, module: Any, state: Mapping[str, Any]) -> None:
    """Note where a Trainer stands when it lets go of the audit of a module.

    The audit's state is empty if it began with nothing.
    """
    _ends.pop(trainer, None)
    if state:
        _ends[trainer] = _End(state["run"], trainer.global_step, ref(module))


def goes_on(trainer: Any, module: Any, state: Mapping[str, Any]) -> bool:
    """Whether a Trainer goes on where it let go of the audit that has this state."""
    end = _ends.get(trainer)
    return (
        end is not None
        and end.run == state.get("run")
        and 0 < end.step == trainer.global_step
        and end.module() is module
    )
