import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from simulated_record import (
    CLIPPED_AFTER_AVERAGE,
    LABELS,
    OVERSIZE,
    SIGNIFICANCE,
    by_name,
    check,
    faults_of,
    header,
    monitor_of,
    names,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.accounting import EPSILON
from lightning_audit.checks.clipping import SENSITIVITY, clipping_norm_result
from lightning_audit.record.store import EARLIER, INJECTED, Observation, restore, snapshot
from lightning_audit.verdict.diagnosis import likely_faults
from lightning_audit.verdict.judge import PowerModel, Resolution


def test_tensors_that_clipping_misses_are_named():
    monitor = monitor_of(simulate(40, shift=[1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]))
    found = [c for c in monitor.results() if c.status == "violated"]
    fault = likely_faults(found, monitor, OVERSIZE)[0]
    assert fault.sentence.startswith(
        "clipping misses some tensors: `Dirac(fc.bias)`, `BlockPair(2 tensors)` passed"
    )
    # A pair over two tensors does not tell which ones in its label.
    assert fault.place.parameters == ("fc.bias",)
    assert fault.evidence["unclipped_canaries"] == ["Dirac(fc.bias)", "BlockPair(2 tensors)"]
    assert fault.place.step < 20


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("shift", "said"),
    [
        ([1.0, 4.0, 1.0, 2.0**0.5, 1.0, 1.0, 4.0, 1.0], "clipping per tensor:"),
        (2.0, "clipping norm too large:"),
    ],
)
def test_clipping_per_tensor_is_named_though_pairs_pass_with_more_as_well(seed, shift, said):
    monitor = monitor_of(simulate(30, seed=seed, shift=shift))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith(said)


@pytest.mark.parametrize(("norm", "named"), [(0.6, True), (0.9, False), (2.0, False)])
def test_a_clipping_norm_that_comes_in_twice_is_named_by_its_size(norm, named):
    made, entries = simulate(80, noise=0.6)
    entries["max_grad_norm"] = norm
    expected = ["noise_of_squared_norm"] * named + ["noise_too_small"]
    assert names(faults_of((made, entries))) == expected


@pytest.mark.parametrize(
    ("shift", "expected"),
    [(4.0, ["record_counts_twice", "clipping_norm_too_large"]), (2.5, ["clipping_norm_too_large"])],
)
@pytest.mark.parametrize("label", ["Mislabeled(input)", "Blank(input, sampling_rate=0.25)"])
def test_an_input_canary_counts_by_its_norm(shift, expected, label):
    made, entries = simulate(300, shift=shift, sigma=0.5)
    made = dataclasses.replace(made, canaries=(label,) * len(made.canaries))
    faults = faults_of((made, entries))
    assert names(faults) == expected
    assert faults[0].sentence.startswith(
        "a record counts more than once: it adds about 4 times"
        if shift == 4.0
        else "clipping norm too large: a record adds 2."
    )


def one_step_in(every: int, shift: float = OVERSIZE, *, data: float = 0.0) -> tuple[Any, Any]:
    """A record whose canaries are clipped but for one step in so many."""
    made, entries = simulate(120, data=data)
    loose = entries["step"] % every == every - 1
    entries["readings"] += (shift - 1.0) * (entries["coins"] == 1) * loose[:, None]
    return made, entries


@pytest.mark.parametrize(("every", "shift"), [(16, OVERSIZE), (10, OVERSIZE), (4, 30.0)])
def test_clipping_that_is_missing_in_some_steps_is_named(every, shift):
    fault = faults_of(one_step_in(every, shift))[0]
    assert (fault.name, fault.evidence["loud_steps"][0]) == ("clipping_missing_at_times", every - 1)
    assert len(fault.evidence["loud_steps"]) <= 8


def test_clipping_that_is_missing_in_most_steps_is_no_matter_of_some():
    assert "clipping_missing_at_times" not in names(faults_of(simulate(40, shift=OVERSIZE)))
    made, entries = simulate(120)
    loose = entries["step"] % 4 != 0
    entries["readings"] += 99.0 * (entries["coins"] == 1) * loose[:, None]
    assert "clipping_missing_at_times" not in names(faults_of((made, entries)))


