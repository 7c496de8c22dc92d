"""Standard output that outlives its reader and its encoding: neither changes the exit code."""

from __future__ import annotations

import os
from typing import Any, TextIO


class Unbroken:
    """A stream whose writing goes on into nothing once nobody reads it.

    Args:
        stream: the stream; everything but writing is its own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, escaped where the stream's encoding lacks a letter, or drop what nobody reads."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            name = self._stream.encoding
            return self._stream.write(text.encode(name, "backslashreplace").decode(name))
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Hand over what waits, or drop what nobody reads."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # What waits in the stream is flushed again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
