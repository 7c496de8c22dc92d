"""The checks of a record whose coins have a known probability that is not one half."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import SIGNIFICANCE, monitor_of, simulate, verdict_of, violated

from lightning_audit.checks.accounting import EPSILON
from lightning_audit.verdict.judge import PowerModel, Resolution

RARE = {"coin_probability": 0.1}


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("data", [0.0, 1.0])
def test_a_sound_record_is_not_flagged_and_leaks_no_more_than_its_claim(
    p: float, data: float
) -> None:
    for seed in range(2):
        monitor = monitor_of(simulate(120, seed=seed, data=data, coin_probability=p))
        assert violated(monitor) == set()
        assert monitor.leakage.ratio_lower(EPSILON.share * SIGNIFICANCE) <= 1


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_a_sound_record_of_enough_steps_passes(p: float) -> None:
    assert verdict_of(simulate(160, coin_probability=p)).outcome == "PASS"


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_a_clipping_norm_twice_too_large_is_flagged(p: float) -> None:
    monitor = monitor_of(simulate(150, shift=2.0, coin_probability=p))
    assert violated(monitor) == {"sensitivity"}
    assert monitor.sensitivity.shift == pytest.approx(2.0, abs=0.35)


def test_too_little_noise_is_flagged_by_the_canaries_whatever_their_coins() -> None:
    assert "noise.canary" in violated(monitor_of(simulate(40, noise=0.5, **RARE)))


def test_leakage_is_proved_at_rare_coins() -> None:
    monitor = monitor_of(simulate(700, shift=3.0, **RARE))
    lower = monitor.leakage.ratio_lower(EPSILON.share * SIGNIFICANCE)
    assert 1 < lower <= 3


def test_signal_and_noise_are_bounded_at_rare_coins() -> None:
    found = monitor_of(simulate(400, noise=0.5, **RARE)).signal_over_noise(0.05)
    assert 0.7 < found.signal_lower <= 1
    assert 0.5 <= found.noise_upper < 0.53


def test_guesses_are_counted_by_world() -> None:
    middle = monitor_of(simulate(100, **RARE)).guesses.middle
    assert int(middle.n_in + middle.n_out) == 800
    assert int(middle.n_in) == pytest.approx(80, abs=4 * math.sqrt(72))


def test_power_over_the_shift_is_that_of_the_coins_and_kept_by_the_checks() -> None:
    steps, runs = 70, 16
    fair = PowerModel(monitor_of(simulate(steps))).sensitivity(2.0)
    promised = PowerModel(monitor_of(simulate(steps, **RARE))).sensitivity(2.0)
    assert promised < fair
    assert promised > 0.5
    seen = np.mean(
        [
            "sensitivity" in violated(monitor_of(simulate(steps, seed=s, shift=2.0, **RARE)))
            for s in range(1, runs + 1)
        ]
    )
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


def test_rare_coins_need_more_steps() -> None:
    needed = [
        PowerModel(monitor_of(simulate(100, coin_probability=p)))
        .at(Resolution())["sensitivity"]
        .steps_needed
        for p in (0.5, 0.1)
    ]
    assert needed[1] > 2 * needed[0]
