"""Comparison of an epsilon with a claimed one, up to the error of composition."""

from __future__ import annotations

#: Relative error of a composition: its grid is halved until epsilon moves by less than this.
COMPOSITION_ERROR = 0.005

#: Resolution of a composition's grid for an epsilon of practically zero.
RESOLUTION = 1e-6

_LEAST, _MOST = 0.01, 0.02


def exceeds(epsilon: float, claimed_epsilon: float, error: float = COMPOSITION_ERROR) -> bool:
    """Return whether ``epsilon`` is above the claim by more than the error of composition.

    The margin is 1 % of the claim, or twice the error if that is more, and at most 2 %. It is at
    least a millionth, which is what a composition resolves.

    Args:
        epsilon: Epsilon to compare, >= 0.
        claimed_epsilon: Claimed epsilon, >= 0.
        error: Relative error of ``epsilon``; by default that of one composition.

    Returns:
        True if epsilon exceeds the claim.

    Example:
        >>> exceeds(1.009, 1.0), exceeds(1.011, 1.0), exceeds(0.0102, 0.01)
        (False, True, True)
    """
    share = min(max(_LEAST, 2.0 * error), _MOST)
    return epsilon > claimed_epsilon + max(share * claimed_epsilon, RESOLUTION)
