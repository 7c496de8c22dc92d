from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from simulated_record import (
    CLIPPED_AFTER_AVERAGE,
    OVERSIZE,
    SCALE,
    SIGNIFICANCE,
    TENSORS,
    by_name,
    monitor_of,
    simulate,
    verdict_of,
    violated,
)

from lightning_audit.checks.integrity import no_dp_result
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Place
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy
from lightning_audit.verdict.judge import worst


def check(name: str, **evidence: Any) -> CheckResult:
    return CheckResult(name, "mechanism", "violated", "", evidence=evidence)


def found_in(monitor: AuditMonitor, *others: CheckResult) -> list[CheckResult]:
    return [*(c for c in monitor.results() if c.status == "violated"), *others]


def faults_of(record: Any, *others: CheckResult, processes: int = 1) -> tuple[LikelyFault, ...]:
    monitor = monitor_of(record)
    return likely_faults(found_in(monitor, *others), monitor, OVERSIZE, processes)


def names(faults: tuple[LikelyFault, ...]) -> list[str]:
    return [fault.name for fault in faults]


@pytest.mark.parametrize(
    ("names", "finding", "words"),
    [
        (["noise", "sensitivity", "gradient_replaced"], "gradient_replaced", "gradient replaced"),
        (["noise", "no_dp"], "no_dp", "no DP-SGD"),
        (["accounting", "sampling.rate", "epsilon"], "epsilon", "more leaks than the claim allows"),
        (["accounting", "epsilon"], "epsilon", "more leaks than the claim allows"),
        (["accounting", "sampling.not_poisson"], "sampling.not_poisson", "not Poisson"),
        (["accounting", "sampling.rate"], "sampling.rate", "draws more often"),
        (["accounting"], "accounting", "wrong accounting"),
    ],
)
def test_finding_that_explains_the_others_gives_the_name(
    names: list[str], finding: str, words: str
) -> None:
    fault = likely_faults([check(name) for name in names], monitor_of(simulate(20)), OVERSIZE)[0]
    assert fault.finding == finding
    assert words in fault.sentence


def test_faults_are_named_without_a_monitor() -> None:
    assert likely_faults([check("no_dp")], None, OVERSIZE)[0].finding == "no_dp"
    assert likely_faults([check("accounting")], None, OVERSIZE)[0].finding == "accounting"


def test_clipping_is_named_before_noise() -> None:
    monitor = monitor_of(simulate(100, noise=0.5, shift=3.0))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert {c.name for c in found} >= {"noise", "sensitivity"}
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "sensitivity"


def test_tensors_that_clipping_misses_are_named() -> None:
    shift = [1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]
    monitor = monitor_of(simulate(40, shift=shift))
    found = [c for c in monitor.results() if c.status == "violated"]
    fault = likely_faults(found, monitor, OVERSIZE)[0]
    assert fault.sentence.startswith(
        "clipping misses some tensors: `Dirac(fc.bias)`, `BlockPair(2 tensors)` passed"
    )


@pytest.mark.parametrize("seed", range(4))
def test_clipping_per_tensor_is_named_though_pairs_pass_with_more_as_well(seed: int) -> None:
    shift = [1.0, 4.0, 1.0, 2.0**0.5, 1.0, 1.0, 4.0, 1.0]
    monitor = monitor_of(simulate(30, seed=seed, shift=shift))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping per tensor:")


@pytest.mark.parametrize("seed", range(4))
def test_a_norm_that_is_too_large_everywhere_is_not_called_clipping_per_tensor(seed: int) -> None:
    monitor = monitor_of(simulate(30, seed=seed, shift=2.0))
    fault = likely_faults([check("sensitivity")], monitor, OVERSIZE)[0]
    assert fault.sentence.startswith("clipping norm too large:")


