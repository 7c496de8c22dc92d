"""Tests the noise of one step at every entry, by several draws under different random numbers.

**Test the noise of one step at every entry, by several draws under different random numbers.** Zero
gradients replace those of the records, so that the release is noise alone. Further replays with
other gradients show whether the noise depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_audit.canaries.inputs import rows
from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.checks.replayed_noise import (
    CERTAIN,
    EARLIER,
    MISSING,
    NOTHING,
    OF_RECORDS,
    SEED,
    SIZES,
    Draws,
    NoiseLook,
    Seen,
    draws_seen,
    successive_seen,
)
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.hooks.gradient_tap import clipped_sums
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.layout import FloatArray, Layout
from lightning_audit.replay.clipping import unit_direction
from lightning_audit.replay.question import Asked
from lightning_audit.replay.records import MORE, hands_all_over
from lightning_audit.replay.releases import (
    hidden_by_noise,
    independent,
    on_a_lattice,
    rounding,
)
from lightning_audit.replay.rows import Rows
from lightning_audit.replay.step_replay import (
    Replay,
    RowsReplay,
    StepReplay,
    same_numbers,
)
from lightning_audit.stats.dependence import contrasts
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.seeds import small_seed

# --- The entries of a gradient at which its noise is tested: all, or the first rows of tensors.

#: Tensors that a finding names.
_NAMED = 3


@dataclass(frozen=True)
class NoiseEntries:
    """The tested entries of some tensors.

    Args:
        names: of the tensors.
        shapes: rows and columns of the tested part of each tensor.
        columns: number of columns of each whole tensor.
        sizes: number of entries of each whole tensor.
    """

    names: Sequence[str]
    shapes: Sequence[tuple[int, int]]
    columns: Sequence[int]
    sizes: Sequence[int]

    @classmethod
    def of(cls, layout: Layout, most: int) -> NoiseEntries:
        """Choose about ``most`` entries of a layout: an equal part of each tensor's rows."""
        sizes = [slot.numel for slot in layout]
        part = min(1.0, most / max(sum(sizes), 1))
        shapes, columns = [], []
        for slot in layout:
            wide = math.prod(slot.shape[1:]) if len(slot.shape) > 1 else max(slot.numel, 1)
            high = slot.numel // wide if wide else 0
            rows = max(1, math.ceil(part * high)) if high else 0
            seen = wide if rows > 1 or part == 1.0 else max(1, math.ceil(part * wide * high / rows))
            shapes.append((rows, min(seen, wide)))
            columns.append(wide)
        return cls([slot.name for slot in layout], shapes, columns, sizes)

    @property
    def count(self) -> int:
        """The number of tested entries."""
        return sum(rows * columns for rows, columns in self.shapes)

    def of_release(self, release: torch.Tensor) -> list[FloatArray]:
        """Return the tested entries of a release ``[d]``, ``[rows, columns]`` for each tensor."""
        found = []
        for own, (height, seen), wide in zip(
            torch.split(release, list(self.sizes)), self.shapes, self.columns, strict=True
        ):
            found.append(own[: height * wide].reshape(height, wide)[:, :seen].numpy().copy())
        return found

    def tensors_of(self, marked: torch.Tensor) -> str:
        """Return the names of the tensors in which entries are marked, ``[d]``."""
        parts = torch.split(marked, list(self.sizes))
        names = [n for n, own in zip(self.names, parts, strict=True) if bool(own.any())]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(f"`{name}`" for name in names[:_NAMED]) + more


def flat(entries: Sequence[FloatArray]) -> FloatArray:
    """Concatenate the entries of all tensors."""
    return np.concatenate([own.ravel() for own in entries])


class DrawsOfNoise:
    """Summary of draws of the noise alone; whole draws would take too much memory.

    Args:
        entries: the tested entries.
    """

    def __init__(self, entries: NoiseEntries) -> None:
        self._entries = entries
        #: The first draw, and the largest and smallest value of each entry, ``[d]``.
        self.first = self.high = self.low = torch.empty(0)
        #: The tested entries of each draw, by tensor.
        self.looked: list[list[FloatArray]] = []
        #: Whether all draws are equal, and whether the first two differ by steps of a lattice.
        self.same, self.lattice = True, False

    def __len__(self) -> int:
        return len(self.looked)

    def take(self, draw: torch.Tensor) -> None:
        """Add a draw, ``[d]``."""
        if not self.looked:
            self.first, self.high, self.low = draw, draw.clone(), draw.clone()
        elif len(self) == 1:
            self.lattice = on_a_lattice(draw - self.first)
        self.same = self.same and torch.equal(draw, self.first)
        torch.maximum(self.high, draw, out=self.high)
        torch.minimum(self.low, draw, out=self.low)
        self.looked.append(self._entries.of_release(draw))

    def in_units_of(self, sigma: float) -> list[FloatArray]:
        """Return the tested entries of all draws, ``[draws, rows, columns]`` for each tensor."""
        return [np.stack(own) / sigma for own in zip(*self.looked, strict=True)]


