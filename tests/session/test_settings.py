from __future__ import annotations

from typing import Any

import pytest

from lightning_audit import PrivacyClaim
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.session.settings import SessionSettings

OPTIMIZERS = StepClaim(noise_multiplier=1.0, max_grad_norm=2.0, scale=32.0, accumulated=4)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, OPTIMIZERS),
        ({"epsilon": 1.0, "delta": 1e-5}, OPTIMIZERS),
        ({"noise_multiplier": 3.0}, StepClaim(3.0, 2.0, 32.0, 4)),
        ({"max_grad_norm": 0.5}, StepClaim(1.0, 0.5, 32.0, 4)),
        # Of one batch: a step adds up several.
        ({"expected_batch_size": 16}, StepClaim(1.0, 2.0, 64.0, 4)),
    ],
)
def test_what_is_stated_stands_before_what_the_optimizer_says(
    stated: dict[str, Any] | None, expected: StepClaim
) -> None:
    claim = None if stated is None else PrivacyClaim(**stated)
    assert SessionSettings((), 1.0, None, 1e-3, claim).stated(OPTIMIZERS) == expected
