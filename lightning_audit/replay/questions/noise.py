"""Test the noise of one step at every entry, by several draws under different random numbers.

Zero gradients replace those of the records, so that the release is noise alone. Further replays
with other gradients show whether the noise depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.checks.replay.drawn_noise import (
    CERTAIN,
    NOTHING,
    SIZES,
    Draws,
    Seen,
    draws_seen,
)
from lightning_audit.checks.replay.examined_noise import EARLIER, MISSING, OF_RECORDS, NoiseLook
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.unanswered import NOISE_ON_WEIGHTS
from lightning_audit.layout import FloatArray
from lightning_audit.replay.questions.noise_entries import DrawsOfNoise, NoiseEntries
from lightning_audit.replay.questions.replayed_pair import MORE, hands_all_over
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.replay_distance import hidden_by_noise, independent, rounding
from lightning_audit.replay.rows_replay import RowsReplay, why_no_rows
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.stats.dependence.contrasts import contrasts
from lightning_audit.stats.evalues.noise_scale import noise_log_e

#: Draws of the noise: usual, smallest, and if it is on a lattice or costs little.
DRAWS, LEAST_DRAWS, MORE_DRAWS = 12, 4, 24
#: Largest number of crafted gradients, and of entries over all of them.
_ROWS = 4
_ENTRIES = 20_000_000
#: Draws if replays are limited, and number of entries up to which more draws cost little.
_FEW_DRAWS, _CHEAP = 4, 20_000
#: Largest number of tested entries over all tensors, and if replays are limited.
_LOOKED_AT, _LOOKED_AT_SOON = 200_000, 5_000
#: Norms of gradients below and above the clipping norm, in units of the clipping norm.
_SMALL, _LARGE = 0.05, 30.0
#: Updates that estimate the noise of the weights.
_ON_WEIGHTS = 5
#: Factor that changes gradients slightly.
_LESS = 0.97
#: Relative difference of two numbers that are equal up to rounding.
_EQUAL = 1e-3
#: Smallest range of the draws of an entry with noise, over the claimed noise.
_STILL = 1e-4
#: Largest distance of releases of equal sums, relative to the norm of a draw.
_SAME = 1e-3
_APART = 104_729


@dataclass(frozen=True)
class ExaminedNoise:
    """Draws of an examination that are kept for the steps after it, in memory only.

    Args:
        entries: the tested entries.
        draws: of the noise alone at these entries, in units of the claim, ``[draws, entries]``.
    """

    entries: NoiseEntries
    draws: FloatArray


def examine_noise(replay: StepReplay, batch: Any, seed: int) -> Answer:
    """Draw the noise of a step several times, and test it.

    Args:
        replay: of the step.
        batch: a physical batch.
        seed: of the replays.
    """
    sigma = replay.noise_multiplier
    if not sigma > 0.0:
        return Answer(reason="no noise is claimed")
    count = rows(batch)
    usual = replay.usual([batch], seed)
    if reason := why_no_rows(usual, count, by_opacus=replay.clips_by_opacus):
        return Answer(reason=reason)
    size = sum(replay.sizes)
    many = max(min(count, _ROWS, _ENTRIES // size - 2), 2)
    return _Examination(replay, batch, many, seed, sigma).answer()


class _Examination:
    """One examination of the noise.

    Args:
        replay: of the step.
        batch: a physical batch.
        count: number of crafted gradients.
        seed: of the replays and of the gradients.
        sigma: the claimed noise over the clipping norm.
    """

    def __init__(self, replay: StepReplay, batch: Any, count: int, seed: int, sigma: float) -> None:
        self._replay, self._batch, self._seed, self._sigma = replay, batch, seed, sigma
        self._count, self._size = count, sum(replay.sizes)
        self._type = replay.dtype
        self._zeros = torch.zeros(count, self._size, dtype=self._type)
        self._given = RowsReplay(replay, batch, self._zeros, seed)
        self._entries = NoiseEntries.of(
            replay.layout, _LOOKED_AT_SOON if replay.limited else _LOOKED_AT
        )
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(self._size, generator=generator, dtype=torch.float64)
        self._direction = dense / dense.norm()
        #: The first draw of the noise, and the last replay that released something.
        self._first = self._last = Replay()

    def answer(self) -> Answer:
        """Draw the noise, and test it."""
        draws = DrawsOfNoise(self._entries)
        self._draw(draws, self._wanted())
        if len(draws) < LEAST_DRAWS:
            return Answer(reason=self._replay.why_none("draw of the noise"))
        first = draws.first
        if draws.same and bool(first.any()):
            if found := self._of_other_sums(first):
                return self._told({OF_RECORDS: found}, len(draws))
            return Answer(
                reason="the noise generator is seeded within the step, so that the noise is the "
                "same under other random numbers"
            )
        plain = self._small_sum()
        if draws.lattice:
            self._draw(draws, MORE_DRAWS - len(draws), begin=len(draws))
        sum_of_rows = None if plain is None else plain - first
        gain = self._gain(first, sum_of_rows, lattice=draws.lattice)
        sigma = self._sigma * (gain or 1.0)
        tensors = draws.in_units_of(sigma)
        with_rows = None if plain is None else self._entries.of_release(plain / sigma)
        drawn = Draws(tensors, self._entries.names, 1.0 / self._sigma, gain is not None, with_rows)
        seen = draws_seen(drawn)
        size = next(kind for kind in SIZES if kind in seen)
        if seen[size].log_e > 0.0 and (shared := drawn.repeated_part):
            seen[EARLIER] = seen.pop(size)._replace(what=shared)
        of_records = self._of_records(first) or self._of_other_sums(first)
        if gain is None and not draws.lattice and not of_records:
            of_records = self._along_the_sum(len(draws))
        missing = self._missing(draws, sum_of_rows)
        if missing.log_e > 0.0 and self._is_on_weights(self._still(draws)):
            return Answer(reason=NOISE_ON_WEIGHTS)
        seen |= {MISSING: missing, OF_RECORDS: of_records or NOTHING}
        kept = None
        if gain is not None:
            flat = np.concatenate([own.reshape(len(own), -1) for own in tensors], axis=1)
            kept = ExaminedNoise(self._entries, flat.astype(np.float32))
        return self._told(seen, len(draws), kept)

    def _told(self, seen: Mapping[str, Seen], draws: int, kept: Any = None) -> Answer:
        of_records = seen.get(OF_RECORDS, NOTHING).log_e > 0.0
        alone = not of_records or self._given.alone
        if not alone and not hands_all_over(self._replay, self._batch, self._seed):
            return Answer(reason=MORE)
        look = NoiseLook(seen, draws, self._entries.count)
        return Answer(draws, look.findings, noise=look, kept=kept)

    def _is_on_weights(self, still: torch.Tensor) -> bool:
        """Return whether the weights have the noise that the gradient lacks, after the update."""
        one = self._zeros.clone()
        one[-1] = (_LARGE * self._direction).to(self._type)
        self._replay.allow(1 + _ON_WEIGHTS)
        first, *draws = [
            self._given.weights(rows, self._seed + number * _APART)
            for rows, number in [(one, 0), *((self._zeros, n) for n in range(_ON_WEIGHTS))]
        ]
        known = [own[still] for own in draws if own is not None]
        if first is None or len(known) < len(draws):
            return False
        return hidden_by_noise(first[still] - known[0], known, self._sigma, 1.0)

    def _wanted(self) -> int:
        """Return the number of draws."""
        if self._replay.limited:
            return _FEW_DRAWS
        return MORE_DRAWS if self._given.alone and self._size <= _CHEAP else DRAWS

    # ------------------------------------------------------------------ replays

    def _draw(self, draws: DrawsOfNoise, count: int, begin: int = 0) -> None:
        for number in range(begin, begin + count):
            if not self._replay.has_left(1) and len(draws) >= LEAST_DRAWS:
                break
            release = self._release(self._zeros, number)
            if release is not None:
                self._first = self._last if number == 0 else self._first
                draws.take(release)

    def _release(self, gradients: torch.Tensor, number: int = 0) -> torch.Tensor | None:
        """Return the release for gradients under the random numbers of a draw, ``[d]``."""
        replay = self._given.run(gradients, self._seed + number * _APART)
        release = replay.finite
        if release is not None:
            self._last = replay
        return release

    def _small_sum(self, number: int = 0) -> torch.Tensor | None:
        """Return the release for equal gradients below the clipping norm, ``[d]``."""
        return self._release(self._small_rows, number)

    @property
    def _small_rows(self) -> torch.Tensor:
        row: torch.Tensor = (_SMALL * self._direction).to(self._type)
        return row.repeat(self._count, 1)

    # ------------------------------------------------------------------ tests

    def _gain(
        self, draw: torch.Tensor, added: torch.Tensor | None, *, lattice: bool
    ) -> float | None:
        """Return the largest change by one record, at most 1, if a release is the sum plus noise.

        None if a release was processed further, so that it does not show the noise itself.
        """
        if added is None or lattice:
            return None
        norm = float(added.norm())
        rounded = 2.0 * rounding([draw], self._replay.dtypes)
        along = float(added @ self._direction)
        across = float((added - along * self._direction).norm())
        if not norm > 4.0 * rounded or across > _EQUAL * norm + rounded:
            return None
        again, other = self._small_sum(1), self._release(self._zeros, 1)
        if again is None or other is None:
            return None
        if float((again - other - added).norm()) > _EQUAL * norm + 2.0 * rounded:
            return None
        one = self._zeros.clone()
        one[-1] = (_LARGE * self._direction).to(self._type)
        clipped = self._release(one)
        if clipped is None:
            return None
        return min(1.0, max(float((clipped - draw).norm()), _EQUAL))

    def _still(self, draws: DrawsOfNoise) -> torch.Tensor:
        """Return which entries have no noise, ``[d]``."""
        return draws.high - draws.low < _STILL * self._sigma

    def _missing(self, draws: DrawsOfNoise, added: torch.Tensor | None) -> Seen:
        """Return evidence of entries that a record moves but that have no noise."""
        still = self._still(draws)
        if added is None or not bool(still.any()):
            return Seen(0.0, "")
        moved = still & (added.abs() > 1e-3 * _SMALL * self._direction.abs())
        count = int(moved.sum())
        if not count:
            return Seen(0.0, "")
        names = self._entries.tensors_of(moved)
        return Seen(CERTAIN, f"{count:,} of {self._size:,} entries have none, in {names}")

    def _of_records(self, draw: torch.Tensor) -> Seen | None:
        """Return evidence that the noise differs between gradients with the same sum."""
        pairs = torch.zeros_like(self._zeros)
        for row in range(self._count - self._count % 2):
            pairs[row] = (3.0 if row % 2 else -3.0) * self._direction.to(self._type)
        more = self._zeros.new_zeros(self._count + 2, self._size)
        for gradients, what in ((more, "the number of records"), (pairs, "gradients")):
            other = self._release(gradients)
            if other is None:
                continue
            if what == "gradients":
                by_draws = self._draws_for_rows(gradients, other)
            else:
                by_draws = not same_numbers(self._first, self._last) or independent(draw, other)
            far = float(self._across(other - draw).norm()) / max(float(draw.norm()), 1e-30)
            if gradients is more and far > _SAME and self._divides(draw, other):
                continue
            if not by_draws and far > _SAME and self._varies(gradients, other - draw):
                return Seen(CERTAIN, f"it depends on {what}, although the gradients' sum is equal")
        return None

    def _divides(self, draw: torch.Tensor, other: torch.Tensor) -> bool:
        """Return whether the number of records divides the noise ``draw`` and the sum alike."""
        part = self._count / (self._count + 2)
        if float((other - part * draw).norm()) > _SAME * float(draw.norm()):
            return False
        row = (_SMALL * self._direction).to(self._type)
        one, two = self._small_sum(), self._release(row.repeat(self._count + 2, 1))
        if one is None or two is None:
            return False
        # The mean of equal gradients does not depend on their number.
        return float((two - other - (one - draw)).norm()) <= _EQUAL * float((one - draw).norm())

    def _draws_for_rows(self, gradients: torch.Tensor, release: torch.Tensor) -> bool:
        """Return whether the last release has other noise because its rows are not zero.

        A step may draw numbers only for nonzero rows; then other nonzero rows have the same noise.
        """
        last = self._last
        if same_numbers(self._first, last):
            return False
        other = self._release(_LESS * gradients)
        if other is None or not same_numbers(last, self._last):
            return False
        return float(self._across(other - release).norm()) <= _SAME * float(release.norm())

    def _across(self, change: torch.Tensor) -> torch.Tensor:
        """Return a change without its part along the gradients, as from rows dropped at random."""
        along: torch.Tensor = (change @ self._direction) * self._direction
        return change - along

    def _of_other_sums(self, draw: torch.Tensor) -> Seen | None:
        """Return evidence that gradients that are small relative to the noise change it."""
        other = self._small_sum()
        if other is None or not bool(draw.any()):
            return None
        small = self._count * _SMALL < 0.1 * float(draw.norm())
        if not small or float(self._across(other - draw).norm()) < 0.5 * float(draw.norm()):
            return None
        if self._draws_for_rows(self._small_rows, other):
            return None
        return Seen(CERTAIN, "it is another one with other gradients")

    def _along_the_sum(self, count: int) -> Seen | None:
        """Return evidence of too little noise along the gradients' sum, however it is processed."""
        releases = [self._small_sum(number) for number in range(count)]
        noise = contrasts(np.stack([r.numpy() for r in releases if r is not None]))
        if len(noise) < LEAST_DRAWS or self._size < _LARGE:
            return None
        along = noise @ self._direction.numpy()
        squares = float(np.square(along).sum() / np.square(noise).mean())
        log_e = float(noise_log_e(len(noise), squares))
        part = math.sqrt(squares / len(noise))
        return Seen(log_e, f"along the sum of the gradients it is {part:.2g} times its mean size")

    def _varies(self, gradients: torch.Tensor, change: torch.Tensor) -> bool:
        """Return whether a change differs under other random numbers, as a change of noise does."""
        one, other = self._release(gradients, 1), self._release(self._zeros, 1)
        if one is None or other is None:
            return False
        again = self._across(one - other)
        change = self._across(change)
        return float((again - change).norm()) > 0.1 * float(change.norm())
