from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.cells import cell_len

from lightning_audit.report.text import evidence_of, print_report, print_summary, summary
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
    Place,
    Verdict,
)

Status = Literal["ok", "violated", "allowed", "not_run"]

CHECKS = (
    CheckResult(
        "noise.witnesses",
        "mechanism",
        "violated",
        "the noise is about a half of what is claimed, over all tensors that were read",
        "look at add_noise",
        log_e_value=100 * math.log(10),
        share=0.3,
    ),
    CheckResult("gradient_replaced", "mechanism", "ok", "the gradient read is the one used"),
    CheckResult("sampling.poisson", "accounting", "allowed", "batches have a fixed size"),
    CheckResult("reuse.broadcast", "mechanism", "not_run", "too few coordinates"),
    CheckResult("accountant.history", "accounting", "ok", "as many entries as steps", "", 0.0),
)
VERDICT = Verdict(
    "VIOLATION",
    "mechanism",
    "the noise is smaller than claimed",
    advice="look at scale_grad, and run again",
    faults=(
        LikelyFault(
            "noise_divided_by_batch",
            "the noise is divided by the batch size twice",
            "noise.witnesses",
            "where the noise is added",
            {"sd_ratio": 0.0163},
            Place(("fc[0].bias",), 12),
        ),
        LikelyFault("no_noise", "no noise", "noise.witnesses"),
    ),
)


def report(**changes: Any) -> AuditReport:
    bound = EpsilonBound(
        "mu", 1.25, 1e-5, 0.25, 0.05, "confidence", "fixed", "anytime", ("flat clipping",)
    )
    fields: dict[str, Any] = {
        "verdict": VERDICT,
        "checks": CHECKS,
        "bounds": (bound,),
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
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm-256color")
    return request.param


def printed(kind: str, *arguments: Any, show: Any = print_report) -> str:
    """What is printed, without colors."""
    with contextlib.redirect_stdout(Tty() if kind == "terminal" else io.StringIO()) as out:
        show(*arguments)
    assert ("\x1b[" in out.getvalue()) == (kind == "terminal")
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())


def test_a_file_gets_aligned_ascii_and_a_terminal_rules(kind: str) -> None:
    out = printed(kind, report(), "report.json")
    assert ("┃" in out) == (kind == "terminal")
    assert out.isascii() == (kind == "file")


def test_everything_that_matters_is_shown(kind: str) -> None:
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
        "Also possible: no noise",
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


def test_mu_of_a_step_is_shown_with_what_it_rests_on(kind: str) -> None:
    found = EpsilonBound("mu", 2.0, 1e-5, 0.284, 0.05, "confidence", "fixed", "single", ())
    out = " ".join(printed(kind, report(bounds=(found,))).split())
    assert "mu of a step: at least 0.284 with 95 % confidence, if signal and noise" in out
    assert "kept a constant ratio" in out


