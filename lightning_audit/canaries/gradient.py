"""Gradient canaries: unit directions over the trainable tensors, and their orthonormal form.

A canary states its tensor; `lightning_audit.canaries.gradient` turns a list of canaries into
orthonormal directions of one step. What each kind detects:

- `Dirac`: one coordinate. A fixed one detects noise that repeats; in the last bias, noise or
  clipping that skips a small tensor; a moving one, a fault of one particular coordinate.
- `Spread`: one coordinate in every tensor. Detects per-tensor clipping accounted as flat clipping.
- `BlockPair`: plus and minus in two tensors of one shape. Detects one noise key for several
  tensors.
- `Constant`, `Random`: dense directions, as in Tight Auditing; they cost a full gradient row.

**Turns canaries into the directions of a step: orthonormal, over any layout of parameters.**
Canaries of one step must not share noise: two directions with an inner product of .3 would raise
false alarms. Sparse canaries get disjoint coordinates; dense ones avoid the coordinates of sparse
ones and are made orthogonal to each other. If a small tensor has no coordinate left, a canary is
left out and the placement records it; coordinates are never shared.

With per-layer clipping, a canary adds the whole clipping norm only if it fills the norm of every
tensor: each canary becomes a `Spread` over all tensors, weighted by their norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_audit._validate import BadArgument
from lightning_audit.layout import Direction, IndexArray, Layout, Part

# --- Gradient canaries: unit directions over the trainable tensors.

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


# --- Turns canaries into the directions of a step: orthonormal, over any layout of parameters.

#: Number of coordinates per tensor from which a moving sparse canary chooses. One that visits each
#: tensor takes fewer, and skips tensors with hardly more.
POOL, VISITED = 32, 4


@dataclass
class _Placed:
    """A canary with the coordinates that it owns: tensor -> flat indices."""

    canary: GradientCanary
    support: dict[int, IndexArray]
    paired: bool = False
    fixed: Direction | None = None


@dataclass
class Placement:
    """The canaries of a run over one layout.

    Args:
        layout: The trainable tensors.
        placed: Canaries with their coordinates; filled by `place`.
        skipped: A sentence for each canary that had to be left out.
    """

    layout: Layout
    placed: list[_Placed] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.placed)

    @property
    def labels(self) -> tuple[str, ...]:
        """A short name for each canary, with its tensor."""
        names = []
        for item in self.placed:
            kind = type(item.canary).__name__
            moving = ", moving" if item.canary.moving else ""
            tensors = sorted(item.support)
            place = self.layout[tensors[0]].name if len(tensors) == 1 else f"{len(tensors)} tensors"
            names.append(f"{kind}({place}{moving})")
        return tuple(names)

    def support(self) -> dict[int, IndexArray]:
        """Return all coordinates that some canary may use, by tensor."""
        merged: dict[int, list[IndexArray]] = {}
        for item in self.placed:
            for tensor, index in item.support.items():
                merged.setdefault(tensor, []).append(index)
        return {j: np.unique(np.concatenate(parts)) for j, parts in sorted(merged.items())}

    def draw(self, rng: np.random.Generator) -> list[Direction]:
        """Return the orthonormal directions of the next step; ``rng`` draws the moving ones."""
        dense = [item.fixed for item in self.placed if item.fixed and _is_dense(item.canary)]
        drawn: list[Direction] = []
        for item in self.placed:
            direction = item.fixed or _draw(item, self.layout, rng)
            if item.canary.moving and _is_dense(item.canary):
                direction = _orthogonal_to(direction, dense)
                dense.append(direction)
            drawn.append(direction)
        return drawn


def place(
    canaries: Sequence[GradientCanary], layout: Layout, rng: np.random.Generator
) -> Placement:
    """Assign disjoint coordinates to every canary.

    Args:
        canaries: The canaries, the most useful ones first; the placement keeps their order and
            leaves out those without room.
        layout: The trainable tensors.
        rng: The audit's own generator.

    Returns:
        The placement.

    Raises:
        ValueError: If there is no trainable tensor, a parameter name is unknown, or no canary fits.
    """
    if not any(slot.numel for slot in layout):
        raise BadArgument(
            "canaries have no trainable coordinate: no parameter has requires_grad=True; unfreeze "
            "at least one parameter or leave the audit out."
        )
    free = [rng.permutation(slot.numel).astype(np.int64) for slot in layout]
    placed: dict[int, _Placed] = {}
    skipped = []
    if _clipped_one_by_one(layout):
        if any(not isinstance(canary, Spread) for canary in canaries):
            skipped.append("tensors are clipped separately, so every canary is a Spread")
        canaries = [Spread(moving=canary.moving) for canary in canaries]
    order = sorted(range(len(canaries)), key=lambda i: _is_dense(canaries[i]))
    for i in order:
        canary = canaries[i]
        support, paired = _claim_coordinates(canary, layout, free)
        if support:
            placed[i] = _Placed(canary, support, paired)
        else:
            skipped.append(
                f"{canary} was left out: other canaries use every entry of its tensor, which is as "
                "small as the bias of one output; the others audit the step, nothing is to be done"
            )
    placement = Placement(layout, [placed[i] for i in sorted(placed)], skipped)
    _fix(placement, rng)
    if not placement.placed:
        raise BadArgument(
            f"canaries={list(canaries)!r} have no trainable coordinate left; name larger "
            f"tensors, one of {[slot.name for slot in layout]}."
        )
    return placement


def _fix(placement: Placement, rng: np.random.Generator) -> None:
    """Draw the fixed directions, leaving out dense ones in the span of those before."""
    dense: list[Direction] = []
    spanned: set[int] = set()
    # Fixed ones first: moving ones are made orthogonal to them at every step.
    for item in sorted(placement.placed, key=lambda item: item.canary.moving):
        direction = _draw(item, placement.layout, rng)
        if _is_dense(item.canary):
            direction = _orthogonal_to(direction, dense)
            if direction.norm() == 0.0:
                placement.skipped.append(f"{item.canary} was left out: others span its tensor")
                spanned.add(id(item))
                continue
            dense.append(direction)
        item.fixed = None if item.canary.moving else direction
    placement.placed = [item for item in placement.placed if id(item) not in spanned]


def _clipped_one_by_one(layout: Layout) -> bool:
    return any(slot.clip_share is not None for slot in layout)


def _is_dense(canary: GradientCanary) -> bool:
    return isinstance(canary, Constant | Random)


def _claim_coordinates(
    canary: GradientCanary, layout: Layout, free: list[IndexArray]
) -> tuple[dict[int, IndexArray], bool]:
    """Remove coordinates for ``canary`` from ``free``; dense ones leave ``free`` unchanged.

    Returns:
        (tensor -> coordinates, whether two tensors share them as a pair).
    """
    match canary:
        case Dirac(tensor=tensor) if tensor == EACH and any(len(f) >= 2 * VISITED for f in free):
            visited = [j for j in range(len(layout)) if len(free[j]) >= 2 * VISITED]
            return {j: _take(free, j, moving=True, pool=VISITED) for j in visited}, False
        case Dirac(tensor=tensor):
            candidates = _tensors(LARGEST if tensor == EACH else tensor, layout)
            chosen = next((j for j in candidates if len(free[j])), None)
            own = {} if chosen is None else {chosen: _take(free, chosen, canary.moving)}
            return own, False
        case BlockPair() if (pair := _same_shape(layout, free)) is not None:
            return _take_pair(free, *pair, canary.moving), True
        case Spread() | BlockPair():
            every = [j for j in range(len(layout)) if len(free[j])]
            if _clipped_one_by_one(layout) and len(every) < len(layout):
                return {}, False
            return {j: _take(free, j, canary.moving) for j in every}, False
        case Constant(tensor=tensor):
            j = _tensors(tensor, layout)[0]
            return {j: np.sort(free[j])} if len(free[j]) else {}, False
        case Random(tensor=tensor):
            named = range(len(layout)) if tensor is None else _tensors(tensor, layout)[:1]
            return {j: np.sort(free[j]) for j in named if len(free[j])}, False
    raise BadArgument(
        f"canaries holds {canary!r}; it must hold Dirac, Spread, BlockPair, Constant or Random."
    )


def _take(free: list[IndexArray], tensor: int, moving: bool, pool: int = POOL) -> IndexArray:
    """Remove one coordinate, or a moving canary's pool, from the free ones of a tensor."""
    # A pool leaves at least half of a small tensor to the other canaries.
    size = min(pool, max(1, len(free[tensor]) // 2)) if moving else 1
    taken, free[tensor] = free[tensor][:size], free[tensor][size:]
    return taken


def _take_pair(
    free: list[IndexArray], first: int, second: int, moving: bool
) -> dict[int, IndexArray]:
    shared = free[first][np.isin(free[first], free[second])]
    taken = shared[: min(POOL, max(1, len(shared) // 2)) if moving else 1]
    for j in (first, second):
        free[j] = free[j][~np.isin(free[j], taken)]
    return {first: taken, second: taken}


def _same_shape(layout: Layout, free: list[IndexArray]) -> tuple[int, int] | None:
    """Return the two largest tensors of one shape that share a free coordinate."""
    by_size = sorted(range(len(layout)), key=lambda j: -layout[j].numel)
    for position, first in enumerate(by_size):
        for second in by_size[position + 1 :]:
            if layout[first].shape == layout[second].shape and (
                np.isin(free[first], free[second]).any()
            ):
                return first, second
    return None


def _tensors(name: str, layout: Layout) -> list[int]:
    """Return the positions of the tensor ``name``; for "largest", all from the largest down."""
    if name == LARGEST:
        return sorted(range(len(layout)), key=lambda j: -layout[j].numel)
    if name == LAST_BIAS:
        vectors = [j for j, slot in enumerate(layout) if len(slot.shape) == 1]
        biases = [j for j in vectors if layout[j].name.endswith("bias")]
        return [(biases or vectors or [len(layout) - 1])[-1]]
    for j, slot in enumerate(layout):
        if slot.name == name:
            return [j]
    raise BadArgument(
        f"tensor={name!r} must be 'largest', 'last_bias' or the name of a trainable parameter, "
        f"one of {[slot.name for slot in layout]}."
    )


def _draw(item: _Placed, layout: Layout, rng: np.random.Generator) -> Direction:
    """Return a unit vector on the canary's coordinates."""
    match item.canary:
        case Random():
            values = {j: rng.standard_normal(len(index)) for j, index in item.support.items()}
            parts = [Part(j, index, values[j]) for j, index in item.support.items()]
        case Constant():
            parts = [Part(j, index, np.ones(len(index))) for j, index in item.support.items()]
        case Dirac(tensor=tensor) if tensor == EACH:
            places = list(item.support.items())
            j, index = places[int(rng.integers(len(places)))]
            pick = int(rng.integers(len(index)))
            parts = [Part(j, index[pick : pick + 1], np.ones(1))]
        case canary:
            sizes = [len(index) for index in item.support.values()]
            # One flat coordinate for both tensors of a pair; one each for the others.
            picks = [int(rng.integers(n)) if canary.moving and n > 1 else 0 for n in sizes]
            weights = [layout[j].clip_share or 1.0 for j in item.support]
            if item.paired:
                picks, weights = [picks[0], picks[0]], [1.0, -1.0]
            parts = [
                Part(j, index[pick : pick + 1], np.array([weight]))
                for (j, index), pick, weight in zip(
                    item.support.items(), picks, weights, strict=True
                )
            ]
    return _unit(Direction(tuple(parts)))


def _unit(direction: Direction) -> Direction:
    norm = direction.norm()
    return Direction(tuple(Part(p.tensor, p.index, p.value / norm) for p in direction.parts))


def _orthogonal_to(direction: Direction, others: list[Direction]) -> Direction:
    """Return the unit part of ``direction`` orthogonal to ``others``; zero if there is none."""
    current = direction
    for _ in range(2):  # the second pass removes the rounding error of the first
        for other in others:
            current = _subtract(current, other, current.dot(other))
    if current.norm() < 1e-6:
        return Direction(())
    return _unit(current)


def _subtract(direction: Direction, other: Direction, factor: float) -> Direction:
    """Return ``direction - factor * other``, on the union of both supports."""
    parts = {part.tensor: part for part in direction.parts}
    for theirs in other.parts:
        mine = parts.get(theirs.tensor)
        if mine is None:
            parts[theirs.tensor] = Part(theirs.tensor, theirs.index, -factor * theirs.value)
            continue
        index = np.union1d(mine.index, theirs.index)
        value = np.zeros(len(index))
        value[np.searchsorted(index, mine.index)] += mine.value
        value[np.searchsorted(index, theirs.index)] -= factor * theirs.value
        parts[theirs.tensor] = Part(theirs.tensor, index, value)
    return Direction(tuple(parts[j] for j in sorted(parts)))
