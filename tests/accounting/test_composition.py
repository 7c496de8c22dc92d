import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from refused_calls import refusals
from scipy import special
from scipy.special import ndtr

from lightning_audit import PrivacyClaim
from lightning_audit.accounting import composition
from lightning_audit.accounting.composition import (
    PassCounter,
    attack_tpr,
    epsilon_of_history,
    epsilon_of_passes,
    exceeds,
    noise_for_attack,
    passes_of,
    passes_taken,
    total_variation,
    unsampled_mu,
)
from lightning_audit.accounting.history import Phase, bucket_up, compress
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.stats.tradeoff import gaussian_epsilon

DELTA = 1e-5


#: Sample rate and steps of trainings.
SAMPLED = [(0.01, 300), (0.04, 25), (0.002, 2000)]


ONE = [1]


SOME = [Phase(1.0, 0.01, 10)]


@pytest.fixture
def builds(monkeypatch):
    """The single-step distributions built in the test, starting from empty caches."""
    from lightning_audit.accounting import step_losses

    build, built = step_losses.step_losses, []

    def counted(sigma, rate, grid, items):
        built.append((sigma, rate, grid))
        return build(sigma, rate, grid, items)

    monkeypatch.setattr(step_losses, "step_losses", counted)
    composition._single_step.cache_clear()
    composition._sufficient_grid.cache_clear()
    composition._epsilon_on_grid.cache_clear()
    return built


# Reference numbers; the last column is the finest grid that is printed.
TABLE = [
    (1.0, 0.01, 1000, {1e-3: 1.828934, 1e-4: 1.828244}, 1.828244),
    (1.0, 0.01, 10_000, {1e-3: 6.190976, 1e-4: 6.187745}, 6.187745),
    (0.8, 0.00512, 20_000, {1e-3: 6.811991, 1e-4: 6.806006}, 6.805951),
    (1.0, 0.001, 100_000, {1e-3: 1.725923, 1e-4: 1.638029}, 1.637252),
]


@pytest.mark.parametrize(("sigma", "rate", "steps", "by_grid", "finest"), TABLE)
def test_reference_epsilons_on_given_grids(sigma, rate, steps, by_grid, finest):
    for grid, expected in by_grid.items():
        epsilon = epsilon_of_history([Phase(sigma, rate, steps)], 1e-5, grid=grid)
        assert epsilon == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize(("sigma", "rate", "steps", "by_grid", "finest"), TABLE)
def test_automatic_grid_is_within_half_a_percent(sigma, rate, steps, by_grid, finest):
    epsilon = epsilon_of_history([Phase(sigma, rate, steps)], 1e-5)
    assert epsilon == pytest.approx(finest, rel=0.005)
    assert epsilon >= finest


def test_full_batches_compose_exactly():
    # The references are 33.103748 and 33.103733 on grids of 1e-3 and 1e-4.
    assert epsilon_of_history([Phase(2.0, 1.0, 100)], 1e-5) == pytest.approx(33.103733, abs=1e-6)
    mixed = [Phase(2.0, 1.0, 10), Phase(5.0, 1.0, 40), Phase(2.0, 1.0, 7)]
    assert epsilon_of_history(mixed, 1e-5) == gaussian_epsilon(math.sqrt(17 / 4 + 40 / 25), 1e-5)


