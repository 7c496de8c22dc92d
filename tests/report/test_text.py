"""A report as text: whole, in 15 lines of 80 columns, in a line; signs only on a terminal."""

import contextlib
import dataclasses
import io
import math
import re
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_report import made_report
from many_trainings import audited
from rich.cells import cell_len

from lightning_audit.checks.check import REGISTRY
from lightning_audit.report import text as texts
from lightning_audit.results.audit_report import (
    AT_END,
    SAME_FACTOR,
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
    Place,
    Verdict,
)
from lightning_audit.results.report_details import ClaimedValue, CodePlace

Status = Literal["ok", "violated", "allowed", "not_run"]

SAW = "the noise is about a half of what is claimed, over all tensors that were read"
CHECKS = (
    CheckResult(
        *("noise.witnesses", "mechanism", "violated", SAW, "look at add_noise"),
        *(100 * math.log(10), 0.3),
    ),
    CheckResult("gradient_replaced", "mechanism", "ok", "the gradient read is the one used"),
    CheckResult("sampling.poisson", "accounting", "allowed", "batches have a fixed size"),
    CheckResult("reuse.broadcast", "mechanism", "not_run", "too few coordinates"),
    CheckResult("accountant.history", "accounting", "ok", "as many entries as steps", "", 0.0),
)
DIVIDED = LikelyFault(
    *("noise_divided_by_batch", "the noise is divided by the batch size twice"),
    *("noise.witnesses", "where the noise is added", {"sd_ratio": 0.0163}),
    Place(("fc[0].bias",), 12),
)
VERDICT = Verdict(
    *("VIOLATION", "mechanism", "the noise is smaller than claimed"),
    advice="look at scale_grad, and run again",
    faults=(DIVIDED, LikelyFault("no_noise", "no noise", "noise.witnesses")),
)
LIMITS = ("confidence", "fixed", "anytime", ("flat clipping",))


def report(**changes: Any) -> AuditReport:
    fields: dict[str, Any] = {
        "verdict": VERDICT,
        "checks": CHECKS,
        "bounds": (EpsilonBound("mu", 1.25, 1e-5, 0.25, 0.05, *LIMITS),),
        "claimed_epsilon": 8.0,
        "epsilon_spent": 3.5,
        "epsilon_not_excluded": 4.0,
        "delta": 1e-5,
        "steps": 117,
        "observations": 819,
        "history": (),
        "power": {},
        "epochs": (),
        "settings": {},
        "environment": {},
        "notes": ("one canary was left out",),
        "audit_cost": {"seconds": 1.234, "share": 0.087},
        "examination_cost": {"first": 0.51, "first_step_times": 52.7, "later": 0.066},
    }
    return AuditReport(**{**fields, **changes})


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


def test_everything_that_matters_is_shown(kind):
    out = printed(kind, report(), "somewhere/report.json")
    shown = [
        *(check.name for check in CHECKS),
        "VIOLATED",
        "allowed",
        "not run",
        "e = 10^100.0",
        "VIOLATION (mechanism): the noise is smaller than claimed",
        "Likely fault: the noise is divided by the batch size twice",
        "Where: `fc[0].bias`, first seen in step 13",
        "Evidence: sd_ratio 0.0163",
        "Or: no noise",
        "Next: look at scale_grad, and run again",
        "epsilon at delta 1e-05: claimed 8, spent 3.5 (composed from the steps), "
        "proved at least 1.25 (from the readings), not excluded up to 4",
        "117 steps, 819 canary readings",
        "the audit took 1.2 s, 8.7 % of the rest of the training; the first examination by replay "
        "0.51 s (53 step times), later ones 0.066 s",
        "Note: one canary was left out",
        "Report: somewhere/report.json",
    ]
    assert [text for text in shown if text not in out] == []


