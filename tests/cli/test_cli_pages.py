"""`lightning-audit card` and `report`: cards, pages and indices, or why there are none."""

import pytest
from made_report import made_report
from parsed_page import check_page

from lightning_audit.report.page import write_page


@pytest.fixture
def report(saved):
    return saved("digits/audit")


def test_markdown_and_html_are_written_under_the_name_of_the_training(report, tmp_path, cli):
    for suffix, start in ((".md", "---\nprivacy:"), (".html", "<!doctype html>")):
        target = tmp_path / f"card{suffix}"
        assert cli("card", report, "-o", target) == (0, f"{target}\n", "")
        text = target.read_text(encoding="utf-8")
        assert text.startswith(start)
        assert "Privacy card: digits" in text


def test_a_violation_is_a_card_as_well(tmp_path, cli, saved):
    facts = tmp_path / "card.yaml"
    facts.write_text("harm: low\n")
    said = cli("card", saved("", "VIOLATION").parent, "--facts", facts, "--name", "mine")
    assert said.code == 0
    assert "# Privacy card: mine" in said.out
    assert "Guarantee, claimed and refuted" in said.out
    assert "▢ low" in said.out


def test_an_unknown_key_exits_with_2_and_names_the_nearest(report, tmp_path, cli):
    facts, target = tmp_path / "card.yaml", tmp_path / "card.md"
    facts.write_text("harms: low\n")
    said = cli("card", report, "--facts", facts, "-o", target)
    assert (said.code, said.out, target.exists()) == (2, "", False)
    assert "'harms': did you mean 'harm'?" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("none.json", "cannot read"),
        ("{report} -o card.pdf", "must end in .md or .html"),
        ("{report} -o absent/card.md", "cannot write"),
        ("{report} --facts absent.yaml", "cannot read the facts"),
    ],
)
def test_what_cannot_be_read_or_written_exits_with_2(
    report, tmp_path, cli, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    said = cli("card", *arguments.format(report=report).split())
    assert said.code == 2
    assert message in said.err


def test_a_report_gets_the_page_that_its_training_writes(report, cli):
    page = report.with_name("report.html")
    written = write_page(made_report(), page).read_bytes()
    page.unlink()
    assert cli("report", report) == (0, f"{page}\n", "")
    assert page.read_bytes() == written
    assert b"<title>PASS: digits" in written


def test_a_page_goes_elsewhere_with_its_style_sheet(tmp_path, cli, saved):
    path = saved("a")
    assert cli("report", path, "-o", tmp_path / "page.html", "--css", "beside").code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "page.html", "report.css"]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["report.json"]
    assert cli("report", path, "-o", tmp_path).code == 0  # a folder
    assert (tmp_path / "report.html").exists()


def test_a_folder_gets_an_index_and_a_page_for_each_report(tmp_path, cli, saved):
    saved("fine")
    saved("half", "VIOLATION")
    assert cli("report", tmp_path) == (0, f"{tmp_path / 'index.html'}\n", "")
    index = check_page((tmp_path / "index.html").read_text(encoding="utf-8"))
    links = [href for href in index.values("href") if href != "#main"]
    assert links == ["half/report.html", "fine/report.html"]
    assert all((tmp_path / link).exists() for link in links)
    assert cli("report", tmp_path, "-o", tmp_path / "public").code == 0
    assert len(list((tmp_path / "public").glob("*.html"))) == 3


def test_several_reports_get_their_pages_or_one_index_in_a_folder(tmp_path, cli, saved):
    one, other, cut = saved("one"), saved("other").parent, saved("cut")
    cut.write_text("{")
    said = cli("report", one, cut, other)
    assert (said.code, said.out) == (2, f"{one.with_name('report.html')}\n{other / 'index.html'}\n")
    assert "is not complete JSON" in said.err
    public = tmp_path / "public"
    assert cli("report", one, other, "-o", public) == (0, f"{public / 'index.html'}\n", "")
    assert len(list(public.glob("*.html"))) == 3


def test_a_report_that_cannot_be_read_is_in_the_index_and_ends_with_2(tmp_path, cli, saved):
    saved("fine")
    cut = saved("cut")
    cut.write_text("{")
    said = cli("report", tmp_path)
    assert said.code == 2
    assert "is not complete JSON" in said.err
    assert "is not complete JSON" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert cli("report", cut).code == 2
    assert not cut.with_name("report.html").exists()


def test_refusals_end_with_2(tmp_path, cli, saved):
    assert cli("report", tmp_path / "none").code == 2
    said = cli("report", tmp_path)
    assert said.code == 2
    assert "is a directory without a report.json" in said.err
    path = saved("a")
    said = cli("report", path, "-o", tmp_path / "no" / "folder.html")
    assert said.code == 2
    assert "cannot write" in said.err
    path.write_text(path.read_text().replace('"outcome": "PASS"', '"outcome": "VIOLATION"'))
    assert cli("report", path).code == 2
