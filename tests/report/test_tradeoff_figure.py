from __future__ import annotations

import dataclasses

import pytest
from made_report import made_report
from page_reports import OUTSIDE, of_outcome
from parsed_page import ParsedPage
from scipy import special

from lightning_audit.report.page_figures import tradeoff, true_positives
from lightning_audit.report.page_parts import Scale
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.tradeoff import GaussianTradeoff

#: A step that claims mu = 1.
HISTORY = ((1.0, 0.01, 100),)


def report(**changes: object) -> AuditReport:
    return dataclasses.replace(of_outcome("PASS"), **{"history": HISTORY, **changes})


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 4.0])
def test_the_attack_at_one_percent_is_the_best_test_of_two_gaussians(mu: float) -> None:
    assert true_positives(mu) == pytest.approx(special.ndtr(mu - special.ndtri(0.99)))
    assert true_positives(mu, 0.2) == pytest.approx(1.0 - float(GaussianTradeoff(mu)(0.2)))


def test_the_words_have_mu_and_the_attack_claimed_and_measured() -> None:
    claimed, measured = tradeoff(report()).words
    assert claimed.startswith("Claimed: μ = 1 for one step")
    assert claimed.endswith("finds at most 9.2\xa0% of the present ones.")
    assert measured.startswith("Measured: μ is at least 0.8 with 95\xa0% confidence")
    assert "finds at least 6.3\xa0%" in measured


@pytest.mark.parametrize(("readings", "drawn"), [(29, False), (30, True)])
def test_below_thirty_readings_there_is_no_figure(readings: int, drawn: bool) -> None:
    found = tradeoff(report(observations=readings))
    assert bool(found.picture) == drawn
    assert bool(found.rows) == drawn
    assert found.words


def test_points_within_the_claim_are_dots_and_others_crosses() -> None:
    within, outside = tradeoff(report()), tradeoff(report(operating_points=(OUTSIDE,)))
    assert within.says.startswith("All measured points are where the claim allows them")
    assert (within.outside, outside.outside) == (False, True)
    assert outside.says == "1 of 1 measured point lies where the claim allows none."
    kinds = [ParsedPage(each.picture).values("class") for each in (within, outside)]
    assert [("cross" in found, "dot good" in found) for found in kinds] == [
        (False, True),
        (True, False),
    ]
    assert outside.rows[0][-1] == "✕ outside"


def test_the_curve_is_the_claimed_one_and_the_hatched_area_below_it() -> None:
    parsed = ParsedPage(tradeoff(report()).picture)
    claim = next(
        value
        for (_, name, kind), (_, d, value) in zip(
            parsed.attributes, parsed.attributes[1:], strict=False
        )
        if (name, kind, d) == ("class", "claim", "d")
    )
    points = [tuple(map(float, pair.split())) for pair in claim[1:].split("L")]
    x, y = Scale(50.0, 386.0, 0.0, 1.0), Scale(350.0, 14.0, 0.0, 1.0)
    curve = GaussianTradeoff(1.0)
    for px, py in points:
        assert y(py) == pytest.approx(float(curve(min(1.0, max(0.0, x(px))))), abs=2e-3)
    assert (points[0], points[-1]) == ((50.0, 14.0), (386.0, 350.0))


def test_without_noise_nothing_is_claimed_and_the_points_are_drawn() -> None:
    found = tradeoff(report(history=((0.0, 0.01, 100),)))
    assert found.claim == "no claim: a step has noise_multiplier 0: it claims no privacy"
    assert found.says == "3 measured points; nothing is claimed that they could contradict."
    assert "forbid" not in ParsedPage(found.picture).values("class")


def test_correlated_noise_has_no_mu_of_a_step() -> None:
    settings = {**report().settings, "claim": {"noise_coefficients": [1.0, -0.5]}}
    (words,) = tradeoff(report(settings=settings)).words
    assert "no μ and no ε of a step follow from it" in words


def test_points_in_the_shade_by_less_than_their_error_accuse_nothing_yet() -> None:
    point = dataclasses.replace(OUTSIDE, fn=22, tp=97, fp=27, tn=86)
    violation = dataclasses.replace(of_outcome("VIOLATION"), history=HISTORY)
    says = tradeoff(dataclasses.replace(violation, operating_points=(point,))).says
    assert says.startswith("1 of 1 measured point")
    assert tradeoff(made_report()).says == ""
