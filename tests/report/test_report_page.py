"""The page of a report: well-formed, complete, without script or request, and small."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from checked_reports import HOSTILE
from made_report import made_report
from page_reports import LONG, hostile, of_outcome, tensors
from parsed_page import check_page, style_of

from lightning_audit.report.page import IndexRow, index_page, report_page, style_sheet
from lightning_audit.results.audit_report import AuditReport, Outcome

OUTCOMES: tuple[Outcome, ...] = ("PASS", "VIOLATION", "INCONCLUSIVE")


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="([\w-]+)"', page)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_page_is_well_formed_and_below_100_kb(outcome: Outcome) -> None:
    page = report_page(of_outcome(outcome), "digits")
    parsed = check_page(page)
    assert outcome in parsed.text
    assert len(page.encode()) < 100_000


def test_a_page_has_every_section_that_its_report_has_numbers_for() -> None:
    rest = ["epsilon", "step", "time", "noise", "examined", "method", "again"]
    assert sections(report_page(of_outcome("VIOLATION"), "x")) == ["finding", *rest]
    assert sections(report_page(of_outcome("INCONCLUSIVE"), "x")) == ["missing", *rest]
    assert sections(report_page(of_outcome("PASS"), "x")) == rest


def test_the_page_of_an_old_report_leaves_out_what_it_lacks() -> None:
    page = report_page(made_report(), "x")
    parsed = check_page(page)
    assert sections(page) == ["epsilon", "step", "examined", "method", "again"]
    assert 'svg class="fig' not in page  # words about one step, and no figure
    assert "Claimed: μ" in parsed.text


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_report_from_its_file_gives_the_same_page(outcome: Outcome) -> None:
    report = of_outcome(outcome)
    again = AuditReport.from_json(report.to_json())
    assert report_page(again, "x") == report_page(report, "x")
    assert json.loads(report.to_json())["sha256"] in report_page(report, "x")


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["markup", "300 letters"])
def test_text_of_a_report_cannot_become_markup(text: str) -> None:
    page = report_page(hostile(text), text)
    parsed = check_page(page)
    assert "<script" not in page.lower()
    assert "<b>&" not in page
    assert not set("\x1b\u202e\ud800") & set(page)
    assert "alert(1)" in parsed.text or 290 * "x" in parsed.text
    page.encode("utf-8")


def test_many_observations_and_tensors_stay_below_300_kb() -> None:
    point = dataclasses.replace(
        of_outcome("PASS").operating_points[0], fn=10_000, tp=40_000, fp=9_000, tn=41_000
    )
    many = tensors(160, flagged=50, name="encoder.layers.attention.self.")
    report = dataclasses.replace(
        of_outcome("VIOLATION"),
        observations=10**5,
        operating_points=(point,) * 9,
        tensors=many,
        epochs=tuple(
            {"epoch": i, "step": i + 1, "epsilon_spent": 0.1 * i, "e_value": 1.0}
            for i in range(1000)
        ),
    )
    assert len(report_page(report, "x").encode()) < 300_000


def test_nothing_is_said_by_color_alone() -> None:
    """Each status has a sign of its own shape, and a word; each bar has its name."""
    page = report_page(of_outcome("VIOLATION"), "x")
    for status, sign in (("violated", "✕"), ("ok", "✓"), ("not_run", "\N{EN DASH}")):
        assert f'<span class="gsign {status}" aria-hidden="true">{sign}</span>' in page
    parsed = check_page(page)
    assert "Too little noise overall fails" in parsed.text


def test_the_style_sheet_serves_dark_screens_print_phones_and_reduced_motion() -> None:
    css = style_sheet()
    for query in (
        "prefers-color-scheme:dark",
        "@media print",
        "max-width:46rem",
        "prefers-reduced-motion",
        "forced-colors:active",
        "details::details-content",
        ":focus-visible",
    ):
        assert query in css
    assert css.count("{") == css.count("}")
    assert style_of(report_page(made_report(), "x")) == css


def test_every_css_variable_that_is_used_is_defined_for_light_and_dark() -> None:
    css = style_sheet()
    light, dark = (
        set(re.findall(r"(--[\w-]+):", part))
        for part in re.findall(r":root\{(.*?)\}", css, re.DOTALL)[:2]
    )
    used = set(re.findall(r"var\((--[\w-]+)", css))
    assert used <= light | {"--v", "--vf"}
    assert light - dark == {"--mono"}


def test_a_page_with_its_style_sheet_next_to_it_has_no_inline_style() -> None:
    page = report_page(of_outcome("PASS"), "x", css_beside=True)
    parsed = check_page(page)
    assert "style" not in parsed.tags
    assert '<link rel="stylesheet" href="report.css">' in page
    # Figures without the style sheet: sizes, strokes and inks are attributes.
    assert set(parsed.values("fill")) >= {"none", "#222"}


def test_an_index_lists_the_worst_first_with_its_page_and_why_others_have_none() -> None:
    rows = [
        IndexRow("fine", "fine/report.html", of_outcome("PASS")),
        IndexRow("cut", "", None, "the report is not complete JSON"),
        IndexRow("half", "half/report.html", of_outcome("VIOLATION")),
    ]
    page = index_page(rows)
    parsed = check_page(page)
    assert "1 VIOLATION, 1 INCONCLUSIVE, 1 PASS" in parsed.text
    assert [href for href in parsed.values("href") if href != "#main"] == [
        "half/report.html",
        "fine/report.html",
    ]
    assert parsed.text.index("half") < parsed.text.index("cut") < parsed.text.index("fine")
    assert "the report is not complete JSON" in parsed.text


def test_an_index_of_hostile_names_is_text() -> None:
    row = IndexRow(HOSTILE, "%22%3E/report.html", hostile(), HOSTILE)
    page = index_page([row, IndexRow(LONG, "", None, LONG)])
    check_page(page)
    assert "<script" not in page.lower()


def test_the_templates_are_in_the_package() -> None:
    import lightning_audit

    folder = Path(lightning_audit.__file__).parent / "report" / "templates"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"base.html.j2", "report.html.j2", "index.html.j2", "signs.html.j2"}
    assert "report.css" in names
