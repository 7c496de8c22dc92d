"""How far one record moves what a step releases, and whether gradients depend on other records.

**Compare two replays that differ in one record or one gradient, under a second seed as well.** A
record's contribution to a release is the same vector under any random numbers. If the two replays
draw different random numbers, their difference is noise, which is another vector each time.

**Test the sensitivity of the user's own step: how far one record moves its release.** The step is
replayed on its batch and on the batch without one record, under the same random numbers, so that
the noise cancels and the difference is the record's contribution. DP-SGD guarantees that it is at
most the clipping norm, for any record. If removing a record shifts the random numbers of the
others, it is replaced by another record, and its gradient by zeros.

**Test whether a record's gradient depends on the other records of its batch.** Clipping bounds the
contribution of a record's own gradient. If the record also changes the gradients of others, through
a layer or a loss over the batch, clipping does not bound its total contribution.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree

from lightning_audit.canaries.inputs import copies, leaves, rows, taken
from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Finding, Reason
from lightning_audit.replay.question import Asked
from lightning_audit.replay.releases import hidden_by_noise, on_a_lattice
from lightning_audit.replay.rows import Rows
from lightning_audit.replay.step_replay import (
    Replay,
    RowsReplay,
    StepReplay,
    Stopped,
    distance,
    folded,
    same_numbers,
    shift_by_more_draws,
)
from lightning_audit.stats.clipped_sums import Relation, parts_of_sum

# --- Synthetic records within the range of the data, which the data set might contain.


def made_up_records(
    replay: StepReplay, batches: Sequence[Any], seed: int
) -> Iterator[tuple[str, Any]]:
    """Yield descriptions of a synthetic record, and the last batch with that record added.

    The record's floating point numbers are the largest or smallest of the batch in each column; its
    integers are those of a record of the batch. So logarithms, roots and lookup tables are defined
    for it, unless they combine several columns.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        seed: of the choice.
    """
    last = batches[-1]
    for name, largest in (("largest", True), ("smallest", False)):
        yield f"its inputs the {name} of the batch by column", _with_extreme(last, largest=largest)
    hardest = _hardest(replay, batches, seed)
    if hardest is not None:
        yield "its inputs some of the largest and smallest of the batch by column", hardest


def _with_extreme(batch: Any, *, largest: bool) -> Any:
    """Append a copy of the first record with the largest or smallest inputs of each column."""
    longer = taken(batch, [*range(rows(batch)), 0])
    for tensor in leaves(longer):
        if tensor.is_floating_point():
            tensor[-1] = tensor.amax(0) if largest else tensor.amin(0)
    return longer


def _hardest(replay: StepReplay, batches: Sequence[Any], seed: int) -> Any:
    """Append the one of many synthetic records whose gradient is largest; None if unknown."""
    if len(batches) > 1 or not replay.usual(batches, seed).norms:
        return None
    batch = batches[0]
    made = within_range(batch, seed)
    seen = replay.run([made], seed)
    if seen.error or len(seen.all_norms) != rows(made):
        return None
    row = int(torch.nan_to_num(seen.all_norms, nan=-1.0, posinf=-1.0).argmax())
    return _pytree.tree_map(lambda a, b: torch.cat([a, b[row : row + 1]]), batch, made)


def within_range(batch: Any, seed: int) -> Any:
    """Return as many records as a batch has, each number the largest or smallest of its column.

    Which one is random. Integers, such as labels, are those of another record.

    Args:
        batch: tensors with the samples first, in tuples, lists, dicts or named tuples.
        seed: of the choice.

    Returns:
        New tensors in the same containers.
    """
    generator = torch.Generator().manual_seed(seed)
    made = taken(batch, [*range(1, rows(batch)), 0])
    for tensor in leaves(made):
        if tensor.is_floating_point():
            low, high = tensor.amin(0, keepdim=True), tensor.amax(0, keepdim=True)
            lower = torch.rand(tensor.shape, generator=generator) < 0.5
            tensor.copy_(torch.where(lower.to(tensor.device), low, high))
    return made


# --- Compare two replays that differ in one record or one gradient, under a second seed as well.

#: Replays a pair under a seed.
Draw = Callable[[int], Sequence[Replay]]

SHIFTED = (
    "with another record, or without its gradient, the step draws other random numbers for the "
    "other records"
)
MORE = "the training clips gradients that the replay could not replace"
_SECOND = 7_368_787
#: Least cosine of two differences with a common part: independent ones reach 4 standard deviations
#: in 1 of 30,000 cases.
_LEAST_COSINE, _DEVIATIONS = 0.05, 4.0
#: With fewer entries than ``_FEW`` a cosine is not enough: differences must agree up to a tenth,
#: under ``_SEEDS`` further seeds.
_FEW_ENTRIES, _SAME, _FURTHER_SEEDS = 25, 0.1, 3
#: Pairs that estimate the noise in a record's contribution, and the factor by which a nonlinear
#: function of the noisy gradient may show a record more than the gradient does.
_PAIRS, _BENT = 24, 3.0
#: Number of tested findings after which further ones are classified alike, unless so much larger.
_ENOUGH, _LARGER = 3, 2.0
#: Pairs from which on there are no more, and seconds that a doubling of their number may take.
_MOST, _PATIENCE = 96, 20.0
#: Rounding of equal sums, and least cosine of gradients of its own that a training adds.
_ROUNDING, _ADDED = 1e-3, 0.3


@dataclass(frozen=True)
class Judged:
    """Result of comparing a pair.

    Args:
        far: distance of its releases, in units of the clipping norm.
        failed: whether the user's code failed on one of its batches.
        shifted: whether the two replays drew different random numbers, so that the result is void.
    """

    far: float = 0.0
    failed: bool = False
    shifted: bool = False

    @property
    def tells(self) -> bool:
        """Whether the result is valid."""
        return not self.failed and not self.shifted


def judge(
    draw: Draw, seed: int, allowed: float, *, by_row: bool = False, least_cosine: float = 0.0
) -> Judged:
    """Measure the distance of a pair's releases, and whether it is noise.

    Args:
        draw: replays the pair.
        seed: of the replays.
        allowed: largest distance that is no finding, in units of the clipping norm.
        by_row: whether only one gradient differs, and the batches are equal. Then nothing else
            changes, but that gradient may be rounded or dropped at random.
        least_cosine: least cosine of the differences under both seeds, if the records draw their
            own random numbers: their gradients have few directions, and are alike by chance.
    """
    one, other = draw(seed)
    if one.error or other.error:
        return Judged(failed=True)
    if not same_numbers(one, other):
        return Judged(shifted=True)
    far = distance(one, other)
    if far <= allowed or not math.isfinite(far):
        return Judged(far)
    if on_a_lattice(one.release):
        return Judged(shift_by_more_draws(draw, seed))
    cosine, common = _alike(one, other, draw, seed)
    moves = cosine >= least_cosine and (by_row or common > allowed)
    return Judged(far, shifted=not moves or is_noise(cosine, len(one.release)))


def is_processed(draw: Draw, replay: StepReplay, seed: int, moved: int) -> bool:
    """Return whether post-processing of a correct noisy gradient could explain a pair's distance.

    Args:
        draw: replays the pair.
        replay: of the step.
        seed: of the replays.
        moved: change by one record that a release may show, in units of the clipping norm.
    """
    replay.allow(2 * _PAIRS)
    pairs = [draw(seed + number * _SECOND) for number in range(_PAIRS)]
    if any(each.error or not each.releases for pair in pairs for each in pair):
        return False
    gaps = [_gap(*pair) for pair in pairs]
    if any(gap.shape != gaps[0].shape or not bool(torch.isfinite(gap).all()) for gap in gaps):
        return False
    # A linear map of the noisy sum gives the same change by a record each time.
    off = max(float((gap - gaps[0]).norm()) for gap in gaps) / float(gaps[0].norm())
    allowed = moved * (1.0 if off <= _SAME else _BENT)
    far = gaps[0].norm().reshape(1)
    along = [one.release @ gaps[0] / far for one, _ in pairs]
    del pairs, gaps[1:]
    while hidden_by_noise(far, along, replay.claim.noise_multiplier, allowed, replay.next_level()):
        # Fewer draws than these hide twice what a record may add.
        drawn, seconds = len(along), 2 * len(along) * replay.step_seconds
        as_claimed = float(torch.stack(along).std()) * allowed < replay.claim.noise_multiplier * far
        if off > _SAME or not as_claimed or drawn >= _MOST or seconds > _PATIENCE:
            return True
        replay.allow(2 * drawn)
        pairs = [draw(seed + number * _SECOND) for number in range(drawn, 2 * drawn)]
        if any(each.error or not each.releases for pair in pairs for each in pair):
            return True
        along += [one.release @ gaps[0] / far for one, _ in pairs]
    return False


class Pairs:
    """The pairs of an examination, and what they showed.

    In a training that does not show its release, post-processing could explain some findings: these
    do not count; see `is_processed`.

    Args:
        asked: the step.
        shown: whether the training shows its release.
    """

    def __init__(self, asked: Asked, *, shown: bool) -> None:
        self._replay, self._seed, self._shown = asked.replay, asked.seed, shown
        #: Number of pairs with a valid result, and of those that drew different random numbers.
        self.asked = self.shifted = 0
        #: Findings in the order of their pairs.
        self.findings: list[Finding] = []
        # Number of findings that do not count, and the largest distance that was tested.
        self._unshown, self._tested = 0, 0.0

    def take(self, finding: Finding, draw: Draw, moved: int) -> None:
        """Take a finding: a pair of which one record may move the release by ``moved``."""
        explained = not self._shown
        if explained and (self._unshown < _ENOUGH or finding.size > _LARGER * self._tested):
            self._tested = max(self._tested, finding.size)
            explained = is_processed(draw, self._replay, self._seed, moved)
        if explained:
            self._unshown += 1
        else:
            self.findings.append(finding)

    def answer(self, what: str) -> Answer:
        """Return the answer, or why no pair, which needs ``what``, gives one."""
        if self._unshown and not self.findings:
            return Answer(reason=Reason.NOT_SHOWN)
        why = SHIFTED if self.shifted else self._replay.why_none(what)
        return Answer(self.asked, tuple(self.findings), "" if self.asked else why)


def is_noise(cosine: float, size: int) -> bool:
    """Return whether two vectors may be independent, given their cosine.

    Args:
        cosine: of the two vectors.
        size: number of entries of each.
    """
    return cosine < min(max(_LEAST_COSINE, _DEVIATIONS / math.sqrt(size)), 1.0 - _SAME)


def _alike(one: Replay, other: Replay, draw: Draw, seed: int) -> tuple[float, float]:
    """Return the least cosine of a pair's difference with those under other seeds.

    Also the least norm of their common part. The cosine is -1 if the pair cannot be replayed again.
    """
    first = _gap(one, other)
    found = []
    for number in range(1, 1 + (1 if len(first) >= _FEW_ENTRIES else _FURTHER_SEEDS)):
        pair = draw(seed + number * _SECOND)
        if any(replay.error for replay in pair) or not math.isfinite(distance(*pair)):
            return -1.0, 0.0
        again = _gap(*pair)
        product = float(first @ again)
        cosine = product / max(float(first.norm() * again.norm()), 1e-300)
        if len(first) < _FEW_ENTRIES and float((again - first).norm()) > _SAME * float(
            first.norm()
        ):
            cosine = -1.0
        found.append((cosine, math.sqrt(max(0.0, product))))
    return min(cosine for cosine, _ in found), min(common for _, common in found)


def _gap(one: Replay, other: Replay) -> torch.Tensor:
    return one.release - other.release


def hands_all_over(replay: StepReplay, batch: Any, seed: int) -> bool:
    """Return whether a replay can replace all gradients that a step clips.

    With zero gradients, two batches release the same noise, unless the training adds gradients of
    its own. These are the same vector under another seed; noise that depends on records is not.

    Args:
        replay: of the step.
        batch: a physical batch.
        seed: of the replays.
    """
    count = rows(batch)
    zeros = Rows.zeros(count, torch.zeros(sum(replay.sizes)))
    batches = batch, taken(batch, [0] * count)

    def draw(seed: int) -> list[Replay]:
        return [replay.run([each], seed, rows=zeros) for each in batches]

    one, other = draw(seed)
    if one.error or other.error or not one.releases:
        return False
    far = distance(one, other)
    if far <= _ROUNDING or not math.isfinite(far):
        return far <= _ROUNDING
    return _alike(one, other, draw, seed)[0] < _ADDED


# --- Test whether a record's gradient depends on the other records of its batch.

#: Largest number of kept entries over a batch's gradients, and smallest number per gradient.
_ENTRIES, _LEAST_ENTRIES = 10_000_000, 1000
#: Largest number of records of a whole batch in which records may depend on each other.
_MANY = 64
#: Most rows that are compared in pairs if a step sorts them; of more, each with its nearest.
_PAIRED = 256
#: Further seeds under which both batches of a finding must draw the same number of random numbers.
_SEEDS, _APART = 4, 5_915_587
#: Other records among which a record is replayed until two draw the same number, and the least mean
#: cosine of the differences under those seeds.
_CANDIDATES, _COMMON = 8, 0.4

_NO_NUMBERS = "the gradients of the batch are zero or not finite"
_NOT_REPEATABLE = "the step gives other gradients when it runs again"
_DRAWS = "how many random numbers the step draws depends on the data; draw as many for each record"


def examine_independence(asked: Asked) -> Answer:
    """Replay a batch of copies of one record, and a batch in which only some are copies."""
    replay, seed, tolerated = asked.replay, asked.seed, asked.tolerated_change
    batch = max(asked.whole or asked.batches, key=rows)
    if asked.whole and rows(batch) > _MANY:
        batch = taken(batch, range(_MANY))
    keep = min(sum(replay.sizes), max(_ENTRIES // rows(batch), _LEAST_ENTRIES))
    norms = replay.usual([batch], seed).all_norms
    ignored = len(norms) == rows(batch) and not norms[0] > 0.0
    kept = int(norms.argmax()) if ignored else 0
    # The gradient of an ignored record is zero among any others.
    alone, mixed, count = copies(taken(batch, [kept, *range(1, rows(batch))]))

    def pair(seed: int) -> list[Replay]:
        return [replay.run([each], seed, keep=keep) for each in (alone, mixed)]

    first, second = pair(seed)
    if second.error:  # such as that of packed sequences: the copies must keep the batch's order
        start, count = min(kept, rows(batch) // 2), rows(batch) - rows(batch) // 2
        window = range(start, start + count)
        mixed = taken(batch, [kept if row in window else row for row in range(rows(batch))])
        second = replay.run([mixed], seed, keep=keep)
    if first.error or second.error:
        return Answer(reason=first.error or second.error)
    made = first.rows
    if not made or made % rows(batch) or second.rows != made:
        none = "" if made else replay.why_no_rows(first, made)
        return Answer(reason=none or Reason.OTHER_ROWS)
    same = count * made // rows(batch)
    change = change_between(first, second, same, tolerated)
    if change is None:
        return Answer(reason=_NO_NUMBERS)
    if change <= tolerated:
        return Answer(asked=1)
    replay.allow(1 + 2 * _SEEDS)
    # Data-dependent numbers of draws may agree by chance, but not under each of several seeds.
    for one, other in ((first, second), *(pair(seed + n * _APART) for n in range(1, 1 + _SEEDS))):
        if one.drawn is None or one.drawn != other.drawn:
            return _among_alike(replay, batch, kept, tolerated, seed, keep)
    again = replay.run([mixed], seed, keep=keep)
    unsteady = largest_change(second.all_gradients, again.all_gradients, made)
    if unsteady is None or unsteady > tolerated / 10:
        return Answer(reason=_NOT_REPEATABLE)
    return Answer(1, (Finding("a record among others", change, tolerated),))


def _among_alike(
    replay: StepReplay, batch: Any, kept: int, tolerated: float, seed: int, keep: int
) -> Answer:
    """Compare a record among copies of one other record, and of another that draws as many numbers.

    The same numbers may still reach other entries. Then differences are noise, of other directions
    under other seeds.
    """
    size = rows(batch)
    places = [row for row in range(size) if row.bit_count() % 2]
    others = random.Random(seed).sample([row for row in range(size) if row != kept], size - 1)
    replay.allow(_CANDIDATES + 2 * (1 + _SEEDS))
    seen: dict[int | None, Any] = {}
    for other in others[:_CANDIDATES]:
        mixed = taken(batch, [kept if row in places else other for row in range(size)])
        drawn = replay.run([mixed], seed, keep=keep).drawn
        if drawn is not None and drawn in seen:
            break
        seen[drawn] = mixed
    else:
        return Answer(reason=_DRAWS)
    gaps: list[torch.Tensor] = []
    for number in range(1 + _SEEDS):
        one, two = (
            replay.run([each], seed + number * _APART, keep=keep) for each in (seen[drawn], mixed)
        )
        if one.error or two.error or one.drawn != two.drawn or not one.rows == two.rows > 0:
            return Answer(reason=_DRAWS)
        change = change_between(one, two, len(places) * one.rows // size, tolerated)
        if change is None or change <= tolerated:
            return Answer(reason=_NO_NUMBERS) if change is None else Answer(asked=1)
        gap = (one.all_gradients - two.all_gradients).reshape(size, -1)[places].flatten()
        gaps.append(gap / gap.norm().clamp(min=1e-30))
    if float(torch.stack(gaps).sum(0).square().sum()) / len(gaps) - 1.0 < _COMMON * _SEEDS:
        return Answer(reason=_DRAWS)
    return Answer(1, (Finding("a record among others", change or math.inf, tolerated),))


def change_between(one: Replay, other: Replay, same: int, tolerated: float) -> float | None:
    """Return `largest_change` of the gradients of two replays, in any order if it is too large.

    Args:
        one: a replay of copies of one record.
        other: a replay of a batch in which only some are copies.
        same: number of rows of ``other`` that are the record's.
        tolerated: change above which rows may be at other positions.
    """
    pair = one.all_gradients, other.all_gradients
    change = largest_change(*pair, same)
    if change is not None and change > tolerated:  # the step may have sorted its rows
        change = largest_change(*pair, same, sorted_rows=True)
    return change


def largest_change(
    copies: torch.Tensor, mixed: torch.Tensor, same: int, *, sorted_rows: bool = False
) -> float | None:
    """Return the largest relative change of one record's gradient between two batches.

    The position of the record's rows in the mixed batch need not be known, because training code
    may sort its records: each position in the batch of copies has one, with the same random
    numbers.

    Args:
        copies: per-sample gradients of a batch of copies of the record, ``[n, d]``.
        mixed: per-sample gradients of a batch in which only some are copies, ``[n, d]``.
        same: number of rows of ``mixed`` that are the record's.
        sorted_rows: whether rows may be at other positions, because a step sorts them by
            something that depends on their random numbers: the nearest ones are compared, each
            with one.

    Returns:
        The change over the gradient's norm, or over the median norm if that is larger: a small
        gradient is a difference of larger numbers, and has their rounding. Infinity if ``copies``
        has non-finite gradients and ``mixed`` has not; None if ``mixed`` has, or if all gradients
        are zero.
    """
    norms = torch.stack([copies.norm(dim=1), mixed.norm(dim=1)])
    if not bool(torch.isfinite(norms[1]).all()) or not norms.any():
        return None
    if not bool(torch.isfinite(norms[0]).all()):
        return math.inf
    scale = norms.amax(dim=0).clamp(min=float(norms[norms > 0].median()))
    if not sorted_rows:
        changes = (copies - mixed).norm(dim=1) / scale
        return float(changes.sort().values[same - 1])
    scale = torch.maximum(norms[1][:, None], norms[0]).clamp(min=float(norms[norms > 0].median()))
    many = len(copies) > _PAIRED  # distances by products are quick, and exact to 1e-3
    mode = f"{'use' if many else 'donot_use'}_mm_for_euclid_dist"
    far = torch.cdist(mixed, copies, compute_mode=mode) / scale
    if many:
        return float(far.amin(dim=1).sort().values[same - 1])
    near, taken_rows, taken_copies = math.inf, set[int](), set[int]()
    for pair in far.flatten().argsort().tolist():
        row, copy = divmod(pair, len(copies))
        if len(taken_rows) == same:
            break
        if row not in taken_rows and copy not in taken_copies:
            taken_rows.add(row)
            taken_copies.add(copy)
            near = float(far[row, copy])
    return near


# --- Test the sensitivity of the user's own step: how far one record moves its release.

#: Random records of each physical batch, in addition to first, last, largest and smallest.
_RANDOM = 2
#: Records of each physical batch if replays are limited: where records do not change each other's
#: gradients, and where each record takes several replays.
_FEW, _FEW_REPLACED = 3, 4
#: Largest number of entries of a batch's gradients that are kept for later replays.
_KEPT = 40_000_000
#: Largest change of a release when its records' own gradients are put in, in clipping norms.
_GIVEN_BACK = 1e-3
#: Least cosine between a replaced record's changes under two seeds, if its gradient is random.
_RANDOM_GRADIENT = 0.5


def examine_sensitivity(asked: Asked) -> Answer:
    """Replay a step on neighbors of its batches."""
    base, most = asked.usual, 2.0 * asked.usual.stated
    # Without one of the records that share a clip, their sum may turn around.
    if base.share and not asked.replay.claim.fixed_size and most > 1.0 + asked.tolerated:
        return Answer(1, (Finding("one of several records that share a clip", most, 1.0),))
    if reason := asked.too_coarse(base):
        return Answer(reason=reason)
    examination = _Examination(asked)
    with contextlib.suppress(Stopped):  # findings until then are kept
        examination.ask()
        if asked.whole:  # one record is left out of it, too
            examination.ask_largest(asked.whole)
    return examination.answer()


class _Examination:
    """One examination of the sensitivity; see `examine_sensitivity`."""

    def __init__(self, asked: Asked) -> None:
        replay, self._asking = asked.replay, asked
        self._replay, self._batches, self._seed = replay, list(asked.batches), asked.seed
        self._base = asked.usual
        #: Whether a record is replaced, not left out or added: by definition, or for its draws.
        self._by_definition = replay.order.replaced
        self._replaced = self._by_definition or replay.claim.fixed_size or self._base.drew
        #: The records' gradients, once it is known that they can be put in.
        self._given: Rows | None = None
        self._tried = self._by_definition or len(asked.batches) > 1 or bool(replay.skips)
        self._pairs, self._moves = Pairs(asked, shown=self._base.shown), False

    def ask(self) -> None:
        """Replay the step without records of each kind, and with synthetic records."""
        rng, start = random.Random(self._seed), 0
        norms = self._base.all_norms
        for place, batch in enumerate(self._batches):
            end = start + rows(batch)
            own = norms[start:end] if len(norms) >= end > start else None
            chosen = _chosen(rows(batch), own, rng) if rows(batch) > 1 else {}
            for name, row in list(chosen.items())[: self._most]:
                where = f"the {name} record"
                where += f" of physical batch {place + 1}" * (len(self._batches) > 1)
                self._leave_out(place, row, where)
            start = end
        if not self._by_definition and rows(self._batches[-1]):
            made = made_up_records(self._replay, self._batches, self._seed)
            for name, longer in made:
                self._put_in(name, longer)

    def ask_largest(self, batches: Sequence[Any]) -> None:
        """Replay the step on other batches without the record of the largest gradient, if known."""
        self._batches, self._base = list(batches), self._replay.usual(batches, self._seed)
        self._tried, self._given = False, None
        norms = self._base.all_norms
        which = "largest" if len(norms) == rows(batches[0]) else "first"
        row = int(norms.argmax()) if which == "largest" else 0
        if not self._asking.too_coarse(self._base):
            self._leave_out(0, row, f"the {which} record of the whole batch")

    def answer(self) -> Answer:
        """Return the result."""
        answer = self._pairs.answer("neighbor of the batch")
        if not answer.reason and not self._moves:
            return Answer(reason=Reason.NO_RECORD)
        found = sorted(answer.findings, key=lambda finding: -finding.size)
        return replace(answer, findings=tuple(found))

    @property
    def _most(self) -> int | None:
        if not self._replay.limited:
            return None
        if self._asking.independent:
            return _FEW
        return _FEW_REPLACED if self._replaced else None

    # ------------------------------------------------------------------ neighbors

    def _leave_out(self, place: int, row: int, where: str) -> None:
        """Leave a record out; if that shifts random numbers, replace it, and zero its gradient."""
        count = rows(self._batches[place])
        if not self._replaced:
            others = [other for other in range(count) if other != row]
            if not self._judge(f"without {where}", self._pair(place, others), 1).shifted:
                return
            self._replaced = True
        order = list(range(count))
        order[row] = (row + count // 2) % count
        self._judge(f"another instead of {where}", self._pair(place, order), 2)
        self._zero(row, where)

    def _zero(self, row: int, where: str) -> None:
        """Replace a record's gradient by zeros, if gradients can be put in."""
        if not self._tried:
            self._tried, self._given = True, self._own_gradients()
        given = self._given
        if given is None:
            return
        zeroed = given.zeroed(row)

        def draw(seed: int) -> list[Replay]:
            return [self._replay.run(self._batches, seed, rows=each) for each in (given, zeroed)]

        self._judge(f"with zeros instead of the gradient of {where}", draw, 1, by_row=True)

    def _put_in(self, name: str, longer: Any) -> None:
        """Add a record after the others; if that shifts random numbers, replace the first one."""
        last, count = len(self._batches) - 1, rows(self._batches[-1])
        if not self._replaced:
            named = f"with one more record, {name}"
            pair = self._pair(last, range(count + 1), longer)
            if not self._judge(named, pair, 1, made_up=True).shifted:
                return
            self._replaced = True
        pair = self._pair(last, [count, *range(1, count)], longer)
        named = f"another instead of the first record, {name}"
        self._judge(named, pair, 2, made_up=True)

    def _pair(self, place: int, order: Sequence[int], batch: Any = None) -> Draw:
        """Return the pair of the step and the step with one physical batch changed."""
        changed = list(self._batches)
        changed[place] = taken(self._batches[place] if batch is None else batch, order)

        def draw(seed: int) -> list[Replay]:
            first = self._base
            if seed != self._seed:
                first = self._replay.run(self._batches, seed)
            return [first, self._replay.run(changed, seed)]

        return draw

    def _own_gradients(self) -> Rows | None:
        """Return the records' gradients, if they can be put in."""
        replay, batches, seed, base = self._replay, self._batches, self._seed, self._base
        count, size = rows(batches[0]), sum(replay.sizes)
        if replay.why_no_rows(base, count) or count * size > _KEPT:
            return None
        seen = replay.run(batches, seed, keep=size)
        if seen.error or not same_numbers(seen, base):
            return None
        given = Rows.of(seen.all_gradients / replay.claim.max_grad_norm)
        same = replay.run(batches, seed, rows=given)
        if same.error or not same_numbers(same, base) or distance(same, base) > _GIVEN_BACK:
            return None
        return given if hands_all_over(replay, batches[0], seed) else None

    # ------------------------------------------------------------------ one pair

    def _judge(
        self, name: str, draw: Draw, moved: int, *, made_up: bool = False, by_row: bool = False
    ) -> Judged:
        allowed = moved + self._asking.tolerated
        least = _RANDOM_GRADIENT if self._base.drew and moved > 1 else 0.0
        judged = judge(draw, self._seed, allowed, by_row=by_row, least_cosine=least)
        self._pairs.shifted += judged.shifted
        # A synthetic record may be invalid input for the user's code.
        if judged.tells and (math.isfinite(judged.far) or not made_up):
            self._pairs.asked += 1
            self._moves = self._moves or (judged.far > 0.0 and not by_row)
            if judged.far > allowed:
                self._pairs.take(Finding(name, judged.far, moved), draw, moved)
        return judged


