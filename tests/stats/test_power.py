from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.power import noise_power, sensitivity_power, steps_needed
from lightning_audit.stats.sequential import PredictableCentre

#: One tenth of the default significance of 1e-3.
SHARE = 1e-4


def simulated_noise_power(
    k: int, steps: int, ratio: float, data: float, significance: float, runs: int = 2000
) -> float:
    rng = np.random.default_rng([k, steps, round(1e4 * ratio), round(1e4 * data)])
    centre, squares = PredictableCentre((runs, k)), np.zeros(runs)
    for _ in range(steps):
        noise, term = rng.standard_normal((2, runs, k))
        residual = ratio * noise + math.sqrt(data) * term
        squares += ((residual - centre.value) ** 2).sum(axis=-1)
        centre.update(residual)
    return float(np.mean(noise_log_e(k * steps, squares) >= -math.log(significance)))


def simulated_sensitivity_power(
    k: int, steps: int, shift: float, std: float, significance: float, runs: int = 2000
) -> float:
    """Share of runs that the bet flags by the last step, as the audit looks: at every step."""
    rng = np.random.default_rng([k, steps, round(100 * shift), round(100 * std)])
    bet, flagged = CoinBet((runs, k), initial_scale=std), np.zeros(runs, dtype=bool)
    for _ in range(steps):
        coins = rng.integers(0, 2, (runs, k)).astype(float)
        bet.update(coins, shift * coins + std * rng.standard_normal((runs, k)))
        flagged |= bet.log_e >= -math.log(significance)
    return float(flagged.mean())


def error_of(power: float, runs: int = 2000) -> float:
    return math.sqrt(max(power * (1 - power), 1.0 / runs) / runs)


@pytest.mark.parametrize(
    ("k", "steps", "ratio", "data", "significance"),
    [
        (8, 100, 0.8255, 0.0, SHARE),
        (8, 100, 0.8255, 0.02, SHARE),
        (8, 100, 0.8255, 0.05, SHARE),
        (8, 100, 0.8255, 0.1, SHARE),
        (8, 100, 0.8255, 0.2, SHARE),
        (8, 40, 0.8, 0.0, SHARE),
        (8, 3, 0.5, 0.0, SHARE),
        (1, 300, 0.8, 0.0, 0.005),
        (64, 10, 0.8, 0.0, SHARE),
        (256, 6, 0.85, 0.05, 1e-3),
    ],
)
def test_noise_power_is_that_of_the_audits_own_code(
    k: int, steps: int, ratio: float, data: float, significance: float
) -> None:
    predicted = noise_power(k, steps, ratio, data, significance)
    simulated = simulated_noise_power(k, steps, ratio, data, significance)
    assert abs(simulated - predicted) <= 3 * error_of(predicted)


@pytest.mark.parametrize(
    ("data", "reference", "tolerance", "ours"),
    [
        # Reference: a simulation of the design phase, with its error; ours: these digits exactly.
        (0.0, 0.995, 0.01, 0.9940947954859457),
        (0.02, 0.972, 0.01, 0.9724351524448448),
        (0.05, 0.875, 0.03, 0.8553508861435941),
        # Read off to one digit there, and of a data term of another law.
        (0.1, 0.3, 0.1, 0.39320020531914385),
        (0.2, 0.0, 0.03, 0.004388837739743602),
    ],
)
def test_noise_power_agrees_with_the_reference_numbers(
    data: float, reference: float, tolerance: float, ours: float
) -> None:
    power = noise_power(8, 100, 0.8255, data, SHARE)
    assert power == pytest.approx(reference, abs=tolerance)
    assert power == pytest.approx(ours, rel=1e-9)


# The last ones: few steps of a large signal, where the centre and the scale still come up.
SENSITIVITY = [
    (8, 187, 2.0, 3.0),
    (8, 150, 2.0, 3.0),
    (8, 354, 1.25, 1.0),
    (4, 400, 1.5, 1.5),
    (8, 28, 2.0, 1.0),
    (8, 20, 2.0, 1.0),
    (1, 150, 2.0, 1.0),
    (8, 12, 2.0, 0.5),
    (8, 3, 11.0, 1.0),
]


@pytest.mark.parametrize(("k", "steps", "shift", "std"), SENSITIVITY)
@pytest.mark.one_in(3)
def test_sensitivity_power_promises_no_more_than_the_bet_keeps(
    k: int, steps: int, shift: float, std: float
) -> None:
    predicted = sensitivity_power(k, steps, shift, std, SHARE)
    simulated = simulated_sensitivity_power(k, steps, shift, std, SHARE)
    assert simulated >= predicted - 3 * error_of(predicted)
    if (k, steps, shift, std) in SENSITIVITY[:2]:
        assert simulated <= predicted + 0.12


def shift_steps(shift: float, sigma: float) -> int:
    return steps_needed(lambda steps: sensitivity_power(8, steps, shift, sigma, SHARE))


