"""The table of results in text, and in one line."""

from __future__ import annotations

import pytest

from lightning_audit.testing.selftest import closing, show, steps_of, summary
from lightning_audit.testing.selftest_pool import Result

FOUND = Result("fault", "half_noise", "Opacus", "found", 20, finding="noise", flagged_at=3)
AT_END = Result("fault", "few_seeds", "figure 8", "warned", 625, finding="reuse")
MISSED = Result("fault", "no_noise", "Opacus", "not found", 20, outcome="PASS")
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")
HEALTHY = Result("healthy", "healthy", "Opacus", "not accused", 100, outcome="PASS")
ACCUSED = Result("healthy", "healthy", "by hand", "accused", 100, sentence="no noise")


def test_columns_stand_below_one_another_in_every_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([FOUND, AT_END, HEALTHY], 2.0)
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.strip().startswith("training ")]
    assert len(heads) == 2
    at = heads[0].index("answer")
    shown = [line[at:].split()[0] for line in lines if "Opacus" in line or "figure 8" in line]
    assert shown == ["found", "warned", "not"]


def test_steps_tell_where_a_finding_was_there_or_that_only_the_end_tells() -> None:
    assert [steps_of(r) for r in (FOUND, AT_END, MISSED)] == ["3 of 20", "end of 625", "- of 20"]


def test_failures_are_told_by_name_before_the_numbers() -> None:
    *failures, last = closing([FOUND, MISSED, CRASHED, HEALTHY, ACCUSED], 2.4)
    assert failures == [
        "NOT FOUND: no_noise, Opacus: PASS",
        "CRASHED: no_noise, Opacus: ValueError: a pity",
        "ACCUSED: healthy, by hand: no noise",
    ]
    assert last == "1 of 3 faults found and named; 1 of 2 healthy runs accused; 1 crashed; 2 s"


def test_a_group_that_was_not_trained_is_not_counted() -> None:
    assert summary([FOUND]) == "1 of 1 faults found and named"
    assert summary([HEALTHY]) == "0 of 1 healthy runs accused"
