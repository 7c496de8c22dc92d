import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from noise_steps import HEADER, block_step, noise_step, result_of, whole_step
from numpy.typing import NDArray
from simulated_record import (
    LABELS,
    SIGNIFICANCE,
    TENSORS,
    by_name,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)
from stages import most_failures, staged

from lightning_audit.checks.check import REGISTRY, Check, entailed, evidence_in, group, shares
from lightning_audit.checks.noise import (
    BATCH_NORMALISED,
    NOISE,
    NOISE_CANARY,
    NOISE_ENTRIES,
    NOISE_EXCESS,
    NOISE_MEAN,
    NOISE_SHAPE,
    NOISE_STEP,
    NOISE_TENSOR,
    NOISE_WHOLE,
    Onset,
    PooledSums,
    equal_noise_result,
)
from lightning_audit.checks.randomness import REUSE_ENTRIES, REUSE_FORECAST
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import likely_faults

FloatArray = NDArray[np.float64]
NAMES = ("weight", "bias", "large")
SIZES = np.array([400.0, 10.0, 1e6])


def whole(
    rng: np.random.Generator, factor: FloatArray, sizes: FloatArray = SIZES, data: float = 0.0
) -> dict[str, np.ndarray]:
    """A step whose noise is so many times the claim in each tensor, beside data of this size."""
    noise = factor**2 * rng.chisquare(sizes)
    return {"entries": sizes, "squares": noise + data * sizes, "noise_squares": noise}


def of_tensors(names: Sequence[str]) -> Any:
    """The statistic of the noise over whole tensors, without observations."""
    return NOISE_WHOLE.new_statistic(dataclasses.replace(HEADER, tensors=tuple(names)), 1e-3)


def sizes_of(
    factor: tuple[float, float, float], *, steps: int = 20, alone: bool = True, data: float = 0.0
) -> CheckResult:
    rng, check = np.random.default_rng(0), of_tensors(NAMES)
    for step in range(steps):
        check.update(whole_step(whole(rng, np.array(factor), data=data), step, alone=alone))
    return result_of(check)


# ------------------------------------------------------------------ over whole tensors


def test_the_claimed_noise_and_more_of_it_is_left_alone():
    for factor in ((1.0, 1.0, 1.0), (1.3, 1.0, 1.001)):
        result = sizes_of(factor, steps=200)
        assert (result.status, result.evidence["flagged"]) == ("ok", [])


def test_nine_tenths_of_the_noise_in_a_large_tensor_are_seen_at_once_and_told_where():
    result = sizes_of((1.0, 1.0, 0.9))
    assert (result.status, result.evidence["violated_at_step"]) == ("violated", 0)
    assert result.evidence["flagged"] == ["large"]
    assert result.evidence["smallest_ratio"] == pytest.approx(0.9, abs=0.01)
    assert (
        "over all entries of `large` (1 of 3 tensors): at one step it is at most 0.91 "
        in result.message
    )
    assert result.evidence["flagged_noise_ratio"] == [0.89, 0.91]
    assert result.evidence["noise_ratio"][0] <= 0.9 < 1.0 < result.evidence["noise_ratio"][1]
    assert result.evidence["least_noise"] == {"large": pytest.approx(0.9, abs=0.01)}
    assert result.evidence["noise_ratio_upper"] == 0.91


def test_a_little_less_in_a_small_tensor_is_seen_over_the_steps():
    assert sizes_of((0.85, 1.0, 1.0), steps=60).evidence["flagged"] == ["weight"]
    assert sizes_of((1.0, 0.5, 1.0), steps=60).evidence["flagged"] == ["bias"]
    rng, check = np.random.default_rng(1), of_tensors(NAMES)
    for step in range(200):  # or in one step among many
        factor = np.array([0.0 if step == 150 else 1.0, 1.0, 1.0])
        check.update(whole_step(whole(rng, factor), step))
    result = result_of(check)
    assert (result.evidence["violated_at_step"], result.evidence["flagged"]) == (150, ["weight"])


def test_the_limit_of_the_quietest_step_holds_though_step_and_tensor_are_chosen():
    missed = 0
    for run in range(60):
        rng, check = np.random.default_rng(run), of_tensors(NAMES)
        for step in range(60):
            check.update(whole_step(whole(rng, np.full(3, 0.8)), step))
        least, limit = check._smallest[1], check._upper_at_one_step(1)  # few entries
        assert least < 0.8
        missed += limit < 0.8
    assert missed <= 1


