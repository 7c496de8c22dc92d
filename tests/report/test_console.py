from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from lightning_audit.report.console import as_text, evidence_of, print_report
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


@pytest.fixture(params=["rich", "plain"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "160")
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    return request.param


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    print_report(*arguments)
    streams = capsys.readouterr()
    assert streams.err == ""
    return streams.out


def test_without_rich_the_text_is_printed_and_with_it_a_table(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, report(), "report.json")
    assert (out == as_text(report(), "report.json") + "\n") == (kind == "plain")
    assert ("┃" in out) == (kind == "rich")


def test_everything_that_matters_is_shown(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, report(), "somewhere/report.json")
    shown = [
        *(check.name for check in CHECKS),
        "VIOLATED",
        "allowed",
        "not run",
        "e = 10^100.0",
        "VIOLATION (mechanism): the noise is smaller than claimed",
        "Likely fault: the noise is divided by the batch size twice",
        "Where: `fc[0].bias`, first seen at step 13",
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


def test_mu_of_a_step_is_shown_with_what_it_rests_on(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = EpsilonBound("mu", 2.0, 1e-5, 0.284, 0.05, "confidence", "fixed", "single", ())
    out = " ".join(printed(capsys, report(bounds=(found,))).split())
    assert "mu of a step: at least 0.284 with 95 % confidence, if signal and noise" in out
    assert "kept a constant ratio" in out


@pytest.mark.parametrize("columns", [80, 100])
def test_check_names_are_whole_on_a_usual_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(capsys, report())
    assert [check.name for check in CHECKS if check.name not in out] == []


def test_what_every_check_saw_is_shown_in_words(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = set(printed(capsys, report()).split())
    for check in CHECKS:
        assert set(check.message.split()) <= words


def test_what_an_inconclusive_audit_lacks_is_shown(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = Verdict(
        "INCONCLUSIVE", None, "too short", pass_blockers=("400 more steps", "a claim")
    )
    out = printed(capsys, report(verdict=verdict))
    assert "Missing: 400 more steps\nMissing: a claim" in out


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_path_is_not_broken(
    kind: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = Path("/home/someone") / "a directory with spaces" / ("deep/" * 40) / "report.json"
    assert f"Report: {path}\n" in printed(capsys, report(), path)


def test_without_a_path_none_is_named(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Report:" not in printed(capsys, report())


def test_unknown_epsilons_are_left_out_and_said_to_be_unknown(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = {"claimed_epsilon": None, "epsilon_spent": None, "epsilon_not_excluded": None}
    out = printed(capsys, report(bounds=(), **nothing))
    assert "epsilon at delta 1e-05: unknown\n" in out
    assert "epsilon at delta 1e-05: spent inf (composed from the steps)\n" in printed(
        capsys, report(bounds=(), **{**nothing, "epsilon_spent": math.inf})
    )


def test_a_report_without_checks_can_be_shown(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "VIOLATION (mechanism)" in printed(capsys, report(checks=()))


MARKUP = ["[red]", "[/]", "[bold]x[/bold]", "[/tmp/a]", "[link=x]", "layers[0].weight", "\\[x]"]


@pytest.mark.parametrize("text", MARKUP)
@pytest.mark.parametrize("place", ["message", "summary", "fault", "advice", "note", "path"])
def test_text_that_looks_like_markup_is_shown_as_it_is(
    kind: str, place: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {}
    if place == "message":
        changes["checks"] = (CheckResult("a", "mechanism", "ok", f"before {text} after"),)
    elif place == "note":
        changes["notes"] = (f"before {text} after",)
    elif place != "path":
        fields = {"summary": "short", place: f"before {text} after"}
        changes["verdict"] = Verdict("PASS", None, **fields)
    path = f"before {text} after" if place == "path" else None
    assert f"before {text} after" in printed(capsys, report(**changes), path)


@pytest.mark.parametrize("place", ["message", "summary", "path"])
def test_colons_around_a_word_do_not_turn_into_a_picture(
    kind: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {}
    if place == "message":
        changes["checks"] = (CheckResult("a", "mechanism", "ok", "epoch:new:5"),)
    elif place == "summary":
        changes["verdict"] = Verdict("PASS", None, "epoch:new:5")
    path = "/runs/epoch:new:5/report.json" if place == "path" else None
    assert "epoch:new:5" in printed(capsys, report(**changes), path)


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


def test_columns_of_the_plain_text_line_up() -> None:
    lines = as_text(report()).split("Checks\n")[1].splitlines()[: len(CHECKS)]
    starts = {line.index(check.message) for line, check in zip(lines, CHECKS, strict=True)}
    assert len(starts) == 1


def test_the_verdict_comes_first_and_what_follows_from_it_has_no_row(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "coordinates differ by less than fresh noise"
    follows = CheckResult(
        "reuse.lag", "mechanism", "violated", message, follows_from="noise.witnesses"
    )
    root = dataclasses.replace(VERDICT.faults[0], consequences=("reuse.lag",))
    verdict = dataclasses.replace(VERDICT, faults=(root,))
    out = printed(capsys, report(checks=(*CHECKS, follows), verdict=verdict))
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
    assert claimed in as_text(report(settings=settings))
