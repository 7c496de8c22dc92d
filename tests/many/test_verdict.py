import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from many_trainings import audited
from refused_calls import refusals
from scipy import special

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_history, total_variation
from lightning_audit.accounting.history import leaking
from lightning_audit.checks.check import GUESSED_COINS
from lightning_audit.cli.main import main
from lightning_audit.many.verdict import (
    before_the_first,
    contradiction_of_epsilon,
    contradictions,
    epsilon_of_any_mechanism,
    promise_of,
    trainings_to_pass,
)
from lightning_audit.results.audit_report import AuditReport, Verdict
from lightning_audit.stats.power import anytime_power
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    PiecewiseTradeoff,
    gaussian_epsilon,
    gaussian_mu,
)
from lightning_audit.verdict import gate

DELTA = 1e-5
FULL = PrivacyClaim(noise_multiplier=6.0, sample_rate=1.0, steps=100, delta=DELTA)
SAMPLED = PrivacyClaim(noise_multiplier=2.0, sample_rate=0.25, steps=100, delta=DELTA)


@pytest.fixture(scope="module")
def sampled():
    return promise_of(SAMPLED)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_epsilon_and_delta_allow_the_errors_of_their_trade_off(epsilon, delta):
    error = promise_of((epsilon, delta)).least_error
    f, alpha = ApproxDPTradeoff(epsilon, delta), np.linspace(0, 1, 100_001)
    naive = 0.5 * np.min(alpha + f(alpha))
    assert error == pytest.approx((1 - delta) / (1 + math.exp(epsilon)), rel=1e-12)
    assert error <= naive + 1e-12
    assert naive - error < 1e-5


@pytest.mark.parametrize("epsilon", [1, 4, 8])
def test_a_gaussian_allows_phi_of_half_its_mu(epsilon):
    mu = gaussian_mu(epsilon, DELTA)
    promise = promise_of(GaussianTradeoff(mu))
    assert promise.least_error == pytest.approx(special.ndtr(-mu / 2), rel=1e-9)
    assert promise.mu == pytest.approx(mu, rel=1e-8)
    assert promise.epsilon == pytest.approx(epsilon)
    steps = PrivacyClaim(noise_multiplier=10 / mu, sample_rate=1.0, steps=100, delta=DELTA)
    assert promise_of(steps).least_error == pytest.approx(promise.least_error, rel=1e-9)


def test_any_trade_off_function_allows_its_least_sum_of_errors():
    promise = promise_of(PiecewiseTradeoff([0.1, 0.4], [0.5, 0.2]))
    assert promise.least_error == pytest.approx(0.3, abs=1e-5)
    assert (promise.form, promise.gaussian) == ("tradeoff", False)
    proved = promise.proved_at(0.1)
    assert proved.epsilon == proved.epsilon_any == pytest.approx(math.log(8.9999))
    assert proved.ratio is None


def test_the_strongest_form_of_a_claim_counts():
    both = PrivacyClaim(epsilon=8.0, delta=DELTA, noise_multiplier=6.0, sample_rate=1.0, steps=100)
    assert promise_of(both) == promise_of(FULL)
    assert promise_of(PrivacyClaim(epsilon=8.0, delta=DELTA)) == promise_of((8.0, DELTA))
    assert promise_of(ApproxDPTradeoff(8.0, DELTA)) == promise_of((8.0, DELTA))
    assert promise_of(FULL).least_error > 500 * promise_of((8.0, DELTA)).least_error


def test_shuffled_passes_are_full_batches_and_a_replaced_record_shows_more():
    steps = {"noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 40, "delta": DELTA}
    shuffled = PrivacyClaim(**steps, sampling="shuffled")
    passes = PrivacyClaim(**{**steps, "sample_rate": 1.0, "steps": 4})
    assert promise_of(shuffled).least_error == promise_of(passes).least_error
    error = promise_of(FULL, pair="replace_one").least_error
    assert error == pytest.approx(special.ndtr(-10 / 6), rel=1e-12)


def test_a_limit_gives_back_the_ratio_that_allows_it(sampled):
    for ratio in (0.4, 1.0, 1.7, 3.0):
        proved = sampled.proved_at(0.5 * (1 - total_variation(leaking(sampled.history, ratio))))
        assert ratio * 0.995 < proved.ratio <= ratio * (1 + 1e-9)
        truth = epsilon_of_history(leaking(sampled.history, ratio), DELTA)
        assert truth * 0.98 < proved.epsilon <= truth * 1.002


def test_a_limit_of_full_batches_is_a_gaussian_bound():
    proved = promise_of(FULL).proved_at(0.2)
    mu = -2 * special.ndtri(0.2)
    assert (proved.mu, proved.ratio) == pytest.approx((mu, mu * 6 / 10))
    assert proved.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA))
    assert promise_of(GaussianTradeoff(1.0)).proved_at(0.2).epsilon == pytest.approx(proved.epsilon)
    assert proved.epsilon_any == pytest.approx(math.log(0.8 / 0.2), rel=1e-4)


