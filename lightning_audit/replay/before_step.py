"""Whether records meet before the step: neighbors by record number.

A replay begins with the batch that a step was given. What records do to each other on the way there
is not replayed: padding to the longest record, statistics of the batch, mixing and packing in
``collate_fn``, in the hooks that transfer a batch, or in the data set. So records of the audit's
choice are fetched, collated and transferred again, whichever the sampler drew.

**One record, alone and among others.** Two batches of n records: n copies of one record, and the
same with half of the places taken by others. Random numbers are set by place, so that a copy keeps
its augmentation. If the data at the kept places have the same bits in both, records do not meet.
Otherwise the step decides: a padding that is masked changes no gradient.

**One item, with the rows of other records moved.** A data set may mix its records itself. While the
rows of all other records are moved, an item must stay the same, and so must a step on its batch.
Items that share rows at fixed places (windows over a series) count how many of them read a row: a
record that is a row is that many items. A store of another length than the data set counts only if
its rows are at equal distances for items at equal distances; else it is a table that all look up.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_audit._validate import BadArgument
from lightning_audit.canaries.inputs import constants_apart, rows
from lightning_audit.checks.replay import THE_STEP, Answer
from lightning_audit.checks.replay_findings import Finding
from lightning_audit.files import nearby
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.sampler_tap import unwatched
from lightning_audit.replay.question import Asked
from lightning_audit.replay.records import Judged, change_between, examine_independence, judge
from lightning_audit.replay.step_replay import Replay, Stopped, equal_releases
from lightning_audit.replay.training_state import CannotKeep, DataState

#: Records of a made batch at least, and different items of it at most.
_LEAST, _MOST = 3, 64
#: Kept entries over a batch's gradients, and per gradient at least.
_ENTRIES, _COLUMNS = 10_000_000, 1000
#: Fewest rows of a store of records, and most bytes of all stores whose rows are moved, and of the
#: items of a made batch with more than `_MOST` records.
_ROWS, _BYTES = 32, 2**28
#: Of larger stores, rows on both sides of those of a batch that are moved, and others; bytes that
#: are moved together; records over those of a batch whose rows are moved at once.
_NEAR, _SOME, _AT_ONCE, _MANY = 8, 1000, 2**20, 16
#: First rows of a list of integers that are sorted only if they are places in another store.
_FIRST = 1000
#: Most rows that an item is found to be made of, of any store and of one; most containers searched.
_MADE_OF, _WINDOW, _PARTS = 4, 256, 8
#: Distances of the seeds of items, of collating, of transferring, and of another pair.
_ITEM, _COLLATE, _TRANSFER, _APART = 31, 1_000_003, 2_000_003, 5_915_587
#: Seeds under which batches are compared before they count as equal.
_SEEDS = 3
#: Pairs that confirm a distance of two releases, and the allowed distance in low precision.
_PAIRS, _LOW = 8, 1.1

_NO_NUMBERS = "the data set has no record numbers"
_OTHER_BITS = "a record fetched twice with the same random numbers has other bits"
_OTHER_FORM = "a batch of other records has other constants, or tensors of other lengths"
_DRAWS = "how many random numbers are drawn depends on the records"
_PART = "only 1,000 rows of other records, and those near, were moved: the data have over 256 MiB"
_SEVERAL = "an item reads several rows, and the data have more than 256 MiB"
_MET = "records meet in {place}, and this step does not show whether that changes a gradient"


class _NotAsked(Exception):
    """Records could not be fetched or compared; the message says why."""


def examine_coupling(asked: Asked) -> Answer:
    """Test whether records meet in the step, or before it."""
    answer = examine_independence(asked)
    if answer.findings:
        return answer
    before = examine_before_step(asked)
    if before.findings or before.reason:
        return before
    return replace(answer, before=before.before, shared=before.shared)


def examine_before_step(asked: Asked) -> Answer:
    """Fetch records again, and test whether one changes what becomes of another.

    Args:
        asked: the step, one of whose physical batches can be replayed alone.

    Returns:
        The answer; its ``before`` says why it could not be tested, ``where`` where records meet.
    """
    records: _Records | None = None
    test: _Test | None = None
    try:
        records = _Records(asked)
        test = _Test(asked, records)
        answer = None
        if asked.replay.forked:  # whose data may be changed
            with contextlib.suppress(_NotAsked):  # an item has memory, which batches begin without
                answer = test.of_items()
        answer = answer or test.of_batches()
    except _NotAsked as why:
        answer = Answer(before=str(why))
    except BadArgument:  # from `rows`, whose text may hold sizes
        answer = Answer(reason=_OTHER_FORM)
    except Stopped:
        raise
    except Exception as error:  # raised by the user's code
        if raised_in_audit(error):
            raise
        answer = Answer(before=f"fetching a record again raised {type(error).__name__}")
    finally:
        if records is not None:
            records.put_back()
    if test is None:
        return answer
    return replace(answer, shared=test.shared, before=answer.before or test.left)


# --- The records of a training, and the batches made of them.


class _Records:
    """Batches of chosen records, fetched, collated and transferred as the training does."""

    def __init__(self, asked: Asked) -> None:
        source, replay = asked.replay.order.user.source(), asked.replay
        loader = source.loader
        if not isinstance(loader, DataLoader):
            raise _NotAsked("the training's batches come from no single DataLoader")
        if isinstance(loader.dataset, IterableDataset):
            raise _NotAsked(_NO_NUMBERS)
        self.data = loader.dataset
        self.collate: Any = loader.collate_fn
        if loader.batch_sampler is None or self.collate is None:
            raise _NotAsked("the DataLoader does not collate")
        if not hasattr(type(self.data), "__len__"):
            raise _NotAsked("the data set has no length")
        self.size = len(self.data)  # type: ignore[arg-type]
        self._source, self._training = source, replay.state
        self._like = (asked.whole or asked.batches)[0]
        try:
            held = [self.data, self.collate, *source.held]
            self._held = DataState(held, copied=not replay.forked)
        except CannotKeep as error:
            raise _NotAsked(f"the data set cannot be restored without a fork: {error}") from None
        #: Why the choice of the records of a batch is not tested, or empty.
        self.chosen = _looks_at_data(loader, self.data, self.size)

    def put_back(self) -> None:
        """Restore data set, collate function and training."""
        self._held.put_back()
        self._training.put_back()

    def seed(self, number: int) -> None:
        """Seed all generators of training and data."""
        self._training.seed(number)
        self._held.seed_own(number)

    def row(self, key: int) -> int:
        """Return the number of a record in the data set that torch's subsets wrap."""
        data: Any = self.data
        while type(data) is Subset:
            data, key = data.dataset, int(data.indices[key])
        return key

    def item(self, key: int, seed: int) -> Any:
        """Return a record."""
        self.seed(seed)
        with self._training.entropy:
            return self.data[key]

    def alone(self, keys: Sequence[int], seed: int) -> list[Any]:
        """Return copies of records, each under two seeds."""
        seeds = (seed, seed + _COLLATE)
        found = [_pytree.tree_map(_clone, self.item(key, each)) for key in keys for each in seeds]
        self._training.put_back()
        return found

    def batch(self, keys: Sequence[int], seed: int, after: Sequence[int] = ()) -> _Made:
        """Make a batch from the state that data and training had at first.

        The random numbers of an item depend on its place alone. Of more than `_MOST` items, those
        at the first places repeat.

        Args:
            keys: of the records.
            seed: of all generators.
            after: keys of a batch that is made before this one, whose state this one finds.
        """
        self._held.put_back()
        if after:
            self._make(after, seed)
        made = self._make(keys, seed)
        self._training.put_back()  # the hooks may change buffers
        return made

    def _make(self, keys: Sequence[int], seed: int) -> _Made:
        with self._training.entropy, self._training.counting(), torch.no_grad():
            items, drawn = self._items(self.data, keys[:_MOST], seed)
            items = [items[place % len(items)] for place in range(len(keys))]
            self.seed(seed + _COLLATE)
            collated = self.collate(list(items))
            drawn.append(self._mark())
            own = _pytree.tree_map(_clone, collated)
            self.seed(seed + _TRANSFER)
            batch = constants_apart(self._source.transfer(own), self._like)
            drawn.append(self._mark())
        return _Made(items, collated, batch, drawn)

    def _items(self, data: Any, keys: Sequence[int], seed: int) -> tuple[list[Any], list[int]]:
        """Return items and the generators' marks, if the items are made together."""
        if type(data) is Subset:
            return self._items(data.dataset, [data.indices[key] for key in keys], seed)
        if not hasattr(data, "__getitems__"):
            fetched = []
            for place, key in enumerate(keys):
                self.seed(seed + _ITEM * place)
                fetched.append(data[key])
            return fetched, []
        self.seed(seed)
        return list(data.__getitems__(list(keys))), [self._mark()]

    def _mark(self) -> int:
        return hash((self._training.mark(), *self._held.own_marks()))

    def place(self, one: _Made, other: _Made, kept: Sequence[int], size: int) -> str:
        """Return where two batches begin to differ at the kept places."""
        if not all(_same(one.items[place], other.items[place]) for place in kept):
            kind = type(_own(self.data))
            return _place(getattr(kind, "__getitems__", kind.__getitem__))
        if not _rows_agree(one.collated, other.collated, kept, size):
            return _place(self.collate)
        return self._source.where


