"""Tests whether a step uses more of its data than the noisy gradient.

After the cut, a release may be post-processed in any way, but no other data may be used: given the
same release, the training must continue in the same way with and without a record. A difference
shows a record without noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.canaries.inputs import leaves, rows, taken
from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Finding, Reason
from lightning_audit.replay.question import Asked
from lightning_audit.replay.records import SHIFTED, within_range
from lightning_audit.replay.releases import hidden_by_noise
from lightning_audit.replay.step_replay import (
    Replay,
    StepReplay,
    distance_of,
    same_numbers,
    together,
)
from lightning_audit.replay.training_state import same_bits

#: Largest distance between the releases of two second steps, in clipping norms and relative to
#: their size: their weights and batches are equal, so that they differ by rounding at most.
_ROUNDING, _OF_SIZE = 5e-5, 1e-6
#: Error of the ratio of two gradients, relative to its distance from 1.
_OF_RATIO = 0.05
_NEXT = "the next step's gradient"
_NOT_AGAIN = "the step is not the same when it runs again"
#: Draws that estimate the noise in what a record changes, and the factor by which a value computed
#: from a release, as by Adam, may show a record more than the release does.
_DRAWS, _PROCESSED = 23, 2.0
_OTHER_NOISE = 6_700_417
#: Random pairs of records that replace the batch, if replays are not limited.
_PAIRS = 8
#: Fewest records, kept columns and relative rounding of rows in the test of a record's memory.
_SEVERAL, _COLUMNS, _SAME_ROW = 3, 1000, 1e-6
#: Phases of a step in which its noise is drawn, and the phase before clipping.
_NOISE, _BEFORE = ("clipping", "noise"), ("start",)


def examine_release(asked: Asked) -> Answer:
    """Replay a step with and without a record, and with the same release.

    Returns:
        The answer; its kind is "divisor" if the update used the release divided by the number of
        records of the batch, or of its last part.
    """
    if asked.replay.adapts:
        return Answer(reason=Reason.ADAPTS)
    return _Examination(asked).answer()


class _Examination:
    """One examination of what is used in addition to the release; see `examine_release`."""

    def __init__(self, asked: Asked) -> None:
        self._replay, self._batches, self._seed = asked.replay, asked.batches, asked.seed
        #: The step as it is, and the same followed by another step on the same batches.
        self._base = asked.usual
        self._first = asked.replay.followed(asked.batches, asked.seed)

    def answer(self) -> Answer:
        """Replay neighbors of the batch, and compare what each leaves."""
        replay, batches, first = self._replay, self._batches, self._first
        if first.error:
            return Answer(reason=_NOT_AGAIN)
        if decided := self._decided():
            return Answer(1, (decided,))
        found, asked, shifted = list[Finding](), 0, 0
        hidden, divided, steady, shown = True, True, False, batches
        for neighbours in (_halves, _without_first, _without_largest):
            if not replay.has_left(2):
                break
            for neighbor in neighbours(batches, self._seed, replay):
                moved, what, neighbour = neighbor
                other = self._run(neighbour)
                if other.error or same_numbers(first, other):
                    break
            if other.error:
                continue
            if moved > 1 and (decided := _decides(first, other, what)):  # as many records
                return Answer(1, (decided,))
            if not same_numbers(first, other):
                shifted += 1
                continue
            if len(other.releases) != len(self._base.releases):
                continue
            asked += 1
            differ = differing(first, other)
            if differ and not steady:
                for _ in range(3 if replay.steady.lacking else 1):
                    if differing(first, self._run(batches)):
                        return Answer(reason=_NOT_AGAIN)
                steady = True
            found += [
                Finding(
                    f"{where}, {what}",
                    far,
                    0.0,
                    tensors=_tensors(first, other, where),
                    in_weights=where.startswith(_OF_WEIGHTS),
                )
                for where, far in differ.items()
            ]
            shown = neighbour if differ else shown
            if differ and hidden:
                hidden = self._hidden(other, differ, moved)
            numbers = [tuple(sum(map(rows, each)) for each in (batches, neighbour))]
            if first.norms and other.norms:  # those of the last part that was clipped
                numbers.append((len(first.norms[-1]), len(other.norms[-1])))
            if any(mine != theirs for mine, theirs in numbers):
                divided = divided and _divided(first, other, numbers)
        if found and hidden:
            return Answer(reason=Reason.NOISED_BESIDE)
        if found and self._is_overwritten(shown):
            return Answer(reason=Reason.OVERWRITTEN)
        if found and self._is_own_memory():
            return Answer(reason=Reason.OWN_MEMORY)
        why = SHIFTED if shifted else replay.why_none("neighbor of the batch")
        alone = bool(asked) and not found and replay.has_left(2)
        alone = alone and not differing(first, self._draw(1))
        kind = "divisor" if found and divided else ""
        return Answer(asked, tuple(found), "" if asked else why, alone=alone, kind=kind)

    def _run(self, batches: Sequence[Any], **options: Any) -> Replay:
        """Replay the step on other batches, given the release, and another step on its own."""
        given = {"released": self._base, "then": self._batches, **options}
        return self._replay.run(batches, self._seed, **given)

    def _draw(self, number: int, places: Sequence[str] = _NOISE) -> Replay:
        """Replay the step with other random numbers in some phases."""
        others = dict.fromkeys(places, self._seed + number * _OTHER_NOISE)
        return self._run(self._batches, others=others)

    def _is_own_memory(self) -> bool:
        """Return whether what a record leaves changes its own gradient in a second step alone.

        The first step lacks the first record; the second step has all records.
        """
        batches, count = self._batches, rows(self._batches[0])
        if len(batches) > 1 or count < _SEVERAL:
            return False
        self._replay.allow(4)
        _, _, neighbour = next(_without_first(batches, self._seed, self._replay))
        one, other = (self._run(each, keep=_COLUMNS) for each in (batches, neighbour))
        if one.error or other.error or "parameters" in differing(one, other):
            return False
        pair = [torch.cat(each.later_rows) for each in (one, other) if each.later_rows]
        if len(pair) < 2 or pair[0].shape != pair[1].shape or len(pair[0]) != count:
            return False
        moved = (pair[0] - pair[1]).norm(dim=1) > _SAME_ROW * pair[0].norm(dim=1).max()
        return bool(moved[0]) and int(moved.sum()) == 1

    def _is_overwritten(self, shown: Sequence[Any]) -> bool:
        """Return whether only the optimizer's settings hold a record, and the next step's do not.

        Args:
            shown: batches with which the state after the step is another one.
        """
        self._replay.allow(4)
        one, other = (self._run(each, look=True) for each in (self._batches, shown))
        if one.error or other.error or len(one.later) != len(other.later):
            return False
        kept = all(map(_is_setting, _changed(one.after, other.after)))
        same = distance_of(one.later, other.later) <= _ROUNDING
        return kept and same and not _changed(one.later_settings, other.later_settings)

    def _decided(self) -> Finding | None:
        """Return a finding if records decide whether a step is taken, or its noise multiplier.

        The step is replayed on as many other records, from the same state and under the same random
        numbers. If a decision differs, records decided it: exchanging the records one by one, it
        changes between two batches that differ in one record.
        """
        more = 0 if self._replay.limited else _PAIRS
        for name, others in _of_other_records(self._batches, self._base, self._seed, more):
            if not self._replay.has_left(2):
                break
            other = self._run(others)
            if not other.error and (decided := _decides(self._first, other, name)):
                return decided
        return None

    def _hidden(self, other: Replay, differ: Iterable[str], moved: int) -> bool:
        """Return whether additional noise hides the record in every difference, as the release's.

        Args:
            other: the replay without the record.
            differ: kinds of values that differ from those of the replay with it.
            moved: change by one record that a release may show, in units of the clipping norm.
        """
        one = self._first
        self._replay.allow(2 * (2 * _DRAWS + 1))
        # Draws before clipping may belong to the records, such as for augmentation.
        same = one.norms and all(map(torch.equal, one.norms, self._draw(1, _BEFORE).norms))
        for places in (_NOISE, (*_BEFORE, *_NOISE)):
            draws = [one, *(self._draw(number, places) for number in range(1, 1 + _DRAWS))]
            if _hides(draws, other, differ, moved, self._replay):
                return True
            # Clipping by hand does not show when it begins: all draws may come before it.
            if not same and (one.norms or differing(one, draws[1])):
                return False
        return False


def _divided(one: Replay, other: Replay, numbers: Iterable[tuple[int, ...]]) -> bool:
    """Return whether the update used the release divided by the replay's own number of records.

    Args:
        one: a replay.
        other: the same with one record less, and the same release.
        numbers: candidate pairs of the numbers of records in ``one`` and in ``other``.
    """
    if one.used is None or other.used is None or not one.used.norm() > 0.0:
        return False
    used, changed = one.used.double(), other.used.double()
    square = float(used.square().sum())
    ratio = float(used @ changed) / square
    alike = float((changed - ratio * used).norm()) <= _OF_SIZE * math.sqrt(square)
    quotients = [mine / theirs for mine, theirs in numbers if 0 < theirs != mine]
    return alike and any(abs(ratio - q) <= _OF_RATIO * abs(q - 1.0) for q in quotients)


def _decides(first: Replay, other: Replay, name: str) -> Finding | None:
    """Return a finding if other records made another number of steps or other noise."""
    if not same_numbers(first, other):
        return None
    taken_steps = [(len(each.releases), len(each.later)) for each in (first, other)]
    if taken_steps[0] != taken_steps[1]:
        return Finding(f"other steps {name}", math.inf, 0.0, decides="step")
    if first.noise != other.noise:
        return Finding(f"other noise {name}", math.inf, 0.0, decides="noise")
    return None


def _of_other_records(
    batches: Sequence[Any], base: Replay, seed: int, more: int
) -> Iterator[tuple[str, list[Any]]]:
    """Yield descriptions of other batches of the same size, and the batches.

    Each repeats two of the batch's records in turn, because some losses are undefined for copies of
    a single record. A threshold near the usual losses is among those of such pairs.

    Args:
        batches: the physical batches of one logical step.
        base: the step as it is.
        seed: of the choice.
        more: number of further random pairs.
    """
    sizes, norms = list(map(rows, batches)), base.all_norms
    known = len(norms) == sum(sizes)
    parts = torch.split(norms, sizes) if known else [torch.arange(float(size)) for size in sizes]
    orders = [part.argsort().tolist() for part in parts]
    of = "of the {} gradients" if known else "that come {}"
    for which, name in (
        (slice(None, 2), of.format("smallest" if known else "first")),
        (slice(-2, None), of.format("largest" if known else "last")),
    ):
        pairs = [order[which] for order in orders]
        yield f"with two records {name} instead of all", _in_turn(batches, pairs)
    if more:  # else half of the batch is replaced by them, see `_halves`
        yield (
            "with records within the range of the data instead of all",
            [within_range(batch, seed) for batch in batches],
        )
    rng = random.Random(seed)
    for _ in range(more):
        pairs = [rng.choices(range(size), k=2) for size in sizes]
        yield "with two records at random instead of all", _in_turn(batches, pairs)


def _in_turn(batches: Sequence[Any], pairs: Sequence[list[int]]) -> list[Any]:
    """Return batches of the same sizes, each of two of its records in turn."""
    return [
        taken(batch, (pair * rows(batch))[: rows(batch)])
        for batch, pair in zip(batches, pairs, strict=True)
    ]


def _hides(
    draws: Sequence[Replay], other: Replay, differ: Iterable[str], moved: int, replay: StepReplay
) -> bool:
    """Return whether the noise in the state after a step hides what differs without a record."""
    if any(each.error for each in draws):
        return False
    for kind in differ:
        mine, theirs, *more = [_values(each, kind) for each in (draws[0], other, *draws)]
        if len({len(values) for values in (mine, theirs, *more)}) > 1:
            return False
        allowed, sigma = _PROCESSED * moved, replay.claim.noise_multiplier
        if not hidden_by_noise(mine - theirs, more, sigma, allowed, replay.next_level()):
            return False
    return True


def _values(replay: Replay, kind: str) -> torch.Tensor:
    """Concatenate the values of a kind after a replay."""
    if kind == _NEXT:
        return together(replay.later)
    named = {**replay.after, **replay.later_settings}
    values = [value for name, value in named.items() if _kind(name) == kind]
    return torch.cat([value.cpu().double() for value in values])


def differing(one: Replay, other: Replay) -> dict[str, float]:
    """Return the kinds of values that differ between two replays of one release.

    Args:
        one: a replay.
        other: the same, without a record.

    Returns:
        By kind, the difference relative to the value's norm; for the next step's gradient, its
        norm in units of the clipping norm.
    """
    found = _changed(one.after, other.after)
    missing = one.after.keys() ^ other.after.keys()
    found |= {_kind(name): float("inf") for name in missing}
    # Only if nothing else differs: otherwise the second step differs as a consequence.
    if not found and len(one.later) == len(other.later) and one.later:
        far = distance_of(one.later, other.later)
        size = math.hypot(*(release.norm() for release in one.later))
        if far > _ROUNDING + _OF_SIZE * size:
            found[_NEXT] = far
        else:
            found |= _changed(one.later_settings, other.later_settings)
    return found


def _changed(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """Return the kinds of values that both have and that differ, with the relative difference."""
    found: dict[str, float] = {}
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        if mine.shape != theirs.shape:
            found[_kind(name)] = math.inf
        elif mine.device != theirs.device or not torch.equal(
            mine, theirs
        ):  # repeated replays have the same bits
            mine, theirs = (torch.nan_to_num(each.cpu().double()) for each in (mine, theirs))
            far = float((mine - theirs).norm()) / max(float(mine.norm()), 1e-300)
            if far == 0.0:  # equal but for NaN
                continue
            found[_kind(name)] = max(found.get(_kind(name), 0.0), far)
    return found


#: Beginnings of the kinds of state that are weights, or what the optimizer keeps of them.
_OF_WEIGHTS = ("parameters", "optimizer state")


def _tensors(one: Replay, other: Replay, kind: str) -> tuple[str, ...]:
    """Return the tensors of the module whose values of a kind differ; none if all do."""
    if not kind.startswith(("buffers", *_OF_WEIGHTS)):
        return ()
    own = [name for name in one.after if _kind(name) == kind]
    same = [n for n in own if n in other.after and same_bits(one.after[n], other.after[n])]
    return tuple(n.partition(" of ")[2] for n in own if n not in same) if same else ()


def _kind(name: str) -> str:
    """Return the kind of value that a name denotes, without the tensor's name."""
    return name if _is_setting(name) else name.partition(" of ")[0]