def test_mu_of_a_step_is_shown_with_what_it_rests_on(kind):
    found = EpsilonBound("mu", 2.0, 1e-5, 0.284, 0.05, "confidence", "fixed", "single", ())
    out = " ".join(printed(kind, report(bounds=(found,))).split())
    assert "mu of a step: at least 0.284 with 95 % confidence, if signal and noise" in out
    assert "kept a constant ratio" in out


def test_the_bound_of_the_planned_end_is_shown_next_to_that_of_all_looks(kind):
    limits = ("confidence", "fixed", "single", ())
    bounds = (*report().bounds, EpsilonBound(AT_END, 1.75, 1e-5, 0.3, 0.05, *limits))
    ended = report(bounds=bounds)
    assert (ended.epsilon_lower_at_end, report().epsilon_lower_at_end) == (1.75, None)
    assert AuditReport.from_json(ended.to_json()).epsilon_lower_at_end == 1.75
    out = " ".join(printed(kind, ended).split())
    assert "at the planned end" in out
    assert "1.75" in out
    assert "at the planned end" not in " ".join(printed(kind, report()).split())


@pytest.mark.parametrize("columns", [80, 100])
def test_names_and_words_of_every_check_are_whole_on_a_usual_terminal(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(kind, report())
    assert [check.name for check in CHECKS if check.name not in out] == []
    for check in CHECKS:
        assert set(check.message.split()) <= set(out.split())


def test_what_an_inconclusive_audit_lacks_is_shown(kind):
    lacks = ("400 more steps", "a claim")
    verdict = Verdict("INCONCLUSIVE", None, "too short", pass_blockers=lacks)
    out = printed(kind, report(verdict=verdict))
    assert "Missing: 400 more steps\nMissing: a claim" in out


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_path_is_not_broken(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    path = Path("/home/someone") / "a directory with spaces" / ("deep/" * 40) / "report.json"
    assert f"Report: {path}\n" in printed(kind, report(), path)


@pytest.mark.parametrize(
    ("spent", "told"), [(None, "unknown"), (math.inf, "spent inf (composed from the steps)")]
)
def test_unknown_epsilons_are_left_out_and_said_to_be_unknown(kind, spent, told):
    unknown = dict.fromkeys(("claimed_epsilon", "epsilon_not_excluded"))
    out = printed(kind, report(bounds=(), epsilon_spent=spent, **unknown))
    assert f"epsilon at delta 1e-05: {told}\n" in out


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


@pytest.mark.parametrize(
    ("log_e", "status", "text"),
    [
        (None, "violated", ""),
        (0.0, "ok", "e = 10^0.0"),
        (math.log(1e6), "violated", "e = 10^6.0"),
        (math.log(0.01), "ok", "e = 10^-2.0"),
        (5.0, "not_run", ""),
    ],
)
def test_evidence_is_the_e_value_as_a_power_of_ten(log_e, status, text):
    assert texts.evidence_of(CheckResult("a", "mechanism", status, "", log_e_value=log_e)) == text


def test_columns_without_a_terminal_line_up():
    lines = printed("file", report()).split("Checks\n")[1].splitlines()[1 : len(CHECKS) + 1]
    starts = {line.index(check.message) for line, check in zip(lines, CHECKS, strict=True)}
    assert len(starts) == 1


def test_the_verdict_comes_first_and_what_follows_from_it_has_no_row(kind):
    message = "coordinates differ by less than fresh noise"
    follows = CheckResult("reuse.lag", "mechanism", "violated", message)
    follows = dataclasses.replace(follows, follows_from="noise.witnesses")
    root = dataclasses.replace(DIVIDED, consequences=("reuse.lag",))
    verdict = dataclasses.replace(VERDICT, faults=(root,))
    out = printed(kind, report(checks=(*CHECKS, follows), verdict=verdict))
    assert out.strip().startswith("VIOLATION (mechanism): the noise is smaller than claimed")
    assert "Explains: reuse.lag\n" in out
    assert out.count("reuse.lag") == out.count("VIOLATED") == 1
    assert message not in out


@pytest.mark.parametrize(
    ("settings", "claimed"),
    [
        ({"claimed_epsilon": None}, "claimed 8 (by the accountant), spent"),
        ({"claimed_epsilon": 8.0}, "claimed 8, spent"),
    ],
)
def test_an_epsilon_that_the_accountant_claims_says_so(settings, claimed):
    assert claimed in printed("file", report(settings=settings))


def test_the_summary_has_signs_on_a_terminal_and_ascii_elsewhere(kind):
    path = "runs/" + 40 * "deep/" + "report.json"
    out = printed(kind, report(), path, show=texts.print_summary)
    first, second = out.splitlines()[:2]
    assert first == ""
    assert second.startswith("✕ VIOLATION: the " if kind == "terminal" else "VIOLATION: the ")
    assert ("e-value 10¹⁰⁰" if kind == "terminal" else "e-value 10^100") in out
    assert ("proved ≥ 1.25" if kind == "terminal" else "proved >= 1.25") in out
    assert f"lightning-audit show {path}" in out
    assert (out == f"\n{texts.summary(report(), path)}\n") == (kind == "file")


def test_names_in_wide_letters_keep_the_summary_within_its_columns():
    root = dataclasses.replace(DIVIDED, place=Place(("層.重み" * 20,), 12))
    verdict = dataclasses.replace(VERDICT, faults=(root,))
    out = printed("terminal", report(verdict=verdict), show=texts.print_summary)
    assert max(map(cell_len, out.splitlines())) <= 80


# --- Names and numbers of a report in a few characters.


def test_powers_of_ten_have_a_digit_after_the_point_up_to_ten():
    shown = [
        texts.power_of_ten(power * math.log(10.0)) for power in (0.04, 3.96, 4.6, 9.97, 10.4, 11411)
    ]
    assert shown == ["10^0", "10^4", "10^4.6", "10^10", "10^10", "10^11411"]


def test_long_names_keep_their_ends_and_a_check_of_another_release_is_shown_by_its_name():
    name = "model.encoder.layers.11.attention.output.dense.weight"
    assert texts.short_name(name) == "model.encoder...dense.weight"
    assert len(texts.short_name(name)) == 28
    assert texts.short_name("net.0.weight") == "net.0.weight"
    assert texts.title_of("noise.of_tomorrow") == "noise.of_tomorrow"


def test_the_counts_of_many_trainings_are_a_line():
    seen = audited(mu=0.3, n=60).seen
    assert texts.counts_line(seen) == (
        f"trainings: 60 of 60 planned; coins: {seen.errors} of {seen.guesses} guessed wrong; error "
        f"rate: at most {seen.error_upper:.3g} where 0.309 or more is claimed"
    )


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


def test_a_violation_says_what_is_wrong_where_and_what_to_do():
    report = changed(violation(), "reuse.pair", status="not_run", message="one tensor")
    assert texts.summary(report, PATH).splitlines() == [
        "VIOLATION: too little noise is added",
        "  Seen         the noise is 0.49 to 0.51 times the stated (99 % interval)",
        "  Evidence     e-value 10^6.2, alarm at 10^4; first seen in step 2 of 100",
        "  Code         examples/digits.py:90 HalfNoise.add_noise, examples/digits.py:58",
        "               Digits.training_step",
        "  Look at      compare the standard deviation of the noise that is drawn",
        "               (Opacus: in add_noise) with noise_multiplier * max_grad_norm",
        "  Explains     2 more failed checks",
        "  Epsilon      claimed 8 (accountant), spent 3 (as stated), proved >= 1.5; delta",
        "               1e-05",
        "  Checks ok    Clipping 5/5        Noise 10/11 x       Randomness 5/5",
        "               Update 5/5          Sampling 2/2        Epsilon 2/2",
        "  Not examined noise across tensors (one tensor)",
        f"  Report       lightning-audit show {PATH}",
    ]


def test_a_pass_says_what_it_would_have_seen_and_what_it_does_not_cover():
    made = made_report()
    made = dataclasses.replace(made, settings={**made.settings, "claimed_epsilon": 8.0})
    assert texts.summary(made, PATH).splitlines() == [
        "PASS: no fault found in 100 steps",
        "  Code         no line is suspected of a fault; nothing to do",
        "  Epsilon      claimed 8, spent 3, proved >= 1.5, not excluded up to 4; delta",
        "               1e-05",
        "  Would catch  0.8 times the noise (99%), 2 times the clipping norm (>99%)",
        "  Checks ok    Clipping 5/5        Noise 11/11         Randomness 6/6",
        "               Update 5/5          Sampling 2/2        Epsilon 2/2",
        "  Not examined no check was left out",
        "  Not covered  preprocessing, other releases, several records of one person",
        f"  Report       lightning-audit show {PATH}",
    ]


def test_an_inconclusive_audit_says_what_is_missing():
    lines = texts.summary(made_report("INCONCLUSIVE"), PATH).splitlines()
    assert lines[:2] == [
        "INCONCLUSIVE: no check failed, but a PASS needs more than this run has shown",
        "  Code         no line is suspected of a fault",
    ]
    assert lines[2] == "  Missing      the canary was taken out"
    assert len(lines) == 11


def test_of_many_missing_items_three_are_shown_and_the_others_counted():
    items = tuple(f"item {number} {'word ' * 40}" for number in range(7))
    made = made_report("INCONCLUSIVE")
    verdict = dataclasses.replace(made.verdict, pass_blockers=items)
    shown = texts.summary(dataclasses.replace(made, verdict=verdict), PATH)
    assert [f"item {number} " in shown for number in range(4)] == [True, True, True, False]
    assert "and 4 more" in shown


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


@settings(max_examples=60, deadline=None)
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


def test_a_long_path_is_in_one_piece():
    path = "/home/someone/" + "deep/" * 60 + "report.json"
    assert texts.summary(made_report(), path).endswith(
        f"\n  Report       lightning-audit show {path}"
    )
    assert "Report" not in texts.summary(made_report())


def test_what_is_allowed_and_what_does_not_hold_with_it_is_said():
    made = made_report(epsilon_refuted_by=("accounting",), spent=9.0)
    allowed = {"allowed": ("accounting",), "holds": "the epsilon that holds is 9"}
    verdict = dataclasses.replace(made.verdict, **allowed)
    lines = texts.summary(dataclasses.replace(made, verdict=verdict)).splitlines()
    assert lines[0] == "PASS except accounting (allowed): no other fault found in 100 steps"
    assert lines[2] == "  Allowed      the epsilon that holds is 9"
    assert "claimed 8 (accountant, not known to hold), spent 9 (holds)" in lines[3]


def test_a_proved_epsilon_of_zero_is_nothing_and_the_accountants_claim_is_named():
    shown = texts.summary(made_report(proved=0.0))
    assert "claimed 8 (accountant), spent 3, no bound proved, not excluded" in " ".join(
        shown.split()
    )


def test_what_lets_more_out_than_epsilon_says_has_a_row():
    claim = {
        "expected_batch_size": ClaimedValue(10, "optimizer"),
        "sample_rate": ClaimedValue(0.1, "accountant"),
    }
    made = made_report(published=("loss", "grad_norm"), claim=claim)
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


def test_the_first_note_is_told_and_the_others_are_counted():
    shown = texts.summary(made_report(notes=("one canary was left out", "b", "c")), PATH)
    assert "\n  Note         one canary was left out (and 2 notes)\n" in shown
    assert "Note" not in texts.summary(made_report(), PATH)


def test_no_infinite_epsilon_is_excluded():
    shown = texts.summary(made_report(epsilon_not_excluded=math.inf))
    assert "none excluded yet" in " ".join(shown.split())
    assert "inf" not in shown


def test_an_undecided_finding_and_a_warning_are_named():
    report = changed(made_report("INCONCLUSIVE"), "noise", status="undecided")
    report = changed(report, "noise.mean", status="warned")
    shown = texts.summary(report)
    for label, name in (("Unclear", "noise"), ("Warning", "noise.mean")):
        title = REGISTRY[name].failed_title
        assert f"  {label:<13}{title[0].lower()}{title[1:]} ({name})" in shown
    assert "Noise 10/11 ?" in shown
    assert texts.progress(report) == "unclear | eps>=1.5"


def test_a_report_without_checks_says_so():
    unknown = {"claimed": None, "spent": None, "epsilon_not_excluded": None}
    shown = texts.summary(made_report(checks=(), bounds=(), power={}, **unknown))
    assert "Epsilon      unknown; delta 1e-05" in shown
    assert "Not examined everything" in shown
    assert "Clipping -          Noise -" in shown


def test_the_log_line_and_the_progress_bar_have_the_verdict_in_a_few_words():
    assert texts.status_line(violation()) == (
        "VIOLATION (mechanism): too little noise is added (noise), first seen in step 2, "
        "examples/digits.py:90 HalfNoise.add_noise"
    )
    assert texts.progress(violation()) == "VIOLATION | noise"
    assert texts.progress(made_report(proved=0.4123)) == "ok | eps>=0.41"
    assert (
        texts.progress(made_report(proved=None)) == texts.progress(made_report(proved=0.0)) == "ok"
    )


@pytest.mark.parametrize(
    ("mu", "n", "told"),
    [
        (1.0, 400, "PASS: 400 trainings do not refute 1-GDP"),
        (2.5, 400, "VIOLATION: 400 trainings refute 1-GDP"),
        (0.3, 60, "INCONCLUSIVE: 60 trainings do not refute 1-GDP"),
    ],
)
def test_many_trainings_have_their_own_words(mu, n, told):
    text = texts.summary(audited(mu=mu, n=n).to_report(), "report.json")
    lines = text.split("\n")
    assert lines[0] == told
    assert len(lines) <= texts.MOST_LINES
    assert max(map(len, lines)) <= texts.WIDTH
    assert "guessed wrong; error rate at most" in text
    assert not any(word in text for word in ("0 steps", "no line is suspected", "Not examined"))


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
def test_a_path_is_not_broken_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", out := Tty())
    path = "/home/someone/" + "deep/" * 40
    texts.print_lines(path)
    assert out.getvalue() == f"{path}\n"


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


@pytest.mark.parametrize("private", [False, True])
def test_a_delta_above_one_over_the_records_is_a_warning_without_a_stated_number(private):
    report = changed(made_report(), "accounting", evidence={"delta_above_records": True})
    settings = {**report.settings, "claim": {"private_dataset_size": private}}
    ((short, _),) = texts.warnings_of(dataclasses.replace(report, settings=settings, delta=0.05))
    assert short == "delta 0.05 is above one over the number of records"


def test_the_number_of_records_is_not_in_a_warning_if_it_is_private():
    claim = {
        "expected_batch_size": ClaimedValue(10, "user"),
        "sample_rate": ClaimedValue(0.1, "accountant"),
    }
    made = made_report(claim=claim)
    settings = {**made.settings, "claim": {"private_dataset_size": True}}
    ((short, _),) = texts.warnings_of(dataclasses.replace(made, settings=settings, delta=0.05))
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


def test_the_items_of_a_record_are_next_to_each_epsilon():
    report = made_report()
    settings = {**report.settings, "claim": {"items_per_record": 2}}
    report = dataclasses.replace(report, settings=settings)
    assert texts.epsilons(report).endswith(", with up to 2 items a record")
    assert "with up to 2 items a record: claimed" in printed("file", report)