def test_agrees_with_quadrature_of_a_single_step():
    # Naive twin: one step's privacy curve by summing the densities (remove, then add).
    sigma, rate, delta = 0.8, 0.2, 1e-3
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 400_001)
    without = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    shifted = np.exp(-0.5 * ((x - 1) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    within = (1 - rate) * without + rate * shifted
    epsilon = epsilon_of_history([Phase(sigma, rate, 1)], delta, grid=1e-4)
    width = x[1] - x[0]
    spent = max(
        np.maximum(p - math.exp(epsilon) * q, 0).sum() * width
        for p, q in ((within, without), (without, within))
    )
    assert spent == pytest.approx(delta, rel=1e-3)


# Replaced records.
def test_a_replaced_record_agrees_with_quadrature_of_a_single_step():
    # Naive twin: opposite gradients, each of which joins the batch with the sample rate.
    sigma, rate, delta = 0.8, 0.2, 1e-3
    x = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 400_001)
    at = [np.exp(-0.5 * ((x - shift) / sigma) ** 2) for shift in (-1, 0, 1)]
    minus, none, plus = (density / (sigma * math.sqrt(2 * math.pi)) for density in at)
    epsilon = epsilon_of_history([Phase(sigma, rate, 1)], delta, adjacency="replace_one", grid=1e-4)
    gap = (1 - rate) * none + rate * plus - math.exp(epsilon) * ((1 - rate) * none + rate * minus)
    assert np.maximum(gap, 0).sum() * (x[1] - x[0]) == pytest.approx(delta, rel=1e-3)


def test_a_replaced_record_of_full_batches_is_twice_the_shift():
    epsilon = epsilon_of_history([Phase(2.0, 1.0, 100)], 1e-5, adjacency="replace_one")
    assert epsilon == gaussian_epsilon(10.0, 1e-5)
    nearly = [Phase(2.0, 1 - 1e-9, 100)]
    sampled = epsilon_of_history(nearly, 1e-5, adjacency="replace_one", grid=1e-3)
    assert sampled == pytest.approx(epsilon, rel=1e-6)


def test_a_replaced_record_at_a_tiny_delta_has_the_bound_without_subsampling():
    epsilon = epsilon_of_history([Phase(1.0, 0.01, 1000)], 1e-13, adjacency="replace_one")
    assert epsilon == gaussian_epsilon(2 * math.sqrt(1000), 1e-13)


# The automatic grid.
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(0.1, 0.05, 300), (0.3, 0.05, 300), (0.01, 0.05, 300)]
)
def test_large_losses_take_a_coarse_grid(sigma, rate, steps, builds):
    epsilon = epsilon_of_history([Phase(sigma, rate, steps)], 1e-5)
    grids = [grid for _, _, grid in builds]
    assert min(grids) > 1e-3
    assert epsilon / min(grids) < 300_000
    finer = epsilon_of_history([Phase(sigma, rate, steps)], 1e-5, grid=min(grids) / 4)
    assert finer <= epsilon <= 1.005 * finer


def test_small_losses_take_a_fine_grid():
    # Single-step losses of 1e-6: on a grid of 1e-3, epsilon comes out seventy times too large.
    history = [Phase(5.0, 1e-5, 1000)]
    epsilon = epsilon_of_history(history, 1e-5)
    finest = epsilon_of_history(history, 1e-5, grid=1e-8)
    assert finest <= epsilon <= finest + 1e-6


def test_practically_no_loss_ends_the_search():
    assert epsilon_of_history([Phase(100.0, 1e-6, 1)], 1e-5) == 0.0


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.05), (1.0, 0.02), (4.0, 0.05)])
def test_a_delta_above_the_cost_at_epsilon_zero_costs_none_on_a_coarse_grid(sigma, rate, builds):
    # The total variation of a step's two distributions.
    variation = rate * (2 * ndtr(1 / (2 * sigma)) - 1)
    for more in (1.05, 1.5, 20.0):
        assert epsilon_of_history([Phase(sigma, rate, 1)], more * variation) == 0.0
    assert min(grid for *_, grid in builds) > 1e-5
    assert epsilon_of_history([Phase(sigma, rate, 1)], 0.9 * variation) > 0.0


def test_absurdly_small_noise_returns_the_bound_without_subsampling(builds):
    epsilon = epsilon_of_history([Phase(1e-4, 0.05, 300)], 1e-5)
    assert epsilon == gaussian_epsilon(math.sqrt(300) * 1e4, 1e-5)
    assert not builds


@pytest.mark.parametrize("delta", [1e-12, 1e-13, 1e-16, 1e-30, 1e-300])
def test_tiny_deltas_stay_finite_and_ordered(delta):
    history = [Phase(1.0, 0.01, 1000)]
    epsilon = epsilon_of_history(history, delta)
    assert epsilon_of_history(history, 1e-11) < epsilon
    assert epsilon <= gaussian_epsilon(math.sqrt(1000), delta)


def test_smallest_delta_of_the_grid_agrees_with_the_exact_composition():
    sampled = epsilon_of_history([Phase(2.0, 1 - 1e-9, 100)], 1e-12, grid=1e-3)
    assert sampled == pytest.approx(gaussian_epsilon(5.0, 1e-12), rel=1e-4)


