"""Runs the user's whole step on given batches and random numbers, and reads its release.

**Seed all generators at fixed points of a replayed step, and record how many numbers were drawn.**
Two replays are comparable only if they draw the same number of random numbers: if one draws more,
all its later draws differ, and the difference of the two is noise.

**Run the user's whole step on given batches and random numbers, and read its release.** The user's
code runs from `training_step` to the end of the update, as in the training. The release is read at
the cut, after noise was added. Then all state is restored.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.modules.dropout import _DropoutNd

from lightning_audit.canaries.inputs import rows, taken
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.dpsgd.adapters import divisor_at_cut, watch_cut
from lightning_audit.dpsgd.hand_over import diverted
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.step_hooks import ClosureHooks, MethodHook, is_torchs
from lightning_audit.replay.device import Room, SteadyKernels, clock, no_room
from lightning_audit.replay.fork import ReachesOut
from lightning_audit.replay.order import Order
from lightning_audit.replay.releases import Release
from lightning_audit.replay.rows import Rows
from lightning_audit.replay.taken_step import copied
from lightning_audit.replay.training_state import (
    TrainingState,
    left_behind,
    same_bits,
    settings_of,
)

# --- The result of one replay of a step.

#: Why no further step is replayed.
ANOTHER_DREW = (
    "another thread drew from the global generators of random numbers while a step was replayed"
)


class Stopped(Exception):
    """No more steps may be replayed; the message says why."""


@dataclass
class Replay:
    """Result of one replay of a step.

    Args:
        releases: noisy gradient of each of the optimizer's steps.
        rows: number of per-sample gradients that were clipped; 0 if none are formed.
        parts: number of calls of the clipping.
        norms: norms of the per-sample gradients in units of the clipping norm, ``[rows]``; empty
            if none are formed.
        gradients: the per-sample gradients of each physical batch, `folded` to ``[n, columns]``;
            only on request.
        marks: state of all generators as one number, at each point of the step: "start", each
            "clipping" and "noise", and the "cut".
        stated: the optimizer's clipping norm when noise is added, over the claimed one.
        noise: the optimizer's noise multiplier at that time, of each step, including a second one.
        counts: what an optimizer with adaptive clipping releases in addition to its gradients.
        used: the gradient that the update used; None unless the state after the step is read.
        after: state after the step that later steps or a checkpoint use, by name.
        later: releases of a second step; empty if there was none.
        later_settings: the optimizer's settings after it, by name; on request all other state.
        later_rows: its per-sample gradients, as ``gradients``; only on request.
        sure: whether the release was read after all noise was added.
        shown: whether Opacus or the user's code showed the release, before any post-processing.
        share: whether several records are clipped together.
        error: the exception of the user's code; empty if none.
        where: file and line of the exception.
    """

    releases: list[Release] = field(default_factory=list)
    rows: int = 0
    parts: int = 0
    norms: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    stated: float = 1.0
    noise: list[float] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    used: Release | None = None
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    later: list[Release] = field(default_factory=list)
    later_settings: Mapping[str, torch.Tensor] = field(default_factory=dict)
    later_rows: list[torch.Tensor] = field(default_factory=list)
    sure: bool = True
    shown: bool = False
    share: bool = False
    error: str = ""
    where: str = ""

    @property
    def release(self) -> torch.Tensor:
        """The releases of all steps in units of the clipping norm, ``[d]``; empty without steps."""
        return together(self.releases)

    @property
    def is_finite(self) -> bool:
        """Whether there are releases, without an error, and all are finite."""
        return bool(self.releases) and not self.error and all(r.finite() for r in self.releases)

    @property
    def finite(self) -> torch.Tensor | None:
        """``release``; None if it is not finite, and after an error."""
        return self.release if self.is_finite else None

    @property
    def all_norms(self) -> torch.Tensor:
        """``norms`` of all parts in one tensor; empty if none are formed."""
        return torch.cat(self.norms or [torch.zeros(0)])

    @property
    def all_gradients(self) -> torch.Tensor:
        """``gradients`` of all parts in one tensor, ``[n, columns]``."""
        return torch.cat(self.gradients)

    @property
    def drawn(self) -> int | None:
        """The mark at the first clipping; None if there was none."""
        return next((mark for place, mark in self.marks if place == "clipping"), None)

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn before the first clipping."""
        return self.drawn is not None and self.drawn != self.marks[0][1]

    def fail(self, error: Exception) -> None:
        """Record an exception of the user's code, without its text, which may contain data."""
        self.error = str(error) if isinstance(error, ReachesOut) else type(error).__name__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name != "_refuse"]
        # The file name alone: numbers in a folder's name could be mistaken for numbers of the data.
        self.where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def count_rows(found: Replay, grads: Sequence[torch.Tensor], norm: float, keep: int = 0) -> None:
    """Add per-sample gradients that are about to be clipped.

    Args:
        found: the replay to which they are added.
        grads: of each tensor, ``[n, *shape]``.
        norm: the clipping norm.
        keep: number of columns in which the gradients themselves are kept; 0 for none.
    """
    found.rows += len(grads[0])
    if keep:
        found.gradients.append(folded(grads, keep))
    # In the gradients' own precision: a copy in double precision may take longer than a step.
    parts = [torch.linalg.vector_norm(_rows(g), dim=1).cpu().double() for g in grads]
    found.norms.append(torch.stack(parts).norm(dim=0) / norm)