def test_loud_data_are_not_taken_for_steps_without_clipping():
    made, entries = simulate(120, shift=3.0)
    entries["readings"][::20] += 40.0  # whether a canary is in or not
    assert "clipping_missing_at_times" not in names(faults_of((made, entries)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("sum", "clip_after_average"),
        ("none", "no_clipping"),
        ("norm", "clipping_norm_too_large"),
        ("tensors", "clip_per_tensor"),
        ("some", "clipping_misses_tensors"),
        ("batch", "clipping_norm_of_the_batch"),
        ("", "one_record_moves_too_much"),
    ],
)
def test_what_replays_show_of_clipping_comes_before_sensitivity(kind, name):
    found = [
        check("replay.sensitivity", findings=2),
        check("replay.clipping", findings=3, kind=kind),
    ]
    (fault,) = likely_faults(found, monitor_of(simulate(1)), OVERSIZE)
    assert fault.name == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("none", "no_clipping"),
        ("norm", "clipping_norm_too_large"),
        ("rows", "record_counts_twice"),
        ("parts", "parts_count_differently"),
        ("", "one_record_moves_too_much"),
    ],
)
def test_a_record_that_moves_too_much_has_the_name_that_replays_show(kind, name):
    found = [check("replay.sensitivity", findings=2, kind=kind)]
    faults = likely_faults(found, monitor_of(simulate(1)), OVERSIZE)
    assert names(faults) == [name]
    canary = check("sensitivity")
    faults = likely_faults([canary, *found], monitor_of(simulate(80, shift=2.0)), OVERSIZE)
    assert names(faults) == [name if kind and kind != "none" else "clipping_norm_too_large"]


def test_canaries_that_are_clipped_together_have_one_name_beside_their_replay():
    record = simulate(80, shift=CLIPPED_AFTER_AVERAGE)
    faults = faults_of(record, check("replay.clipping", findings=3, kind="sum"))
    assert names(faults) == ["clip_after_average"]


@pytest.mark.parametrize("steps", [4, 12])
def test_clipping_that_ends_at_a_step_is_not_called_missing_at_times(steps):
    (header, sound), (_, loud) = simulate(60), simulate(steps, seed=1, shift=OVERSIZE)
    entries = np.concatenate([sound, loud])
    entries["step"] = np.arange(len(entries))
    fault = faults_of((header, entries), check("sensitivity"))[0]
    assert fault.name == "clipping_missing_from_a_step_on"
    assert fault.sentence.startswith("clipping is missing from step 61 on")
    spared = np.concatenate([entries, sound[:10]])
    spared["step"] = np.arange(len(spared))
    assert faults_of((header, spared), check("sensitivity"))[0].name == "clipping_missing_at_times"


def test_a_clipping_norm_that_is_larger_in_the_module_is_wrong_and_a_smaller_one_is_not():
    assert clipping_norm_result(3, 1.0, (1.0, 1.0)).status == "ok"
    assert clipping_norm_result(3, 1.0, (1.0, 2.0)).status == "ok"
    single = float(np.float32(0.1))  # above .1, as a tensor rounds it
    assert clipping_norm_result(3, 1.0, (single, 0.1)).status == "ok"
    message = clipping_norm_result(3, 1.2, (1.0, 2.0)).message
    assert message.startswith("a sample's gradient norm is 1.2 times")
    found = clipping_norm_result(0, 0.0, (1.0, 0.5))
    assert (found.status, found.evidence["module_norm"]) == ("violated", 1.0)
    assert "module.max_grad_norm=1, and the noise is made for optimizer.max_grad_norm=0.5" in (
        found.message
    )


def check_of_parts(
    steps: int, earlier: float, last: float, seed: int = 0, split: float = 0.5
) -> Any:
    """The check after steps whose canaries add so much in an earlier and in the last part."""
    made, rng = header(), np.random.default_rng(seed)
    check = SENSITIVITY.new_statistic(made, 1e-3)
    for step in range(steps):
        entry = np.zeros((), dtype=made.dtype)
        entry["step"], entry["scale"], entry["noise_multiplier"] = step, 16.0, 1.0
        entry["canaries"] = EARLIER if rng.random() < split else INJECTED
        coins = rng.integers(0, 2, len(made.canaries))
        shift = earlier if entry["canaries"] == EARLIER else last
        entry["coins"] = coins
        entry["readings"] = shift * coins + rng.standard_normal(len(coins))
        check.update(Observation.of(entry))
    return check


@pytest.mark.parametrize(("earlier", "last"), [(0.0, 2.0), (2.0, 0.0)])
def test_parts_that_are_right_on_average_alone_are_found(earlier, last):
    check = restore(snapshot(check_of_parts(100, earlier, last)))
    assert check.test.violated
    assert abs(check.shift - 1.0) < 0.5
    assert check.largest_shift == pytest.approx(2.0, abs=0.4)
    (result,) = check.results()
    assert result.evidence["shift_by_part"]["last"] == pytest.approx(last, abs=0.4)
    assert result.evidence["shift_by_part"]["earlier"] == pytest.approx(earlier, abs=0.4)


def test_sound_parts_are_not_accused():
    found = [check_of_parts(100, 1.0, 1.0, seed) for seed in range(20)]
    assert max(check.test.log_e for check in found) < 7.0
    assert not any(check.parts is not None and check.parts.differ for check in found)


