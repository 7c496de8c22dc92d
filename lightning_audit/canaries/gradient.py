"""Gradient canaries: unit directions over the trainable tensors.

A canary states its tensor; `lightning_audit.canaries.placement` turns a list of canaries into
orthonormal directions of one step. What each kind detects:

- `Dirac`: one coordinate. A fixed one detects noise that repeats; in the last bias, noise or
  clipping that skips a small tensor; a moving one, a fault of one particular coordinate.
- `Spread`: one coordinate in every tensor. Detects per-tensor clipping accounted as flat clipping.
- `BlockPair`: plus and minus in two tensors of one shape. Detects one noise key for several
  tensors.
- `Constant`, `Random`: dense directions, as in Tight Auditing; they cost a full gradient row.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names that select a tensor and may be given instead of a parameter's name.
LARGEST = "largest"
LAST_BIAS = "last_bias"
#: Selects any of the tensors, another one at every step.
EACH = "each"


class GradientCanary:
    """Base class of all gradient canaries.

    This class is not a dataclass itself: jsonargparse, and so a LightningCLI, assumes that a
    dataclass has no subclasses, and would refuse the ``class_path`` of one.

    Attributes:
        moving: Whether the direction is drawn again at every step, from the audit's own generator.
    """

    moving: bool


@dataclass(frozen=True)
class Dirac(GradientCanary):
    """One coordinate of one tensor.

    Args:
        moving: Whether to draw the coordinate again at every step.
        tensor: A parameter's name, ``"largest"`` or ``"last_bias"``. A moving canary may also use
            ``"each"``: a tensor that is drawn again at every step.

    Raises:
        ValueError: If ``tensor="each"`` without ``moving=True``.

    Example:
        >>> Dirac(tensor="last_bias")
        Dirac(moving=False, tensor='last_bias')
    """

    moving: bool = False
    tensor: str = LARGEST

    def __post_init__(self) -> None:
        if self.tensor == EACH and not self.moving:
            raise ValueError("tensor='each' needs moving=True; or name one tensor.")


@dataclass(frozen=True)
class Spread(GradientCanary):
    """One coordinate in every trainable tensor, with equal weights.

    Args:
        moving: Whether to draw the coordinates again at every step.
    """

    moving: bool = False


@dataclass(frozen=True)
class BlockPair(GradientCanary):
    """Plus and minus on one flat coordinate of the two largest tensors of the same shape.

    If no two tensors have the same shape, it is a `Spread`.

    Args:
        moving: Whether to draw the coordinate again at every step.
    """

    moving: bool = False


@dataclass(frozen=True)
class Constant(GradientCanary):
    """All coordinates of one tensor, with equal weights.

    Args:
        moving: Must be False, because nothing is drawn.
        tensor: A parameter's name, ``"largest"`` or ``"last_bias"``.

    Raises:
        ValueError: If ``moving=True``.
    """

    moving: bool = False
    tensor: str = LARGEST

    def __post_init__(self) -> None:
        if self.moving:
            raise ValueError("moving=True must be False for Constant; use Random(moving=True).")


@dataclass(frozen=True)
class Random(GradientCanary):
    """A random direction over one tensor, or over all of them.

    Args:
        moving: Whether to draw the direction again at every step.
        tensor: A parameter's name, ``"largest"``, ``"last_bias"``, or None for all tensors.
    """

    moving: bool = False
    tensor: str | None = None


def default_mix(num_canaries: int) -> tuple[GradientCanary, ...]:
    """Return the canaries that an audit uses if none are named, the most useful ones first.

    The full mix has eight: three fixed `Dirac` in the largest tensor, one in the last bias, one
    that moves between tensors, two `Spread` and a `BlockPair`. A smaller number takes the first
    ones, a larger number repeats the list.

    Args:
        num_canaries: Number of canaries, >= 0.

    Returns:
        ``num_canaries`` canaries.

    Example:
        >>> default_mix(2)
        (Dirac(moving=False, tensor='largest'), Spread(moving=False))
    """
    mix = (
        Dirac(),
        Spread(),
        Dirac(tensor=LAST_BIAS),
        BlockPair(),
        Dirac(moving=True, tensor=EACH),
        Dirac(),
        Spread(),
        Dirac(),
    )
    return tuple(mix[i % len(mix)] for i in range(num_canaries))
