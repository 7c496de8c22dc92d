"""Hooks before and after a private optimizer clips, whoever steps it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from opacus.optimizers import DPOptimizer


class BeforeClipping:
    """Calls back at the start and the end of ``pre_step``, where Opacus clips and adds noise.

    Lightning announces a step only where it takes it itself: in manual optimization with the raw
    optimizer none of its hooks is called.

    Args:
        optimizer: the private optimizer.
        call: what to call before.
        after: what to call when it is done.
    """

    def __init__(
        self, optimizer: DPOptimizer, call: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._optimizer: Any = optimizer
        self._before = vars(optimizer).get("pre_step")
        own = optimizer.pre_step
        self._armed = True

        def pre_step(_: DPOptimizer, *args: Any, **kwargs: Any) -> Any:
            if self._armed:  # somebody may have wrapped it, and keep it beyond the audit
                call()
            done = own(*args, **kwargs)
            if self._armed:
                after()
            return done

        self._hook = types.MethodType(pre_step, optimizer)
        self._optimizer.pre_step = self._hook

    def remove(self) -> None:
        """Take the hook off; where somebody has put another one over it, it does nothing more."""
        self._armed = False
        if vars(self._optimizer).get("pre_step") is not self._hook:
            return
        del self._optimizer.pre_step
        if self._before is not None:
            self._optimizer.pre_step = self._before
