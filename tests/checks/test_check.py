from __future__ import annotations

from typing import Any

import pytest

from lightning_audit.checks.check import Check

#: By which a check that is not listed gets .1 of the significance: w / (1000 + w) of nine tenths.
WEIGHT = 125.0

BY_E_VALUE = Check("made.up", "nothing that exists", weight=WEIGHT, needs="nobody looked")
BY_RULE = Check("made.up", "nothing that exists", kind="accounting", wrong=lambda seen: seen["n"])


def result(check: Check, *log_e_values: float, lack: str = "") -> tuple[str, str, str]:
    """Status, message and advice after some looks."""
    test = check.test(1e-2)
    for step, log_e in enumerate(log_e_values):
        test.update(log_e, step)
    found = check.result(test, "fine", "wrong", "do this", {"seen": 1}, lack)
    assert found.name == "made.up"
    assert found.share == pytest.approx(0.1)
    assert found.log_e_value == max([0.0, *log_e_values])
    assert found.evidence == {"seen": 1, "violated_at_step": test.violated_at}
    return found.status, found.message, found.advice


def test_an_e_process_is_violated_at_its_share_of_the_significance() -> None:
    # The threshold is log(1 / (0.1 * 0.01)), 6.91.
    assert result(BY_E_VALUE, 3.0, 6.9) == ("ok", "fine", "")
    assert result(BY_E_VALUE, 7.0, -5.0) == ("violated", "wrong", "do this")


def test_a_check_that_warns_says_so_at_the_same_threshold() -> None:
    warns = Check("made.up", "nothing that exists", weight=WEIGHT, warns=True)
    assert result(warns, 6.9) == ("ok", "fine", "")
    assert result(warns, 7.0) == ("warned", "wrong", "do this")


def test_what_was_not_looked_at_says_what_it_needs_or_what_is_known_to_lack() -> None:
    assert result(BY_E_VALUE) == ("not_run", "not tested: nobody looked", "")
    assert result(BY_E_VALUE, lack="it was dark") == ("not_run", "not tested: it was dark", "")
    assert result(BY_E_VALUE, 0.0, lack="it was dark") == ("ok", "fine", "")


def test_a_rule_judges_evidence_and_advises_only_where_something_is_wrong() -> None:
    for n, expected in ((0, ("ok", "fine", "")), (2, ("violated", "wrong", "do this"))):
        found = BY_RULE.judged({"n": n}, "fine", "wrong", "do this")
        assert (found.status, found.message, found.advice) == expected
        assert (found.kind, found.evidence) == ("accounting", {"n": n})


def test_a_check_that_could_not_be_made_says_why_and_shows_what_it_had() -> None:
    found = BY_RULE.not_run("there was nothing", {"m": 1})
    assert (found.status, found.message, found.evidence) == (
        "not_run",
        "there was nothing",
        {"m": 1},
    )
    assert BY_RULE.not_run("there was nothing").evidence == {}


def test_evidence_without_its_number_and_a_check_without_a_rule_are_errors() -> None:
    with pytest.raises(KeyError, match="n"):
        BY_RULE.is_wrong({})
    with pytest.raises(KeyError, match=r"made\.up has an e-value"):
        BY_E_VALUE.is_wrong({"n": 1})


@pytest.mark.parametrize(
    ("check", "occurs"),
    [
        (Check("a", "", always=True), [(0, 0), (1, 1), (1, 1)]),
        (Check("a", ""), [(0, 0), (0, 1), (0, 1)]),
        (Check("a", "", each=True), [(0, 0), (0, 1), (0, 2)]),
        (Check("a", "", each=True, always=True), [(0, 0), (1, 1), (2, 2)]),
        (Check("a", "", always=True, optimizers=0), [(1, 1), (1, 1), (1, 1)]),
        (Check("a", "", always=True, optimizers=2), [(0, 0), (0, 0), (1, 1)]),
    ],
)
def test_how_often_a_check_is_in_a_report_goes_by_the_number_of_optimizers(
    check: Check, occurs: list[tuple[int, int]]
) -> None:
    assert [check.occurs(optimizers) for optimizers in range(3)] == occurs


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"reads": "noise"}, "both `reads` and `init`"),
        ({"init": lambda *_: None}, "both `reads` and `init`"),
        ({"reads": "steps", "init": lambda *_: None, "each": False}, "each optimizer"),
        # Its findings before a resume would be lost, and reports would show un-noised numbers.
        ({"reads": "noise", "init": lambda *_: None}, "must be declared `private`"),
        ({"reads": "readings", "init": lambda *_: None}, "must be declared `private`"),
        # A checkpoint would hold it.
        ({"reads": "steps", "init": lambda *_: None, "private": True}, "must not be declared"),
    ],
)
def test_a_statistic_that_would_not_run_or_would_leak_is_refused(
    declared: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=rf"'made\.up'.*{why}"):
        Check("made.up", "nothing that exists", **{"each": True, **declared})
