import math
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from noise_steps import HEADER, noise_seen
from numpy.typing import NDArray
from simulated_record import (
    SIGNIFICANCE,
    by_name,
    header,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)
from stages import most_failures, staged

from lightning_audit.accounting.history import Phase
from lightning_audit.checks.check import shares
from lightning_audit.checks.monitor import AuditMonitor, NoiseChannelChecks, replay
from lightning_audit.record.store import (
    DROPPED,
    EARLIER,
    INJECTED,
    RECORD_NAME,
    Observation,
    ObservationStore,
    read_observations,
    snapshot,
)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_record_violates_nothing(seed):
    monitor = monitor_of(simulate(100, seed=seed, data=0.2))
    assert violated(monitor) == set()
    assert all(check.status == "ok" for check in monitor.results())
    assert 0 <= monitor.log_e_value < -math.log(SIGNIFICANCE)


@pytest.mark.parametrize("fault", [{}, {"reuse": "same"}])
def test_replay_gives_the_numbers_of_the_run(fault, tmp_path):
    made, entries = simulate(80, sigma=np.geomspace(1.2, 0.8, 80), data=0.1, **fault)  # type: ignore[arg-type]
    live = AuditMonitor(made, SIGNIFICANCE)
    store = ObservationStore(tmp_path, made)
    for seen in map(Observation.of, entries):
        live.update(seen)
        live.results()  # looking changes nothing
        store.append(seen)
    store.close(archive=False)
    again = replay(*read_observations(tmp_path / RECORD_NAME), SIGNIFICANCE)
    assert again.results() == live.results()
    assert (again.history, again.log_e_value) == (live.history, live.log_e_value)
    assert again.leakage.ratio_lower(0.05) == live.leakage.ratio_lower(0.05)


@pytest.mark.parametrize(
    "run",
    [{}, {"noise": 0.5}, {"shift": [*[1.0] * 7, 5.0]}, {"reuse": "same"}, {"every": 3}],
    ids=["healthy", "quiet", "loud", "reused", "parts"],
)
def test_a_block_gives_the_numbers_of_its_steps_to_the_last_bit(run):
    sigma = np.repeat([1.0, 0.8, 1.2], 40)
    made, entries = simulate(120, sigma=sigma, data=0.1, dropped=(5,), replaced=(7,), **run)
    entered = entries["canaries"] == INJECTED
    entries["canaries"][entered] = np.where(np.arange(entered.sum()) % 4 == 3, EARLIER, INJECTED)
    entries["readings"][20], entries["tensor_squares"][50] = np.nan, np.nan
    entries["sample_rate"][:60] = np.nan
    steps = AuditMonitor(made, SIGNIFICANCE)
    for entry in entries:
        steps.update(Observation.of(entry))
    with np.printoptions(floatmode="unique", threshold=sys.maxsize):
        assert repr(snapshot(steps)) == repr(snapshot(replay(made, entries, SIGNIFICANCE)))


