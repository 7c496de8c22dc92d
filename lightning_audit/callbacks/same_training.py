"""The one fit that a callback is part of, and whether a later fit continues its training.

A Trainer that fits again continues counting its steps and epochs, with the weights that the module
has by then; Lightning calls no hook that says so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from lightning_audit.callbacks._namespaces import Callback, MisconfigurationException

#: Two threads may give a callback to their Trainers at the same time.
_TAKING = threading.Lock()


class OneFit(Callback):
    """A callback that is part of one fit at a time, and whose copies hold nothing of that fit."""

    def __init__(self) -> None:
        super().__init__()
        self._trainer: ref[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: all but the Trainer, and what Lightning puts here."""
        # The module's own methods: with them a copy would hold the module.
        held = {name: v for name, v in vars(self).items() if name not in ("log", "log_dict")}
        return held | {"_trainer": None}

    def take(self, trainer: Any) -> None:
        """Become part of a Trainer's fit, which is about to begin.

        Raises:
            MisconfigurationException: the fit of another Trainer, with this callback, is running.
        """
        with _TAKING:
            other = self._trainer() if self._trainer is not None else None
            # One that was broken off without a teardown is running no more.
            if other is not None and other is not trainer and _fits(other):
                name = type(self).__name__
                raise MisconfigurationException(
                    f"this {name} is in use by another Trainer whose fit is still running; give "
                    f"each Trainer its own {name}, for example copy.deepcopy() of this one."
                )
            self._trainer = ref(trainer)

    def serves(self, trainer: Any) -> bool:
        """Whether this is the Trainer whose fit the callback is part of."""
        return self._trainer is not None and self._trainer() is trainer


def _fits(trainer: Any) -> bool:
    # By their values, since each of Lightning's two packages has enumerations of its own.
    return bool(trainer.state.fn == "fit" and trainer.state.status == "running")


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