def test_a_limit_of_a_half_proves_nothing(sampled):
    for promise in (sampled, promise_of(FULL), promise_of((1.0, 0.0))):
        for limit in (0.5, 0.7, 1.0):
            proved = promise.proved_at(limit)
            assert (proved.epsilon, proved.epsilon_any, proved.mu) == (0, 0, 0)


def test_the_bound_for_any_mechanism_is_that_of_the_claim_that_just_allows_the_error():
    for epsilon, delta in ((0.3, 0.0), (4.0, 1e-5), (20.0, 0.01)):
        error = promise_of((epsilon, delta)).least_error
        assert epsilon_of_any_mechanism(error, delta) == pytest.approx(epsilon)
    assert epsilon_of_any_mechanism(0.0, 0.0) == math.inf


test_bad_claims_and_plans_are_refused = refusals(
    (lambda: before_the_first(promise_of((1.0, 0.0)), 0, 1e-3), "trainings=0"),
    (lambda: before_the_first(promise_of((1.0, 0.0)), 10, 0.0), r"significance=0\.0"),
    (lambda: promise_of(PrivacyClaim(epsilon=1.0, delta=0.1), pair="same"), "pair='same'"),  # type: ignore[arg-type]
    (lambda: promise_of(PrivacyClaim(noise_multiplier=1.0)), "must state noise_multiplier"),
    (lambda: promise_of((-1.0, 0.1)), "epsilon=-1.0"),
    (lambda: promise_of(FULL, delta=0.0), "delta=0.0"),
    (lambda: promise_of(GaussianTradeoff(200.0)), "allows an attack without errors"),
    (lambda: promise_of(lambda alpha: 0.9), "trade-off function"),
    (
        lambda: promise_of(PrivacyClaim(epsilon=1.0, delta=0.1, adjacency="replace_one")),
        "adjacency='replace_one'",
    ),
    (
        lambda: promise_of(
            PrivacyClaim(epsilon=1.0, delta=0.1, adjacency="add_remove"), pair="replace_one"
        ),
        "pair='replace_one'",
    ),
)


@pytest.mark.parametrize(
    ("claim", "trainings", "said"),
    [
        (
            (8.0, DELTA),
            1000,
            r"\(8, 1e-05\)-DP after 20,844 guesses, and 1,000 trainings are planned.*cannot refute "
            "the claim, only bound epsilon by at most 5.*claim noise_multiplier, sample_rate and ",
        ),
        (
            GaussianTradeoff(gaussian_mu(8, DELTA)),
            1000,
            "-GDP after 42 guesses; 1,000 trainings are planned$",
        ),
        (
            FULL,
            30,
            "42 guesses, and 30 trainings are planned.*the audit cannot refute the claim; plan "
            "more trainings$",
        ),
        ((40.0, 0.0), 10, r"after more than 10\^12 guesses"),
    ],
)
def test_what_the_plan_can_refute_is_said_before_the_first_training(claim, trainings, said):
    assert re.search(said, before_the_first(promise_of(claim), trainings, 1e-3), re.DOTALL)


@pytest.mark.parametrize("mu", [0.5, 0.9249, 1.666])
def test_a_pass_has_95_percent_power_against_twice_the_mu(mu):
    promise = promise_of(GaussianTradeoff(mu))
    needed = trainings_to_pass(promise.least_error, 1e-3)
    strong = float(special.ndtr(-mu))
    assert anytime_power(needed, promise.least_error, strong, 1e-3) >= 0.95
    assert anytime_power(needed // 2, promise.least_error, strong, 1e-3) < 0.95


def test_failures_and_several_canaries_need_more():
    error = promise_of(GaussianTradeoff(1.0)).least_error
    more = ({}, {"canaries": 5}, {"failed": 0.1})
    numbers = [trainings_to_pass(error, 1e-3, **each) for each in more]
    assert None not in numbers
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    assert trainings_to_pass(error, 1e-3, failed=0.5) is None


# --- The gate on reports of many trainings: what the counts give, and edits of them.
def edited(report: AuditReport, **changes: Any) -> AuditReport:
    assert report.trainings is not None
    return dataclasses.replace(report, trainings=dataclasses.replace(report.trainings, **changes))


@pytest.fixture(scope="module")
def passing():
    return audited(mu=1.0).to_report()


@pytest.mark.parametrize(("mu", "n"), [(1.0, 400), (2.5, 400), (1.0, 60), (0.0, 600)])
def test_reports_of_every_outcome_do_not_contradict_themselves(mu, n):
    assert contradictions(audited(mu=mu, n=n).to_report()) == []


COUNTED = {"errors": (100, 500), "guesses": (390,), "trainings": (500,), "failures": (401,)}
COUNTED |= {"least_error": (0.2,), "log_e_value": (9.0, -1.0), "error_upper": (0.2,)}
COUNTED |= {"error_upper_at_end": (None, 0.2), "refuted_after": (30,), "significance": (0.0,)}
COUNTED |= {"mu_lower": (0.9,), "claim": ("2-GDP",)}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in COUNTED.items() for v in vs])
def test_an_edited_count_is_found(passing, name, value):
    assert contradictions(edited(passing, **{name: value})) != []


