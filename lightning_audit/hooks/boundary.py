"""The boundary between audit and training: keeps the audit's internal errors out of the training.

Torch, Opacus, Lightning and the user's code call the audit through `entry` (code of the audit only)
or `around` (before and after a call of the user's). An internal error of the audit detaches it from
the training: its changes are undone, the log reports what failed and where, and from then on each
entry calls ``otherwise``, by default nothing. These exceptions pass: those of the user's call,
deliberate ones of the audit (refusals, verdicts, bad arguments), KeyboardInterrupt and SystemExit,
the latter two after the training's state was restored.

An entry belongs to the boundary that was current when the entry was created. Without one, all
exceptions pass. Only functions of this module are called from outside, and they call code of the
package only inside a ``try``.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from lightning_audit._validate import BadArgument, end_at_user

# --- Measures the time that the audit's own code takes within a training.


class OwnTime:
    """Seconds spent in the audit's hooks, over all trainings of this process."""

    def __init__(self) -> None:
        #: Seconds in hooks that have returned.
        self.seconds = 0.0
        #: Start time of the running hook; None if none runs.
        self.since: float | None = None

    def now(self) -> float:
        """Return the seconds so far, including the running hook."""
        return self.seconds + (0.0 if self.since is None else time.perf_counter() - self.since)


#: The hooks add to it. Trainings in several threads share it, so that each reports the sum.
OWN_TIME = OwnTime()


class RunTime:
    """Run time of a training since this object was created, and the audit's part of it."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), OWN_TIME.now()

    def cost(self) -> dict[str, float]:
        """Return the audit's time ("seconds"), and its ratio to all other time ("share").

        The cost of the canaries' rows in the optimizer's clipping and sums is not included;
        `benchmarks/whole_runs.py` measures it from outside.
        """
        own = OWN_TIME.now() - self._before
        other = time.perf_counter() - self._began - own
        return {"seconds": own, "share": own / other if other > 0.0 else 0.0}


# --- Whose code runs.

#: Packages whose frames are not the user's.
_LIBRARIES = {*sys.stdlib_module_names, "torch", "opacus", "tqdm", "lightning_audit"}
_LIBRARIES |= {"lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "transformers"}
#: The selftest's trainings are a user's.
_TRAININGS = "lightning_audit.testing"


def users_frame(frame: Any = None) -> Any:
    """Return the innermost frame of the user's code, or from a frame on; None if there is none."""
    for each, _ in traceback.walk_stack(frame or sys._getframe(1)):
        name = str(each.f_globals.get("__name__", ""))
        if name.startswith(_TRAININGS) or name.partition(".")[0] not in _LIBRARIES:
            return each
    return None


# --- The boundary: keeps the audit's internal errors out of the training.

_log = logging.getLogger(__name__)
_PACKAGE = "lightning_audit"

Call = Callable[..., Any]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class FailedElsewhere(Exception):
    """The audit failed in another process; the arguments are those of `where` there."""


class StepRefused(StopIteration):
    """A step is refused; ends Lightning's loop over batches, as a hook's -1 does."""


