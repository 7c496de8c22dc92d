"""Gradient canaries: unit directions over the trainable tensors.

A canary says where it lives; `lightning_audit.canaries.placement` turns a list of them into
directions of one step that are orthonormal. What each is for:

- `Dirac`: one coordinate. Fixed, it sees noise that repeats; in the last bias, noise or clipping
  that a small tensor escapes; moving, what happens to one chosen coordinate only.
- `Spread`: one coordinate in every tensor. Sees clipping per tensor accounted as flat.
- `BlockPair`: plus and minus in two tensors of one shape. Sees one noise key for several tensors.
- `Constant`, `Random`: dense directions, as in Tight Auditing; they cost a full row of gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names that stand for a tensor wherever a parameter's name may be given.
LARGEST = "largest"
LAST_BIAS = "last_bias"
#: Stands for any of the tensors, another one at every step.
EACH = "each"


class GradientCanary:
    """Base of all gradient canaries; those below are the kinds that there are.

    It is no dataclass itself: jsonargparse, and so a LightningCLI, takes a dataclass for the only
    one of its kind, and would refuse the ``class_path`` of a subclass.

    Attributes:
        moving: whether the direction is drawn anew at every step (from the audit's own generator).
    """

    moving: bool


@dataclass(frozen=True)
class Dirac(GradientCanary):
    """One coordinate of one tensor.

    Args:
        moving: draw the coordinate anew at every step.
        tensor: a parameter's name, ``"largest"``, ``"last_bias"``, or of a moving one ``"each"``:
            a tensor drawn anew at every step.

    Raises:
        ValueError: ``tensor="each"`` without ``moving=True``.

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
        moving: draw the coordinates anew at every step.
    """

    moving: bool = False


@dataclass(frozen=True)
class BlockPair(GradientCanary):
    """Plus and minus on one flat coordinate of the two largest tensors of the same shape.

    Where no two tensors have the same shape, it is a `Spread`.

    Args:
        moving: draw the coordinate anew at every step.
    """

    moving: bool = False


@dataclass(frozen=True)
class Constant(GradientCanary):
    """All coordinates of one tensor alike.

    Args:
        moving: not available, the direction has nothing to draw.
        tensor: a parameter's name, ``"largest"`` or ``"last_bias"``.

    Raises:
        ValueError: ``moving=True``.
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
        moving: draw the direction anew at every step.
        tensor: a parameter's name, ``"largest"``, ``"last_bias"``, or None for all tensors.
    """

    moving: bool = False
    tensor: str | None = None


def default_mix(num_canaries: int) -> tuple[GradientCanary, ...]:
    """The canaries that an audit uses when none are named, in the order of their worth.

    Eight of them: three fixed `Dirac` in the largest tensor, one in the last bias, one moving
    from tensor to tensor, two `Spread` and a `BlockPair`. Fewer take the first ones; more
    repeat the list.

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