def test_named_finding_is_among_the_violated_ones() -> None:
    for fault in ({"noise": 0.5}, {"shift": 9.0}, {"reuse": "same"}, {"reuse": "broadcast"}):
        monitor = monitor_of(simulate(80, data=0.1, **fault))  # type: ignore[arg-type]
        found = [c for c in monitor.results() if c.status == "violated"]
        assert likely_faults(found, monitor, OVERSIZE)[0].finding in {c.name for c in found}


def test_noise_and_clipping_that_err_together_lose_no_privacy() -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    found = [c for c in monitor.results() if c.status == "violated"]
    names = {c.name for c in found}
    # Coordinates that differ by 0.8 times the claim do so because the noise is that small.
    assert names == {"noise", "noise.tensor", "noise.step", "noise.canary", "reuse.broadcast"}
    assert monitor.reuse.residual_ratio("reuse.broadcast") == pytest.approx(0.8, abs=0.05)
    assert loses_no_privacy(found, monitor)


@pytest.mark.parametrize("reuse", ["broadcast", "pair"])
def test_noise_that_is_shared_within_a_step_is_never_said_to_lose_no_privacy(reuse: str) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.5, reuse=reuse))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert f"reuse.{reuse}" in {c.name for c in found}
    assert not loses_no_privacy(found, monitor)


@pytest.mark.parametrize(
    "fault",
    [
        {"noise": 0.8},
        {"noise": 0.8, "shift": 0.9},
        {"noise": [0.8, 0.8, 0.4], "shift": 0.8},
        {"noise": 0.8, "shift": 1.2},
    ],
)
def test_noise_below_the_shift_does_lose_privacy(fault: dict[str, object]) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, **fault))  # type: ignore[arg-type]
    found = [c for c in monitor.results() if c.status == "violated"]
    assert found
    assert not loses_no_privacy(found, monitor)


def test_a_signal_above_the_noise_by_little_is_proved_in_a_long_run_to_lose_privacy() -> None:
    # An upper limit of the shift over the noise may be 1.05: it is not proved to be above 1.
    monitor = monitor_of(simulate(1200, sigma=0.05, noise=0.8, shift=0.83))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert monitor.sensitivity.shift_upper < 1.05 * float(monitor.witness_noise.ratios().min())
    assert monitor.signal_over_noise(SIGNIFICANCE).ratio_lower > 1
    assert not loses_no_privacy(found, monitor)


def test_large_clipping_whose_finding_is_allowed_is_named_where_the_run_leaks_more() -> None:
    monitor = monitor_of(simulate(100, shift=4.0))
    fault = likely_faults([check("epsilon")], monitor, OVERSIZE)[0]
    assert fault.finding == "epsilon"
    assert "clipping norm too large" in fault.sentence


def test_other_findings_are_never_said_to_lose_no_privacy() -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    found = [c for c in monitor.results() if c.status == "violated"]
    assert not loses_no_privacy([*found, check("gradient_replaced")], monitor)


def test_optimizer_without_dp_is_named() -> None:
    assert no_dp_result(3, 0, "Adam").status == "violated"
    assert "Adam took 3 steps" in no_dp_result(3, 0, "Adam").message
    assert no_dp_result(0, 0, "").status == "not_run"
    assert no_dp_result(0, 5, "").status == "ok"


def test_replaced_gradients_are_counted() -> None:
    monitor = monitor_of(simulate(10, replaced=[2, 5]))
    assert "in 2 of 10 steps" in by_name(monitor)["gradient_replaced"].message
    assert violated(monitor) == {"gradient_replaced"}


@pytest.mark.parametrize("lag", [5, 16])
def test_small_noise_that_comes_back_is_named_re_used_and_never_harmless(lag: int) -> None:
    monitor = monitor_of(simulate(400, sigma=0.5, noise=0.8, shift=0.7, reuse=f"lag {lag}"))
    found = [check for check in monitor.results() if check.status == "violated"]
    assert likely_faults(found, monitor, OVERSIZE)[0].finding == "reuse.lag"
    assert not loses_no_privacy(found, monitor)


