"""Tables of a page: the epsilons on one axis, and the method behind each number."""

import dataclasses

import numpy as np
import pytest
from made_report import made_report
from page_reports import of_outcome

from lightning_audit.report import page_tables as tables
from lightning_audit.report.page_tables import epsilon_section, method_table, most_found
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.tradeoff import ApproxDPTradeoff


def rows(report):
    return {row.name: bar for row, _, _, bar in epsilon_section(report)["rows"]}


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 8.0])
def test_the_rate_of_an_attack_is_that_of_the_tradeoff_function(epsilon, delta):
    for fpr in (0.001, 0.01, 0.4):
        expected = 1.0 - ApproxDPTradeoff(epsilon, delta)(fpr)
        assert most_found(epsilon, delta, fpr) == pytest.approx(min(1.0, expected), abs=1e-12)


def test_the_epsilons_are_on_one_axis_with_the_claim_as_its_line():
    found = rows(made_report(claimed=8.0, spent=4.0, proved=2.0))
    assert list(found) == ["Claimed", "Spent", "Proved at least", "Not excluded up to"]

    def percent(name: str, after: str) -> float:
        return float(found[name].split(after)[-1].split("%")[0])

    widths = [float(bar.split('width="')[2].split("%")[0]) for bar in found.values()]
    np.testing.assert_allclose(np.array(widths[:3]) / widths[0], [1.0, 0.5, 0.25], rtol=1e-3)
    assert percent("Spent", 'class="claim dash" x1="') == pytest.approx(widths[0])
    # What is not excluded starts where what is proved ends.
    assert percent("Not excluded up to", 'class="b open" x="') == pytest.approx(widths[2])


def test_each_assumption_has_one_letter_in_the_order_of_the_list():
    table = method_table(of_outcome("PASS"))
    used = [
        letter for *_, assumed in table["rows"] for letter in assumed.split() if letter.isalpha()
    ]
    letters = [chr(65 + i) for i in range(len(table["assumptions"]))]
    assert list(dict.fromkeys(used)) == letters
    assert len(set(table["assumptions"])) == len(table["assumptions"])
    assert table["assumptions"][0] == "steps are independent"  # as the report states it


def test_the_twenty_seventh_assumption_is_aa():
    report = made_report()
    bound = dataclasses.replace(report.bounds[0], assumptions=tuple(f"x{i}" for i in range(40)))
    table = method_table(dataclasses.replace(report, bounds=(bound,)))
    (assumed,) = [assumed for name, *_, assumed in table["rows"] if name.startswith("Proved")]
    assert assumed.split()[-1] == "AP"  # after two of the spent epsilon
    assert len(table["assumptions"]) == 44


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
