"""When an epsilon is above a claimed one: by more than two compositions of one run differ."""

from __future__ import annotations

#: A coarse composition grid overstates epsilon a little; a correct run must not fail for it.
_RELATIVE, _ABSOLUTE = 1.01, 0.01


def exceeds(epsilon: float, claimed_epsilon: float) -> bool:
    """Whether ``epsilon`` is above the claim by more than composition's own inaccuracy."""
    return epsilon > _RELATIVE * claimed_epsilon + _ABSOLUTE
