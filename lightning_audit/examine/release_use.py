"""Whether what a step leaves behind rests on its release alone.

Behind the cut anything may be made of a release, but of nothing else: where the same values are
released, the training goes on in the same way with a record and without it. What does not shows a
record without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.examine.replayed_pair import SHIFTED
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.run_checks.replay_answers import Answer
from lightning_audit.run_checks.replay_findings import Finding

#: How far the releases of two second steps may be apart, in clipping norms and as a part of their
#: size: their weights and batches are the same, so that they differ by rounding at the most.
_ROUNDING, _OF_SIZE = 5e-5, 1e-6


def examine_release(replay: StepReplay, batches: Sequence[Any], seed: int) -> Answer:
    """Replay a step with the same release, with a record and without it.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        seed: of the replays.
    """
    if replay.adapts:
        return Answer(reason="the clipping norm is adapted by counts that are not at the cut")
    base = replay.usual(batches, seed)
    first = replay.run(batches, seed, released=base, then=batches)
    again = replay.run(batches, seed, released=base, then=batches)
    if first.error or differing(first, again, base):
        return Answer(reason="the step is not the same when it runs again")
    found: list[Finding] = []
    asked, shifted = 0, 0
    for name, row in (("first", 0), ("last", -1)):
        if not replay.has_left(2):
            break
        for named, neighbour in _neighbours(batches, row):
            what = named.format(name)
            other = replay.run(neighbour, seed, released=base, then=batches)
            if other.error or same_numbers(first, other):
                break
        if other.error or len(other.releases) != len(base.releases):
            continue
        if not same_numbers(first, other):
            shifted += 1
            continue
        asked += 1
        found += [
            Finding(f"{where}, {what}", far, 0.0)
            for where, far in differing(first, other, base).items()
        ]
    why = SHIFTED if shifted else replay.why_none("neighbour of the batch")
    return Answer(asked, tuple(found), "" if asked else why)


def differing(one: Replay, other: Replay, base: Replay) -> dict[str, float]:
    """What differs between two replays of one release, and by how much of its change or size.

    Args:
        one: a replay.
        other: the same, without a record.
        base: the replay whose release both had.
    """
    found: dict[str, float] = {}
    for name in one.after.keys() & other.after.keys():
        mine, theirs = one.after[name], other.after[name]
        if mine.shape != theirs.shape:
            continue
        scale = float(mine.norm())
        far = float((mine - theirs).norm())
        if far > 1e-6 * scale:
            kind = _kind(name)
            found[kind] = max(found.get(kind, 0.0), far / max(scale, 1e-300))
    missing = one.after.keys() ^ other.after.keys()
    found |= {_kind(name): float("inf") for name in missing}
    # Only where nothing else differs: else the second step differs with it.
    if not found and len(one.later) == len(other.later) and one.later:
        far = float((torch.cat(one.later) - torch.cat(other.later)).norm())
        size = float(torch.cat(one.later).norm())
        if far > _ROUNDING + _OF_SIZE * size:
            found["the next step's gradient"] = far
    return found


def _kind(name: str) -> str:
    """What of the training a name stands for, without the tensor."""
    if name.startswith("attribute") or " of group " in name:
        return name
    return name.partition(" of ")[0]


def _neighbours(batches: Sequence[Any], row: int) -> Iterator[tuple[str, list[Any]]]:
    """The batches without a record of the last one that has two, then with another for it."""
    place = max(number for number, batch in enumerate(batches) if rows(batch) > 1)
    count = rows(batches[place])
    row %= count
    replaced = list(range(count))
    replaced[row] = (row + count // 2) % count
    for what, kept in (
        ("without the {} record", [other for other in range(count) if other != row]),
        ("with another in the place of the {} record", replaced),
    ):
        yield what, [taken(b, kept) if number == place else b for number, b in enumerate(batches)]