@pytest.mark.parametrize(
    ("shift", "sigma", "ours", "t_test"),
    [(2.0, 3.0, 193, 187), (2.0, 1.0, 25, 28), (1.25, 3.0, 3011, 2558), (1.25, 1.0, 330, 354)],
)
def test_steps_that_a_shift_needs_stay_within_a_quarter_of_the_t_tests(
    shift: float, sigma: float, ours: int, t_test: int
) -> None:
    # The coin bet assumes no normal noise of one variance; the right-Haar t test does.
    assert shift_steps(shift, sigma) == ours
    assert ours == pytest.approx(t_test, rel=0.25)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_steps_said_to_be_needed_are_enough(sigma: float) -> None:
    steps = shift_steps(2.0, sigma)
    assert simulated_sensitivity_power(8, steps, 2.0, sigma, SHARE) >= 0.95 - 3 * error_of(0.95)


def test_steps_said_to_be_needed_for_small_noise_are_enough_and_not_too_many() -> None:
    steps = steps_needed(lambda n: noise_power(8, n, 0.8, 0.0, SHARE))
    assert steps == 61
    assert simulated_noise_power(8, steps, 0.8, 0.0, SHARE) >= 0.95 - 3 * error_of(0.95)
    assert noise_power(8, steps - 1, 0.8, 0.0, SHARE) < 0.95


@given(
    st.integers(1, 64),
    st.integers(1, 400),
    st.floats(0.2, 0.95),
    st.floats(0.0, 0.5),
    st.sampled_from([1e-4, 5e-3, 0.05]),
)
def test_noise_power_falls_with_the_data_and_the_noise_and_rises_with_the_significance(
    k: int, steps: int, ratio: float, data: float, significance: float
) -> None:
    power = noise_power(k, steps, ratio, data, significance)
    assert 0 <= power <= 1
    assert noise_power(k, steps, ratio, data + 0.1, significance) <= power + 1e-12
    assert noise_power(k, steps, min(ratio + 0.04, 0.99), data, significance) <= power + 1e-12
    assert noise_power(k, steps, ratio, data, significance * 2) >= power - 1e-12


@given(st.integers(1, 32), st.integers(1, 400), st.floats(1.05, 20), st.floats(0.2, 10))
def test_sensitivity_power_is_a_probability_and_falls_with_the_noise(
    k: int, steps: int, shift: float, std: float
) -> None:
    power = sensitivity_power(k, steps, shift, std)
    assert 0 <= power <= 1
    if power > 0.05:
        assert sensitivity_power(k, steps, shift, 1.5 * std) <= power + 0.02


def test_noise_that_data_hide_is_never_flagged_by_more_steps() -> None:
    powers = [noise_power(8, steps, 0.9, 0.5, SHARE) for steps in (10, 1000, 100_000)]
    assert powers[-1] <= powers[0] + 1e-12 < 1e-3


def test_one_coordinate_of_one_step_can_show_nothing_at_a_small_significance() -> None:
    assert noise_power(1, 1, 0.01, 0.0, 1e-4) == 0.0


@given(st.integers(1, 300), st.floats(0.05, 0.99))
def test_steps_needed_are_those_of_a_linear_search(first: int, target: float) -> None:
    def power(steps: int) -> float:
        return 1 - 0.5 ** (steps / first)

    linear = next(n for n in range(1, 10_000) if power(n) >= target)
    assert steps_needed(power, target) == linear


def test_steps_needed_end_at_the_limit_where_no_number_is_enough() -> None:
    assert steps_needed(lambda _: 0.5, limit=1000) == 1000


NOISE = noise_power, {"coordinates": 8, "steps": 10, "noise_ratio": 0.8}
SHIFT = sensitivity_power, {"canaries": 8, "steps": 10, "shift": 2.0, "residual_std": 1.0}


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        (NOISE, "coordinates", 0),
        (NOISE, "coordinates", 2.5),
        (NOISE, "steps", -3),
        (NOISE, "noise_ratio", 1.0),
        (NOISE, "noise_ratio", 0.0),
        (NOISE, "data_variance", -0.1),
        (NOISE, "data_variance", math.nan),
        (NOISE, "significance", 0.0),
        (SHIFT, "canaries", 0),
        (SHIFT, "steps", True),
        (SHIFT, "residual_std", 0.0),
        (SHIFT, "residual_std", math.inf),
        (SHIFT, "significance", 1.0),
        *((SHIFT, "shift", shift) for shift in (1.0, 0.5, math.nan, math.inf)),
    ],
)
def test_an_argument_out_of_range_is_named(of, name: str, value: float) -> None:
    function, good = of
    with pytest.raises(ValueError, match=rf"^{name}={value!r} must be"):
        function(**{**good, name: value})


def test_steps_needed_names_a_target_outside_the_unit_interval() -> None:
    with pytest.raises(ValueError, match=r"^target="):
        steps_needed(lambda _: 1.0, target=1.0)
