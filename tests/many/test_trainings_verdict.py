"""The gate on reports of many trainings: what the counts give, and edits of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from many_trainings import audited

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.checks.check import GUESSED_COINS
from lightning_audit.cli.main import main
from lightning_audit.many.verdict import contradiction_of_epsilon, contradictions, promise_of
from lightning_audit.results.audit_report import AuditReport, Verdict
from lightning_audit.verdict import gate

SAMPLED = PrivacyClaim(noise_multiplier=2.0, sample_rate=0.25, steps=100, delta=1e-5)


def edited(report: AuditReport, **changes: Any) -> AuditReport:
    assert report.trainings is not None
    return dataclasses.replace(report, trainings=dataclasses.replace(report.trainings, **changes))


@pytest.fixture(scope="module")
def passing() -> AuditReport:
    return audited(mu=1.0).to_report()


@pytest.mark.parametrize(("mu", "n"), [(1.0, 400), (2.5, 400), (1.0, 60), (0.0, 600)])
def test_reports_of_every_outcome_do_not_contradict_themselves(mu: float, n: int) -> None:
    assert contradictions(audited(mu=mu, n=n).to_report()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"errors": 100},
        {"errors": 500},
        {"guesses": 390},
        {"trainings": 500},
        {"failures": 401},
        {"least_error": 0.2},
        {"log_e_value": 9.0},
        {"log_e_value": -1.0},
        {"error_upper": 0.2},
        {"error_upper_at_end": None},
        {"error_upper_at_end": 0.2},
        {"refuted_after": 30},
        {"significance": 0.0},
        {"mu_lower": 0.9},
        {"claim": "2-GDP"},
    ],
)
def test_an_edited_count_is_found(passing: AuditReport, changes: dict[str, Any]) -> None:
    assert contradictions(edited(passing, **changes)) != []


def test_an_edited_verdict_check_or_bound_is_found(passing: AuditReport) -> None:
    bad = audited(mu=2.5).to_report()
    good = Verdict("PASS", None, "fine")
    higher = tuple(dataclasses.replace(bound, epsilon_lower=0.0) for bound in passing.bounds)
    for edit in (
        dataclasses.replace(bad, verdict=good),
        dataclasses.replace(bad, verdict=passing.verdict),
        dataclasses.replace(bad, checks=passing.checks),
        dataclasses.replace(passing, checks=()),
        dataclasses.replace(passing, bounds=()),
        dataclasses.replace(passing, bounds=higher),
        dataclasses.replace(passing, steps=3),
        dataclasses.replace(passing, trainings=None),
    ):
        assert contradictions(edit) != []


def test_a_report_of_one_training_that_loses_its_counts_is_refused_by_its_gate(
    passing: AuditReport,
) -> None:
    assert gate.contradictions(dataclasses.replace(passing, trainings=None)) != []


@pytest.mark.parametrize("claim", [(4.0, 1e-5), SAMPLED])
def test_the_claim_of_a_report_is_computed_again(claim: Any) -> None:
    report = audited(mu=1.0, n=200, promise=promise_of(claim)).to_report()
    assert contradictions(report) == []
    assert contradiction_of_epsilon(report) == ""
    assert report.trainings is not None
    wrong = edited(report, least_error=report.trainings.least_error * 0.9)
    assert "least_error is" in contradiction_of_epsilon(wrong)
    bounds = tuple(dataclasses.replace(b, epsilon_lower=7.0) for b in report.bounds)
    higher = dataclasses.replace(report, bounds=bounds)
    assert "epsilon_lower is 7.0" in contradiction_of_epsilon(higher)


def test_a_claim_that_is_no_longer_there_is_found() -> None:
    report = audited(n=100, promise=promise_of((4.0, 1e-5))).to_report()
    lost = dataclasses.replace(report, claimed_epsilon=None)
    assert "cannot be composed" in contradiction_of_epsilon(lost)
    assert contradiction_of_epsilon(audited().to_report()) == ""  # a trade-off function


@pytest.mark.parametrize(("mu", "n", "code"), [(1.0, 400, 0), (2.5, 400, 1), (1.0, 60, 2)])
@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif", "github", "markdown"])
def test_the_gate_shows_it_in_every_format(
    mu: float, n: int, code: int, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = audited(mu=mu, n=n).to_report().save(tmp_path / "report.json")
    assert main(["check", str(path), "--format", form]) == code
    shown = capsys.readouterr().out
    assert GUESSED_COINS.failed_title in shown or form in ("text", "json") or code != 1
    assert shown


def test_the_budget_compares_what_is_claimed_and_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(audited(mu=1.0).to_report().save(tmp_path / "report.json"))
    assert main(["check", path, "--max-epsilon", "5"]) == 0
    assert main(["check", path, "--max-epsilon", "4"]) == 1  # 1-GDP is 4.38
    assert "epsilon claimed 4.377" in capsys.readouterr().out


def test_an_edited_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = edited(audited(mu=2.5).to_report(), errors=1)
    assert main(["check", str(report.save(tmp_path / "report.json"))]) == 2
    assert "contradicts itself" in capsys.readouterr().err