# ------------------------------------------------------------------ the list


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
def test_faults_are_ranked_and_what_they_entail_is_left_out(
    fault: dict[str, Any], expected: list[str], seed: int
) -> None:
    record = simulate(80, seed=seed, **{"data": 0.0, **fault})
    assert names(faults_of(record)) == expected
    assert names(verdict_of(record).faults) == expected
    assert verdict_of(record).fault == faults_of(record)[0].sentence


def test_naming_twice_gives_the_same_list() -> None:
    record = simulate(80, noise=0.6, shift=3.0)
    assert faults_of(record) == faults_of(record)


def test_every_fault_says_what_to_look_at_and_rests_on_a_violated_finding() -> None:
    for fault in ({"noise": 0.5}, {"shift": 9.0}, {"reuse": "same"}, {"noise": [1, 1, 0]}):
        record = simulate(80, **fault)  # type: ignore[arg-type]
        for likely in faults_of(record):
            assert likely.look_at
            assert likely.evidence
            assert likely.finding in violated(monitor_of(record))


def test_place_and_evidence_are_those_of_the_tensors_that_lack_noise() -> None:
    record = simulate(80, noise=[1.0, 0.4, 1.0])
    fault = faults_of(record)[0]
    assert fault.place.parameters == (TENSORS[1],)
    assert fault.finding == "noise.tensor"
    assert (
        fault.place.step == by_name(monitor_of(record))["noise.tensor"].evidence["violated_at_step"]
    )
    assert fault.evidence["sd_ratio"] == {TENSORS[1]: pytest.approx(0.4, abs=0.03)}
    assert fault.evidence["median_of_the_others"] == pytest.approx(1.0, abs=0.05)


def test_place_and_evidence_are_those_of_the_canaries_that_are_not_clipped() -> None:
    shift = [1.0, 1.4, OVERSIZE, OVERSIZE, 1.0, 1.0, 1.4, 1.0]
    fault = faults_of(simulate(40, shift=shift))[0]
    # A pair over two tensors does not tell which ones in its label.
    assert fault.place.parameters == ("fc.bias",)
    assert fault.evidence["unclipped_canaries"] == ["Dirac(fc.bias)", "BlockPair(2 tensors)"]
    assert fault.place.step is not None
    assert fault.place.step < 20


def test_evidence_of_a_clipping_fault_is_its_shift() -> None:
    fault = faults_of(simulate(150, shift=2.0))[0]
    assert fault.evidence["shift"] == pytest.approx(2.0, abs=0.2)
    assert 1.0 < fault.evidence["shift_lower"] < fault.evidence["shift"]


def test_evidence_of_a_cycle_is_its_length() -> None:
    fault = faults_of(simulate(80, reuse="lag 5", data=0.1))[0]
    assert fault.evidence["lag"] == 5
    assert fault.evidence["difference_ratio"] == pytest.approx(0.1, abs=0.02)
    # A lag of 5 shows from the sixth step on.
    assert fault.place.step is not None
    assert 5 <= fault.place.step < 16


def test_the_first_replaced_step_is_the_place() -> None:
    fault = faults_of(simulate(10, replaced=[4, 7]))[0]
    assert (fault.place, fault.evidence) == (Place(step=4), {"replaced": 2, "steps": 10})


def test_noise_that_is_small_on_the_canaries_alone_is_measured_there() -> None:
    record = simulate(200, noise=1.0, canary_noise=0.5)
    assert violated(monitor_of(record)) >= {"noise.canary"}
    fault = next(f for f in faults_of(record) if f.name == "noise_too_small")
    assert fault.finding == "noise.canary"
    assert fault.evidence["sd_ratio"] == pytest.approx(0.47, abs=0.05)  # the quietest of eight


# ------------------------------------------------------------------ factors of known mistakes


