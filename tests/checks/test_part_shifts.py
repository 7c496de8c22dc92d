from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_record import (
    header,
)

from lightning_audit.checks.clipping import SensitivityCheck
from lightning_audit.record.store import EARLIER, INJECTED, restore, snapshot


def check_of_parts(
    steps: int, earlier: float, last: float, seed: int = 0, split: float = 0.5
) -> SensitivityCheck:
    """The check after steps whose canaries add so much in an earlier and in the last part."""
    made, rng = header(), np.random.default_rng(seed)
    check = SensitivityCheck(made, 1e-3)
    for step in range(steps):
        entry = np.zeros((), dtype=made.dtype)
        entry["step"], entry["scale"], entry["noise_multiplier"] = step, 16.0, 1.0
        entry["canaries"] = EARLIER if rng.random() < split else INJECTED
        coins = rng.integers(0, 2, len(made.canaries))
        shift = earlier if entry["canaries"] == EARLIER else last
        entry["coins"] = coins
        entry["readings"] = shift * coins + rng.standard_normal(len(coins))
        check.update(entry[()])
    return check


@pytest.mark.parametrize(("earlier", "last"), [(0.0, 2.0), (2.0, 0.0)])
def test_parts_that_are_right_on_average_alone_are_found(earlier: float, last: float) -> None:
    check = restore(snapshot(check_of_parts(100, earlier, last)))
    assert check.evidence.violated
    assert abs(check.shift - 1.0) < 0.5
    assert check.largest_shift == pytest.approx(2.0, abs=0.4)
    (result,) = check.results()
    assert result.evidence["shift_by_part"]["last"] == pytest.approx(last, abs=0.4)
    assert result.evidence["shift_by_part"]["earlier"] == pytest.approx(earlier, abs=0.4)


def test_sound_parts_are_not_accused() -> None:
    found = [check_of_parts(100, 1.0, 1.0, seed) for seed in range(20)]
    assert max(check.evidence.log_e for check in found) < 7.0
    assert not any(check.parts is not None and check.parts.differ for check in found)


def test_the_stake_is_shared_from_the_first_split_batch_on() -> None:
    whole, split = (check_of_parts(60, 2.0, 2.0, split=share) for share in (0.0, 0.5))
    assert whole.parts is None
    assert whole.evidence.violated
    assert split.evidence.violated
    # A fault of all parts is found by the bet on all of them, for half of its stake.
    assert split._bet is not None
    assert split.evidence.log_e > float(split._bet.log_e) - math.log(2.0) - 1e-9
