"""The page of a report: well-formed, complete, without script or request, and small."""

import ast
import base64
import dataclasses
import hashlib
import html
import inspect
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from checked_reports import HOSTILE
from made_report import made_report
from many_trainings import audited
from page_reports import LONG, hostile, of_outcome, tensors
from parsed_page import check_page, style_of

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries.gradient import Dirac
from lightning_audit.config import canaries_of
from lightning_audit.many.audit_trainings import audit_training
from lightning_audit.many.training_audit import conclude
from lightning_audit.report import page as pages
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.verdict.allow import Allow
from lightning_audit.verdict.judge import Resolution

NAMES = {kind.__name__: kind for kind in (PrivacyAudit, PrivacyClaim, Resolution, Allow, Dirac)}


def report_of(audit: PrivacyAudit, *given: str) -> AuditReport:
    settings = audit.config.settings(ended=True)
    return AuditReport.from_json(made_report(settings=settings, settings_given=given).to_json())


def test_the_defaults_are_those_of_the_audit():
    signature = inspect.signature(PrivacyAudit.__init__).parameters
    plain = PrivacyAudit(seed=1).config.settings()
    for name, value in pages.DEFAULTS.items():
        stated = signature[name].default if name in signature else None
        settled = plain[name]
        assert value == (list(stated) if isinstance(stated, tuple) else settled), name
    assert set(plain) == {*pages.DEFAULTS, "canaries", "delta", "seed"}


AUDITS = [
    ((), PrivacyAudit(seed=3)),
    (("claimed_epsilon",), PrivacyAudit(claimed_epsilon=8.0, delta=1e-6, seed=3)),
    (
        ("claim", "resolution", "on_violation", "significance"),
        PrivacyAudit(
            claim=PrivacyClaim(epsilon=4.0, delta=1e-5, adjacency="replace_one"),
            resolution=Resolution(noise=0.9),
            on_violation="warn",
            significance=1e-4,
            seed=3,
        ),
    ),
    (
        ("allow",),
        PrivacyAudit(
            allow=["ledger.draws", Allow("no_dp", optimizer="G", reason='the "public" part')],
            seed=3,
        ),
    ),
    (("canaries", "bounds"), PrivacyAudit(canaries=[Dirac()], bounds=["fdp_cp"], seed=3)),
]


@pytest.mark.parametrize(("given", "audit"), AUDITS)
def test_the_call_makes_the_same_audit(given, audit):
    again = eval(
        compile(ast.parse(pages.call(report_of(audit, *given)), mode="eval"), "", "eval"), NAMES
    )
    assert again.config.settings(ended=True) == audit.config.settings(ended=True)


def test_a_report_that_does_not_say_what_was_given_leaves_out_the_defaults():
    audit = PrivacyAudit(claimed_epsilon=8.0, bounds="all", seed=3)
    text = pages.call(report_of(audit))
    assert "claimed_epsilon=8.0" in text
    assert "bounds=[" in text
    assert "resolution" not in text
    assert "canaries" not in text
    assert len(canaries_of(None, 8)) == 8


def test_the_call_over_many_trainings_has_the_settings_that_were_given():
    given = {"canary": "Crafted", "score": "default", "stop": "end", "seed": 3, "trainings": 60}
    audit = audited(n=60, significance=0.01)
    for settings, function, planned in (
        (given, audit_training, "trainings"),
        ({}, conclude, "planned"),
    ):
        made = ast.parse(pages.call(audit.to_report(settings)), mode="eval").body
        assert isinstance(made, ast.Call)
        assert ast.unparse(made.func) == function.__name__
        stated = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
        assert stated.pop(planned) == "60"
        assert stated.pop("significance") == "0.01"
        assert set(stated) == {name for name in settings if name not in ("score", "trainings")}
        positional = list(inspect.signature(function).parameters)
        assert [ast.unparse(one) for one in made.args] == positional[: len(made.args)]
        assert {planned, "significance", *stated} <= set(positional)


def addresses(index: Path) -> list[str]:
    parsed = check_page(index.read_text(encoding="utf-8"))
    return [href for href in parsed.values("href") if not href.startswith("#")]


def test_a_page_is_written_whole_and_replaces_a_link(tmp_path):
    (tmp_path / "other").write_text("kept")
    page = tmp_path / "report.html"
    page.symlink_to(tmp_path / "other")
    report = made_report()
    assert pages.write_page(report, page, "digits") == page
    assert page.read_text(encoding="utf-8") == pages.report_page(report, "digits")
    assert (tmp_path / "other").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "report.html"]


