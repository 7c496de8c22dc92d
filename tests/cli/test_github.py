from __future__ import annotations

import re
from pathlib import Path

import pytest
from checked_reports import checked, hostile, of_every_outcome, violated, with_status
from made_report import made_report

from lightning_audit.cli.formats import MOST, as_github, as_markdown

_COMMAND = re.compile(r"::(\w+) (.*?)::(.*)")
_CODES = {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}


@pytest.fixture(autouse=True)
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def decoded(text: str) -> str:
    return re.sub("%(0A|0D|3A|2C|25)", lambda found: _CODES[found[0]], text)


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """The workflow commands of an output, as the runner of GitHub reads them."""
    found = []
    for line in text.splitlines():
        if line.lstrip().startswith("::"):
            match = _COMMAND.fullmatch(line.lstrip())
            assert match, line
            level, parts, message = match.groups()
            properties = dict(part.split("=", 1) for part in parts.split(","))
            shown = {name: decoded(value) for name, value in properties.items()}
            found.append((level, shown, decoded(message)))
    return found


def test_each_finding_is_annotated_at_its_place() -> None:
    found = commands(as_github(of_every_outcome()))
    assert [level for level, *_ in found] == ["error"] * 3
    _, where, message = found[0]
    assert where == {
        "title": "Too little noise is added (half)",
        "file": "src/half.py",
        "line": "41",
    }
    assert message.startswith("noise, critical: ")
    assert found[1][1]["title"] == "Privacy audit of short: INCONCLUSIVE"
    assert found[2][2] == "the report is not complete JSON"


def test_what_is_allowed_is_a_notice_and_a_pass_has_none() -> None:
    allowed = with_status("sensitivity", "allowed")
    ((level, *_),) = commands(as_github([checked(allowed), checked(made_report(), "fine")]))
    assert level == "notice"


def test_of_many_findings_ten_are_annotated_errors_first() -> None:
    allowed = [checked(with_status("sensitivity", "allowed"), f"a{i}") for i in range(5)]
    found = commands(as_github([*allowed, *(checked(violated(), f"v{i}") for i in range(11))]))
    assert len(found) == MOST == 10
    assert {level for level, *_ in found} == {"error"}
    assert found[-1][2] == "7 more findings"


def test_the_lines_of_the_text_follow() -> None:
    assert "x half   VIOLATION" in as_github(of_every_outcome())


def test_the_step_summary_is_the_markdown_and_is_appended(summary: Path) -> None:
    summary.write_text("before\n", encoding="utf-8")
    as_github(of_every_outcome())
    expected = "before\n" + as_markdown(of_every_outcome()) + "\n"
    assert summary.read_text(encoding="utf-8") == expected


def test_outside_of_a_job_no_summary_is_written(
    summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert commands(as_github(of_every_outcome()))
    assert not summary.exists()


def test_a_summary_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(IsADirectoryError):
        as_github(of_every_outcome())


def test_foreign_text_begins_no_command() -> None:
    text = as_github(hostile())
    assert [level for level, *_ in commands(text)] == ["error"] * len(commands(text))
    assert all("::" not in line[2:].split("::", 1)[0] for line in text.splitlines())
    after = "\n".join(line for line in text.splitlines() if not line.startswith("::"))
    assert "::" not in after
    assert "##[" not in after
