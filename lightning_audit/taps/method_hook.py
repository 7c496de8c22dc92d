"""Hooks before and after one method of an optimizer, whoever calls it."""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

from lightning_audit.taps.own_time import OWN_TIME


def _nothing() -> None:
    pass


class MethodHook:
    """Calls back at the start and the end of a method of one object.

    Lightning announces a step only where it takes it itself: in manual optimization with the raw
    optimizer none of its hooks is called.

    Args:
        owner: the object; an override of its class is hooked as it is.
        name: the method.
        before: what to call before.
        after: what to call when it is done.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        self._owner: Any = owner
        self._name = name
        self._earlier = vars(owner).get(name)
        own = getattr(owner, name)
        #: Whether it calls back.
        self.armed = True

        def hooked(_: object, *args: Any, **kwargs: Any) -> Any:
            if not self.armed:  # somebody may have wrapped it, and keep it beyond the audit
                return own(*args, **kwargs)
            began = time.perf_counter()
            before()
            called = time.perf_counter()
            done = own(*args, **kwargs)
            ended = time.perf_counter()
            if self.armed:
                after()
            OWN_TIME.seconds += called - began + time.perf_counter() - ended
            return done

        self._hook = types.MethodType(hooked, owner)
        setattr(owner, name, self._hook)

    def remove(self) -> None:
        """Take the hook off; where somebody has put another one over it, it does nothing more."""
        self.armed = False
        if vars(self._owner).get(self._name) is not self._hook:
            return
        delattr(self._owner, self._name)
        if self._earlier is not None:
            setattr(self._owner, self._name, self._earlier)