@pytest.mark.parametrize("columns", [80, 100])
def test_check_names_are_whole_on_a_usual_terminal(
    kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(kind, report())
    assert [check.name for check in CHECKS if check.name not in out] == []


def test_what_every_check_saw_is_shown_in_words(kind: str) -> None:
    words = set(printed(kind, report()).split())
    for check in CHECKS:
        assert set(check.message.split()) <= words


def test_what_an_inconclusive_audit_lacks_is_shown(kind: str) -> None:
    verdict = Verdict(
        "INCONCLUSIVE", None, "too short", pass_blockers=("400 more steps", "a claim")
    )
    out = printed(kind, report(verdict=verdict))
    assert "Missing: 400 more steps\nMissing: a claim" in out


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_path_is_not_broken(
    kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = Path("/home/someone") / "a directory with spaces" / ("deep/" * 40) / "report.json"
    assert f"Report: {path}\n" in printed(kind, report(), path)


def test_without_a_path_none_is_named(kind: str) -> None:
    assert "Report:" not in printed(kind, report())


def test_unknown_epsilons_are_left_out_and_said_to_be_unknown(kind: str) -> None:
    nothing = {"claimed_epsilon": None, "epsilon_spent": None, "epsilon_not_excluded": None}
    out = printed(kind, report(bounds=(), **nothing))
    assert "epsilon at delta 1e-05: unknown\n" in out
    assert "epsilon at delta 1e-05: spent inf (composed from the steps)\n" in printed(
        kind, report(bounds=(), **{**nothing, "epsilon_spent": math.inf})
    )


def test_a_report_without_checks_can_be_shown(kind: str) -> None:
    assert "VIOLATION (mechanism)" in printed(kind, report(checks=()))


MARKUP = ["[red]", "[/]", "[bold]x[/bold]", "[/tmp/a]", "[link=x]", "layers[0].weight", "\\[x]"]


@pytest.mark.parametrize("text", MARKUP)
@pytest.mark.parametrize("place", ["message", "summary", "fault", "advice", "note", "path"])
def test_text_that_looks_like_markup_is_shown_as_it_is(kind: str, place: str, text: str) -> None:
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


@pytest.mark.parametrize("place", ["message", "summary", "path"])
def test_colons_around_a_word_do_not_turn_into_a_picture(kind: str, place: str) -> None:
    changes: dict[str, Any] = {}
    if place == "message":
        changes["checks"] = (CheckResult("a", "mechanism", "ok", "epoch:new:5"),)
    elif place == "summary":
        changes["verdict"] = Verdict("PASS", None, "epoch:new:5")
    path = "/runs/epoch:new:5/report.json" if place == "path" else None
    assert "epoch:new:5" in printed(kind, report(**changes), path)


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
def test_evidence_is_the_e_value_as_a_power_of_ten(
    log_e: float | None, status: Status, text: str
) -> None:
    assert evidence_of(CheckResult("a", "mechanism", status, "", log_e_value=log_e)) == text


def test_columns_without_a_terminal_line_up() -> None:
    lines = printed("file", report()).split("Checks\n")[1].splitlines()[1 : len(CHECKS) + 1]
    starts = {line.index(check.message) for line, check in zip(lines, CHECKS, strict=True)}
    assert len(starts) == 1


def test_the_verdict_comes_first_and_what_follows_from_it_has_no_row(kind: str) -> None:
    message = "coordinates differ by less than fresh noise"
    follows = CheckResult(
        "reuse.lag", "mechanism", "violated", message, follows_from="noise.witnesses"
    )
    root = dataclasses.replace(VERDICT.faults[0], consequences=("reuse.lag",))
    verdict = dataclasses.replace(VERDICT, faults=(root,))
    out = printed(kind, report(checks=(*CHECKS, follows), verdict=verdict))
    assert out.strip().startswith("VIOLATION (mechanism): the noise is smaller than claimed")
    assert "Follows from it: reuse.lag\n" in out
    assert out.count("reuse.lag") == out.count("VIOLATED") == 1
    assert message not in out


@pytest.mark.parametrize(
    ("settings", "claimed"),
    [
        ({"claimed_epsilon": None}, "claimed 8 (by the accountant), spent"),
        ({"claimed_epsilon": 8.0}, "claimed 8, spent"),
    ],
)
def test_an_epsilon_that_the_accountant_claims_says_so(
    settings: dict[str, Any], claimed: str
) -> None:
    assert claimed in printed("file", report(settings=settings))


def test_the_summary_has_signs_on_a_terminal_and_ascii_elsewhere(kind: str) -> None:
    path = "runs/" + 40 * "deep/" + "report.json"
    out = printed(kind, report(), path, show=print_summary)
    first, second = out.splitlines()[:2]
    assert first == ""
    assert second.startswith("✕ VIOLATION: the " if kind == "terminal" else "VIOLATION: the ")
    assert ("e-value 10¹⁰⁰" if kind == "terminal" else "e-value 10^100") in out
    assert ("proved ≥ 1.25" if kind == "terminal" else "proved >= 1.25") in out
    assert f"lightning-audit show {path}" in out
    assert (out == f"\n{summary(report(), path)}\n") == (kind == "file")


def test_names_in_wide_letters_keep_the_summary_within_its_columns() -> None:
    place = Place(("層.重み" * 20,), 12)
    root = dataclasses.replace(VERDICT.faults[0], place=place)
    verdict = dataclasses.replace(VERDICT, faults=(root,))
    out = printed("terminal", report(verdict=verdict), show=print_summary)
    assert max(map(cell_len, out.splitlines())) <= 80
