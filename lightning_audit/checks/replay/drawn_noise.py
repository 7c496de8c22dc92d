"""Tests of several draws of one step's noise, at every entry that is read.

A draw is the release of a step without records, in units of the claimed noise. The part that all
draws have in common (a mean, weight decay) is not noise; only the test of repeated values uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lightning_audit.checks.replay.repeated_numbers import (
    copied_entries,
    few_values,
    repeated_numbers,
)
from lightning_audit.layout import FloatArray
from lightning_audit.stats.dependence.contrasts import contrasts, differences
from lightning_audit.stats.dependence.low_rank import low_rank_log_e
from lightning_audit.stats.dependence.symmetric_noise import product_log_e, together_log_e
from lightning_audit.stats.evalues.noise_scale import chosen_upper, interval_in_words, noise_log_e
from lightning_audit.stats.evalues.noise_shape import TailBet
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Kind of finding for correlated entries; the e-values of its looks are multiplied.
TOGETHER = "together"
#: Kinds for too little noise somewhere, over a whole tensor, and in every tensor; in the last case
#: the noise of every tensor is below the following fraction of the claim.
SIZES = SMALL, TENSOR, SCALE = "small", "tensor", "scale"
_ALL_SMALL = 0.95
_SEEN = math.log(1000.0)
#: Least number of entries that determine the size of a tensor's noise.
_LARGE_TENSOR = 500
#: Log e-value of a finding that independent draws of each entry cannot produce.
CERTAIN = 500.0
#: Assumed fractions of entries with less noise than the others.
_PARTS = (0.1, 0.01, 0.001)
#: Largest number of pairs of tensors compared, and of rows or columns whose rank is tested.
_PAIRS, _SIDE = 60, 512
#: Largest number of entries whose tails are tested.
_TAILS = 100_000
#: Largest number of draws whose rank is tested.
_RANKED = 3
#: Least number of rows and columns of a matrix whose rank is tested.
_LEAST_SIDE = 4
#: Largest mean square, over the claimed one, at which correlated entries imply less than the
#: claimed noise in some direction.
_AS_CLAIMED = 1.02
#: Qualifier of a limit of the noise in messages.
_AT = "at one look"
#: Distances at which entries are compared.
_NEAR = (1, 2, 3, 4)


class Seen(NamedTuple):
    """Result of one test.

    Args:
        log_e: log e-value against noise that is drawn as claimed.
        what: description for a finding.
    """

    log_e: float
    what: str


@dataclass(frozen=True)
class Draws:
    """Draws of the noise of one step.

    Args:
        tensors: entries or first rows of each tensor, in units of the claimed noise,
            ``[draws, rows, columns]``.
        names: of the tensors.
        shift: largest change by one record, over the claimed noise.
        sized: whether the values are the noise itself, and not a function of it.
        with_rows: entries of a release with records, at the same places; None if there is none.
    """

    tensors: Sequence[FloatArray]
    names: Sequence[str]
    shift: float
    sized: bool = True
    with_rows: Sequence[FloatArray] | None = None

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(self.tensors[0])

    @property
    def flat(self) -> FloatArray:
        """All entries of each draw, ``[draws, entries]``."""
        return np.concatenate([own.reshape(len(own), -1) for own in self.tensors], axis=1)

    @property
    def sums(self) -> FloatArray:
        """Count and sum of squares of all tensors together, and of each large one, ``[n, 2]``."""
        parts = [np.square(contrasts(own)).ravel() for own in self.tensors]
        large = [part for part in parts if part.size >= _LARGE_TENSOR]
        return np.array([(part.size, part.sum()) for part in (np.concatenate(parts), *large)])

    @property
    def repeated_part(self) -> str:
        """Message about noise of the claimed size that all draws share in part; or empty."""
        squares = sum(float(np.square(own).sum()) for own in self.tensors)
        whole = squares / sum(own.size for own in self.tensors)
        own = sum(float(np.square(contrasts(own)).sum()) for own in self.tensors)
        drawn = own / sum(own.size for own in self.tensors) * self.count / (self.count - 1)
        if not whole > 0.98 or drawn > 0.98 * whole:
            return ""
        return f"{1.0 - drawn / whole:.0%} of its variance is the same under other random numbers"


def draws_seen(draws: Draws) -> dict[str, Seen]:
    """Return the result of each family of tests; a family that cannot run has a log e-value of 0.

    Args:
        draws: two or more.

    Returns:
        Results by name of the family. `examined_noise` averages their e-values.
    """
    seen = {kind: family(draws) for kind, family in FAMILIES.items()}
    sums = draws.sums
    ratios = np.sqrt(sums[:, 1] / sums[:, 0])
    if min(ratios) < _ALL_SMALL:  # tails are valid only for noise of the claimed size
        seen["tails"] = NOTHING
    if seen[SMALL].log_e > _SEEN and max(ratios) < _ALL_SMALL:
        upper = max(chosen_upper(n, squares, len(sums)) for n, squares in sums)
        everywhere = f"the noise of every tensor is {interval_in_words(None, upper, _AT)}"
        seen[SCALE] = seen.pop(SMALL)._replace(what=everywhere)
    elif seen[SMALL].log_e > _SEEN and seen[SMALL].what in {one.what for one in _whole(draws)}:
        seen[TENSOR] = seen.pop(SMALL)
    return seen


NOTHING = Seen(0.0, "")

# ------------------------------------------------------------------ size


def _small(draws: Draws) -> Seen:
    """Test for too little noise in tensors, their rows and columns, or in some entries."""
    if not draws.sized:
        return NOTHING
    told = _whole(draws)
    entries: list[FloatArray] = []
    among = _among(draws)
    for name, own in zip(draws.names, draws.tensors, strict=True):
        noise = contrasts(own)
        count, squares = len(noise), np.square(noise).sum(axis=0)
        if min(squares.shape) > 1:
            rows, columns = squares.shape
            told.append(_sized(squares.sum(1), count * columns, among, f"a row of `{name}`"))
            told.append(_sized(squares.sum(0), count * rows, among, f"a column of `{name}`"))
        entries.append(squares.ravel())
    each = np.concatenate(entries)
    told.append(_in_entries(each, draws.count - 1))
    # Tensors that are too small to test alone are tested together.
    told.append(_sized(each.sum()[None], count * each.size, among, "all tensors together"))
    return _mean(told)


def _whole(draws: Draws) -> list[Seen]:
    """Test for too little noise over all of each tensor."""
    noise = [np.square(contrasts(own)) for own in draws.tensors]
    return [
        _sized(squares.sum()[None], squares.size, _among(draws), f"`{name}`")
        for name, squares in zip(draws.names, noise, strict=True)
    ]


def _among(draws: Draws) -> int:
    """Return the number of tensors, rows and columns, plus one, of which one is named."""
    return 1 + sum(1 + sum(own.shape[1:]) for own in draws.tensors)


def _sized(squares: FloatArray, count: int, among: int, where: str) -> Seen:
    """Return the mean e-value of sums of ``count`` squares; the limit holds for ``among`` sums."""
    log_e = float(log_mean_exp(noise_log_e(np.full(len(squares), count), squares)))
    if log_e <= 0.0:
        return Seen(log_e, "")
    upper = chosen_upper(count, squares.min(), among)
    return Seen(log_e, f"the noise of {where} is {interval_in_words(None, upper, _AT)}")


def _in_entries(squares: FloatArray, count: int) -> Seen:
    """Return an e-value for an unknown set of entries with less noise than the others."""
    log_e = noise_log_e(np.full(len(squares), count), squares)
    parts = [np.logaddexp(np.log1p(-part), np.log(part) + log_e).sum() for part in _PARTS]
    few = int((log_e > np.log(1.0 / _PARTS[-1])).sum())
    return Seen(
        float(log_mean_exp(parts)), f"{few} of {len(squares)} entries have too little noise"
    )


def _low_rank(draws: Draws) -> Seen:
    """Test for matrices whose noise has low rank."""
    told = []
    for name, own in zip(draws.names, draws.tensors, strict=True):
        if draws.sized and min(own.shape[1:]) >= _LEAST_SIDE:
            parts = differences(own)[:_RANKED, :_SIDE, :_SIDE]
            log_e = sum(low_rank_log_e(part) for part in parts)
            told.append(Seen(log_e, f"the noise of `{name}` has few directions"))
    return _mean(told)


def _tails(draws: Draws) -> Seen:
    """Test for tails that are not those of normal noise."""
    if not draws.sized:
        return NOTHING
    bet, left = TailBet(), _TAILS
    for number in range(draws.count):
        for own in draws.tensors:
            some = own[number].ravel()[: max(left, 0)]
            left -= len(some)
            if len(some):
                bet.update(some, draws.shift)
    return Seen(bet.log_e, "the noise is of the claimed size and not normal")


# ------------------------------------------------------------------ dependence


def _neighbours(draws: Draws) -> Seen:
    """Test for dependence of adjacent entries, in a row or column of a tensor."""
    told = []
    for name, own in zip(draws.names, draws.tensors, strict=True):
        noise = differences(own)
        flat = noise.reshape(len(noise), -1)
        if not draws.sized or flat.shape[1] <= max(_NEAR):
            continue
        for gap in (*_NEAR, noise.shape[2]):
            if gap < flat.shape[1]:
                log_e = float(product_log_e((flat[:, :-gap] * flat[:, gap:]).ravel()))
                told.append(Seen(log_e, f"in `{name}` the noise of entries {gap} apart is alike"))
    return _mean(told)


def _tensors(draws: Draws) -> Seen:
    """Test for tensors that share noise, or parts of it."""
    found = repeated_numbers(_first_two(draws), across=True)
    if found or (draws.sized and (found := copied_entries(draws.flat))):
        return Seen(CERTAIN, found)
    noise = [differences(own) for own in draws.tensors]
    own = [each.reshape(len(each), -1) for each in noise]
    told = []
    for one, other in list(combinations(range(len(own)), 2))[:_PAIRS]:
        common = min(own[one].shape[1], own[other].shape[1])
        products = own[one][:, :common] * own[other][:, :common]
        what = f"`{draws.names[one]}` and `{draws.names[other]}` have noise that is alike"
        told.append(Seen(float(product_log_e(products.ravel())), what))
    return _mean(told)


def _draws(draws: Draws) -> Seen:
    """Test for draws by different random numbers that are alike."""
    flat = draws.flat
    alike = [
        (a, b) for a, b in combinations(range(len(flat)), 2) if np.array_equal(flat[a], flat[b])
    ]
    if alike and len(np.unique(flat[0])) > 2:
        return Seen(
            CERTAIN, f"{len(alike)} of {math.comb(len(flat), 2)} pairs of draws are the same"
        )
    noise = differences(flat)
    what = "the noise of other random numbers is alike"
    return _mean(
        [Seen(float(product_log_e(a * b)), what) for a, b in combinations(noise, 2)],
    )


def _together(draws: Draws) -> Seen:
    """Test for correlated entries, at any distance."""
    if not draws.sized:
        return NOTHING
    noise = contrasts(draws.flat)
    # Noise that is larger than claimed may be the claimed noise plus a correlated part.
    if float(np.square(noise).mean()) > _AS_CLAIMED:
        return NOTHING
    return Seen(together_log_e(noise), "entries of the noise, not near each other, go together")


# ------------------------------------------------------------------ values


def _twice(draws: Draws) -> Seen:
    """Test for numbers that a draw contains at several places."""
    found = repeated_numbers(_first_two(draws))
    if not found and draws.sized:
        each = (copied_entries(own.reshape(len(own), -1)) for own in draws.tensors)
        told = ((copied, name) for copied, name in zip(each, draws.names, strict=True) if copied)
        found = next((f"{copied}, in `{name}`" for copied, name in told), "")
    return Seen(CERTAIN, found) if found else NOTHING


def _one_value(draws: Draws) -> Seen:
    """Test for one number at all entries of a draw."""
    several = sum(own[0].size for own in draws.tensors) > 2
    values = {float(v) for own in draws.tensors for v in np.unique(np.round(own[0], 6))}
    if not several or len(values) > 1 or values == {0.0}:
        return NOTHING
    return Seen(CERTAIN, "all entries have one number")


def _first_two(draws: Draws) -> list[FloatArray]:
    """Return two draws of each tensor, whose numbers are compared."""
    return [own.reshape(len(own), -1)[:2] for own in draws.tensors]


def _few(draws: Draws) -> Seen:
    """Test for noise with few values, if sums have many."""
    if draws.with_rows is None:
        return NOTHING
    noise = np.concatenate([own.ravel() for own in draws.tensors])
    released = np.concatenate([own.ravel() for own in draws.with_rows])
    found = few_values(noise, released)
    return Seen(CERTAIN, found) if found else NOTHING


def _mean(told: Sequence[Seen]) -> Seen:
    """Return the mean of e-values, with the description of the largest."""
    if not told:
        return NOTHING
    largest = max(told, key=lambda seen: seen.log_e)
    return Seen(float(log_mean_exp([seen.log_e for seen in told])), largest.what)


#: Tests by kind, in the order in which a fault is named.
FAMILIES: dict[str, Callable[[Draws], Seen]] = {
    "one_value": _one_value,
    "twice": _twice,
    "tensors": _tensors,
    "draws": _draws,
    "low_rank": _low_rank,
    "few_values": _few,
    "neighbours": _neighbours,
    TOGETHER: _together,
    SMALL: _small,
    "tails": _tails,
}
