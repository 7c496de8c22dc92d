from __future__ import annotations

from lightning_audit.checks.update import no_dp_result


def test_an_optimizer_beside_a_private_one_may_be_allowed_and_one_alone_may_not() -> None:
    assert "Allow('no_dp', optimizer=..., reason='...')" in no_dp_result(3, 5, "Adam").advice
    assert "Allow" not in no_dp_result(3, 0, "Adam").advice
