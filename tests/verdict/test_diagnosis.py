"""The faults that a finding is named after, and what a function of a correct release explains."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from simulated_record import (
    CLIPPED_AFTER_AVERAGE,
    OVERSIZE,
    SCALE,
    SIGNIFICANCE,
    by_name,
    check,
    faults_of,
    monitor_of,
    names,
    simulate,
    verdict_of,
    violated,
)
from stages import staged

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import BATCH_NORMALISED
from lightning_audit.checks.update import no_dp_result
from lightning_audit.record.store import INJECTED, Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult, Place
from lightning_audit.verdict.diagnosis import (
    UseOfRelease,
    explained_by_processing,
    likely_faults,
    loses_no_privacy,
    undecided,
)
from lightning_audit.verdict.judge import worst


def wrong_in(monitor: AuditMonitor) -> list[CheckResult]:
    return [check for check in monitor.results() if check.status == "violated"]


@pytest.mark.parametrize(
    ("names", "finding", "words"),
    [
        (["noise", "sensitivity", "gradient_replaced"], "gradient_replaced", "gradient replaced"),
        (["noise", "no_dp"], "no_dp", "no DP-SGD"),
        (["accounting", "sampling.rate", "epsilon"], "epsilon", "more leaks than the claim allows"),
        (["accounting", "epsilon"], "epsilon", "more leaks than the claim allows"),
        (["accounting", "sampling.not_poisson"], "sampling.not_poisson", "not Poisson"),
        (["accounting", "sampling.rate"], "sampling.rate", "drawn more often"),
        (["accounting"], "accounting", "wrong accounting"),
    ],
)
def test_finding_that_explains_the_others_gives_the_name(names, finding, words):
    fault = likely_faults([check(name) for name in names], monitor_of(simulate(20)), OVERSIZE)[0]
    assert fault.finding == finding
    assert words in fault.sentence


def test_noise_and_clipping_that_err_together_lose_no_privacy_but_with_another_finding_do():
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    found = wrong_in(monitor)
    names = {c.name for c in found}
    # Coordinates that differ by 0.8 times the claim do so because the noise is that small.
    assert names == {"noise", "noise.tensor", "noise.step", "noise.canary", "reuse.broadcast"}
    assert monitor.reuse.residual_ratio("reuse.broadcast") == pytest.approx(0.8, abs=0.05)
    assert loses_no_privacy(found, monitor)
    assert not loses_no_privacy([*found, check("gradient_replaced")], monitor)


def test_a_few_quiet_steps_are_never_said_to_lose_no_privacy():
    # Over all steps the noise is right, and so is the clipping: nothing is off by one factor.
    monitor = monitor_of(simulate(400, sigma=0.5, noise=1.0, shift=0.9))
    assert monitor.sensitivity.shift_upper < 1.05 * monitor.witness_noise.smallest_ratio
    assert not loses_no_privacy([check("noise.step")], monitor)


@pytest.mark.parametrize("reuse", ["broadcast", "pair"])
def test_noise_that_is_shared_within_a_step_is_never_said_to_lose_no_privacy(reuse):
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.5, reuse=reuse))
    assert f"reuse.{reuse}" in violated(monitor)
    assert not loses_no_privacy(wrong_in(monitor), monitor)


@pytest.mark.parametrize(
    "fault",
    [
        {"noise": 0.8},
        {"noise": 0.8, "shift": 0.9},
        {"noise": [0.8, 0.8, 0.4], "shift": 0.8},
        {"noise": 0.8, "shift": 1.2},
    ],
)
def test_noise_below_the_shift_does_lose_privacy(fault):
    monitor = monitor_of(simulate(400, sigma=0.5, **fault))  # type: ignore[arg-type]
    found = wrong_in(monitor)
    assert found
    assert not loses_no_privacy(found, monitor)


def test_a_signal_above_the_noise_by_little_is_proved_in_a_long_run_to_lose_privacy():
    # An upper limit of the shift over the noise may be 1.05: it is not proved to be above 1.
    monitor = monitor_of(simulate(1200, sigma=0.05, noise=0.8, shift=0.83))
    assert monitor.sensitivity.shift_upper < 1.05 * float(monitor.witness_noise.ratios().min())
    assert monitor.signal_over_noise(SIGNIFICANCE).ratio_lower > 1
    assert not loses_no_privacy(wrong_in(monitor), monitor)


def test_large_clipping_whose_finding_is_allowed_is_named_where_the_run_leaks_more():
    monitor = monitor_of(simulate(100, shift=4.0))
    fault = likely_faults([check("epsilon")], monitor, OVERSIZE)[0]
    assert fault.finding == "epsilon"
    assert "clipping norm too large" in fault.sentence


def test_optimizer_without_dp_is_named():
    assert no_dp_result(3, 0, "Adam").status == "violated"
    assert "Adam took 3 steps" in no_dp_result(3, 0, "Adam").message
    assert no_dp_result(0, 0, "").status == "not_run"
    assert no_dp_result(0, 5, "").status == "ok"


def test_replaced_gradients_are_counted_and_the_first_is_the_place():
    record = simulate(10, replaced=[4, 7])
    monitor = monitor_of(record)
    assert "in 2 of 10 steps" in by_name(monitor)["gradient_replaced"].message
    assert violated(monitor) == {"gradient_replaced"}
    fault = faults_of(record)[0]
    assert (fault.place, fault.evidence) == (Place(step=4), {"replaced": 2, "steps": 10})


# --- The list.


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"shift": CLIPPED_AFTER_AVERAGE}, ["clip_after_average", "clipping_norm_too_large"]),
        ({"shift": OVERSIZE}, ["no_clipping"]),
        ({"shift": 2.0}, ["clipping_norm_too_large"]),
        (
            {"shift": [1.0, 4.0, 1.0, 1.4, 1.0, 1.0, 4.0, 1.0]},
            ["clip_per_tensor", "clipping_norm_too_large"],
        ),
        ({"shift": [1.0, 1.4, OVERSIZE, 1.0, 1.0, 1.0, 1.4, 1.0]}, ["clipping_misses_tensors"]),
        ({"noise": 0.6}, ["noise_too_small"]),
        ({"noise": 1.2 / SCALE}, ["noise_divided_by_batch", "no_noise"]),
        ({"noise": 0.0, "data": 0.05}, ["no_noise", "noise_too_small"]),
        ({"noise": [1.0, 1.0, 0.0]}, ["noise_missing_in_tensors"]),
        ({"noise": [1.0, 1.0, 0.5]}, ["noise_too_small_in_tensors", "noise_too_small"]),
        ({"reuse": "same", "data": 0.1}, ["same_noise_at_every_step"]),
        ({"reuse": "lag 5", "data": 0.1}, ["noise_in_a_cycle"]),
        ({"reuse": "lag 5", "noise": 0.7}, ["noise_in_a_cycle", "noise_too_small"]),
        ({"reuse": "broadcast", "data": 0.1}, ["one_value_for_all_coordinates"]),
        ({"reuse": "pair", "data": 0.1}, ["one_key_for_all_tensors"]),
        ({"noise": 0.6, "shift": 3.0}, ["clipping_norm_too_large", "noise_too_small"]),
        ({"noise": 0.0, "shift": OVERSIZE, "replaced": [3]}, ["gradient_replaced"]),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_faults_are_ranked_and_what_they_entail_is_left_out(fault, expected, seed):
    record = simulate(80, seed=seed, **{"data": 0.0, **fault})
    assert names(faults_of(record)) == expected
    assert names(verdict_of(record).faults) == expected
    assert verdict_of(record).fault == faults_of(record)[0].sentence
    for likely in faults_of(record):
        assert likely.look_at
        assert likely.evidence
        assert likely.finding in violated(monitor_of(record))


# --- Checks that see it for certain.


@pytest.mark.parametrize(
    ("finding", "name", "words"),
    [
        ("reuse.recurrence", "few_seeds", "noise re-used: the noise comes back at irregular steps"),
        ("noise.shape", "noise_of_another_shape", "noise of another shape:"),
        ("batch_normalised", "divides_by_realised_batch", "divided by the realised batch size:"),
        ("finite", "not_finite", "a record that is not finite:"),
        ("coupling", "records_coupled", "records are not independent:"),
    ],
)
def test_a_finding_gives_its_fault_by_name_and_evidence_alone(finding, name, words):
    seen = check(finding, first_step=7, process=1, parameters=["fc.bias"], matches=3)
    (fault,) = faults_of(simulate(20), seen)
    assert (fault.name, fault.finding) == (name, finding)
    assert fault.sentence.startswith(words)
    assert fault.place == Place(("fc.bias",), 7, 1)
    assert fault.evidence == {"matches": 3}
    assert fault.look_at


def test_division_by_the_realised_batch_explains_noise_that_is_a_little_small():
    record = simulate(80, noise=0.83)
    assert names(faults_of(record, check("batch_normalised"))) == ["divides_by_realised_batch"]
    faults = faults_of(simulate(80, noise=0.2), check("batch_normalised"), check("sensitivity"))
    assert names(faults) == ["divides_by_realised_batch", "noise_too_small"]


@pytest.mark.parametrize("noise", [0.83, 1.0])
def test_a_divisor_that_replays_show_explains_noise_that_is_a_little_small(noise):
    record, seen = simulate(80, noise=noise), check("replay.release", kind="divisor")
    assert names(faults_of(record, seen)) == ["divides_by_realised_batch"]
    both = faults_of(record, seen, check("batch_normalised"))
    assert names(both) == ["divides_by_realised_batch"]
    assert both[0].finding == "batch_normalised"
    other = faults_of(record, check("replay.release", kind=""))
    assert "more_than_the_release" in names(other)
    assert "divides_by_realised_batch" not in names(other)


def test_a_record_that_is_not_finite_comes_before_all_but_a_missing_dp_sgd():
    certain = ["gradient_replaced", "no_dp", "finite"]
    others = ["reuse.resume", "coupling", "sensitivity", "noise", "batch_normalised", "accounting"]
    monitor = monitor_of(simulate(80, noise=0.5))
    faults = likely_faults([check(n) for n in [*others, *reversed(certain)]], monitor, OVERSIZE)
    assert names(faults)[:3] == ["gradient_replaced", "no_dp", "not_finite"]


@pytest.mark.parametrize(
    ("by_removal", "name"),
    [
        ({}, "wrong_accounting"),
        ({"epsilon_by_removal": 7.9}, "replacement_accounted_as_removal"),
        ({"epsilon_by_removal": 15.0}, "wrong_accounting"),
    ],
)
def test_an_epsilon_of_removed_records_is_told_from_too_many_steps(by_removal, name):
    seen = check("accounting", epsilon_spent=16.0, claimed_epsilon=8.0, **by_removal)
    assert names(faults_of(simulate(20), seen)) == [name]


def test_a_finding_that_no_rule_knows_is_told_in_its_own_words():
    unknown = CheckResult("new.check", "mechanism", "violated", "it is odd", "mend it")
    (fault,) = likely_faults([unknown], None, OVERSIZE)
    assert (fault.name, fault.sentence, fault.look_at) == ("new_check", "it is odd", "mend it")


def test_faults_of_the_run_stand_below_those_of_the_mechanism():
    record = simulate(80, noise=0.6)
    run = [check("accounting"), check("sampling.rate")]
    expected = ["noise_too_small", "records_drawn_too_often", "wrong_accounting"]
    assert names(faults_of(record, *run)) == expected


def test_faults_of_one_of_several_optimizers_say_which():
    verdicts = [verdict_of(simulate(60, noise=noise)) for noise in (1.0, 0.5)]
    labels = ["optimizer 1 (a)", "optimizer 2 (b)"]
    chosen = worst(verdicts, labels, [], broken=labels[1:])
    assert [fault.place.optimizer for fault in chosen.faults] == ["optimizer 2 (b)"]
    assert chosen.fault == verdicts[1].fault


# --- What follows the coins behind a release, and what a function of a correct release explains.

K = 8
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
        use.update([step], coins[None], [(release, used(coins, release), moved)])
    return use


@pytest.mark.parametrize("runs", staged(quick=[25], nightly=[400]))
@pytest.mark.parametrize(
    "process",
    [np.sign, np.negative, lambda z: z * (np.abs(z) > 1), lambda z: 1e-9 * z, lambda z: z**3],
    ids=["sign", "negative", "largest", "tiny", "cube"],
)
@pytest.mark.one_in(3)
def test_what_is_computed_of_a_release_never_follows_the_coins(process, runs):
    """Simulated at a level of 1 %: binomial with at most that mean, up to once in 10^4."""
    rng = np.random.default_rng(1)
    flagged = 0
    for _ in range(runs):
        use = run(rng, 60, lambda _, z: process(z))
        flagged += use.evidence.log_e >= math.log(100.0)
    assert stats.binom.sf(flagged - 1, runs, 0.01) > 1e-4


def test_the_bet_is_fair_at_every_step_by_enumeration():
    """The mean of the e-value over all coins of two steps is one, whatever the values."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(2, 3)) * [[1.0], [100.0]]
    wealth = []
    for coins in itertools.product([0.0, 1.0], repeat=6):
        use = UseOfRelease(SIGNIFICANCE)
        for step, row in enumerate(np.array(coins).reshape(2, 3)):
            use._used.update(row[None], values[step][None], values[step][None])
        wealth.append(math.exp(use._used.log_e[0]))
    assert np.mean(wealth) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5, -1.0])
