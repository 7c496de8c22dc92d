from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from checked_reports import checked, of_every_outcome, unreadable, violated
from made_report import made_report

from lightning_audit.cli.formats import Remark, counts, exit_code, named
from lightning_audit.results.audit_report import Outcome


def test_the_worst_outcome_gives_the_exit_code_and_all_are_counted() -> None:
    every = of_every_outcome()
    assert [one.outcome for one in every] == ["PASS", "VIOLATION", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert exit_code(every) == 1
    assert exit_code(every[2:]) == exit_code([every[0], every[3]]) == 2
    assert exit_code(every[:1]) == 0
    assert counts(every) == {"VIOLATION": 1, "INCONCLUSIVE": 2, "PASS": 1}


@pytest.mark.parametrize(
    ("verdict", "remark", "expected"),
    [
        ("PASS", "VIOLATION", "VIOLATION"),
        ("PASS", "INCONCLUSIVE", "INCONCLUSIVE"),
        ("INCONCLUSIVE", "VIOLATION", "VIOLATION"),
        ("VIOLATION", "INCONCLUSIVE", "VIOLATION"),
    ],
)
def test_a_remark_makes_an_outcome_worse_and_never_better(
    verdict: Outcome, remark: Outcome, expected: Outcome
) -> None:
    one = checked(made_report(verdict), "lit", Remark("max-epsilon", remark, "a sentence"))
    assert one.outcome == expected
    assert ("a sentence" in one.reasons) == (remark == expected)


def test_reasons_are_the_root_the_missing_and_the_remarks_and_a_pass_has_none() -> None:
    assert checked(violated()).reasons == ["Too little noise is added (noise)"]
    assert checked(made_report("INCONCLUSIVE")).reasons == ["the canary was taken out"]
    assert unreadable().reasons == ["the report is not complete JSON"]
    assert checked(made_report()).reasons == []
    report = violated()
    verdict = dataclasses.replace(report.verdict, faults=(), fault="", summary="noise: seen")
    assert checked(dataclasses.replace(report, verdict=verdict)).reasons == ["noise: seen"]


def test_a_training_has_the_same_name_in_every_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for clone in ("one", "two/deeper"):
        root = tmp_path / clone
        (root / ".git").mkdir(parents=True)
        monkeypatch.chdir(tmp_path if clone == "one" else root)
        paths = [root / "runs" / name / "audit" / "report.json" for name in ("a", "b")]
        found.append([rest for _, *rest in named(list(map(str, paths)))])
    assert found[0] == found[1]
    assert found[0][0] == ["runs/a", "runs/a/audit/report.json"]


def test_names_of_different_reports_differ(tmp_path: Path) -> None:
    outside = ["a/x/y/audit/report.json", "b/x/y/audit/report.json", "b/x/y/report.json"]
    paths = [str(tmp_path / path) for path in outside]
    names = [name for _, name, _ in named([*paths, "b/x.json", "b/x/report.json"])]
    assert len(set(names)) == len(names) == 5
    assert all(str(tmp_path) not in name for name in names)
