"""A training that is stopped again and again is accused no more often than the level says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from noise_steps import noise_step
from stages import staged

from lightning_audit.checks.check import evidence_in
from lightning_audit.checks.noise import SingleEntries
from lightning_audit.checks.randomness import NoiseForecast

LEVEL, STEPS, ENTRIES = 0.05, 6, 32


def flagged(
    kind: type[Any], share: float, segments: int, rng: np.random.Generator, quiet: int = 0
) -> bool:
    """Whether any segment flags at the level; in segment ``quiet`` an entry has no noise."""
    for k in range(1, segments + 1):
        check = kind(LEVEL / share)  # the share of it is the level
        (test,) = evidence_in(check)
        test.segment = k
        for step in range(STEPS * (10 if k == quiet else 1)):
            noise = rng.normal(size=ENTRIES)
            noise[0] *= k != quiet
            noise *= 1.0 if kind is SingleEntries or k != quiet else 0.1
            check.update(noise_step(noise, step))
        if test.violated:
            return True
    return False


@pytest.mark.parametrize("kind", [SingleEntries, NoiseForecast])
@pytest.mark.parametrize(
    ("segments", "runs"), staged(quick=[(10, 40)], heavy=[(40, 200)], nightly=[(100, 1000)])
)
def test_many_segments_flag_within_the_level(kind: type[Any], segments: int, runs: int) -> None:
    rng = np.random.default_rng(1)
    found = sum(flagged(kind, 0.005, segments, rng) for _ in range(runs))
    assert found <= LEVEL * runs


@pytest.mark.parametrize("kind", [SingleEntries, NoiseForecast])
def test_a_fault_of_the_third_segment_is_found(kind: type[Any]) -> None:
    assert flagged(kind, 0.005, 3, np.random.default_rng(2), quiet=3)
