from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from simulated_record import LABELS, SIGNIFICANCE, header, monitor_of, simulate, violated
from stages import staged

from lightning_audit.checks.accounting import EPSILON, LeakageBound, SignalOverNoise
from lightning_audit.checks.monitor import AuditMonitor, replay
from lightning_audit.record.store import restore, snapshot

#: Of the verdict's check on epsilon.
LEVEL = EPSILON.share * SIGNIFICANCE


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("data", [0.0, 1.0])
def test_correct_mechanism_leaks_no_more_than_its_claim(
    seed: int, sigma: float, data: float
) -> None:
    monitor = monitor_of(simulate(150, seed=seed, sigma=sigma, data=data))
    assert monitor.leakage.ratio_lower(LEVEL) <= 1
    assert monitor.signal_over_noise(0.05).ratio_lower <= 1


@pytest.mark.parametrize("fault", [{"noise": 0.5}, {"shift": 2.0}])
def test_bounds_are_above_the_claim_where_twice_as_much_leaks(fault: dict[str, float]) -> None:
    monitor = monitor_of(simulate(300, **fault))  # type: ignore[arg-type]
    lower = monitor.leakage.ratio_lower(LEVEL)
    assert 1.2 < lower <= 2
    assert lower <= monitor.leakage.ratio_lower(0.05) <= 2
    assert 1.6 < monitor.signal_over_noise(0.05).ratio_lower <= 2


def test_noise_and_clipping_too_small_alike_leave_mu_within_the_claim() -> None:
    monitor = monitor_of(simulate(300, noise=0.5, shift=0.5))
    found = monitor.signal_over_noise(0.05)
    assert found.signal_lower <= 0.5 <= found.noise_upper < 0.53
    assert 0.7 < found.ratio_lower <= 1


def test_bound_is_tight_up_to_a_fifth_after_two_thousand_readings() -> None:
    assert 0.8 < monitor_of(simulate(250, sigma=0.7)).leakage.ratio_lower(0.05) <= 1


@pytest.mark.parametrize("sigma", [0.01, 0.5, 20.0, 1e4])
def test_bounds_are_on_the_scale_of_the_claim_whatever_the_noise_multiplier(sigma: float) -> None:
    monitor = monitor_of(simulate(60, sigma=sigma))
    assert 0 <= monitor.leakage.ratio_lower(0.05) <= 1
    found = monitor.signal_over_noise(0.05)
    assert 0 <= found.signal_lower <= 1 <= found.noise_upper < 1.2


def test_bounds_are_zero_before_anything_was_seen() -> None:
    assert LeakageBound(header()).ratio_lower(0.05) == 0.0
    assert LeakageBound(header()).front(0.05) == []
    found = AuditMonitor(header(), SIGNIFICANCE).signal_over_noise(0.05)
    assert found == SignalOverNoise(0.0, math.inf)
    assert found.ratio_lower == 0.0


def test_a_step_without_any_noise_leaks_without_bound() -> None:
    found = monitor_of(simulate(60, noise=0.0)).signal_over_noise(0.05)
    assert found.noise_upper == 0.0
    assert found.ratio_lower == math.inf


def test_data_that_dominate_the_witnesses_make_the_bound_small_and_not_wrong() -> None:
    quiet, loud = (monitor_of(simulate(290, data=d)).signal_over_noise(0.05) for d in (0.0, 3.0))
    assert loud.noise_upper > 3
    assert loud.ratio_lower < 0.5 * quiet.ratio_lower


def test_bound_holds_and_grows_while_the_noise_multiplier_decays() -> None:
    sigma = np.geomspace(2.0, 0.4, 300)
    lower = [monitor_of(simulate(n, sigma=sigma[:n])).leakage.ratio_lower(0.05) for n in (100, 300)]
    assert lower == sorted(lower)
    assert 0.3 < lower[-1] <= 1
    found = monitor_of(simulate(300, sigma=sigma)).signal_over_noise(0.05)
    assert 0.8 < found.ratio_lower <= 1


