"""The noise's e-value: against a naive twin, in expectation, and at its ends."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from coin_steps import normal_mean
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from stages import most_failures, staged

from lightning_audit.stats.noise_tests import (
    COMPARED,
    INTERVAL_SIGNIFICANCE,
    LEVELS,
    NOISE_PRECISIONS,
    NOISE_WEIGHTS,
    SEARCHED,
    TAIL_STAKES,
    TIE,
    TIE_RATES,
    EntryBets,
    NoisePast,
    TailBet,
    TieBet,
    chosen_upper,
    interval_in_words,
    limits_of_each,
    noise_interval,
    noise_log_e,
    noise_lower,
    quiet_entries,
    rounded_down,
    rounded_up,
    sign_log_e,
    units_upper,
)
from lightning_audit.stats.sequential import log_mean_exp

FloatArray = NDArray[np.float64]


Draw = Callable[[np.random.Generator, int], FloatArray]


FLAGS = np.log(1e5)


@pytest.mark.parametrize("count", [1, 7, 60])
@pytest.mark.parametrize("scale", [0.1, 0.8, 1.0, 3.0])
def test_noise_log_e_equals_the_step_by_step_product(count, scale):
    x = scale * np.random.default_rng(count).standard_normal(count)
    with mpmath.workdps(40):
        products = []
        for tau in NOISE_PRECISIONS:
            product = mpmath.mpf(1)
            for value in x:
                tau_, value_ = mpmath.mpf(float(tau)), mpmath.mpf(float(value))
                product *= mpmath.sqrt(tau_) * mpmath.exp(-(tau_ - 1) * value_**2 / 2)
            products.append(product)
        expected = float(
            mpmath.log(sum(w * x for w, x in zip(NOISE_WEIGHTS, products, strict=True)))
        )
    assert float(noise_log_e(count, float(x @ x))) == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_residuals_of_the_claimed_size_are_no_evidence_and_huge_counts_are_finite():
    assert (noise_log_e([1, 100, 10**6], [1, 100, 10**6]) <= 0).all()
    for count in (10**9, 10**12):
        assert np.isfinite(noise_log_e(count, [0.0, 0.5 * count, 1.0 * count, 9.0 * count])).all()


@pytest.mark.parametrize("actual", [1.0, 1.001, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("data_term", [0.0, 0.05, -0.5, 1.0, 5.0])
def test_noise_factor_of_a_step_has_expectation_at_most_one(actual, data_term):
    mean = normal_mean(lambda x: math.exp(float(noise_log_e(1, x * x))), data_term, actual)
    assert mean <= 1 + 1e-9
    if (actual, data_term) == (1.0, 0.0):
        assert mean == pytest.approx(1, abs=1e-9)  # nothing is given away at the claim itself


def _naive_interval(units: list[np.ndarray], significance: float) -> tuple[float, float]:
    """All ratios that no mixture of step-by-step products rejects, by bisection."""

    def rejected(ratio: float, precisions: list[float]) -> bool:
        e = mpmath.mpf(0)
        for tau in precisions:
            product = mpmath.mpf(1) / len(precisions)
            for x in np.concatenate(units) / ratio:
                product *= mpmath.sqrt(tau) * mpmath.exp(-(tau - 1) * mpmath.mpf(x) ** 2 / 2)
            e += product
        return bool(e >= 2 / significance)

    def edge(inside: float, outside: float, precisions: list[float]) -> float:
        for _ in range(40):
            middle = math.sqrt(inside * outside)
            ends = (inside, middle) if rejected(middle, precisions) else (middle, outside)
            inside, outside = ends
        return inside

    centre = math.sqrt(np.mean(np.concatenate(units) ** 2))
    small = [float(tau) for tau in NOISE_PRECISIONS]
    lower = edge(centre, centre / 50, [1.0 / tau for tau in small])
    return lower, edge(centre, centre * 50, small)


@pytest.mark.parametrize("counts", [(6,), (9, 4)])
def test_the_interval_is_that_of_the_step_by_step_products(counts):
    rng = np.random.default_rng(len(counts))
    units = [0.5 * rng.standard_normal(n) for n in counts]
    found = noise_interval(counts, [float(u @ u) for u in units], 0.1)
    assert found[:2] == pytest.approx(_naive_interval(units, 0.1), rel=1e-6)
    assert found.least_noise is None


@pytest.mark.parametrize(
    ("count", "lower", "upper"),  # in 60 digits, by another program
    [(30, 0.32884113, 0.90353101), (300, 0.43077384, 0.59084492), (40_000, 0.49286743, 0.50733499)],
)
def test_intervals_of_half_the_noise_have_these_ends(count, lower, upper):
    found = noise_interval([count], [count * 0.25], 0.01)
    assert found[:2] == pytest.approx((lower, upper), rel=1e-6)
    # No narrower than the exact interval for a number that is fixed beforehand.
    exact = np.sqrt(count * 0.25 / stats.chi2.ppf([0.995, 0.005], count))
    assert found[0] < exact[0] < 0.5 < exact[1] < found[1]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0])
def test_the_interval_holds_at_the_look_whose_readings_are_furthest_off(ratio):
    """The step at which a run stops may be any; a chi-square interval fails at such a one."""
    rng, runs, looks = np.random.default_rng(3), 120, 400
    missed = fixed = 0
    for _ in range(runs):
        squares = ratio**2 * rng.chisquare(4, size=(looks, 2)).cumsum(axis=0)
        counts = 4.0 * np.arange(1, looks + 1)[:, None] * np.ones(2)
        n, s = counts.sum(1), squares.sum(1)
        ends = np.sqrt(s[:, None] / stats.chi2.ppf([0.95, 0.05], n[:, None]))
        fixed += bool(((ends[:, 0] > ratio) | (ends[:, 1] < ratio)).any())
        worst = int(np.abs((s / ratio**2 - n) / np.sqrt(2 * n)).argmax())
        found = noise_interval(counts[worst], squares[worst], 0.1)
        missed += found is None or not found[0] <= ratio <= found[1]
    assert missed <= 0.1 * runs
    assert fixed > 0.35 * runs


@pytest.mark.parametrize("ratio", [0.5, 0.8])
def test_the_interval_holds_where_the_run_stops_and_the_quietest_reading_does_not(ratio):
    rng, runs = np.random.default_rng(4), 100
    missed = below = 0
    for _ in range(runs):
        counts, squares = np.zeros(3), np.zeros(3)
        while float(noise_log_e(counts.sum(), squares.sum())) < math.log(1e4):
            counts, squares = counts + 8, squares + ratio**2 * rng.chisquare(8, size=3)
        found = noise_interval(counts, squares, 0.01)
        missed += found is None or not found[0] <= ratio <= found[1]
        below += math.sqrt((squares / counts).min()) < ratio
    assert missed <= 0.01 * runs
    assert below > 0.8 * runs  # what was printed as "that or less"


def test_the_interval_of_tensors_of_two_ratios_holds_both_and_names_the_quietest():
    counts, squares = np.array([500.0, 500.0]), np.array([500 * 0.25, 500.0])
    lower, upper, least = noise_interval(counts, squares, 0.01)
    assert least == 0
    assert 0.42 < lower < 0.5
    assert 1.0 < upper < 1.15
    assert 0.5 < units_upper(counts, squares, 0.01) < 0.62
    assert noise_interval([0, 0], [0, 0], 0.01) == (0, math.inf, None)


def test_a_tensor_of_few_entries_is_taken_to_lie_between_the_others():
    counts = np.array([600.0, 5.0])
    few = noise_interval(counts, counts * np.array([0.25, 0.04]), 0.01)
    assert few.least_noise is None
    assert few.lower > 0.44  # as of the large tensor alone
    none = noise_interval(counts, counts * np.array([0.25, 0.0]), 0.01)
    assert (none.lower, none.least_noise) == (0.0, 1)


def test_the_least_noise_of_all_tensors_is_in_the_interval():
    """The laws of benchmarks/noise_intervals.py: the pooled interval alone misses in 60 %."""
    rng, counts, runs = np.random.default_rng(6), np.array([600.0, 30.0, 150.0, 5.0]), 60
    missed = told = 0
    for _ in range(runs):
        ratios = np.array([0.5, 0.7, 0.7, 0.7])
        found = noise_interval(counts, ratios**2 * rng.chisquare(counts), 0.01)
        missed += not found.lower <= 0.5 <= found.upper
        told += found.least_noise == 0
    assert missed <= 0.05 * runs
    assert told >= 0.9 * runs


@given(st.floats(1e-6, 1e3))
def test_ends_are_rounded_outwards(value):
    assert rounded_down(value) <= value * (1 + 1e-9)
    assert rounded_up(value) >= value * (1 - 1e-9)
    assert (rounded_up(value) < 1) == (value < 1) or value > 1 - 1e-6
    assert rounded_up(rounded_up(value)) == rounded_up(value)


def test_a_limit_that_shows_nothing_is_no_number():
    assert interval_in_words(None, math.inf).startswith("smaller than stated, by an amount")
    assert "at most 0.997 times" in interval_in_words(None, 0.9962)
    assert "0 to 0.011 times" in interval_in_words(0.0, 0.0101)


def test_limits_of_several_sums_are_those_of_each_alone():
    count = np.array([4000, 0, 64, 1856, 20, 9])
    squares = count * np.array([0.25, 1.0, 0.01, 1.3, 1.0, 4.0])
    lower, upper = limits_of_each(count, squares)
    for j, (n, s) in enumerate(zip(count, squares, strict=True)):
        share = INTERVAL_SIGNIFICANCE / len(count)
        assert lower[j] == pytest.approx(noise_lower([n], [s], [1.0], share), rel=1e-5)
        assert upper[j] == pytest.approx(chosen_upper(n, s, len(count)), rel=1e-5)


# --- Tails and ties of noise: against plain loops, their laws, and noise of known shapes.
#: Noise of standard deviation one, and the steps of 384 coordinates that show it.
WRONG: dict[str, tuple[Draw, int]] = {
    "uniform": (lambda rng, n: rng.uniform(-math.sqrt(3), math.sqrt(3), n), 1),
    "laplace": (lambda rng, n: rng.laplace(size=n) / math.sqrt(2), 5),
    "student t, 3 degrees": (lambda rng, n: rng.standard_t(3, n) / math.sqrt(3), 5),
    "clipped at 2": (lambda rng, n: np.clip(rng.standard_normal(n), -2, 2) / 0.94, 5),
    "clipped at 3": (lambda rng, n: np.clip(rng.standard_normal(n), -3, 3), 60),
    "rounded": (lambda rng, n: np.round(rng.standard_normal(n)), 1),
    "rounded to tenths": (lambda rng, n: np.round(rng.standard_normal(n), 1), 1),
}


def test_tail_wealth_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    readings, shift = rng.normal(size=17), 0.6
    bet = TailBet()
    bet.update(readings, shift)
    wealth = []
    for sign in (1, -1):
        for level in LEVELS:
            rare = stats.norm.sf(level)
            slope = stats.norm.pdf(level - shift) / stats.norm.pdf(level)
            offset = stats.norm.sf(level - shift) - slope * rare
            gains = [
                float(sign * x > level - shift) - slope * float(sign * x > level) - offset
                for x in readings
            ]
            worst = min(1 - slope - offset, -offset)
            wealth += [
                math.prod(1 + 0.99 * stake * gain / -worst for gain in gains)
                for stake in TAIL_STAKES
            ]
    assert bet.log_e == pytest.approx(math.log(np.mean(wealth)), rel=1e-9)


def test_tie_wealth_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    readings = rng.normal(size=40)
    others, tested = readings[::2], readings[1::2]
    tested[[3, 5]] = others[[0, 8]] + [0.9 * TIE, -0.9 * TIE]
    tested[4] = others.max() + 1.1 * TIE
    hits = [any(abs(x - y) < TIE for y in others) for x in tested]
    assert sum(hits) == 2
    chance = 20 * 2 * TIE * stats.norm.pdf(0)
    bet = TieBet()
    bet.update(readings)
    wealth = [
        math.prod(rate / chance if hit else (1 - rate) / (1 - chance) for hit in hits)
        for rate in TIE_RATES
    ]
    assert bet.log_e == pytest.approx(math.log(np.mean(wealth)), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128, 129, 512, 4096])
def test_at_most_sixty_four_readings_are_compared_with_and_one_with_nothing(n):
    bet = TieBet()
    bet.update(np.arange(n, dtype=float))  # no ties
    if n == 1:
        assert bet.log_e == 0.0
        return
    compared = -(-n // max(2, -(-n // COMPARED)))
    assert 1 <= compared <= COMPARED
    chance = compared * 2 * TIE * stats.norm.pdf(0)
    misses = (n - compared) * np.log((1 - TIE_RATES) / (1 - chance))
    assert bet.log_e == pytest.approx(np.logaddexp.reduce(misses) - math.log(2), rel=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1.4])
@pytest.mark.parametrize("shift", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("data", ["none", "constant", "mixed"])
def test_a_reading_of_noise_beside_any_data_gains_nothing_on_average(scale, shift, data):
    """The mean of one coordinate's factor, by the normal distribution function."""
    terms = {"none": [0.0], "constant": [0.7], "mixed": [-1.3, 0.1, 2.2]}[data]
    slope = np.exp(LEVELS * shift - shift**2 / 2)
    offset = stats.norm.sf(LEVELS - shift) - slope * stats.norm.sf(LEVELS)
    worst = np.minimum(1 - slope - offset, -offset)
    gains = []
    for sign in (1, -1):
        above, reached = (
            np.mean([stats.norm.sf((level - sign * term) / scale) for term in terms], axis=0)
            for level in (LEVELS, LEVELS - shift)
        )
        gains.append((reached - slope * above - offset) / -worst)
    assert np.max(gains) <= 1e-9
    if scale == 1.0 and data == "none":
        assert np.max(np.abs(gains)) < 1e-9


