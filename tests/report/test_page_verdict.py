"""Topics of checks and headlines of faults; what is said of them is in test_whole_pages."""

import dataclasses

from made_report import made_report
from page_reports import of_outcome
from parsed_page import check_page

from lightning_audit._version import DOCUMENTATION
from lightning_audit.checks.check import QUESTIONS, REGISTRY, Check, headlines
from lightning_audit.report import page_verdict as verdicts
from lightning_audit.report.page import report_page
from lightning_audit.report.page_parts import inner
from lightning_audit.results.audit_report import LikelyFault


def test_the_six_topics_have_every_check_once():
    report = made_report()
    groups = verdicts.check_groups(report)
    assert [found.name for found in groups] == list(QUESTIONS)
    assert [found.question for found in groups] == list(QUESTIONS.values())
    names = [check.result.name for found in groups for check in found.checks]
    assert sorted(names) == sorted(check.name for check in report.checks)


def test_the_title_of_a_check_links_the_section_on_it(monkeypatch):
    report = of_outcome("VIOLATION")
    name = report.verdict.root.finding
    at = f"{DOCUMENTATION}/checks/#"
    shown = {one.result.name for of in verdicts.check_groups(report) for one in of.checks}
    monkeypatch.setitem(REGISTRY, "epsilon", Check("epsilon"))  # of another package
    parsed = check_page(report_page(report, "it"))
    links = [href.removeprefix(at) for href in parsed.values("href") if href.startswith(at)]
    assert {*links} == shown - {"epsilon"} != shown
    assert links.count(name) == 2  # in the list of checks, and where the page begins


def test_a_headline_is_that_of_the_fault_then_of_the_catalogue_then_its_sentence():
    known, words = next(iter(headlines().items()))
    fault = LikelyFault(known, "a sentence", "noise")
    assert verdicts.headline_of(fault) == words
    assert verdicts.headline_of(dataclasses.replace(fault, headline="Own words")) == "Own words"
    assert verdicts.headline_of(dataclasses.replace(fault, name="unheard_of")) == "a sentence"


def test_every_headline_reads_in_the_middle_of_a_sentence():
    for words in headlines().values():
        assert inner(words)[1:] == words.rstrip(".")[1:]
