"""The summary of a report has at most 15 lines of 80 columns, and names fault, line and remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_report import made_report
from many_trainings import audited

from lightning_audit.checks.check import REGISTRY
from lightning_audit.report.text import MOST_LINES, WIDTH, progress, status_line, summary
from lightning_audit.results.audit_report import (
    SAME_FACTOR,
    AuditReport,
    LikelyFault,
    Place,
    Verdict,
)
from lightning_audit.results.report_details import CodePlace

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
)


def violation(*faults: LikelyFault, **changes: Any) -> AuditReport:
    made = made_report("VIOLATION")
    verdict = dataclasses.replace(made.verdict, faults=faults or (FAULT,), fault="")
    return dataclasses.replace(made, verdict=verdict, **changes)


def changed(report: AuditReport, name: str, **fields: Any) -> AuditReport:
    """The report with another result of a check."""
    checks = (dataclasses.replace(c, **fields) if c.name == name else c for c in report.checks)
    return dataclasses.replace(report, checks=tuple(checks))


def test_a_violation_says_what_is_wrong_where_and_what_to_do() -> None:
    report = changed(violation(), "reuse.pair", status="not_run", message="not tested: one tensor")
    assert summary(report, PATH).splitlines() == [
        "VIOLATION: too little noise is added",
        "  Seen         the noise is 0.49 to 0.51 times the stated (99 % interval)",
        "  Evidence     e-value 10^6.2, alarm at 10^4; first in step 2 of 100",
        "  Code         examples/digits.py:90 HalfNoise.add_noise, examples/digits.py:58",
        "               Digits.training_step",
        "  Look at      compare the standard deviation of the noise that is drawn",
        "               (Opacus: in add_noise) with noise_multiplier * max_grad_norm",
        "  Explains     2 more failed checks",
        "  Epsilon      claimed 8 (accountant), spent 3 (as stated), proved >= 1.5; delta",
        "               1e-05",
        "  Checks ok    Clipping 5/5        Noise 10/11 x       Randomness 5/5",
        "               Update 3/3          Sampling 2/2        Epsilon 2/2",
        "  Not examined noise across tensors (one tensor)",
        f"  Report       lightning-audit show {PATH}",
    ]


def test_a_pass_says_what_it_would_have_seen_and_what_it_does_not_cover() -> None:
    made = made_report()
    made = dataclasses.replace(made, settings={**made.settings, "claimed_epsilon": 8.0})
    assert summary(made, PATH).splitlines() == [
        "PASS: no fault found in 100 steps",
        "  Code         no line is suspected of a fault; nothing to do",
        "  Epsilon      claimed 8, spent 3, proved >= 1.5, excluded > 4; delta 1e-05",
        "  Would catch  0.8 times the noise (99%), 2 times the clipping norm (>99%)",
        "  Checks ok    Clipping 5/5        Noise 11/11         Randomness 6/6",
        "               Update 3/3          Sampling 2/2        Epsilon 2/2",
        "  Not examined no check was left out",
        "  Not covered  preprocessing, other releases, several records of one person",
        f"  Report       lightning-audit show {PATH}",
    ]


def test_an_inconclusive_audit_says_what_is_missing() -> None:
    lines = summary(made_report("INCONCLUSIVE"), PATH).splitlines()
    assert lines[:2] == [
        "INCONCLUSIVE: no check failed, but a PASS needs more than this run has shown",
        "  Code         no line is suspected of a fault",
    ]
    assert lines[2] == "  Missing      the canary was taken out"
    assert len(lines) == 11


def test_of_many_missing_items_three_are_shown_and_the_others_counted() -> None:
    items = tuple(f"item {number} {'word ' * 40}" for number in range(7))
    made = made_report("INCONCLUSIVE")
    verdict = dataclasses.replace(made.verdict, pass_blockers=items)
    shown = summary(dataclasses.replace(made, verdict=verdict), PATH)
    assert [f"item {number} " in shown for number in range(4)] == [True, True, True, False]
    assert "and 4 more" in shown


def test_everything_at_once_has_fifteen_lines_and_keeps_root_code_and_remedy() -> None:
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
    report = changed(report, "coupling", status="not_run", message="not tested: no " + "x " * 80)
    lines = summary(report, PATH).splitlines()
    assert len(lines) == MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    labels = [line[2:15].strip() for line in lines[2:]]
    kept = ("Seen", "Evidence", "Code", "Look at", "Also", "Epsilon", "Not examined", "Report")
    assert set(kept) <= set(labels)
    assert "sensitivity" in "".join(lines) or "other finding" in "".join(lines)
    assert lines[-1].endswith("(has 2 notes)")


#: What a module, a file or another release may have put into a report.
FOREIGN = st.one_of(
    st.text(max_size=400),
    st.sampled_from(["[red]x[/red]" * 30, "n" * 300, "\x1b[2K\rPASS\n\u202e", "層" * 100, ""]),
)


@settings(max_examples=60, deadline=None)
@given(FOREIGN, FOREIGN, st.sampled_from(["PASS", "VIOLATION", "INCONCLUSIVE"]))
def test_no_text_of_a_report_makes_it_longer_wider_or_acts_on_a_terminal(
    text: str, name: str, outcome: Any
) -> None:
    code = (CodePlace(f"{name}.py", 3, 3, name),)
    fault = LikelyFault(name, text, "noise", text, place=Place((name,) * 9, 0, 0, name, code))
    further = dataclasses.replace(fault, finding="sensitivity")
    made = made_report(outcome)
    faults = (fault, further) if outcome == "VIOLATION" else ()
    verdict = Verdict(outcome, None, text, pass_blockers=(text,) * 5, faults=faults, holds=text)
    message = dict.fromkeys(("message", "advice"), text)
    checks = tuple(dataclasses.replace(c, **message) for c in made.checks)
    report = dataclasses.replace(made, verdict=verdict, checks=checks, notes=(text,))
    lines = summary(report, "report.json").split("\n")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert lines[0].startswith(f"{outcome}:")
    assert not any(line.startswith(("PASS", "VIOLATION")) for line in lines[1:])
    for line in (status_line(report), progress(report)):
        assert line.isprintable()


def test_a_long_path_is_in_one_piece() -> None:
    path = "/home/someone/" + "deep/" * 60 + "report.json"
    assert summary(made_report(), path).endswith(f"\n  Report       lightning-audit show {path}")
    assert "Report" not in summary(made_report())


def test_what_is_allowed_and_what_does_not_hold_with_it_is_said() -> None:
    made = made_report(epsilon_refuted_by=("accounting",), spent=9.0)
    verdict = dataclasses.replace(
        made.verdict, allowed=("accounting",), holds="the epsilon that holds is 9"
    )
    lines = summary(dataclasses.replace(made, verdict=verdict)).splitlines()
    assert lines[0] == "PASS except accounting (allowed): no other fault found in 100 steps"
    assert lines[2] == "  Allowed      the epsilon that holds is 9"
    assert "claimed 8 (accountant, not known to hold), spent 9 (holds)" in lines[3]


def test_a_proved_epsilon_of_zero_is_nothing_and_the_accountants_claim_is_named() -> None:
    shown = summary(made_report(proved=0.0))
    assert "claimed 8 (accountant), spent 3, no bound proved, excluded > 4" in shown


def test_an_undecided_finding_and_a_warning_are_named() -> None:
    report = changed(made_report("INCONCLUSIVE"), "noise", status="undecided")
    report = changed(report, "noise.mean", status="warned")
    shown = summary(report)
    for label, name in (("Unclear", "noise"), ("Warning", "noise.mean")):
        title = REGISTRY[name].failed_title
        assert f"  {label:<13}{title[0].lower()}{title[1:]} ({name})" in shown
    assert "Noise 10/11 ?" in shown
    assert progress(report) == "unclear | eps>=1.5"


def test_a_report_without_checks_says_so() -> None:
    report = made_report(checks=(), bounds=(), power={}, claimed=None, spent=None)
    report = dataclasses.replace(report, epsilon_not_excluded=None)
    shown = summary(report)
    assert "Epsilon      unknown; delta 1e-05" in shown
    assert "Not examined everything" in shown
    assert "Clipping -          Noise -" in shown


def test_the_log_line_and_the_progress_bar_have_the_verdict_in_a_few_words() -> None:
    assert status_line(violation()) == (
        "VIOLATION (mechanism): too little noise is added (noise), first seen in step 2, "
        "examples/digits.py:90 HalfNoise.add_noise"
    )
    assert progress(violation()) == "VIOLATION | noise"
    assert progress(made_report(proved=0.4123)) == "ok | eps>=0.41"
    assert progress(made_report(proved=None)) == progress(made_report(proved=0.0)) == "ok"


@pytest.mark.parametrize(
    ("mu", "n", "told"),
    [
        (1.0, 400, "PASS: 400 trainings do not refute 1-GDP"),
        (2.5, 400, "VIOLATION: 400 trainings refute 1-GDP"),
        (0.3, 60, "INCONCLUSIVE: 60 trainings do not refute 1-GDP"),
    ],
)
def test_many_trainings_have_their_own_words(mu: float, n: int, told: str) -> None:
    text = summary(audited(mu=mu, n=n).to_report(), "report.json")
    lines = text.split("\n")
    assert lines[0] == told
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert "guessed wrong; error rate at most" in text
    assert not any(word in text for word in ("0 steps", "no line is suspected", "Not examined"))
