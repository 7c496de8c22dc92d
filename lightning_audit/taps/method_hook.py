"""Wraps one optimizer method with pre and post hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_audit.taps.boundary import Handles, around


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class MethodHook:
    """Pre and post hooks on a method of one object.

    Lightning's hooks run only for steps that Lightning itself takes: not in manual optimization
    with the raw optimizer.

    Args:
        owner: the object; an override in its class is wrapped unchanged.
        name: name of the method.
        before: called before the method.
        after: called after the method.
        otherwise: called after the method if the audit has failed.
        shown: whether the callbacks get the arguments of `around`'s.
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
        #: Whether the callbacks run; a wrapper around the hook may outlive the audit.
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
        """Remove the hook; if another hook wraps it, only disable it."""
        self.armed = False
        self._handles.forget()
        if vars(self._owner).get(self._name) is not self._hook:
            return
        delattr(self._owner, self._name)
        if self._earlier is not None:
            setattr(self._owner, self._name, self._earlier)