def test_where_the_noise_is_not_known_alone_the_release_counts():
    assert sizes_of((0.9, 0.9, 0.9), alone=False, data=0.3).status == "ok"
    assert sizes_of((0.9, 0.9, 0.9), alone=False, data=0.1).status == "violated"
    # Of noise that was put into the sums before they were looked at nothing is left without them.
    assert sizes_of((0.0, 0.0, 0.0), alone=False, data=1.0).status == "ok"


def test_noise_in_a_type_of_low_precision_is_not_too_small():
    rng, check = np.random.default_rng(2), of_tensors(("large",))
    entries = np.array([200_000.0])
    for step in range(20):
        mantissa, exponent = np.frexp(rng.normal(size=200_000))
        rounded = np.ldexp(np.round(mantissa * 256.0) / 256.0, exponent)  # as bfloat16 does
        squares = np.array([rounded @ rounded])
        check.update(
            whole_step({"entries": entries, "squares": squares, "noise_squares": squares}, step)
        )
    assert result_of(check).status == "ok"


def test_what_is_not_finite_leaves_no_trace_and_no_step_says_what_was_missing():
    check, broken = of_tensors(("a",)), np.array([np.nan])
    check.update(whole_step({"entries": np.ones(1), "squares": broken, "noise_squares": broken}, 0))
    result = result_of(check)
    assert result.status == "not_run"
    assert "whole tensors were read together with their clipped sums" in result.message


@pytest.mark.parametrize("runs", staged(heavy=[250], nightly=[5000]))
@pytest.mark.parametrize("sizes", [[3.0], [40.0, 1e5], [10.0] * 30])
@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_claimed_noise_is_accused_at_a_level(factor, sizes, runs):
    accused, entries = 0, np.array(sizes)
    for seed in range(runs):
        rng, check = np.random.default_rng(seed), of_tensors(["t"] * len(sizes))
        for step in range(60):
            check.update(whole_step(whole(rng, np.full(len(sizes), factor), entries), step))
        accused += (result_of(check).log_e_value or 0.0) >= np.log(20.0)
    assert accused <= most_failures(runs, 0.05, 5000)


# ------------------------------------------------------------------ single entries


def test_entries_without_noise_are_counted():
    rng, check = np.random.default_rng(0), NOISE_ENTRIES.new_statistic(HEADER, 1e-3)
    for step in range(40):
        noise = rng.normal(size=384)
        noise[[3, 100, 250]] = 0.0
        check.update(noise_step(noise, step))
    result = result_of(check)
    assert result.status == "violated"
    assert result.evidence["violated_at_step"] < 20
    assert (result.evidence["quiet"], result.evidence["entries"]) == (3, 384)
    assert result.evidence["quietest"] == pytest.approx(0.0)
    assert result.message.startswith("3 of the 384 entries that are read have too little noise")


def test_entries_with_noise_of_their_own_are_left_alone():
    for seed in range(10):
        rng, check = np.random.default_rng(seed), NOISE_ENTRIES.new_statistic(HEADER, 1e-3)
        for step in range(150):
            check.update(noise_step(rng.normal(size=384), step))
        assert result_of(check).status == "ok"
    assert result_of(NOISE_ENTRIES.new_statistic(HEADER, 1e-3)).status == "not_run"


# ------------------------------------------------------------------ entries that share it


def test_entries_that_share_their_noise_are_told_with_their_distance():
    rng, check = np.random.default_rng(0), REUSE_ENTRIES.new_statistic(HEADER, 1e-3)
    for step in range(60):
        check.update(block_step(rng.normal(size=300), step))
    assert result_of(check).status == "ok"  # they share nothing
    rng, check = np.random.default_rng(0), REUSE_ENTRIES.new_statistic(HEADER, 1e-3)
    for step in range(5):
        check.update(block_step(np.resize(rng.normal(size=50), 500), step))
    result = result_of(check)
    assert (result.status, result.evidence["distance"] % 50) == ("violated", 0)
    assert result.evidence["left"] < 0.5
    assert f"at distance {result.evidence['distance']}" in result.message
    for step in range(5, 10):
        check.update(block_step(rng.normal(size=500), step))
    assert result_of(check).evidence["left"] < 0.5  # as it was when most was seen