@dataclass(frozen=True)
class _Made:
    """A batch: its items, collated, and as a step gets it; the generators' marks on the way."""

    items: list[Any]
    collated: Any
    batch: Any
    drawn: list[int]


def _looks_at_data(loader: Any, data: Any, size: int) -> str:
    """Return what is not tested of a sampler that holds data, or empty."""
    for sampler in (unwatched(loader.batch_sampler), unwatched(loader.sampler)):
        if type(sampler).__module__.partition(".")[0] in ("torch", "opacus", "lightning_audit"):
            continue
        held = getattr(sampler, "__dict__", {}).values()
        if any(each is data or (np.iterable(each) and _length(each) == size) for each in held):
            return f"how {type(sampler).__name__} chooses the records of a batch"
    return ""


def _length(held: Any) -> int:
    return len(held) if hasattr(held, "__len__") else -1


def _own(data: Any) -> Any:
    """Return the data set that torch's classes wrap."""
    while type(data).__module__.startswith("torch.") and hasattr(data, "dataset"):
        data = data.dataset
    return data


def _place(code: Any) -> str:
    """Return the name of a function, and its file and line."""
    while (inner := getattr(code, "wrapped_collator_fn", getattr(code, "func", None))) is not None:
        code = inner
    if not inspect.isroutine(code):
        code = type(code).__call__
    name = getattr(code, "__qualname__", type(code).__name__).replace("<locals>.", "")
    try:
        file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
    except (OSError, TypeError):
        return name
    return f"{name} at {nearby(file or '')}:{max(line, 1)}"


