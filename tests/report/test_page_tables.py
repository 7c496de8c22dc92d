"""Tables of a page: the epsilons on one axis, and the method behind each number."""

import dataclasses
import math

import numpy as np
import pytest
from made_report import made_report
from page_reports import detailed, hostile, of_outcome

from lightning_audit.report import page_tables as tables
from lightning_audit.report.page_tables import epsilon_section, method_table, most_found
from lightning_audit.results.audit_report import CheckResult, EpsilonBound
from lightning_audit.stats.tradeoff import ApproxDPTradeoff


def rows(report):
    return {row.name: row for row in epsilon_section(report).rows}


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 8.0])
def test_the_rate_of_an_attack_is_that_of_the_tradeoff_function(epsilon, delta):
    for fpr in (0.001, 0.01, 0.4):
        expected = 1.0 - ApproxDPTradeoff(epsilon, delta)(fpr)
        assert most_found(epsilon, delta, fpr) == pytest.approx(min(1.0, expected), abs=1e-12)


def test_nothing_is_bounded_by_an_infinite_epsilon():
    assert most_found(math.inf, 1e-5) == 1.0
    assert "∞" in rows(made_report(spent=math.inf))["Spent"].value


def test_the_epsilons_are_on_one_axis_with_the_claim_as_its_line():
    found = rows(made_report(claimed=8.0, spent=4.0, proved=2.0))
    assert list(found) == ["Claimed", "Spent", "Proved at least", "Not excluded up to"]

    def percent(name: str, after: str) -> float:
        return float(found[name].bar.split(after)[-1].split("%")[0])

    widths = [float(row.bar.split('width="')[2].split("%")[0]) for row in found.values()]
    np.testing.assert_allclose(np.array(widths[:3]) / widths[0], [1.0, 0.5, 0.25], rtol=1e-3)
    assert percent("Spent", 'class="claim dash" x1="') == pytest.approx(widths[0])
    # What is not excluded starts where what is proved ends.
    assert percent("Not excluded up to", 'class="b open" x="') == pytest.approx(widths[2])


def test_a_bound_of_zero_is_no_sign_of_privacy():
    assert "Proved at least" not in rows(made_report(proved=None))
    row = rows(made_report(proved=0.0))["Proved at least"]
    assert row.value == "\N{EN DASH}"
    assert "0 is no sign of privacy" in row.means


def test_the_sure_words_of_a_claim():
    means = rows(made_report(claimed=1.0, settings={"claimed_epsilon": 1.0}))["Claimed"].means
    told = "The promise: no one who starts at 50:50 becomes more than 73\xa0% sure"
    assert means.startswith(told)
    assert "finds at most 2.7\xa0% of the present ones" in means


def test_the_spent_epsilon_of_a_violated_mechanism_is_refuted_and_the_bound_of_one_look_shown():
    violation, fine = of_outcome("VIOLATION"), of_outcome("PASS")
    row = rows(violation)["Spent"]
    assert "the true cost is another one" in row.means
    assert row.kind == "spent refuted"
    note = epsilon_section(violation).note
    assert note.endswith("that they are below the claim is no evidence for it.")
    assert epsilon_section(fine).note == ""
    assert rows(violation)["At least, if constant"].value == "2.1"
    assert "At least, if constant" not in rows(fine)


def test_what_is_far_from_excluded_leaves_the_picture():
    found = rows(made_report(epsilon_not_excluded=1000.0))
    assert "continues outside of the picture" in found["Not excluded up to"].means
    assert "longer run excludes more" in found["Not excluded up to"].means


def test_claims_of_replacement_and_of_shuffled_batches_have_their_words():
    settings = {"claim": {"adjacency": "replace_one", "sampling": "shuffled"}}
    found = rows(detailed(made_report(), settings={**made_report().settings, **settings}))
    assert "whether one record is replaced by another" in found["Claimed"].means
    assert "shuffled batches" in found["Spent"].means
    assert "Poisson" not in found["Spent"].means


def test_a_claim_that_an_allowed_finding_refutes_is_not_known_to_hold():
    report = made_report(spent=9.0, epsilon_refuted_by=("sampling.not_poisson",))
    assert "sampling.not_poisson allowed, the claim is not known" in rows(report)["Claimed"].means


