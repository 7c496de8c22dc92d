"""Hooks before and after one method of an optimizer, whoever calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_audit.taps.boundary import Handles, around


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is to be done."""


class MethodHook:
    """Calls back at the start and the end of a method of one object.

    Lightning announces a step only where it takes it itself: in manual optimization with the raw
    optimizer none of its hooks is called.

    Args:
        owner: the object; an override of its class is hooked as it is.
        name: the method.
        before: what to call before.
        after: what to call when it is done.
        otherwise: what to call when it is done once the audit has failed.
        shown: whether ``before`` and ``after`` are given what `around` gives.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        before: Callable[..., Any] = _nothing,
        after: Callable[..., Any] = _nothing,
        otherwise: Callable[..., Any] = _nothing,
        *,
        shown: bool = False,
    ) -> None:
        self._owner: Any = owner
        self._name = name
        self._earlier = vars(owner).get(name)
        #: Whether it calls back; somebody may have wrapped it, and keep it beyond the audit.
        self.armed = True
        self._hook = around(
            getattr(owner, name),
            before if shown else lambda *_, **__: before(),
            after if shown else lambda *_, **__: after(),
            otherwise if shown else lambda *_, **__: otherwise(),
            armed=partial(getattr, self, "armed"),
        )
        self._handles = Handles()
        self._handles.append(self)
        setattr(owner, name, self._hook)

    def remove(self) -> None:
        """Take the hook off; where somebody has put another one over it, it does nothing more."""
        self.armed = False
        self._handles.forget()
        if vars(self._owner).get(self._name) is not self._hook:
            return
        delattr(self._owner, self._name)
        if self._earlier is not None:
            setattr(self._owner, self._name, self._earlier)
