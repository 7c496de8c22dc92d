"""What the command prints: to a reader that may leave, or about an input that is refused."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from lightning_audit.files.printable import visible
from lightning_audit.results.audit_report import EXIT_CODES, plain

#: How a message begins that only a fault of this package can cause.
OWN_FAULT = "a fault of lightning-audit"


class Refused(Exception):
    """A command cannot answer; the message says why and what to do."""


def refused(message: object) -> int:
    """Say on standard error why there is no answer; the exit code of it."""
    print(f"lightning-audit: {visible(str(message))}", file=sys.stderr)
    return EXIT_CODES["INCONCLUSIVE"]


def as_json(fields: Mapping[str, Any]) -> str:
    """What a command prints for programs; infinities are text, as in reports."""
    return json.dumps(plain(fields), indent=2, allow_nan=False)


def own_fault(error: Exception) -> str:
    """What to say of an error that should have been a message, with its place instead of all."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    where = f"line {line} of {frame.f_globals.get('__name__')}"
    return f"{OWN_FAULT}: {type(error).__name__}: {error} ({where}); please report it"


class Unbroken:
    """A stream whose writing goes on into nothing once nobody reads it: `| head` is no error.

    What its encoding does not have is written escaped.

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
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            return self.write(plain)
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