def _is_setting(name: str) -> bool:
    """Return whether a name is that of an optimizer's setting."""
    return name.startswith("attribute") or " of group " in name


#: The change that a release may show, in units of the clipping norm, a description, and batches.
_Neighbour = tuple[int, str, list[Any]]


def _halves(batches: Sequence[Any], seed: int, replay: StepReplay) -> Iterator[_Neighbour]:
    """Replace half of a batch by records within the range of the data."""
    half = rows(_last(batches)) // 2

    def mixed(own: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        return torch.cat([own[: len(own) - half], made[len(own) - half :]])

    def changed(batch: Any) -> Any:
        return _pytree.tree_map(mixed, batch, within_range(batch, seed))

    named = "with records within the range of the data instead of half of the batch"
    yield 2 * half, named, _with(batches, changed)


def _without_largest(batches: Sequence[Any], seed: int, replay: StepReplay) -> Iterator[_Neighbour]:
    """Replace the half of a batch with the largest inputs by the other half."""
    sizes = torch.zeros(rows(_last(batches)))
    for leaf in leaves(_last(batches)):
        if leaf.is_floating_point():
            sizes = torch.maximum(
                sizes, leaf.detach().abs().reshape(len(leaf), -1).amax(1).float().cpu()
            )
    order, half = sizes.argsort(), len(sizes) // 2
    kept = torch.arange(len(sizes))
    kept[order[len(order) - half :]] = order[:half]
    named = "with the other half of the batch instead of the one with the largest inputs"
    yield 2 * half, named, _with(batches, lambda batch: taken(batch, kept.tolist()))


def _without_first(batches: Sequence[Any], seed: int, replay: StepReplay) -> Iterator[_Neighbour]:
    """Leave out the first record, unless batches have one size; then replace it."""
    count = rows(_last(batches))
    if not replay.claim.fixed_size:
        left = range(1, count)
        yield 1, "without the first record", _with(batches, lambda batch: taken(batch, left))
    order = [count // 2, *range(1, count)]
    named = "with another instead of the first record"
    yield 2, named, _with(batches, lambda batch: taken(batch, order))


def _last(batches: Sequence[Any]) -> Any:
    """Return the last physical batch of two records or more."""
    return [batch for batch in batches if rows(batch) > 1][-1]


def _with(batches: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """Return the batches with the last one of two records or more changed."""
    return [change(batch) if batch is _last(batches) else batch for batch in batches]
