"""One callback for both packages of Lightning.

`pytorch_lightning` and `lightning.pytorch` hold the same code twice, and a class of the one is
none of the other: a LightningCLI accepts the callbacks of its own package only, and a user catches
the exceptions of that package. What is defined here belongs to each package that is installed.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.taps.boundary import entry

_Args = ParamSpec("_Args")
_Value = TypeVar("_Value")
_Run = TypeVar("_Run")

_PACKAGES = (
    ("pytorch_lightning", "lightning_fabric"),
    ("lightning.pytorch", "lightning.fabric"),
)


def _installed() -> list[tuple[str, str]]:
    """The packages that can be imported, as (Trainer's, Fabric's)."""
    found = []
    for trainers, fabric in _PACKAGES:
        try:
            import_module(trainers)
        except ImportError:  # whoever trains with it will see this error of its own import
            continue
        found.append((trainers, fabric))
    if not found:
        raise ModuleNotFoundError(
            "PrivacyAudit needs PyTorch Lightning; pip install pytorch-lightning, or lightning."
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

    # The same code in each of them, about the process and not about a package.
    isolate_rng = import_module(f"{_INSTALLED[0][0]}.utilities.seed").isolate_rng

    class Callback(*(import_module(trainers).Callback for trainers, _ in _INSTALLED)):
        """A callback of every Lightning package that is installed."""

    class MisconfigurationException(
        *(
            import_module(f"{fabric}.utilities.exceptions").MisconfigurationException
            for _, fabric in _INSTALLED
        )
    ):
        """The `MisconfigurationException` of every Lightning package that is installed."""


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


def refused_as_lightning_does(hook: Callable[_Args, _Value]) -> Callable[_Args, _Value]:
    """A hook that raises `MisconfigurationException` where a training cannot be audited."""

    @functools.wraps(hook)
    def translated(*args: _Args.args, **kwargs: _Args.kwargs) -> _Value:
        try:
            return hook(*args, **kwargs)
        except UnauditableTraining as error:
            raise MisconfigurationException(str(error)) from error

    return translated


def guarded(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook of a callback that keeps the audit's own failures to itself, see `taps.boundary`.

    Args:
        otherwise: called in its place once the audit has failed, with the hook's arguments.
    """
    of = operator.attrgetter("_boundary")
    return lambda hook: entry(refused_as_lightning_does(hook), otherwise, of)


def of_its_run(
    otherwise: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A `guarded` hook that gets the callback's run, where there is one.

    A Trainer that was refused the callback, since another one is fitting with it, calls its hooks
    nevertheless: they do nothing.
    """

    def instead(callback: Any, /, *args: Any, **kwargs: Any) -> None:
        if callback.serves(args[0]):
            otherwise(callback, *args, **kwargs)

    def with_run(hook: Callable[Concatenate[Any, _Run, _Args], None]) -> Callable[..., None]:
        @functools.wraps(hook)
        def called(callback: Any, /, *args: _Args.args, **kwargs: _Args.kwargs) -> None:
            if callback._run is not None and callback.serves(args[0]):
                hook(callback, callback._run, *args, **kwargs)

        return guarded(instead)(called)

    return with_run
