"""`lightning-audit report`: pages of reports and of folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_report import made_report
from page_reports import of_outcome
from parsed_page import check_page

from lightning_audit.cli import main
from lightning_audit.report.page import write_page
from lightning_audit.results.audit_report import Outcome

# --- `lightning-audit card` writes the card of a report, or says why it cannot.

Streams = pytest.CaptureFixture[str]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "digits" / "audit"
    folder.mkdir(parents=True)
    return made_report().save(folder / "report.json")


def test_markdown_and_html_are_written_under_the_name_of_the_training(report, tmp_path, capsys):
    for suffix, start in ((".md", "---\nprivacy:"), (".html", "<!doctype html>")):
        target = tmp_path / f"card{suffix}"
        assert main.main(["card", str(report), "-o", str(target)]) == 0
        assert capsys.readouterr().out == f"{target}\n"
        text = target.read_text(encoding="utf-8")
        assert text.startswith(start)
        assert "Privacy card: digits" in text


def test_without_a_file_the_card_is_printed_and_a_directory_is_a_report(report, capsys):
    assert main.main(["card", str(report.parent), "--name", "mine"]) == 0
    assert "# Privacy card: mine" in capsys.readouterr().out


def test_a_violation_is_a_card_as_well(tmp_path, capsys):
    path = made_report("VIOLATION").save(tmp_path / "report.json")
    facts = tmp_path / "card.yaml"
    facts.write_text("harm: low\n")
    assert main.main(["card", str(path), "--facts", str(facts)]) == 0
    out = capsys.readouterr().out
    assert "Guarantee, claimed and refuted" in out
    assert "▢ low" in out


def test_an_unknown_key_exits_with_2_and_names_the_nearest(report, tmp_path, capsys):
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
    report, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert main.main(["card", *(a.format(report=report) for a in arguments)]) == 2
    assert message in capsys.readouterr().err


# --- `lightning-audit report`: pages of reports and of folders.


def saved(directory: Path, outcome: Outcome = "PASS") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return made_report(outcome).save(directory / "report.json")


def report_report_command(*arguments: object) -> int:
    return main.main(["report", *map(str, arguments)])


def test_a_report_gets_the_page_that_its_training_writes(tmp_path, capsys):
    path = saved(tmp_path / "digits" / "audit")
    written = write_page(made_report(), path.with_name("report.html")).read_bytes()
    path.with_name("report.html").unlink()
    assert report_report_command(path) == 0
    assert path.with_name("report.html").read_bytes() == written
    assert capsys.readouterr().out == f"{path.with_name('report.html')}\n"
    assert b"<title>PASS: digits" in written


def test_a_page_goes_elsewhere_with_its_style_sheet(tmp_path):
    path = saved(tmp_path / "a")
    assert report_report_command(path, "-o", tmp_path / "page.html", "--css", "beside") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "page.html", "report.css"]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["report.json"]
    assert report_report_command(path, "-o", tmp_path) == 0  # a folder
    assert (tmp_path / "report.html").exists()


def test_a_folder_gets_an_index_and_a_page_for_each_report(tmp_path, capsys):
    saved(tmp_path / "fine")
    saved(tmp_path / "half", "VIOLATION")
    assert report_report_command(tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index.html'}\n"
    index = check_page((tmp_path / "index.html").read_text(encoding="utf-8"))
    links = [href for href in index.values("href") if href != "#main"]
    assert links == ["half/report.html", "fine/report.html"]
    assert all((tmp_path / link).exists() for link in links)
    out = tmp_path / "public"
    assert report_report_command(tmp_path, "-o", out) == 0
    assert len(list(out.glob("*.html"))) == 3


def test_a_report_that_cannot_be_read_is_in_the_index_and_ends_with_2(tmp_path, capsys):
    saved(tmp_path / "fine")
    saved(tmp_path / "cut").write_text("{")
    assert report_report_command(tmp_path) == 2
    assert "is not complete JSON" in capsys.readouterr().err
    assert "is not complete JSON" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert report_report_command(tmp_path / "cut" / "report.json") == 2
    assert not (tmp_path / "cut" / "report.html").exists()


def test_refusals_end_with_2(tmp_path, capsys):
    assert report_report_command(tmp_path / "none") == 2
    assert report_report_command(tmp_path) == 2
    assert "is a directory without a report.json" in capsys.readouterr().err
    path = saved(tmp_path / "a")
    assert report_report_command(path, "-o", tmp_path / "no" / "folder.html") == 2
    assert "cannot write" in capsys.readouterr().err
    edited = path.read_text().replace('"outcome": "PASS"', '"outcome": "VIOLATION"')
    path.write_text(edited)
    assert report_report_command(path) == 2


@pytest.mark.heavy
def test_the_command_loads_no_torch(tmp_path):
    path = of_outcome("VIOLATION").save(tmp_path / "report.json")
    script = (
        "import sys\nfrom lightning_audit.report.page import write_page\n"
        "from lightning_audit.cli import report_command\n"
        "from lightning_audit.results.audit_report import AuditReport\n"
        f"write_page(AuditReport.load({str(path)!r}), {str(tmp_path / 'x.html')!r})\n"
        "assert not {'torch', 'opacus', 'pytorch_lightning', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
