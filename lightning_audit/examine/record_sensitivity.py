"""How far one record moves what a step releases: the sensitivity, measured on the user's own step.

The step is replayed on its batch and on the batch without one record, with the same random
numbers, so that the noise of both is the same and their difference is the record's part. DP-SGD
promises that it is at most the clipping norm, whatever the record.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import leaves, rows, taken, with_scaled_row
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.replay_distance import (
    distance,
    on_a_lattice,
    rounding,
    shift_by_more_draws,
    too_coarse,
)
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.run_checks.replay_answers import Answer
from lightning_audit.run_checks.replay_findings import Finding

#: What an outlier's inputs are multiplied by.
_OUTLIER = 1e4
#: Relative difference of two norms that are one gradient's.
_SAME_NORM = 1e-4
_NO_RECORD = (
    "no record of the batch changes the release: the step takes its records elsewhere, or their "
    "gradients are zero"
)
_OTHER_DRAWS = "other records draw other random numbers when one is replaced"
#: Random records of each physical batch, beside the first, the last and the largest.
_RANDOM = 2


@dataclass(frozen=True)
class Neighbour:
    """A batch that differs in one record.

    Args:
        name: what differs.
        batches: the physical batches.
        moved: how many clipped gradients may differ: 1 where a record is left out or put in, 2
            where another takes its place.
        made_up: whether it may be that no record of the data is like it.
    """

    name: str
    batches: tuple[Any, ...]
    moved: int
    made_up: bool = False


def tolerance(dtypes: Sequence[torch.dtype], *, low_precision: bool) -> float:
    """Rounding of a sensitivity, in units of the clipping norm.

    Args:
        dtypes: of the trained parameters.
        low_precision: whether layers compute in bf16 or fp16.
    """
    if low_precision or {torch.bfloat16, torch.float16} & set(dtypes):
        return 0.1
    return 1e-6 if set(dtypes) == {torch.float64} else 2e-3


def examine_sensitivity(
    replay: StepReplay,
    batches: Sequence[Any],
    tolerated: float,
    seed: int,
    *,
    replaced: bool = False,
) -> Answer:
    """Replay a step on neighbours of its batches.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        tolerated: rounding, in units of the clipping norm.
        seed: of the replays, and of the choice of records.
        replaced: whether neighbours have a record replaced, and none more or less.
    """
    base = replay.usual(batches, seed)
    if reason := too_coarse(rounding(base.releases, replay.dtypes), tolerated):
        return Answer(reason=reason)
    found, asked, unlike, moves = [], 0, 0, False
    records = sum(map(rows, batches))
    for neighbour in _neighbours(batches, base, random.Random(seed), replaced or base.drew):
        if not replay.has_left(1):
            break
        other = replay.run(neighbour.batches, seed)
        if other.error:
            continue  # a batch that the user's code does not take tells nothing of privacy
        far = distance(base, other)
        too_far = far > neighbour.moved + tolerated
        if too_far and base.drew and moved_rows(base, other) * records > base.rows:
            unlike += 1  # the other records may have other random numbers, and so other gradients
            continue
        asked += 1
        moves = moves or far > 0.0
        if too_far and on_a_lattice(torch.cat(base.releases)):
            far = shift_by_more_draws(partial(_both, replay, batches, neighbour), seed)
        if far > neighbour.moved + tolerated:
            found.append(Finding(neighbour.name, far, neighbour.moved, neighbour.made_up))
    if asked and not moves:
        return Answer(reason=_NO_RECORD)
    found.sort(key=lambda finding: -finding.size)
    why = _OTHER_DRAWS if unlike else replay.why_none("neighbour of the batch")
    reason = "" if asked else why
    real, made_up = ([f for f in found if f.made_up == kind] for kind in (False, True))
    return Answer(asked, tuple(real), reason, tuple(made_up))


def moved_rows(one: Replay, other: Replay) -> float:
    """How many per-sample gradients of one replay are not in another, by their norms.

    Infinite where none are formed.
    """
    if not one.norms or not other.norms:
        return math.inf
    left = torch.cat(other.norms).sort().values.tolist()
    moved, place = 0, 0
    for norm in torch.cat(one.norms).sort().values.tolist():
        while place < len(left) and left[place] < norm * (1.0 - _SAME_NORM):
            place += 1
        if place < len(left) and left[place] <= norm * (1.0 + _SAME_NORM):
            place += 1
        else:
            moved += 1
    return moved


def _both(
    replay: StepReplay, batches: Sequence[Any], neighbour: Neighbour, seed: int
) -> list[Replay]:
    return [replay.run(each, seed) for each in (batches, neighbour.batches)]


def _neighbours(
    batches: Sequence[Any], base: Replay, rng: random.Random, replaced: bool
) -> Iterator[Neighbour]:
    """Batches that differ in one record: it is replaced, or left out or put in."""
    norms = torch.cat(base.norms) if base.norms else torch.zeros(0)
    start = 0
    for place, batch in enumerate(batches):
        count = rows(batch)
        if count < 2:
            start += count
            continue
        own = norms[start : start + count] if len(norms) >= start + count else None
        for name, row in _chosen(count, own, rng).items():
            where = f"the {name} record" + (f" of physical batch {place + 1}" * (len(batches) > 1))
            if replaced:
                order = list(range(count))
                order[row] = (row + count // 2) % count
                yield _changed(f"another in the place of {where}", batches, place, order, moved=2)
            else:
                order = [other for other in range(count) if other != row]
                yield _changed(f"without {where}", batches, place, order, moved=1)
        start += count
    last, count = len(batches) - 1, rows(batches[-1])
    made_up = is_bounded(batches[-1])
    for factor in (_OUTLIER, -_OUTLIER):
        if replaced or not count:
            break
        outlier = with_scaled_row(batches[last], 0, factor)
        name = f"with one more record, the first with inputs times {factor:g}"
        yield Neighbour(name, (*batches[:last], outlier), moved=1, made_up=made_up)


def is_bounded(batch: Any) -> bool:
    """Whether inputs look as if they had bounds, as pixels have."""
    tensors = [t for t in leaves(batch) if t.is_floating_point() and t.numel()]
    return all(bool(t.min() >= -1.0) and bool(t.max() <= 255.0) for t in tensors)


def _chosen(count: int, norms: torch.Tensor | None, rng: random.Random) -> dict[str, int]:
    """Rows of a batch by the name of what they are."""
    chosen = {"first": 0, "last": count - 1}
    if norms is not None:
        chosen["largest"] = int(norms.argmax())
        chosen["smallest"] = int(norms.argmin())
    for number in range(_RANDOM):
        chosen["random" if not number else "another random"] = rng.randrange(count)
    distinct: dict[str, int] = {}
    for name, row in chosen.items():
        if row not in distinct.values():
            distinct[name] = row
    return distinct


def _changed(
    name: str, batches: Sequence[Any], place: int, order: list[int], moved: int
) -> Neighbour:
    changed = [taken(b, order) if number == place else b for number, b in enumerate(batches)]
    return Neighbour(name, tuple(changed), moved)
