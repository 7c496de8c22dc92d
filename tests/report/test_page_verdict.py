"""What a page says of the verdict, its checks and the run, and of an audit over many trainings."""

import dataclasses
import math

import pytest
from checked_reports import with_status
from made_report import made_report
from many_trainings import audited
from page_reports import CODE, of_outcome
from parsed_page import check_page

from lightning_audit.checks.check import QUESTIONS, headlines
from lightning_audit.report import page_verdict as verdicts
from lightning_audit.report.page import IndexRow, index_page, report_page
from lightning_audit.report.page_parts import inner
from lightning_audit.report.page_tables import method_table
from lightning_audit.report.text import NOT_TRIED, counted
from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault, Place
from lightning_audit.results.report_details import (
    ClaimedValue,
    CodePlace,
    Ended,
    ExaminationTold,
    MeasuredEpsilon,
    RunAbout,
)


def group(report: AuditReport, name: str) -> verdicts.CheckGroup:
    return next(found for found in verdicts.check_groups(report) if found.name == name)


def test_the_six_topics_have_every_check_once():
    report = made_report()
    groups = verdicts.check_groups(report)
    assert [found.name for found in groups] == list(QUESTIONS)
    assert [found.question for found in groups] == list(QUESTIONS.values())
    names = [check.name for found in groups for check in found.checks]
    assert sorted(names) == sorted(check.name for check in report.checks)


def test_signs_and_words_differ_by_status():
    assert len({sign for sign, _ in verdicts.STATUSES.values()}) == len(verdicts.STATUSES)
    assert len({word for _, word in verdicts.STATUSES.values()}) == len(verdicts.STATUSES)


def test_a_group_has_the_status_of_its_worst_check_and_counts_all():
    noise = group(of_outcome("VIOLATION"), "Noise")
    assert (noise.status, noise.sign, noise.says) == ("violated", "✕", "2 of 11 fail")
    root, follower = noise.checks[:2]
    assert (root.word, root.evidence[:7]) == ("fails", "e = 10⁶")
    assert root.means
    assert root.look_at
    assert follower.word == "follows from “too little noise overall”"
    assert not follower.means


@pytest.mark.parametrize(
    ("status", "says", "more"),
    [
        ("warned", "1 warning", {}),
        ("undecided", "1 undecided", {}),
        ("allowed", "1 allowed", {}),
        ("not_run", "1 not examined", {}),
        ("violated", "explained by another", {"follows_from": "noise"}),
    ],
)
def test_what_is_neither_fine_nor_failed_by_itself_is_counted_in_words(status, says, more):
    found = group(with_status("reuse.lag", status, **more), "Fresh randomness")
    assert says in found.says
    assert found.checks[0 if status != "not_run" else -1].name == "reuse.lag"


def test_the_total_of_a_violated_mechanism_is_that_of_the_stated_one():
    total = list(QUESTIONS)[-1]
    violated, fine = group(of_outcome("VIOLATION"), total), group(made_report(), total)
    assert violated.says == "2 of 2 fine, for the stated mechanism only"
    assert violated.sign != fine.sign
    assert fine.says == "2 of 2 fine"


def test_a_check_that_this_release_does_not_know_has_a_group_and_its_name():
    foreign = CheckResult("their.own", "mechanism", "violated", "seen", log_e_value=1.0, share=0.1)
    report = dataclasses.replace(made_report(), checks=(foreign,))
    (other,) = verdicts.check_groups(report)
    assert (other.name, other.checks[0].title) == ("Other checks", "their.own")
    assert verdicts.heading(foreign, failed=True) == "their.own"


def test_what_was_not_examined_is_grouped_by_its_reason():
    skipped = {"status": "not_run", "message": "the noise is too small to read"}
    of = {"noise.mean": skipped, "noise.excess": {**skipped, "optimizer": "actor"}}
    report = made_report()
    checks = tuple(dataclasses.replace(c, **of.get(c.name, {})) for c in report.checks)
    ((titles, reason),) = verdicts.not_examined(dataclasses.replace(report, checks=checks))
    assert reason == "The noise is too small to read."
    assert " and " in titles
    assert "(actor)" in titles