def _chosen(count: int, norms: torch.Tensor | None, rng: random.Random) -> dict[str, int]:
    """Choose distinct rows of a batch, by description."""
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


# --- Test every record of a batch at once: how much of its gradient is in the sum.

#: Columns in which gradients are kept: per gradient, and at least.
_WIDE, _NARROW = 8, 256
#: Entries of a gradient more than gradients, at least.
_FEW_ROWS = 8
#: Part of a gradient beyond the clipping norm that is looked at.
_REST = 1e-3
#: Largest number of synthetic records, and steps of gradient ascent on their inputs.
_MADE_UP, _ASCENTS = 64, 2


def examine_factors(asked: Asked) -> Answer:
    """Replay a step on its batch, on synthetic records, and on records of large loss.

    A release minus that of zero gradients is the clipped sum, which is linear in the gradients: one
    linear system gives the factor of each. The losses are raised by gradient ascent on the inputs,
    within the range of the data.
    """
    replay, batches, seed, tolerated = asked.replay, asked.batches, asked.seed, asked.tolerated
    count, size = rows(batches[0]), sum(replay.sizes)
    reason = replay.why_no_rows(asked.usual, count)
    if reason or len(batches) > 1 or replay.skips:
        return Answer(reason=reason or Reason.ACCUMULATED)
    if size < count + _FEW_ROWS:
        return Answer(reason="a gradient has fewer entries than the batch has records")
    none = torch.zeros(size)
    given = RowsReplay(replay, batches[0], Rows.zeros(count, none), seed)
    own = (asked.whole or batches)[0]
    made, tested = own, 0
    for number in range(2 + _ASCENTS):
        what = "of the batch" if not number else "within the range of the data"
        inputs = _with_grad(made) if replay.forked else made
        no_rows = Rows.zeros(rows(made), none)
        zeros = given.run(no_rows, seed)
        if zeros.error:  # an own clipping needs the forward pass of as many records
            zeros = replay.run([made], seed, rows=no_rows)
        seen = replay.run([inputs], seed, keep=max(_WIDE * rows(made), _NARROW))
        if seen.finite is None or zeros.finite is None or not same_numbers(seen, zeros):
            break
        relation, parts = _parts(replay, seen, seen.release - zeros.release)
        tested += relation in ("rule", "linear")
        if parts.max() > 1.0 + max(tolerated, _REST):
            found = _confirmed(replay, made, int(parts.argmax()), tolerated, seed)
            if found.tells and 1.0 + tolerated < found.far < math.inf:
                name = f"with zeros instead of one gradient {what}"
                return Answer(tested, (Finding(name, found.far, 1.0),))
        if number and all(leaf.grad is None for leaf in leaves(inputs)):
            break
        some = range(min(rows(own), _MADE_UP))
        made = _raised(inputs) if number else taken(within_range(own, seed), some)
    return Answer(tested, reason="" if tested else "the clipped sum is not linear in the gradients")


