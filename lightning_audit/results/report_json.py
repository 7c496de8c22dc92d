"""Writes a report as JSON with a digest, and reads it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning_audit.files import JsonError, as_type, read_json, visible

#: Names of the fields of the digest and of the layout.
_DIGEST, _VERSION = "sha256", "schema_version"


class ReportError(Exception):
    """A report cannot be read; the message says why and what to do."""


def plain(value: Any) -> Any:
    """JSON-able form: tuples as lists, infinities as strings, NaN as null."""
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):  # half a surrogate pair, as of a file's name, is shown escaped
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} cannot be written to a report: {value!r}")


def digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a report, without the field of the digest.

    Canonical JSON has sorted keys, no spaces, and ASCII only. The digest detects accidents; anyone
    can edit a report and compute the digest again.

    Args:
        data: the report as `plain` returns it, or as it was read.
    """
    content = {name: value for name, value in data.items() if name != _DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write(fields: Mapping[str, Any]) -> str:
    """Return the fields of a report as JSON, with their digest."""
    data = plain(fields)
    return json.dumps({**data, _DIGEST: digest(data)}, indent=2, allow_nan=False)


def read(
    kind: Any, text: str, version: int, as_now: Callable[[Any], Any] = lambda data: data
) -> tuple[Any, list[str]]:
    """Read what `write` wrote.

    Args:
        kind: class of the report.
        text: the JSON.
        version: the layout that is read.
        as_now: changes fields of earlier releases with the same layout to what they are now.

    Returns:
        (the report, names of the fields that its class does not have).

    Raises:
        ReportError: see `AuditReport.from_json`.
    """
    try:
        data = read_json(text)
    except JsonError as error:
        raise ReportError(
            f"the report is not complete JSON ({error}); it was cut short or edited, or is "
            "another file. Run the training again."
        ) from error
    found = data.get(_VERSION) if isinstance(data, dict) else None
    if type(found) is not int:
        sentence = f"the file is JSON but no audit report: it has no {_VERSION}. Name the "
        raise ReportError(f"{sentence}report.json that the audit wrote.")
    if found != version:
        newer = "upgrade lightning-audit to read it"
        older = "run the training again, or read it by the release that wrote it"
        raise ReportError(
            f"the report has {_VERSION}={found}, this lightning-audit reads "
            f"{version} only; {newer if found > version else older}."
        )
    try:
        fits = data.pop(_DIGEST, None) == digest(data)
        report = as_type(kind, as_now(data)) if fits else None
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"a field of the report is missing or invalid: {visible(str(error))}; the file was "
            "edited or cut short. Run the training again."
        ) from error
    if not fits:
        raise ReportError(
            "the report's SHA-256 is not that of its content: it was edited or damaged. Run the "
            "training again."
        )
    return report, list(_unknown(data, report))


def _unknown(data: Any, read: Any, where: str = "") -> Iterator[str]:
    """Yield the fields of the text that the classes do not have."""
    if isinstance(data, dict):
        for name, value in data.items():
            inner = read.get(name) if isinstance(read, Mapping) else getattr(read, name, ...)
            if inner is ...:
                yield f"{where}{name}"
            else:
                yield from _unknown(value, inner, f"{where}{name}.")
    elif isinstance(data, list):
        for number, (value, inner) in enumerate(zip(data, read, strict=True)):
            yield from _unknown(value, inner, f"{where}{number}.")
