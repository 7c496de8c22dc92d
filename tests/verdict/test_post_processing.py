"""What follows the coins behind a release, and what a function of a correct release explains."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from stages import staged

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import BATCH_NORMALISED
from lightning_audit.record.store import INJECTED, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import UseOfRelease, explained_by_processing, undecided

K = 8
SIGNIFICANCE = 1e-3
THRESHOLD = -math.log(0.01 * SIGNIFICANCE)
HEADER = RecordHeader(("Dirac(a)",) * K, ("a", "b"), (64, 64), 4)


def run(
    rng: np.random.Generator, steps: int, used, rest=lambda coins, noise: noise, moved=None
) -> UseOfRelease:
    """A run whose update uses ``used(coins, release)``."""
    use = UseOfRelease(SIGNIFICANCE)
    for step in range(steps):
        coins = rng.integers(0, 2, K).astype(float)
        release = rest(coins, rng.normal(size=K))
        use.update(step, coins, release, used(coins, release), moved)
    return use


@pytest.mark.parametrize("runs", staged(quick=[25], nightly=[400]))
@pytest.mark.parametrize(
    "process",
    [np.sign, np.negative, lambda z: z * (np.abs(z) > 1), lambda z: 1e-9 * z, lambda z: z**3],
    ids=["sign", "negative", "largest", "tiny", "cube"],
)
@pytest.mark.one_in(3)
def test_what_is_computed_of_a_release_never_follows_the_coins(process, runs: int) -> None:
    """Simulated at a level of 1 %: binomial with at most that mean, up to once in 10^4."""
    rng = np.random.default_rng(1)
    flagged = 0
    for _ in range(runs):
        use = run(rng, 60, lambda _, z: process(z))
        flagged += use.evidence.log_e >= math.log(100.0)
    assert stats.binom.sf(flagged - 1, runs, 0.01) > 1e-4


def test_the_bet_is_fair_at_every_step_by_enumeration() -> None:
    """The mean of the e-value over all coins of two steps is one, whatever the values."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(2, 3)) * [[1.0], [100.0]]
    wealth = []
    for coins in itertools.product([0.0, 1.0], repeat=6):
        use = UseOfRelease(SIGNIFICANCE)
        for step, row in enumerate(np.array(coins).reshape(2, 3)):
            use._used[0].update(row, values[step])
        wealth.append(math.exp(use._used[0].log_e))
    assert np.mean(wealth) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5, -1.0])
def test_raw_gradients_in_the_update_are_found_in_a_few_steps(share: float) -> None:
    rng = np.random.default_rng(3)
    use = run(rng, 40, lambda coins, z: abs(share) * coins + 0.3 * z)
    assert use.evidence.violated
    assert use.evidence.violated_at < 30


