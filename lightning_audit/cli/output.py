"""Output of the commands: results, refusals, and closed pipes."""

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

#: Start of the message for an unexpected error.
OWN_FAULT = "a bug in lightning-audit"


class Refused(Exception):
    """A command cannot compute its result; the message gives the reason and what to do."""


def refused(message: object) -> int:
    """Print the reason on standard error, and return the exit code."""
    print(f"lightning-audit: {visible(str(message))}", file=sys.stderr)
    return EXIT_CODES["INCONCLUSIVE"]


def as_json(fields: Mapping[str, Any]) -> str:
    """Return a command's result as JSON; infinities are text, as in reports."""
    return json.dumps(plain(fields), indent=2, allow_nan=False)


def own_fault(error: Exception) -> str:
    """Return the message for an unexpected error: the error and the line that raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    where = f"line {line} of {frame.f_globals.get('__name__')}"
    return f"{OWN_FAULT}: {type(error).__name__}: {error} ({where}); please report it"


class IgnoreBrokenPipe:
    """A stream that drops its output if the pipe is closed, so that `| head` keeps the exit code.

    Characters that the stream's encoding lacks are written escaped.

    Args:
        stream: The stream; everything but writing is delegated to it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, escaping characters that the encoding lacks; drop the text on a closed pipe."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            return self.write(plain)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flush the buffer; drop it on a closed pipe."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # Python flushes the stream's buffer again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
