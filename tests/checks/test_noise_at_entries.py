from __future__ import annotations

import numpy as np
import pytest
from noise_steps import block_step, noise_step, whole_step
from numpy.typing import NDArray
from stages import most_failures, staged

from lightning_audit.checks.noise import SingleEntries, WholeSizes
from lightning_audit.checks.probes import WholeTensors
from lightning_audit.checks.randomness import SharedEntries
from lightning_audit.results.audit_report import CheckResult

FloatArray = NDArray[np.float64]
NAMES = ("weight", "bias", "large")
SIZES = np.array([400.0, 10.0, 1e6])


def whole(
    rng: np.random.Generator, factor: FloatArray, sizes: FloatArray = SIZES, data: float = 0.0
) -> WholeTensors:
    """A step whose noise is so many times the claim in each tensor, beside data of this size."""
    noise = factor**2 * rng.chisquare(sizes)
    return WholeTensors(sizes, noise + data * sizes, noise)


def sizes_of(
    factor: tuple[float, float, float], *, steps: int = 20, alone: bool = True, data: float = 0.0
) -> CheckResult:
    rng, check = np.random.default_rng(0), WholeSizes(1e-3, NAMES)
    for step in range(steps):
        check.update(whole_step(whole(rng, np.array(factor), data=data), step, alone=alone))
    return check.result("")


# ------------------------------------------------------------------ over whole tensors


def test_the_claimed_noise_and_more_of_it_is_left_alone() -> None:
    for factor in ((1.0, 1.0, 1.0), (1.3, 1.0, 1.001)):
        result = sizes_of(factor, steps=200)
        assert result.status == "ok"
        assert result.evidence["flagged"] == []


def test_nine_tenths_of_the_noise_in_a_large_tensor_are_seen_at_once_and_told_where() -> None:
    result = sizes_of((1.0, 1.0, 0.9))
    assert result.status == "violated"
    assert result.evidence["violated_at_step"] == 0
    assert result.evidence["flagged"] == ["large"]
    assert result.evidence["smallest_ratio"] == pytest.approx(0.9, abs=0.01)
    assert (
        "over all entries of `large` (1 of 3 tensors): at one step it is at most 0.91 "
        in result.message
    )
    assert result.evidence["flagged_noise_ratio"] == [0.89, 0.91]
    assert "noise_ratio" not in result.evidence  # the tensors have more than one
    assert result.evidence["noise_ratio_upper"] == 0.91


def test_a_little_less_in_a_small_tensor_is_seen_over_the_steps() -> None:
    result = sizes_of((0.85, 1.0, 1.0), steps=60)
    assert result.evidence["flagged"] == ["weight"]
    assert sizes_of((1.0, 0.5, 1.0), steps=60).evidence["flagged"] == ["bias"]


def test_one_step_without_noise_among_many_is_seen() -> None:
    rng, check = np.random.default_rng(1), WholeSizes(1e-3, NAMES)
    for step in range(200):
        factor = np.array([0.0 if step == 150 else 1.0, 1.0, 1.0])
        check.update(whole_step(whole(rng, factor), step))
    result = check.result("")
    assert result.evidence["violated_at_step"] == 150
    assert result.evidence["flagged"] == ["weight"]


def test_the_limit_of_the_quietest_step_holds_though_step_and_tensor_are_chosen() -> None:
    missed = 0
    for run in range(60):
        rng, check = np.random.default_rng(run), WholeSizes(1e-3, NAMES)
        for step in range(60):
            check.update(whole_step(whole(rng, np.full(3, 0.8)), step))
        least, limit = check._smallest[1], check._upper_at_one_step([1])  # few entries
        assert least < 0.8
        missed += limit < 0.8
    assert missed <= 1


def test_where_the_noise_is_not_known_alone_the_release_counts() -> None:
    assert sizes_of((0.9, 0.9, 0.9), alone=False, data=0.3).status == "ok"
    assert sizes_of((0.9, 0.9, 0.9), alone=False, data=0.1).status == "violated"
    # Of noise that was put into the sums before they were looked at nothing is left without them.
    assert sizes_of((0.0, 0.0, 0.0), alone=False, data=1.0).status == "ok"