def test_raw_gradients_in_the_update_are_found_in_a_few_steps(share):
    rng = np.random.default_rng(3)
    use = run(rng, 40, lambda coins, z: abs(share) * coins + 0.3 * z)
    assert use.evidence.violated
    assert use.evidence.violated_at < 30


def test_weights_that_follow_the_coins_are_found_where_the_gradient_does_not():
    rng = np.random.default_rng(4)
    use = UseOfRelease(SIGNIFICANCE)
    for step in range(60):
        coins = rng.integers(0, 2, K).astype(float)
        moved = coins + 0.5 * rng.normal(size=K)
        use.update([step], coins[None], [(rng.normal(size=K), None, moved)])
    assert use.evidence.violated


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
@pytest.mark.one_in(3)
def test_a_canary_that_a_mask_hides_accuses_nobody(kept, sign):
    """What is taken out of a canary that did not come through stays in the release, negated."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        use = UseOfRelease(SIGNIFICANCE)
        for step in range(150):
            coins = rng.integers(0, 2, K).astype(float)
            alive = rng.random(K) < kept
            release = rng.normal(size=K) - coins * ~alive
            use.update([step], coins[None], [(release, sign * release, sign * release)])
        assert not use.evidence.violated


def test_a_mask_that_follows_what_was_before_the_noise_is_found():
    rng = np.random.default_rng(7)
    kept = lambda coins: rng.random(K) < 0.2 + 0.6 * coins  # noqa: E731
    use = run(rng, 80, lambda coins, z: z * kept(coins))
    assert use.evidence.violated


def test_only_what_was_seen_changes_the_result():
    fine = CheckResult("gradient_replaced", "mechanism", "ok", "every update", evidence={})
    assert UseOfRelease(SIGNIFICANCE).result(fine) == fine
    use = run(np.random.default_rng(6), 40, lambda coins, z: coins + 0.3 * z)
    found = use.result(fine)
    assert found.status == "violated"
    assert found.log_e_value >= THRESHOLD
    replaced = CheckResult("gradient_replaced", "mechanism", "violated", "backward")
    assert use.result(replaced) == replaced


# --- What explains small noise.


def processed(
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
        monitor.update(Observation.of(entry))
    return monitor


def explained(monitor: AuditMonitor, *, at_cut: bool, **more) -> set[str]:
    return explained_by_processing(monitor.results(), monitor, at_cut=at_cut, **more)


@pytest.mark.parametrize("at_cut", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_noise_that_is_small_beside_a_whole_canary_is_a_fault(seed, at_cut):
    monitor = processed(0.5, 1.0, seed=seed)
    assert "noise" in violated(monitor)
    assert "noise" not in explained(monitor, at_cut=at_cut)


@pytest.mark.parametrize("at_cut", [True, False])
@pytest.mark.parametrize("factor", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_noise_that_shrank_with_the_canary_is_not_certain(seed, factor, at_cut):
    monitor = processed(factor, factor, seed=seed)
    assert "noise" in violated(monitor)
    assert violated(monitor) - {"epsilon"} <= explained(monitor, at_cut=at_cut)


def test_what_goes_with_the_batch_is_no_function_of_the_release():
    monitor = processed(0.5, 0.5)
    name, kind = BATCH_NORMALISED.name, BATCH_NORMALISED.kind
    divided = [*monitor.results(), CheckResult(name, kind, "violated", "divided")]
    for by_batch in (False, True):
        found = explained_by_processing(divided, monitor, at_cut=False, by_batch=by_batch)
        assert "noise" in found
        assert ("batch_normalised" in found) != by_batch


def test_a_few_steps_tell_nothing_where_the_release_is_not_known():
    monitor = processed(0.5, 1.0, steps=8, sigma=10.0)
    assert "noise" in explained(monitor, at_cut=False)
    assert "noise" not in explained(monitor, at_cut=True)


def test_without_canaries_small_noise_stays_a_fault():
    monitor = AuditMonitor(HEADER, SIGNIFICANCE)
    for step in range(30):
        entry = np.zeros((), dtype=HEADER.dtype)
        entry["step"], entry["noise_multiplier"], entry["max_grad_norm"] = step, 1.0, 1.0
        entry["scale"], entry["sample_rate"] = 16.0, math.nan
        entry["tensor_squares"] = 16.0
        monitor.update(Observation.of(entry))
    assert "noise" in violated(monitor)
    assert not explained(monitor, at_cut=False)


def test_noise_on_the_weights_explains_all_of_it():
    monitor = processed(0.1, 1.0)
    found = explained(monitor, at_cut=False, processed=True)
    of_noise = {name for name in violated(monitor) if name.startswith(("noise", "reuse"))}
    assert of_noise <= found


@pytest.mark.parametrize("seed", range(3))
def test_clipping_at_another_norm_stays_a_fault_and_an_amplified_release_does_not(seed):
    assert "sensitivity" not in explained(processed(1.0, 3.0, seed=seed), at_cut=False)
    amplified = processed(30.0, 20.0, seed=seed, steps=200)
    assert violated(amplified) & {"sensitivity"} <= explained(amplified, at_cut=False)


def test_an_undecided_check_names_what_would_decide_it():
    found = undecided(CheckResult("noise", "mechanism", "violated", "too little noise"))
    assert found.status == "undecided"
    assert "lightning_audit.released" in found.advice
