"""Every single edit of a report that a hand or a script may make, who computes its digest again."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from lightning_audit.results.report_json import digest

#: Where something stands in a report: keys and indices.
Place = tuple[str | int, ...]

#: The edit that changes the order of a list alone.
TURNED = "turned round"

#: What stands in for a value of another type.
OTHERS: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**400, "", "inf", "ok", [], {}, [[]], {"a": 1})
#: What a word may be exchanged for.
WORDS = (
    *("PASS", "VIOLATION", "INCONCLUSIVE", "ok", "violated", "allowed", "warned", "not_run"),
    *("mechanism", "epsilon", "accounting", "noise", "single", "anytime", "\ud800"),
)


def signed(data: Any) -> str:
    """The text of a report with this content."""
    return json.dumps({**data, "sha256": digest(data)})


#: A function of a report's content, or new values by their places; see `change`.
Change = Callable[[dict[str, Any]], Any] | Mapping[str, Any]


def change(data: dict[str, Any], by: Change) -> None:
    """Change the content of a report.

    Args:
        data: what is changed.
        by: a function of it, or new values by places such as ``settings/resolution/noise`` and
            ``checks/noise.excess/share``; of ``...`` the place is deleted.
    """
    if not isinstance(by, Mapping):
        by(data)
        return
    for place, value in by.items():
        parent: Any = data
        *inner, last = place.split("/")
        for key in inner:
            parent = parent[_key(parent, key)]
        key = _key(parent, last)
        if value is ...:
            del parent[key]
        else:
            parent[key] = value


def _key(parent: Any, key: str) -> str | int:
    """The key itself, or in a list the index, which may be given by the item's name."""
    if isinstance(parent, dict):
        return key
    return int(key) if key.isdecimal() else [item["name"] for item in parent].index(key)


def with_(text: str, by: Change) -> str:
    """The report with a change."""
    data = json.loads(text)
    change(data, by)
    return signed(data)


def nodes(value: Any, path: Place = ()) -> Iterator[Place]:
    """The place of everything in a report but the report itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from nodes(item, (*path, key))


def values_for(value: Any) -> Iterator[Any]:
    """What a value may be changed to."""
    yield from OTHERS
    if isinstance(value, str):
        yield from (*WORDS, value + "x")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (value + 1, value * 2 + 0.5, value * 0.5 - 0.1, -value - 1, 1e6, 1e-6, 0.0)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, list):
        yield from (value[:-1], value[1:], [*value, *value[:1]], value[::-1])


def replace_at(report: Any, path: Place, value: Any) -> Any:
    """A copy with another value at one place."""
    changed = copy.deepcopy(report)
    _parent(changed, path)[path[-1]] = value
    return changed


def edited(report: Any, path: Place, value: Any) -> str:
    """The report with another value at one place."""
    return signed(replace_at(report, path, value))


def without(report: Any, path: Place) -> str:
    """The report without one key or item."""
    changed = copy.deepcopy(report)
    del _parent(changed, path)[path[-1]]
    return signed(changed)


def _parent(report: Any, path: Any) -> Any:
    for key in path[:-1]:
        report = report[key]
    return report


def edits(report: Any) -> Iterator[tuple[str, Place, Callable[[], str]]]:
    """Every edit: in words, where, and what makes the text."""
    report = {name: value for name, value in report.items() if name != "sha256"}
    for path in nodes(report):
        value = report
        for key in path:
            value = value[key]
        yield "deleted", path, partial(without, report, path)
        for new in values_for(value):
            if type(new) is type(value) and new == value:
                continue
            turned = isinstance(value, list) and new == value[::-1]
            what = TURNED if turned else f"set to {json.dumps(new)[:40]}"
            yield what, path, partial(edited, report, path, new)