def test_an_edited_verdict_check_or_bound_is_found(passing):
    bad = audited(mu=2.5).to_report()
    higher = tuple(dataclasses.replace(bound, epsilon_lower=0.0) for bound in passing.bounds)
    for report, change in (
        (bad, {"verdict": Verdict("PASS", None, "fine")}),
        (bad, {"verdict": passing.verdict}),
        (bad, {"checks": passing.checks}),
        *((passing, {name: ()}) for name in ("checks", "bounds")),
        (passing, {"bounds": higher}),
        (passing, {"steps": 3}),
        (passing, {"trainings": None}),
    ):
        assert contradictions(dataclasses.replace(report, **change)) != []
    assert gate.contradictions(dataclasses.replace(passing, trainings=None)) != []


def test_a_bound_from_scores_below_that_of_the_counts_is_found(passing):
    (bound,) = [bound for bound in passing.bounds if bound.name == "coins_scores"]
    mu = passing.trainings.mu_lower / 2
    report = edited(passing, mu_lower=mu)
    assert any("its mu_lower gives" in text for text in contradictions(report))
    lower = dataclasses.replace(bound, epsilon_lower=float(gaussian_epsilon(mu, bound.delta)))
    bounds = tuple(lower if one is bound else one for one in passing.bounds)
    found = contradictions(dataclasses.replace(report, bounds=bounds))
    assert any("its counts give at least" in text for text in found)


@pytest.mark.parametrize("claim", [FULL, (4.0, 1e-5), SAMPLED])
def test_the_claim_of_a_report_is_computed_again(claim):
    report = audited(mu=1.0, n=200, promise=promise_of(claim)).to_report()
    assert (contradictions(report), contradiction_of_epsilon(report)) == ([], "")
    wrong = edited(report, least_error=report.trainings.least_error * 0.9)
    assert "least_error is" in contradiction_of_epsilon(wrong)
    bounds = tuple(dataclasses.replace(b, epsilon_lower=7.0) for b in report.bounds)
    higher = dataclasses.replace(report, bounds=bounds)
    assert "epsilon_lower is 7.0" in contradiction_of_epsilon(higher)


def test_a_claim_that_is_no_longer_there_is_found():
    report = audited(n=100, promise=promise_of((4.0, 1e-5))).to_report()
    lost = dataclasses.replace(report, claimed_epsilon=None)
    assert "cannot be composed" in contradiction_of_epsilon(lost)
    assert contradiction_of_epsilon(audited().to_report()) == ""  # a trade-off function


@pytest.mark.parametrize(
    ("form", "mu", "n", "code"),
    [
        *((form, 2.5, 400, 1) for form in ("text", "json", "junit", "sarif", "github", "markdown")),
        *((form, 1.0, n, code) for form in ("text", "junit") for n, code in ((400, 0), (60, 2))),
    ],
)
def test_the_gate_shows_it_in_every_format(mu, n, code, form, tmp_path, capsys):
    path = audited(mu=mu, n=n).to_report().save(tmp_path / "report.json")
    assert main(["check", str(path), "--format", form]) == code
    shown = capsys.readouterr().out
    assert GUESSED_COINS.failed_title in shown or form in ("text", "json") or code != 1
    assert shown


def test_the_budget_compares_what_is_claimed_and_proved(tmp_path, capsys):
    path = str(audited(mu=1.0).to_report().save(tmp_path / "report.json"))
    assert main(["check", path, "--max-epsilon", "5"]) == 0
    assert main(["check", path, "--max-epsilon", "4"]) == 1  # 1-GDP is 4.38
    assert "epsilon claimed 4.377" in capsys.readouterr().out


def test_an_edited_file_is_refused(tmp_path, capsys):
    report = edited(audited(mu=2.5).to_report(), errors=1)
    assert main(["check", str(report.save(tmp_path / "report.json"))]) == 2
    assert "contradicts itself" in capsys.readouterr().err
