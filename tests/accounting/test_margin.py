from __future__ import annotations

import math

import pytest
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier

from lightning_audit.accounting.composition import epsilon_of_history, exceeds
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon

# Of Opacus' accountants: rdp at a small epsilon, whose best order is the last one, and gdp always.
pytestmark = pytest.mark.filterwarnings("ignore:Optimal order", "ignore:GDP accounting")

DELTA = 1e-5

#: Sample rate and steps of trainings.
SAMPLED = [(0.01, 300), (0.04, 25), (0.002, 2000)]


@pytest.mark.parametrize("claimed", [0.01, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize(
    ("error", "share"), [(0.0, 0.01), (0.005, 0.01), (0.0075, 0.015), (0.01, 0.02), (0.3, 0.02)]
)
def test_a_claim_is_exceeded_by_more_than_a_percent_or_twice_the_error_and_never_beyond_two(
    claimed: float, error: float, share: float
) -> None:
    assert not exceeds(claimed, claimed, error)
    assert not exceeds((1 + share) * claimed * (1 - 1e-9), claimed, error)
    assert exceeds((1 + share) * claimed * (1 + 1e-9), claimed, error)
    assert exceeds(math.inf, claimed, error)


def test_small_claims_get_no_slack_beyond_what_a_composition_resolves() -> None:
    assert exceeds(0.02, 0.01)
    assert exceeds(2e-6, 0.0)
    assert not exceeds(1e-6, 0.0)


def test_the_same_steps_on_another_grid_do_not_exceed_themselves() -> None:
    steps = [Phase(1.0, 0.01, 1000)]
    fine = epsilon_of_history(steps, DELTA)
    assert not exceeds(epsilon_of_history(steps, DELTA, grid=1e-3), fine)
    assert exceeds(epsilon_of_history([Phase(1.0, 0.01, 1100)], DELTA), fine)


@pytest.mark.parametrize(("rate", "steps"), SAMPLED)
@pytest.mark.parametrize(
    ("mechanism", "target"),
    # rdp has no noise multiplier for a target below about .3 at this delta, and says so.
    [
        ("prv", 0.01),
        ("prv", 0.05),
        ("prv", 0.1),
        ("prv", 0.5),
        ("prv", 2.0),
        ("rdp", 0.5),
        ("rdp", 2.0),
    ],
)
def test_noise_that_opacus_finds_for_a_small_target_exceeds_neither_it_nor_what_opacus_reports(
    mechanism: str, target: float, rate: float, steps: int
) -> None:
    sigma = get_noise_multiplier(
        target_epsilon=target,
        target_delta=DELTA,
        sample_rate=rate,
        steps=steps,
        accountant=mechanism,
    )
    accountant = create_accountant(mechanism)
    accountant.history = [(sigma, rate, steps)]
    spent = epsilon_of_history([Phase(sigma, rate, steps)], DELTA)
    assert spent > 0
    assert not exceeds(spent, accountant.get_epsilon(DELTA))
    assert not exceeds(spent, target)


@pytest.mark.parametrize("target", [0.01, 0.05, 0.1, 0.5])
@pytest.mark.parametrize(("rate", "steps"), SAMPLED)
def test_an_exact_epsilon_as_a_small_claim_is_kept_on_the_grid_that_is_chosen(
    target: float, rate: float, steps: int
) -> None:
    sigma = get_noise_multiplier(
        target_epsilon=target + 0.01,  # prv adds .01 to the truth
        target_delta=DELTA,
        sample_rate=rate,
        steps=steps,
        accountant="prv",
        epsilon_tolerance=0.001,
    )
    history = [Phase(sigma, rate, steps)]
    spent = epsilon_of_history(history, DELTA)
    truth = epsilon_of_history(history, DELTA, grid=spent / 2000)
    assert truth <= spent
    assert not exceeds(spent, truth)
    assert exceeds(epsilon_of_history([Phase(0.97 * sigma, rate, steps)], DELTA), truth)


def test_a_noise_schedule_in_buckets_does_not_exceed_its_exact_epsilon() -> None:
    schedule = [Phase(4.0 * 0.2 ** (k / 29), 0.02, 20) for k in range(30)]
    spent = composed_epsilon(schedule, DELTA)
    assert spent is not None
    assert not exceeds(spent, epsilon_of_history(schedule, DELTA, grid=spent / 1000))


def test_the_gdp_accountant_reports_less_than_the_truth_and_its_claim_is_exceeded() -> None:
    accountant = create_accountant("gdp")
    accountant.history = [(1.582, 0.04, 25)]
    spent = epsilon_of_history([Phase(1.582, 0.04, 25)], DELTA)
    assert exceeds(spent, accountant.get_epsilon(DELTA))