@pytest.mark.parametrize("shift", [0.25, 1.0])
@pytest.mark.parametrize("name", list(WRONG))
def test_noise_of_another_shape_is_seen(name, shift):
    draw, steps = WRONG[name]
    rng, tails, ties = np.random.default_rng(1), TailBet(), TieBet()
    for _ in range(steps):
        readings = draw(rng, 384)
        tails.update(readings, shift)
        ties.update(readings)
    assert max(tails.log_e, ties.log_e) > 12.0


def test_signs_are_those_of_a_uniform_prior():
    for positive, negative in [(0, 1), (3, 9), (40, 40)]:
        n = positive + negative
        grid = (np.arange(200_000) + 0.5) / 200_000
        wealth = np.mean(grid**positive * (1 - grid) ** negative) * 2.0**n
        assert sign_log_e(positive, negative) == pytest.approx(math.log(wealth), abs=1e-6)


@pytest.mark.parametrize("n", [1, 7, 30])
def test_signs_of_fair_coins_average_to_one(n):
    counts = np.arange(n + 1)
    values = [math.exp(sign_log_e(int(k), int(n - k))) for k in counts]
    assert stats.binom.pmf(counts, n, 0.5) @ values == pytest.approx(1.0, rel=1e-10)


# --- Noise that comes back: found by brute force as well, and never in noise that is new.
@pytest.mark.parametrize("width", [2, 9, 130, 512])
def test_the_nearest_step_is_that_of_a_plain_search(width):
    rng, past, rows = np.random.default_rng(width), NoisePast(), []
    stride = max(2, width // SEARCHED)
    for step in range(40):
        now = rng.normal(size=width)
        log_e, age = past.recurrence_log_e(now)
        if rows:
            signed = [sign * row for row in rows for sign in (1.0, -1.0)]
            nearest = int(
                np.argmin([np.sum((now[::stride] - row[::stride]) ** 2) for row in signed])
            )
            assert age == step - nearest // 2
            gap = (now - signed[nearest])[(np.arange(width) % stride != 0)]
            assert log_e == pytest.approx(float(noise_log_e(len(gap), gap @ gap)), rel=1e-4)
        else:
            assert (log_e, age) == (0.0, 0)
        past.add(now)
        rows.append(now)


@pytest.mark.parametrize(("data", "least"), [(0.0, 500), (0.4, 50)])
def test_noise_that_comes_back_is_found_whenever_it_was_and_beside_other_data(data, least):
    rng, past = np.random.default_rng(0), NoisePast()
    noise = rng.normal(size=(300, 384))
    for row in noise:
        past.add(row + data * rng.normal(size=384))
    for earlier in (0, 17, 299):
        log_e, age = past.recurrence_log_e(noise[earlier] + data * rng.normal(size=384))
        assert age == 300 - earlier
        assert log_e > least


def test_one_entry_cannot_be_searched_and_tested():
    past = NoisePast()
    past.add(np.array([0.3]))
    assert (past.recurrence_log_e(np.array([0.3])), len(past)) == ((0.0, 0), 1)


def test_new_noise_is_held_to_be_new():
    """The mean of the e-value, the nearest of many steps chosen by the other coordinates."""
    rng, values = np.random.default_rng(3), []
    for _ in range(300):
        past = NoisePast()
        for row in rng.normal(size=(30, 12)) * 0.2:  # a past that lies where noise is likely
            past.add(row)
        values += [np.exp(past.recurrence_log_e(rng.normal(size=12))[0]) for _ in range(10)]
    assert np.mean(values) <= 1 + 3 * (np.std(values) / np.sqrt(len(values)))
    assert np.mean(values) > 0.3  # close to the worst case, so that the bound is tried


def test_the_nearest_step_has_the_number_that_it_was_kept_by():
    rows, past = np.random.default_rng(0).normal(size=(6, 64)), NoisePast(kept=4)
    for number, row in zip((0, 1, 99, 112, 113, 128), rows, strict=True):
        past.add(row, number)
    assert past.nearest == -1
    past.recurrence_log_e(rows[3])
    assert past.nearest == 112
    past.recurrence_log_e(rows[5])
    assert past.nearest == 128
    # The oldest steps give way.
    assert [past.recurrence_log_e(row)[0] > 20 for row in rows] == [False] * 2 + [True] * 4


# --- An e-value for each entry: few entries with a fault are found among many without.
def bets(rows: FloatArray) -> tuple[list[float], EntryBets]:
    made, found = EntryBets(rows.shape[1]), []
    for row in rows:
        made.update(row)
        found.append(float(log_mean_exp(made.entry_log_e)))
    return found, made


#: The entries 7, 50, 200 and 399 of 400.
FEW = [7, 50, 200, 399]


@pytest.mark.parametrize(
    ("fault", "within"),
    [
        (np.zeros_like, 15),
        (lambda rows: 0.5 * rows, 120),
        (lambda rows: np.broadcast_to(rows[:1], rows.shape), 30),
    ],
    ids=["silent", "halved", "constant"],
)
def test_one_entry_in_a_hundred_is_found(fault, within):
    for seed in range(5):
        rows = np.random.default_rng(seed).normal(size=(200, 400))
        rows[:, FEW] = fault(rows[:, FEW])
        found, made = bets(rows)
        assert next(step for step, log_e in enumerate(found) if log_e >= FLAGS) < within
        assert set(FEW) >= set(quiet_entries(made.entry_log_e, FLAGS))
        assert made.ratios[FEW].max() < 0.7 < np.delete(made.ratios, FEW).min()


def test_it_is_what_its_definition_gives():
    rows = np.random.default_rng(0).normal(size=(30, 5)) + 0.3
    values = []
    for entry in rows.T:
        centres = np.array(
            [[0.0, entry[:t].sum() / (t + 10), entry[t - 1] if t else 0.0] for t in range(30)]
        )
        squares = np.sum((entry[:, None] - centres) ** 2, axis=0)
        values.append(np.mean(np.exp(noise_log_e(30, squares))))
    found, made = bets(rows)
    assert np.exp(made.entry_log_e) == pytest.approx(values)
    assert found[-1] == pytest.approx(np.log(np.mean(values)))


def data_that_follow(new: FloatArray) -> FloatArray:
    rows = np.zeros_like(new)
    for t in range(len(new)):
        rows[t] = new[t] + (-0.8 * rows[t - 1] if t else 0.0)
    return rows


SOUND: dict[str, Callable[[FloatArray], FloatArray]] = {
    "new": lambda new: new,
    "larger": lambda new: 1.5 * new,
    "beside data that follow": data_that_follow,
    "on a fine lattice": lambda new: np.round(new * 64.0) / 64.0,
}


@pytest.mark.parametrize("runs", staged(heavy=[300], nightly=[3000]))
@pytest.mark.parametrize("width", [1, 50])
@pytest.mark.parametrize("made", SOUND.values(), ids=SOUND)
def test_noise_as_claimed_is_accused_at_the_level_at_most(made, width, runs):
    highest = [
        max(bets(made(np.random.default_rng([seed, width]).normal(size=(60, width))))[0])
        for seed in range(runs)
    ]
    assert sum(log_e >= np.log(20.0) for log_e in highest) <= most_failures(runs, 0.05, 3000)