def test_the_stake_is_shared_from_the_first_split_batch_on():
    whole, split = (check_of_parts(60, 2.0, 2.0, split=share) for share in (0.0, 0.5))
    assert whole.parts is None
    assert whole.test.violated
    assert split.test.violated
    # A fault of all parts is found by the bet on all of them, for half of its stake.
    assert split.test.log_e > float(split._bet.log_e) - math.log(2.0) - 1e-9


SPREAD = [label.startswith("Spread") for label in LABELS]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_canary_within_the_clipping_norm_is_not_flagged(seed, shift):
    assert violated(monitor_of(simulate(150, seed=seed, shift=shift, data=0.1))) == set()


def test_double_clipping_norm_is_flagged_and_named():
    record = simulate(150, shift=2.0)
    assert "sensitivity" in violated(monitor_of(record))
    verdict = verdict_of(record)
    assert verdict.fault.startswith("clipping norm too large: gradients are clipped at ")
    assert float(verdict.fault.split(" at ")[1].split(" times")[0]) == pytest.approx(2.0, abs=0.2)
    fault = faults_of(record)[0]
    assert fault.evidence["shift"] == pytest.approx(2.0, abs=0.2)
    assert 1.0 < fault.evidence["shift_lower"] < fault.evidence["shift"]


def check_of_norms(numbers: Sequence[int], norms: Sequence[float], scale: float) -> bool:
    """Whether the sum counts as clipped, from the canaries in and the norm of their readings."""
    made = header()
    check = SENSITIVITY.new_statistic(made, 1e-3)
    for number, norm in zip(numbers, norms, strict=True):
        entry = np.zeros((), dtype=made.dtype)
        entry["scale"], entry["noise_multiplier"] = scale, 1.0
        entry["coins"][:number] = 1
        entry["readings"][:number] = norm / math.sqrt(number)
        check.update(Observation.of(entry))
    return check.sum_is_clipped


def clipped_share(norm_of_one: Callable[[int], float], steps: int, runs: int = 100) -> float:
    rng, clipped = np.random.default_rng(0), 0
    for _ in range(runs):
        numbers = [int(n) for n in rng.binomial(len(LABELS), 0.5, steps) if n]
        norms = [float(np.linalg.norm(norm_of_one(n) + rng.standard_normal(n))) for n in numbers]
        clipped += check_of_norms(numbers, norms, scale=16.0)
    return clipped / runs


@pytest.mark.parametrize("numbers", [[2, 4, 6, 3, 5, 4], [4, 5, 3, 4], [1, 7, 4, 4, 3, 5, 2, 6]])
def test_clipping_one_by_one_is_not_taken_for_that_of_the_sum(numbers):
    # Four canaries in on average: their norms are those of a clipped sum on average, too.
    norms = [8.0 * math.sqrt(n) for n in numbers]
    assert np.mean(norms) == pytest.approx(16.0, rel=0.06)
    assert not check_of_norms(numbers, norms, scale=16.0)


def test_clipping_of_the_sum_is_seen_through_the_noise():
    assert clipped_share(lambda _: 8.0, steps=12) <= 0.01
    # A short canary that was in alone does not hide it.
    assert check_of_norms([6, 1, 5, 3], [16.1, 3.7, 15.9, 16.2], scale=16.0)
    assert check_of_norms([3, 5, 4, 4], [17.87, 16.24, 13.3, 15.88], scale=16.0)
    assert check_of_norms([3, 5, 4, 4], [16.0] * 4, scale=16.0)
    assert clipped_share(lambda n: 16.0 / math.sqrt(n), steps=12) >= 0.97
    assert clipped_share(lambda n: 16.0 / math.sqrt(n), steps=4) >= 0.9


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        # The gradient has three tensors: one that is spread over them passes with sqrt(3).
        (np.where(SPREAD, math.sqrt(3), 1.0), "clipping per tensor"),
        (1.7, "clipping norm too large"),
    ],
)
def test_clipping_of_each_tensor_is_told_from_a_larger_norm_of_all(shift, said):
    assert verdict_of(simulate(600, shift=shift, sigma=0.5)).fault.startswith(said)


