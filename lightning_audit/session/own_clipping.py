"""Rows of the audit in an optimizer's own clipping, which may expect one row for each record.

A subclass of `DPOptimizer` may weight rows by their record, or average the rows of a record's
views (augmentation multiplicity). Before the first step, its code runs in a fork with and without
the audit's rows, which shows whether they add to the sum what they should. If an exception comes
later, the rows are taken out and the code is called again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_audit.dpsgd.opacus import is_opacus
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.hooks.boundary import FailedElsewhere
from lightning_audit.hooks.gradient_tap import CanaryRows, summed_by_opacus
from lightning_audit.layout import Direction, FloatArray, by_tensor
from lightning_audit.replay.fork import CannotSeparate, ForkFailed, in_a_fork, may_fork
from lightning_audit.replay.training_state import GlobalGenerators, generator_state

#: Methods of `DPOptimizer` through whose code the rows pass.
_METHODS = ("step", "pre_step", "clip_and_accumulate", "add_noise")
#: Seconds for the trial.
_PATIENCE = 60.0
#: Norms of the rows in the trial, in units of the clipping norm.
_LONG, _SHORT = 1e3, 1.5
#: Largest error of what a row adds, in units of the clipping norm.
_EXACT = 0.02
#: Noise along a vector, over what is claimed, that counts as none.
_NONE = 1e-3
#: Least part of a row of norm 1 that is lost in a projection.
_PART = 0.1
#: Largest number of rows of a record that is looked for.
_VIEWS = 64


def own_methods(optimizer: Any) -> tuple[str, ...]:
    """Return which methods between a backward pass and the noise are not Opacus' own."""
    kind = type(optimizer)
    methods = {name: getattr(kind, name, None) for name in _METHODS}
    return tuple(n for n, method in methods.items() if not (method is None or is_opacus(method)))


@dataclass(frozen=True)
class Fit:
    """How rows of the audit fit into an own clipping.

    Args:
        why_not: why they must not enter; empty if they may.
        noise: whether the release is the sum with the noise alone.
        views: number of rows that make up a record.
        adds: what a long row of each canary adds to the sum, in units of the clipping norm; empty
            if this is 1 for all.
        short: whether a short row adds as much.
    """

    why_not: str = ""
    noise: bool = True
    views: int = 1
    adds: tuple[float, ...] = ()
    short: bool = True


class Held:
    """The state that a call of an own clipping changes, kept for another call.

    Args:
        step: the adapter.
        copy: whether to copy the per-sample gradients, not only refer to them.
    """

    def __init__(self, step: DPSGDStep, *, copy: bool) -> None:
        self._step, self._copy = step, copy
        self._own, generator = dict(vars(step.optimizer)), step.optimizer.generator
        own = [generator_state(generator)] if isinstance(generator, torch.Generator) else []
        self._generators = [GlobalGenerators().put_back, *own]
        self._rows = [_copy_of(getattr(p, "grad_sample", None), copy=copy) for p in step.params]
        self._versions = self._now()
        #: Rows that an earlier step has used, by number.
        self._used = {k for k, t in enumerate(self._tensors()) if hasattr(t, "_processed")}
        self._sums = [_copy_of(total) for total in summed_by_opacus(step.params)]
        self._grads = [_copy_of(p.grad) for p in step.params]

    def _tensors(self) -> list[torch.Tensor]:
        return [t for rows in self._rows for t in _each(rows)]

    def _now(self) -> list[int]:
        return [t._version for t in self._tensors()]

    def put_back(self) -> bool:
        """Restore the state; return False if the rows were changed in place."""
        if not self._copy and self._now() != self._versions:
            return False
        for put_back in self._generators:
            put_back()
        vars(self._step.optimizer).clear()
        vars(self._step.optimizer).update(self._own)
        kept = zip(self._step.params, self._rows, self._sums, self._grads, strict=True)
        for number, tensor in enumerate(self._tensors()):
            if number not in self._used:
                vars(tensor).pop("_processed", None)
        for param, rows, total, grad in kept:
            param.grad_sample = _copy_of(rows, copy=self._copy)  # type: ignore[attr-defined]
            param.summed_grad = _copy_of(total)  # type: ignore[attr-defined]
            param.grad = _copy_of(grad)
        return True


