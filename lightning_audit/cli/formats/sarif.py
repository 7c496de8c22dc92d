"""Reports as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from lightning_audit import __version__
from lightning_audit.cli.formats.checked import Checked
from lightning_audit.cli.formats.findings_shown import (
    SEVERITIES,
    Finding,
    Severity,
    findings_of,
    severity_of,
)
from lightning_audit.files.printable import visible
from lightning_audit.report.guessed_coins import DECLARED
from lightning_audit.results.report_details import CodePlace
from lightning_audit.results.report_json import plain

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
#: Severities as GitHub sorts alerts with the tag "security": from 9 critical, from 4 medium.
_SCORES: dict[Severity, str] = {"critical": "9.0", "theoretical": "5.0", "negligible": "1.0"}
#: Rules of the gate itself, which are no checks.
_GATE = {
    "gate.verdict": "the audit could not have detected every violation",
    "gate.unreadable": "the report cannot be read, or contradicts itself",
    "gate.max-epsilon": "an epsilon exceeds --max-epsilon, or is unknown",
    "gate.baseline": "the training became worse than its baseline, or cannot be compared",
}


def as_sarif(checked: Sequence[Checked]) -> str:
    """Return one run with a result for each finding, and for each report that cannot pass.

    Locations are relative to the repository. A fingerprint is a function of the check, the
    training and the optimizer, so that an alert is the same one in the next run.
    """
    results = [result for one in checked for result in _results(one)]
    names = list(dict.fromkeys(result["ruleId"] for result in results))
    for result in results:
        result["ruleIndex"] = names.index(result["ruleId"])
    failures = [_failure(one) for one in checked if one.report is None]
    run = {
        "tool": {
            "driver": {
                "name": "lightning-audit",
                "version": __version__,
                "rules": [_rule(name) for name in names],
            }
        },
        "invocations": [
            {"executionSuccessful": not failures, "toolExecutionNotifications": failures}
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    data = plain({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})
    return json.dumps(data, indent=2, allow_nan=False)


def fingerprint(rule: str, training: str, optimizer: str = "") -> str:
    """Return what identifies an alert over runs: no line, no number, no message."""
    identity = "\0".join((rule, training, optimizer))
    return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()


def _rule(name: str) -> dict[str, Any]:
    if name in _GATE:
        texts = {"shortDescription": {"text": _GATE[name]}}
        return {"id": name, **texts, "properties": {"tags": ["privacy", "dp-sgd"]}}
    check = DECLARED[name]
    severity = severity_of(check)
    return {
        "id": name,
        "shortDescription": {"text": check.heading(failed=True)},
        "fullDescription": {"text": check.meaning or check.finds},
        "help": {"text": check.look_at or check.finds},
        "defaultConfiguration": {"level": "note" if check.warns else "error"},
        "properties": {
            "tags": ["security", "privacy", "dp-sgd", *([check.topic] if check.topic else [])],
            "security-severity": _SCORES[severity],
            "severity": severity,
        },
    }


def _results(one: Checked) -> Iterator[dict[str, Any]]:
    for remark in one.remarks:
        violation = remark.outcome == "VIOLATION" or remark.rule == "unreadable"
        yield _result(one, f"gate.{remark.rule}", remark.text, "error" if violation else None)
    if one.report is None:
        return
    for finding in findings_of(one.report):
        yield _of_finding(one, finding)
    verdict = one.report.verdict
    if verdict.outcome == "INCONCLUSIVE":
        why = "; ".join(verdict.pass_blockers) or verdict.summary
        yield _result(one, "gate.verdict", f"INCONCLUSIVE: {why}", None)


def _of_finding(one: Checked, finding: Finding) -> dict[str, Any]:
    levels = {"violated": "error", "undecided": "warning", "allowed": "error"}
    text = f"{finding.title}. {finding.result.message}."
    if finding.look_at:
        text += f" Look at: {finding.look_at}."
    result = _result(
        one,
        finding.check,
        text,
        levels.get(finding.result.status, "note"),
        finding.result.optimizer,
        finding.places,
    )
    result["properties"].update(
        severity=finding.severity,
        meaning=SEVERITIES[finding.severity],
        status=finding.result.status,
        explains=list(finding.explains),
    )
    if finding.result.status == "allowed":
        reason = "PrivacyAudit(allow=...) of the training names this check"
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _result(
    one: Checked,
    rule: str,
    text: str,
    level: str | None,
    optimizer: str = "",
    places: Sequence[CodePlace] = (),
) -> dict[str, Any]:
    """Return a result; without a level, one that could not be decided."""
    decided = {"kind": "fail", "level": level} if level else {"kind": "open", "level": "none"}
    own = {"physicalLocation": {"artifactLocation": _artifact(one.place)}}
    return {
        "ruleId": rule,
        **decided,
        "message": {"text": "\n".join(map(visible, text.split("\n")))},
        "locations": [_location(places[0]) if places else own],
        "relatedLocations": [{"id": i, **_location(p)} for i, p in enumerate(places[1:], 1)],
        "partialFingerprints": {
            "checkAndTraining/v1": fingerprint(rule, one.training, optimizer),
        },
        "properties": {"training": visible(one.training)},
    }


def _location(place: CodePlace) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": _artifact(place.file),
            "region": {"startLine": place.line},
        },
        "logicalLocations": [{"fullyQualifiedName": visible(place.name)}],
    }


def _artifact(path: str) -> dict[str, str]:
    return {"uri": quote(path, errors="backslashreplace"), "uriBaseId": _ROOT}


def _failure(one: Checked) -> dict[str, Any]:
    text = "\n".join(visible(line) for r in one.remarks for line in r.text.split("\n"))
    return {"level": "error", "message": {"text": text}}