# --- A training that is stopped again and again is accused no more often than the level says.

LEVEL, STEPS, ENTRIES = 0.05, 6, 32


def flagged(
    kind: Check, share: float, segments: int, rng: np.random.Generator, quiet: int = 0
) -> bool:
    """Whether any segment flags at the level; in segment ``quiet`` an entry has no noise."""
    for k in range(1, segments + 1):
        check = kind.new_statistic(HEADER, LEVEL / share)  # the share of it is the level
        (test,) = evidence_in(check)
        test.segment = k
        for step in range(STEPS * (10 if k == quiet else 1)):
            noise = rng.normal(size=ENTRIES)
            noise[0] *= k != quiet
            noise *= 1.0 if kind is NOISE_ENTRIES or k != quiet else 0.1
            check.update(noise_step(noise, step))
        if test.violated:
            return True
    return False


@pytest.mark.parametrize(
    "kind", [NOISE_ENTRIES, REUSE_FORECAST], ids=["SingleEntries", "NoiseForecast"]
)
@pytest.mark.parametrize(
    ("segments", "runs"), staged(quick=[(10, 40)], heavy=[(40, 100)], nightly=[(100, 1000)])
)
def test_many_segments_flag_within_the_level(kind, segments, runs):
    rng = np.random.default_rng(1)
    assert sum(flagged(kind, 0.005, segments, rng) for _ in range(runs)) <= LEVEL * runs


@pytest.mark.parametrize(
    "kind", [NOISE_ENTRIES, REUSE_FORECAST], ids=["SingleEntries", "NoiseForecast"]
)
def test_a_fault_of_the_third_segment_is_found(kind):
    assert flagged(kind, 0.005, 3, np.random.default_rng(2), quiet=3)


def found(mean: float, *, steps: int = 20, seed: int = 0) -> CheckResult:
    """Result for noise of this mean, in units of its standard deviation."""
    rng, check = np.random.default_rng(seed), NOISE_MEAN.new_statistic(HEADER, 1e-3)
    for step in range(steps):
        check.update(noise_step(mean + rng.normal(size=384), step))
    return result_of(check)


def test_noise_around_zero_is_left_alone():
    assert {found(0.0, seed=seed).status for seed in range(20)} == {"ok"}
    result = found(0.0, steps=0)
    assert (result.status, result.message) == (
        "not_run",
        "no step's entries were read between its noise and its update",
    )


@pytest.mark.parametrize("mean", [0.3, -0.3])
def test_noise_with_a_mean_is_warned_of_within_a_few_steps(mean):
    result = found(mean)
    assert result.status == "warned"
    assert result.evidence["violated_at_step"] < 5
    assert (result.evidence["positive"] > result.evidence["negative"]) == (mean > 0)
    assert "the mean of the noise is not zero" in result.message


