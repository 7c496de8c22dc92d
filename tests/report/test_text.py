"""A report as text: whole, in 15 lines of 80 columns, in a line; signs only on a terminal."""

import contextlib
import dataclasses
import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checked_reports import with_status
from hypothesis import given, settings
from hypothesis import strategies as st
from made_report import made_report
from page_reports import of_outcome
from rich.cells import cell_len

from lightning_audit.checks.check import DECLARED
from lightning_audit.report import text as texts
from lightning_audit.results.audit_report import (
    SAME_FACTOR,
    AuditReport,
    CheckResult,
    LikelyFault,
    Place,
    Verdict,
)
from lightning_audit.results.report_details import ClaimedValue, CodePlace


def report(**changes: Any) -> AuditReport:
    return dataclasses.replace(of_outcome("VIOLATION"), **changes)


class Tty(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["terminal", "file"])
def kind(request, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm-256color")
    return request.param


def printed(kind: str, *arguments: Any, show: Any = texts.print_report) -> str:
    """What is printed, without colors."""
    with contextlib.redirect_stdout(Tty() if kind == "terminal" else io.StringIO()) as out:
        show(*arguments)
    assert ("\x1b[" in out.getvalue()) == (kind == "terminal")
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())


def test_a_file_gets_aligned_ascii_and_a_terminal_rules(kind):
    out = printed(kind, report(), "report.json")
    assert ("┃" in out) == (kind == "terminal")
    assert out.isascii() == (kind == "file")
    assert "Report:" not in printed(kind, report())
    assert "VIOLATION (mechanism)" in printed(kind, report(checks=()))