def test_the_level_of_an_alarm_is_that_of_the_checks_share():
    check = CheckResult("noise", "mechanism", "violated", "seen", "", math.log(1e9), 0.1)
    assert verdicts.alarm_words(check, 1e-3) == "Evidence e = 10⁹; the alarm is at 10,000."
    assert verdicts.alarm_words(check, 1e-9).endswith("the alarm is at 10¹⁰.")
    plain = dataclasses.replace(check, log_e_value=None)
    assert verdicts.alarm_words(plain, 1e-3) == "It was seen directly, without statistics."


def test_the_facts_of_a_run_and_how_it_ended():
    found = {name: (value, note) for name, value, note in verdicts.facts(of_outcome("PASS"))}
    assert found == {
        "Stated ε": ("8", "at δ = 1e-05"),
        "Found ε": ("3", "spent in these steps"),
        "Steps audited": ("100", "of 400 planned"),
        "Processes": ("2", ""),
        "Steps run again": ("2", "with and without a record"),
        "False alarm": ("≤ 0.1\xa0%", "over the whole run"),
        "Training": ("as planned", ""),
    }


def test_the_subject_is_the_module_its_data_and_the_commit():
    claim = {
        "expected_batch_size": ClaimedValue(61, "optimizer"),
        "sample_rate": ClaimedValue(1 / 29, "accountant"),
    }
    run = RunAbout("Lit", commit="0123456789abcdef", data="TensorDataset")
    report = made_report(run=run, claim=claim)
    said = "Lit on TensorDataset of about 1,800 records, commit 0123456789ab"
    assert verdicts.subject(report) == said
    assert verdicts.subject(made_report(run=RunAbout("Lit"))) == "Lit"
    assert verdicts.subject(made_report()) == ""
    text = check_page(report_page(report, "t")).text
    assert verdicts.subject(report) in text


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (MeasuredEpsilon(13.7, 17.9, 15.68, 145, True, "m"), ("about 16", "13.7 to 17.9")),
        (MeasuredEpsilon(13.7, None, None, 145, True, "m"), ("at least 13.7", "as measured")),
        (MeasuredEpsilon(math.inf, None, None, 145, True, "m"), ("above 100", "as measured")),
        (None, ("unknown", "at least 1.5 is proved")),
    ],
)
def test_the_found_epsilon_of_a_violation_is_the_measured_one(one, found):
    report = made_report("VIOLATION", epsilon_measured=one)
    facts = {name: rest for name, *rest in verdicts.facts(report)}
    assert tuple(facts["Found ε"]) == found
    text = check_page(report_page(report, "t")).text
    assert ("An estimate." in text) == (one is not None)


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"complete": False}, ("Training", "not ended", "when this was written")),
        ({"ended": Ended(3, "violation")}, ("Training", "stopped by the violation", "")),
        ({"ended": Ended(3, "by\x1bmagic")}, ("Training", "by\\x1bmagic", "")),
        ({"optimizers": made_report().optimizers * 2}, ("Private optimizers", "2", "")),
    ],
)
def test_a_running_training_an_end_and_several_optimizers_are_facts(changes, row):
    assert row in verdicts.facts(dataclasses.replace(made_report(), **changes))
    assert row[0] not in {name for name, *_ in verdicts.facts(made_report())}


def test_the_claim_has_the_source_of_each_part():
    assert verdicts.claim_rows(of_outcome("PASS")) == [
        ("noise multiplier", "1, 1.5 (optimizer)"),
        ("sampling", "poisson (loader)"),
    ]
    assert verdicts.claim_rows(made_report()) == []


def test_circumstances_have_what_is_known():
    found = dict(verdicts.circumstances(of_outcome("PASS")))
    assert found["module"] == "Digits"
    assert found["strategy"] == "DDP, 2 processes"
    assert found["duration"] == "12.5 s"
    assert "commit" not in found
    assert verdicts.circumstances(made_report()) == []


