from __future__ import annotations

from lightning_audit.checks.check import REGISTRY, Check, entailed, group, shares
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
)
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import likely_faults

ALL = (
    *(NOISE, NOISE_TENSOR, NOISE_STEP, NOISE_CANARY),
    *(NOISE_SHAPE, NOISE_ENTRIES, NOISE_WHOLE, BATCH_NORMALISED, NOISE_MEAN, NOISE_EXCESS),
)


def names(*checks: Check) -> set[str]:
    return {check.name for check in checks}


def test_every_optimizer_has_each_of_them_and_all_go_by_e_values() -> None:
    assert all(check.each and check.always and check.share > 0 for check in ALL)
    assert len({check.name for check in ALL}) == len(ALL)
    assert all(REGISTRY[check.name] is check for check in ALL)


def test_those_of_its_size_must_run_and_may_be_undecided_and_those_that_warn_fail_nothing() -> None:
    assert set(group("noise")) == names(NOISE, NOISE_TENSOR, NOISE_STEP, NOISE_CANARY)
    sized = {check.name for check in ALL if check.size_of == "noise"}
    assert sized == names(NOISE, NOISE_TENSOR, NOISE_CANARY)  # a few steps tell no size
    for check in ALL:
        assert check.must_run == (check.group == "noise")
        assert check.doubtful == (not check.warns)
    assert set(shares(warns=True)) == names(NOISE_MEAN, NOISE_EXCESS)


def test_dividing_by_the_batch_is_named_and_explains_what_follows_from_it() -> None:
    violated = [
        CheckResult(name, "mechanism", "violated", "wrong", log_e_value=99.0, share=0.01)
        for name in (BATCH_NORMALISED.name, NOISE_SHAPE.name)
    ]
    (fault,) = likely_faults(violated, None, 1.0)
    assert (fault.name, fault.finding) == ("divides_by_realised_batch", BATCH_NORMALISED.name)
    (rule,) = BATCH_NORMALISED.faults
    assert {NOISE_SHAPE.name, "sensitivity", "reuse.lag", "epsilon"} <= set(entailed(rule))
    assert NOISE.name not in entailed(rule)


def test_too_loud_noise_may_be_told_without_an_e_value() -> None:
    assert NOISE_EXCESS.judged({"processes": 2}, "", "too much", "less").status == "warned"


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


def test_a_tensor_with_too_little_noise_is_told_from_single_entries_without() -> None:
    entries = (NOISE_ENTRIES, NOISE_SHAPE)
    assert told(0.5, *entries) == ["noise_too_small_over_a_tensor"]
    assert told(0.99, *entries) == ["noise_missing_at_entries"]
    assert told(0.99) == ["noise_too_small_over_a_tensor"]


def test_a_pass_requires_all_four_in_the_order_of_the_registry() -> None:
    assert group("noise") == (NOISE.name, NOISE_TENSOR.name, NOISE_STEP.name, NOISE_CANARY.name)