@pytest.mark.parametrize("seed", range(3))
def test_what_one_kind_of_canary_shows_is_not_drowned_by_the_others(seed):
    # Clipping of each of six tensors: two canaries of eight pass with sqrt(6).
    monitor = monitor_of(simulate(90, seed=seed, shift=np.where(SPREAD, math.sqrt(6), 1.0)))
    assert "sensitivity" in violated(monitor)
    assert monitor.sensitivity.shift < 1.6


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OVERSIZE, "no clipping: a canary passes with its full norm"),
        (CLIPPED_AFTER_AVERAGE, "clipping after averaging"),
    ],
)
def test_gross_clipping_faults_are_named_and_stop_injection_within_a_dozen_steps(fault, said):
    record = simulate(40, shift=fault)
    monitor = monitor_of(record)
    assert verdict_of(record).fault.startswith(said)
    assert monitor.sensitivity.sum_is_clipped == (fault == CLIPPED_AFTER_AVERAGE)
    assert monitor.clipping_is_broken
    assert by_name(monitor)["sensitivity"].evidence["violated_at_step"] < 12


def test_shift_and_its_lower_limit_are_estimated():
    check = monitor_of(simulate(800, shift=1.0, sigma=1.0)).sensitivity
    error = 2 / math.sqrt(8 * 800)
    assert check.shift == pytest.approx(1.0, abs=4 * error)
    assert check.shift_lower == pytest.approx(check.shift - 1.645 * error, abs=0.2 * error)
    assert (check.residual_std, check.observations) == (pytest.approx(1.0, abs=0.05), 8 * 800)
    assert check.shifts() == pytest.approx(np.ones(8), abs=0.35)


@pytest.mark.heavy
def test_lower_limit_of_the_shift_errs_in_one_of_twenty_runs():
    # 100 runs; the limit of the binomial is three standard errors.
    misses = sum(monitor_of(simulate(25, seed=s)).sensitivity.shift_lower > 1 for s in range(100))
    assert misses <= 100 * 0.05 + 3 * math.sqrt(100 * 0.05 * 0.95)


def test_nothing_is_said_before_anything_was_seen():
    check = SENSITIVITY.new_statistic(header(), 1e-3)
    assert check.shift_lower == -math.inf
    assert math.isnan(check.residual_std)
    assert np.isnan(check.shifts()).all()
    assert not check.sum_is_clipped
    assert check.results()[0].status == "not_run"


def test_changing_noise_multipliers_do_not_alarm():
    for sigma in (np.geomspace(3, 0.5, 150), np.geomspace(0.5, 3, 150)):
        assert "sensitivity" not in violated(monitor_of(simulate(150, sigma=sigma)))


# --- The checks of a record whose coins have a known probability that is not one half.

RARE = {"coin_probability": 0.1}


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("data", [0.0, 1.0])
def test_a_sound_record_is_not_flagged_and_leaks_as_claimed(p, data):
    for seed in range(2):
        monitor = monitor_of(simulate(120, seed=seed, data=data, coin_probability=p))
        assert violated(monitor) == set()
        assert monitor.leakage.ratio_lower(EPSILON.share * SIGNIFICANCE) <= 1


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_a_sound_record_of_enough_steps_passes(p):
    assert verdict_of(simulate(160, coin_probability=p)).outcome == "PASS"


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_a_clipping_norm_twice_too_large_is_flagged(p):
    assert "noise.canary" in violated(monitor_of(simulate(40, noise=0.5, **RARE)))
    monitor = monitor_of(simulate(150, shift=2.0, coin_probability=p))
    assert violated(monitor) == {"sensitivity"}
    assert monitor.sensitivity.shift == pytest.approx(2.0, abs=0.35)


def test_leakage_is_proved_at_rare_coins():
    monitor = monitor_of(simulate(700, shift=3.0, **RARE))
    assert 1 < monitor.leakage.ratio_lower(EPSILON.share * SIGNIFICANCE) <= 3


def test_signal_and_noise_are_bounded_at_rare_coins():
    found = monitor_of(simulate(400, noise=0.5, **RARE)).signal_over_noise(0.05)
    assert 0.7 < found.signal_lower <= 1
    assert 0.5 <= found.noise_upper < 0.53


def test_guesses_are_counted_by_world():
    middle = monitor_of(simulate(100, **RARE)).guesses.middle
    assert int(middle.n_in + middle.n_out) == 800
    assert int(middle.n_in) == pytest.approx(80, abs=4 * math.sqrt(72))


def test_power_over_the_shift_is_that_of_the_coins_and_kept_by_the_checks():
    steps, runs = 70, 16
    models = [PowerModel(monitor_of(simulate(steps, **coins))) for coins in ({}, RARE)]
    fair, promised = (model.sensitivity(2.0) for model in models)
    needed = [model.at(Resolution())["sensitivity"].steps_needed for model in models]
    assert needed[1] > 2 * needed[0]
    assert promised < fair
    assert promised > 0.5
    seen = np.mean(
        [
            "sensitivity" in violated(monitor_of(simulate(steps, seed=s, shift=2.0, **RARE)))
            for s in range(1, runs + 1)
        ]
    )
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)