def test_examined_steps_count_from_one_and_many_are_cut():
    first, second = verdicts.examinations(of_outcome("PASS"))
    assert first.startswith("Step 1, in 1.5 s: replay with one record changed and ")
    assert first.endswith("; nothing was found.")
    assert second.startswith("Step 41, in 0.2 s: ")
    many = tuple(ExaminationTold(i, ("coupling",), (), 0.1) for i in range(50))
    shown = verdicts.examinations(made_report(examinations=many))
    assert (len(shown), shown[-1]) == (21, "30 more steps.")


def test_code_is_shown_without_its_indent_and_not_without_source():
    root = of_outcome("VIOLATION").verdict.faults[0]
    (shown,) = verdicts.code_of(root)
    assert shown.lines == (
        (41, "def add_noise(self) -> None:"),
        (42, "    self.sigma *= 0.5"),
        (43, "    super().add_noise()"),
    )
    long = dataclasses.replace(CODE[0], source="\n".join(f"line {i}" for i in range(50)))
    place = dataclasses.replace(root.place, code=(long, CodePlace("a.py", 1, 1, "f")))
    (shown,) = verdicts.code_of(dataclasses.replace(root, place=place))
    assert len(shown.lines) == 12


# --- The page of an audit over many trainings has no words of an audit inside one training.

#: Strength of the canary and number of trainings, by the outcome that they give.
AUDITS = {"PASS": (1.0, 400), "VIOLATION": (2.5, 200), "INCONCLUSIVE": (0.3, 60)}
#: What to compare after a violation; it counts steps by right.
ADVICE = "number of steps of a training"


def of_many(outcome: str) -> AuditReport:
    mu, n = AUDITS[outcome]
    report = audited(mu=mu, n=n).to_report({"trainings": n, "seed": 1}, seconds=2.5)
    assert report.verdict.outcome == outcome
    return report


@pytest.mark.parametrize("outcome", list(AUDITS))
def test_a_page_counts_trainings_and_coins_and_no_step(outcome):
    report = of_many(outcome)
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


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        ("PASS", ("400 trainings do not refute 1-GDP.", "The attack saw at least mu")),
        ("VIOLATION", ("200 trainings refute 1-GDP.", "Compare clipping, noise, sampling")),
        ("INCONCLUSIVE", ("60 trainings do not refute 1-GDP.", "What a pass still needs")),
    ],
)
def test_each_outcome_says_what_it_means_and_what_a_longer_run_shows(outcome, found):
    report = of_many(outcome)
    text = check_page(report_page(report, "many")).text
    assert all(part.lower() in text.lower() for part in found)
    assert outcome != "INCONCLUSIVE" or report.verdict.advice[1:] in text