@pytest.mark.parametrize("processes", [2, 4])
def test_noise_averaged_over_processes_is_named_where_there_are_some(processes: int) -> None:
    record = simulate(80, noise=1 / math.sqrt(processes))
    several = faults_of(record, processes=processes)
    assert names(several) == ["noise_averaged_over_processes", "noise_too_small"]
    assert several[0].evidence["processes"] == processes
    assert f"the number of processes, {processes}" in several[0].sentence
    assert names(faults_of(record)) == ["noise_too_small"]
    assert names(faults_of(record, processes=16))[0] == "noise_too_small"


@pytest.mark.parametrize(("norm", "named"), [(0.6, True), (0.9, False), (2.0, False)])
def test_a_clipping_norm_that_comes_in_twice_is_named_by_its_size(norm: float, named: bool) -> None:
    made, entries = simulate(80, noise=0.6)
    entries["max_grad_norm"] = norm
    expected = ["noise_of_squared_norm"] * named + ["noise_too_small"]
    assert names(faults_of((made, entries))) == expected


def test_a_noise_multiplier_that_comes_in_twice_is_named_by_its_size() -> None:
    faults = faults_of(simulate(80, sigma=0.6, noise=0.6))
    assert names(faults) == ["noise_of_squared_multiplier", "noise_too_small"]
    assert faults[0].evidence["noise_multiplier"] == 0.6
    assert names(faults_of(simulate(80, sigma=0.9, noise=0.6))) == ["noise_too_small"]


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (4.0, ["record_counts_twice", "clipping_norm_too_large"]),
        (2.5, ["clipping_norm_too_large"]),
    ],
)
@pytest.mark.parametrize("label", ["Mislabeled(input)", "Blank(input, sampling_rate=0.25)"])
def test_an_input_canary_of_a_whole_number_of_norms_counts_so_many_times(
    shift: float, expected: list[str], label: str
) -> None:
    made, entries = simulate(300, shift=shift, sigma=0.5)
    made = dataclasses.replace(made, canaries=(label,) * len(made.canaries))
    faults = faults_of((made, entries))
    assert names(faults) == expected
    assert faults[0].sentence.startswith(
        "a record counts more than once: it adds about 4 times"
        if shift == 4.0
        else "clipping norm too large: a record adds 2."
    )


# ------------------------------------------------------------------ checks that see it for certain


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
def test_a_finding_gives_its_fault_by_name_and_evidence_alone(
    finding: str, name: str, words: str
) -> None:
    seen = check(finding, first_step=7, process=1, parameters=["fc.bias"], matches=3)
    (fault,) = faults_of(simulate(20), seen)
    assert (fault.name, fault.finding) == (name, finding)
    assert fault.sentence.startswith(words)
    assert fault.place == Place(("fc.bias",), 7, 1)
    assert fault.evidence == {"matches": 3}
    assert fault.look_at


def test_division_by_the_realised_batch_explains_noise_that_is_a_little_small() -> None:
    record = simulate(80, noise=0.83)
    assert names(faults_of(record, check("batch_normalised"))) == ["divides_by_realised_batch"]
    faults = faults_of(simulate(80, noise=0.2), check("batch_normalised"), check("sensitivity"))
    assert names(faults) == ["divides_by_realised_batch", "noise_too_small"]


def test_noise_that_is_shared_in_a_step_is_not_taken_for_another_divisor() -> None:
    seen = check("batch_normalised")
    faults = faults_of(simulate(80, reuse="broadcast", data=0.1), seen)
    assert names(faults) == ["one_value_for_all_coordinates"]


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0.45, ["noise_too_small"]), (0.01, ["few_seeds", "noise_too_small"])],
)
def test_noise_that_is_too_small_is_not_taken_for_few_seeds(
    difference: float, expected: list[str]
) -> None:
    seen = check("reuse.recurrence", difference_ratio=difference)
    assert names(faults_of(simulate(80, noise=0.5), seen)) == expected


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [("", ["few_seeds"]), ("lag 3", ["noise_in_a_cycle"]), ("same", ["same_noise_at_every_step"])],
)
def test_a_pair_that_happens_to_lie_at_a_lag_is_not_taken_for_a_cycle(
    reuse: str, expected: list[str]
) -> None:
    """With few seeds some step soon repeats one of the last 32, which `reuse.lag` flags as well."""
    seen = [check("reuse.lag"), check("reuse.recurrence", difference_ratio=0.0)]
    assert names(faults_of(simulate(80, reuse=reuse), *seen)) == expected


