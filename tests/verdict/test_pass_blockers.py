from __future__ import annotations

import dataclasses
import math

import pytest
from simulated_record import monitor_of, simulate, verdict_of

from lightning_audit.verdict.judge import Resolution, blockers_of_optimizer, seen_of


@pytest.mark.parametrize("noise", [0.0, 1.0, -1.0, math.nan])
def test_resolution_names_a_noise_outside_the_unit_interval(noise: float) -> None:
    with pytest.raises(ValueError, match=r"^noise="):
        Resolution(noise=noise)


@pytest.mark.parametrize("sensitivity", [1.0, 0.5, math.nan])
def test_resolution_names_a_sensitivity_of_at_most_one(sensitivity: float) -> None:
    with pytest.raises(ValueError, match=r"^sensitivity="):
        Resolution(sensitivity=sensitivity)


def test_dead_canary_is_inconclusive_with_its_reason() -> None:
    verdict = verdict_of(simulate(200, shift=0.0))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any("the canaries' signal was not detected" in item for item in verdict.pass_blockers)


def test_clipping_to_less_than_half_is_inconclusive_too() -> None:
    assert verdict_of(simulate(200, shift=0.3)).outcome == "INCONCLUSIVE"


def test_the_signal_is_held_to_the_share_that_is_known_to_be_released() -> None:
    monitor = monitor_of(simulate(400, shift=0.3))
    seen = seen_of(monitor, {}, 1000.0)
    judged = [
        blockers_of_optimizer(dataclasses.replace(seen, released=share), Resolution())
        for share in (1.0, 0.3)
    ]
    found = [[b for b in each if "the canaries' signal was not detected" in b] for each in judged]
    assert [len(each) for each in found] == [1, 0]


def test_what_else_is_missing_stands_in_the_way_of_a_pass() -> None:
    verdict = verdict_of(simulate(60), pass_blockers=["the training has not ended"])
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == ("the training has not ended",)


def test_steps_without_noise_are_inconclusive_and_counted() -> None:
    made, entries = simulate(60)
    entries["noise_multiplier"][50:] = 0.0
    verdict = verdict_of((made, entries))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any(
        m.startswith("10 of 60 steps have noise_multiplier 0") for m in verdict.pass_blockers
    )
