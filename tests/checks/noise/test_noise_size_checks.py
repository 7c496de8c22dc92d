from __future__ import annotations

from lightning_audit.checks.base.registry import REGISTRY, group
from lightning_audit.checks.noise import noise_size_checks


def test_a_pass_rests_on_all_four_and_three_tell_the_size() -> None:
    names = [check.name for check in noise_size_checks.CHECKS]
    assert group("noise") == tuple(names)
    assert all(REGISTRY[name].must_run and REGISTRY[name].doubtful for name in names)
    assert [c.name for c in noise_size_checks.CHECKS if c.size_of is None] == ["noise.step"]
