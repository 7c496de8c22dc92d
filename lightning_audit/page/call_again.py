"""How to get a report again: the call of the audit, its settings, the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_audit.files.printable import visible
from lightning_audit.page.shown_text import PERCENT
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_json import plain
from lightning_audit.results.trainings_seen import TrainingsSeen

#: Settings that a call leaves out if they have this value: the defaults of `PrivacyAudit`.
DEFAULTS: Mapping[str, Any] = {
    "claimed_epsilon": None,
    "claim": None,
    "oversize": 1000.0,
    "every_n_steps": None,
    "significance": 1e-3,
    "bound_significance": 0.05,
    "resolution": {"noise": 0.8, "sensitivity": 2.0},
    "allow": [],
    "exemptions": [],
    "on_violation": "raise",
    "on_inconclusive": "warn",
    "examinations": "auto",
    "bounds": [],
    "source_in_report": True,
}
#: Stated in every call: without them another run would follow.
_ALWAYS = ("delta", "seed")
#: Settings that are objects of a class.
_CLASSES = {"claim": "PrivacyClaim", "resolution": "Resolution"}


def call(report: AuditReport) -> str:
    """Return the call of the audit as Python, without what is left at its default.

    Canaries are included only if the report says that the user gave them.
    """
    if report.trainings is not None:
        return _of_trainings(report.settings, report.trainings)
    settings = dict(report.settings)
    given = report.settings_given
    names = [n for n in settings if n in DEFAULTS and plain(settings[n]) != plain(DEFAULTS[n])]
    if given:
        names = [n for n in settings if n in given or (n == "exemptions" and "allow" in given)]
    names = [name for name in names if name not in ("allow", "exemptions")]
    own = [name for name in names if name not in _ALWAYS]
    lines = [f"    {name}={_code(name, settings[name])},\n" for name in own]
    if allowed := list(_allowed(settings)):
        lines.append(f"    allow=[{', '.join(allowed)}],\n")
    lines += [f"    {name}={_literal(settings[name])},\n" for name in _ALWAYS if name in settings]
    return visible_lines(f"PrivacyAudit(\n{''.join(lines)})")


def _of_trainings(settings: Mapping[str, Any], seen: TrainingsSeen) -> str:
    """Return the call of an audit over many trainings; the report has names of its objects only."""
    positional = ["train", "dataset", f"claim,  # {visible(seen.claim)}"]
    function, planned = "audit_training", "trainings"
    if planned not in settings:  # the user ran them
        positional = ["scores", "coins", "failed", f"promise,  # {visible(seen.claim)}"]
        function, planned = "conclude", "planned"
    given = {**settings, planned: seen.planned}
    keywords = {
        name: _literal(given[name])
        for name in (planned, "significance", "stop", "seed", "on_failure", "adjacency")
        if name in given
    }
    keywords |= {"canary": f"{given['canary']}(...)"} if "canary" in given else {}
    keywords |= {"score": str(given["score"])} if given.get("score", "default") != "default" else {}
    lines = [one if "," in one else f"{one}," for one in positional]
    lines += [f"{name}={text}," for name, text in keywords.items()]
    return visible_lines("\n    ".join([f"{function}(", *lines]) + "\n)")


def all_settings(report: AuditReport) -> list[tuple[str, str]]:
    """Return every setting as text."""
    rows = ((name, plain(value)) for name, value in report.settings.items())
    return [
        (visible(name), visible(value if isinstance(value, str) else json.dumps(value)))
        for name, value in rows
    ]


def environment(report: AuditReport) -> list[tuple[str, str]]:
    """Return the versions of the libraries."""
    return [(visible(name), visible(str(value))) for name, value in report.environment.items()]


def cost(report: AuditReport) -> str:
    """Return the time that the audit took; empty if the report does not hold it."""
    seconds, share = report.audit_cost.get("seconds"), report.audit_cost.get("share")
    if seconds is None:
        return ""
    if share is None:  # of many trainings
        return f"The audit took {seconds:,.1f} s."
    return (
        f"The audit took {seconds:.2g} s, {100 * share:.0f}{PERCENT} of the rest of the training."
    )


def visible_lines(text: str) -> str:
    """Return text of several lines, with what cannot be seen in them escaped."""
    return "\n".join(map(visible, text.split("\n")))


def _allowed(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from (_literal(name) for name in settings.get("allow") or ())
    for one in settings.get("exemptions") or ():
        stated = {name: value for name, value in one.items() if value not in (None, "")}
        yield f"Allow({', '.join(f'{n}={_literal(v)}' for n, v in stated.items())})"


def _code(name: str, value: Any) -> str:
    if name in _CLASSES and isinstance(value, Mapping):
        stated = {key: inner for key, inner in value.items() if inner is not None}
        return f"{_CLASSES[name]}({', '.join(f'{k}={_literal(v)}' for k, v in stated.items())})"
    if name == "canaries":  # stored as their code
        return f"[{', '.join(map(str, value))}]"
    return _literal(value)


def _literal(value: Any) -> str:
    value = plain(value) if isinstance(value, tuple) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