@pytest.mark.parametrize("columns", [80, 100])
def test_names_and_words_of_every_check_are_whole_on_a_usual_terminal(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out, checks = printed(kind, report()), texts.as_shown(report())
    assert [check.name for check in checks if check.name not in out] == []
    for check in checks:
        assert set(check.message.split()) <= set(out.split())


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_path_is_not_broken(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    path = Path("/home/someone") / "a directory with spaces" / ("deep/" * 40) / "report.json"
    assert f"Report: {path}\n" in printed(kind, report(created=""), path)


@pytest.mark.parametrize(
    ("found", "name", "status"),
    [
        *[("noise.tensor", other, "undecided") for other in ("noise", "noise.whole")],
        *[("noise.whole", other, "undecided") for other in ("noise", "reuse.lag")],
        ("replay.clipping", "sensitivity", "undecided"),
        *[("noise.tensor", other, "ok") for other in ("sensitivity", "reuse.lag", "no_dp")],
        *[("accounting", other, "ok") for other in ("epsilon", "noise")],
    ],
)
def test_a_check_that_the_found_fault_may_violate_does_not_pass(found, name, status):
    failed = with_status(found, "violated")
    of = {check.name: check for check in texts.as_shown(failed)}
    assert (of[name].status, of[found].status) == (status, "violated")
    assert [c for c in texts.as_shown(made_report()) if c.status == "undecided"] == []
    if status == "undecided":
        assert (of[name].follows_from, f"; {found} failed" in of[name].message) == (found, True)


def test_a_fault_of_one_optimizer_leaves_the_checks_of_another_as_they_are():
    one, two = (
        tuple(dataclasses.replace(c, optimizer=label) for c in with_status(*of).checks)
        for label, of in {"1": ("noise.tensor", "violated"), "2": ("noise", "ok")}.items()
    )
    shown = texts.as_shown(report(checks=one + two))
    assert {c.optimizer for c in shown if c.status == "undecided"} == {"1"}


MARKUP = ["[red]", "[/]", "[bold]x[/bold]", "[/tmp/a]", "[link=x]", "layers[0].weight", "\\[x]"]
MARKUP += ["epoch:new:5"]  # no picture


@pytest.mark.parametrize("text", MARKUP)
@pytest.mark.parametrize("place", ["message", "summary", "fault", "advice", "note", "path"])
def test_text_that_looks_like_markup_is_shown_as_it_is(kind, place, text):
    changes: dict[str, Any] = {}
    if place == "message":
        changes["checks"] = (CheckResult("a", "mechanism", "ok", f"before {text} after"),)
    elif place == "note":
        changes["notes"] = (f"before {text} after",)
    elif place != "path":
        fields = {"summary": "short", place: f"before {text} after"}
        changes["verdict"] = Verdict("PASS", None, **fields)
    path = f"before {text} after" if place == "path" else None
    assert f"before {text} after" in printed(kind, report(**changes), path)


def test_the_summary_has_signs_on_a_terminal_and_ascii_elsewhere(kind):
    path = "runs/" + 40 * "deep/" + "report.json"
    out = printed(kind, report(), path, show=texts.print_summary)
    first, second = out.splitlines()[:2]
    assert first == ""
    assert second.startswith("✕ VIOLATION: too" if kind == "terminal" else "VIOLATION: too")
    assert ("e-value 10⁶·²" if kind == "terminal" else "e-value 10^6.2") in out
    assert ("proved ≥ 1.5" if kind == "terminal" else "proved >= 1.5") in out
    assert f"lightning-audit show {path}" in out
    assert (out == f"\n{texts.summary(report(), path)}\n") == (kind == "file")


def test_names_in_wide_letters_keep_the_summary_within_its_columns():
    root = dataclasses.replace(report().verdict.faults[0], place=Place(("層.重み" * 20,), 12))
    verdict = dataclasses.replace(report().verdict, faults=(root,))
    out = printed("terminal", report(verdict=verdict), show=texts.print_summary)
    assert max(map(cell_len, out.splitlines())) <= 80


def test_what_does_not_fit_is_left_out_in_whole_clauses():
    for check in DECLARED.values():
        words = (
            f"{check.name}: {check.look_at} (or not, then); {check.meaning}, and {check.look_at}"
        )
        root = dataclasses.replace(report().verdict.faults[0], seen=words, look_at=words)
        verdict = dataclasses.replace(
            report().verdict, faults=(root,), summary=words, pass_blockers=(words,) * 3
        )
        rows = texts.summary_rows(report(verdict=verdict, notes=(words,)), PATH)
        ends = [row.lines[-1] for row in rows]
        assert [end for end in ends if end.endswith(("...", ":", ";", ",", "("))] == []


def test_a_clause_is_not_left_open():
    text = "too little noise (99 %, for one ratio), in every tensor: half of it, at least"
    short = [texts.shortened(text, lambda s, n=n: len(s) <= n) for n in (80, 60, 35)]
    assert short == [text, text.partition(":")[0], "too little noise"]
    text = "it is unknown whether the loader (name it) draws Poisson batches; if so, say it"
    assert texts.shortened(text, lambda s: len(s) <= 60) == (
        "it is unknown whether the loader draws Poisson batches"
    )


# --- Names and numbers of a report in a few characters.


def test_powers_of_ten_have_a_digit_after_the_point_up_to_ten():
    shown = [
        texts.power_of_ten(power * math.log(10.0)) for power in (0.04, 3.96, 4.6, 9.97, 10.4, 11411)
    ]
    assert shown == ["10^0", "10^4", "10^4.6", "10^10", "10^10", "10^11411"]


def test_a_check_of_another_release_is_shown_by_its_name():
    assert texts.title_of("noise.of_tomorrow") == "noise.of_tomorrow"


# --- The summary of a report has at most 15 lines of 80 columns, and names fault, line and remedy.

PATH = "demo/half-noise/report.json"
HALF = CodePlace("examples/digits.py", 90, 96, "HalfNoise.add_noise")
STEP = CodePlace("examples/digits.py", 58, 60, "Digits.training_step")
FAULT = LikelyFault(
    "noise_too_small",
    "noise scale too small: the noise is 0.49 to 0.51 times the stated (99 % interval)",
    "noise",
    "compare the standard deviation of the noise that is drawn (Opacus: in add_noise) with "
    "noise_multiplier * max_grad_norm",
    place=Place(step=1, code=(HALF, STEP)),
    consequences=("noise.tensor", "reuse.lag"),
    seen="the noise is 0.49 to 0.51 times the stated (99 % interval)",
)


def violation(*faults: LikelyFault, **changes: Any) -> AuditReport:
    made = made_report("VIOLATION")
    verdict = dataclasses.replace(made.verdict, faults=faults or (FAULT,), fault="")
    return dataclasses.replace(made, verdict=verdict, **changes)


def changed(report: AuditReport, name: str, **fields: Any) -> AuditReport:
    """The report with another result of a check."""
    checks = (dataclasses.replace(c, **fields) if c.name == name else c for c in report.checks)
    return dataclasses.replace(report, checks=tuple(checks))


def test_everything_at_once_has_fifteen_lines_and_keeps_root_code_and_remedy():
    long = LikelyFault(
        "one_of_another_package",
        "a fault " + "with many words " * 30,
        "noise",
        "look at " + "one place and then " * 30,
        place=Place(tuple("abcdefgh"), 3, 1, "optimizer 2 (net.weight)", (HALF, STEP)),
        consequences=("noise.tensor",),
    )
    or_else = dataclasses.replace(FAULT, sentence="or " * 90)
    also = [dataclasses.replace(FAULT, finding=name) for name in ("sensitivity", "no_dp")]
    report = violation(long, or_else, *also, notes=("a", "b"))
    told = f"noise: seen; {SAME_FACTOR}"
    verdict = dataclasses.replace(report.verdict, summary=told, holds="it holds " * 30)
    report = dataclasses.replace(report, verdict=verdict, epsilon_refuted_by=("accounting",))
    report = changed(report, "noise.mean", status="warned")
    report = changed(report, "coupling", status="not_run", message="no " + "x " * 80)
    lines = texts.summary(report, PATH).splitlines()
    assert len(lines) == texts.MOST_LINES
    assert max(map(len, lines)) <= texts.WIDTH
    labels = [line[2:15].strip() for line in lines[2:]]
    kept = ("Seen", "Evidence", "Code", "Look at", "Also", "Epsilon", "Not examined", "Report")
    assert set(kept) <= set(labels)
    assert "sensitivity" in "".join(lines) or "other finding" in "".join(lines)
    assert lines[-1].startswith("  Report ")


#: What a module, a file or another release may have put into a report.
FOREIGN = st.one_of(
    st.text(max_size=400),
    st.sampled_from(["[red]x[/red]" * 30, "n" * 300, "\x1b[2K\rPASS\n\u202e", "層" * 100, ""]),
)


@settings(max_examples=30, deadline=None)
@given(FOREIGN, FOREIGN, st.sampled_from(["PASS", "VIOLATION", "INCONCLUSIVE"]))
def test_no_text_of_a_report_makes_it_longer_wider_or_acts_on_a_terminal(text, name, outcome):
    code = (CodePlace(f"{name}.py", 3, 3, name),)
    fault = LikelyFault(name, text, "noise", text, place=Place((name,) * 9, 0, 0, name, code))
    further = dataclasses.replace(fault, finding="sensitivity")
    made = made_report(outcome)
    faults = (fault, further) if outcome == "VIOLATION" else ()
    verdict = Verdict(outcome, None, text, pass_blockers=(text,) * 5, faults=faults, holds=text)
    message = dict.fromkeys(("message", "advice"), text)
    checks = tuple(dataclasses.replace(c, **message) for c in made.checks)
    report = dataclasses.replace(made, verdict=verdict, checks=checks, notes=(text,))
    lines = texts.summary(report, "report.json").split("\n")
    assert len(lines) <= texts.MOST_LINES
    assert max(map(len, lines)) <= texts.WIDTH
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert lines[0].startswith(f"{outcome}:")
    assert not any(line.startswith(("PASS", "VIOLATION")) for line in lines[1:])
    for line in (texts.status_line(report), texts.progress(report)):
        assert line.isprintable()


CLAIM = {
    "expected_batch_size": ClaimedValue(10, "optimizer"),
    "sample_rate": ClaimedValue(0.1, "accountant"),
}


def test_what_lets_more_out_than_epsilon_says_has_a_row():
    made = made_report(published=("loss", "grad_norm"), claim=CLAIM)
    assert texts.warnings_of(made_report()) == []
    (short, whole), *others = texts.warnings_of(dataclasses.replace(made, delta=0.01))
    assert others == []  # 1 / 100 records
    assert short == "logs `loss`, `grad_norm` without noise"
    assert whole.startswith(f"the training {short}: records decide it")
    many = changed(dataclasses.replace(made, delta=0.02), "noise.mean", status="warned")
    assert texts.warnings_of(many)[1][0] == "delta 0.02 is above one over the about 100 records"
    lines = texts.summary(many, PATH).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  Warning "))
    assert short in lines[at]
    assert "noise.mean" in "".join(lines[at : at + 2])
    assert "Warning: delta 0.02 is above one over the about 100 records" in printed("file", many)


def test_a_claim_without_a_finite_number_of_records_has_none():
    for size, rate in ((1e308, 1e-308), (math.inf, 0.1), (10, math.nan), (10, 0.0), ("x", 0.1)):
        claim = {
            "expected_batch_size": ClaimedValue(size, "optimizer"),
            "sample_rate": ClaimedValue(rate, "accountant"),
        }
        assert texts.records_of(made_report(claim=claim)) is None


# --- Text and tables are the same with and without a terminal, and in ASCII without one.


class OldTty(Tty):
    """A terminal that shows ASCII only."""

    encoding = "ascii"


@pytest.fixture
def _no_wishes(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def printed_terminal(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    row = ("[red]noise[/red]", "VIOLATED", "e = 10^750 " * 10)
    texts.print_lines(
        "a :smile: [b]", texts.table(("check", "result", "evidence"), [row], title="é")
    )
    return stream.getvalue()


@pytest.mark.usefixtures("_no_wishes")
def test_a_terminal_gets_rules_and_colors_and_a_file_aligned_ascii(monkeypatch):
    shown = printed_terminal(monkeypatch, Tty())
    assert "\x1b[1;31m" in shown
    assert "┃" in shown
    assert "[red]noise" in shown
    plain = printed_terminal(monkeypatch, io.StringIO())
    assert plain.isascii()
    assert plain.splitlines() == [
        "a :smile: [b]",
        "\\xe9",
        "check             result    evidence",
        f"[red]noise[/red]  VIOLATED  {('e = 10^750 ' * 10).strip()}",
    ]
    assert printed_terminal(monkeypatch, OldTty()) == plain


@pytest.mark.usefixtures("_no_wishes")
def test_a_table_without_headings_is_its_rows_with_numbers_to_the_right_on_request():
    assert texts.as_text(texts.table(["", ""], [("a", "1"), ("bcd", "22")])) == "a    1\nbcd  22"
    shown = texts.as_text(
        texts.table(["x", "n"], [("a", "1"), ("b", "22")], right=["n"], widths=[3, 4])
    )
    assert shown == "x       n\na       1\nb      22"


@pytest.mark.usefixtures("_no_wishes")
def test_what_is_no_ascii_is_escaped_and_powers_are_raised_on_a_terminal():
    assert texts.as_ascii("δ café \U0001f600") == "\\u03b4 caf\\xe9 \\U0001f600"
    assert texts.with_signs("10^-2.5 <= 10^750 >= 10^") == "10⁻²·⁵ ≤ 10⁷⁵⁰ ≥ 10^"


@pytest.mark.usefixtures("_no_wishes")
def test_control_characters_of_a_cell_are_shown():
    assert texts.as_text(texts.table([""], [("a\x1b[2K\r\n\u202eb",)])) == "a\\x1b[2K\\r\\n\\u202eb"


@pytest.mark.parametrize(
    ("evidence", "private"),
    [({"delta_above_records": True}, False), ({"delta_above_records": True}, True), ({}, True)],
)
def test_a_delta_above_one_over_the_records_is_a_warning_without_a_private_number(
    evidence, private
):
    claim = {} if evidence else CLAIM
    report = changed(made_report(claim=claim), "accounting", evidence=evidence)
    settings = {**report.settings, "claim": {"private_dataset_size": private}}
    ((short, _),) = texts.warnings_of(dataclasses.replace(report, settings=settings, delta=0.05))
    assert short == "delta 0.05 is above one over the number of records"


@pytest.mark.parametrize(
    ("evidence", "warns"),
    [
        ({"of_neighbours": [29], "epsilon_of_divisor": 92.0}, False),
        ({"of_neighbours": [29], "epsilon_of_divisor": 0.0, "private_dataset_size": True}, False),
        ({"of_neighbours": [29], "epsilon_of_divisor": 0.4, "private_dataset_size": True}, True),
    ],
)
def test_a_divisor_is_a_warning_only_if_it_costs_more_than_delta(evidence, warns):
    report = made_report()
    found = CheckResult("expected_batch_size", "accounting", "ok", "seen", evidence=evidence)
    report = dataclasses.replace(report, checks=(*report.checks, found))
    assert bool(texts.warnings_of(report)) == warns