def test_without_any_epsilon_the_section_says_so():
    report = made_report(claimed=None, spent=None, proved=None, epsilon_not_excluded=None)
    section = epsilon_section(report)
    assert (section.rows, section.claimed) == ((), False)
    assert section.note.startswith("No epsilon is claimed")
    settings = {**report.settings, "claim": {"noise_coefficients": [1.0, -0.5]}}
    note = epsilon_section(dataclasses.replace(report, settings=settings)).note
    assert note.startswith("No epsilon is computed for noise that is correlated")


def test_every_number_has_its_method_level_and_assumptions():
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


def test_each_assumption_has_one_letter_in_the_order_of_the_list():
    table = method_table(of_outcome("PASS"))
    used = [letter for row in table.rows for letter in row.assumes.split() if letter.isalpha()]
    letters = [chr(65 + i) for i in range(len(table.assumptions))]
    assert list(dict.fromkeys(used)) == letters
    assert len(set(table.assumptions)) == len(table.assumptions)
    assert table.assumptions[0] == "Steps are independent."  # as the report states it


def test_the_twenty_seventh_assumption_is_aa():
    report = made_report()
    bound = dataclasses.replace(report.bounds[0], assumptions=tuple(f"x{i}" for i in range(40)))
    table = method_table(dataclasses.replace(report, bounds=(bound,)))
    (row,) = [row for row in table.rows if row.name.startswith("Proved")]
    assert row.assumes.split()[-1] == "AP"  # after two of the spent epsilon
    assert len(table.assumptions) == 44


def test_claims_have_their_source_and_shuffled_batches_their_assumption():
    settings = {**made_report().settings, "claimed_epsilon": 8.0, "claim": {"sampling": "shuffled"}}
    table = method_table(made_report(settings=settings))
    assert table.rows[0].how == "stated by the user"
    assert "shuffled batches" in table.assumptions[0]
    accounted = method_table(made_report())
    assert accounted.rows[0].how == "the accountant's epsilon of these steps"


def test_searched_thresholds_and_bounds_by_other_names_are_named():
    report = made_report()
    bound = dataclasses.replace(
        report.bounds[0], name="fdp_cp", looks="single", threshold="searched"
    )
    rows = method_table(dataclasses.replace(report, bounds=(bound,))).rows
    (row,) = [row for row in rows if row.name == "ε by fdp_cp"]
    assert row.holds.endswith("for one look, threshold searched on the same data")


def test_a_report_without_numbers_has_no_rows_but_the_false_alarm():
    report = made_report(claimed=None, spent=None, bounds=(), epsilon_not_excluded=None, power={})
    assert [row.name for row in method_table(report).rows] == ["False alarm"]
    assert method_table(hostile()).rows
    assert method_table(detailed(report)).rows


def test_the_look_at_the_planned_end_has_a_row_and_its_assumption():
    limits = ("confidence", "fixed", "single", ("leakage kept a constant ratio",))
    report = made_report(proved=2.0)
    bound = EpsilonBound("at_end", 2.5, 1e-5, 0.3, 0.05, *limits)
    ended = dataclasses.replace(report, bounds=(*report.bounds, bound))
    row = rows(ended)["At the planned end"]
    assert (row.value, "fixed before the first step" in row.means) == ("2.5", True)
    assert "At the planned end" not in rows(report)


@pytest.mark.parametrize(
    ("name", "evidence", "words"),
    [
        (
            "sampling.not_poisson",
            {"loader": "DataLoader, batches of 30"},
            "batches are not Poisson-sampled (DataLoader, batches of 30)",
        ),
        ("sampling.rate", {}, "records are drawn too often"),
        ("ledger.draws", {}, "draws are not independent"),
        ("noise", {}, "Poisson sampling at the stated rate"),
    ],
)
@pytest.mark.parametrize("status", ["allowed", "violated"])
def test_sampling_is_stated_as_it_was_found(name, evidence, words, status):
    found = CheckResult(name, "accounting", status, "seen", evidence=evidence)
    assert tables.sampling_words(made_report(checks=(found,))) == words


def test_sampling_of_a_correct_run_is_that_of_the_claim():
    assert tables.sampling_words(made_report()) == "Poisson sampling at the stated rate"


def test_neighbors_of_several_items_are_named():
    report = made_report()
    settings = {**report.settings, "claim": {"items_per_record": 3}}
    words = tables.adjacency_words(dataclasses.replace(report, settings=settings))
    assert words == "one record is added or removed, with up to 3 items a record"
