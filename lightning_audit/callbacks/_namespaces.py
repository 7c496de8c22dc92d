"""One callback for both packages of Lightning.

`pytorch_lightning` and `lightning.pytorch` contain the same code, but their classes are unrelated:
a LightningCLI accepts callbacks of its own package only, and users catch that package's exceptions.
The classes in this module are subclasses of those in every installed package.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

from lightning_audit.files import with_extra
from lightning_audit.hooks.boundary import entry
from lightning_audit.results.audit_report import UnauditableTraining

_Args = ParamSpec("_Args")
_Value = TypeVar("_Value")
_Run = TypeVar("_Run")

_PACKAGES = (
    ("pytorch_lightning", "lightning_fabric"),
    ("lightning.pytorch", "lightning.fabric"),
)


def _installed() -> list[tuple[str, str]]:
    """Return the packages that can be imported, as (Trainer's, Fabric's)."""
    found = []
    for trainers, fabric in _PACKAGES:
        try:
            import_module(trainers)
        except ImportError:  # a user who trains with this package gets the error from their import
            continue
        found.append((trainers, fabric))
    if not found:
        raise ImportError(
            "PrivacyAudit needs PyTorch Lightning, which is not installed: "
            f"{with_extra('lightning')}. lightning_audit.attach audits a loop without it."
        )
    return found


if TYPE_CHECKING:
    from lightning_fabric.utilities.exceptions import (
        MisconfigurationException as MisconfigurationException,
    )
    from pytorch_lightning import Callback as Callback
    from pytorch_lightning.utilities.seed import isolate_rng as isolate_rng
else:
    _INSTALLED = _installed()

    # The code is the same in both packages and acts on the process.
    isolate_rng = import_module(f"{_INSTALLED[0][0]}.utilities.seed").isolate_rng

    class Callback(*(import_module(trainers).Callback for trainers, _ in _INSTALLED)):
        """A callback of every installed Lightning package."""

    class MisconfigurationException(
        *(
            import_module(f"{fabric}.utilities.exceptions").MisconfigurationException
            for _, fabric in _INSTALLED
        )
    ):
        """The `MisconfigurationException` of every installed Lightning package."""


#: Guards against two threads that give one callback to their Trainers at the same time.
_TAKING = threading.Lock()


class OneFit(Callback):
    """A callback that serves one fit at a time, and whose copies keep no reference to that fit."""

    def __init__(self) -> None:
        super().__init__()
        self._trainer: ref[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without Trainer and Lightning's additions."""
        # ``log`` and ``log_dict`` are bound methods of the module: a copy would contain the module.
        held = {name: v for name, v in vars(self).items() if name not in ("log", "log_dict")}
        return held | {"_trainer": None}

    def _take(self, trainer: Any) -> None:
        """Bind this callback to a Trainer whose fit is about to begin.

        Raises:
            MisconfigurationException: another Trainer is fitting with this callback.
        """
        with _TAKING:
            other = self._trainer() if self._trainer is not None else None
            # A fit that broke off without a teardown is not running.
            if other is not None and other is not trainer and _fits(other):
                name = type(self).__name__
                raise MisconfigurationException(
                    f"this {name} is in use by another Trainer whose fit is still running; give "
                    f"each Trainer its own {name}, for example copy.deepcopy() of this one."
                )
            self._trainer = ref(trainer)

    def _serves(self, trainer: Any) -> bool:
        """Return whether the callback is bound to this Trainer."""
        return self._trainer is not None and self._trainer() is trainer


def _fits(trainer: Any) -> bool:
    # Compares values, because each of Lightning's two packages has its own enumerations.
    return bool(trainer.state.fn == "fit" and trainer.state.status == "running")


def refused_as_lightning_does(hook: Callable[_Args, _Value]) -> Callable[_Args, _Value]:
    """Wrap a hook so that `UnauditableTraining` becomes `MisconfigurationException`."""

    @functools.wraps(hook)
    def translated(*args: _Args.args, **kwargs: _Args.kwargs) -> _Value:
        try:
            return hook(*args, **kwargs)
        except UnauditableTraining as error:
            raise MisconfigurationException(str(error)) from error

    return translated


def guarded(
    otherwise: Callable[..., Any], *, begins: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap a callback's hook so that failures of the audit stay inside it; see `hooks.boundary`.

    Args:
        otherwise: called instead of the hook once the audit has failed, with the hook's arguments.
        begins: whether the hook begins a training.
    """
    translated = refused_as_lightning_does
    return lambda hook: entry(translated(hook), otherwise, _boundary_of, begins=begins)


def _boundary_of(callback: Any) -> Any:
    if not isinstance(callback, OneFit):  # called by its class
        raise MisconfigurationException(
            "Trainer(callbacks=[...]) has the class PrivacyAudit; make one: PrivacyAudit()."
        )
    return callback._boundary  # type: ignore[attr-defined]


def of_its_run(
    otherwise: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Wrap a hook like `guarded`, and pass it the callback's run; without a run it does nothing.

    It also does nothing for a Trainer that `_take` refused: Lightning calls its hooks all the same.
    """

    def instead(callback: Any, /, *args: Any, **kwargs: Any) -> None:
        if callback._serves(args[0]):
            otherwise(callback, *args, **kwargs)

    def with_run(hook: Callable[Concatenate[Any, _Run, _Args], None]) -> Callable[..., None]:
        @functools.wraps(hook)
        def called(callback: Any, /, *args: _Args.args, **kwargs: _Args.kwargs) -> None:
            if callback._run is not None and callback._serves(args[0]):
                hook(callback, callback._run, *args, **kwargs)

        return guarded(instead)(called)

    return with_run
