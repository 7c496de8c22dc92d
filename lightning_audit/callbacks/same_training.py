"""Whether a later fit continues the training of an earlier one.

A Trainer that fits again continues counting its steps and epochs, with the module's current
weights. Lightning has no hook that reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref


@dataclass(frozen=True)
class _End:
    """Trainer position at the end of its last fit with an audit."""

    state: str
    step: int
    module: ref[Any]


#: Kept outside of the callback, which must be copied and pickled without its Trainer.
_ends: WeakKeyDictionary[Any, _End] = WeakKeyDictionary()


def note_end(trainer: Any, module: Any, state: Mapping[str, Any]) -> None:
    """Record a Trainer's position at the end of a fit.

    Args:
        trainer: the Trainer whose fit ends.
        module: the trained module.
        state: the audit's checkpoint state at the end; empty if no step was audited.
    """
    _ends.pop(trainer, None)
    if state:
        _ends[trainer] = _End(state["checksum"], trainer.global_step, ref(module))


def goes_on(trainer: Any, module: Any, state: Mapping[str, Any]) -> bool:
    """Return whether a Trainer continues from the end of the fit that this audit state is from.

    A copy of the callback from the middle of that fit has an earlier state: False.
    """
    end = _ends.get(trainer)
    return (
        end is not None
        and end.state == state.get("checksum")
        and 0 < end.step == trainer.global_step
        and end.module() is module
    )
