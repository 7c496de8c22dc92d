"""What checks and faults say to people: every one has its words, and they keep to one form.

A word is what stands between spaces: "Poisson-sampled" is one.
"""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType
from typing import get_args

import pytest

from lightning_audit.checks import clipping, noise_faults, randomness
from lightning_audit.checks.check import QUESTIONS, REGISTRY, Check, FaultRule, Topic, headlines
from lightning_audit.testing.faults import FAULTS

CHECKS = [pytest.param(check, id=check.name) for check in REGISTRY.values()]
#: An end of a sentence before the last one.
END = re.compile(r"[.!?]\s")


def is_a_sentence(text: str) -> bool:
    """Whether a text is one sentence, which ends with its only period."""
    return text[:1].isupper() and text.endswith(".") and not END.search(text)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_has_all_words(check: Check) -> None:
    for title in (check.title, check.failed_title):
        assert 3 <= len(title.split()) <= 5, title
        assert title[0].isupper()
        assert not title.endswith(".")
    for sentence in (check.meaning, check.look_at):
        assert is_a_sentence(sentence), sentence
        assert len(sentence.split()) >= 5
    assert check.topic in QUESTIONS


def test_titles_are_unique() -> None:
    titles = [t for check in REGISTRY.values() for t in (check.title, check.failed_title)]
    assert len(set(titles)) == len(titles)
    meanings = [check.meaning for check in REGISTRY.values()]
    assert len(set(meanings)) == len(meanings)


def test_every_topic_has_a_question_and_checks() -> None:
    assert tuple(QUESTIONS) == get_args(Topic)
    assert {check.topic for check in REGISTRY.values()} == set(QUESTIONS)
    assert all(question.endswith("?") for question in QUESTIONS.values())


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("Noise is missing.", True),
        ("Call `f(noise=...)`, once.", True),
        ("noise is missing.", False),
        ("Noise is missing", False),
        ("Noise is missing. Add it.", False),
        ("", False),
    ],
)
def test_a_sentence_begins_large_and_ends_once(text: str, one: bool) -> None:
    assert is_a_sentence(text) is one


def test_the_heading_of_a_check_without_titles_is_its_name() -> None:
    check = Check("made.up", "nothing that exists")
    assert check.heading() == check.heading(failed=True) == "made.up"
    check = Check("made.up", "nothing that exists", title="A made-up check")
    assert check.heading() == check.heading(failed=True) == "A made-up check"
    check = REGISTRY["noise"]
    assert (check.heading(), check.heading(failed=True)) == (check.title, check.failed_title)


def test_rules_of_one_fault_have_one_headline() -> None:
    known = headlines()
    for check in REGISTRY.values():
        for rule in check.faults:
            assert rule.headline, f"{check.name}: {rule.name}"
            assert rule.headline == known[rule.name]


def test_every_fault_that_selftest_expects_has_a_headline() -> None:
    expected = {fault.likely for fault in FAULTS.values() if not fault.warn_only}
    assert expected
    assert expected <= set(headlines())


#: Names in the modules below that are no faults: keys of evidence and settings.
OTHER_NAMES = re.compile(
    r".*(ratio|ratio_upper|ratio_upper_since)|violated_at_step|loud_steps|shift_of_.*|shift_lower|"
    r"unclipped_canaries|passes_whole|in_one_tensor|median_of_the_others|ratio_of_the_others|"
    r"expected_batch_size|noise_multiplier|max_grad_norm"
)


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        (clipping, "clip_per_tensor"),
        (noise_faults, "noise_missing_in_tensors"),
        (randomness, "few_seeds"),
        (randomness, "noise_repeated_in_step"),
    ],
)
def test_every_fault_that_a_module_names_has_a_headline(module: ModuleType, fault: str) -> None:
    tree = ast.parse(inspect.getsource(module))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    names = {text for text in texts if re.fullmatch(r"[a-z]+(_[a-z]+)+", str(text))}
    faults = {name for name in names if not OTHER_NAMES.fullmatch(name)}
    assert fault in faults
    assert faults <= set(headlines())
    assert set(module.HEADLINES) <= faults


def test_headlines_are_short_and_unique() -> None:
    known = headlines()
    assert len(set(known.values())) == len(known)
    for name, headline in known.items():
        assert headline[0].isupper(), name
        assert 3 <= len(headline.split()) <= 11, name
        assert not headline.endswith("."), name
        assert not re.search(r"\d", headline), name


def test_a_rule_without_headline_has_its_sentence_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = FaultRule("made_up", "made up: nothing", "nowhere", rank=-20)
    made_up = Check("made.up", "nothing that exists", wrong=lambda _: True, faults=(rule,))
    monkeypatch.setitem(REGISTRY, "made.up", made_up)
    assert headlines()["made_up"] == "made up: nothing"