# Caching.
def test_growing_history_builds_nothing_new(builds):
    for steps in (300, 400, 800, 1023):
        epsilon_of_history([Phase(1.0, 0.01, steps)], 1e-5)
        if steps == 300:
            first = len(builds)
    assert len(builds) == len(set(builds)) == first
    assert first <= 4


def test_grid_is_checked_again_when_steps_have_grown_fourfold(builds):
    for steps in (256, 1023):
        epsilon_of_history([Phase(1.0, 0.01, steps)], 1e-5)
    assert composition._sufficient_grid.cache_info().misses == 1
    epsilon_of_history([Phase(1.0, 0.01, 1024)], 1e-5)
    assert composition._sufficient_grid.cache_info().misses == 2


def test_order_of_calls_does_not_matter():
    histories = [[Phase(1.0, 0.01, steps)] for steps in (10, 100, 1000, 5000)]
    results = []
    for order in (histories, histories[::-1]):
        composition._sufficient_grid.cache_clear()
        composition._epsilon_on_grid.cache_clear()
        results.append({h[0].steps: epsilon_of_history(h, 1e-5) for h in order})
    assert results[0] == results[1]


def test_nothing_spends_nothing_and_a_step_without_noise_everything():
    assert epsilon_of_history([], 1e-5) == 0.0
    assert epsilon_of_history([Phase(0.0, 0.01, 1)], 1e-5) == math.inf
    assert epsilon_of_history([Phase(1.0, 0.01, 9), Phase(0.0, 1.0, 1)], 1e-5) == math.inf
    assert epsilon_of_passes(0.0, 1, DELTA) == math.inf


