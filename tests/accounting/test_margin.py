from __future__ import annotations

import math

import pytest

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase


@pytest.mark.parametrize("claimed", [0.0, 0.1, 1.0, 8.0, 100.0])
def test_a_claim_is_exceeded_by_more_than_a_percent_and_a_hundredth(claimed: float) -> None:
    most = 1.01 * claimed + 0.01
    assert not exceeds(claimed, claimed)
    assert not exceeds(most, claimed)
    assert exceeds(math.nextafter(most, math.inf), claimed)
    assert exceeds(math.inf, claimed)


def test_the_same_steps_on_another_grid_do_not_exceed_themselves() -> None:
    steps = [Phase(1.0, 0.01, 1000)]
    fine = epsilon_of_history(steps, 1e-5)
    assert not exceeds(epsilon_of_history(steps, 1e-5, grid=1e-3), fine)
    assert exceeds(epsilon_of_history([Phase(1.0, 0.01, 1100)], 1e-5), fine)
