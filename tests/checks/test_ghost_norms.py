from __future__ import annotations

import numpy as np

from lightning_audit.checks.clipping import clipping_norm_result


def test_a_clipping_norm_that_is_larger_in_the_module_is_wrong_and_a_smaller_one_is_not() -> None:
    assert clipping_norm_result(3, 1.0, (1.0, 1.0)).status == "ok"
    assert clipping_norm_result(3, 1.0, (1.0, 2.0)).status == "ok"
    single = float(np.float32(0.1))  # above .1, as a tensor rounds it
    assert clipping_norm_result(3, 1.0, (single, 0.1)).status == "ok"
    message = clipping_norm_result(3, 1.2, (1.0, 2.0)).message
    assert message.startswith("a sample's gradient norm is 1.2 times")
    found = clipping_norm_result(0, 0.0, (1.0, 0.5))
    assert (found.status, found.evidence["module_norm"]) == ("violated", 1.0)
    assert "module.max_grad_norm=1, and the noise is made for optimizer.max_grad_norm=0.5" in (
        found.message
    )
