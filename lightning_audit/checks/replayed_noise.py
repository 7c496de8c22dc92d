"""The check `replay.noise`: several draws of a step's noise, at every entry that is read.

**Tests of several draws of one step's noise, at every entry that is read.** A draw is the release
of a step without records, in units of the claimed noise. The part that all draws have in common (a
mean, weight decay) is not noise; only the test of repeated values uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.check import NOISED, Check, Evidence, Fault, log_weight
from lightning_audit.checks.noise import ANOTHER_SHAPE, MISSING_AT_ENTRIES, OVER_A_TENSOR
from lightning_audit.checks.noise_faults import TOO_SMALL
from lightning_audit.checks.replay_findings import Finding, not_asked, unanswered
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence import (
    contrasts,
    differences,
    low_rank_log_e,
    product_log_e,
    together_log_e,
)
from lightning_audit.stats.noise_tests import TailBet, chosen_upper, interval_in_words, noise_log_e
from lightning_audit.stats.sequential import log_mean_exp

# --- Tests for numbers that a draw contains several times, against the chance of a coincidence.

#: Largest number of entries whose runs are compared, and whose pairs are counted.
_COMPARED, _COUNTED = 100_000, 3000
#: Largest expected number of coincidences of runs, over all pairs.
_CHANCE = 1e-9
#: Smallest assumed chance of a pair; shortest and longest runs.
_LEAST, _SHORTEST, _LONGEST = 1e-6, 4, 32
#: Least number of entries whose values are counted; fraction of distinct values below which they
#: are few; fraction of a release's values among those of the noise if both lie on one lattice.
_MANY, _FEW, _SHARED = 40, 0.6, 0.1


def repeated_numbers(draws: Sequence[FloatArray], *, across: bool = False) -> str:
    """Find runs of numbers that occur twice, up to sign and direction.

    A run is long enough that less than one coincidence is expected in 10^9 draws, given the rate at
    which two single numbers agree.

    Args:
        draws: of each tensor, ``[draws, entries]``.
        across: whether to count runs that occur in two tensors; else runs that occur twice in one
            tensor.

    Returns:
        The finding as text; empty if there is none, or if too many numbers agree for such a test.
    """
    total = sum(own.size for own in draws)
    share = min(1.0, _COMPARED / max(total, 1))
    tensors = [own[:, : math.ceil(share * own.shape[1])].astype(np.float32) for own in draws]
    total = sum(own.size for own in tensors)
    numbers = np.concatenate([own.ravel() for own in tensors]) if total else np.zeros(0)
    chance = max(2.0 * pair_rate(numbers), _LEAST)
    if chance >= 0.5:
        return ""
    pairs = 2.0 * total**2
    length = max(_SHORTEST, math.ceil(math.log(pairs / _CHANCE) / -math.log(chance)))
    if length > _LONGEST:
        return ""
    keys = [
        np.concatenate([_runs(row, length) for row in own])
        for own in tensors
        if own.shape[1] >= length
    ]
    if across:
        keys = [np.concatenate([np.unique(own) for own in keys])] if keys else []
    runs = sum(map(len, keys))
    twice = runs - sum(len(np.unique(own)) for own in keys)
    if not twice:
        return ""
    where = "in several tensors" if across else "at several places of a tensor"
    return f"runs of {length} numbers occur {where}, {twice} of {runs}"


def copied_entries(draws: FloatArray) -> str:
    """Find entries that equal another entry in all draws, up to sign.

    Args:
        draws: of all tensors, ``[draws, entries]``.

    Returns:
        The finding as text; empty if there is none, or if numbers agree too often for such a test.
    """
    columns = draws.T.astype(np.float32)
    columns = columns[(columns != 0.0).all(axis=1)]
    chance = max(2.0 * pair_rate(draws[0]), _LEAST)
    if len(columns) < 2 or len(columns) ** 2 * chance ** len(draws) > _CHANCE:
        return ""
    twice = len(columns) - len(np.unique(_hashed(columns)))
    if not twice:
        return ""
    return f"{twice} of {draws.shape[1]} entries have the numbers of another entry in all draws"


def pair_rate(numbers: NDArray[np.floating]) -> float:
    """Return the rate at which two numbers of a sample are equal up to sign, without zeros."""
    some = np.abs(numbers[numbers != 0.0])
    some = some[:: max(1, len(some) // _COUNTED)]
    if len(some) < 2:
        return 1.0
    _, counts = np.unique(some, return_counts=True)
    return float((counts * (counts - 1.0)).sum() / (len(some) * (len(some) - 1.0)))


def _runs(row: NDArray[np.float32], length: int) -> NDArray[np.uint64]:
    """Hash each run; its negative and its reverse have the same hash."""
    windows = np.lib.stride_tricks.sliding_window_view(row, length)
    windows = windows[(windows != 0.0).all(axis=1)]
    forth, back = (_hashed(w) for w in (windows, windows[:, ::-1]))
    return np.minimum(forth, back)


def _hashed(windows: NDArray[np.float32]) -> NDArray[np.uint64]:
    signed = np.ascontiguousarray(windows * np.sign(windows[:, :1])) + np.float32(0.0)
    rng = np.random.default_rng(0)
    factors = rng.integers(1, 2**63, windows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(
        1
    )
    bits = signed.view(np.uint32).astype(np.uint64)
    bits ^= bits >> np.uint64(13)
    return np.asarray((bits * factors).sum(axis=1, dtype=np.uint64))


def few_values(noise: FloatArray, released: FloatArray) -> str:
    """Find noise with few distinct values, if a release has other values.

    The lattice of the noise is then coarser than that of the sum, which its last digits show.

    Args:
        noise: of several draws, ``[n]``.
        released: a draw plus a sum, ``[m]``.

    Returns:
        The finding as text; empty if there is none.
    """
    there = np.abs(noise[noise != 0.0])
    there = there[:: max(1, len(there) // _COMPARED)]
    if len(there) < _MANY:
        return ""
    values = np.unique(there)
    sums = np.abs(released[released != 0.0])
    if len(values) >= _FEW * len(there) or np.isin(sums, values).mean() > _SHARED:
        return ""
    return f"{len(there)} numbers of the noise have {len(values)} values, and a release has others"


# --- Tests of several draws of one step's noise, at every entry that is read.

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
    seen = {
        kind: family(draws) if draws.sized or kind not in _OF_SIZED else NOTHING
        for kind, family in FAMILIES.items()
    }
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
    tests = _whole(draws)
    entries: list[FloatArray] = []
    among = _among(draws)
    for name, own in zip(draws.names, draws.tensors, strict=True):
        noise = contrasts(own)
        count, squares = len(noise), np.square(noise).sum(axis=0)
        if min(squares.shape) > 1:
            rows, columns = squares.shape
            tests.append(_sized(squares.sum(1), count * columns, among, f"a row of `{name}`"))
            tests.append(_sized(squares.sum(0), count * rows, among, f"a column of `{name}`"))
        entries.append(squares.ravel())
    each = np.concatenate(entries)
    tests.append(_in_entries(each, draws.count - 1))
    # Tensors that are too small to test alone are tested together.
    tests.append(_sized(each.sum()[None], count * each.size, among, "all tensors together"))
    return _mean(tests)


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
    what = f"{few} of {len(squares)} entries have too little noise"
    return Seen(float(log_mean_exp(parts)), what)


def _low_rank(draws: Draws) -> Seen:
    """Test for matrices whose noise has low rank."""
    tests = []
    for name, own in zip(draws.names, draws.tensors, strict=True):
        if min(own.shape[1:]) >= _LEAST_SIDE:
            parts = differences(own)[:_RANKED, :_SIDE, :_SIDE]
            log_e = sum(low_rank_log_e(part) for part in parts)
            tests.append(Seen(log_e, f"the noise of `{name}` has few directions"))
    return _mean(tests)


def _tails(draws: Draws) -> Seen:
    """Test for tails that are not those of normal noise."""
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
    tests = []
    for name, own in zip(draws.names, draws.tensors, strict=True):
        noise = differences(own)
        flat = noise.reshape(len(noise), -1)
        for gap in (*_NEAR, noise.shape[2]) if flat.shape[1] > max(_NEAR) else ():
            if gap < flat.shape[1]:
                products = flat[:, :-gap] * flat[:, gap:]
                what = f"in `{name}` the noise of entries {gap} apart is alike"
                tests.append(_of_products(products, what))
    return _mean(tests)


def _tensors(draws: Draws) -> Seen:
    """Test for tensors that share noise, or parts of it."""
    found = repeated_numbers(_first_two(draws), across=True)
    if found or (draws.sized and (found := copied_entries(draws.flat))):
        return Seen(CERTAIN, found)
    if not draws.sized:  # see `_draws`
        return NOTHING
    noise = [differences(own.reshape(len(own), -1)) for own in draws.tensors]
    tests = []
    pairs = combinations(zip(draws.names, noise, strict=True), 2)
    for (name, one), (other_name, other) in islice(pairs, _PAIRS):
        common = min(one.shape[1], other.shape[1])
        what = f"`{name}` and `{other_name}` have noise that is alike"
        tests.append(_of_products(one[:, :common] * other[:, :common], what))
    return _mean(tests)


def _draws(draws: Draws) -> Seen:
    """Test for draws by different random numbers that are alike."""
    flat = draws.flat
    alike = sum(np.array_equal(a, b) for a, b in combinations(flat, 2))
    if alike and len(np.unique(flat[0])) > 2:
        pairs = math.comb(len(flat), 2)
        return Seen(CERTAIN, f"{alike} of {pairs} pairs of draws are the same")
    if not draws.sized:  # post-processing may mix the entries, which are dependent then
        return NOTHING
    what = "the noise of other random numbers is alike"
    return _mean([_of_products(a * b, what) for a, b in combinations(differences(flat), 2)])


def _of_products(products: FloatArray, what: str) -> Seen:
    """Return an e-value of products for "each is symmetric about zero"."""
    return Seen(float(product_log_e(products.ravel())), what)


def _together(draws: Draws) -> Seen:
    """Test for correlated entries, at any distance."""
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
        copied = (f"{c}, in `{name}`" for c, name in zip(each, draws.names, strict=True) if c)
        found = next(copied, "")
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


def _mean(tests: Sequence[Seen]) -> Seen:
    """Return the mean of e-values, with the description of the largest."""
    if not tests:
        return NOTHING
    largest = max(tests, key=lambda seen: seen.log_e)
    return Seen(float(log_mean_exp([seen.log_e for seen in tests])), largest.what)


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
#: Kinds whose tests need the noise itself, and not a function of it.
_OF_SIZED = ("low_rank", "neighbours", TOGETHER, SMALL, "tails")


# --- The check `replay.noise`: one e-value for all looks at the noise of replayed steps.


DEPENDS_ON_RECORDS = Fault(
    "noise_depends_on_records",
    "The noise depends on the records",
    "noise that depends on the records: with other records and the same random numbers, it differs",
    "what the noise's size and seed are computed from: they must not depend on a batch",
)
SMALL_SEED = Fault(
    "noise_from_small_seed",
    "The noise comes from a seed that can be guessed",
    "noise that can be computed: each step seeds its generator with a small number",
    "what seeds a generator within a step (the step's or the batch's number): seed it once, before "
    "training, or not at all",
)
ONE_VALUE = Fault(
    "one_value_for_all_coordinates",
    "All coordinates of a step get one noise value",
    "noise re-used: one noise value is shared by all coordinates of a step",
    "the shape that the noise is drawn with: it must be that of the gradient",
)
ONE_KEY = Fault(
    "one_key_for_all_tensors",
    "Several tensors get the same noise",
    "noise re-used: one noise key is used for several tensors",
    "whether one seed, key or draw serves several tensors of a step, or two processes' shards",
)
NUMBERS_TWICE = Fault(
    "noise_numbers_twice",
    "Several entries of a step get the same noise",
    "noise re-used: several entries of one step's noise have the same numbers",
    "the shape that the noise is drawn with, and whether it is repeated, tiled, mirrored, expanded "
    "or rolled to that of the gradient",
)
FEW_SEEDS = Fault(
    "few_seeds",
    "The noise comes from few seeds and repeats",
    "noise re-used: the noise comes back at irregular steps, as from few seeds",
    "how the noise is seeded: whether seeds are drawn from a small range or from the clock, or "
    "noise from a pool",
)
CORRELATED_OVER_STEPS = Fault(
    "noise_correlated_over_steps",
    "The noise depends on that of earlier steps",
    "noise correlated over steps: the noise of a step depends on that of earlier steps, otherwise "
    "than is claimed",
    "what keeps noise from step to step and adds it again: a momentum, a running sum, a buffer or "
    "a generator that is restored; and, if the noise is correlated by design, whether "
    "PrivacyClaim(noise_coefficients=...) states the weights of the draws",
)

REPLAY_NOISE = Check(
    "replay.noise",
    title="Noise of replayed steps",
    failed_title="Replay shows wrong noise",
    meaning="Replaying a step with other random numbers shows noise that is too small, repeated, "
    "not normal, or dependent on records or on earlier noise.",
    look_at="how `add_noise` draws and seeds the noise: nothing in the batch may set its size or "
    "its seed",
    topic="Noise",
    weight=20,
    group="channel",
    needs="the noise of no step was examined",
    always=True,
    blocks=unanswered,
    private=True,
    public=("message",),
    fine="the noise of replayed steps is as claimed at every entry",
    message="the noise of a step is not drawn as claimed ({finding})",
    # A fault that a check of the steps can show as well has the same name there.
    faults=(
        DEPENDS_ON_RECORDS.rule(-10, (*NOISED, "replay", "clipping"), "of", "records"),
        SMALL_SEED.rule(12.5, NOISED, "of", "seed"),
        ONE_VALUE.rule(-10, NOISED, "of", "one_value"),
        ONE_KEY.rule(-10, NOISED, "of", "tensors"),
        NUMBERS_TWICE.rule(-10, NOISED, "of", "twice"),
        FEW_SEEDS.rule(-10, NOISED, "of", "draws"),
        Fault(
            "noise_of_low_rank",
            "The noise of a matrix has low rank",
            "noise of low rank: a matrix has noise in few directions, and none in the others",
            "the shape that the noise is drawn with, and what it is multiplied with",
        ).rule(-10, NOISED, "of", "low_rank"),
        Fault(
            "noise_alike_in_neighbours",
            "Neighboring entries have dependent noise",
            "noise of neighbors: the noise of an entry depends on that of entries near it",
            "what is done to the noise after it is drawn: sums, filters, interpolation",
        ).rule(-10, NOISED, "of", "neighbours"),
        Fault(
            "noise_alike_at_entries",
            "Groups of entries have dependent noise",
            "noise of entries that go together: some directions have less than the claimed noise",
            "whether entries or tensors share a draw, and what the noise is multiplied with",
        ).rule(-10, NOISED, "of", "together"),
        ANOTHER_SHAPE.rule(-10, NOISED, "of", "few_values", "tails"),
        CORRELATED_OVER_STEPS.rule(12, NOISED, "of", "earlier"),
        MISSING_AT_ENTRIES.rule(12, NOISED, "of", "missing"),
        TOO_SMALL.rule(0.64, NOISED, "of", "scale"),
        OVER_A_TENSOR.rule(12, NOISED[1:], "of", "tensor"),
        Fault(
            "noise_too_small_at_entries",
            "Some entries get too little noise",
            "noise of some entries: it is smaller than claimed",
            "how the noise is drawn (Opacus: in add_noise), and what it is scaled by",
        ).rule(12, NOISED, "of", "small"),
    ),
)

CHECKS = (REPLAY_NOISE,)

#: Kinds of findings without a family of tests.
MISSING, OF_RECORDS = "missing", "records"
#: Kinds for noise that depends on earlier noise, or on a small seed.
EARLIER, SEED = "earlier", "seed"
#: Number of kinds that may be tested in a look at several draws of one step.
_OF_DRAWS = len(FAMILIES) + len((MISSING, OF_RECORDS, EARLIER, SEED))
#: Kinds more specific than small noise or another shape, and the log e-value that makes one clear.
_OF_VALUES = (kind for kind in FAMILIES if kind not in (SMALL, "tails"))
_SHARPEST = (OF_RECORDS, *_OF_VALUES, MISSING, EARLIER, SEED, SCALE, TENSOR)
_CLEAR = 14.0
#: Significance of a look outside of a run.
_ALONE = 1e-3


@dataclass(frozen=True)
class NoiseLook:
    """Result of one look at the noise.

    Args:
        seen: results by kind, of those that were tested.
        draws: number of draws.
        entries: number of entries that were read.
        kinds: number of kinds that might be tested, which share the look's e-value.
    """

    seen: Mapping[str, Seen]
    draws: int = 0
    entries: int = 0
    kinds: int = _OF_DRAWS

    @property
    def log_e(self) -> float:
        """Log of the look's e-value: the mean over all kinds that might be tested."""
        values = [seen.log_e for seen in self.seen.values()]
        values += [0.0] * (self.kinds - len(values))
        return float(log_mean_exp(values))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that one look alone proves, at significance `_ALONE`."""
        _, seen = self.largest
        sure = self.log_e >= math.log(1.0 / _ALONE)
        return (Finding(seen.what, math.inf, 0.0),) if sure else ()

    @property
    def largest(self) -> tuple[str, Seen]:
        """The most specific kind that is clear, or else that of the largest e-value."""
        if not self.seen:
            return "", NOTHING
        clear = (kind for kind in _SHARPEST if kind in self.seen and self.seen[kind].log_e > _CLEAR)
        kind = next(clear, None) or max(self.seen, key=lambda kind: self.seen[kind].log_e)
        return kind, self.seen[kind]


@dataclass
class NoiseLog:
    """Log of the looks at the noise of a run.

    A look's e-value is valid given all earlier looks. The k-th look has the weight of `log_weight`,
    and the rest of the weights, up to 1, is on a constant 1, so the number of looks is unbounded.
    The weighted sum is half of the e-value. The other half is the product over all looks of the
    e-values of correlated entries: a weak correlation shows in no single look.
    """

    looks: int = 0
    draws: int = 0
    entries: int = 0
    reason: str = ""
    finding: str = ""
    kind: str = ""
    test: Evidence = field(default_factory=lambda: REPLAY_NOISE.test(_ALONE))
    _log_sum: float = -math.inf
    _largest: float = 0.0
    _log_product: float = 0.0

    def take(self, step: int, look: NoiseLook | None, reason: str = "") -> None:
        """Update with a look.

        Args:
            step: number of the step, from 0.
            look: its result; None if there was none.
            reason: why there was none.
        """
        self.reason = reason or self.reason
        if look is None:
            return
        self.looks += 1
        self.draws += look.draws
        self.entries = max(self.entries, look.entries)
        self._log_sum = float(np.logaddexp(self._log_sum, log_weight(self.looks) + look.log_e))
        together = look.seen.get(TOGETHER, NOTHING)
        self._log_product += together.log_e
        each = float(np.logaddexp(self._log_sum, -math.log(self.looks + 1.0)))
        log_e = float(log_mean_exp([each, self._log_product]))
        kind, seen = look.largest
        if together.what and seen.log_e <= _CLEAR < self._log_product:
            kind, seen = TOGETHER, together._replace(log_e=self._log_product)
        # The kind that was clear first is the fault; later it may show in other kinds as well.
        if seen.log_e > self._largest and self._largest < _CLEAR:
            self._largest, self.kind, self.finding = seen.log_e, kind, seen.what
        self.test.update(log_e, step)

    def found(self, significance: float) -> bool:
        """Return whether the noise is not as claimed."""
        return self._judged(significance).violated

    def result(self, significance: float, off: str = "") -> CheckResult:
        """Return the result of the check `replay.noise`.

        Args:
            significance: of the whole run.
            off: why nothing is examined, or empty.
        """
        test = self._judged(significance)
        if not self.looks:
            return not_asked(REPLAY_NOISE, self.reason or off)
        evidence = {"looks": self.looks, "draws": self.draws, "entries": self.entries}
        of = {"of": self.kind, "finding": self.finding} if test.violated else {}
        return REPLAY_NOISE.result(test, {**evidence, **of})

    def _judged(self, significance: float) -> Evidence:
        return replace(self.test, significance=significance)


# --- Test of independence of the noise of successive steps: forecasts from the previous ones.

#: Number of earlier steps in a forecast by least squares.
_ORDER = 3
#: Log e-value of a forecast that is evidence enough alone.
_CLEAR_OF_SUCCESSIVE = 7.0


def successive_seen(noise: Sequence[FloatArray]) -> Seen:
    """Return an e-value of several steps' noise for "each is symmetric given its past".

    Each step is multiplied with forecasts from its past: every earlier step, their sum, and a fit
    of earlier steps to one another. E-values of forecasts are averaged, those of steps multiplied.

    Args:
        noise: of each step, in order, without a part that all have in common, ``[n]``.
    """
    log_e, largest = 0.0, NOTHING
    for number in range(1, len(noise)):
        now = noise[number]
        tests = [
            _of_products(now * forecast, _forecast_words(name, now, forecast))
            for name, forecast in forecasts(noise[:number])
        ]
        # A finding by one earlier step, or by their sum, takes precedence over one by a fit.
        best = max(tests[: number + 1], key=lambda seen: seen.log_e)
        if not best.log_e > _CLEAR_OF_SUCCESSIVE:
            best = max(tests, key=lambda seen: seen.log_e)
        largest = max(largest, best, key=lambda seen: seen.log_e)
        log_e += _mean(tests).log_e
    return Seen(log_e, largest.what)


def forecasts(past: Sequence[FloatArray]) -> Iterator[tuple[str, FloatArray]]:
    """Yield forecasts of a step's noise from earlier noise alone.

    Args:
        past: noise of earlier steps, one or more, the latest last, ``[n]`` each.

    Yields:
        The forecast's description, and the forecast, ``[n]``.
    """
    for lag in range(1, len(past) + 1):
        yield f"that of {lag} step{'s' * (lag > 1)} before", past[-lag]
    if len(past) > 1:
        yield "the sum of all before", np.sum(past, axis=0)
    order = min(_ORDER, len(past) - 1)
    if order > 1:
        # Fitted to past steps on both sides, then applied to the latest steps.
        before = np.stack([past[-1 - lag] for lag in range(1, order + 1)], axis=1)
        weights = np.linalg.lstsq(before, past[-1], rcond=None)[0]
        latest = np.stack([past[-lag] for lag in range(1, order + 1)], axis=1)
        yield "what earlier steps foretell", latest @ weights


def _forecast_words(name: str, noise: FloatArray, forecast: FloatArray) -> str:
    size = math.sqrt(float(noise @ noise) * float(forecast @ forecast))
    part = float(noise @ forecast) / size if size > 0.0 else 0.0
    return f"the noise of a step goes {'with' if part > 0 else 'against'} {name} ({part:.2g})"
