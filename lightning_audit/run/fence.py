"""A fence around the private steps: what else changes weights, and which decisions use raw metrics.

Replays test what happens within a step. This module watches the rest: from the beginning of the
training to its first step, between steps, and from the last step to the end. A change outside of
the steps is named with the hook that made it, and blocks a pass unless it is one of these:

- Before the first step: the training records were not read. Weights are initialized and loaded.
  What a checkpoint that the Trainer loads holds is no change.
- Later: no training record was read since the last step, and the new weights are *made of released
  ones*. They are linear in the weights of earlier steps with one set of coefficients for all
  entries (EMA, SWA, Lookahead), or each tensor is scaled, clamped, or loses its smallest entries.
  The weights of one earlier step are not: something chose it. What is put back before the next
  step is not judged, and of few weights, or in a resumed training, nothing is said.

Within a step, a change outside of the optimizer's update is left to the replays of a step that
makes it; one that no examined step makes must be made of released weights, too.

Reads are seen where torch reads the memory of the training's data sets in a hook, where a data set
gives an item in a hook, and where a loader over the same records is iterated. Not seen: records
that are read from files or by NumPy, and choices made of private values that an earlier step kept.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_audit.checks.update import FENCE_MONITORS, FENCE_WEIGHTS
from lightning_audit.dpsgd.opacus import own_name
from lightning_audit.hooks.boundary import Handles, entry
from lightning_audit.hooks.gradient_tap import memory
from lightning_audit.hooks.step_hooks import Installed, MethodHook
from lightning_audit.record.store import Kept
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.run.reads import Read, Reads, Records

# --- What the fence has found.

#: Most changes that a report names.
_SHOWN = 3


@dataclass
class FenceLog(Kept):
    """What changed the weights outside of private steps, and decisions by raw metrics.

    Args:
        told: sentences on changes that are not explained, the first of each cause.
        waiting: what changed within a step and why it counts, by what made it, until such a step is
            examined.
        monitors: sentences on decisions by metrics without noise.
        logged: names of what ``training_step`` logs.
        published: those whose values differed between replays of a step with other records.
        steps: number of steps that were watched.
        unnamed: whether weights changed between two steps by what has no name: not by a hook.
        examined: whether a step was replayed with all of its code.
    """

    KEPT = ("told", "waiting", "monitors", "logged", "published", "steps", "unnamed", "examined")

    told: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    monitors: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    steps: int = 0
    unnamed: bool = False
    examined: bool = False

    @property
    def size(self) -> int:
        """Number of sentences."""
        return len(self.told) + len(self.waiting) + len(self.monitors)

    def add_logged(self, names: Mapping[str, bool]) -> None:
        """Add names that a replayed step logged, each with whether its records decide the value."""
        self.logged += [name for name in names if name not in self.logged]
        raw = (name for name, differs in names.items() if differs)
        self.published += [name for name in raw if name not in self.published]

    def results(self) -> list[CheckResult]:
        """Return the results of the checks."""
        none = "no step was examined with all of its code"
        none = "no examined step had such a change" if self.examined else none
        waiting = [f"{what}, and {none}: {why}" for what, why in self.waiting.values()]
        changes = [*self.told.values(), *waiting]
        unnamed = {"unnamed": True} if self.unnamed else {}
        found = [
            (FENCE_WEIGHTS, changes, {"changes": len(changes), **unnamed}),
            (FENCE_MONITORS, self.monitors, {"monitors": len(self.monitors)}),
        ]
        return [check.judged(seen, what=_joined(sentences)) for check, sentences, seen in found]


def _joined(sentences: Sequence[str]) -> str:
    more = len(sentences) - _SHOWN
    return "; ".join([*sentences[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])


# --- Whether weights are made of released ones.

#: Entries of all weights that are read, and the fewest of a tensor.
_ENTRIES, _LEAST = 1024, 4
#: Numbers of steps, and of ends of epochs, whose weights are kept at these entries.
_STEPS, _ENDS = 64, 64
#: Steps over which the kept averages reach: any smooth average is a combination of these.
_REACH = 2.0 ** np.arange(0.5, 19.0, 0.75)
#: Averages may be of every tenth step; the number of first weights, where averages may begin.
_EVERY, _EARLY = 10, 12
#: Residual of a combination, relative to the change and to the weights' rounding.
_CLOSE, _ROUNDING = 5e-4, 16.0

Tensors: TypeAlias = dict[str, torch.Tensor]
Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class WeightEntries:
    """Reader of a few entries of each weight.

    Args:
        weights: by name.
    """

    def __init__(self, weights: Tensors) -> None:
        self._weights = list(weights.values())
        self._total = max(1, sum(weight.numel() for weight in self._weights))
        self._views: list[torch.Tensor] = []
        self._seen: list[int] = []
        ends = np.cumsum([0, *(len(self.few(weight)) for weight in self._weights)]).tolist()
        #: Where a weight's entries are in what is read.
        self.spans = dict(zip(weights, map(slice, ends, ends[1:]), strict=False))

    def few(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a few entries of a weight."""
        flat = memory(weight)
        count = min(len(flat), max(_LEAST, _ENTRIES * len(flat) // self._total))
        return flat[:: max(1, len(flat) // max(count, 1))][:count]

    def read(self) -> torch.Tensor:
        """Return the entries of all weights, ``[n]``, as the first one's."""
        seen = [weight.data_ptr() for weight in self._weights]
        if seen != self._seen:
            self._seen, self._views = seen, [self.few(weight) for weight in self._weights]
        if not seen:
            return torch.zeros(0)
        return torch.cat([view.to(self._views[0]) for view in self._views])

    def by_name(self, entries: torch.Tensor) -> Tensors:
        """Return each weight's entries."""
        return {name: entries[at] for name, at in self.spans.items()}


class Past:
    """Released weights at a few entries: of recent steps, of epochs' ends, and averages of all.

    Args:
        first: the weights before the first step, ``[n]``.
        whole: whether no step was made before; else nothing is said of weights that are unknown.
    """

    def __init__(self, first: torch.Tensor, *, whole: bool = True) -> None:
        self._first, self._whole, self._steps = first, whole, 0
        self._recent: deque[torch.Tensor] = deque(maxlen=_STEPS)
        self._ends: deque[torch.Tensor] = deque(maxlen=_ENDS)
        # Averages of all steps, of epochs' ends, and of one in `_EVERY` steps, whose number ends in
        # 0 or 1, ``[4, r, n]``; how many each has of them, and the first of them.
        exact = torch.float32 if first.device.type == "mps" else torch.float64
        self._averages = first.to(exact).repeat(4, len(_REACH) + 1, 1)
        self._counts, self._early = [0] * 4, list[torch.Tensor]()
        # What an average takes of the newest weights; the last one is that over all.
        self._shares = torch.as_tensor([*(1.0 / _REACH), 1.0])

    def _average(self, which: int, entries: torch.Tensor) -> None:
        self._counts[which] += 1
        self._shares[-1] = 1.0 / self._counts[which]
        rows = self._averages[which]
        rows.lerp_(entries.to(rows), self._shares.to(rows)[:, None])
        self._early += [entries] if which and self._counts[which] <= _EARLY else []

    def add(self, entries: torch.Tensor) -> None:
        """Add the weights after a step."""
        self._steps += 1
        self._average(0, entries)
        if self._steps % _EVERY < 2:
            self._average(2 + self._steps % _EVERY, entries)
        self._recent.append(entries)

    def end_epoch(self) -> None:
        """Keep the last step's weights for longer."""
        for entries in [*self._recent][-1:]:
            self._ends.append(entries)
            self._average(1, entries)

    def why_not(self, old: torch.Tensor, new: torch.Tensor, where: torch.Tensor) -> str:
        """Return why weights are no combination of released ones; empty if they may be one.

        The combination is fitted to three quarters of the entries, and must fit the rest.

        Args:
            old: the weights before the change at all entries, ``[n]``.
            new: after it, ``[n]``.
            where: whether an entry's weight has changed, ``[n]``.
        """
        steps = [self._first, *reversed(self._recent), *reversed(self._ends)]
        if any(torch.equal(step[where], new[where]) for step in steps):
            return _EARLIER
        rows = [old, *steps, *self._averages.flatten(0, 1), *self._early]
        if not self._whole or len(new) * 3 // 8 < len(rows):
            return ""
        now = new[where].double().cpu().numpy()
        table = torch.stack([row[where].double().cpu() for row in rows], 1).numpy()
        table = table[:, : max(len(now) * 3 // 8, 1)]
        target = now - table[:, 0]
        table[:, 1:] -= table[:, :1].copy()
        table /= np.maximum(np.linalg.norm(table, axis=0), 1e-300)
        fitted = np.arange(len(now)) % 4 != 0
        if not np.isfinite(
            [*table.sum(1), *now]
        ).all():  # the training went astray in an earlier step
            return _NOT_MADE
        found, *_ = np.linalg.lstsq(table[fitted], target[fitted], rcond=1e-10)
        gap = float(np.linalg.norm(target[~fitted]))
        rest = float(np.linalg.norm(target[~fitted] - table[~fitted] @ found))
        floor = _ROUNDING * torch.finfo(new.dtype).eps * float(np.linalg.norm(now))
        fits = rest <= max(_CLOSE * gap, min(floor, 0.1 * gap))
        return "" if fits and fitted.any() else _NOT_MADE


_NOT_MADE = "the new weights are not made of released ones"
_EARLIER = "the weights of an earlier step are back, and something chose that step"


def simply_changed(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Return whether a tensor was scaled (also row by row), clamped, or lost its smallest entries.

    Args:
        old: before, of at least two entries.
        new: after it, of the same shape.
    """
    a, b = old.detach().double().cpu(), new.detach().double().cpu()
    if a.shape != b.shape or a.numel() < 2 or not bool(b.isfinite().all()):
        return False
    tight = 1e-5 * float(b.norm())
    for rows in {1, len(a) if a.dim() > 1 else 1}:
        x, y = a.reshape(rows, -1), b.reshape(rows, -1)
        factor = (x * y).sum(1, keepdim=True) / (x * x).sum(1, keepdim=True).clamp(min=1e-300)
        if float((y - factor * x).norm()) <= tight:
            return True
    low, high = float(b.min()), float(b.max())
    if low < high and float((a.clamp(low, high) - b).norm()) <= tight:
        return True
    gone = (b == 0) & (a != 0)
    kept = ~gone & (a != 0)
    same = float((b - a)[~gone].norm()) <= tight
    return same and (not kept.any() or float(a[gone].abs().max()) <= float(a[kept].abs().min()))


# --- The fence.

#: Hooks that are a part of the step, and hooks that run for each batch of a validation.
_OF_STEP = ("on_train_batch_start", "on_train_batch_end")
_OF_BATCH = ("validation_step", "on_validation_batch_start", "on_validation_batch_end")
#: The hooks that are watched.
HOOKS = (
    *("setup", "configure_model", "configure_optimizers", "on_fit_start", "on_train_start"),
    *("on_sanity_check_start", "on_sanity_check_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end"),
    *("on_validation_end", "on_train_end", "on_fit_end", *_OF_STEP, *_OF_BATCH[1:]),
)
#: Changes within steps by one name after which only those of one step in `_SELDOM` are judged, if
#: they were explained: each takes a least-squares fit.
_OFTEN, _SELDOM = 10, 8
#: What changes weights within a step if no hook does.
_STEP = "code of a step, outside of the optimizer's update,"


#: Names of values, other than weights, that a released model holds; the value of one that is not.
_RELEASED, _ABSENT = ("buffer ", "extra "), torch.zeros(0)
#: Names of what depends on no record: the accountant's, step counters and learning rates.
_NO_METRIC = re.compile(r"(.*\bepsilon|(global_)?step|epoch|(lr|learning_rate)([-_/].*)?)")


class Fence:
    """Watches the weights of one training outside of its private steps.

    Args:
        log: keeps what is found.
        live: returns whether steps belong to the training: False during a replay.
        sessions: of the private optimizers; a list that is kept up to date.
    """

    def __init__(self, log: FenceLog, live: Callable[[], bool], sessions: Sequence[Any]) -> None:
        self._log, self._live, self._sessions = log, live, sessions
        self._module: torch.nn.Module | None = None
        self._loaders: Callable[[], Any] = lambda: None
        self._monitors: Callable[[], Iterable[tuple[str, str]]] = lambda: ()
        self._validation: Callable[[], Any] = lambda: None
        # Hooks, and how many of the user's run.
        self._handles, self._hooked, self._depth = Handles(), False, 0
        #: What was read since the last step.
        self.reads = Reads(lambda: self._records, entry(self._begin_read))
        # The training's records, by the ids of its loaders; built at most once between two steps.
        self._built = functools.lru_cache(1)(lambda *_: Records(self._loaders()))
        # The steps that are watched, hooks on their optimizers, and what is read of their weights.
        self._steps, self._stepping = list[Any](), Handles()
        self._entries, self._past = WeightEntries({}), Past(torch.zeros(0))
        # Entries at the last look; whether a step is open, its batch has ended, one was closed.
        self._now = torch.zeros(0)
        self._open = self._ended = self._stepped = False
        # Changes within the open step, whether it was examined; by what made them, whether those of
        # steps that were examined are not explained.
        self._changes: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._examined, self._covered = False, dict[str, bool]()
        self._seen, self._judged = Counter[str](), Counter[str]()
        #: Whether something new changes the weights within steps.
        self.news = False
        # Values in a checkpoint that is being loaded.
        self._saved: Tensors = {}
        # All values at the last look outside of a step, and the last step's where they changed.
        self._held: Tensors | None = None
        self._own: Tensors = {}
        # Changes before the first step with the reads until then: its loader is not known yet.
        self._early: list[tuple[str, Sequence[Read]]] = []
        # Changes since the last step, which may be put back: what, the sentence, and the names.
        self._pending: list[tuple[str, str, list[str]]] = []
        # In a plain loop: hooks on its data sets between passes, and entries before the open step
        # read records.
        self._items, self._at_read = Handles(), torch.zeros(0)
        # Values of one number that changed in earlier passes.
        self._scheduled = set[str]()

    def begin(
        self,
        module: torch.nn.Module,
        loaders: Callable[[], Any],
        monitors: Callable[[], Iterable[tuple[str, str]]] = lambda: (),
        validation: Callable[[], Any] = lambda: None,
        *,
        loop: bool = False,
    ) -> None:
        """Begin to watch, before the training is set up.

        Args:
            module: with all weights.
            loaders: returns the training's loaders, None while they are unknown.
            monitors: returns what decides by a metric, and the metric's name.
            validation: returns the loaders whose records the other metrics are computed from.
            loop: whether this is a plain loop, whose reads `note_reads` encloses.
        """
        self._module, self._loaders = module, loaders
        self.reads.loop = loop
        self._monitors, self._validation = monitors, validation
        self._held = self._values({})

    @property
    def watches(self) -> bool:
        """Whether the training is watched now."""
        return self._module is not None and self._live()

    @property
    def _records(self) -> Records:
        return self._built(*map(id, _pytree.tree_leaves(self._loaders())))

    def iterates(self, loader: Any) -> None:
        """Note that a loader is iterated, unless this is the training's own pass."""
        own = any(loader is each for each in _pytree.tree_leaves(self._loaders()))
        if self.watches and (self._depth or not own):
            self.reads.loader(loader)

    def reads_records_of(self, loader: Any) -> bool:
        """Return whether a loader is known to give records of the training."""
        return self._records.share(Records(loader))

    def watch_loaders(self) -> None:
        """Call `iterates` for each loader that is iterated."""
        self._handles.append(MethodHook(DataLoader, "__iter__", self.iterates, shown=True))

    # ------------------------------------------------------------------ reads of a plain loop

    def note_reads(self, *, now: bool) -> None:
        """Note what the loop reads, from now on until it asks for its next batch."""
        if now and self.watches and not self.reads.open:
            self.reads.enter(loop=True)
            if self._held is not None:
                self._items = self._hook_items()
        elif not now and self.reads.open:
            self.reads.enter(loop=False)
            self._items.remove()

    def _hook_items(self) -> Handles:
        """Hook the items of the training's data sets; those of tensors are seen by memory."""
        kinds = {type(d) for d, _ in self._records.sets.values() if isinstance(d, Dataset)}
        hooks = Handles()
        for kind in kinds - {TensorDataset}:
            for give in {"__getitem__", "__getitems__"} & {*dir(kind)}:
                hooks.append(MethodHook(kind, give, self.reads.item, shown=True))
        return hooks

    def _begin_read(self) -> None:
        """Judge what changed before the first read since the last step."""
        if self._open:
            self._at_read = self._entries.read()
        else:
            self._hold()
            self._compare()

    def _depend_on_reads(self, names: Iterable[str]) -> bool:
        """Return whether tensors changed after training records were read, and not by copies."""
        if not any(read(self._records) for read in self.reads.seen.values()):
            return False
        live = self._present()
        return not all(self.reads.holds_copy(live[n]) for n in names if n in live)

    # ------------------------------------------------------------------ hooks

    def watch(self, owner: Any, hook: str, name: str, *, trusted: bool = False) -> None:
        """Look at the weights around a hook.

        Args:
            owner: module or callback, whose method it is.
            hook: its name, in `HOOKS`.
            name: of what it is a hook of, as findings name it.
            trusted: whether it averages weights and nothing else.
        """
        self._hooked = True
        call = _Call(getattr(owner, hook), self, hook, f"{hook} of {name}", trusted)
        self._handles.append(Installed(owner, hook, call))

    def begin_hook(self, hook: str) -> contextlib.ExitStack:
        """Begin a hook: what has changed so far is not its work; return what to close after it."""
        self._depth += 1
        if self._depth > 1:
            return contextlib.ExitStack()
        if hook in _OF_STEP:
            if hook == _OF_STEP[0]:
                self.start_batch()
            self._look(_STEP)
        else:
            self._hold()
            if not self._stepped:
                self._compare()
        with contextlib.ExitStack() as stack:
            if hook not in (*_OF_STEP, *_OF_BATCH):
                stack.callback(self._hook_items().remove)
                stack.enter_context(self.reads)
            return stack.pop_all()

    def end_hook(self, hook: str, name: str, trusted: bool) -> None:
        """End a hook, and judge what it changed."""
        self._depth -= 1
        if self._depth:
            return
        if hook in _OF_STEP:
            self._look(name)
        elif hook not in _OF_BATCH or not self._steps or self._moved():
            self._compare(name, last=hook in ("on_train_end", "on_fit_end"), trusted=trusted)

    def loading(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Note the values in a checkpoint that the training is about to load, before any hook.

        Args:
            saved: parameters and buffers by name.
        """
        if self.watches:
            self._compare()
            self._saved = {own_name(name): value.clone() for name, value in saved.items()}

    def loaded(self) -> None:
        """Judge what the load of a checkpoint changed, except the values that are as saved."""
        saved, self._saved = self._saved, {}
        if not self.watches or self._held is None:
            return
        now = self._values(self._held)
        for name in self._held.keys() & now.keys():
            value = saved.get(name.removeprefix("buffer "))
            if value is not None and _same(value.to(now[name].dtype), now[name]):
                self._held[name] = now[name]
        self._compare("loading the checkpoint")

    def _moved(self) -> bool:
        return not same_bits(self._now, self._entries.read())

    # ------------------------------------------------------------------ steps

    def start_batch(self) -> None:
        """Begin a step, unless it has begun."""
        if self._open and not self._ended:
            return
        just_read = self._open and self._held is None
        self._close()
        self._follow()
        if not just_read:
            self._compare()
        for change, reads in self._early:
            if any(read(self._records) for read in reads):
                self._log.told.setdefault(change, f"{change}, and training records had been read")
        self._early = []
        self._go_on()
        self.reads.others &= self._held is None  # of the last pass
        self._held, self._open, self._ended = None, True, False

    def _go_on(self) -> None:
        """Name the changes since the last step that were not put back; begin again."""
        now = self._held or {}
        for change, sentence, names in self._pending:
            if any(not _same(self._own[n], now.get(n, _ABSENT)) for n in names):
                self._log.told.setdefault(change, sentence)
        self._pending, self._own, self._at_read = [], {}, torch.zeros(0)
        self.reads.clear()
        self._built.cache_clear()

    def _follow(self) -> None:
        """Read the weights of the present private optimizers, and look around their updates."""
        steps = [session.step for session in self._sessions]
        if [*map(id, steps)] == [*map(id, self._steps)]:
            return
        self._steps, self._entries = steps, WeightEntries(self._weights())
        self._now = self._entries.read()
        self._past = Past(self._now, whole=not self._log.steps)
        self._stepping.remove()
        self._stepping = Handles()
        for step in steps:
            begins, ends = entry(partial(self._update, True)), entry(partial(self._update, False))
            self._stepping.append(step.inner.register_step_pre_hook(begins))
            self._stepping.append(step.inner.register_step_post_hook(ends))

    def _update(self, begins: bool, *_: Any) -> None:
        """Look before an optimizer's update; what it changes is no change after it."""
        in_hook = self._held is not None and not self._open
        if self.watches and begins:
            self._compare() if in_hook else self._look(_STEP)
        elif self.watches:
            self._now = self._entries.read()
            if in_hook:
                self._go_on()
                self._past.add(self._now)
                self._held, self._stepped = self._values({}), True
            self.note_reads(now=self.reads.loop)

    def _look(self, name: str) -> None:
        """Note a change of the weights within a step."""
        before, self._now = self._now, self._entries.read()
        if not self._open or same_bits(before, self._now):
            return
        spans, read = self._entries.spans.items(), self._at_read
        moved = [n for n, at in spans if len(read) and not same_bits(read[at], self._now[at])]
        if moved and self._depend_on_reads(moved):
            what = (
                f"code that reads training records within a step changed {_parameters(len(moved))}"
            )
            self._log.told.setdefault(what, f"{what}, first {self._when}")
        else:
            self._changes.append((name, before, self._now))

    def end_batch(self, steps: int, *, examined: bool) -> None:
        """End a batch; hooks of its step may follow.

        Args:
            steps: number of steps so far.
            examined: whether what the last of them leaves was replayed.
        """
        self._ended, self._examined, self._log.steps = True, examined, steps
        self._log.examined |= examined
        if not self._hooked:
            self._close()

    def _close(self) -> None:
        """Close the open step: judge its changes, and keep its weights."""
        if not self._open:
            return
        self._look(_STEP)
        # The update of an optimizer that came within the step is not known.
        followed = [*map(id, self._steps)] == [id(session.step) for session in self._sessions]
        for change in self._changes if followed else []:
            self._judge_within(*change)
        self._past.add(self._now)
        self._changes, self._open, self._stepped, self._examined = [], False, True, False

    @property
    def _when(self) -> str:
        """The step in which code runs, in words."""
        step = self._log.steps + (not self._ended)
        return f"in step {step}" if self._log.steps else "before the first step"

    def _judge_within(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        """Judge a change within a step, unless an examined step had one that is not explained."""
        seen, steps = self._covered.get(name), self._log.steps
        if name in self._log.waiting and not self._examined:
            return
        if seen or (seen is not None and self._judged[name] >= _OFTEN and steps % _SELDOM):
            return
        self._judged[name] += 1
        spans = self._entries.spans.values()
        pairs = [(before[at], after[at]) for at in spans if not same_bits(before[at], after[at])]
        why = self._why_not(pairs, before, after)
        what = f"{name} changed {_parameters(len(pairs))} {self._when}"
        if why == _EARLIER:  # all replays of a step may choose alike
            self._log.told.setdefault(name, f"{what}: {why}")
        elif self._examined:
            self._covered[name] = bool(why)
            self._log.waiting.pop(name, None)
        else:
            self._seen[name] += 1  # examined a step later, which a change every k steps is not in
            self.news |= seen is None and self._seen[name].bit_count() == 1
            if why:
                self._log.waiting[name] = [what, why]

    # ------------------------------------------------------------------ between steps

    def _hold(self) -> None:
        """Close the open step, and copy all values until the next one."""
        self._close()
        if self._held is None:
            self._compare()
            self._held = self._values({})

    def end_epoch(self) -> None:
        """Keep all weights at an epoch's end, and the reasons why metrics decide something."""
        self._past.end_epoch()
        self._hold()
        self.reads.spans = None
        self.look_at_monitors()

    def end(self, name: str = "") -> None:
        """Compare all weights at the end of the training.

        Args:
            name: of what has run since the last look; empty if it is unknown.
        """
        self.note_reads(now=False)
        self._hold()
        self._compare(name, last=True)
        self._go_on()
        self.look_at_monitors()

    def look_at_monitors(self) -> list[str]:
        """Return new sentences on decisions by metrics without noise."""
        shared = self._records.share(Records(self._validation()))
        found = []
        for who, name in self._monitors():
            if _NO_METRIC.fullmatch(name):
                continue
            names = {name, name.removesuffix("_epoch"), name.removesuffix("_step")}
            if names & {*self._log.logged}:
                found.append(f"{who} follows `{name}`, which the training logs without noise")
            elif shared:
                found.append(f"{who} follows `{name}` of a loader that gives training records")
        news = [one for one in found if one not in self._log.monitors]
        self._log.monitors += news
        return news

    def follows_metric(self, who: str) -> str:
        """Note that a scheduler got a metric, if training records alone can have given it.

        Args:
            who: names the scheduler and the line.

        Returns:
            The sentence, if it is new; else empty.
        """
        sentence = f"{who} follows a value that no other records than those of the training gave"
        if self.reads.others or sentence in self._log.monitors:
            return ""
        self._log.monitors.append(sentence)
        return sentence

    def _compare(self, name: str = "", *, last: bool = False, trusted: bool = False) -> None:
        """Judge what changed since the last look outside of a step.

        Args:
            name: of the hook; empty if it is unknown what ran.
            last: whether no step follows.
            trusted: see `watch`.
        """
        before, self._now = self._now, self._entries.read()
        if self._held is None and same_bits(before, self._now):
            return
        if self._held is None:
            held, now = (self._entries.by_name(entries) for entries in (before, self._now))
        else:
            held, now = self._held, self._values(self._held)
            self._held = now
        moved = [
            n
            for n in now
            if not _same(held.get(n, _ABSENT), now[n]) and (n in held or n.startswith(_RELEASED))
        ]
        changed = [n for n in moved if n not in self._own or not _same(self._own[n], now[n])]
        self._own = {**{n: held.get(n, _ABSENT) for n in moved}, **self._own}
        if not changed:
            return
        weights = [n for n in changed if n in self._entries.spans or not self._steps]
        what, step = _parameters(len(weights)) if weights else changed[0], self._log.steps
        change = f"{name} changed {what}" if name else f"{what} changed"
        single = {n for n in changed if now[n].numel() == 1 and n not in weights}
        known = {n for n in single if not last or n in self._scheduled or now[n] == now[n].round()}
        self._scheduled |= single
        read = self._depend_on_reads([n for n in changed if n not in known])
        if not self._stepped:
            reads = [] if self.reads.loop and not read else [*self.reads.seen.values()]
            self._early.append((f"{change} before the first step", reads))
            return
        when = f"after step {step}" if name else f"between steps {step} and {step + 1}"
        why = ""
        if read:
            why = "training records were read outside of the steps since the last one"
        elif weights and not trusted:
            pairs = [(held[n], now[n]) for n in weights]
            why = self._why_not(
                pairs, before, self._now, simple=not (self.reads.loop and self.reads.seen)
            )
        shapes = {p.shape for p in self._weights().values()}  # averages of weights, as far as known
        values = [now[n] for n in changed if n.startswith(_RELEASED) and now[n].shape not in shapes]
        judged = "validation" not in name if name else self.reads.loop and not self.reads.others
        if not why and judged and any(map(_holds_values, values)):
            why = "new values of buffers are not known to be made of released weights"
        states = [n for n in changed if n.startswith("optimizer state")]
        if not why and not all(_is_made(held[n], now[n], self._weights()) for n in states):
            why = "new values of optimizer state are not known to be made of released weights"
        if why and last:
            self._log.told.setdefault(change, f"{change} after the last step: {why}")
        elif why:
            self._log.unnamed |= not name
            self._pending.append((change, f"{change} {when}: {why}", changed))

    def _why_not(
        self,
        pairs: Sequence[Pair],
        before: torch.Tensor,
        after: torch.Tensor,
        *,
        simple: bool = True,
    ) -> str:
        """Return why weights are not made of released ones; empty if they are.

        Args:
            pairs: the weights that changed, or some of their entries, before and after.
            before: entries of all weights before, ``[n]``.
            after: the same after it, ``[n]``.
            simple: whether they may be scaled, clamped or pruned.
        """
        if simple and all(simply_changed(*pair) for pair in pairs):
            return ""
        where = torch.zeros(len(after), dtype=torch.bool, device=after.device)
        for at in self._entries.spans.values():
            where[at] = not same_bits(before[at], after[at])
        return self._past.why_not(before, after, where) if where.any() else _NOT_MADE

    # ------------------------------------------------------------------ values

    def _weights(self) -> Tensors:
        """Return the parameters that private optimizers train; before there are any, all."""
        assert self._module is not None
        own = {id(p) for session in self._sessions for p in session.step.params}
        named = [(own_name(n), p) for n, p in self._module.named_parameters() if _is_held(p)]
        return {name: p for name, p in named if id(p) in own or not own}

    def _present(self) -> Tensors:
        """Return weights, buffers, optimizer states and extra states of modules."""
        assert self._module is not None
        found: dict[str, Any] = dict(self._weights())
        names = {id(p): name for name, p in found.items()}
        found |= {f"buffer {own_name(name)}": b for name, b in self._module.named_buffers()}
        for step in self._steps:
            for p, state in step.inner.state.items():
                found |= {f"optimizer state {k} of {names.get(id(p))}": v for k, v in state.items()}
        for name, module in self._module.named_modules():
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
                with contextlib.suppress(Exception):  # it is the user's code
                    for n, leaf in enumerate(_pytree.tree_leaves(module.get_extra_state())):
                        found[f"extra state {n} of {own_name(name)}"] = torch.as_tensor(leaf)
        return {n: v for n, v in found.items() if isinstance(v, torch.Tensor) and _is_held(v)}

    def _values(self, held: Tensors) -> Tensors:
        """Return copies of `_present`: a held value where it is the same still."""
        return {
            name: held[name]
            if name in held and _same(held[name], value)
            else value.detach().clone()
            for name, value in self._present().items()
        }

    def detach(self) -> None:
        """Remove all hooks."""
        self.note_reads(now=False)
        self._handles.remove()
        self._stepping.remove()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two vectors are equal; NaN equals itself."""
    return torch.equal(one, other) or (
        one.shape == other.shape
        and torch.equal(torch.nan_to_num(one, 0.5), torch.nan_to_num(other, 0.5))
    )


def _is_held(value: Any) -> bool:
    """Return whether a tensor has values."""
    return not is_lazy(value) and value.device.type != "meta"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and same_bits(one.to(other.device), other)


def _parameters(count: int) -> str:
    return f"{count} parameter{'s' * (count > 1)}"


def _is_made(old: torch.Tensor, new: torch.Tensor, weights: Tensors) -> bool:
    """Return whether an optimizer state is constant, or made of the one before, or a weight."""
    a_weight = any(_same(weight.detach(), new) for weight in weights.values())
    return a_weight or not _holds_values(new) or simply_changed(old, new)


def _holds_values(value: torch.Tensor) -> bool:
    """Return whether a buffer is more than a counter or one number, also in all its entries."""
    return value.is_floating_point() and bool((value != value.flatten()[:1]).any())


@dataclass(eq=False)
class _Call:
    """The call of a watched hook; a copy or a pickle of its owner has the hook alone."""

    own: Any
    fence: Fence
    event: str
    name: str
    trusted: bool

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.own)
        self.begin = entry(self.fence.begin_hook, lambda *_: contextlib.ExitStack())
        self.leave = entry(contextlib.ExitStack.close, contextlib.ExitStack.close)
        self.end = entry(self.fence.end_hook)

    def __reduce__(self) -> Any:
        owner = getattr(self.own, "__self__", None)
        return (getattr, (owner, self.event)) if owner is not None else (_given, (self.own,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.fence.watches:
            return self.own(*args, **kwargs)
        entered = self.begin(self.event)
        try:
            return self.own(*args, **kwargs)
        finally:
            self.leave(entered)
            self.end(self.event, self.name, self.trusted)


def _given(item: Any) -> Any:
    return item
