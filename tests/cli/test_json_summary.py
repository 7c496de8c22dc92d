from __future__ import annotations

import json

from checked_reports import hostile, of_every_outcome
from made_report import made_report

from lightning_audit.cli.formats import FORMAT_VERSION, as_json_summary


def test_the_document_has_the_outcome_and_each_report_with_its_findings() -> None:
    data = json.loads(as_json_summary(of_every_outcome()))
    assert (data["format_version"], data["outcome"], data["exit_code"]) == (
        FORMAT_VERSION,
        "VIOLATION",
        1,
    )
    assert data["counts"] == {"VIOLATION": 1, "INCONCLUSIVE": 2, "PASS": 1}
    fine, half, short, cut = data["reports"]
    assert [one["exit_code"] for one in data["reports"]] == [0, 1, 2, 2]
    assert (fine["epsilon_lower"], fine["epsilon_spent"], fine["findings"]) == (1.5, 3.0, [])
    (found,) = half["findings"]
    assert (found["check"], found["severity"], found["explains"]) == (
        "noise",
        "critical",
        ["noise.step"],
    )
    assert found["code"][0] == {"name": "Half.add_noise", "file": "src/half.py", "line": 41}
    assert short["reasons"] == ["the canary was taken out"]
    assert cut["gate"][0]["rule"] == "unreadable"
    assert "epsilon_spent" not in cut


def test_an_infinite_epsilon_and_foreign_text_are_valid_json() -> None:
    one = of_every_outcome()[0]
    infinite = type(one)(one.path, one.training, one.place, made_report(spent=float("inf")))

    def refuse(name: str) -> None:
        raise ValueError(name)

    text = as_json_summary([infinite, *hostile()])
    data = json.loads(text.encode(), parse_constant=refuse)
    assert data["reports"][0]["epsilon_spent"] == "inf"