@pytest.mark.parametrize(
    ("alike_at", "expected"),
    [(151, ["noise_missing_in_steps"]), (90, ["few_seeds", "noise_missing_in_steps"])],
)
def test_steps_without_noise_are_not_taken_for_few_seeds(
    alike_at: int, expected: list[str]
) -> None:
    found = [
        check("noise.step", violated_at_step=150),
        check("reuse.recurrence", violated_at_step=alike_at),
    ]
    assert names(likely_faults(found, monitor_of(simulate(20)), OVERSIZE)) == expected


@pytest.mark.parametrize("fault", [{"noise": 0.5}, {"reuse": "lag 5"}, {"noise": [1, 1, 0]}])
def test_the_shape_of_noise_that_is_small_or_re_used_is_no_fault_of_its_own(
    fault: dict[str, Any],
) -> None:
    faults = faults_of(simulate(80, **fault), check("noise.shape"))
    assert "noise_of_another_shape" not in names(faults)


def test_a_record_that_is_not_finite_comes_before_all_but_a_missing_dp_sgd() -> None:
    certain = ["gradient_replaced", "no_dp", "finite"]
    others = ["reuse.resume", "coupling", "sensitivity", "noise", "batch_normalised", "accounting"]
    monitor = monitor_of(simulate(80, noise=0.5))
    faults = likely_faults([check(n) for n in [*others, *reversed(certain)]], monitor, OVERSIZE)
    assert names(faults)[:3] == ["gradient_replaced", "no_dp", "not_finite"]


def test_few_seeds_are_not_seen_in_noise_that_is_missing() -> None:
    seen = check("reuse.recurrence")
    assert names(faults_of(simulate(80, noise=0.0, data=0.05), seen))[0] == "no_noise"
    assert names(faults_of(simulate(80, noise=0.7), seen)) == ["few_seeds", "noise_too_small"]


@pytest.mark.parametrize(
    ("by_removal", "name"),
    [
        ({}, "wrong_accounting"),
        ({"epsilon_by_removal": 7.9}, "replacement_accounted_as_removal"),
        ({"epsilon_by_removal": 15.0}, "wrong_accounting"),
    ],
)
def test_an_epsilon_of_removed_records_is_told_from_too_many_steps(
    by_removal: dict[str, float], name: str
) -> None:
    seen = check("accounting", epsilon_spent=16.0, epsilon_claimed=8.0, **by_removal)
    assert names(faults_of(simulate(20), seen)) == [name]


def test_a_finding_that_no_rule_knows_is_told_in_its_own_words() -> None:
    unknown = CheckResult("new.check", "mechanism", "violated", "it is odd", "mend it")
    (fault,) = likely_faults([unknown], None, OVERSIZE)
    assert (fault.name, fault.sentence, fault.look_at) == ("new_check", "it is odd", "mend it")


def test_faults_of_the_run_stand_below_those_of_the_mechanism() -> None:
    record = simulate(80, noise=0.6)
    run = [check("accounting"), check("sampling.rate")]
    expected = ["noise_too_small", "sampled_too_often", "wrong_accounting"]
    assert names(faults_of(record, *run)) == expected


def test_faults_of_one_of_several_optimizers_say_which() -> None:
    verdicts = [verdict_of(simulate(60, noise=noise)) for noise in (1.0, 0.5)]
    labels = ["optimizer 1 (a)", "optimizer 2 (b)"]
    chosen = worst(verdicts, labels, [], broken=labels[1:])
    assert [fault.place.optimizer for fault in chosen.faults] == ["optimizer 2 (b)"]
    assert chosen.fault == verdicts[1].fault