class Boundary:
    """Keeps one audit's internal errors out of its training.

    Args:
        passes: deliberate exceptions of the audit, in addition to `BadArgument`.
    """

    def __init__(self, *passes: type[BaseException]) -> None:
        self._passes: tuple[type[BaseException], ...] = (BadArgument, *passes)
        #: The first failure, "<type> in <module>.<function>", and its line; empty if none.
        self.failure, self.line = "", 0
        #: Called when the audit is detached, latest first; each may be called more than once.
        self._undo: list[Callable[[], None]] = []
        #: Hooks that `remove_hooks` removes.
        self.handles: dict[int, Handles] = {}

    def begin(self) -> None:
        """Reset at the start of a training."""
        self.failure, self._undo, self.handles = "", [], {}

    def on_leave(self, undo: Callable[[], None]) -> None:
        """Register ``undo``, called when the audit fails or is interrupted."""
        self._undo.append(undo)

    def off_leave(self, undo: Callable[[], None]) -> None:
        """Unregister ``undo``."""
        if undo in self._undo:
            self._undo.remove(undo)

    def run(self, ours: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call code of the audit, and count its time as the audit's."""
        token = _current.set(self)
        try:
            return timed(ours, args, kwargs)
        finally:
            _current.reset(token)

    def fails(self, error: Exception) -> bool:
        """Detach the audit from the training, unless an exception is deliberate.

        The traceback of a deliberate exception loses the frames of this package.

        Returns:
            Whether the caller continues without the audit. If not, it must raise the exception:
            this is deliberate, or the audit itself called the caller, in its own pass through the
            user's module, which must end here.
        """
        if isinstance(error, self._passes):
            end_at_user(error)
            return False
        if not self.failure:
            self.failure, self.line = where(error)
            _log.error(
                "privacy audit: the audit failed (%s:%d) and left the training, which continues "
                "without it; the verdict will be INCONCLUSIVE unless a violation was found before",
                self.failure,
                self.line,
            )
            _log.debug("the audit failed", exc_info=error)
        else:
            _log.debug("the audit failed again", exc_info=error)
        self.leave()
        return _current.get() is not self

    def leave(self) -> None:
        """Undo the audit's pending changes to the training."""
        for undo in reversed(self._undo):
            attempt(undo)

    def remove_hooks(self) -> None:
        """Remove all hooks of the audit, latest first."""
        for handles in reversed(list(self.handles.values())):
            attempt(handles.remove)


def attempt(undo: Callable[[], Any]) -> bool:
    """Call a function that restores the training, at most twice; return whether it succeeded."""
    for last in (False, True):
        try:
            undo()
        except Exception as error:
            if last:
                failed, line = where(error)
                _log.error("privacy audit: cleaning up failed (%s:%d)", failed, line)
        else:
            return True
    return False


_current: ContextVar[Boundary | None] = ContextVar("boundary", default=None)


def current() -> Boundary | None:
    """Return the boundary whose code runs now; None outside of an audited training."""
    return _current.get()


def where(error: BaseException) -> tuple[str, int]:
    """Return an exception's type with the innermost function of this package, and its line.

    A check of another package is named with its file. The message is left out, since it may contain
    values.
    """
    if isinstance(error, FailedElsewhere):
        return error.args
    place, line = "an unknown place", 0
    from lightning_audit.record.store import OTHERS  # loads numpy

    for frame, number in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(f"{_PACKAGE}."):
            place = f"{module.removeprefix(f'{_PACKAGE}.')}.{frame.f_code.co_name}"
            line = number
        elif module in OTHERS:
            code, names = frame.f_code, " or ".join(OTHERS[module])
            place = f"the check {names}, {code.co_name} of {os.path.basename(code.co_filename)}"
            line = number
    return f"{type(error).__name__} in {place}", line


def raised_in_audit(error: BaseException) -> bool:
    """Return whether this package, or a function that it called directly, raised an exception.

    An exception of a library or of the user's code has more frames after the package's last one,
    or one of the user's. In doubt, the exception counts as the audit's.
    """
    beyond, users = 0, False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        own = module.startswith(f"{_PACKAGE}.") and not module.startswith(f"{_PACKAGE}.testing.")
        own &= frame.f_code.co_name != "__torch_function__"  # through which user's calls go
        beyond = 0 if own else beyond + 1
        library = module.partition(".")[0] in sys.stdlib_module_names
        library = library or "site-packages" in frame.f_code.co_filename
        users = not own and (users or not library)
    return beyond <= 1 and not users


def timed(ours: Call, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Call code of the audit and add its time to `OWN_TIME`; nested entries count once."""
    if OWN_TIME.since is not None:
        return ours(*args, **(kwargs or {}))
    OWN_TIME.since = began = time.perf_counter()
    try:
        return ours(*args, **(kwargs or {}))
    finally:
        OWN_TIME.since = None
        OWN_TIME.seconds += time.perf_counter() - began


def entry(
    ours: Call,
    otherwise: Call = nothing,
    of: Callable[[Any], Any] | None = None,
    *,
    begins: bool = False,
) -> Call:
    """Wrap code of the audit that torch, Opacus, Lightning or the user's code calls.

    Args:
        ours: the code.
        otherwise: called instead after the audit has failed, with the same arguments.
        of: returns the boundary for the first argument; None for the current boundary.
        begins: whether it begins a training, and runs also after the failure of an earlier one.
    """
    made_in = _current.get() if of is None else None

    @functools.wraps(ours)
    def entered(*args: Any, **kwargs: Any) -> Any:
        boundary = made_in if of is None else of(args[0])
        if boundary is None:
            return timed(ours, args, kwargs)
        if begins or not boundary.failure:
            try:
                return boundary.run(ours, args, kwargs)
            except Exception as error:
                if not boundary.fails(error):
                    raise
            except BaseException:
                boundary.leave()
                if of is None:
                    otherwise(*args, **kwargs)
                raise
        return otherwise(*args, **kwargs)

    return entered


def around(
    own: Call,
    before: Call = nothing,
    after: Call = nothing,
    otherwise: Call = nothing,
    *,
    armed: Callable[[], bool] | None = None,
) -> Call:
    """Wrap a call of the user's with code of the audit before and after it.

    Args:
        own: the user's function.
        before: called with the arguments; returns new positional ones, or None to keep them.
        after: called with the result and the arguments; returns a new result, or None to keep it.
        otherwise: called instead of ``after``, with its arguments, after the audit has failed.
        armed: returns whether to call the audit's code; None for always.
    """
    begin = entry(before)

    def undo(*given: Any, **kwargs: Any) -> None:
        otherwise(*given, **kwargs)

    end = entry(after, undo)

    def called(*args: Any, **kwargs: Any) -> Any:
        if armed is not None and not armed():
            return own(*args, **kwargs)
        given = begin(*args, **kwargs) or args
        result = own(*given, **kwargs)
        if armed is not None and not armed():
            return result
        made = end(result, *given, **kwargs)
        return result if made is None else made

    return called


class Handles(list[Any]):
    """Installed hooks, which a failure of the audit removes, latest first.

    Created before the hooks, so that none is left if installing one of them fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._boundary = _current.get()
        if self._boundary is not None:
            self._boundary.handles[id(self)] = self

    def remove(self) -> None:  # type: ignore[override]
        """Remove the hooks."""
        for handle in reversed(list(self)):
            handle.remove()
        self.forget()

    def forget(self) -> None:
        """Unregister from the boundary: the hooks are removed."""
        self.clear()
        if self._boundary is not None:
            self._boundary.handles.pop(id(self), None)


class undoing:  # noqa: N801 - used like a function
    """Context that calls ``undo`` at its end, and earlier if the audit fails within it."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo, self._boundary = undo, _current.get()

    def __enter__(self) -> None:
        if self._boundary is not None:
            self._boundary.on_leave(self._undo)

    def __exit__(self, *_: object) -> None:
        self._undo()
        if self._boundary is not None:
            self._boundary.off_leave(self._undo)
