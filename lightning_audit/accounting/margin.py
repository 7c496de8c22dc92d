"""When an epsilon is above a claimed one: by more than two compositions of one run differ."""

from __future__ import annotations

#: Relative error of a composition: its grid is halved until epsilon moves by less than this.
COMPOSITION_ERROR = 0.005

#: What a composition's grid resolves of an epsilon of practically zero.
RESOLUTION = 1e-6

_LEAST, _MOST = 0.01, 0.02


def exceeds(epsilon: float, claimed_epsilon: float, error: float = COMPOSITION_ERROR) -> bool:
    """Whether ``epsilon`` is above the claim by more than composition's own inaccuracy.

    That is 1 % of the claim, or twice the error where that is more, and 2 % at most. No claim is so
    small that more is allowed, up to the millionth that a composition resolves.

    Args:
        epsilon: what is compared, >= 0.
        claimed_epsilon: the claim, >= 0.
        error: relative error of ``epsilon``; that of one composition unless stated.

    Example:
        >>> exceeds(1.009, 1.0), exceeds(1.011, 1.0), exceeds(0.0102, 0.01)
        (False, True, True)
    """
    share = min(max(_LEAST, 2.0 * error), _MOST)
    return epsilon > claimed_epsilon + max(share * claimed_epsilon, RESOLUTION)
