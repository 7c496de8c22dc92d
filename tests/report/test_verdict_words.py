from __future__ import annotations

import dataclasses

import pytest
from made_report import made_report
from page_reports import CODE, of_outcome

from lightning_audit.checks.check import headlines
from lightning_audit.report.page_parts import inner
from lightning_audit.report.page_verdict import (
    further_findings,
    headline_of,
    root_finding,
    verdict_meaning,
    verdict_sentence,
)
from lightning_audit.results.audit_report import Kind, LikelyFault, Place


def test_a_pass_says_for_how_many_steps_what_it_would_have_shown_and_that_it_is_no_proof() -> None:
    report = made_report(settings={"claimed_epsilon": 8.0})
    expected = (
        "No fault was found: in 100 steps this training did what its claim of ε = 8 rests on."
    )
    assert verdict_sentence(report) == expected
    means = verdict_meaning(report)
    assert "noise of 0.8 times the stated (99\xa0%) and clipping at 2 times the norm" in means
    assert "(>99.99\xa0%)" in means
    assert means.endswith("A pass is evidence, not a proof of privacy.")


def test_a_pass_with_allowed_findings_names_them() -> None:
    verdict = dataclasses.replace(
        made_report().verdict, allowed=("sampling.not_poisson",), holds="epsilon 4 holds"
    )
    report = made_report(verdict=verdict)
    assert verdict_sentence(report).startswith("No further fault was found")
    assert verdict_meaning(report).startswith("Allowed: sampling.not_poisson; epsilon 4 holds. ")


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("mechanism", "This training is less private than it says: "),
        ("epsilon", "More leaks than is claimed: "),
        ("accounting", "The claimed epsilon does not hold: "),
    ],
)
def test_a_violation_of_each_kind_starts_with_what_is_false(kind: Kind, start: str) -> None:
    report = made_report("VIOLATION")
    report = made_report("VIOLATION", verdict=dataclasses.replace(report.verdict, kind=kind))
    assert verdict_sentence(report) == f"{start}half the noise."
    assert "accused with probability 0.001 at most" in verdict_meaning(report)


def test_a_headline_is_that_of_the_fault_then_of_the_catalogue_then_its_sentence() -> None:
    known, words = next(iter(headlines().items()))
    fault = LikelyFault(known, "a sentence", "noise")
    assert headline_of(fault) == words
    assert headline_of(dataclasses.replace(fault, headline="Own words")) == "Own words"
    assert headline_of(dataclasses.replace(fault, name="unheard_of")) == "a sentence"


def test_every_headline_reads_in_the_middle_of_a_sentence() -> None:
    for words in headlines().values():
        assert inner(words)[1:] == words.rstrip(".")[1:]


def test_the_root_has_its_evidence_its_code_and_what_it_explains() -> None:
    root = root_finding(of_outcome("VIOLATION"))
    assert root is not None
    assert root.headline == headlines()["noise_too_small"]
    assert "the alarm is at 11,000" in root.evidence
    assert root.where == f"After 8 steps, see {CODE[0]}."
    (code,) = root.code
    assert (code.file, code.line, code.lines[0]) == (
        "src/half.py",
        41,
        (41, "def add_noise(self) -> None:"),
    )
    assert root.follows == ("Some steps lack noise",)
    assert root_finding(of_outcome("PASS")) is None


def test_a_deterministic_finding_was_seen_directly() -> None:
    report = made_report("VIOLATION")
    fault = LikelyFault("plain", "an optimizer is not private", "no_dp", place=Place())
    checks = tuple(
        dataclasses.replace(c, status="violated") if c.name == "no_dp" else c for c in report.checks
    )
    verdict = dataclasses.replace(report.verdict, faults=(fault,), fault="")
    root = root_finding(dataclasses.replace(report, verdict=verdict, checks=checks))
    assert root is not None
    assert "It was seen directly, without statistics." in root.evidence
    assert root.where == "Unknown."


def test_alternatives_share_the_finding_and_further_findings_do_not() -> None:
    report = of_outcome("VIOLATION")
    root = report.verdict.faults[0]
    other = dataclasses.replace(root, name="unheard_of", sentence="Another reason")
    apart = LikelyFault("apart", "Batches are shuffled", "sampling.not_poisson", "the loader")
    verdict = dataclasses.replace(report.verdict, faults=(root, other, apart), fault="")
    report = dataclasses.replace(report, verdict=verdict)
    shown = root_finding(report)
    assert shown is not None
    assert shown.alternatives == ("another reason",)
    (further,) = further_findings(report)
    assert (further.headline, further.look_at) == ("Batches are shuffled", "The loader.")