def test_weights_that_follow_the_coins_are_found_where_the_gradient_does_not() -> None:
    rng = np.random.default_rng(4)
    use = UseOfRelease(SIGNIFICANCE)
    for step in range(60):
        coins = rng.integers(0, 2, K).astype(float)
        use.update(step, coins, rng.normal(size=K), None, coins + 0.5 * rng.normal(size=K))
    assert use.evidence.violated


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
@pytest.mark.one_in(3)
def test_a_canary_that_a_mask_hides_accuses_nobody(kept: float, sign: float) -> None:
    """What is taken out of a canary that did not come through stays in the release, negated."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        use = UseOfRelease(SIGNIFICANCE)
        for step in range(150):
            coins = rng.integers(0, 2, K).astype(float)
            alive = rng.random(K) < kept
            release = rng.normal(size=K) - coins * ~alive
            use.update(step, coins, release, sign * release, sign * release)
        assert not use.evidence.violated


def test_a_mask_that_follows_what_was_before_the_noise_is_found() -> None:
    rng = np.random.default_rng(7)
    kept = lambda coins: rng.random(K) < 0.2 + 0.6 * coins  # noqa: E731
    use = run(rng, 80, lambda coins, z: z * kept(coins))
    assert use.evidence.violated


def test_only_what_was_seen_changes_the_result() -> None:
    fine = CheckResult("gradient_replaced", "mechanism", "ok", "every update", evidence={})
    assert UseOfRelease(SIGNIFICANCE).result(fine) == fine
    use = run(np.random.default_rng(6), 40, lambda coins, z: coins + 0.3 * z)
    found = use.result(fine)
    assert found.status == "violated"
    assert found.log_e_value >= THRESHOLD
    replaced = CheckResult("gradient_replaced", "mechanism", "violated", "backward")
    assert use.result(replaced) == replaced


# ------------------------------------------------------------------ what explains small noise


def monitor_of(
    noise: float, signal: float, *, steps: int = 60, sigma: float = 1.0, seed: int = 0
) -> AuditMonitor:
    """A run whose noise and canaries come out at these multiples of the claim."""
    rng = np.random.default_rng(seed)
    monitor = AuditMonitor(HEADER, SIGNIFICANCE)
    for step in range(steps):
        entry = np.zeros((), dtype=HEADER.dtype)
        coins = rng.integers(0, 2, K)
        entry["step"], entry["canaries"] = step, INJECTED
        entry["noise_multiplier"], entry["max_grad_norm"], entry["scale"] = sigma, 1.0, 16.0
        entry["sample_rate"] = math.nan
        entry["coins"] = coins
        entry["readings"] = signal * coins + noise * sigma * rng.normal(size=K)
        entry["tensor_squares"] = noise**2 * rng.chisquare(64, size=2)
        monitor.update(entry)
    return monitor


def explained(monitor: AuditMonitor, *, at_cut: bool, **more) -> set[str]:
    return explained_by_processing(monitor.results(), monitor, at_cut=at_cut, **more)


@pytest.mark.parametrize("at_cut", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_noise_that_is_small_beside_a_whole_canary_is_a_fault(seed: int, at_cut: bool) -> None:
    monitor = monitor_of(0.5, 1.0, seed=seed)
    assert "noise" in {c.name for c in monitor.results() if c.status == "violated"}
    assert "noise" not in explained(monitor, at_cut=at_cut)


@pytest.mark.parametrize("at_cut", [True, False])
@pytest.mark.parametrize("factor", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_noise_that_shrank_with_the_canary_is_not_certain(
    seed: int, factor: float, at_cut: bool
) -> None:
    monitor = monitor_of(factor, factor, seed=seed)
    wrong = {c.name for c in monitor.results() if c.status == "violated"}
    assert "noise" in wrong
    assert wrong - {"epsilon"} <= explained(monitor, at_cut=at_cut)


def test_what_goes_with_the_batch_is_no_function_of_the_release() -> None:
    monitor = monitor_of(0.5, 0.5)
    name, kind = BATCH_NORMALISED.name, BATCH_NORMALISED.kind
    divided = [*monitor.results(), CheckResult(name, kind, "violated", "divided")]
    for by_batch in (False, True):
        found = explained_by_processing(divided, monitor, at_cut=False, by_batch=by_batch)
        assert "noise" in found
        assert ("batch_normalised" in found) != by_batch


def test_a_few_steps_tell_nothing_where_the_release_is_not_known() -> None:
    monitor = monitor_of(0.5, 1.0, steps=8, sigma=10.0)
    assert "noise" in explained(monitor, at_cut=False)
    assert "noise" not in explained(monitor, at_cut=True)


def test_without_canaries_small_noise_stays_a_fault() -> None:
    monitor = AuditMonitor(HEADER, SIGNIFICANCE)
    for step in range(30):
        entry = np.zeros((), dtype=HEADER.dtype)
        entry["step"], entry["noise_multiplier"], entry["max_grad_norm"] = step, 1.0, 1.0
        entry["scale"], entry["sample_rate"] = 16.0, math.nan
        entry["tensor_squares"] = 16.0
        monitor.update(entry)
    assert "noise" in {c.name for c in monitor.results() if c.status == "violated"}
    assert not explained(monitor, at_cut=False)


def test_noise_on_the_weights_explains_all_of_it() -> None:
    monitor = monitor_of(0.1, 1.0)
    wrong = {c.name for c in monitor.results() if c.status == "violated"}
    found = explained(monitor, at_cut=False, weights_move=True)
    assert {name for name in wrong if name.startswith(("noise", "reuse"))} <= found


@pytest.mark.parametrize("seed", range(3))
def test_clipping_at_another_norm_stays_a_fault_and_an_amplified_release_does_not(
    seed: int,
) -> None:
    assert "sensitivity" not in explained(monitor_of(1.0, 3.0, seed=seed), at_cut=False)
    amplified = monitor_of(30.0, 20.0, seed=seed, steps=200)
    wrong = {c.name for c in amplified.results() if c.status == "violated"}
    assert wrong & {"sensitivity"} <= explained(amplified, at_cut=False)


def test_an_undecided_check_names_what_would_decide_it() -> None:
    found = undecided(CheckResult("noise", "mechanism", "violated", "too little noise"))
    assert found.status == "undecided"
    assert "lightning_audit.released" in found.advice