def _each(rows: Any) -> Iterator[torch.Tensor]:
    yield from (t for t in (rows if isinstance(rows, list) else [rows]) if t is not None)


def _copy_of(value: Any, *, copy: bool = True) -> Any:
    if isinstance(value, list):
        return [_copy_of(tensor, copy=copy) for tensor in value]
    if not (copy and isinstance(value, torch.Tensor)):
        return value
    made = value.detach().clone()
    if hasattr(value, "_processed"):
        made._processed = value._processed  # type: ignore[attr-defined]
    return made


# --- The trial before the first step.


def fit_of(step: DPSGDStep, draw: Callable[[], Sequence[Direction]]) -> Fit:
    """Return how rows fit into the optimizer's clipping, from calls in a fork of this process.

    Args:
        step: the adapter, with the gradients of a backward pass.
        draw: called in the fork; removes prepared rows, and returns directions of all canaries.
    """
    if not own_methods(step.optimizer) or not may_fork(step.params):
        return Fit()
    try:
        return in_a_fork(lambda _: _Trial(step, draw(), draw()).fit(), _PATIENCE)
    except (CannotSeparate, ForkFailed, FailedElsewhere):
        return Fit()


class _Trial:
    """Calls of an own clipping on the gradients of one step, with rows and without."""

    def __init__(
        self, step: DPSGDStep, directions: Sequence[Direction], others: Sequence[Direction]
    ) -> None:
        self._step, self._directions, self._others = step, directions, others
        self._norm = step.claim().max_grad_norm
        self._held = Held(step, copy=True)
        own = own_methods(step.optimizer)
        self._ways: list[tuple[str, ...]] = []
        self._ways += [(name,) for name in _METHODS[:2] if name in own][:1]
        if "add_noise" in own:
            self._ways.append(_METHODS[2:])
        elif "clip_and_accumulate" in own:
            self._ways.append(_METHODS[2:3])
        self._alone: dict[tuple[str, ...], list[torch.Tensor]] = {}

    def fit(self) -> Fit:
        """Try rows that are records, and then rows that are views of one record."""
        for way in self._ways:
            alone = self._sums(way, [], 0.0)
            if isinstance(alone, str):
                return Fit()  # the code fails in any case
            self._alone[way] = alone
        count, first = self._step.batch_size() or 0, None
        for views in range(1, _VIEWS + 1):
            if views > 1 and count % views:
                continue
            fits = [self._fit(way, views) for way in self._ways]
            bad = next((fit for fit in fits if fit.why_not), None)
            if bad is None:
                return replace(fits[-1], short=all(fit.short for fit in fits))
            first = first or bad
        return first or Fit()

    def _fit(self, way: tuple[str, ...], views: int) -> Fit:
        seen = []
        for norm, chosen in (
            (_LONG, self._directions),
            (_LONG, self._others[1:]),
            (_SHORT, self._directions),
        ):
            sums = self._sums(way, [d for d in chosen for _ in range(views)], norm)
            if isinstance(sums, str):
                return Fit(f"it raises {sums}")
            gaps = [(a - b) / self._norm for a, b in zip(sums, self._alone[way], strict=True)]
            if "add_noise" not in way:  # noise comes to every entry
                sums = [torch.ones_like(total) for total in sums]
            adds, norms = _products(gaps, sums, chosen)
            if views == 1 and len(norms) and norms.max() > 1.0 + _EXACT:
                return Fit()  # a row escapes clipping: the canaries show it
            spent = [torch.zeros_like(gap) for gap in gaps]
            CanaryRows(chosen).add(spent, adds)
            left = [  # a mask leaves zeros, from which no canary is removed
                torch.where(total == 0.0, 0.0, gap - one)
                for total, gap, one in zip(sums, gaps, spent, strict=True)
            ]
            seen.append((adds, float(torch.stack([part.norm() for part in left]).norm())))
        (long, rest), (other, beside), (short, bent) = seen
        change = max(rest, beside, *np.abs(other - long[1:])) > _EXACT
        # A single row adds too much of what is left of it, if that is clipped later.
        if change or (views == 1 and long.max() > 1.0 + _EXACT):
            return Fit("they change what the records add", noise=self._noise_is_alone(way))
        if views > 1 and np.abs(long - 1.0).max() > _EXACT:
            return Fit("they do not add what a record adds")
        same = max(bent, *np.abs(short - long)) <= _EXACT
        weights = tuple(float(min(one, 1.0)) for one in long)
        return Fit(views=views, adds=weights if min(long) < 1.0 - _EXACT else (), short=same)

    def _noise_is_alone(self, way: tuple[str, ...]) -> bool:
        """Return whether noise is added to all entries of the sum, and rows are in the release.

        Noise that is drawn within the subspace onto which rows are projected is not.
        """
        if "add_noise" not in way:
            return True
        clip, release = _METHODS[2:3], _METHODS[2:]

        def both(rows: Sequence[Direction]) -> list[torch.Tensor]:
            tried = [self._sums(way, rows, _LONG) for way in (clip, release)]
            return [_flat(one) for one in tried if not isinstance(one, str)]

        alone = both([])
        if len(alone) < 2:
            return True
        summed, released = alone
        noise, outside, within = released - summed, [], False
        unit = self._step.claim().noise_multiplier * self._norm
        for direction in self._directions:
            pair = both([direction])
            if len(pair) < 2:
                return True
            gap = pair[0] - summed
            if float((pair[1] - released - gap).norm()) > _EXACT * self._norm:
                return False
            lost = [torch.zeros_like(p, dtype=torch.float64) for p in self._step.params]
            CanaryRows([direction]).add(lost, np.ones(1))
            row = torch.cat([part.reshape(-1) for part in lost]).to(gap)
            row = row - gap * (row @ gap) / gap.square().sum().clamp(min=1e-300)
            within |= float(abs(noise @ gap)) > _NONE * unit * float(gap.norm())
            if float(row.norm()) > _PART:
                outside.append(float(abs(noise @ row)) > _NONE * unit * float(row.norm()))
        return not (within and outside) or any(outside)

    def _sums(
        self, way: tuple[str, ...], rows: Sequence[Direction], norm: float
    ) -> list[torch.Tensor] | str:
        """Return what the calls release or sum with additional rows, or what they raise."""
        step, optimizer = self._step, self._step.optimizer
        try:
            step.copy_in(rows, norm * self._norm)
            for name in way:
                getattr(type(optimizer), name)(optimizer)
            held = [p.grad if "add_noise" in way else p.summed_grad for p in step.params]  # type: ignore[attr-defined]
            return [
                torch.zeros_like(p) if t is None else t
                for t, p in zip(held, step.params, strict=True)
            ]
        except Exception as error:
            return error_place(error)
        finally:
            self._held.put_back()


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.detach().double().cpu().reshape(-1) for each in tensors])


def error_place(error: Exception) -> str:
    """Return an exception's type and place, without its text, which may contain data."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def _products(
    tensors: Sequence[torch.Tensor],
    released: Sequence[torch.Tensor],
    directions: Sequence[Direction],
) -> tuple[FloatArray, FloatArray]:
    """Return what each direction has in tensors where they are released, and its norm, ``[k]``."""
    found, squares, norms = (np.zeros(len(directions)) for _ in range(3))
    for j, parts in by_tensor(directions).items():
        flat, live = (t[j].detach().double().cpu().numpy().reshape(-1) for t in (tensors, released))
        for row, part in parts:
            own, value = flat[part.index], part.value * (live[part.index] != 0.0)
            found[row] += value @ own
            squares[row] += value @ value
            norms[row] += own @ own
    whole = np.where(squares > 0.0, found / np.maximum(squares, 1e-300), 1.0)
    return whole, np.sqrt(norms)
