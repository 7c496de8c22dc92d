"""A card answers what standards ask, and promises nothing that the audit does not support."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from checked_reports import violated, with_status
from made_report import made_report
from many_trainings import audited

from lightning_audit.card import (
    FACTS,
    NOT_STATED,
    mechanism,
    privacy_block,
    privacy_card,
    privacy_section,
)
from lightning_audit.checks.check import QUESTIONS, REGISTRY
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import ClaimedValue, ExaminationTold


def guarantee(report: AuditReport) -> str:
    return privacy_card(report, {}, "t").rows["guarantee"][0].title


def answers(report: AuditReport) -> dict[str, tuple[str, str]]:
    found = privacy_card(report, {}, "t").answers
    topics = {question: topic for topic, question in QUESTIONS.items()}
    return {topics[a.question]: (a.sign, a.answer) for a in found if a.question in topics}


def with_topic(report: AuditReport, topic: str, status: Any) -> AuditReport:
    """The report with all checks of a topic in one status."""
    checks = tuple(
        dataclasses.replace(check, status=status) if REGISTRY[check.name].topic == topic else check
        for check in report.checks
    )
    return dataclasses.replace(report, checks=checks)


def test_the_guarantee_has_the_standing_that_the_verdict_gives_it() -> None:
    assert guarantee(made_report()) == "Guarantee, claimed, and no fault was found"
    assert guarantee(violated()) == "Guarantee, claimed and refuted"
    assert guarantee(made_report("INCONCLUSIVE")) == "Guarantee, claimed and not confirmed"


def test_what_the_owner_accepts_and_what_it_refutes_is_in_the_guarantee() -> None:
    report = made_report(epsilon_refuted_by=("sampling.not_poisson",))
    verdict = dataclasses.replace(report.verdict, allowed=("sampling.not_poisson",))
    row = privacy_card(dataclasses.replace(report, verdict=verdict), {}, "t").rows["guarantee"][0]
    assert row.title.endswith("except sampling.not_poisson, which the owner accepts")
    assert row.text.endswith("not known to hold with sampling.not_poisson")


def test_no_epsilon_is_made_up() -> None:
    report = made_report(claimed=None, spent=None, proved=None, epsilon_not_excluded=None)
    card = privacy_card(report, {}, "t")
    assert card.rows["guarantee"][0].text == "no epsilon is claimed"
    assert {r.title: r.text for r in card.rows["guarantee"]}["Accounting"] == (
        "epsilon of the steps is unknown"
    )
    assert card.epsilons == ("Measured: no leak is proved by 800 readings.",)


def test_each_question_of_a_correct_run_has_the_answer_no_fault_found() -> None:
    assert answers(made_report()) == dict.fromkeys(QUESTIONS, ("✓", "no fault found"))


def test_a_violated_run_names_the_fault_and_no_question_that_rests_on_it_is_confirmed() -> None:
    found = answers(violated())
    assert found["Noise"] == ("✕", "no: too little noise overall")
    assert found["Total epsilon"] == (
        "?",
        "only for the stated noise and clipping, which did not run",
    )
    assert found["Clipping"] == ("✓", "no fault found")


def test_a_failure_that_follows_is_not_named_as_a_fault() -> None:
    report = violated()
    checks = tuple(
        dataclasses.replace(check, status="violated", follows_from="noise")
        if check.name == "reuse.lag"
        else check
        for check in report.checks
    )
    found = answers(dataclasses.replace(report, checks=checks))
    assert found["Fresh randomness"] == ("✕", "no: it follows from the fault that was found")


@pytest.mark.parametrize("topic", list(QUESTIONS))
def test_a_group_of_which_nothing_ran_is_not_examined(topic: str) -> None:
    found = answers(with_topic(made_report(), topic, "not_run"))
    assert found.pop(topic)[1] == "not examined"
    assert set(found.values()) == {("✓", "no fault found")}
    card = privacy_card(with_topic(made_report(), topic, "not_run"), {}, "t")
    assert any(line.startswith("Not examined: ") for line in card.not_examined)


@pytest.mark.parametrize(("status", "word"), [("undecided", "undecided"), ("allowed", "accepted")])
def test_what_is_undecided_or_accepted_is_named(status: str, word: str) -> None:
    report = with_status("sampling.not_poisson", status)
    assert answers(report)["Sampling and bookkeeping"][1].startswith(f"{word}: ")


def test_power_is_stated_with_the_size_of_the_fault() -> None:
    card = privacy_card(made_report(), {}, "t")
    by_question = {a.question: a.certainty for a in card.answers}
    assert by_question[QUESTIONS["Noise"]].endswith(
        "0.8 times the noise would be seen with 99\xa0%"
    )
    assert "2 times the clipping norm" in by_question[QUESTIONS["Clipping"]]


def test_statements_are_marked_and_missing_ones_are_not_stated() -> None:
    card = privacy_card(made_report(), {"harm": "low"}, "t")
    stated = {row.title: row for rows in card.rows.values() for row in rows if row.stated}
    assert [row.title for row in stated.values()] == [fact.title for fact in FACTS.values()]
    harm = stated.pop(FACTS["harm"].title)
    assert (harm.text, harm.known) == ("low", True)
    assert {(row.text, row.known) for row in stated.values()} == {(NOT_STATED, False)}


def test_the_mechanism_is_that_of_the_claim_or_of_the_history() -> None:
    history = ((1.5, 0.01, 60), (1.0, 0.01, 40))
    words = "DP-SGD: Gaussian noise of {} times the clipping norm{}, Poisson sampling at rate {}"
    assert mechanism(made_report(history=history)) == (
        f"{words.format('1.5 and 1', '', '0.01')}, 100 steps"
    )
    claim = {
        "noise_multiplier": ClaimedValue([1.0, 0.5], "optimizer"),
        "max_grad_norm": ClaimedValue(1.2, "user"),
        "sample_rate": ClaimedValue(0.02, "accountant"),
    }
    assert mechanism(made_report(claim=claim, history=history)) == (
        f"{words.format('1 and 0.5', ' 1.2', '0.02')}, 100 steps"
    )
    assert "at the stated rate" in mechanism(made_report(history=((1.0, None, 100),)))


def test_the_claims_adjacency_and_the_examinations_are_shown() -> None:
    report = made_report(
        settings={**made_report().settings, "claim": {"adjacency": "replace_one"}},
        examinations=(ExaminationTold(0, ("coupling",), (), 1.0),),
        complete=False,
    )
    rows = {r.title: r.text for r in privacy_card(report, {}, "t").rows["guarantee"]}
    assert rows["Neighboring data sets"] == "one record is replaced by another"
    assert rows["Audit"].endswith("1 step run again without a record, the training had not ended")


@pytest.mark.parametrize(
    ("mu", "n", "standing", "answer"),
    [
        (1.0, 400, "claimed and not refuted", ("✓", "not refuted")),
        (2.5, 200, "claimed and refuted", ("✕", "no: trainings show the canary more than claimed")),
        (0.3, 60, "claimed and not confirmed", ("?", "not confirmed")),
    ],
)
def test_many_trainings_have_their_own_words(
    mu: float, n: int, standing: str, answer: tuple[str, str]
) -> None:
    report = audited(mu=mu, n=n).to_report()
    assert guarantee(report) == f"Guarantee, {standing}"
    card = privacy_card(report, {}, "t")
    assert [(a.sign, a.answer) for a in card.answers] == [answer]
    rows = {row.title: row.text for row in card.rows["guarantee"]}
    assert rows["Mechanism"] == "1-GDP"
    assert rows["Audit"].startswith(f"trainings: {n} of {n} planned; coins: ")
    text = privacy_section(report).replace("number of steps of a training", "")
    assert not any(word in text for word in ("step", "reading", "Other checks"))
    block = privacy_block(report)
    assert (block["trainings"], block["guarantee"]) == (n, standing)
    assert "steps" not in block
