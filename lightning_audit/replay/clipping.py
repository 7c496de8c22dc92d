"""Tests a step's clipping with crafted gradients that replace those of the batch.

**Classify a fault of clipping by a few more replays.** The replays use a single gradient with zeros
for the others, many equal gradients, or records in another order. Their releases under the same
random numbers are compared.

**Crafted per-sample gradients to test clipping: many norms, shapes and positions in a batch.** A
trial is a batch of gradients and the index of the one that its neighbor lacks. Norms are in units
of the clipping norm.

**Test a step's clipping with crafted gradients that replace those of the batch.** The user's
clipping and noise run, without a forward or backward pass. Under the same noise, the releases with
and without one gradient differ by that gradient's contribution, which must be at most the clipping
norm.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from lightning_audit.canaries.inputs import leaves, rows, taken
from lightning_audit.checks.replay import Answer
from lightning_audit.checks.replay_findings import Finding
from lightning_audit.hooks.boundary import undoing
from lightning_audit.replay.other_threads import training_thread
from lightning_audit.replay.question import Asked
from lightning_audit.replay.records import MORE, Draw, Pairs, hands_all_over, judge
from lightning_audit.replay.rows import Rows
from lightning_audit.replay.step_replay import (
    Replay,
    RowsReplay,
    StepReplay,
    Stopped,
    same_numbers,
)
from lightning_audit.replay.training_state import GlobalGenerators

# --- Crafted per-sample gradients to test clipping: many norms, shapes and positions in a batch.

#: Norm of oversized gradients, and of the one that outweighs them, in units of the clipping norm.
OVERSIZE, OUTWEIGHING = 1e3, 1e6
#: Largest number of entries over all gradients of a batch.
_ENTRIES = 40_000_000
#: Largest number of tensors that are tested with a gradient in one tensor alone.
_TENSORS = 6


@dataclass(frozen=True)
class Trial:
    """A batch of gradients, and the index of the one that its neighbor lacks.

    Args:
        name: describes the gradient that is left out, and the batch.
        rows: the gradients.
        left_out: index of the gradient that the neighbor lacks.
    """

    name: str
    rows: Rows
    left_out: int

    @property
    def neighbour(self) -> Rows:
        """The batch without that gradient."""
        return self.rows.without(self.left_out)

    @property
    def with_zeros(self) -> Rows:
        """The batch with zeros instead of that gradient."""
        return self.rows.zeroed(self.left_out)


def alone(gradient: torch.Tensor, batch: int) -> Trial:
    """Return a trial of one gradient, ``[d]``, after rows of zeros."""
    rows = Rows.alone(gradient, batch - 1, batch)
    return Trial(f"norm {float(gradient.norm()):.3g} C, alone", rows, batch - 1)


def against_others(direction: torch.Tensor, batch: int) -> Trial:
    """Return a trial whose gradient, along a unit vector ``[d]``, outweighs all opposite ones."""
    rows = torch.stack([-OVERSIZE * direction, OUTWEIGHING * direction])
    which = torch.tensor([0] * (batch - 1) + [1])
    return Trial("against all others, which it outweighs", Rows(rows, which), batch - 1)


class CraftedGradients:
    """Generator of trials, in several families.

    Args:
        sizes: number of entries of each tensor.
        batch: records of a usual batch.
        seed: of directions.
        dtype: of the gradients, before they are rounded to the parameters' types.
        device: where they are made.
        fixed_size: whether all batches have the same number of records.
        most: records of a large batch; 0 for twice those of a usual one.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        batch: int,
        seed: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        *,
        fixed_size: bool = False,
        most: int = 0,
    ) -> None:
        self._sizes, self._type, self._fixed = list(sizes), dtype, fixed_size
        self._size = sum(sizes)
        #: Records of a usual batch of trials.
        self._batch = max(min(batch, _ENTRIES // (2 * self._size) - 1), 2)
        #: Records of a large one.
        self._many = max(2 * self._batch + 2, min(most, _ENTRIES // self._size))
        self._random = torch.Generator(device).manual_seed(seed)

    def trials(self) -> Iterator[Trial]:
        """Yield the trials of all families, one of each family in turn."""
        families = [self._of_norms(), self._of_shapes(), self._of_others()]
        if not self._fixed:
            families.append(self._of_sizes())
        while families:
            for family in list(families):
                trial = next(family, None)
                if trial is None:
                    families.remove(family)
                else:
                    yield trial

    # ------------------------------------------------------------------ families

    def _of_norms(self) -> Iterator[Trial]:
        """Yield one gradient of each norm, first, in the middle or last, among usual ones."""
        places = (0, self._batch // 2, self._batch - 1)
        for number, norm in enumerate((3.0, 0.5, 1e5, 1.5, 30.0, 0.99, 1e3)):
            at = places[number % len(places)]
            where = ("first", "in the middle", "last")[number % len(places)]
            yield self._among(f"norm {norm:g} C, {where}", norm * self._dense(1)[0], at)

    def _of_shapes(self) -> Iterator[Trial]:
        """Yield gradients that are flat, in one tensor, or in one entry."""
        flat = self._zeros() + self._size**-0.5
        yield self._among("the same in all entries, norm 3 C", 3.0 * flat, -1)
        for norm in (30.0, 1.5):
            spike = self._zeros()
            spike[self._size // 2] = norm
            yield self._among(f"in one entry, norm {norm:g} C", spike, 0)
        for tensor, place in _some_tensors(self._sizes).items():
            alone = self._zeros()
            alone[place] = 1.0
            yield self._among(
                f"in tensor {tensor} alone, norm 30 C", 30.0 * alone / alone.norm(), tensor
            )

    def _of_others(self) -> Iterator[Trial]:
        """Yield one gradient among equal, opposite, tiny, huge or zero ones."""
        one, many = self._dense(1)[0], self._batch
        yield Trial("one of equal ones, norm 3 C", Rows.alike(3.0 * one, many), many - 1)
        yield self._among("huge among tiny ones", self._dense(1, OVERSIZE)[0], 0, 0.01)
        tiny = self._dense(1, 0.01)[0]  # without it, others move up
        yield self._among("tiny among huge ones", tiny, many // 2, OVERSIZE)
        opposite = Rows(3.0 * torch.stack([one, -one]), torch.arange(many) % 2)
        yield Trial("one of opposite ones, norm 3 C", opposite, 0)
        yield self._among("huge one of tiny ones, last", self._dense(1, OVERSIZE)[0], -1, 0.01)
        yield against_others(one, many)
        yield alone(OVERSIZE * one, many)

    def _of_sizes(self) -> Iterator[Trial]:
        """Yield batches of two gradients, and of more than twice the usual size."""
        one, other = self._dense(2)
        two, many = Rows.of(torch.stack([3.0 * one, 0.9 * other])), self._many
        yield Trial("one of two, norm 3 C", two, 0)
        yield Trial("last of a large batch, norm 3 C", Rows.of(self._dense(many, 3.0)), -1)
        yield Trial("the smaller of two", two, 1)
        yield Trial("first of a large batch, norm 0.9 C", Rows.of(self._dense(many, 0.9)), 0)

    # ------------------------------------------------------------------ gradients

    def _among(self, name: str, gradient: torch.Tensor, at: int, norm: float = 0.5) -> Trial:
        """Return a trial of a gradient among usual ones of a norm, half the clipping norm."""
        at %= self._batch
        rows = self._dense(self._batch, norm)
        rows[at] = gradient
        return Trial(name, Rows.of(rows), at)

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(self._size, dtype=self._type, device=self._random.device)

    def _dense(self, count: int, norm: float = 1.0) -> torch.Tensor:
        """Return random vectors of one norm, ``[count, d]``."""
        given: Any = {"dtype": self._type, "device": self._random.device}
        rows = torch.randn(count, self._size, generator=self._random, **given)
        return rows.mul_(norm / rows.norm(dim=1, keepdim=True))  # in place, to save memory


def _some_tensors(sizes: Sequence[int]) -> dict[int, slice]:
    """Return the numbers of tensors to test alone, with their places in a gradient."""
    ends = list(itertools.accumulate(sizes))
    chosen = np.linspace(0, len(sizes) - 1, min(_TENSORS, len(sizes))).round().astype(int)
    return {n: slice(ends[n] - sizes[n], ends[n]) for n in chosen.tolist()}


# --- Classify a fault of clipping by a few more replays.

#: Replays a step with given gradients under a seed.
Given = Callable[[Rows, int], Replay]

#: Smallest number of gradients of a batch, and the norms used, in units of the clipping norm.
_SEVERAL, _LONG, _SHORT = 3, 1e4, 3.0
#: Relative difference of norms that are equal up to rounding.
_EQUAL = 2e-2
#: Change of a release by swapped records, in units of the clipping norm, that is more than
#: rounding.
_MOVES = 0.05


def sensitivity_kind(asked: Asked, worst: float) -> str:
    """Classify why one record moves a release by more than the clipping norm.

    Args:
        asked: the step.
        worst: largest change by a record, in units of the clipping norm.

    Returns:
        The kind of fault in the optimizer's clipping alone, see `clipping_kind`. If that is
        correct: "rows" if several gradients of a record are clipped one by one, "parts" if a
        record's contribution depends on the part of a split batch that it is in. Otherwise empty.
    """

    def alone(gradients: Rows, seed: int) -> Replay:
        return asked.replay.run([asked.largest], seed, rows=gradients, alone=True)

    kind = clipping_kind(asked, alone) if asked.replay.clips_alone else ""
    with contextlib.suppress(Stopped):
        if not kind and _has_several_rows(asked, worst):
            kind = "rows"
        if not kind and _parts_differ(asked):
            kind = "parts"
    return kind


def _parts_differ(asked: Asked) -> bool:
    """Return whether swapping records between parts of the batch changes a release.

    Swapping two pairs must change it by the sum of both changes, as if each part had a weight:
    changes by records whose gradients depend on other records do not add up.
    """
    replay, batches, base = asked.replay, asked.batches, asked.usual
    within = len(batches) == 1
    sizes = [len(n) for n in base.norms] if within else [rows(batch) for batch in batches]
    joined = _joined(batches)
    if sum(size > 1 for size in sizes) < 2 or joined is None or rows(joined) != sum(sizes):
        return False
    places = list(range(sum(sizes)))
    parts = [part.tolist() for part in torch.split(torch.tensor(places), sizes)]
    one, *_, other = [part for part in parts if len(part) > 1]
    firsts, lasts = {one[0]: other[0], other[0]: one[0]}, {one[-1]: other[-1], other[-1]: one[-1]}
    turned = {a: b for part in parts for a, b in zip(part, reversed(part), strict=True)}
    replay.allow(4)
    moved = []
    for trade in (turned, firsts, lasts, firsts | lasts):
        order = [trade.get(place, place) for place in places]
        cuts = [places] if within else parts
        changed = [taken(joined, [order[place] for place in cut]) for cut in cuts]
        again = replay.run(changed, asked.seed)
        if again.finite is None or not same_numbers(base, again):
            return False
        if len(again.release) != len(base.release):
            return False
        moved.append(again.release - base.release)
    in_part, first, last, both = moved
    far = max(float(in_part.norm()), float((both - first - last).norm()))
    alike = far <= 2.0 * asked.tolerated
    return alike and max(float(first.norm()), float(last.norm())) > _MOVES


def _joined(batches: Sequence[Any]) -> Any:
    """Concatenate the physical batches; None if their records have different shapes."""
    shapes = {tuple(tensor.shape[1:] for tensor in leaves(batch)) for batch in batches}
    if len(shapes) > 1:
        return None
    return _pytree.tree_map(lambda *tensors: torch.cat(tensors), *batches)


def _has_several_rows(asked: Asked, worst: float) -> bool:
    """Return whether each record has several gradients, each clipped as claimed."""
    replay, batches, seed = asked.replay, asked.batches, asked.seed
    found = asked.usual.rows
    times, rest = divmod(found, max(sum(map(rows, batches)), 1))
    if times < 2 or rest or worst > times * (1.0 + asked.tolerated):
        return False
    direction = (_LONG * unit_direction(replay, seed)).to(replay.dtype)
    zeros, long = Rows.zeros(found, direction), Rows.alone(direction, 0, found)
    replay.allow(2)
    without, one = (replay.run(batches, seed, rows=each).finite for each in (zeros, long))
    if without is None or one is None:
        return False
    return float((one - without).norm()) <= 1.0 + asked.tolerated


def unit_direction(replay: StepReplay, seed: int) -> torch.Tensor:
    """Return a random gradient of norm 1 over all tensors, ``[d]``."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(sum(replay.sizes), generator=generator, dtype=torch.float64)
    unit: torch.Tensor = dense / dense.norm()
    return unit


def divides_by_rows(asked: Asked) -> bool:
    """Return whether a step divides its sum by the number of gradients at hand.

    Half of the gradients, all equal, then give the same mean instead of half of it.
    """
    replay, batch, seed = asked.replay, asked.batches[0], asked.seed
    count = rows(batch)
    half = count // 2
    if half < 2 or replay.why_no_rows(asked.usual, count):
        return False
    # No sum of these is clipped.
    short = (0.5 / count * unit_direction(replay, seed)).to(replay.dtype)
    given = RowsReplay(replay, batch, Rows.alike(short, count), seed)
    replay.allow(4)
    sums = []
    for size in (count, half):
        each = Rows.alike(short, size), Rows.zeros(size, short)
        one, none = (given.run(gradients, seed) for gradients in each)
        if one.finite is None or none.finite is None:
            return False
        sums.append(float((one.finite - none.finite) @ short.double()))
    return min(sums) > 0.0 and _equal(sums)


def clipping_kind(asked: Asked, given: Given) -> str:
    """Classify what the step does instead of clipping each gradient at the claimed norm.

    Args:
        asked: a step in which some gradient adds more than the clipping norm.
        given: replays the step with gradients.

    Returns:
        "sum" if the sum is clipped, "none" if nothing is, "norm" if each gradient is clipped at a
        larger norm, "tensors" if each tensor is clipped on its own, "some" if gradients in some
        tensors are not clipped, "batch" if the clipping norm depends on the batch's gradients;
        otherwise empty.
    """
    replay, seed, count = asked.replay, asked.seed, rows(asked.largest)
    if count < _SEVERAL:
        return ""
    batches = _batches(replay, count, seed)
    replay.allow(1 + len(batches))
    try:
        base = given(batches["first"].zeroed(0), seed).finite
        if base is None:
            return ""
        added = {}
        for name, gradients in batches.items():
            release = given(gradients, seed).finite
            if release is None:
                return ""
            added[name] = float((release - base).norm())
    except Stopped:
        return ""
    return _kind(added, count, len(replay.sizes), 1.0 + asked.tolerated)


def _batches(replay: StepReplay, count: int, seed: int) -> dict[str, Rows]:
    """Return the batches of ``count`` gradients to replay, by name."""
    dense = unit_direction(replay, seed)

    def alone(gradient: torch.Tensor, at: int) -> Rows:
        return Rows.alone(gradient.to(replay.dtype), at, count)

    batches = {
        "first": alone(_LONG * dense, 0),
        "last": alone(_LONG * dense, -1),
        "longer": alone(2.0 * _LONG * dense, -1),
        "short": alone(_SHORT * dense, count // 2),
        "many": Rows.alike((_LONG * dense).to(replay.dtype), count),
        "many longer": Rows.alike((2.0 * _LONG * dense).to(replay.dtype), count),
    }
    for number, place in _some_tensors(replay.sizes).items():
        own = torch.zeros_like(dense)
        own[place] = dense[place]
        batches[f"tensor {number}"] = alone(_LONG * own / own.norm(), -1)
    return batches


def _kind(added: Mapping[str, float], count: int, tensors: int, allowed: float) -> str:
    """Return the kind, given the change by each batch in units of the clipping norm."""
    one, many = added["first"], added["many"]
    parts = [norm for name, norm in added.items() if name.startswith("tensor")]
    if one > allowed and _equal([one, *(added[n] for n in ("last", "many", "many longer"))]):
        return "sum"
    if not _equal([one, added["last"]]):
        return ""  # depends on the position in the batch
    if not _equal([many, count * one]):
        grows = many > count * allowed and _equal([2.0 * many, added["many longer"]])
        return "batch" if grows and max(one, *parts) < _LONG / (1.0 + _EQUAL) else ""
    if _equal([one, *parts, _LONG, added["longer"] / 2.0]) and _equal([added["short"], _SHORT]):
        return "none"
    whole = [norm for norm in parts if _equal([norm, _LONG])]
    if whole and all(norm <= allowed for norm in parts if norm not in whole):
        return "some" if len(whole) < len(parts) else ""
    steady = one > allowed and _equal([one, added["longer"]])
    if steady and _equal([one, *parts]) and _equal([added["short"], min(one, _SHORT)]):
        return "norm"
    by_parts = math.sqrt(tensors) * parts[0]
    return "tensors" if steady and max(parts) <= allowed and _equal([one, by_parts]) else ""


def _equal(norms: Sequence[float]) -> bool:
    return max(norms) <= (1.0 + _EQUAL) * min(norms)


# --- The gradient of one sample at the current weights, computed without changing the training.


@contextlib.contextmanager
def undisturbed(module: torch.nn.Module, *, hooks: bool = False) -> Iterator[None]:
    """Run passes through a module without changing it or the global generators.

    What the module logs is dropped, and buffers such as running statistics are restored. The
    modules keep their train or eval mode, so that the passes compute the same as training. If
    another thread may train, generators are not restored: that thread would draw the same numbers
    twice.

    Args:
        module: the user's module.
        hooks: whether Opacus' hooks, which compute per-sample gradients, stay enabled.
    """
    back = [_buffers(module)]
    if not training_thread():
        back.append(GlobalGenerators().put_back)
    with contextlib.ExitStack() as stack:
        for put_back in back:
            stack.enter_context(undoing(put_back))
        if not hooks:
            _turn_hooks_off(module, stack)
        _silence(module, stack)
        stack.enter_context(torch.enable_grad())
        yield


def _turn_hooks_off(module: torch.nn.Module, stack: contextlib.ExitStack) -> None:
    """Disable Opacus' hooks, with or without an Opacus module that wraps the user's."""
    owners: dict[int, Any] = {}
    for part in module.modules():
        hooks = [*part._forward_hooks.values(), *part._backward_hooks.values()]
        # The function in a partial is bound to the owner of the hooks.
        for hook in (getattr(hook, "func", hook) for hook in hooks):
            owner = getattr(hook, "__self__", None)
            if hasattr(owner, "disable_hooks"):
                owners[id(owner)] = owner
    before = [(owner, owner.hooks_enabled) for owner in owners.values()]

    def put_back() -> None:
        for owner, enabled in before:
            owner.hooks_enabled = enabled

    stack.enter_context(undoing(put_back))
    for owner, _ in before:
        owner.disable_hooks()


def _silence(module: torch.nn.Module, stack: contextlib.ExitStack) -> None:
    """Drop what a LightningModule logs."""
    names = [name for name in ("log", "log_dict") if hasattr(module, name)]
    own = {name: vars(module)[name] for name in names if name in vars(module)}

    def put_back() -> None:
        for name in names:
            vars(module).pop(name, None)
        vars(module).update(own)

    stack.enter_context(undoing(put_back))
    vars(module).update(dict.fromkeys(names, _drop))


def _drop(*_: Any, **__: Any) -> None:
    """Log nothing."""


def _buffers(module: torch.nn.Module) -> Callable[[], None]:
    """Return a function that restores every buffer, including those that a pass replaces."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        with torch.no_grad():
            for part, name, buffer, value in kept:
                part._buffers[name] = buffer
                buffer.copy_(value)

    return put_back


@dataclass(frozen=True)
class DenseDirection:
    """A unit vector over all trained parameters.

    Args:
        parts: its entries, one tensor for each parameter.
        norm: norm of the gradient that was normalized.
    """

    parts: tuple[torch.Tensor, ...]
    norm: float

    @torch.no_grad()
    def product(self, grads: Sequence[torch.Tensor | None]) -> float:
        """Return the inner product with a gradient, a tensor per parameter; NaN if one is None."""
        held = [grad for grad in grads if grad is not None]
        if len(held) < len(grads):
            return float("nan")
        products = [
            torch.dot(part.flatten().to(grad), grad.flatten()).double()
            for part, grad in zip(self.parts, held, strict=True)
        ]
        return float(torch.stack(products).sum())

    @torch.no_grad()
    def take_out(self, tensors: Sequence[torch.Tensor | None], amount: float) -> None:
        """Subtract ``amount`` times the direction from tensors, one per parameter; skip None."""
        pairs = [
            (tensor, part.to(tensor).view_as(tensor))
            for part, tensor in zip(self.parts, tensors, strict=True)
            if tensor is not None
        ]
        for tensor, part in pairs:
            tensor.sub_(part, alpha=amount)


def own_direction(
    loss: torch.Tensor, params: Sequence[torch.nn.Parameter]
) -> DenseDirection | None:
    """Return the direction of the gradient of one sample's loss.

    Returns:
        The direction; None if the gradient is zero or not finite.
    """
    found = torch.autograd.grad(loss, list(params), allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
    # In double precision: the square of an oversized entry may not fit into single precision.
    norm = float(torch.stack([part.double().norm() for part in parts]).norm())
    if not np.isfinite(norm) or norm == 0.0:
        return None
    return DenseDirection(tuple(part.detach() / norm for part in parts), norm)


# --- Test a step's clipping with crafted gradients that replace those of the batch.

#: Largest number of trials of one examination.
TRIALS = 32


def examine_clipping(asked: Asked) -> Answer:
    """Replay a step with crafted gradients, one of which is left out.

    It is replaced by zeros instead where neighbors have the same number of records, or if leaving
    it out shifts random numbers. Trials continue after those of earlier examinations.
    """
    replay, batch, seed, order = asked.replay, asked.largest, asked.seed, asked.replay.order
    count, usual = rows(batch), replay.usual([batch], seed)
    if reason := replay.why_no_rows(usual, count) or asked.too_coarse(usual):
        return Answer(reason=reason)
    fixed = replay.claim.fixed_size
    # Rounding of a large sum in low precision is more than a record.
    most = 0 if asked.low_precision else max(map(rows, asked.whole), default=0)
    crafted = CraftedGradients(
        *(replay.sizes, count, seed, replay.dtype, replay.device), fixed_size=fixed, most=most
    )
    first = next(crafted.trials()).rows
    if fixed and len(first) != count and not replay.clips_by_opacus:
        return Answer(reason="crafted gradients of a whole batch take too much memory")
    given = RowsReplay(replay, batch, first, seed)
    del first  # it takes memory
    pairs, zeros = Pairs(asked, shown=usual.shown), order.replaced or fixed
    start, trials = order.earlier_trials % TRIALS, order.trials or TRIALS
    allowed = 1.0 + asked.tolerated
    # Each pass draws new gradients.
    endless = itertools.chain.from_iterable(iter(crafted.trials, None))
    with contextlib.suppress(Stopped):  # findings until then are kept
        for trial in itertools.islice(endless, start, start + trials):
            draw = _pair(given, trial, zeros=zeros)
            judged = judge(draw, seed, allowed, by_row=zeros)
            if judged.shifted and not zeros:
                zeros, draw = True, _pair(given, trial, zeros=True)
                judged = judge(draw, seed, allowed, by_row=True)
            pairs.shifted += judged.shifted
            if not judged.tells:
                continue
            if judged.far > allowed:
                known = given.alone or pairs.findings
                if not known and not hands_all_over(replay, batch, seed):
                    return Answer(reason=MORE)
                pairs.take(_finding(trial, judged.far, replay.sizes), draw, 1)
            pairs.asked += 1
    answer = pairs.answer("crafted gradient")
    if not answer.findings:
        return answer
    return replace(answer, kind=clipping_kind(asked, given.run))


def _pair(given: RowsReplay, trial: Trial, *, zeros: bool) -> Draw:
    without = trial.with_zeros if zeros else trial.neighbour

    def draw(seed: int) -> list[Replay]:
        return [given.run(rows, seed) for rows in (trial.rows, without)]

    return draw


def _finding(trial: Trial, far: float, sizes: Sequence[int]) -> Finding:
    left = trial.rows[trial.left_out]
    parts = sum(bool(part.any()) for part in torch.split(left, list(sizes)))
    whole, alone = float(left.norm()), parts == 1 < len(sizes)
    return Finding(trial.name, far, 1.0, whole=whole, in_one_tensor=alone)
