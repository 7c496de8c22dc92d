"""State that is declared once: what a checkpoint holds of an object, and how it is restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lightning_audit.record.snapshot import restore, snapshot


class Kept:
    """An object of which a checkpoint holds the attributes that `KEPT` names, and no others.

    An attribute is plain data, an array, an object of this package (see `snapshot`), or `Kept`
    itself. What is not named must be a function of private data that no checkpoint may hold, or be
    known again after a resume.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the attributes of `KEPT` as plain data, copied."""
        found = {name: getattr(self, name) for name in self.KEPT}
        return {
            name: value.state() if isinstance(value, Kept) else snapshot(value)
            for name, value in found.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes from a `state`.

        Raises:
            KeyError: an attribute is missing.
        """
        for name in self.KEPT:
            value = getattr(self, name)
            if isinstance(value, Kept):
                value.load(state[name])
            else:
                setattr(self, name, restore(state[name]))