def _parts(
    replay: StepReplay, seen: Replay, total: torch.Tensor
) -> tuple[Relation, NDArray[np.float64]]:
    """Return `parts_of_sum` of a replay with `folded` gradients, given its clipped sum, ``[d]``."""
    rows_of = seen.all_gradients / replay.claim.max_grad_norm
    split = [part[None] for part in torch.split(total, replay.sizes)]
    wanted = folded(split, rows_of.shape[1])[0]
    given = rows_of, seen.all_norms, wanted
    return parts_of_sum(*(each.double().cpu().numpy() for each in given))


def _confirmed(replay: StepReplay, batch: Any, row: int, tolerated: float, seed: int) -> Judged:
    """Replay a batch with and without one of its gradients, under two seeds."""
    replay.allow(7)
    seen = replay.run([batch], seed, keep=sum(replay.sizes))
    if seen.error or not hands_all_over(replay, batch, seed):
        return Judged(failed=True)
    given = Rows.of(torch.nan_to_num(seen.all_gradients / replay.claim.max_grad_norm))

    def draw(seed: int) -> list[Replay]:
        return [replay.run([batch], seed, rows=each) for each in (given, given.zeroed(row))]

    return judge(draw, seed, 1.0 + tolerated, by_row=True)


def _with_grad(batch: Any) -> Any:
    """Return a batch whose floating-point inputs get gradients."""
    return _pytree.tree_map(
        lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()), batch
    )


def _raised(batch: Any) -> Any:
    """Return a batch whose inputs are at the end of their column's range that raises the loss."""

    def moved(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.grad is None:
            return leaf.detach()
        low, high = leaf.detach().amin(0, keepdim=True), leaf.detach().amax(0, keepdim=True)
        return torch.where(leaf.grad > 0.0, high, torch.where(leaf.grad < 0.0, low, leaf.detach()))

    return _pytree.tree_map(moved, batch)
