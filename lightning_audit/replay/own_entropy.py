"""Make the system's entropy repeatable in a replay, for the replaying thread only.

``secrets``, ``random.SystemRandom``, ``uuid`` and NumPy's generators without a seed all read
``os.urandom``, or the name under which ``random`` holds it.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any


class OwnEntropy:
    """Context in which seeded bytes replace the system's entropy."""

    def __init__(self) -> None:
        self._bits = random.Random(0)
        self._thread = 0
        self._theirs: tuple[Any, Any] = (os.urandom, random._urandom)  # type: ignore[attr-defined]

    def seed(self, number: int) -> None:
        """Seed the next bytes."""
        self._bits.seed(number)

    def mark(self) -> int:
        """Return the position in the seeded bytes, as one number."""
        return hash(self._bits.getstate())

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._theirs = (os.urandom, random._urandom)  # type: ignore[attr-defined]
        os.urandom, random._urandom = self._read, self._read  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        os.urandom, random._urandom = self._theirs  # type: ignore[attr-defined]

    def _read(self, size: int, /) -> bytes:
        if threading.get_ident() != self._thread:
            entropy: bytes = self._theirs[0](size)
            return entropy
        return self._bits.randbytes(size)
