from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest
from checked_reports import checked, hostile, of_every_outcome, violated, with_status
from made_report import made_report
from places import REPOSITORY

from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli.formats import Checked, Remark, as_sarif
from lightning_audit.results.report_details import places_in

#: The schema of OASIS, which is no part of the repository.
SCHEMA = REPOSITORY.parent / "shared" / "reference" / "sarif-schema-2.1.0.json"


def run_of(every: list[Checked]) -> dict[str, Any]:
    (run,) = json.loads(as_sarif(every))["runs"]
    return run


def results(every: list[Checked]) -> list[dict[str, Any]]:
    return list(run_of(every)["results"])


def uri(result: dict[str, Any]) -> str:
    return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


def every_status() -> list[Checked]:
    statuses = ("violated", "undecided", "allowed", "warned")
    return [checked(with_status("sensitivity", status), status) for status in statuses]


@pytest.mark.skipif(not SCHEMA.exists(), reason=f"the schema of SARIF 2.1.0 is not at {SCHEMA}")
@pytest.mark.parametrize("every", [of_every_outcome, hostile, every_status, list])
def test_the_document_is_valid_against_the_schema(every: Any) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    data = json.loads(as_sarif(every()))
    assert [error.message for error in validator.iter_errors(data)] == []
    data["runs"][0]["results"] = [{"ruleId": 1}]
    assert list(validator.iter_errors(data))


def test_the_rule_of_a_finding_is_its_check_and_its_place_the_users_code() -> None:
    run = run_of(of_every_outcome())
    found = run["results"][0]
    assert (found["ruleId"], found["level"], found["kind"]) == ("noise", "error", "fail")
    assert uri(found) == "src/half.py"
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": 41}
    assert found["relatedLocations"][0]["logicalLocations"][0]["fullyQualifiedName"] == (
        "Lit.training_step"
    )
    rule = run["tool"]["driver"]["rules"][found["ruleIndex"]]
    assert rule["id"] == "noise"
    assert rule["fullDescription"]["text"] == REGISTRY["noise"].meaning
    assert rule["properties"]["security-severity"] == "9.0"
    assert "security" in rule["properties"]["tags"]  # without it GitHub ignores the severity


def test_every_location_is_relative_to_the_repository() -> None:
    for result in results([*of_every_outcome(), *hostile()]):
        for location in (*result["locations"], *result["relatedLocations"]):
            artifact = location["physicalLocation"]["artifactLocation"]
            assert not artifact["uri"].startswith(("/", "file:", ".."))
            assert artifact["uriBaseId"] == "%SRCROOT%"


def test_a_fingerprint_depends_on_check_and_training_and_on_no_line_or_number() -> None:
    def prints(*every: Checked) -> list[str]:
        return [one["partialFingerprints"]["checkAndTraining/v1"] for one in results([*every])]

    first = violated()
    fault = first.verdict.faults[0]
    moved = dataclasses.replace(
        fault.place, code=places_in("Half.add_noise at src/half.py:99"), step=3
    )
    verdict = dataclasses.replace(
        first.verdict, faults=(dataclasses.replace(fault, place=moved),), fault=""
    )
    checks = tuple(dataclasses.replace(c, message="7 of 9") for c in first.checks)
    later = dataclasses.replace(first, verdict=verdict, checks=checks, steps=7, created="later")
    assert prints(checked(first)) == prints(checked(later))
    assert prints(checked(first)) != prints(checked(first, "another"))
    every = prints(*of_every_outcome(), checked(with_status("sensitivity", "violated")))
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("status", "level", "severity", "suppressed"),
    [
        ("violated", "error", "critical", False),
        ("undecided", "warning", "theoretical", False),
        ("allowed", "error", "critical", True),
        ("warned", "note", "negligible", False),
    ],
)
def test_the_severity_is_one_of_three_words_and_what_is_allowed_is_suppressed(
    status: str, level: str, severity: str, suppressed: bool
) -> None:
    (found,) = results([checked(with_status("sensitivity", status))])
    assert (found["level"], found["properties"]["severity"]) == (level, severity)
    assert ("suppressions" in found) == suppressed


def test_an_inconclusive_report_is_open_and_an_unreadable_one_an_error_of_the_run() -> None:
    run = run_of(of_every_outcome())
    by_rule = {result["ruleId"]: result for result in run["results"]}
    assert (by_rule["gate.verdict"]["kind"], by_rule["gate.verdict"]["level"]) == ("open", "none")
    assert by_rule["gate.unreadable"]["level"] == "error"
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "the report is not complete JSON"
    assert run_of([checked(made_report())])["invocations"][0]["executionSuccessful"] is True


def test_an_exceeded_budget_is_a_result_of_its_own() -> None:
    remark = Remark("max-epsilon", "VIOLATION", "epsilon spent 3")
    (found,) = results([checked(made_report(), "lit", remark)])
    assert (found["ruleId"], found["message"]["text"]) == ("gate.max-epsilon", "epsilon spent 3")
    assert uri(found) == "lit/report.json"


def test_a_pass_has_no_result() -> None:
    assert results([checked(made_report())]) == []
