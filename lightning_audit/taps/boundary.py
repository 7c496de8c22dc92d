"""The boundary between the audit and the training: the audit's own failures do not cross it.

Torch, Opacus, Lightning and the user's code call the audit through `entry` (code of the audit
alone) or `around` (before and after a call of the user's). An exception of the audit's own takes
the audit out of the training: what it had changed is undone, the log says what failed and where,
and from then on each entry does what ``otherwise`` does, by default nothing. Exceptions of the
user's call, deliberate ones of the audit (refusals, verdicts, bad arguments), KeyboardInterrupt and
SystemExit pass, the latter two once the training's state is restored.

An entry belongs to the boundary in whose code it was made. Made outside of an audited training, it
lets everything pass. The functions that others call are those of this module, and call nothing of
the package outside of a ``try``.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from lightning_audit._validate import BadArgument
from lightning_audit.taps.own_time import OWN_TIME

_log = logging.getLogger(__name__)
_PACKAGE = "lightning_audit"

Call = Callable[..., Any]


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is to be done."""


class FailedElsewhere(Exception):
    """The audit failed in another process; its arguments are what `where` gave there."""


class StepRefused(StopIteration):
    """A step is not taken; it ends Lightning's loop over batches, as a hook's -1 does."""


class Boundary:
    """Keeps one audit's failures out of its training.

    Args:
        passes: deliberate exceptions of the audit, besides `BadArgument`.
    """

    def __init__(self, *passes: type[BaseException]) -> None:
        self._passes: tuple[type[BaseException], ...] = (BadArgument, *passes)
        #: What failed first, "<type> in <module>.<function>"; empty while nothing has.
        self.failure, self.line = "", 0
        #: Called when the audit leaves, latest first; each may be called more than once.
        self._undo: list[Callable[[], None]] = []
        #: What `remove_hooks` removes.
        self.handles: dict[int, Handles] = {}

    def begin(self) -> None:
        """A training begins: nothing has failed."""
        self.failure, self._undo, self.handles = "", [], {}

    def on_leave(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the audit fails or is interrupted."""
        self._undo.append(undo)

    def off_leave(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` no more."""
        if undo in self._undo:
            self._undo.remove(undo)

    def run(self, ours: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call code of the audit; its time is the audit's own."""
        token = _current.set(self)
        try:
            return timed(ours, args, kwargs)
        finally:
            _current.reset(token)

    def fails(self, error: Exception) -> bool:
        """Take the audit out of the training, unless an exception is deliberate.

        Returns:
            Whether the caller goes on without it. If not, the exception is to be raised: it is
            deliberate, or the caller is itself called by the audit, in a pass of its own through
            the user's module, which must end here.
        """
        if isinstance(error, self._passes):
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
        """Undo what the audit has under way in the training."""
        for undo in reversed(self._undo):
            attempt(undo)

    def remove_hooks(self) -> None:
        """Remove all hooks of the audit, the latest first."""
        for handles in reversed(list(self.handles.values())):
            attempt(handles.remove)


def attempt(undo: Callable[[], Any]) -> bool:
    """Call what restores the training; whether it succeeded. A second attempt follows a failure."""
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
    """The boundary in whose code this is called; None outside of an audited training."""
    return _current.get()


def where(error: BaseException) -> tuple[str, int]:
    """The type of an exception with the innermost function of this package, and the line.

    Neither holds a value: an exception's message may.
    """
    if isinstance(error, FailedElsewhere):
        return error.args
    place, line, trace = "an unknown place", 0, error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(f"{_PACKAGE}."):
            name = trace.tb_frame.f_code.co_name
            place, line = f"{module.removeprefix(f'{_PACKAGE}.')}.{name}", trace.tb_lineno
        trace = trace.tb_next
    return f"{type(error).__name__} in {place}", line


def raised_in_audit(error: BaseException) -> bool:
    """Whether an exception was raised by code of this package, or by what that called directly.

    What a library raises on the user's behalf has more frames after the package's last one, or one
    of the user's. Where it cannot be decided, the exception counts as the audit's.
    """
    beyond, users, trace = 0, False, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        own = module.startswith(f"{_PACKAGE}.") and not module.startswith(f"{_PACKAGE}.testing.")
        beyond = 0 if own else beyond + 1
        library = module.partition(".")[0] in sys.stdlib_module_names
        library = library or "site-packages" in frame.f_code.co_filename
        users = not own and (users or not library)
        trace = trace.tb_next
    return beyond <= 1 and not users


def timed(ours: Call, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Call code of the audit and add its time to `OWN_TIME`, that of entries within it once."""
    if OWN_TIME.since is not None:
        return ours(*args, **(kwargs or {}))
    OWN_TIME.since = began = time.perf_counter()
    try:
        return ours(*args, **(kwargs or {}))
    finally:
        OWN_TIME.since = None
        OWN_TIME.seconds += time.perf_counter() - began


def entry(ours: Call, otherwise: Call = _nothing, of: Callable[[Any], Any] | None = None) -> Call:
    """Code of the audit that others call.

    Args:
        ours: the code.
        otherwise: called in its place once the audit has failed, with the same arguments.
        of: gives the boundary for the first argument; None for the boundary of now.
    """
    made_in = _current.get() if of is None else None

    @functools.wraps(ours)
    def entered(*args: Any, **kwargs: Any) -> Any:
        boundary = made_in if of is None else of(args[0])
        if boundary is None:
            return timed(ours, args, kwargs)
        if not boundary.failure:
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
    before: Call = _nothing,
    after: Call = _nothing,
    otherwise: Call = _nothing,
    *,
    armed: Callable[[], bool] | None = None,
) -> Call:
    """A call of the user's with code of the audit before and after it.

    Args:
        own: the user's.
        before: is given the call's arguments, and gives others or None for the same.
        after: is given the result and the arguments, and gives the result or None for the same.
        otherwise: called in the place of ``after`` once the audit has failed, with its arguments.
        armed: whether the audit's code is called; None for always.
    """
    boundary = _current.get()

    def called(*args: Any, **kwargs: Any) -> Any:
        if armed is not None and not armed():
            return own(*args, **kwargs)
        given, failed = args, boundary is not None and boundary.failure
        if boundary is None:
            given = timed(before, args, kwargs) or args
        elif not failed:
            try:
                given = boundary.run(before, args, kwargs) or args
            except Exception as error:
                if not boundary.fails(error):
                    raise
            except BaseException:
                boundary.leave()
                raise
        result = own(*given, **kwargs)
        if armed is not None and not armed():
            return result
        made = None
        if boundary is None:
            made = timed(after, (result, *given), kwargs)
        elif not boundary.failure:
            try:
                made = boundary.run(after, (result, *given), kwargs)
            except Exception as error:
                if not boundary.fails(error):
                    raise
                otherwise(result, *given, **kwargs)
            except BaseException:
                boundary.leave()
                otherwise(result, *given, **kwargs)
                raise
        else:
            otherwise(result, *given, **kwargs)
        return result if made is None else made

    return called


class Handles(list[Any]):
    """Hooks that are installed, which a failure of the audit removes, the latest first.

    It is made before the hooks are, so that none is left where making them fails.
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
        self.clear()
        self.forget()

    def forget(self) -> None:
        """The hooks are removed."""
        if self._boundary is not None:
            self._boundary.handles.pop(id(self), None)


class undoing:  # noqa: N801 - used like a function
    """A context at whose end ``undo`` is called, and if the audit fails within it, before."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo, self._boundary = undo, _current.get()

    def __enter__(self) -> None:
        if self._boundary is not None:
            self._boundary.on_leave(self._undo)

    def __exit__(self, *_: object) -> None:
        self._undo()
        if self._boundary is not None:
            self._boundary.off_leave(self._undo)
