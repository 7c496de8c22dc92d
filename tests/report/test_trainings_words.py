"""The page of an audit over many trainings has no words of an audit inside one training."""

from __future__ import annotations

import pytest
from many_trainings import audited
from parsed_page import check_page

from lightning_audit.report.page import IndexRow, index_page, report_page
from lightning_audit.report.page_tables import method_table
from lightning_audit.report.page_verdict import bound_row
from lightning_audit.report.page_verdict import facts_of_trainings as facts
from lightning_audit.report.text import NOT_TRIED, counted
from lightning_audit.results.audit_report import AuditReport

#: Strength of the canary and number of trainings, by the outcome that they give.
AUDITS = {"PASS": (1.0, 400), "VIOLATION": (2.5, 200), "INCONCLUSIVE": (0.3, 60)}
#: What to compare after a violation; it counts steps by right.
ADVICE = "number of steps of a training"


def of_outcome(outcome: str) -> AuditReport:
    mu, n = AUDITS[outcome]
    report = audited(mu=mu, n=n).to_report({"trainings": n, "seed": 1}, seconds=2.5)
    assert report.verdict.outcome == outcome
    return report


@pytest.mark.parametrize("outcome", list(AUDITS))
def test_a_page_counts_trainings_and_coins_and_no_step(outcome: str) -> None:
    report = of_outcome(outcome)
    seen = report.trainings
    assert seen is not None
    parsed = check_page(report_page(report, "many"))
    text = parsed.text.lower().replace(ADVICE, "")
    for word in ("step", "canary reading", "privacyaudit(", "other checks", "resolution"):
        assert word not in text
    for _, value, remark in counted(seen):
        assert f"{value} {remark}" in parsed.text
    assert f"{NOT_TRIED[1:]}." in parsed.text
    assert "audit_training( train, dataset, claim, # 1-GDP" in parsed.text
    assert "The audit took 2.5 s." in parsed.text
    names = [row.name for row in method_table(report).rows]
    assert len(names) == len(set(names))
    assert not {"step", "time", "noise", "finding"} & set(parsed.ids)


def test_each_outcome_says_what_it_means_and_what_a_longer_run_shows() -> None:
    words = {
        "PASS": ("400 trainings do not refute 1-GDP.", "The attack saw at least mu"),
        "VIOLATION": ("200 trainings refute 1-GDP.", "Compare clipping, noise, sampling"),
        "INCONCLUSIVE": ("60 trainings do not refute 1-GDP.", "What a pass still needs"),
    }
    for outcome, found in words.items():
        report = of_outcome(outcome)
        text = check_page(report_page(report, "many")).text
        assert all(part.lower() in text.lower() for part in found)
        if outcome == "INCONCLUSIVE":
            assert report.verdict.advice[1:] in text


def test_each_bound_has_its_method_and_what_it_is_valid_for() -> None:
    report = of_outcome("VIOLATION")
    told = {(bound.name, bound.looks): bound_row(bound) for bound in report.bounds}
    assert {key: name for key, (name, _) in told.items()} == {
        ("coins", "anytime"): "Proved at least",
        ("coins", "single"): "At the planned end",
        ("coins_any", "anytime"): "Proved at least, any mechanism",
        ("coins_any", "single"): "At the planned end, any mechanism",
    }
    assert all(
        means.endswith(("Gaussian outputs.", "any mechanism.")) for _, means in told.values()
    )
    text = check_page(report_page(report, "many")).text
    assert all(means.replace("\N{NO-BREAK SPACE}", " ") in text for _, means in told.values())
    assert "error rate of the guessed coins, in the form of the claim" in text
    assert "a bound of the literature" not in text


def test_failures_and_the_refutation_are_facts() -> None:
    report = of_outcome("VIOLATION")
    assert report.trainings is not None
    found = {name: (value, remark) for name, value, remark in facts(report.trainings)}
    assert found["Refuted"] == (f"after {report.trainings.refuted_after}", "trainings")
    assert "Refuted" not in {name for name, *_ in facts(of_outcome("PASS").trainings)}  # type: ignore[arg-type]


def test_an_index_counts_trainings() -> None:
    text = check_page(index_page([IndexRow("many", "", of_outcome("INCONCLUSIVE"))])).text
    assert "60 trainings" in text
    assert "0 steps" not in text
