from __future__ import annotations

import math

from simulated_record import (
    monitor_of,
    simulate,
)

from lightning_audit.accounting.history import Phase, StepHistory


def test_history_holds_the_phases_in_the_order_of_their_first_steps() -> None:
    sigma = [2.0] * 3 + [1.0] * 2 + [2.0]
    assert monitor_of(simulate(6, sigma=sigma)).history == (
        Phase(2.0, 0.01, 4),
        Phase(1.0, 0.01, 2),
    )


def test_unknown_sample_rates_are_one_phase() -> None:
    assert monitor_of(simulate(5, sample_rate=math.nan)).history == (Phase(1.0, None, 5),)


def test_a_rate_at_which_no_record_joins_is_unknown() -> None:
    claims = StepHistory()
    claims.add(1.0, 0.0)
    assert claims.runs() == (Phase(1.0, None, 1),)
