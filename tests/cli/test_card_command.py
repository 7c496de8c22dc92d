"""`lightning-audit card` writes the card of a report, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_report import made_report

from lightning_audit.cli import main

Streams = pytest.CaptureFixture[str]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "digits" / "audit"
    folder.mkdir(parents=True)
    return made_report().save(folder / "report.json")


def test_markdown_and_html_are_written_under_the_name_of_the_training(
    report: Path, tmp_path: Path, capsys: Streams
) -> None:
    for suffix, start in ((".md", "---\nprivacy:"), (".html", "<!doctype html>")):
        target = tmp_path / f"card{suffix}"
        assert main.main(["card", str(report), "-o", str(target)]) == 0
        assert capsys.readouterr().out == f"{target}\n"
        text = target.read_text(encoding="utf-8")
        assert text.startswith(start)
        assert "Privacy card: digits" in text


def test_without_a_file_the_card_is_printed_and_a_directory_is_a_report(
    report: Path, capsys: Streams
) -> None:
    assert main.main(["card", str(report.parent), "--name", "mine"]) == 0
    assert "# Privacy card: mine" in capsys.readouterr().out


def test_a_violation_is_a_card_as_well(tmp_path: Path, capsys: Streams) -> None:
    path = made_report("VIOLATION").save(tmp_path / "report.json")
    facts = tmp_path / "card.yaml"
    facts.write_text("harm: low\n")
    assert main.main(["card", str(path), "--facts", str(facts)]) == 0
    out = capsys.readouterr().out
    assert "Guarantee, claimed and refuted" in out
    assert "▢ low" in out


def test_an_unknown_key_exits_with_2_and_names_the_nearest(
    report: Path, tmp_path: Path, capsys: Streams
) -> None:
    facts, target = tmp_path / "card.yaml", tmp_path / "card.md"
    facts.write_text("harms: low\n")
    assert main.main(["card", str(report), "--facts", str(facts), "-o", str(target)]) == 2
    said = capsys.readouterr()
    assert (said.out, target.exists()) == ("", False)
    assert "'harms': did you mean 'harm'?" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json"], "cannot read"),
        (["{report}", "-o", "card.pdf"], "must end in .md or .html"),
        (["{report}", "-o", "absent/card.md"], "cannot write"),
        (["{report}", "--facts", "absent.yaml"], "cannot read the facts"),
    ],
)
def test_what_cannot_be_read_or_written_exits_with_2(
    report: Path,
    tmp_path: Path,
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["card", *(a.format(report=report) for a in arguments)]) == 2
    assert message in capsys.readouterr().err