def test_noise_in_a_type_of_low_precision_is_not_too_small() -> None:
    rng, check = np.random.default_rng(2), WholeSizes(1e-3, ("large",))
    entries = np.array([200_000.0])
    for step in range(20):
        noise = rng.normal(size=200_000)
        mantissa, exponent = np.frexp(noise)
        rounded = np.ldexp(np.round(mantissa * 256.0) / 256.0, exponent)  # as bfloat16 does
        squares = np.array([rounded @ rounded])
        check.update(whole_step(WholeTensors(entries, squares, squares), step))
    assert check.result("").status == "ok"


def test_what_is_not_finite_leaves_no_trace_and_no_step_says_what_was_missing() -> None:
    check = WholeSizes(1e-3, ("a",))
    broken = np.array([np.nan])
    check.update(whole_step(WholeTensors(np.ones(1), broken, broken), 0))
    result = check.result("")
    assert result.status == "not_run"
    assert "whole tensors were read together with their clipped sums" in result.message
    assert check.result("they are hidden").message == "not tested: they are hidden"


@pytest.mark.parametrize("runs", staged(heavy=[500], nightly=[5000]))
@pytest.mark.parametrize("sizes", [[3.0], [40.0, 1e5], [10.0] * 30])
@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_noise_as_claimed_is_accused_at_the_level_at_most(
    factor: float, sizes: list[float], runs: int
) -> None:
    accused, entries = 0, np.array(sizes)
    for seed in range(runs):
        rng, check = np.random.default_rng(seed), WholeSizes(1e-3, ["t"] * len(sizes))
        for step in range(60):
            check.update(whole_step(whole(rng, np.full(len(sizes), factor), entries), step))
        accused += (check.result("").log_e_value or 0.0) >= np.log(20.0)
    assert accused <= most_failures(runs, 0.05, 5000)


# ------------------------------------------------------------------ single entries


def test_entries_without_noise_are_counted() -> None:
    rng, check = np.random.default_rng(0), SingleEntries(1e-3)
    for step in range(40):
        noise = rng.normal(size=384)
        noise[[3, 100, 250]] = 0.0
        check.update(noise_step(noise, step))
    result = check.result("")
    assert result.status == "violated"
    assert result.evidence["violated_at_step"] < 20
    assert (result.evidence["quiet"], result.evidence["entries"]) == (3, 384)
    assert result.evidence["quietest"] == pytest.approx(0.0)
    assert result.message.startswith("3 of the 384 entries that are read have too little noise")


def test_entries_with_noise_of_their_own_are_left_alone() -> None:
    for seed in range(10):
        rng, check = np.random.default_rng(seed), SingleEntries(1e-3)
        for step in range(150):
            check.update(noise_step(rng.normal(size=384), step))
        assert check.result("").status == "ok"
    assert SingleEntries(1e-3).result("").status == "not_run"


# ------------------------------------------------------------------ entries that share it


def test_entries_that_share_their_noise_are_told_with_their_distance() -> None:
    rng, check = np.random.default_rng(0), SharedEntries(1e-3)
    for step in range(5):
        check.update(block_step(np.resize(rng.normal(size=50), 500), step))
    result = check.result("")
    assert result.status == "violated"
    assert result.evidence["distance"] % 50 == 0
    assert result.evidence["left"] < 0.5
    assert f"at distance {result.evidence['distance']}" in result.message
    for step in range(5, 10):
        check.update(block_step(rng.normal(size=500), step))
    assert check.result("").evidence["left"] < 0.5  # as it was when most was seen


def test_entries_that_share_nothing_are_left_alone() -> None:
    rng, check = np.random.default_rng(0), SharedEntries(1e-3)
    for step in range(60):
        check.update(block_step(rng.normal(size=300), step))
    result = check.result("")
    assert result.status == "ok"
    assert SharedEntries(1e-3).result("they are hidden").message == "not tested: they are hidden"
