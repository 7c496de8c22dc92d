from __future__ import annotations

from opacus.optimizers import DPOptimizer

from lightning_audit.testing.faults import FAULTS


def test_settings_of_a_planted_fault_are_settings_of_the_private_optimizer() -> None:
    for fault in FAULTS.values():
        if fault.optimizer is not None:
            assert issubclass(fault.optimizer, DPOptimizer)
            assert set(fault.settings) <= {"noise_multiplier", "max_grad_norm"}