NOISE_OF_NOISE_SIZE = {"noise", "noise.tensor", "noise.canary"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("data", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("noise", [1.0, 1.3])
def test_enough_noise_is_not_flagged(seed, data, noise):
    assert violated(monitor_of(simulate(100, seed=seed, data=data, noise=noise))) == set()


def test_half_noise_is_flagged_within_ten_steps_by_all_three_checks():
    monitor = monitor_of(simulate(40, noise=0.5))
    checks = by_name(monitor)
    assert violated(monitor) >= NOISE_OF_NOISE_SIZE
    assert checks["noise"].evidence["violated_at_step"] < 10
    assert checks["noise"].evidence["smallest_ratio"] == pytest.approx(0.5, abs=0.05)
    verdict = verdict_of(simulate(40, noise=0.5))
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "mechanism")
    assert verdict.fault.startswith("noise scale too small: the noise is at most 0.53 times the")


@pytest.mark.parametrize("tensor", range(len(TENSORS)))
def test_tensor_without_noise_is_named(tensor):
    noise = [float(j != tensor) for j in range(len(TENSORS))]
    record = simulate(60, noise=noise, canary_noise=1.0, data=0.05)
    checks = by_name(monitor_of(record))
    assert checks["noise.tensor"].evidence["flagged"] == [TENSORS[tensor]]
    assert f"`{TENSORS[tensor]}`" in checks["noise.tensor"].message
    fault = verdict_of(record).fault
    assert fault == f"noise of some tensors: the noise of `{TENSORS[tensor]}` is missing"


@pytest.mark.parametrize(
    ("steps", "noise", "begins", "has"),
    [
        (
            60,
            {"noise": [1.0, 0.5, 1.0], "canary_noise": 1.0},
            "",
            "`fc.weight` is at most 0.53 times the stated (99 % confidence at any stop",
        ),
        (30, {"noise": 1 / 64}, "noise divided by the batch size", "batch size of 64"),
        (30, {"noise": 0.0, "data": 0.01}, "no noise", ""),
    ],
)
def test_other_sizes_are_named(steps, noise, begins, has):
    fault = verdict_of(simulate(steps, **noise)).fault
    assert fault.startswith(begins)
    assert has in fault


def test_small_noise_on_one_canary_is_flagged_and_named():
    monitor = monitor_of(simulate(100, noise=1.0, canary_noise=0.5))  # on all canaries
    assert "noise.canary" in violated(monitor)
    assert not {"noise", "noise.tensor"} & violated(monitor)
    made, entries = simulate(200)
    quiet = 2
    residual = entries["readings"][:, quiet] - entries["coins"][:, quiet]
    entries["readings"][:, quiet] = entries["coins"][:, quiet] + 0.3 * residual
    monitor = monitor_of((made, entries))
    assert "noise.canary" in violated(monitor)
    assert LABELS[quiet] in by_name(monitor)["noise.canary"].message


def test_tensors_where_data_dominate_do_not_hide_small_noise_elsewhere():
    monitor = monitor_of(simulate(60, noise=0.6, data=[8.0, 8.0, 0.0], canary_noise=1.0))
    assert "noise.tensor" in violated(monitor)
    assert monitor.witness_noise.flagged_tensors() == [TENSORS[2]]


def test_decaying_noise_multipliers_do_not_alarm_and_half_of_them_do():
    sigma = np.geomspace(2.0, 0.5, 100)
    assert violated(monitor_of(simulate(100, sigma=sigma))) == set()
    assert violated(monitor_of(simulate(100, sigma=sigma, noise=0.5))) >= NOISE_OF_NOISE_SIZE


def test_pooled_sums_take_a_unit_in_by_its_past_alone():
    sums, counts = PooledSums(2), np.array([4.0, 4.0])
    assert sums.mean_square.tolist() == [1, 1]  # they were not seen, and read the claim
    sums.update(counts, np.array([3.0, 400.0]))  # nothing is known of them yet
    assert (sums.pooled_count, sums.pooled_squares) == (0, 0)
    sums.update(counts, np.array([2.0, 0.0]))  # the second was loud, whatever it is now
    assert (sums.pooled_count, sums.pooled_squares) == (4, 2)
    assert sums.mean_square == pytest.approx([5 / 8, 50])


def test_unit_that_was_loud_once_is_pooled_again_soon():
    sums, counts = PooledSums(1), np.array([4.0])
    sums.update(counts, np.array([4e6]))  # counts as 2: 0.9 + 0.1 * 2 = 1.1
    sums.update(counts, np.array([0.0]))  # 0.99
    assert sums.pooled_count == 0
    sums.update(counts, np.array([400.0]))
    assert (sums.pooled_count, sums.pooled_squares) == (4, 400)


def test_unit_without_terms_stays_as_loud_or_as_quiet_as_it_was():
    sums = PooledSums(2)
    sums.update(np.array([4.0, 4.0]), np.array([3.0, 8.0]))  # quiet, and loud
    for _ in range(30):
        sums.update(np.zeros(2), np.zeros(2))
    assert sums.pooled_count == 0
    sums.update(np.array([4.0, 4.0]), np.array([5.0, 6.0]))
    assert (sums.pooled_count, sums.pooled_squares) == (4, 5)


def test_a_flag_stays_and_keeps_its_step():
    made, entries = simulate(30, noise=0.5)
    _, later = simulate(400, seed=1, noise=1.5)
    later["step"] += 30
    before, after = (
        monitor_of((made, entries)),
        monitor_of((made, np.concatenate([entries, later]))),
    )
    for check in NOISE_OF_NOISE_SIZE:
        first, last = by_name(before)[check], by_name(after)[check]
        assert last.status == "violated"
        assert last.evidence["violated_at_step"] == first.evidence["violated_at_step"]
        assert last.log_e_value >= -math.log(0.1 * SIGNIFICANCE)


def test_the_limit_since_a_step_leaves_out_the_step_that_was_chosen_by_its_readings():
    rng, counts, runs = np.random.default_rng(5), np.array([8.0, 8.0, 8.0]), 200
    missed = 0
    for _ in range(runs):
        onset, yes = Onset(3), np.array([True])
        for _ in range(10):
            onset.update(rng.chisquare(8, (1, 3)) / 8, quiet=~yes, flagged=~yes)
        onset.update(np.zeros((1, 3)), quiet=yes, flagged=yes)
        for _ in range(4):
            onset.update(0.25 * rng.chisquare(8, (1, 3)) / 8, quiet=yes, flagged=yes)
        quietest = int(np.argmin(list(onset.ratios().values())))
        missed += onset.upper(counts, [quietest]) < 0.5
    assert missed <= 0.01 * runs + 2


def test_the_limit_of_the_quietest_tensor_holds_though_it_is_chosen():
    rng, counts, runs = np.random.default_rng(6), np.full(10, 6.0), 200
    missed = 0
    for _ in range(runs):
        sums = PooledSums(10)
        for _ in range(5):
            sums.update(counts, 0.25 * rng.chisquare(6, 10))
        missed += sums.largest_upper([int(np.argmin(sums.mean_square))]) < 0.5
    assert missed <= 0.01 * runs + 2


ALL = (
    *(NOISE, NOISE_TENSOR, NOISE_STEP, NOISE_CANARY),
    *(NOISE_SHAPE, NOISE_ENTRIES, NOISE_WHOLE, BATCH_NORMALISED, NOISE_MEAN, NOISE_EXCESS),
)


def names(*checks: Check) -> set[str]:
    return {check.name for check in checks}


def test_every_optimizer_has_each_of_them_and_all_go_by_e_values():
    assert all(check.each and check.always and check.share > 0 for check in ALL)
    assert len({check.name for check in ALL}) == len(ALL)
    assert all(REGISTRY[check.name] is check for check in ALL)


def test_those_of_its_size_must_run_and_may_be_undecided_and_those_that_warn_fail_nothing():
    in_order = (NOISE.name, NOISE_TENSOR.name, NOISE_STEP.name, NOISE_CANARY.name)
    assert group("noise") == in_order
    sized = {check.name for check in ALL if check.size_of == "noise"}
    assert sized == names(NOISE, NOISE_TENSOR, NOISE_CANARY)  # a few steps tell no size
    assert equal_noise_result(2).status == "warned"  # without an e-value
    for check in ALL:
        assert (check.must_run, check.doubtful) == (check.group == "noise", not check.warns)
    assert set(shares(warns=True)) == names(NOISE_MEAN, NOISE_EXCESS)


def test_dividing_by_the_batch_is_named_and_explains_what_follows_from_it():
    violated = [
        CheckResult(name, "mechanism", "violated", "wrong", log_e_value=99.0, share=0.01)
        for name in (BATCH_NORMALISED.name, NOISE_SHAPE.name)
    ]
    (fault,) = likely_faults(violated, None, 1.0)
    assert (fault.name, fault.finding) == ("divides_by_realised_batch", BATCH_NORMALISED.name)
    (rule,) = BATCH_NORMALISED.faults
    assert {NOISE_SHAPE.name, "sensitivity", "reuse.lag", "epsilon"} <= set(entailed(rule))
    assert NOISE.name not in entailed(rule)


def told(smallest_ratio: float, *also: Check) -> list[str]:
    """Faults that are named where a tensor, and perhaps more, has too little noise."""
    evidence = {
        NOISE_WHOLE.name: {"smallest_ratio": smallest_ratio, "flagged": ["weight"]},
        **{check.name: {} for check in also},
    }
    violated = [
        CheckResult(
            name, "mechanism", "violated", "wrong", log_e_value=99.0, share=0.01, evidence=seen
        )
        for name, seen in evidence.items()
    ]
    return [fault.name for fault in likely_faults(violated, None, 1.0)]


def test_a_tensor_with_too_little_noise_is_told_from_single_entries_without():
    entries = (NOISE_ENTRIES, NOISE_SHAPE)
    assert told(0.5, *entries) == ["noise_too_small_over_a_tensor"]
    assert told(0.99, *entries) == ["noise_missing_at_entries"]
    assert told(0.99) == ["noise_too_small_over_a_tensor"]