@pytest.mark.parametrize("column", ["readings", "tensor_squares"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_readings_are_counted_and_never_end_in_a_pass(column, value):
    made, entries = simulate(100)
    entries[column][40, 0] = value
    assert verdict_of((made, entries)).outcome == "PASS"  # one in a hundred is no obstacle
    entries[column][40:42, 0] = value
    monitor = monitor_of((made, entries))
    assert (monitor.lost_steps, monitor.canary_steps) == (2, 98)
    assert violated(monitor) == set()
    verdict = verdict_of((made, entries))
    assert verdict.outcome == "INCONCLUSIVE"
    assert "2 of 100 steps were lost" in verdict.pass_blockers[0]


def test_faults_are_flagged_although_steps_are_lost():
    made, entries = simulate(100, noise=0.5)
    entries["readings"][::5] = np.nan
    assert verdict_of((made, entries)).outcome == "VIOLATION"


def test_dropped_canaries_are_counted_but_their_witnesses_are_read():
    record = simulate(100, dropped=range(10, 15))
    monitor = monitor_of(record)
    assert (monitor.lost_steps, monitor.canary_steps) == (5, 95)
    assert monitor.witness_noise.sums.count.tolist() == [3200] * 3
    verdict = verdict_of(record)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "5 of 100 steps were lost to failed injections" in verdict.pass_blockers[0]


def test_audit_whose_canaries_were_all_dropped_is_inconclusive():
    verdict = verdict_of(simulate(50, dropped=range(50)))
    assert verdict.outcome == "INCONCLUSIVE"
    assert "no canary was observed" in verdict.pass_blockers


def test_steps_without_planned_canaries_are_not_lost():
    monitor = monitor_of(simulate(100, every=4))
    assert (monitor.lost_steps, monitor.canary_steps, monitor.steps) == (0, 25, 100)
    assert monitor.sensitivity.observations == 200


def test_coins_of_dropped_and_unplanned_steps_do_not_enter_the_tests():
    made, entries = simulate(60)
    spoiled = entries.copy()
    spoiled["canaries"][30] = DROPPED
    clean = spoiled.copy()
    spoiled["readings"][30], spoiled["coins"][30] = 1e6, 1
    ours, theirs = (by_name(monitor_of((made, e)))["sensitivity"] for e in (spoiled, clean))
    assert (ours, entries["canaries"][30]) == (theirs, INJECTED)


def test_steps_without_noise_are_in_the_history_and_in_no_test():
    made, entries = simulate(50)
    entries["noise_multiplier"][10:] = 0.0
    monitor = monitor_of((made, entries))
    assert monitor.history == (Phase(1.0, 0.01, 10), Phase(0.0, 0.01, 40))
    assert (monitor.steps, monitor.canary_steps, monitor.lost_steps) == (50, 10, 0)


def test_pass_is_not_given_for_tests_of_a_few_steps_among_many_without_noise():
    made, entries = simulate(2000)
    entries["noise_multiplier"][60:] = 0.0
    assert verdict_of((made, entries)).outcome != "PASS"


def test_nothing_observed_is_not_ok():
    assert {c.status for c in AuditMonitor(header(), SIGNIFICANCE).results()} == {"not_run"}


# --- Checks of the noise itself: what they see, what they leave alone, and how seldom they err.

FloatArray = NDArray[np.float64]
NAMES = (
    *("noise.shape", "reuse.recurrence", "reuse.forecast", "batch_normalised", "noise.mean"),
    *("noise.entries", "noise.whole", "reuse.entries", "noise.excess"),
)
#: Those that need whole tensors, which the steps here do not have.
OF_TENSORS = ("noise.whole", "reuse.entries")
#: Makes the released sum of clipped sums, for a step.
Release = Callable[[np.random.Generator, FloatArray, int], FloatArray]


def run(
    release: Release,
    *,
    steps: int = 20,
    n: int = 384,
    noise: float = 1.0,
    known: bool = True,
    seed: int = 0,
    data: float = 1.0,
) -> NoiseChannelChecks:
    """Checks of a training of which the sums are known or not."""
    rng = np.random.default_rng(seed)
    checks = NoiseChannelChecks(HEADER, 1e-3)
    for step in range(steps):
        sums, rows = data * rng.normal(size=n), int(rng.integers(8, 25))
        seen = noise_seen(
            release(rng, sums, rows),
            sums if known else None,
            noise,
            (rows / 16.0,),
            terms=rows,
            step=step,
        )
        checks.update(seen)
    return checks


def after(*seen: Observation, fine: bool = True) -> NoiseChannelChecks:
    """Checks of steps."""
    checks = NoiseChannelChecks(HEADER, 1e-3, fine=fine)
    for step, one in enumerate(seen):
        checks.update(replace(one, step=step))
    return checks


def sound(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return np.asarray(sums + rng.normal(size=len(sums)))


def status(checks: NoiseChannelChecks) -> dict[str, str]:
    return {check.name: check.status for check in checks.results(clips=True)}


def flagged(checks: NoiseChannelChecks) -> set[str]:
    return {name for name, was in status(checks).items() if was in ("violated", "warned")}


def test_a_sound_training_is_left_alone():
    expected = dict.fromkeys(NAMES, "ok") | dict.fromkeys(OF_TENSORS, "not_run")
    checks = run(sound, steps=100)
    assert status(checks) == expected
    handed_out = {**shares(), **shares(warns=True)}
    found = {check.name: check.share for check in checks.results(clips=True)}
    assert found == {name: handed_out[name] for name in NAMES}


def test_where_sums_are_not_known_shape_recurrence_and_divisor_are_tested_all_the_same():
    found = status(run(sound, known=False))
    assert {name for name, was in found.items() if was == "ok"} == {
        "noise.shape",
        "reuse.recurrence",
        "reuse.forecast",
        "batch_normalised",
    }
    assert set(found.values()) == {"ok", "not_run"}


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_step_that_is_not_finite_leaves_no_trace(broken):
    none, lost = np.zeros(2), np.array([broken, 0.0])
    checks = after(noise_seen(lost, none, 1.0), noise_seen(none, lost, 1.0))
    assert set(status(checks).values()) == {"not_run"}


def uniform(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return np.asarray(sums + rng.uniform(-np.sqrt(3), np.sqrt(3), len(sums)))


def divided(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return sound(rng, sums, rows) * 16 / rows


def few_seeds(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return sound(np.random.default_rng(int(rng.integers(10))), sums, rows)


def with_mean(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return sound(rng, sums, rows) + 0.3


class Opposite:
    """Noise that takes a part of the step before back."""

    def __init__(self) -> None:
        self.latest: FloatArray | None = None

    def __call__(self, rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
        now = rng.normal(size=len(sums))
        self.latest = now if self.latest is None else -0.6 * self.latest + 0.8 * now
        return np.asarray(sums + self.latest)


def too_much(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
    return np.asarray(sums + 1.3 * rng.normal(size=len(sums)))


EXCESS = ("noise.excess", "warned")


@pytest.mark.parametrize(
    ("release", "finding", "result"),
    [
        (uniform, "noise.shape", "violated"),
        (divided, "batch_normalised", "violated"),
        (few_seeds, "reuse.recurrence", "violated"),
        (Opposite(), "reuse.forecast", "violated"),
        (with_mean, "noise.mean", "warned"),
        (too_much, "noise.excess", "warned"),
        (lambda rng, sums, rows: sums + 5000.0 * rng.normal(size=len(sums)), *EXCESS),
    ],
)
def test_a_fault_is_seen_in_twenty_steps(release, finding, result):
    assert status(run(release))[finding] == result
    if result == "warned":
        assert "violated" not in status(run(release, steps=100)).values()


def test_the_steps_of_a_recurrence_are_told():
    rows = np.random.default_rng(0).normal(size=(12, 200))
    rows[9] = rows[4]
    checks = after(*(noise_seen(row, np.zeros(200), 1.0) for row in rows))
    result = next(c for c in checks.results(clips=True) if c.name == "reuse.recurrence")
    assert result.evidence["steps"] == [4, 9]
    assert "readings of step 10 differ from those of step 5 by less" in result.message


@pytest.mark.parametrize("known", [True, False])
def test_few_seeds_are_seen_with_sums_or_without_where_data_are_small(known):
    assert "reuse.recurrence" in flagged(run(few_seeds, known=known, data=0.3))


def test_sums_that_the_noise_is_already_in_are_no_reason_to_accuse():
    """An optimizer may add its noise to the sum itself; then nothing is left beside it."""
    rng = np.random.default_rng(0)
    noisy = (sound(rng, rng.normal(size=384), 16) for _ in range(50))
    checks = after(*(noise_seen(one, one, 1.0, (0.9,), 16) for one in noisy))
    assert flagged(checks) == set()
    assert status(checks)["noise.excess"] == "not_run"


SUMS = np.linspace(1.0, 9.0, 128)


@pytest.mark.parametrize(
    ("released", "sums", "why"),
    [
        (SUMS, None, "clipped sums that the noise was added to are not known"),
        (SUMS, SUMS, "too small to be the noise"),
        (3.0 * SUMS, SUMS, "is correlated with them"),
        (5000.0 * SUMS, 5000.0 * SUMS, "float32 rounding dominates"),
        (SUMS, SUMS * np.inf, "no step's clipped sum was finite"),
    ],
)
def test_checks_that_saw_no_noise_say_which_of_several_causes_it_was(released, sums, why):
    checks = after(noise_seen(released, sums, 1.0))
    results = checks.results(clips=True)
    said = {check.name: check.message for check in results}
    assert [check.status for check in results if check.name == "noise.mean"] == ["not_run"]
    assert why in said["noise.mean"]
    assert said["noise.excess"] == said["noise.mean"]
    # What is valid beside any data is tested where the noise alone is not told.
    of_readings = why in said["noise.shape"]
    assert of_readings == ("rounding" in why or "finite" in why)


@pytest.mark.parametrize("steps", [0, 3])
def test_in_low_precision_every_check_of_the_noise_says_that_this_is_why(steps):
    checks = after(*(noise_seen(SUMS, None, 1.0, (0.5,)) for _ in range(steps)), fine=False)
    for check in checks.results(clips=True):
        assert check.status == "not_run"
        assert check.message.startswith("low-precision gradients"), check.name


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_gradient_that_is_scaled_after_its_noise_is_not_taken_for_noise(factor):
    checks = run(lambda rng, sums, rows: factor * sound(rng, sums, rows), data=10.0)
    assert status(checks)["noise.mean"] == "not_run"


def test_a_sum_longer_than_its_terms_warns_of_noise_within_unless_clipping_is_broken():
    checks, rng = NoiseChannelChecks(HEADER, 1e-3), np.random.default_rng(0)
    sums = rng.normal(size=64)
    for step, norm in enumerate((10.0, 15.9, 40.0)):
        checks.update(
            noise_seen(sound(rng, sums, 16), sums, 1.0, (), terms=16, sum_norm=norm, step=step)
        )
        assert (status(checks)["noise.excess"] == "warned") == (norm > 17)
    warned = next(c for c in checks.results(clips=True) if c.name == "noise.excess")
    assert warned.evidence["violated_at_step"] == 2
    assert "longer than clipping allows" in warned.message
    assert next(c for c in checks.results(clips=False) if c.name == "noise.excess").status == "ok"


def test_noise_far_above_the_claim_is_seen_without_sums_unless_clipping_is_broken():
    rng = np.random.default_rng(0)
    for noise, said in ((30.0, "warned"), (1.0, "not_run")):
        readings = [4.0 + noise * rng.normal(size=64) for _ in range(20)]  # norm 32 of 32 terms
        checks = after(*(noise_seen(one, None, 1.0, (), terms=32) for one in readings))
        assert status(checks)["noise.excess"] == said
        broken = next(c for c in checks.results(clips=False) if c.name == "noise.excess")
        assert broken.status == "not_run"


def test_noise_that_was_added_to_the_sum_in_place_is_not_noise_of_its_parts():
    noisy = sound(np.random.default_rng(0), np.zeros(64), 16)
    assert flagged(after(noise_seen(noisy, noisy, 1.0, (), terms=16, sum_norm=40.0))) == set()
    for norm in (np.inf, np.nan):  # elsewhere in the sum
        assert flagged(after(noise_seen(noisy, np.zeros(64), 1.0, (), 16, sum_norm=norm))) == set()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("noise", [1e-5, 1e-6, 1e-7])
def test_noise_below_the_rounding_of_loud_sums_is_not_judged(known, noise):
    sums = 10.0 * np.random.default_rng(1).normal(size=384)

    def rounded(rng: np.random.Generator, _: FloatArray, rows: int) -> FloatArray:
        noisy = sums.astype(np.float32) + (noise * rng.normal(size=384)).astype(np.float32)
        return noisy.astype(np.float64)

    checks = NoiseChannelChecks(HEADER, 1e-3)
    rng, single = np.random.default_rng(0), sums.astype(np.float32).astype(np.float64)
    for step in range(30):
        released = rounded(rng, sums, 16)
        checks.update(noise_seen(released, single if known else None, noise, step=step))
    assert flagged(checks) == set()


def test_an_exact_zero_tells_nothing_however_large_the_claimed_noise():
    """In single precision a normal variable is zero once in some ten million times."""
    noisy = 1e9 * np.random.default_rng(0).normal(size=16)
    noisy[3] = 0.0
    assert flagged(after(noise_seen(noisy, np.zeros(16), 1e9))) == set()


def test_a_state_holds_what_the_first_steps_released_and_nothing_else():
    def state(scale: float) -> str:
        checks, rng = NoiseChannelChecks(HEADER, 1e-3), np.random.default_rng(0)
        for step in range(8):
            released = rng.normal(size=50)
            checks.update(
                noise_seen(released, scale * np.ones(50), 1.0, terms=int(9 * scale), step=step)
            )
        return repr(checks.state())

    assert state(0.0) == state(0.1)
    assert len(state(0.0)) < 5_000


@pytest.mark.parametrize("runs", staged(heavy=[50], nightly=[600]))
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_correct_runs_are_not_accused(known, noise, runs):
    """Runs of 60 steps, beside data that follow the past; each test on its own at .05."""
    steps, n = 60, 24
    highest = dict.fromkeys(NAMES, 0)
    for seed in range(runs):
        rng = np.random.default_rng([seed, known, round(10 * noise)])
        checks, past = NoiseChannelChecks(HEADER, 1e-3), np.zeros(n)
        for step in range(steps):
            sums = 0.9 * past + 0.3 * noise * rng.normal(size=n)
            released = sums + noise * rng.normal(size=n)
            rows = int(rng.integers(8, 25))
            checks.update(
                noise_seen(released, sums if known else None, noise, (rows / 16.0,), step=step)
            )
            past = released
        for check in checks.results(clips=True):
            highest[check.name] += (check.log_e_value or 0.0) >= np.log(20.0)
    allowed = most_failures(runs, 0.05, 600)
    assert {name: count for name, count in highest.items() if count > allowed} == {}


# ------------------------------------------------------------------ numbers for the diagnosis


@pytest.mark.parametrize(
    ("factor", "data"), [*((f, d) for f in (0.3, 0.5, 1.0) for d in (0.1, 0.5, None)), (0.0, None)]
)
@pytest.mark.parametrize("divided", [False, True])
def test_the_divisor_is_told_from_noise_of_another_size(factor, divided, data):
    known = data is None

    def release(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
        # A part of the sum that stays the same is taken off by what the past says.
        noisy = sums + 0.02 * rows * (not known) + factor * rng.normal(size=len(sums))
        return np.asarray(noisy * 16.0 / rows if divided else noisy)

    checks = run(release, known=known, data=data or 1.0, steps=20 if known else 40)
    found = next(c for c in checks.results(clips=True) if c.name == "batch_normalised")
    assert (found.status == "violated") == divided


@pytest.mark.parametrize(("factor", "seeds", "expected"), [(0.5, 10**9, 0.5), (1.0, 5, 0.0)])
def test_steps_alike_are_told_by_difference(factor, seeds, expected):
    def release(rng: np.random.Generator, sums: FloatArray, rows: int) -> FloatArray:
        noise = np.random.default_rng(int(rng.integers(seeds))).normal(size=len(sums))
        return np.asarray(sums + factor * noise)

    checks = run(release, data=0.02)
    found = next(c for c in checks.results(clips=True) if c.name == "reuse.recurrence")
    assert found.status == "violated"
    assert found.evidence["difference_ratio"] == pytest.approx(expected, abs=0.05)


def test_a_generator_that_starts_again_is_told_by_the_distance_at_which_noise_comes_back():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((40, 384))
    checks = NoiseChannelChecks(HEADER, 1e-3)
    for step in range(90):
        sums = rng.standard_normal(384)
        checks.update(noise_seen(sums + noise[step % 40], sums, 1.0, step=step))
    (found,) = (check for check in checks.results(clips=True) if check.name == "reuse.recurrence")
    assert (found.evidence["steps"], found.evidence["distances"]) == ([0, 40], [40] * 8)