def _rows(grads: torch.Tensor) -> torch.Tensor:
    """Return per-sample gradients as rows, ``[n, d]``, also for scalar parameters."""
    return grads.detach().unsqueeze(-1).flatten(1)


@torch.no_grad()
def folded(grads: Sequence[torch.Tensor], columns: int) -> torch.Tensor:
    """Compress per-sample gradients into few columns, approximately preserving norms.

    They are unchanged if there is a column for each entry. Otherwise entries get random signs, the
    same ones in each call, and are added to the columns in turn: norms, and norms of differences,
    are preserved up to a relative error of about ``columns ** -0.5``.

    Args:
        grads: of each tensor, ``[n, *shape]``.
        columns: largest number of columns.

    Returns:
        In single precision, ``[n, columns]``.
    """
    flat = [_rows(grad) for grad in grads]
    if sum(grad.shape[1] for grad in flat) <= columns:
        return torch.cat(flat, 1).float()
    signs = torch.Generator().manual_seed(0)
    found = torch.zeros(len(grads[0]), columns, device=grads[0].device)
    place = 0
    for rest in flat:
        while rest.shape[1]:
            part, rest = rest[:, : columns - place], rest[:, columns - place :]
            wide = part.shape[1]
            sign = torch.randint(0, 2, (wide,), generator=signs, dtype=torch.int8) * 2 - 1
            found[:, place : place + wide].addcmul_(part.float(), sign.to(found))
            place = (place + wide) % columns
    return found


# --- Seeds all generators at fixed points of a replayed step, and counts the numbers drawn.

#: Offsets of the seeds, so that no two points of a step get the same random numbers.
_APART = {"clipping": 1_000_003, "noise": 2_000_003, "cut": 3_000_017}
_SECOND_STEP = 4_000_037