# --- The two tests.


class _Test:
    """The tests of one examination; see `examine_before_step`."""

    def __init__(self, asked: Asked, records: _Records) -> None:
        replay, self._records = asked.replay, records
        self._replay, self._batches, self._seed = replay, asked.whole or asked.batches, asked.seed
        # Relative change of a gradient by rounding, and distance of releases by one record.
        self._tolerated, self._far = asked.tolerated_change, 1.0 + asked.tolerated
        self._random = random.Random(asked.seed)
        #: How many items read one row of the data set, as far as a few items show.
        self.shared = 1
        #: Whether each item was shown to read its own record's rows alone; what was left out.
        self._alone, self.left = False, ""
        #: Whether releases show a record less.
        one_less = not (replay.order.replaced or replay.claim.fixed_size)
        self._by_release = one_less and replay.clips_by_opacus

    def of_batches(self) -> Answer:
        """Compare copies of one record with the same copies among other records."""
        records = self._records
        pool = [self._random.randrange(records.size) for _ in range(_MOST)]
        sizes = {key: _extent(records.item(key, self._seed)) for key in dict.fromkeys(pool)}
        most = max(_BYTES // (8 * max(sizes.values())), _MOST)
        count = max(min(max(map(rows, self._batches)), most), _LEAST)
        ordered = sorted(sizes, key=lambda key: sizes[key])
        small, large = ordered[0], ordered[-1]
        for one, other in [(small, large), (large, small)][: 1 + (sizes[small] < sizes[large])]:
            others = iter([other, *pool])
            # Which of the first places are kept does not repeat: see `copies`.
            keys = [next(others) if p.bit_count() % 2 else one for p in range(min(count, _MOST))]
            keys = [keys[place % _MOST] for place in range(count)]
            kept = [place for place, key in enumerate(keys) if key == one]
            if len(kept) == count:
                continue
            answer = self._among_others(one, keys, kept)
            answer = answer or self._after_others(one, [key for key in sizes if key != one], count)
            if answer is not None:
                return answer
        return Answer(before=records.chosen)

    def _among_others(self, one: int, keys: list[int], kept: list[int]) -> Answer | None:
        """Return what was found about a record among others; None if it is alone."""
        records, count = self._records, len(keys)

        def pair(seed: int) -> tuple[_Made, _Made]:
            return records.batch([one] * count, seed), records.batch(keys, seed)

        copies = records.batch([one] * count, self._seed)
        if not _same(copies.batch, records.batch([one] * count, self._seed).batch):
            raise _NotAsked(_OTHER_BITS)
        # Some batches may be mixed, and others not.
        for seed in (self._seed + number * _APART for number in range(_SEEDS)):
            copies, mixed = pair(seed)
            if not _rows_agree(copies.batch, mixed.batch, kept, count):
                break
        else:
            return None
        place = records.place(copies, mixed, kept, count)
        if copies.drawn != mixed.drawn:
            raise _NotAsked(f"{_DRAWS}: {place}")
        change = self._change(copies, mixed, kept, seed)
        if change is not None:
            if change <= self._tolerated:
                return None
            # Of random mixing, not each draw reaches a kept record.
            others = (seed + number * _APART for number in range(1, 2 + _SEEDS))
            again = (self._change(*pair(other), kept, other) or 0.0 for other in others)
            if not any(each > self._tolerated for each in again):
                return None
            return _found("a record among others, by", change, self._tolerated, place)
        judged = self._without(one, keys[1], count)
        if judged.tells and judged.far > self._far:
            return _found("a batch without a record, by", math.inf, 1.0, place)
        raise _NotAsked(_MET.format(place=place))

    def _after_others(self, one: int, others: list[int], count: int) -> Answer | None:
        """Return what was found about a record in the batch after others; None if it is alone."""
        records, kept = self._records, list(range(count))
        if len(others) < 2:
            return None
        earlier = [(part * count)[:count] for part in (others[::2], others[1::2])]
        first, second = (records.batch([one] * count, self._seed, after) for after in earlier)
        if _same(first.batch, second.batch):
            return None
        place = records.place(first, second, kept, count)
        change = self._change(first, second, kept, self._seed)
        if change is None:
            raise _NotAsked(_MET.format(place=place))
        if change <= self._tolerated:
            return None
        return _found("a record after other batches, by", change, self._tolerated, place)

    def _change(self, copies: _Made, mixed: _Made, kept: list[int], seed: int) -> float | None:
        """Return the largest relative change of the record's gradient; None if unknown."""
        size = rows(copies.batch)
        odd = size % len(mixed.items) or rows(mixed.batch) != size or copies.drawn != mixed.drawn
        if odd:
            return None
        self._replay.allow(2)
        keep = min(sum(self._replay.sizes), max(_ENTRIES // size, _COLUMNS))
        one, other = (self._replay.run([made.batch], seed, keep=keep) for made in (copies, mixed))
        if one.error or other.error or one.drawn != other.drawn:
            return None
        if not one.rows or one.rows % size or other.rows != one.rows:
            return None
        same = len(kept) * one.rows // len(mixed.items)
        return change_between(one, other, same, self._tolerated)

    def _without(self, one: int, other: int, count: int) -> Judged:
        """Replay copies of one record with the extreme one as the last, and without it."""
        # Rounding of a large sum in low precision is more than a record.
        count = min(count, _MOST) if self._far >= _LOW else count
        ordered = [one] * (count - 1) + [other]
        if not self._by_release:
            return Judged(failed=True)

        def draw(seed: int) -> list[Replay]:
            made = [self._records.batch(each, seed) for each in (ordered, ordered[:-1])]
            return [self._replay.run([each.batch], seed) for each in made]

        self._replay.allow(2 * _PAIRS)
        return judge(draw, self._seed, self._far)

    def of_items(self) -> Answer | None:
        """Move the rows of other records, and test whether an item or a step changes."""
        records = self._records
        every = list(_stores(records.data))
        own = [store for store in every if store.size == store.items]
        small = sum(store.bytes for store in own) <= _BYTES
        stores = [replace(store, whole=small) for store in own]
        longer = [store for store in every if store.bytes <= _BYTES and store.is_longer]
        self.shared = self._readers(longer)
        if not stores:
            return None
        count = min(max(map(rows, self._batches)), _MOST, records.size // 2)
        keys = self._random.sample(range(records.size), count)
        # Rows of a batch stay: of few records, one of these may be what an item reads.
        if small and records.size < _MANY * count:
            answer = self._of_single_items(stores, keys[:2])
            return answer if answer is not None or not self._alone else self._at_once(stores, keys)
        answer = self._at_once(stores, keys)
        if not small:
            self.left = _PART if self._alone else _SEVERAL
        return answer if self._alone or not small else self._of_single_items(stores, keys[:2])

    def _at_once(self, stores: list[_Store], keys: Sequence[int]) -> Answer | None:
        """Move the rows of all records that are not in a batch, for two items and for a step."""
        records, seed = self._records, self._seed
        row = {key: records.row(key) for key in keys}
        read = [s for s in stores if any(_reads(records, s, row[k], k, seed) for k in keys[:2])]
        made, base = records.batch(keys, seed).batch, records.alone(keys[:2], seed)
        kept = sorted({*row.values()})
        self._replay.allow(3)
        usual = self._replay.run([made], seed)
        with _moved((store, part) for store in stores for part in store.others(kept, self._random)):
            self._alone = _same(base, records.alone(keys[:2], seed))
            if not self._alone or not read:
                return None
            other = self._replay.run([made], seed)
        finite = all(release.finite() for release in usual.releases)  # NaN differs from itself
        if usual.error or other.error or equal_releases(usual, other) or not finite:
            return None
        others = self._random.sample(range(records.size), len(keys))
        drawn = self._replay.run([records.batch(others, seed).batch], seed)
        if equal_releases(usual, drawn):
            return None  # the step does not read its batch, and draws one of its own
        return _found("records that are not in the batch, read by", math.inf, 0, THE_STEP)

    def _of_single_items(self, stores: list[_Store], keys: Sequence[int]) -> Answer | None:
        """Find the rows of which items are made; note whether each is its own record's alone."""
        records, seed, self._alone = self._records, self._seed, False
        for key in keys:
            made_of = [_rows_of(records, stores, key, each) for each in (seed, seed + _COLLATE)]
            if min(map(len, made_of)) > 1 and made_of[0] != made_of[1]:
                place = _place(type(_own(records.data)).__getitem__)
                return _found("an item of several records drawn at random, by", math.inf, 0, place)
            if any({row for _, row in rows_of} != {records.row(key)} for rows_of in made_of):
                self.shared = max(self.shared, self._readers(stores))
                return None  # of several records, or of none
        self._alone = True
        return None

    def _readers(self, stores: Sequence[_Store]) -> int:
        """Return how many items read one row of a store, by the rows of three items."""
        records, found = self._records, 1
        keys = self._random.sample(range(records.size), min(3, records.size))
        keys.sort(key=records.row)
        numbers = [records.row(key) for key in keys]
        apart = max(numbers[-1] - numbers[0], 1)
        for store in stores:
            size, own = store.size, store.size == store.items
            rows = [_rows_of(records, [store], key, self._seed, _WINDOW) for key in keys]
            read = [np.array(sorted(row for _, row in each)) for each in rows]
            least = min(map(len, read))
            if least < 2:
                continue
            # Rows at one distance from each item's number; a few may be equal after they moved.
            step = 1 if own else round((read[-1][0] - read[0][0]) / apart)
            places = [{*(each - step * at) % size} for each, at in zip(read, numbers, strict=True)]
            some = set.union(*places)
            if step > 0 and 2 * len(set.intersection(*places)) >= len(some):
                used = step * np.array([records.row(key) for key in range(records.size)])
                counts = sum(np.bincount((used + at) % size, minlength=size) for at in some)
                found = max(found, int(np.max(counts)))
            elif own:
                found = max(found, least)  # on average, as each item reads this many
        return found


def _found(name: str, size: float, allowed: float, place: str) -> Answer:
    return Answer(1, (Finding(f"{name} {place}", size, allowed),), where=place)


# --- Stores: tensors, arrays and lists of a data set with one row for each record.


@dataclass(frozen=True)
class _Store:
    """A store of records, whose rows can be moved, of a data set with this many items.

    Args:
        held: the rows.
        items: number of items of the data set.
        whole: whether all rows may be copied and moved; else some of them.
    """

    held: Any
    items: int
    whole: bool = True

    @property
    def is_longer(self) -> bool:
        """Whether it has more rows than there are items, and is no list of places in others."""
        if self.size <= self.items:
            return False
        held = self.held[:_FIRST]
        if not isinstance(held, list):
            held = held.reshape(len(held), -1)[:, 0].tolist()
        return not (all(isinstance(one, int) for one in held) and sorted(held) == held)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.held)

    @property
    def bytes(self) -> int:
        """Memory of the rows themselves."""
        return int(getattr(self.held, "nbytes", 8 * len(self.held)))

    def move(self, begin: int, end: int) -> Callable[[], None]:
        """Replace rows by other rows, which differ; return a function that restores them."""
        part, source = slice(begin, end), self._copy if self.whole else self.held
        old = source[part] if self.whole else _clone(self.held[part])
        each = max(_AT_ONCE * self.size // max(self.bytes, 1), 1)
        for start in range(begin, end, each):
            stop = min(start + each, end)
            self.held[start:stop] = self._other(source, start, stop)
        return lambda: self.held.__setitem__(part, old)

    def _other(self, source: Any, begin: int, end: int) -> Any:
        """Return what replaces rows: those at a third of the rows further on, and other floats."""
        # Not by half: a row that reads one that was moved before would get its own value back.
        at = np.arange(begin, end) + max(self.size // 3, 1)
        if isinstance(source, list):
            return [source[k % self.size] for k in at]
        new = source[at % self.size]
        if "float" in str(new.dtype):  # equal rows must differ as well
            new *= 1.25
            new += 0.125
        return new

    @functools.cached_property
    def _copy(self) -> Any:
        """All rows as they are: one copy for all moves, since new memory costs more than they."""
        return _clone(self.held)

    def others(self, kept: Sequence[int], rng: random.Random) -> Iterator[tuple[int, int]]:
        """Yield the parts of all rows but those at sorted places, or of some of them."""
        if self.whole:
            parts = itertools.pairwise([-1, *kept, self.size])
            yield from ((a + 1, b) for a, b in parts if b > a + 1)
            return
        near = {row + by for row in kept for by in range(-_NEAR, _NEAR + 1)}
        some = {*near, *range(_NEAR), *rng.sample(range(self.size), min(_SOME, self.size))}
        yield from ((row, row + 1) for row in some - {*kept} if 0 <= row < self.size)


def _stores(data: Any, depth: int = 4) -> Iterator[_Store]:
    """Yield the stores of a data set, of those that it holds, and of what its items read.

    Its items may read global variables, and variables around its class.
    """
    size = len(data) if hasattr(type(data), "__len__") else 0
    give, read = inspect.unwrap(getattr(type(data), "__getitem__", len)), list[Any]()
    with contextlib.suppress(TypeError, ValueError):  # no function; a variable that is not set
        around = inspect.getclosurevars(give)
        read = [*around.globals.values(), *around.nonlocals.values()]
    for value in [*getattr(data, "__dict__", {}).values(), *read]:
        parts = value if isinstance(value, tuple | list) and len(value) <= _PARTS else ()
        for held in (value, *parts):
            if isinstance(held, Dataset) and depth:
                yield from _stores(held, depth - 1)
            elif _is_store(held) and len(held) >= size >= _ROWS:
                yield _Store(held, size)


def _is_store(held: Any) -> bool:
    if isinstance(held, torch.Tensor):
        return held.dim() > 0 and held.layout == torch.strided and not held.requires_grad
    if isinstance(held, np.ndarray):
        return held.ndim > 0 and held.flags.writeable and held.dtype != object
    return isinstance(held, list)


@contextlib.contextmanager
def _moved(parts: Iterable[tuple[_Store, tuple[int, int]]]) -> Iterator[None]:
    """Move rows of stores within this context."""
    undo = [store.move(*part) for store, part in parts]
    try:
        yield
    finally:
        for put_back in reversed(undo):
            put_back()


def _rows_of(
    records: _Records, stores: list[_Store], key: int, seed: int, most: int = _MADE_OF
) -> set[tuple[int, int]]:
    """Return which rows of which stores change an item, at most ``most``, found by halves."""
    base = _pytree.tree_map(_clone, records.item(key, seed))
    if not _same(base, records.item(key, seed)):
        raise _NotAsked(_OTHER_BITS)

    def depends(size: int, *parts: tuple[int, int]) -> bool:
        own = [store for store in stores if store.size == size]
        with _moved(itertools.product(own, parts)):
            return not _same(base, records.item(key, seed))

    found: set[tuple[int, int]] = set()
    for size in {store.size for store in stores}:
        row = records.row(key)
        if row < size and not depends(size, (0, row), (row + 1, size)):
            found.add((size, row))  # at most the item's own row
            continue
        todo = [(0, size)]
        while todo and len(found) < most:
            begin, end = todo.pop()
            if not depends(size, (begin, end)):
                continue
            if end - begin == 1:
                found.add((size, begin))
                continue
            middle = (begin + end) // 2
            todo += [(begin, middle), (middle, end)]
    return found


def _reads(records: _Records, store: _Store, row: int, key: int, seed: int) -> bool:
    """Return whether an item changes with one row of one store."""
    base = _pytree.tree_map(_clone, records.item(key, seed))
    with _moved([(store, (row, row + 1))]):
        return not _same(base, records.item(key, seed))


# --- Comparing items and batches.


def _clone(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else copy.copy(leaf)


def _extent(item: Any) -> int:
    """Return the number of values of an item."""
    sizes = (
        leaf.numel()
        if isinstance(leaf, torch.Tensor)
        else int(np.size(leaf))
        if isinstance(leaf, np.ndarray)
        else len(leaf)
        if isinstance(leaf, str | bytes)
        else 1
        for leaf in _pytree.tree_leaves(item)
    )
    return sum(sizes)


def _same(one: Any, other: Any) -> bool:
    """Return whether two items or batches have the same bits."""
    mine, theirs = _pytree.tree_leaves(one), _pytree.tree_leaves(other)
    return len(mine) == len(theirs) and all(map(_same_leaf, mine, theirs))


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    return one is other or repr(one) == repr(other)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_floating_point():
        one, other = torch.nan_to_num(one), torch.nan_to_num(other)
    return bool(torch.equal(one, other))


def _rows_agree(one: Any, other: Any, places: Sequence[int], size: int) -> bool:
    """Return whether the rows at some places have the same bits in two batches of ``size``."""
    mine, theirs = _pytree.tree_leaves(one), _pytree.tree_leaves(other)
    if len(mine) != len(theirs):
        return False
    for a, b in zip(mine, theirs, strict=True):
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            continue  # such as texts, which no step trains on
        if a.shape != b.shape or not a.dim() or not len(a) or len(a) % size:
            return False
        each = len(a) // size
        at = [place * each + number for place in places for number in range(each)]
        if not _equal(a[at], b[at]):
            return False
    return True