# --- Test the noise of one step at every entry, by several draws under different random numbers.

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
_ON_WEIGHTS = 64
#: Factor that changes gradients slightly.
_LESS = 0.97
#: Relative difference of two numbers that are equal up to rounding.
_EQUAL = 1e-3
#: Smallest range of the draws of an entry with noise, over the claimed noise.
_STILL = 1e-4
#: Largest distance of releases of equal sums, relative to the norm of a draw.
_SAME = 1e-3
_APART = 104_729
#: Kind of an answer if records set the noise multiplier, which is a finding of `replay.release`.
SET = "set"


@dataclass(frozen=True)
class ExaminedNoise:
    """Draws of an examination that are kept for the steps after it, in memory only.

    Args:
        entries: the tested entries.
        draws: of the noise alone at these entries, in units of the claim, ``[draws, entries]``.
    """

    entries: NoiseEntries
    draws: FloatArray


def examine_noise(asked: Asked) -> Answer:
    """Draw the noise of a step several times, and test it."""
    replay, batch = asked.replay, asked.largest
    if not replay.claim.noise_multiplier > 0.0:
        return Answer(reason="no noise is claimed")
    if reason := replay.why_no_rows(replay.usual([batch], asked.seed), rows(batch)):
        return Answer(reason=reason)
    return _Examination(replay, batch, asked.seed).answer()


