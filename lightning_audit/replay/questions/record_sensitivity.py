"""Test the sensitivity of the user's own step: how far one record moves its release.

The step is replayed on its batch and on the batch without one record, under the same random
numbers, so that the noise cancels and the difference is the record's contribution. DP-SGD
guarantees that it is at most the clipping norm, for any record. If removing a record shifts the
random numbers of the others, it is replaced by another record, and its gradient by zeros.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.replay_findings import Finding
from lightning_audit.checks.replay.unanswered import NO_RECORD, NOT_SHOWN
from lightning_audit.replay.questions.made_up_records import made_up_records
from lightning_audit.replay.questions.replayed_pair import (
    SHIFTED,
    Draw,
    Judged,
    Unshown,
    hands_all_over,
    judge,
)
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Replay, Stopped
from lightning_audit.replay.replay_distance import distance, rounding, too_coarse
from lightning_audit.replay.rows_replay import why_no_rows
from lightning_audit.replay.step_replay import StepReplay

#: Random records of each physical batch, in addition to first, last, largest and smallest.
_RANDOM = 2
#: Records of each physical batch if replays are limited and each record takes several.
_FEW = 4
#: Largest number of entries of a batch's gradients that are kept for later replays.
_KEPT = 40_000_000
#: Largest change of a release when its records' own gradients are put in, in clipping norms.
_GIVEN_BACK = 1e-3
#: Least cosine between a replaced record's changes under two seeds, if its gradient is random.
_RANDOM_GRADIENT = 0.5


def tolerance(dtypes: Sequence[torch.dtype], *, low_precision: bool) -> float:
    """Return the tolerance for rounding of a sensitivity, in units of the clipping norm.

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
    """Replay a step on neighbors of its batches.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        tolerated: rounding, in units of the clipping norm.
        seed: of the replays, and of the choice of records.
        replaced: whether neighbors differ by a replaced record, not by an added or removed one.
    """
    base = replay.usual(batches, seed)
    if reason := too_coarse(rounding(base.releases, replay.dtypes), tolerated):
        return Answer(reason=reason)
    examination = _Examination(replay, batches, tolerated, seed, replaced=replaced)
    with contextlib.suppress(Stopped):  # findings until then are kept
        examination.ask()
    return examination.answer()


class _Examination:
    """One examination of the sensitivity; see `examine_sensitivity`."""

    def __init__(
        self,
        replay: StepReplay,
        batches: Sequence[Any],
        tolerated: float,
        seed: int,
        *,
        replaced: bool,
    ) -> None:
        self._replay, self._batches, self._seed = replay, list(batches), seed
        self._tolerated, self._by_definition = tolerated, replaced
        self._base = replay.usual(batches, seed)
        #: Whether a record is replaced, not left out or added.
        self._replaced = replaced or self._base.drew
        #: The records' gradients, once it is known that they can be put in.
        self._given: torch.Tensor | None = None
        self._tried = replaced or len(batches) > 1 or bool(replay.skips)
        self._found: list[Finding] = []
        self._asked, self._shifted, self._moves = 0, 0, False
        self._unshown = Unshown(replay, seed, shown=self._base.shown)

    def ask(self) -> None:
        """Replay the step without records of each kind, and with synthetic records."""
        rng, start = random.Random(self._seed), 0
        norms = torch.cat(self._base.norms) if self._base.norms else torch.zeros(0)
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

    def answer(self) -> Answer:
        """Return the result."""
        if self._unshown.count and not self._found:
            return Answer(reason=NOT_SHOWN)
        if self._asked and not self._moves:
            return Answer(reason=NO_RECORD)
        why = SHIFTED if self._shifted else self._replay.why_none("neighbor of the batch")
        found = sorted(self._found, key=lambda finding: -finding.size)
        return Answer(self._asked, tuple(found), "" if self._asked else why)

    @property
    def _most(self) -> int | None:
        return _FEW if self._replay.limited and self._replaced else None

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
        zeroed = given.clone()
        zeroed[row] = 0.0

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

    def _own_gradients(self) -> torch.Tensor | None:
        """Return the records' gradients in clipping norms, ``[n, d]``, if they can be put in."""
        replay, batches, seed, base = self._replay, self._batches, self._seed, self._base
        count, size = rows(batches[0]), sum(replay.sizes)
        if why_no_rows(base, count, by_opacus=replay.clips_by_opacus) or count * size > _KEPT:
            return None
        seen = replay.run(batches, seed, keep=size)
        if seen.error or not same_numbers(seen, base):
            return None
        given = torch.cat(seen.gradients) / replay.clipping_norm
        same = replay.run(batches, seed, rows=given)
        if same.error or not same_numbers(same, base) or distance(same, base) > _GIVEN_BACK:
            return None
        return given if hands_all_over(replay, batches[0], seed) else None

    # ------------------------------------------------------------------ one pair

    def _judge(
        self, name: str, draw: Draw, moved: int, *, made_up: bool = False, by_row: bool = False
    ) -> Judged:
        allowed = moved + self._tolerated
        least = _RANDOM_GRADIENT if self._base.drew and moved > 1 else 0.0
        judged = judge(draw, self._seed, allowed, by_row=by_row, least_cosine=least)
        self._shifted += judged.shifted
        # A synthetic record may be invalid input for the user's code.
        if judged.tells and (math.isfinite(judged.far) or not made_up):
            self._asked += 1
            self._moves = self._moves or judged.far > 0.0
            if judged.far > allowed and not self._unshown.takes(draw, moved):
                self._found.append(Finding(name, judged.far, moved))
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
