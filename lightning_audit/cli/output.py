"""How the command prints its results, refuses an input, and ends where its output is cut off."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from lightning_audit.files.printable import visible
from lightning_audit.results.audit_report import EXIT_CODES
from lightning_audit.results.report_json import plain

#: How the message of an unexpected error begins.
OWN_FAULT = "a bug in lightning-audit"


class Refused(Exception):
    """A command cannot answer; the message says why and what to do."""


def refused(message: object) -> int:
    """Print on standard error why there is no answer, and return the exit code."""
    print(f"lightning-audit: {visible(str(message))}", file=sys.stderr)
    return EXIT_CODES["INCONCLUSIVE"]


def as_json(fields: Mapping[str, Any]) -> str:
    """What a command prints for programs; infinities are text, as in reports."""
    return json.dumps(plain(fields), indent=2, allow_nan=False)


def own_fault(error: Exception) -> str:
    """The message for an unexpected error: the error and the line that raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    where = f"line {line} of {frame.f_globals.get('__name__')}"
    return f"{OWN_FAULT}: {type(error).__name__}: {error} ({where}); please report it"


class IgnoreBrokenPipe:
    """A stream that drops its output once the pipe is closed, so that `| head` keeps the exit code.

    Characters that its encoding does not have are written escaped.

    Args:
        stream: the stream; everything but writing is its own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, escaped where the encoding lacks a character; drop it if the pipe is closed."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            return self.write(plain)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flush the buffer; drop it if the pipe is closed."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # The stream's buffer is flushed again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