def test_pages_are_next_to_their_reports_and_the_index_links_them(tmp_path):
    odd = tmp_path / 'a "b" <c> #d'
    odd.mkdir()
    sources = [
        pages.Source("odd", odd, made_report()),
        pages.Source("cut", tmp_path / "cut", None, "not complete"),
    ]
    index = pages.write_pages(sources, tmp_path, "report.html", into=False)
    (address,) = addresses(index)
    assert (tmp_path / unquote(address)).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "not complete" in index.read_text(encoding="utf-8")


def test_pages_in_one_folder_have_names_of_their_own(tmp_path):
    names = ["runs/a", "runs-a", "RUNS/A", "index", "../../etc/x", "ä" * 300, "."]
    sources = [pages.Source(name, tmp_path / "x", made_report()) for name in names]
    index = pages.write_pages(sources, tmp_path, "report.html", into=True)
    found = addresses(index)
    assert len({name.lower() for name in found}) == len(names)
    assert {path.name for path in tmp_path.iterdir()} == {*found, "index.html"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/digits/audit/report.html", "digits"),
        ("/x/half/report.html", "half"),
        ("/r.html", "training"),
    ],
)
def test_a_training_is_named_after_its_folder(path, name):
    assert pages.training_of(Path(path)) == name


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["markup", "300 letters"])
def test_text_of_a_report_cannot_become_markup(text):
    page = pages.report_page(hostile(text), text)
    parsed = check_page(page)
    assert "<script" not in page.lower()
    assert "<b>&" not in page
    assert not set("\x1b\u202e\ud800") & set(page)
    assert "alert(1)" in parsed.text or 290 * "x" in parsed.text
    page.encode("utf-8")


def test_many_observations_and_tensors_stay_below_300_kb():
    point = dataclasses.replace(
        of_outcome("PASS").operating_points[0], fn=10_000, tp=40_000, fp=9_000, tn=41_000
    )
    many = tensors(160, flagged=50, name="encoder.layers.attention.self.")
    logged = {"epsilon_spent": 1.0, "e_value": 1.0}
    report = dataclasses.replace(
        of_outcome("VIOLATION"),
        observations=10**5,
        operating_points=(point,) * 9,
        tensors=many,
        epochs=tuple({**logged, "epoch": i, "step": i + 1} for i in range(1000)),
    )
    assert len(pages.report_page(report, "x").encode()) < 300_000


def test_nothing_is_said_by_color_alone():
    """Each status has a sign of its own shape, and a word; each bar has its name."""
    page = pages.report_page(of_outcome("VIOLATION"), "x")
    for status, sign in (("violated", "✕"), ("ok", "✓"), ("not_run", "\N{EN DASH}")):
        assert f'<span class="gsign {status}" aria-hidden="true">{sign}</span>' in page
    parsed = check_page(page)
    assert "Too little noise overall fails" in parsed.text


def test_the_style_sheet_serves_dark_screens_print_phones_and_reduced_motion():
    css = pages.style_sheet()
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
    assert style_of(pages.report_page(made_report(), "x")) == css


def test_every_css_variable_that_is_used_is_defined_for_light_and_dark():
    css = pages.style_sheet()
    light, dark = (
        set(re.findall(r"(--[\w-]+):", part))
        for part in re.findall(r":root\{(.*?)\}", css, re.DOTALL)[:2]
    )
    used = set(re.findall(r"var\((--[\w-]+)", css))
    assert used <= light | {"--v", "--vf"}
    assert light - dark == {"--mono"}


def test_a_page_with_its_style_sheet_next_to_it_has_no_inline_style():
    page = pages.report_page(of_outcome("PASS"), "x", css_beside=True)
    parsed = check_page(page)
    assert "style" not in parsed.tags
    assert '<link rel="stylesheet" href="report.css">' in page
    # Figures without the style sheet: sizes, strokes and inks are attributes.
    assert set(parsed.values("fill")) >= {"none", "#222"}


def test_a_page_forbids_what_it_does_not_contain():
    for beside, source in ((True, "style-src 'self'"), (False, "style-src 'sha256-")):
        page = pages.report_page(made_report(), "t", css_beside=beside)
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html.unescape(page))
        assert policy.startswith("default-src 'none'; ")
        assert source in policy
    sheet = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


def test_an_index_of_hostile_names_is_text():
    row = pages.Source(HOSTILE, Path(), hostile(), HOSTILE, "%22%3E/report.html")
    page = pages.index_page([row, pages.Source(LONG, Path(), None, LONG)])
    check_page(page)
    assert "<script" not in page.lower()
