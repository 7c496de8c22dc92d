"""Whether a later fit continues the training of an earlier one.

A Trainer that fits again continues counting its steps and epochs, with the weights that the module
has by then; Lightning calls no hook that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref


@dataclass(frozen=True)
class _End:
    """Where a Trainer was when its fit with an audit ended."""

    state: str
    step: int
    module: ref[Any]


#: Not kept by the callback, which is to be copied and pickled without its Trainer.
_ends: WeakKeyDictionary[Any, _End] = WeakKeyDictionary()


def note_end(trainer: Any, module: Any, state: Mapping[str, Any]) -> None:
    """Note where a Trainer is when its fit of a module ends.

    Args:
        trainer: whose fit ends.
        module: that was trained.
        state: of the audit at the end, as a checkpoint holds it; empty if no step was audited.
    """
    _ends.pop(trainer, None)
    if state:
        _ends[trainer] = _End(state["checksum"], trainer.global_step, ref(module))


def goes_on(trainer: Any, module: Any, state: Mapping[str, Any]) -> bool:
    """Whether a Trainer continues where its fit ended with an audit of this very state.

    A copy of the callback from the middle of that fit has an earlier state, and does not continue.
    """
    end = _ends.get(trainer)
    return (
        end is not None
        and end.state == state.get("checksum")
        and 0 < end.step == trainer.global_step
        and end.module() is module
    )