def test_splitting_and_reordering_change_nothing():
    whole = [Phase(1.0, 0.01, 500), Phase(2.0, 0.02, 300)]
    parts = [Phase(1.0, 0.01, 200), Phase(2.0, 0.02, 300), Phase(1.0, 0.01, 300)]
    assert epsilon_of_history(parts, 1e-5) == epsilon_of_history(whole, 1e-5)
    swapped = epsilon_of_history(whole[::-1], 1e-5)
    assert swapped == pytest.approx(epsilon_of_history(whole, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    "history", [[Phase(1.0, 0.01, 1000)], [Phase(1.0, 0.01, 300), Phase(0.8, 0.04, 200)]]
)
def test_a_lower_bound_lies_below_what_a_fine_grid_gives_and_near_it(history):
    # A finer grid overstates less, so that its epsilon is the nearest known one from above.
    fine = epsilon_of_history(history, 1e-5, grid=2e-5)
    lower, upper = (epsilon_of_history(history, 1e-5, lower=low) for low in (True, False))
    assert 0.995 * fine < lower < fine < upper
    if history == [Phase(1.0, 0.01, 1000)]:
        assert lower < 1.8282 < upper  # by an optimistic and a pessimistic distribution


def noise_for(target: float, rate: float, steps: int, **options: Any) -> float:
    """By Opacus."""
    given = {"target_epsilon": target, "target_delta": DELTA, "sample_rate": rate, "steps": steps}
    return get_noise_multiplier(**given, **options)


# Of Opacus' accountants: rdp at a small epsilon, whose best order is the last one, and gdp always.
@pytest.mark.parametrize("claimed", [0.01, 0.1, 1.0, 8.0, 100.0])
def test_a_claim_is_exceeded_by_a_percent(claimed):
    assert not exceeds(claimed, claimed)
    assert not exceeds(1.01 * claimed * (1 - 1e-9), claimed)
    assert exceeds(1.01 * claimed * (1 + 1e-9), claimed)
    assert exceeds(math.inf, claimed)


def test_small_claims_get_no_slack_beyond_what_a_composition_resolves():
    assert exceeds(0.02, 0.01)
    assert exceeds(2e-6, 0.0)
    assert not exceeds(1e-6, 0.0)


@pytest.mark.filterwarnings("ignore:Optimal order", "ignore:GDP accounting")
@pytest.mark.parametrize(("rate", "steps"), SAMPLED)
@pytest.mark.parametrize(
    ("mechanism", "target"),
    # rdp has no noise multiplier for a target below about .3 at this delta, and says so.
    [("prv", 0.01), ("prv", 0.1), ("prv", 2.0), ("rdp", 0.5)],
)
def test_noise_that_opacus_finds_for_a_target_exceeds_neither_it_nor_what_opacus_reports(
    mechanism, target, rate, steps
):
    sigma = noise_for(target, rate, steps, accountant=mechanism)
    accountant = create_accountant(mechanism)
    accountant.history = [(sigma, rate, steps)]
    spent = epsilon_of_history([Phase(sigma, rate, steps)], DELTA)
    assert spent > 0
    assert not exceeds(spent, accountant.get_epsilon(DELTA))
    assert not exceeds(spent, target)


def test_a_noise_schedule_in_buckets_does_not_exceed_its_exact_epsilon():
    schedule = [Phase(4.0 * 0.2 ** (k / 29), 0.02, 20) for k in range(30)]
    spent = composed_epsilon(schedule, DELTA)
    assert not exceeds(spent, epsilon_of_history(schedule, DELTA, grid=spent / 1000))


@pytest.mark.filterwarnings("ignore:Optimal order", "ignore:GDP accounting")
def test_the_gdp_accountant_reports_less_than_the_truth_and_its_claim_is_exceeded():
    accountant = create_accountant("gdp")
    accountant.history = [(1.582, 0.04, 25)]
    spent = epsilon_of_history([Phase(1.582, 0.04, 25)], DELTA)
    assert exceeds(spent, accountant.get_epsilon(DELTA))


# --- The epsilon of passes over shuffled batches: that of steps on all records.
def test_it_is_the_composition_of_steps_on_all_records_and_more_than_that_of_poisson_ones():
    for adjacency in ("add_remove", "replace_one"):
        found = epsilon_of_passes(1.0, 5, DELTA, adjacency)
        assert found == pytest.approx(
            epsilon_of_history([Phase(1.0, 1.0, 5)], DELTA, adjacency=adjacency)
        )
        assert found > epsilon_of_history([Phase(1.0, 0.01, 500)], DELTA, adjacency=adjacency)


@pytest.mark.parametrize(
    ("steps", "passes"), [([(1 / 28, 28)], 1), ([(0.25, 5)], 2), ([(0.5, 2), (0.25, 8)], 3)]
)
def test_steps_make_passes_by_their_rate(steps, passes):
    assert passes_of(Phase(1.0, rate, count) for rate, count in steps) == passes


def test_a_training_costs_the_least_noise_and_the_passes_that_anyone_knows_of():
    taken = [Phase(2.0, None, 10), Phase(1.5, None, 2)]
    assert passes_taken(taken, (), 3) == Phase(1.5, 1.0, 3)
    assert passes_taken(taken, [Phase(1.2, 0.1, 50)], 3) == Phase(1.2, 1.0, 5)
    assert passes_taken(taken, (), 0) == Phase(1.5, 1.0, 1)


def test_a_claim_composes_its_passes():
    stated = {"delta": DELTA, "noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 30}
    for adjacency in ("add_remove", "replace_one"):
        claim = PrivacyClaim(**stated, sampling="shuffled", adjacency=adjacency)
        assert claim.composed_epsilon() == epsilon_of_passes(2.0, 3, DELTA, adjacency)
    poisson = PrivacyClaim(**stated, sampling="poisson").composed_epsilon()
    assert poisson == PrivacyClaim(**stated).composed_epsilon()


def counted(passes: Sequence[Sequence[Sequence[int]]]) -> PassCounter:
    """What was counted of passes of batches of the steps that each optimizer takes on them."""
    counter, steps = PassCounter(), []
    for batches in passes:
        counter.start_pass(steps)
        for taken in batches:
            counter.start_batch(steps)
            steps = [a + b for a, b in itertools.zip_longest(steps, taken, fillvalue=0)]
    counter.start_pass(steps)
    return counter


@pytest.mark.parametrize(
    ("passes", "count"),
    [
        ([], 0),
        ([[ONE] * 100], 1),
        ([[ONE] * 100] * 3, 3),
        ([[ONE] * 49 + [[10]] + [ONE] * 49 + [[10]]] * 2, 20),  # ten steps on two batches of 100
        ([[[3]] * 5, [ONE] * 5], 4),
        ([[[0], [0], ONE] * 4] * 2, 2),  # a step for three batches
        ([[[1, 2]] * 4], 3),
        ([[[1, 0], [0, 1]] * 4], 2),
        ([[ONE] * 4, [[1, 5]] * 4], 7),  # a second optimizer joins
        ([[[0]] * 4], 0),
    ],
)
def test_of_each_pass_the_batch_of_most_steps_counts(passes, count):
    counter = counted(passes)
    steps = [sum(each) for each in itertools.zip_longest(*itertools.chain(*passes), fillvalue=0)]
    assert counter.passes(steps) == count


def test_no_record_enters_more_steps_than_are_counted():
    rng = np.random.default_rng(0)
    for _ in range(200):
        passes = rng.integers(0, 4, size=(rng.integers(1, 4), 6, 2))
        entered = np.zeros(6, dtype=int)  # by record, each a batch of its own
        for batches in passes:
            entered += rng.permutation(batches.sum(axis=1))
        assert entered.max() <= counted(passes.tolist()).passes(passes.sum(axis=(0, 1)).tolist())


def test_a_batch_counts_while_it_lasts():
    counter = PassCounter()
    counter.start_pass([])
    counter.start_batch([])
    assert counter.passes([4]) == 4
    counter.start_batch([4])
    assert (counter.passes([6]), counter.passes([10])) == (4, 6)


def test_a_pass_that_is_begun_again_after_a_stop_counts_twice():
    counter = PassCounter()
    counter.start_pass([0])
    counter.start_batch([0])
    kept = json.loads(json.dumps(counter.state([2])))
    again = PassCounter()
    again.start_pass([])  # before the checkpoint's optimizers are there
    again.load(kept)
    assert again.passes([2]) == 2
    again.start_pass([2])
    again.start_batch([2])
    assert again.passes([3]) == 3


def test_steps_are_composed_as_a_simulation_of_the_privacy_loss_has_it():
    sigma, rate, steps, draws = 1.0, 0.2, 20, 400_000
    rng, loss = np.random.default_rng(0), np.zeros(draws)
    for _ in range(steps):  # E (1 - e^-L)_+ under the data set with the record
        x = sigma * rng.standard_normal(draws) + (rng.random(draws) < rate)
        loss += np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
    gains = np.maximum(-np.expm1(-loss), 0)
    error = 4 * gains.std() / math.sqrt(draws)
    assert total_variation([Phase(sigma, rate, steps)]) == pytest.approx(gains.mean(), abs=error)


def test_full_batches_are_exact_and_a_replaced_record_doubles_mu():
    phases = [Phase(4.0, 1.0, 9), Phase(3.0, 1.0, 4)]
    mu = math.sqrt(9 / 16 + 4 / 9)
    assert unsampled_mu(phases) == pytest.approx(mu)
    assert total_variation(phases) == pytest.approx(2 * special.ndtr(mu / 2) - 1, rel=1e-14)
    replaced = total_variation(phases, adjacency="replace_one")
    assert replaced == pytest.approx(2 * special.ndtr(mu) - 1, rel=1e-14)


def test_no_steps_show_nothing_and_no_noise_shows_all():
    assert (total_variation([]), total_variation([Phase(0.0, 0.1, 1)])) == (0, 1)


def test_a_history_that_no_grid_resolves_is_bounded_by_full_batches():
    phase = Phase(1.0, 1e-4, 20_000_000)
    assert total_variation([phase]) == total_variation([Phase(1.0, 1.0, 20_000_000)])


test_bad_arguments_are_refused = refusals(
    (lambda: epsilon_of_passes(-1.0, 1, DELTA), "noise_multiplier="),
    (lambda: epsilon_of_passes(1.0, 0, DELTA), "passes="),
    (lambda: PrivacyClaim(sampling="fixed"), "sampling='fixed' must be one of"),
    (
        lambda: PrivacyClaim(sampling="shuffled", noise_coefficients=(1.0, -0.5)),
        "contradicts noise_coefficients",
    ),
    (lambda: epsilon_of_history(SOME, DELTA, adjacency="zero"), "^adjacency='zero' must be one of"),
    (lambda: epsilon_of_history(SOME, DELTA, items=1.5), r"^items=1\.5"),
    (lambda: epsilon_of_history(SOME, DELTA, items=True), "^items=True"),
    (lambda: noise_for_attack(0.01, 0.05, 0.01, 10), r"tpr=0\.01 must exceed fpr=0\.05"),
    (lambda: noise_for_attack(1.0, 0.05, 0.01, 10), r"tpr=1\.0 must be in \(0, 1\)"),
    (lambda: noise_for_attack(0.05, 0.0, 0.01, 10), r"fpr=0\.0 must be in \(0, 1\)"),
    (lambda: Phase(-1.0, 0.1, 1), r"noise_multiplier=-1\.0 must be a finite number >= 0"),
    (lambda: Phase(1.0, 0.0, 1), r"sample_rate=0\.0 must be in \(0, 1\]; use 1\.0 for full"),
    (lambda: Phase(1.0, 0.1, 0), "steps=0 must be a whole number >= 1; leave out phases"),
    (lambda: epsilon_of_history([], 0.0), r"delta=0\.0 must be in \(0, 1\); such as 1e-5"),
    (lambda: epsilon_of_history([], 1e-5, grid=0.0), r"grid=0\.0 must be a finite number > 0"),
    (lambda: bucket_up(1.0, 1.0), r"ratio=1\.0 must be a finite number > 1; use 1\.02"),
    (lambda: compress([], max_phases=0), "max_phases=0 must be a whole number >= 1"),
    (lambda: total_variation([Phase(1.0, None, 5)]), "sample_rate=None"),
    (lambda: total_variation([], adjacency="near"), "adjacency='near'"),  # type: ignore[arg-type]
)


@pytest.mark.nightly
def test_an_attack_that_no_noise_gives_is_refused():
    with pytest.raises(ValueError, match="so close to fpr"):
        noise_for_attack(0.01 + 1e-9, 0.01, 0.01, 10)


@pytest.mark.parametrize("fpr", [0.001, 0.7])
def test_the_best_attack_on_steps_without_sampling_is_that_on_a_gaussian(fpr):
    """Neyman and Pearson: Phi(mu + Phi^-1(fpr)), never below it."""
    found = attack_tpr([Phase(2.0, 1.0, 16)], fpr)
    exact = ndtr(2.0 + special.ndtri(fpr))
    assert exact <= found <= 1.003 * exact


def test_the_noise_for_an_attack_is_the_least_that_allows_it():
    """By the central limit theorem of sampled steps (Dong et al. 2022, corollary 5.4)."""
    sigma = noise_for_attack(0.05, 0.01, 0.1, 50)
    mu = 0.1 * math.sqrt(50 * math.expm1(sigma**-2))
    assert ndtr(mu + special.ndtri(0.01)) == pytest.approx(0.05, rel=0.1)
    assert attack_tpr([Phase(sigma, 0.1, 50)], 0.01) <= 0.05
    assert attack_tpr([Phase(0.99 * sigma, 0.1, 50)], 0.01) > 0.05


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_more_items_a_record_cost_more_and_at_most_that_without_sampling(adjacency):
    history = [Phase(1.5, 0.02, 40), Phase(2.0, 0.02, 20)]
    spent = [
        epsilon_of_history(history, DELTA, adjacency=adjacency, items=items) for items in (1, 2, 3)
    ]
    assert spent[0] == epsilon_of_history(history, DELTA, adjacency=adjacency)
    assert spent[0] < spent[1] < spent[2]
    mu = unsampled_mu(history, adjacency)
    assert all(one <= gaussian_epsilon(items * mu, DELTA) for items, one in enumerate(spent, 1))


def test_a_group_on_full_batches_is_a_gaussian_step_of_its_size():
    history = [Phase(4.0, 1.0, 9)]
    found = epsilon_of_history(history, DELTA, items=3)
    assert found == pytest.approx(gaussian_epsilon(3 * 3 / 4.0, DELTA), rel=1e-12)
    assert found == epsilon_of_passes(4.0 / 3, 9, DELTA)


def test_a_replaced_group_is_removed_and_added():
    history, items = [Phase(1.0, 0.05, 60)], 2
    spent = epsilon_of_history(history, DELTA, adjacency="replace_one", items=items)
    first = epsilon_of_history(history, 0.5 * DELTA, items=items)
    second = epsilon_of_history(history, 0.5 * DELTA * math.exp(-first), items=items)
    assert spent == pytest.approx(first + second, rel=0.02)


def test_without_a_grid_a_group_has_the_unsampled_epsilon():
    history = [Phase(1.0, 0.5, 10)]
    tiny = epsilon_of_history(history, 1e-13, items=2)
    assert tiny == gaussian_epsilon(2 * math.sqrt(10.0), 1e-13)