class _Examination:
    """One examination of the noise; see `examine_noise`."""

    def __init__(self, replay: StepReplay, batch: Any, seed: int) -> None:
        self._replay, self._batch, self._seed = replay, batch, seed
        #: The claimed noise over the clipping norm.
        self._sigma = replay.claim.noise_multiplier
        #: Number of entries, and of crafted gradients.
        self._size = sum(replay.sizes)
        self._count = max(min(rows(batch), _ROWS, _ENTRIES // self._size - 2), 2)
        self._direction = unit_direction(replay, seed)
        self._row = self._direction.to(replay.dtype)
        self._zeros = Rows.zeros(self._count, self._row)
        self._given = RowsReplay(replay, batch, self._zeros, seed)
        self._entries = NoiseEntries.of(
            replay.order.step.layout, _LOOKED_AT_SOON if replay.limited else _LOOKED_AT
        )
        #: The first draw of the noise, and the last replay that released something.
        self._first = self._last = Replay()
        #: Whether other records had another noise multiplier.
        self._decided = False

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
            # A generator that the step makes once is no fault: the state after it has it.
            once = self._replay.order.before is not None
            if not once and (seed := self._small_seed(first)):
                return self._told({SEED: Seen(CERTAIN, f"it is that of {seed}")}, len(draws))
            return Answer(reason=Reason.SEEDED)
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
            return Answer(reason=Reason.NOISE_ON_WEIGHTS)
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
        return Answer(draws, look.findings, noise=look, kept=kept, kind=SET * self._decided)

    def _is_on_weights(self, still: torch.Tensor) -> bool:
        """Return whether the weights have the noise that the gradient lacks, after the update."""
        self._replay.allow(1 + _ON_WEIGHTS)
        asked = [(self._large_one, 0), *((self._zeros, number) for number in range(_ON_WEIGHTS))]
        first, *draws = [
            self._given.weights(rows, self._seed + number * _APART) for rows, number in asked
        ]
        known = [own[still] for own in draws if own is not None]
        if first is None or len(known) < len(draws):
            return False
        change, level = first[still] - known[0], self._replay.next_level()
        return hidden_by_noise(change, known, self._sigma, 1.0, level)

    def _wanted(self) -> int:
        """Return the number of draws."""
        if self._replay.limited:
            return _FEW_DRAWS
        return MORE_DRAWS if self._given.alone and self._size <= _CHEAP else DRAWS

    def _small_seed(self, draw: torch.Tensor) -> str:
        """Return the small seed of a draw ``[d]``, from its first or its last large tensor."""
        tensors = [own for own in torch.split(draw, self._replay.sizes) if len(own) >= _LEAST]
        ends = (small_seed(own.numpy()) for own in tensors[:1] + tensors[1:][-1:])
        return next(filter(None, ends), "")

    # ------------------------------------------------------------------ replays

    def _draw(self, draws: DrawsOfNoise, count: int, begin: int = 0) -> None:
        for number in range(begin, begin + count):
            if not self._replay.has_left(1) and len(draws) >= LEAST_DRAWS:
                break
            release = self._release(self._zeros, number)
            if release is not None:
                self._first = self._last if number == 0 else self._first
                draws.take(release)

    def _release(self, gradients: Rows, number: int = 0) -> torch.Tensor | None:
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
    def _small_rows(self) -> Rows:
        return Rows.alike(_SMALL * self._row, self._count)

    @property
    def _large_one(self) -> Rows:
        return Rows.alone(_LARGE * self._row, -1, self._count)

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
        rounded = 2.0 * rounding([float(draw.norm())], self._replay.dtypes)
        along = float(added @ self._direction)
        across = float((added - along * self._direction).norm())
        if not norm > 4.0 * rounded or across > _EQUAL * norm + rounded:
            return None
        again, other = self._small_sum(1), self._release(self._zeros, 1)
        if again is None or other is None:
            return None
        if float((again - other - added).norm()) > _EQUAL * norm + 2.0 * rounded:
            return None
        clipped = self._release(self._large_one)
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
            return NOTHING
        moved = still & (added.abs() > 1e-3 * _SMALL * self._direction.abs())
        count = int(moved.sum())
        if not count:
            return NOTHING
        names = self._entries.tensors_of(moved)
        return Seen(CERTAIN, f"{count:,} of {self._size:,} entries have none, in {names}")

    def _of_records(self, draw: torch.Tensor) -> Seen | None:
        """Return evidence that the noise differs between gradients with the same sum."""
        opposite = 3.0 * torch.stack([-self._row, self._row])
        pairs = Rows(opposite, torch.arange(self._count) % 2)
        pairs = pairs.zeroed(-1) if self._count % 2 else pairs
        more = Rows.zeros(self._count + 2, self._row)
        for gradients, what in ((more, "the number of records"), (pairs, "gradients")):
            other = self._release(gradients)
            if other is None:
                continue
            if self._last.noise != self._first.noise:
                self._decided = True
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
        more = Rows.alike(_SMALL * self._row, self._count + 2)
        one, two = self._small_sum(), self._release(more)
        if one is None or two is None:
            return False
        # The mean of equal gradients does not depend on their number.
        return float((two - other - (one - draw)).norm()) <= _EQUAL * float((one - draw).norm())

    def _draws_for_rows(self, gradients: Rows, release: torch.Tensor) -> bool:
        """Return whether the last release has other noise because its rows are not zero.

        A step may draw numbers only for nonzero rows; then other nonzero rows have the same noise.
        """
        last = self._last
        if same_numbers(self._first, last):
            return False
        other = self._release(gradients * _LESS)
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
        if len(noise) < LEAST_DRAWS or self._size < _LARGE or not noise.any():
            return None
        along = noise @ self._direction.numpy()
        squares = float(np.square(along).sum() / np.square(noise).mean())
        log_e = float(noise_log_e(len(noise), squares))
        part = math.sqrt(squares / len(noise))
        return Seen(log_e, f"along the sum of the gradients it is {part:.2g} times its mean size")

    def _varies(self, gradients: Rows, change: torch.Tensor) -> bool:
        """Return whether a change differs under other random numbers, as a change of noise does."""
        one, other = self._release(gradients, 1), self._release(self._zeros, 1)
        if one is None or other is None:
            return False
        again = self._across(one - other)
        change = self._across(change)
        return float((again - change).norm()) > 0.1 * float(change.norm())


# --- The noise of a few steps after an examination, kept in memory only.

#: Number of steps whose noise is kept.
STEPS = 8
#: Smallest number of entries for which so few steps are tested.
_LEAST = 16


class SuccessiveSteps:
    """The noise of the next steps of an Opacus optimizer.

    A different draw of the examination is subtracted from each step's noise, which cancels what all
    noise has in common.

    Args:
        step: the adapter of the optimizer.
        examined: the draws of an examination, and their entries.
    """

    def __init__(self, step: DPSGDStep, examined: ExaminedNoise) -> None:
        self._step, self._examined = step, examined
        self._noise: list[FloatArray] = []
        #: Whether no further noise is kept.
        self.full = False
        private = private_optimizer(step.optimizer)
        self._hook = None
        if private is None or len(examined.draws[0]) < _LEAST:
            self.full = True
        else:
            self._hook = MethodHook(private, "add_noise", after=self._keep)

    @torch.no_grad()
    def _keep(self) -> None:
        """Keep the noise of a step, after it was added."""
        if self.full:
            return
        params = self._step.params
        sums, claim = clipped_sums(params), self._step.claim()
        unit = claim.noise_multiplier * claim.max_grad_norm
        parts: list[torch.Tensor] = []
        for p, own in zip(params, sums, strict=True):
            if own is None or p.grad is None or own.numel() != p.grad.numel():
                self.full = True
                return
            parts.append(
                (p.grad.detach() - own.view_as(p.grad)).reshape(-1).to("cpu", torch.float64)
            )
        if not unit > 0.0:
            self.full = True
            return
        entries = flat(self._examined.entries.of_release(torch.cat(parts) / unit))
        self._noise.append(entries - self._examined.draws[len(self._noise)])
        self.full = len(self._noise) >= min(STEPS, len(self._examined.draws))

    def look(self) -> NoiseLook | None:
        """Return the result; None with fewer than two steps."""
        if len(self._noise) < 2 or not all(np.isfinite(noise).all() for noise in self._noise):
            return None
        seen = successive_seen(self._noise)
        return NoiseLook({"earlier": seen}, kinds=1)

    def remove(self) -> None:
        """Remove the hook from the optimizer."""
        self.full = True
        if self._hook is not None:
            self._hook.remove()