class RandomPlaces:
    """The random numbers of one replay.

    Args:
        state: of the training; it seeds all generators and reads their state.
        seed: of the replay.
        found: the replay to which the first step's marks are added.
        others: other seeds for single points of the first step, such as "start".
    """

    def __init__(
        self,
        state: TrainingState,
        seed: int,
        found: Replay,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self._state, self._seed, self._found, self._others = state, seed, found, others or {}
        self._passed = Counter[str]()
        #: Whether the second step has begun.
        self.second = False

    def begin(self) -> None:
        """Begin the first step."""
        self._state.seed(self._others.get("start", self._seed))
        self._found.marks.append(("start", self._state.mark()))

    def begin_second(self) -> None:
        """Begin the second step; its random numbers do not depend on the first one's draws."""
        self.second = True
        self._seed += _SECOND_STEP
        self._passed.clear()
        self._state.seed(self._seed)

    def passes(self, place: str, *, once: bool = False) -> None:
        """Record the generators' state at a point of the step, and seed them.

        Args:
            place: "clipping", "noise" or "cut".
            once: whether only the first time counts, as if records are clipped one by one.
        """
        self._passed[place] += 1
        if once and self._passed[place] > 1:
            return
        if not self.second:
            self._found.marks.append((place, self._state.mark()))
        seed = self._seed if self.second else self._others.get(place, self._seed)
        self._state.seed(seed + self._passed[place] * _APART[place])


def same_numbers(one: Replay, other: Replay) -> bool:
    """Return whether two replays drew the same number of random numbers between all points.

    If they take different numbers of steps, only the points that both have are compared.
    """
    if len(one.releases) == len(other.releases):
        return one.marks == other.marks
    shorter = min(len(one.marks), len(other.marks))
    return one.marks[:shorter] == other.marks[:shorter]


# --- A replay while it runs, and what the step shows of itself.

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

#: Opacus' adaptive clipping: the noisy number of unclipped gradients, and the number of all.
_COUNTS = ("unclipped_num", "sample_size")
#: Rows of a batch, over those that are expected, that are no views of fewer records.
_AS_EXPECTED = 1.5


class _Running:
    """A replay while it runs: reads what the step shows, and puts in what is given instead.

    To a step written by hand it is the source of `lightning_audit.per_sample`, `rows` and
    `released`.

    Args:
        replay: of the step.
        found: what was read.
        places: the replay's random numbers.
        records: number of records of its batches.
        rows: per-sample gradients that replace those of the last batch; None to keep these.
        released: a replay whose releases replace this one's after the cut.
        keep: number of columns in which the per-sample gradients are kept; 0 for none.
    """

    def __init__(
        self,
        replay: StepReplay,
        found: Replay,
        places: RandomPlaces,
        records: int,
        rows: Rows | None,
        released: Replay | None,
        keep: int,
    ) -> None:
        self._replay, self._step, self._claim = replay, replay.order.step, replay.claim
        self._private: Any = replay.private
        self._found, self._places, self._records = found, places, records
        self._rows, self._released, self._keep = rows, released, keep
        #: Why it does not fit into memory, or empty.
        self.full = ""
        # Whether the release of the present step was shown, and the optimizer's open calls of it.
        self._shown, self._depth = False, 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which the step shows its gradients and its release."""
        module, private = self._replay.order.user.module, self._private
        for part in module.modules():
            if isinstance(part, _DropoutNd):
                part.training = False  # a record that moves would get another mask
        with contextlib.ExitStack() as stack:
            if private is not None:
                hooks: list[Any] = [
                    MethodHook(private, "pre_step", before=self._before_clipping),
                    MethodHook(private, "add_noise", before=self._before_noise),
                    watch_cut(private, self._noise_is_in),
                ]
            else:
                stack.enter_context(diverted(module, self))
                calls = self._enters, lambda _: self._update_begins(), self._leaves
                hooks = [ClosureHooks(self._step.inner, *calls)]
            for hook in hooks:
                stack.callback(hook.remove)
            yield

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Context of the audit's code in a replay: if memory is full, the replay is void."""
        try:
            yield
        except Exception as error:
            if not (full := no_room(error)):
                raise
            self.full = full

    def _clips(self) -> None:
        """Note that clipping begins."""
        self._found.parts += not self._places.second
        # A hand-written step may clip records one by one.
        self._places.passes("clipping", once=self._private is None)

    def _count(self, grads: Sequence[torch.Tensor]) -> None:
        """Count, and keep on request, per-sample gradients that are about to be clipped."""
        if not self._places.second:
            count_rows(self._found, grads, self._claim.max_grad_norm, self._keep)
        elif self._keep:
            self._found.later_rows.append(folded(grads, self._keep))

    def _reads(
        self, grads: Sequence[torch.Tensor | None], unit: float, *, again: bool = False
    ) -> None:
        """Read a release, or write the given one; ``again`` if what was read before is none."""
        with self.fitting():
            found, later = self._found, self._places.second
            seen = found.later if later else found.releases
            if again and seen:
                seen.pop()
            seen.append(Release.of(grads, self._step.params, unit))
            self._places.passes("cut")
            if later or self._released is None or len(seen) > len(self._released.releases):
                return
            given = self._released.releases[len(seen) - 1]
            given.write(grads, self._replay.sizes, unit)
            seen[-1] = seen[-1].like(given)
            for name, value in self._released.counts.items():
                setattr(self._private, name, value)

    # ------------------------------------------------------------------ of Opacus

    def _before_clipping(self) -> None:
        with self.fitting():
            held = [getattr(p, "grad_sample", None) for p in self._step.params]
            last = [h[-1] if isinstance(h, list) and h else h for h in held]
            tensors = [h for h in last if isinstance(h, torch.Tensor)]
            if len(tensors) == len(held) and self._places.second:
                self._count(tensors)
            elif len(tensors) == len(held):
                self._replay.forms_rows, rows = True, self._rows
                self._count(self._of_records(tensors))
                if rows is not None and not self._private._check_skip_next_step(pop_next=False):
                    self._replay.hand_over(rows)
            self._clips()

    def _of_records(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the gradient of each record, the mean over its views."""
        views, count = self._claim.views, len(tensors[0])
        # Records that are collated as several views each make more rows than expected.
        few = self._replay.records < _AS_EXPECTED * self._claim.scale
        self._found.share = views > 1 and few and count == self._records
        if views == 1 or self._found.share or count % views:
            return tensors
        return [t.view(-1, views, *t.shape[1:]).mean(1) for t in tensors]

    def _before_noise(self) -> None:
        self._found.stated = float(self._private.max_grad_norm) / self._claim.max_grad_norm
        self._found.noise.append(float(self._private.noise_multiplier))
        self._places.passes("noise")

    def _noise_is_in(self) -> None:
        private, params = self._private, self._step.params
        divisor = divisor_at_cut(private, params, self._claim)
        if not self._found.counts:
            self._found.counts = {n: getattr(private, n) for n in _COUNTS if hasattr(private, n)}
        self._reads([p.grad for p in params], self._claim.max_grad_norm / divisor)

    # ------------------------------------------------------------------ of a step by hand

    @property
    def _unit(self) -> float:
        return self._claim.max_grad_norm / self._claim.scale

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """Count the gradients, and return them or replacements."""
        new = grads
        with self.fitting():
            tensors = list(grads.values())
            self._count(tensors)
            self._clips()
            # The gradients of a second step are not replaced.
            if self._rows is not None and not self._places.second:
                # A batch may be split over several calls, each with its share of the rows.
                end = self._found.rows
                rows = self._rows.taken(slice(end - len(tensors[0]), end))
                new = self._replaced(grads, rows, self._places_of(grads, module, root))
        return new

    def _replaced(self, grads: Gradients, rows: Rows, places: Mapping[str, int]) -> Gradients:
        new = type(grads)()
        begins = [0, *itertools.accumulate(self._replay.sizes)]
        for name, grad in grads.items():
            like = grad[0] if len(grad) else grad.new_empty(grad.shape[1:])
            new[name] = rows.part(begins[places[name]], like, self._claim.max_grad_norm)
        return new

    def _places_of(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> Any:
        """Return the number of each gradient's tensor among those of the step; None for others."""
        return self._step.places(list(grads), module, root)  # type: ignore[attr-defined]

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """Return no canaries, and record that clipping begins, in a loop over samples."""
        self._clips()
        return []

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Read the release."""
        tensors: list[torch.Tensor | None] = [None] * len(self._step.params)
        for name, place in self._places_of(grads, module, root).items():
            if place is not None:
                tensors[place] = grads[name]
        self._shown = self._found.shown = self._found.sure = True
        # What the step's hook read before is no release where the optimizer's own step shows one.
        self._reads(tensors, self._unit, again=self._depth > 0)

    def _enters(self) -> int:
        self._depth += 1
        return self._depth

    def _update_begins(self) -> None:
        """Read the release when the update begins, unless the code showed it."""
        nested = self._depth > 1
        self._found.sure = self._shown or nested or is_torchs(self._step.inner.step)
        if not self._shown:
            # A class that clips in its own step and then calls torch's runs this hook twice.
            self._reads([p.grad for p in self._step.params], self._unit, again=nested)

    def _leaves(self) -> None:
        self._depth -= 1
        self._shown = self._shown and self._depth > 0


# --- Run the user's whole step on given batches and random numbers, and read its release.

#: Step times that limited replays may take, and seconds in which they are not counted.
_STEP_TIMES, _SOON = 80.0, 2.0
#: Releases that are multiples of another: least number, distance of the cosine from one at most,
#: and of the factor at least.
_MULTIPLES, _LINE, _CHANGED = 4, 1e-6, 0.01


class StepReplay:
    """Replays of the step of one private optimizer.

    Args:
        order: the step that was taken, and how it is run again.
        state: of the training, which is restored after each replay.
        beat: called after each replay.
    """

    def __init__(
        self, order: Order, state: TrainingState, beat: Callable[[], None] = lambda: None
    ) -> None:
        step = order.step
        #: What is examined; and whether in a fork, in which the user's code may write.
        self.order, self.forked = order, order.forked
        # Half for replays from the state before the step, half for those from the one after it.
        self._level, self._decisions = 0.5 * order.level, 0
        self._budget, self._beat = order.budget, beat
        # The last state after a step, and the gradient of its update, which most replays share.
        self._after: dict[str, torch.Tensor] = {}
        self._used: Release | None = None
        # Batches and their replays.
        self._kept = dict[tuple[int, ...], tuple[list[Any], Replay]]()
        # First seed, with its releases and norm; releases that are other multiples of it, or none.
        self._lines, self._multiples, self._others = dict[int, tuple[list[Release], float]](), 0, 0
        #: Whether the step formed per-sample gradients of all tensors.
        held = [getattr(p, "grad_sample", None) for p in step.params]
        self.forms_rows = all(isinstance(each, torch.Tensor | list) for each in held)
        #: Number of replayed steps, and the seconds of the fastest one on all the step's records.
        self.steps, self.step_seconds = 0, math.inf
        # Seconds of the step in the training, and the least of a replay per gradient.
        self._taken_seconds, self._per_row = order.taken.work or math.inf, 0.0
        self._began = clock()
        #: Number of records of the whole batch, which comes first.
        self.records = 0
        # Number of steps up to which a finding is confirmed, however long that takes.
        self._confirms = 0
        #: Makes the step's bits repeatable; says what cannot be made so.
        self.steady = SteadyKernels()
        #: For each physical batch, whether Opacus' batch memory manager skips the optimizer's step
        #: after it; empty if none is skipped, or if the step's own code decides that.
        self.skips = order.taken.skips if any(order.taken.skips) else []
        #: Restored after each replay.
        self.state = state
        #: Opacus' optimizer; None for others.
        self.private = private_optimizer(step.optimizer)
        #: Whether the number of replayed steps is limited.
        self.limited = order.budget is not None
        #: Types of the trained tensors, type of crafted gradients, and entries of each tensor.
        self.dtypes = [p.dtype for p in step.params]
        self.dtype = torch.float64 if torch.float64 in self.dtypes else torch.float32
        #: Where crafted gradients are made.
        self.device = step.params[0].device
        self._room = Room(self.device)
        self.sizes = [p.numel() for p in step.params]
        #: What is claimed of the step.
        self.claim = order.claim

    def usual(self, batches: Sequence[Any], seed: int) -> Replay:
        """Return the replay of the step as it is, with the state after it; cached."""
        return self._cached(0, batches, seed, lambda: self.run(batches, seed, look=True))

    def followed(self, batches: Sequence[Any], seed: int) -> Replay:
        """Return the replay of the step with the same release, followed by another one; cached."""
        usual = self.usual(batches, seed)
        return self._cached(
            1, batches, seed, lambda: self.run(batches, seed, released=usual, then=batches)
        )

    def known(self, batches: Sequence[Any], seed: int) -> Replay | None:
        """Return what `usual` would; None if that was not replayed yet."""
        kept = self._kept.get((0, seed, *map(id, batches)))
        return None if kept is None else kept[1]

    def _cached(
        self, kind: int, batches: Sequence[Any], seed: int, replays: Callable[[], Replay]
    ) -> Replay:
        key = kind, seed, *map(id, batches)
        if key not in self._kept:
            self._kept[key] = list(batches), replays()  # held, so that no id is used again
        return self._kept[key][1]

    def run(
        self,
        batches: Sequence[Any],
        seed: int,
        *,
        rows: Rows | None = None,
        released: Replay | None = None,
        then: Sequence[Any] = (),
        keep: int = 0,
        alone: bool = False,
        look: bool = False,
        others: Mapping[str, int] | None = None,
    ) -> Replay:
        """Replay a step, and restore all state.

        Args:
            batches: the physical batches of the logical one.
            seed: of every generator, set when the step begins, before clipping, before noise is
                added, at the cut, and when a second step begins.
            rows: per-sample gradients in units of the clipping norm that replace those of the last
                batch.
            released: a replay whose releases replace this one's after the cut.
            then: batches of a second step, in which nothing is replaced.
            keep: number of columns in which the per-sample gradients are kept; 0 for none.
            alone: whether to clip and noise ``rows`` by Opacus without the rest of the step.
            look: whether to read the state after the last step; it is always read after the first
                of two.
            others: seeds of single points of the first step; see `RandomPlaces`.

        Raises:
            Stopped: no further step may be replayed.
        """
        self.state.shared.look()
        count, begun = _records(batches) if rows is None else len(rows), clock()
        if self.stopped or not self.has_left(1 + bool(then), count):
            raise Stopped(self.stopped or Reason.NONE_LEFT)
        self.steps += 1 + bool(then)
        found = Replay(shown=self.clips_by_opacus)
        places = RandomPlaces(self.state, seed, found, others)
        # Rows that clipping gets alone are there before it.
        given = None if alone else rows
        running = _Running(self, found, places, _records(batches), given, released, keep)
        module, step = self.order.user.module, self.order.step
        try:
            with (
                running.watching(),
                self.state.entropy,
                self.state.counting(),
                contextlib.nullcontext() if self.forked else self.steady(),
            ):
                places.begin()
                self.take_first(batches, rows, alone=alone)
                if then or look:
                    found.after = left_behind(
                        module, step.optimizer, saves=self.forked, like=self._after
                    )
                    grads = [p.grad for p in step.params]
                    found.used = Release.of(grads, step.params, 1.0).like(self._used)
                    self._after, self._used = found.after, found.used
                if then:
                    places.begin_second()
                    self._announce(len(then))
                    self._take(then)
                    settings = settings_of(step.optimizer, "in the next step")
                    left = left_behind(module, step.optimizer) if look else {}
                    found.later_settings = {**left, **settings}
        except Exception as error:
            running.full = running.full or no_room(error)
            if not running.full and raised_in_audit(error) and not isinstance(error, ReachesOut):
                raise
            found.fail(error)
        finally:
            for restore in (self.state.shared.leave, self.state.put_back):
                with running.fitting():  # what was freed since may be enough
                    restore()
                    continue
                restore()
        if running.full:  # no fault of the step
            self.records = 0
            self._kept.clear()
            self._lines.clear()
            raise Stopped(running.full)
        if rows is None:  # crafted gradients have other directions
            self._compare(found, seed)
        self._beat()
        rate = (clock() - begun) / max(count * (1 + bool(then)), 1)
        self._per_row = min(rate, self._per_row or rate)
        return found

    @property
    def one_number(self) -> bool:
        """Whether other records change a release of several entries by a factor alone."""
        return self._multiples >= _MULTIPLES and not self._others and sum(self.sizes) > _MULTIPLES

    def _compare(self, found: Replay, seed: int) -> None:
        sizes = [release.norm() for release in found.releases] if found.is_finite else []
        if not any(sizes):
            return
        if self._lines and seed not in self._lines:
            return  # one is kept, for it takes memory
        first, before = self._lines.setdefault(seed, (found.releases, math.hypot(*sizes)))
        size = math.hypot(*sizes)
        if len(found.releases) != len(first):
            return
        pairs = zip(first, found.releases, strict=True)
        along = sum(one.dot(other) for one, other in pairs)
        self._others += abs(along) < (1.0 - _LINE) * size * before
        self._multiples += abs(size / before - 1.0) > _CHANGED

    def take_first(self, batches: Sequence[Any], rows: Rows | None, *, alone: bool) -> None:
        """Run the step on its batches, or only clip ``rows`` and add noise."""
        begun, records = clock(), _records(batches)
        self.records = self.records or records
        self._announce(len(batches))
        if alone and rows is not None:
            self._clip(rows)
            return
        self._take(batches)
        if rows is None and records >= self.records:
            self.step_seconds = min(self.step_seconds, clock() - begun)

    def _take(self, batches: Sequence[Any]) -> None:
        """Run the step, which changes no context variable of the training."""
        contextvars.copy_context().run(self.order.user.take, [copied(batch) for batch in batches])

    def next_level(self) -> float:
        """Return the level of the next decision whether noise hides a record."""
        self._decisions += 1
        return self._level / (self._decisions * (self._decisions + 1.0))

    def has_left(self, steps: int, rows: int = 0) -> bool:
        """Return whether steps, each of a number of gradients, may still be replayed."""
        if self._budget is None:
            return True
        if self.steps + steps > self._budget:
            return False
        if self.steps + steps <= self._confirms:
            return True
        spent = self.seconds
        each = max(spent / max(self.steps, 1), rows * self._per_row)
        soon = max(spent, each) < _SOON
        return soon or spent + steps * each <= _STEP_TIMES * self.unit

    @property
    def unit(self) -> float:
        """The seconds of the step: in the training, or of the fastest replay if that was faster."""
        return min(self._taken_seconds, self.step_seconds)

    def forget(self) -> None:
        """Release all replays, which may hold much of a device's memory."""
        self._kept.clear()
        self._lines.clear()
        self._after, self._used = {}, None
        self._room.leave()

    @property
    def seconds(self) -> float:
        """The seconds since the first replay."""
        return clock() - self._began

    def allow(self, steps: int) -> None:
        """Raise the limit by ``steps``, to confirm a finding regardless of the budget."""
        if self._budget is not None:
            self._budget += steps
            self._confirms = self.steps + steps

    def why_none(self, what: str) -> str:
        """Return why nothing was replayed."""
        return f"no {what} could be replayed" if self.has_left(2) else Reason.NONE_LEFT

    def why_no_rows(self, usual: Replay, count: int) -> str:
        """Return why the gradients cannot be replaced, or empty.

        Args:
            usual: replay of the step as it is.
            count: number of records of the batch.
        """
        if not usual.rows:  # a loop over samples calls `rows`, which counts as a part
            by_parts = self.clips_by_opacus or usual.parts
            return Reason.NO_ROWS if by_parts else Reason.NOT_CALLED
        if usual.rows != count:
            return Reason.OTHER_ROWS
        return Reason.IN_PARTS if usual.parts > 1 and self.clips_by_opacus else ""

    def fits(self, records: int) -> bool:
        """Return whether per-sample gradients of a number of records fit into memory."""
        step = self.order.step
        size = sum(p.numel() * p.element_size() for p in step.params if step.norms is None)
        return records * size <= self._room.bytes()

    @property
    def stopped(self) -> str:
        """Why no further step may be replayed, or empty."""
        return ANOTHER_DREW if self.state.shared.shared else ""

    @property
    def lost(self) -> str:
        """What could not be restored, or empty."""
        return "; ".join(self.state.lost)

    @property
    def adapts(self) -> bool:
        """Whether the clipping norm adapts within the step's backward pass."""
        return hasattr(self.order.step.optimizer, "_adjusted_noise_multiplier")

    @property
    def clips_by_opacus(self) -> bool:
        """Whether an Opacus optimizer clips."""
        return self.private is not None

    @property
    def clips_alone(self) -> bool:
        """Whether the optimizer can clip and add noise without a forward and backward pass."""
        return self.clips_by_opacus and self.forms_rows

    def _clip(self, rows: Rows) -> None:
        """Run the private optimizer's clipping and noise on crafted per-sample gradients."""
        private: Any = self.private
        private.zero_grad()
        self.hand_over(rows)
        private.pre_step()

    def hand_over(self, rows: Rows) -> None:
        """Give Opacus per-sample gradients, in units of the clipping norm."""
        begin, norm, views = 0, self.claim.max_grad_norm, self.claim.views
        for p in self.order.step.params:
            p.grad_sample = rows.part(begin, p, norm, views)  # type: ignore[attr-defined]
            begin += p.numel()

    def _announce(self, batches: int) -> None:
        """Queue for Opacus which of the coming physical batches skip the optimizer's step."""
        if self.skips and batches:
            self.private._step_skip_queue[:0] = self.skips[-batches:]  # type: ignore[union-attr]


# --- The distance of two replays of a step, and when rounding or a lattice hides it.

#: Smallest shift on a lattice that few draws show.
_LATTICE_RESOLUTION = 1.15


def together(releases: Sequence[Release]) -> torch.Tensor:
    """Return releases in one tensor, in units of the clipping norm, ``[d]``."""
    return torch.cat([release.double() for release in releases] or [torch.zeros(0)])


def distance(one: Replay, other: Replay) -> float:
    """Return the norm of the difference of two replays' releases, in units of the clipping norm.

    Infinite if their numbers of steps differ, or if a release is not finite.
    """
    return distance_of(one.releases, other.releases)


def distance_of(one: Sequence[Release], other: Sequence[Release]) -> float:
    """Return the norm of the difference of the releases of several steps; see `distance`."""
    if len(one) != len(other):
        return math.inf
    far = math.hypot(*(mine.distance(theirs) for mine, theirs in zip(one, other, strict=True)))
    return math.inf if math.isnan(far) else far


def equal_releases(one: Replay, other: Replay) -> bool:
    """Return whether two replays have the same releases, bit for bit."""
    return len(one.releases) == len(other.releases) and all(
        mine.equal(theirs) for mine, theirs in zip(one.releases, other.releases, strict=True)
    )


def equal_after(one: Replay, other: Replay) -> bool:
    """Return whether two replays have the same state after the step, bit for bit."""
    return one.after.keys() == other.after.keys() and all(
        same_bits(mine.view(torch.uint8), other.after[name].view(torch.uint8))
        for name, mine in one.after.items()
    )


def shift_by_more_draws(
    draw: Callable[[int], Sequence[Replay]], seed: int, draws: int = 6
) -> float:
    """Estimate the norm of a shift between releases on a lattice, from several pairs.

    A single pair shows the shift only in whole steps of the lattice. Under other random numbers the
    rounding is independent, so that inner products of the differences estimate the shift's square.
    Six pairs do not resolve a shift below 1.15.

    Args:
        draw: replays both batches under a seed.
        seed: the first seed.
        draws: number of pairs.

    Returns:
        The shift in units of the clipping norm, capped at 1 if it is below the resolution.
    """
    pairs = [draw(seed + number) for number in range(draws)]
    if any(one.error or other.error for one, other in pairs):
        return 1.0
    gaps = [one.release - other.release for one, other in pairs]
    products = [float(a @ b) for k, a in enumerate(gaps) for b in gaps[:k]]
    shift = math.sqrt(max(0.0, sum(products) / len(products)))
    return shift if shift > _LATTICE_RESOLUTION else min(shift, 1.0)


# --- Replays of a step with crafted gradients instead of its records' gradients.


class RowsReplay:
    """Replays of a step with given per-sample gradients.

    If clipping and noise alone give the same release, the rest of the step is skipped.

    Args:
        replay: of the step.
        batch: a physical batch, whose records are repeated to match the number of gradients.
        first: gradients for the test whether the rest can be skipped.
        seed: of that test.
    """

    def __init__(self, replay: StepReplay, batch: Any, first: Rows, seed: int) -> None:
        self._replay, self._batch = replay, batch
        #: Whether the rest of the step is skipped.
        self.alone = False
        if replay.clips_alone:
            whole, short = (self._run(first, seed, alone=way) for way in (False, True))
            self.alone = bool(whole.releases) and not short.error and equal_releases(whole, short)

    def run(self, gradients: Rows, seed: int) -> Replay:
        """Replay the step with given gradients."""
        return self._run(gradients, seed, alone=self.alone)

    def weights(self, gradients: Rows, seed: int) -> torch.Tensor | None:
        """Return the weights ``[d]`` after the whole step with given gradients; None if unknown."""
        replay = self._run(gradients, seed, alone=False, look=True)
        names = [f"parameters of {slot.name}" for slot in self._replay.order.step.layout]
        if replay.error or not all(name in replay.after for name in names):
            return None
        return torch.cat([replay.after[name].cpu().double() for name in names])

    def _run(self, gradients: Rows, seed: int, *, alone: bool, look: bool = False) -> Replay:
        batch = _of_size(self._batch, len(gradients))
        return self._replay.run([batch], seed, rows=gradients, alone=alone, look=look)


def _records(batches: Sequence[Any]) -> int:
    return sum(map(rows, batches))


def _of_size(batch: Any, size: int) -> Any:
    """Return a batch of ``size`` records, repeating them if necessary."""
    count = rows(batch)
    return taken(batch, [number % count for number in range(size)])
