from __future__ import annotations

import numpy as np
import pytest
from noise_steps import noise_step

from lightning_audit.checks.probes import NoiseSeen, NoiseStep
from lightning_audit.checks.randomness import COMPARED, NoiseRestart
from lightning_audit.layout import FloatArray

ENTRIES = 256


def segments(
    seed: int, *, again: bool, alone: bool = True, data: float = 0.5, at: int = 40
) -> NoiseRestart:
    """The first segment, then a resumed one at a step, whose noise may start again."""
    first, rng = NoiseRestart(0.05), np.random.default_rng(seed)
    # The data of two early steps resemble each other.
    common = data * rng.normal(size=ENTRIES)
    noise = [rng.normal(size=ENTRIES) for _ in range(COMPARED)]

    def take(check: NoiseRestart, drawn: FloatArray, step: int) -> None:
        released = common + 0.3 * data * rng.normal(size=ENTRIES) + drawn
        seen = NoiseSeen(released, None, 1.0)
        check.update(NoiseStep(step, seen, drawn if alone else None))

    for step, drawn in enumerate(noise):
        take(first, drawn, step)
    then = NoiseRestart(0.05)
    then.resume(first.first, at)
    for step, drawn in enumerate(noise):
        take(then, drawn if again else rng.normal(size=ENTRIES), at + step)
    return then


def status(check: NoiseRestart) -> str:
    assert check.resumed
    return check.result("").status


@pytest.mark.parametrize(
    ("alone", "data"), [(True, 0.1), (True, 1.0), (True, 3.0), (False, 0.1), (False, 1.0)]
)
def test_noise_that_starts_again_is_found_by_what_the_first_steps_released(
    alone: bool, data: float
) -> None:
    assert status(segments(0, again=True, alone=alone, data=data)) == "violated"


@pytest.mark.parametrize("alone", [True, False])
def test_fresh_noise_is_accused_at_the_stated_rate_whatever_the_data(alone: bool) -> None:
    sizes = [0.1, 1.0, 3.0]
    found = [
        status(segments(seed, again=False, alone=alone, data=sizes[seed % 3])) == "violated"
        for seed in range(300)
    ]
    assert sum(found) == 0  # its share of .05 is 1e-4


def test_a_training_that_was_never_resumed_has_no_such_check() -> None:
    assert not NoiseRestart(0.05).resumed


def test_where_the_first_steps_were_not_read_it_has_not_run() -> None:
    check = NoiseRestart(0.05)
    check.resume({}, 40)
    check.update(noise_step(np.zeros(4), 40))
    assert status(check) == "not_run"
