from __future__ import annotations

import dataclasses

from made_report import made_report
from page_reports import detailed, hostile, of_outcome

from lightning_audit.report.page_tables import method_table


def test_every_number_has_its_method_level_and_assumptions() -> None:
    table = method_table(of_outcome("PASS"))
    rows = {row.name: row for row in table.rows}
    assert list(rows) == [
        "Claimed ε",
        "Spent ε",
        "Proved ε, at least",
        "Proved ε, if constant",
        "Not excluded, up to",
        "False alarm",
        "Power, noise",
        "Power, clipping",
    ]
    assert all(row.value and row.how and row.holds for row in rows.values())
    assert rows["Proved ε, at least"].holds == "95\xa0% confidence, at all looks together"
    assert rows["Proved ε, if constant"].holds == "95\xa0% confidence, for one look"
    assert rows["False alarm"].value == "≤ 0.001"
    assert rows["Power, noise"].value == "99\xa0%"
    assert "95 % needs 50 steps" in rows["Power, noise"].how


def test_each_assumption_has_one_letter_in_the_order_of_the_list() -> None:
    table = method_table(of_outcome("PASS"))
    used = [letter for row in table.rows for letter in row.assumes.split() if letter.isalpha()]
    letters = [chr(65 + i) for i in range(len(table.assumptions))]
    assert list(dict.fromkeys(used)) == letters
    assert len(set(table.assumptions)) == len(table.assumptions)
    assert table.assumptions[0] == "Steps are independent."  # as the report states it


def test_the_twenty_seventh_assumption_is_aa() -> None:
    report = made_report()
    bound = dataclasses.replace(report.bounds[0], assumptions=tuple(f"x{i}" for i in range(40)))
    table = method_table(dataclasses.replace(report, bounds=(bound,)))
    (row,) = [row for row in table.rows if row.name.startswith("Proved")]
    assert row.assumes.split()[-1] == "AP"  # after two of the spent epsilon
    assert len(table.assumptions) == 44


def test_claims_have_their_source_and_shuffled_batches_their_assumption() -> None:
    settings = {**made_report().settings, "claimed_epsilon": 8.0, "claim": {"sampling": "shuffled"}}
    table = method_table(made_report(settings=settings))
    assert table.rows[0].how == "stated by the user"
    assert "shuffled batches" in table.assumptions[0]
    accounted = method_table(made_report())
    assert accounted.rows[0].how == "the accountant's epsilon of these steps"


def test_searched_thresholds_and_bounds_by_other_names_are_named() -> None:
    report = made_report()
    bound = dataclasses.replace(
        report.bounds[0], name="fdp_cp", looks="single", threshold="searched"
    )
    rows = method_table(dataclasses.replace(report, bounds=(bound,))).rows
    (row,) = [row for row in rows if row.name == "ε by fdp_cp"]
    assert row.holds.endswith("for one look, threshold searched on the same data")


def test_a_report_without_numbers_has_no_rows_but_the_false_alarm() -> None:
    report = made_report(claimed=None, spent=None, bounds=(), epsilon_not_excluded=None, power={})
    assert [row.name for row in method_table(report).rows] == ["False alarm"]
    assert method_table(hostile()).rows
    assert method_table(detailed(report)).rows