def test_a_front_holds_each_ratio_with_the_steps_up_to_the_look_that_rejects_it() -> None:
    # Half of the noise for 100 steps, then four times the claim: what was proved of the first
    # steps stays proved of them, and of no later ones.
    first, entries = simulate(100, noise=0.5)
    _, later = simulate(300, noise=4.0)
    later["step"] += 100
    monitor = replay(first, np.concatenate([entries, later]), SIGNIFICANCE)
    front = monitor.leakage.front(0.05)
    ratios, steps = np.array([(part.ratio, part.steps) for part in front]).T
    assert (np.diff(ratios) > 0).all()
    assert (np.diff(steps) < 0).all()
    assert ratios[-1] > 1.2
    assert 90 <= steps[-1] <= 120
    assert ratios[0] < 0.8
    assert monitor.leakage.ratio_lower(0.05) == ratios[-1]
    again = restore(snapshot(monitor))
    assert [(p.ratio, p.steps) for p in again.leakage.front(0.05)] == [
        *zip(ratios, steps, strict=True)
    ]
    assert again.signal_over_noise(0.05) == monitor.signal_over_noise(0.05)


# ------------------------------------------------------------------ false statements


def two_valued(runs: int, sigma: float) -> int:
    """Runs of two correct steps that are accused, data of two values 100 sigma apart."""
    made, entries = simulate(2, sigma=sigma)
    rng, k, accused = np.random.default_rng(round(10 * sigma)), len(LABELS), 0
    for _ in range(runs):
        coins = rng.integers(0, 2, (2, k)).astype(float)
        entries["coins"] = coins
        data = 100 * sigma * rng.integers(0, 2, (2, k))
        entries["readings"] = coins + data + sigma * rng.standard_normal((2, k))
        accused += bool(violated(replay(made, entries, SIGNIFICANCE)))
    return accused


@pytest.mark.parametrize("runs", staged(heavy=[1000], nightly=[4000]))
@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.7])
def test_data_of_two_values_far_apart_accuse_no_correct_training(sigma: float, runs: int) -> None:
    # A t test accused 13 to 16 of 4,000.
    accused = two_valued(runs, sigma)
    print(f"\nsigma {sigma}: {accused} of {runs}")
    assert accused <= stats.binom.isf(0.01, runs, SIGNIFICANCE)


def doubled(seed: int, steps: int, at: int) -> AuditMonitor:
    """Clipping norm and noise twice the claim from a step on: mu is the claim's throughout."""
    made, entries = simulate(at, seed=seed)
    _, later = simulate(steps - at, seed=seed + 10_000, noise=2.0, shift=2.0)
    later["step"] += at
    monitor = AuditMonitor(made, SIGNIFICANCE)
    for entry in (*entries, *later):
        monitor.update(entry)
    return monitor


@pytest.mark.parametrize("steps", [310, 600, 1500])
def test_signal_and_noise_that_double_together_bound_mu_by_the_claim(steps: int) -> None:
    found = doubled(0, steps, 300).signal_over_noise(0.05)
    # Limits from looks of their own each would give 1 over 2, or 2 over 1.
    assert 0.4 < found.ratio_lower <= 1
    assert found.signal_lower <= 2
    assert found.noise_upper >= 1


@pytest.mark.parametrize("runs", staged(heavy=[6], nightly=[30]))
@pytest.mark.parametrize(("at", "steps"), [(300, 350), (300, 600), (100, 800)])
def test_signal_and_noise_that_double_together_never_bound_mu_above_its_level(
    at: int, steps: int, runs: int
) -> None:
    ratios = [doubled(seed, steps, at).signal_over_noise(0.05).ratio_lower for seed in range(runs)]
    print(f"\ndoubled at {at} of {steps}: median {np.median(ratios):.3f}, {np.max(ratios):.3f}")
    assert np.sum(np.array(ratios) > 1) <= stats.binom.isf(0.01, runs, 0.05)


@pytest.mark.parametrize("runs", staged(heavy=[60], nightly=[300]))
def test_quotient_of_signal_and_noise_misses_no_oftener_than_its_level(runs: int) -> None:
    significance = 0.2
    found = [
        monitor_of(simulate(40, seed=seed, sigma=0.5)).signal_over_noise(significance).ratio_lower
        for seed in range(runs)
    ]
    assert np.sum(np.array(found) > 1) <= stats.binom.isf(1e-3, runs, significance)
    assert np.median(found) > 0.7