def test_each_bound_has_its_method_and_what_it_is_valid_for():
    report = of_many("VIOLATION")
    told = {(bound.name, bound.looks): verdicts.bound_row(bound) for bound in report.bounds}
    assert {key: name for key, (name, _) in told.items()} == {
        ("coins_scores", "anytime"): "Proved at least",
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


def test_failures_and_the_refutation_are_facts():
    seen, fine = (of_many(outcome).trainings for outcome in ("VIOLATION", "PASS"))
    assert seen is not None
    assert fine is not None
    found = {name: told for name, *told in verdicts.facts_of_trainings(seen)}
    assert found["Refuted"] == [f"after {seen.refuted_after}", "trainings"]
    assert "Refuted" not in {name for name, *_ in verdicts.facts_of_trainings(fine)}


def test_an_index_counts_trainings():
    text = check_page(index_page([IndexRow("many", "", of_many("INCONCLUSIVE"))])).text
    assert "60 trainings" in text
    assert "0 steps" not in text


def test_a_pass_says_for_how_many_steps_what_it_would_have_shown_and_that_it_is_no_proof():
    report = made_report(settings={"claimed_epsilon": 8.0})
    expected = (
        "No fault was found: in 100 steps this training did what its claim of ε = 8 rests on."
    )
    assert verdicts.verdict_sentence(report) == expected
    means = verdicts.verdict_meaning(report)
    assert "noise of 0.8 times the stated (99\xa0%) and clipping at 2 times the norm" in means
    assert "(>99.99\xa0%)" in means
    assert means.endswith("A pass is evidence, not a proof of privacy.")


def test_a_pass_with_allowed_findings_names_them():
    allowed = {"allowed": ("sampling.not_poisson",), "holds": "epsilon 4 holds"}
    report = made_report(verdict=dataclasses.replace(made_report().verdict, **allowed))
    told = "Except sampling.not_poisson, which is allowed, no fault was found in 100 steps"
    assert verdicts.verdict_sentence(report) == f"{told}; epsilon 4 holds."


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("mechanism", "This training is less private than it says: "),
        ("epsilon", "More leaks than is claimed: "),
        ("accounting", "The claimed epsilon does not hold: "),
    ],
)
def test_a_violation_of_each_kind_starts_with_what_is_false(kind, start):
    verdict = dataclasses.replace(made_report("VIOLATION").verdict, kind=kind)
    report = made_report("VIOLATION", verdict=verdict)
    assert verdicts.verdict_sentence(report) == f"{start}half the noise."
    assert "accused with probability 0.001 at most" in verdicts.verdict_meaning(report)


def test_a_headline_is_that_of_the_fault_then_of_the_catalogue_then_its_sentence():
    known, words = next(iter(headlines().items()))
    fault = LikelyFault(known, "a sentence", "noise")
    assert verdicts.headline_of(fault) == words
    assert verdicts.headline_of(dataclasses.replace(fault, headline="Own words")) == "Own words"
    assert verdicts.headline_of(dataclasses.replace(fault, name="unheard_of")) == "a sentence"


def test_every_headline_reads_in_the_middle_of_a_sentence():
    for words in headlines().values():
        assert inner(words)[1:] == words.rstrip(".")[1:]


def test_the_root_has_its_evidence_its_code_and_what_it_explains():
    root = verdicts.root_finding(of_outcome("VIOLATION"))
    assert root is not None
    assert root.headline == headlines()["noise_too_small"]
    assert "the alarm is at 11,000" in root.evidence
    assert root.where == "First seen in step 8."
    (code,) = root.code
    first = (41, "def add_noise(self) -> None:")
    assert (code.file, code.line, code.lines[0]) == ("src/half.py", 41, first)
    assert root.follows == ("Some steps lack noise",)
    assert verdicts.root_finding(of_outcome("PASS")) is None


def test_a_deterministic_finding_was_seen_directly():
    report = with_status("no_dp", "violated")
    fault = LikelyFault("plain", "an optimizer is not private", "no_dp", place=Place())
    verdict = dataclasses.replace(made_report("VIOLATION").verdict, faults=(fault,), fault="")
    root = verdicts.root_finding(dataclasses.replace(report, verdict=verdict))
    assert root is not None
    assert "It was seen directly, without statistics." in root.evidence
    assert root.where == "Unknown."


def test_alternatives_share_the_finding_and_further_findings_do_not():
    report = of_outcome("VIOLATION")
    root = report.verdict.faults[0]
    other = dataclasses.replace(root, name="unheard_of", sentence="Another reason")
    apart = LikelyFault("apart", "Batches are shuffled", "sampling.not_poisson", "the loader")
    verdict = dataclasses.replace(report.verdict, faults=(root, other, apart), fault="")
    report = dataclasses.replace(report, verdict=verdict)
    shown = verdicts.root_finding(report)
    assert shown is not None
    assert shown.alternatives == ("another reason",)
    (further,) = verdicts.further_findings(report)
    assert (further.headline, further.look_at) == ("Batches are shuffled", "the loader")
