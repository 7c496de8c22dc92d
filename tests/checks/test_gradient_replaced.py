from __future__ import annotations

from simulated_record import monitor_of, simulate, verdict_of, violated


def test_replaced_gradient_is_flagged_by_one_step_and_named() -> None:
    record = simulate(60, replaced=[7])
    assert violated(monitor_of(record)) == {"gradient_replaced"}
    verdict = verdict_of(record)
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "mechanism")
    assert verdict.fault.startswith("gradient replaced")
    assert "#313" in verdict.advice
