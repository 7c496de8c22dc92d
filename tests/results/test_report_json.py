"""A report as JSON has the digest of its content, whoever orders or spaces it."""

import hashlib
import json
from typing import Any

import pytest
from made_report import made_report
from report_edits import signed, with_

from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_json import ReportError, digest, plain, write

TEXT = made_report("PASS").to_json()


def test_the_digest_is_of_sorted_keys_without_spaces_in_ascii():
    data = json.loads(write({"b": "ä", "a": [1.0, 2], "c": float("inf")}))
    told = '{"a":[1.0,2],"b":"\\u00e4","c":"inf"}'
    assert data.pop("sha256") == hashlib.sha256(told.encode()).hexdigest()
    assert digest(data) == digest(dict(reversed(data.items())))


def test_order_and_spaces_are_no_other_content():
    data = json.loads(TEXT)
    turned = json.dumps(dict(reversed(data.items())), separators=(",", ":"))
    assert AuditReport.from_json(turned) == AuditReport.from_json(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"outcome": "PASS"', '"outcome": "VIOLATION"'),
        ('"steps": 100', '"steps": 101'),
        ('"complete": true', '"complete": false'),
        ('"delta": 1e-05', '"delta": 1e-06'),
        ('"sha256": "', '"sha256": "0'),
        ('"sha256"', '"sha"'),
        ('"created": ""', '"created": "", "steps": 3'),
    ],
)
def test_an_edit_without_the_digest_is_refused(old, new):
    assert old in TEXT
    with pytest.raises(ReportError, match=r"SHA-256 is not that of its content.*edited or damaged"):
        AuditReport.from_json(TEXT.replace(old, new))


def test_fields_of_a_later_release_are_left_out_and_named():
    def add(data: dict[str, Any]) -> None:
        data["colour"] = {"of": "the report"}
        data["checks"][1]["weather"] = [1]
        data["checks"][1]["evidence"]["new"] = 3

    read = AuditReport.from_json(with_(TEXT, add))
    assert read.notes[-1] == "this release ignores the unknown fields checks.1.weather, colour"
    assert read.checks[1].evidence["new"] == 3
    assert read.verdict == made_report("PASS").verdict


def test_a_report_that_is_nested_too_deep_is_a_report_error():
    deep = "[" * 900 + "]" * 900
    text = signed(json.loads(TEXT)).replace('"settings": {', f'"settings": {{"deep": {deep}, ', 1)
    with pytest.raises(ReportError):
        AuditReport.from_json(text)


def test_half_a_surrogate_pair_is_written_as_its_escape():
    assert plain({"a": ("\ud800", float("nan"))}) == {"a": ["\\ud800", None]}
