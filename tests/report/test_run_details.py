from __future__ import annotations

import dataclasses

from made_report import made_report
from page_reports import CODE, of_outcome

from lightning_audit.report.page_verdict import (
    circumstances,
    claim_rows,
    code_of,
    examinations,
    facts,
)
from lightning_audit.results.report_details import CodePlace, Ended, ExaminationTold


def test_the_facts_of_a_run_and_how_it_ended() -> None:
    found = {name: (value, note) for name, value, note in facts(of_outcome("PASS"))}
    assert found == {
        "Steps audited": ("100", "of 400 planned"),
        "Canary readings": ("800", ""),
        "Processes": ("2", ""),
        "Steps run again": ("2", "with and without a record"),
        "False alarm": ("≤ 0.1\xa0%", "over the whole run"),
        "Training": ("as planned", ""),
    }


def test_a_report_of_a_running_training_says_so_and_an_ended_one_how() -> None:
    def training(**changes: object) -> tuple[str, str]:
        found = facts(dataclasses.replace(made_report(), **changes))
        return next(((value, note) for name, value, note in found if name == "Training"), ("", ""))

    assert training(complete=False) == ("not ended", "when this was written")
    assert training(ended=Ended(3, "violation")) == ("stopped by the violation", "")
    assert training(ended=Ended(3, "by\x1bmagic")) == ("by\\x1bmagic", "")
    assert training() == ("", "")


def test_several_optimizers_are_counted() -> None:
    report = made_report()
    two = dataclasses.replace(report, optimizers=report.optimizers * 2)
    assert ("Private optimizers", "2", "") in facts(two)


def test_the_claim_has_the_source_of_each_part() -> None:
    assert claim_rows(of_outcome("PASS")) == [
        ("noise multiplier", "1, 1.5 (optimizer)"),
        ("sampling", "poisson (loader)"),
    ]
    assert claim_rows(made_report()) == []


def test_circumstances_have_what_is_known() -> None:
    found = dict(circumstances(of_outcome("PASS")))
    assert found["module"] == "Digits"
    assert found["strategy"] == "DDP, 2 processes"
    assert found["duration"] == "12.5 s"
    assert "commit" not in found
    assert circumstances(made_report()) == []


def test_examined_steps_count_from_one_and_many_are_cut() -> None:
    first, second = examinations(of_outcome("PASS"))
    assert first.startswith("Step 1, in 1.5 s: replay with one record changed and ")
    assert first.endswith("; nothing was found.")
    assert second.startswith("Step 41, in 0.2 s: ")
    many = tuple(ExaminationTold(i, ("coupling",), (), 0.1) for i in range(50))
    shown = examinations(made_report(examinations=many))
    assert (len(shown), shown[-1]) == (21, "30 more steps.")


def test_code_is_shown_without_its_indent_and_not_without_source() -> None:
    root = of_outcome("VIOLATION").verdict.faults[0]
    (shown,) = code_of(root)
    assert shown.lines == (
        (41, "def add_noise(self) -> None:"),
        (42, "    self.sigma *= 0.5"),
        (43, "    super().add_noise()"),
    )
    long = dataclasses.replace(CODE[0], source="\n".join(f"line {i}" for i in range(50)))
    place = dataclasses.replace(root.place, code=(long, CodePlace("a.py", 1, 1, "f")))
    (shown,) = code_of(dataclasses.replace(root, place=place))
    assert len(shown.lines) == 12
