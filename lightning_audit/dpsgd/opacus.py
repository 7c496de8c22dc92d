"""Opacus' `DPOptimizer`: canaries are additional rows of every parameter's `grad_sample`.

**Positions of canaries among a batch's rows: canaries are swapped with rows of the data.** Code
that treats the last rows of a batch differently would treat canaries appended to the batch
differently from records. Swapping neither drops nor adds a row: a sum over all rows does not
change, except for the order of its terms.

**Canary rows without a copy: written into the buffer that Opacus fills in backward.** Opacus adds
each layer's per-sample gradients to ``param._current_grad_sample`` and makes that tensor the
``grad_sample`` after the layer's backward. A buffer with spare rows, into which the canaries are
written just before clipping, becomes the same tensor, bit for bit, as appending the rows, and
nothing is copied. If that is not certain, `obstacle` returns why, and the rows are appended by
copy.

Between the backward pass and the step, ``grad_sample`` is a view of the batch's rows only: user
code that reads, scales or replaces the gradients there sees no canary.

The rows enter upstream of every override of ``step``, ``pre_step``, ``clip_and_accumulate``,
``add_noise`` and ``scale_grad``, so that the audit covers the code that runs.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from opacus import optimizers as opacus_optimizers
from opacus.accountants import IAccountant
from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample
from opacus.layers.dp_rnn import RNNLinear
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer

from lightning_audit.dpsgd.protocol import (
    Backward,
    CannotEnter,
    DPSGDStep,
    Seed,
    StepClaim,
    UnsupportedOptimizer,
    refuse_repeated_closures,
)
from lightning_audit.hooks.boundary import current, entry
from lightning_audit.hooks.gradient_tap import CanaryRows, as_rows, send, summed_by_opacus
from lightning_audit.layout import Direction, IndexArray, Layout, TensorSlot, same_objects

# --- Finds the accountant in a private optimizer's step hook.

#: How far a hook is followed: functions within functions, objects within objects.
_DEEPEST = 6


@dataclass(frozen=True)
class AccountantLink:
    """The accountant that a step hook updates, and the sampling rate that it is given.

    Args:
        accountant: Opacus' accountant.
        stated_rate: sampling rate that the hook passes to the accountant; None if the hook holds
            none.
    """

    accountant: Any
    stated_rate: float | None = None

    @property
    def sample_rate(self) -> float | None:
        """The hook's rate, else the last rate in the accountant's history; None if empty."""
        if self.stated_rate is not None:
            return self.stated_rate
        history = self.accountant.history
        return float(history[-1][1]) if history else None


def accountant_link(optimizer: DPOptimizer) -> AccountantLink | None:
    """Return the accountant in the optimizer's step hook; None unless exactly one is found.

    `IAccountant.get_optimizer_hook_fn` closes over the accountant and the sampling rate; the
    optimizer stores them nowhere else. A user's hook, or a wrapper of Opacus' hook, holds them in
    a closure, in the arguments of a `partial`, or in an object.
    """
    accountants: dict[int, Any] = {}
    rates: dict[int, float] = {}
    for held in _held_by(getattr(optimizer, "step_hook", None)):
        names = _variables(held)
        found = [v for v in (held, *names.values()) if isinstance(v, IAccountant)]
        accountants |= {id(each): each for each in found}
        rate = names.get("sample_rate")
        if found and isinstance(rate, int | float):
            rates[id(found[0])] = float(rate)
    if len(accountants) != 1:
        return None
    ((number, accountant),) = accountants.items()
    return AccountantLink(accountant, rates.get(number))


def hook_is_unread(optimizer: DPOptimizer) -> bool:
    """Return whether there is a step hook whose accountant cannot be determined."""
    return getattr(optimizer, "step_hook", None) is not None and accountant_link(optimizer) is None


def _held_by(hook: Any) -> Iterator[Any]:
    """Yield the hook and the objects that it holds, nearest first; each once."""
    seen: set[int] = set()
    waiting = [(hook, 0)]
    while waiting:
        item, depth = waiting.pop(0)
        if item is None or id(item) in seen or isinstance(item, torch.Tensor | torch.nn.Module):
            continue
        seen.add(id(item))
        yield item
        if depth < _DEEPEST and not isinstance(item, IAccountant):
            waiting += [(value, depth + 1) for value in _variables(item).values()]


def _variables(item: Any) -> dict[str, Any]:
    """Return, by name, the objects that a function or a user's callable object holds."""
    if inspect.ismethod(item):
        return {"self": item.__self__, "function": item.__func__}
    if inspect.isfunction(item):
        try:
            enclosed = inspect.getclosurevars(item)
        except (TypeError, ValueError):  # a cell that is empty as yet
            return {}
        own = {
            name: value
            for name, value in enclosed.globals.items()
            if isinstance(value, IAccountant) or (callable(value) and not isinstance(value, type))
        }
        defaults = inspect.signature(item).parameters.values()
        given = {p.name: p.default for p in defaults if p.default is not inspect.Parameter.empty}
        return {**own, **given, **enclosed.nonlocals}
    if isinstance(item, functools.partial):
        named = {f"argument {number}": value for number, value in enumerate(item.args)}
        return {"function": item.func, **named, **item.keywords}
    if isinstance(item, IAccountant) or not callable(item) or isinstance(item, type):
        return {}
    return dict(getattr(item, "__dict__", {}))


# --- Positions of canaries among a batch's rows: canaries are swapped with rows of the data.


def draw_places(seed: Seed, batch: int, canaries: int) -> IndexArray:
    """Draw distinct rows of the batch for the first canaries; the others stay after the batch.

    The number that stays is drawn as if the canaries' positions were uniform over all rows, so that
    each row is a canary with the same probability.

    Args:
        seed: the audit's own seed; None to leave all canaries after the batch.
        batch: number of the data's rows.
        canaries: number of canaries after them.

    Returns:
        Row indices, ``[m]``, m at most ``min(canaries, batch)``; ``[0]`` without a seed.
    """
    if seed is None or not batch or not canaries:
        return np.zeros(0, dtype=np.int64)
    rng = np.random.default_rng(seed)
    among = canaries - int(rng.hypergeometric(canaries, batch, canaries))
    return rng.choice(batch, size=among, replace=False).astype(np.int64)


@torch.no_grad()
def swap_rows(
    tensors: Sequence[torch.Tensor],
    places: IndexArray,
    canaries: int,
    done: list[int] | None = None,
    sent: dict[torch.device, torch.Tensor] | None = None,
) -> None:
    """Swap the first rows after the batch with the rows at ``places``, in each tensor.

    A second call restores the order.

    Args:
        tensors: the batch's rows, followed by the canaries', ``[batch + canaries, *shape]``.
        places: from `draw_places`, ``[m]``.
        canaries: number of rows after the batch.
        done: list to which the id of each swapped tensor is appended.
        sent: ``places`` on the devices to which they were copied; new ones are added.
    """
    if not len(places):
        return
    done = [] if done is None else done
    sent = {} if sent is None else sent
    for rows in tensors:
        if rows.device not in sent:
            (sent[rows.device],) = send([places], rows.device)
        first = len(rows) - canaries
        behind, where = rows[first : first + len(places)], sent[rows.device]
        records, own = rows.index_select(0, where), behind.clone()
        rows.index_copy_(0, where, own)
        behind.copy_(records)
        done.append(id(rows))


def rows_of_records(rows: torch.Tensor, places: IndexArray, canaries: int) -> torch.Tensor:
    """Return a value per record, in the batch's original order, from a value per row.

    Args:
        rows: one value per row after `swap_rows`, ``[batch + canaries]``.
        places: as for `swap_rows`.
        canaries: as for `swap_rows`.

    Returns:
        One value per record, ``[batch]``; a new tensor.
    """
    known = rows.clone()
    swap_rows([known], places, canaries)
    return known[: len(known) - canaries]


# --- Buffer to which Opacus adds a parameter's per-sample gradients, with canaries after them.

#: Where Opacus looks for a buffer.
BUFFER = "_current_grad_sample"


class RowBuffer:
    """Placeholder for Opacus' buffer until the first gradients are added to it.

    Only then is a tensor allocated, as late as by Opacus, and the gradients are copied into it. The
    tensor replaces this object. A buffer of zeros would take as long to write as the gradients.

    Args:
        param: the parameter.
        batch: number of the batch's rows.
        spare: number of rows after the batch's, for canaries.
    """

    def __init__(self, param: torch.nn.Parameter, batch: int, spare: int) -> None:
        #: All rows after the gradients were added, and a view of the batch's rows.
        self.whole = torch.empty(0)
        self._own = torch.empty(0)
        self._param, self._batch, self._spare = param, batch, spare
        #: Whether the rows fit into memory.
        self._fits = True
        self._boundary = current()
        setattr(param, BUFFER, self)

    # Otherwise Python would iterate over it as an endless sequence, since it can be indexed.
    __iter__ = None

    # Opacus executes `buffer[:n] += gradients`, for which Python makes the following three calls.

    def _slice(self, rows: slice) -> RowBuffer:
        return self

    def _add(self, gradients: torch.Tensor) -> RowBuffer:
        count, size = len(gradients), self._batch + self._spare
        try:
            whole = gradients.new_empty((size, *gradients.shape[1:]))
        except torch.OutOfMemoryError:
            self._fits = False
            return self._add_alone(gradients)
        whole[:count].copy_(gradients)
        whole[count:].zero_()
        self.whole, self._own = whole, whole[: self._batch]
        return self

    def _add_alone(self, gradients: torch.Tensor) -> RowBuffer:
        """Allocate the batch's rows only, as Opacus would: the audit has failed."""
        whole = gradients.new_zeros((self._batch, *gradients.shape[1:]))
        whole[: len(gradients)] = gradients
        self.whole = self._own = whole
        return self

    def _put(self, rows: slice, written: RowBuffer) -> None:
        setattr(self._param, BUFFER, self.whole)

    def _put_alone(self, rows: slice, written: RowBuffer) -> None:
        setattr(self._param, BUFFER, self._own)

    _of = attrgetter("_boundary")
    __getitem__ = entry(_slice, _slice, _of)
    __iadd__ = entry(_add, _add_alone, _of)
    __setitem__ = entry(_put, _put_alone, _of)

    def conceal(self) -> None:
        """Replace the parameter's per-sample gradients by the view of the batch's rows."""
        exchange(self._param, self.whole, self._own)

    def arrived(self) -> bool:
        """Return whether the rows are in the parameter's per-sample gradients, hidden or not."""
        held = batches_of(self._param)
        return self._fits and any(tensor is self._own or tensor is self.whole for tensor in held)

    def reveal(self) -> None:
        """Replace the view by all rows."""
        exchange(self._param, self._own, self.whole)

    def take_out(self) -> None:
        """Remove the canaries' rows from the parameter's gradients and buffer."""
        self.conceal()
        held = getattr(self._param, BUFFER, None)
        if held is self:
            delattr(self._param, BUFFER)
        elif held is self.whole:  # a part of the backward pass is in it
            setattr(self._param, BUFFER, self._own)


def batches_of(param: Any) -> list[Any]:
    """Return a parameter's per-sample gradients, one tensor per accumulated batch, or None."""
    held = getattr(param, "grad_sample", None)
    return held if isinstance(held, list) else [held]


def exchange(param: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    """Replace ``old`` by ``new`` in a parameter's per-sample gradients, if it is there."""
    held = getattr(param, "grad_sample", None)
    if isinstance(held, list):
        held[:] = [new if tensor is old else tensor for tensor in held]
    elif held is old:
        param.grad_sample = new


@cache
def opacus_adds() -> bool:
    """Return whether the installed Opacus fills an existing buffer as `RowBuffer` expects."""
    param = torch.nn.Parameter(torch.zeros(()))
    buffer = RowBuffer(param, 2, spare=1)
    try:
        for _ in range(2):
            create_or_accumulate_grad_sample(
                param=param, grad_sample=torch.ones(1), max_batch_len=2
            )
    except Exception:  # any exception shows that `RowBuffer` cannot be used
        return False
    return getattr(param, BUFFER) is buffer.whole and buffer.whole.tolist() == [2.0, 0.0, 0.0]


# --- Canary rows without a copy: written into the buffer that Opacus fills in backward.


class RowPrefill:
    """Buffers for the per-sample gradients of one backward pass."""

    def __init__(
        self, params: Sequence[torch.nn.Parameter], modules: Iterable[torch.nn.Module]
    ) -> None:
        self._params = params
        self._hooked = [module for module in modules if backward_hook(module) is not None]
        self._buffers: list[RowBuffer] = []
        self._batch = 0

    def in_use(self) -> bool:
        """Return whether a forward pass has used a parameter; True if that is unknown."""
        return not self._hooked or any(getattr(p, "_forward_counter", 0) for p in self._params)

    def obstacle(self) -> str:
        """Return why the coming backward cannot contain the canaries' rows; empty if it can."""
        if not self._hooked:
            return "no module computes its per-sample gradients in Opacus' backward hooks"
        if not opacus_adds():
            return "this version of Opacus adds gradients up in another way"
        if any(getattr(p, "grad_sample", None) is not None for p in self._params):
            return "several backward passes are summed up in one step"
        if any(hasattr(p, BUFFER) for p in self._params):
            return "an earlier backward pass was not finished"
        if any(getattr(p, "_forward_counter", 0) < 1 for p in self._params):
            return "not every trained parameter took part in the forward pass"
        sizes = set()
        for module in self._hooked:
            recorded = module.__dict__.get("activations") or []
            if not recorded:
                continue
            hook = backward_hook(module)
            if isinstance(module, RNNLinear) or hasattr(module, "max_batch_len"):
                return "a recurrent layer's batches have several sizes"
            if hook is None or not hook.keywords.get("batch_first", False):
                return "the batch is not the first dimension"
            inputs = [tensor for call in recorded for tensor in call]
            # Opacus takes the batch size from the last input, most layers from the first.
            sizes |= {tensor.shape[0] if tensor.dim() else -1 for tensor in inputs}
        if len(sizes) != 1 or min(sizes) < 0:
            return "layers see batches of several sizes"
        self._batch = sizes.pop()
        return ""

    def lay_out(self, rows: int) -> None:
        """Reserve rows after the batch's for the coming backward."""
        self._buffers = []
        for param in self._params:  # one by one: `take_out` if a later one fails
            self._buffers.append(RowBuffer(param, self._batch, rows))

    def conceal(self) -> None:
        """Hide the canaries' rows from the gradients after the backward pass."""
        for buffer in self._buffers:
            buffer.conceal()

    def put_in(self, rows: CanaryRows, norm: float) -> list[torch.Tensor]:
        """Write and show the canaries' rows; return the gradients with them, or an empty list."""
        if not all(buffer.arrived() for buffer in self._buffers):
            self.take_out()
        whole = [buffer.whole for buffer in self._buffers]
        if whole:
            rows.write_all(whole, norm)
        for buffer in self._buffers:
            buffer.reveal()
        return whole

    def forget(self) -> None:
        """Drop the references to the gradients, which the step frees afterwards."""
        self._buffers = []

    def take_out(self) -> None:
        """Remove the canaries' rows from the buffers or the gradients made from them."""
        for buffer in self._buffers:
            buffer.take_out()
        self._buffers = []


def backward_hook(module: torch.nn.Module) -> partial[Any] | None:
    """Return Opacus' backward hook on a module, with its bound arguments; None if there is none."""
    for hook in module._backward_hooks.values():
        if not isinstance(hook, partial) or hook.func.__name__ != "capture_backprops_hook":
            continue
        if hook.func.__module__.startswith("opacus."):  # an override may fill other buffers
            return hook
    return None


# --- Finds samples with a non-finite gradient, in steps whose gradient is not finite.

_NOWHERE: IndexArray = np.zeros(0, dtype=np.int64)


def not_finite(gradients: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return which rows of per-sample gradients contain NaN or infinity.

    Args:
        gradients: one tensor ``[n, *shape]`` per parameter.

    Returns:
        One boolean per sample, ``[n]``; None for no tensors or different numbers of rows.
    """
    if len({len(g) for g in gradients}) != 1:
        return None
    flat = [g.detach().reshape(len(g), math.prod(g.shape[1:])) for g in gradients]
    rows = [~torch.isfinite(g).all(dim=1) for g in flat]
    return torch.stack([row.to(rows[0].device) for row in rows]).any(dim=0)


def waiting_not_finite(
    params: Sequence[torch.nn.Parameter],
    canaries: Mapping[int, int],
    places: IndexArray | None = None,
) -> torch.Tensor | None:
    """Return which rows of ``grad_sample`` contain NaN or infinity, over all pending batches.

    Args:
        params: the parameters, each with one tensor, or a list of one tensor per batch.
        canaries: number of canary rows, by the tensor's id.
        places: their positions, see `row_places`; None if they follow the batch's rows.

    Returns:
        One boolean per sample, ``[n]``; None if gradients are missing.
    """
    known = []
    for batch in zip(*map(batches_of, params), strict=False):
        if not all(isinstance(t, torch.Tensor) for t in batch):
            return None
        counts = {canaries.get(id(t), 0) for t in batch}
        count = counts.pop() if len(counts) == 1 else None
        found = None if count is None else not_finite(batch)
        if found is not None and count:
            found = rows_of_records(found, _NOWHERE if places is None else places, count)
        known.append(found)
    rows = [found for found in known if found is not None]
    return torch.cat(rows) if rows and len(rows) == len(known) else None


def all_finite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Return whether the tensors contain neither NaN nor infinity; None entries are skipped."""
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors if t is not None)


# --- Opacus' `DPOptimizer`: canaries are additional rows of every parameter's `grad_sample`.

_COPIED = "per-sample gradients had to be copied to add canaries, which costs time"


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer that updates weights, inside Lightning's and Opacus' wrappers."""
    last: torch.optim.Optimizer = list(chain(optimizer))[-1]
    return last


def private_optimizer(optimizer: Any) -> DPOptimizer | None:
    """Return the `DPOptimizer` in a chain of wrappers, if there is one."""
    for own in chain(optimizer):
        # Lightning's wrapper passes for an instance of what it wraps, but writes to it are lost.
        if "_optimizer" not in vars(own) and isinstance(own, DPOptimizer):
            return own
    return None


def chain(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and those that it wraps, outermost first."""
    while optimizer is not None:
        yield optimizer
        # Lightning's wrapper also has the wrapped optimizer's attributes, so its own comes first.
        inner = vars(optimizer).get("_optimizer")
        optimizer = inner if inner is not None else getattr(optimizer, "original_optimizer", None)


class OpacusStep(DPSGDStep):
    """Adapter for `DPOptimizer` and its subclasses that clip the rows of ``grad_sample``.

    Args:
        optimizer: the private optimizer.
        names: parameter -> name in the module, by identity; unknown ones are numbered.
        modules: modules whose backward computes the gradients; if empty, rows are copied.

    Raises:
        UnsupportedOptimizer: the optimizer is of a kind that cannot be audited, or its inner
            optimizer calls a closure more than once.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        names: dict[int, str],
        modules: Iterable[torch.nn.Module] = (),
    ) -> None:
        refuse_unsupported(optimizer)
        self.optimizer = optimizer
        self.inner = innermost(optimizer)
        self.norms = None
        self.adapts_its_norm = isinstance(optimizer, AdaClipDPOptimizer)
        self.params = optimizer.params
        self._prefill = RowPrefill(self.params, modules)
        #: Weak references to gradients with canaries, which the step frees; number of canaries.
        self._entered: list[weakref.ref[torch.Tensor]] = []
        self._rows = 0
        #: The rows of `lay_out`, their norm, and the seed of their positions.
        self._laid_out: tuple[CanaryRows, float, Seed]
        self._laid_out = CanaryRows([]), 0.0, None
        #: Ids of gradients with canaries among the data's rows; rows subtracted for AdaClip.
        self._swapped: list[int] = []
        self._uncounted = 0
        self._places: IndexArray = draw_places(None, 0, 0)
        self._sent: dict[torch.device, torch.Tensor] = {}
        self._earlier_lost = False
        self.layout: Layout = [
            TensorSlot(own_name(names.get(id(p), f"parameter_{j}")), tuple(p.shape), share)
            for j, (p, share) in enumerate(zip(self.params, _clip_shares(optimizer), strict=True))
        ]

    def trained(self) -> Sequence[torch.nn.Parameter]:
        """Return the parameters that Opacus clips."""
        params: Sequence[torch.nn.Parameter] = self.optimizer.params
        return params

    def claim(self, accumulated: int | None = None) -> StepClaim:
        """Return what the optimizer states now; ``scale`` is 1 for ``loss_reduction="sum"``.

        Args:
            accumulated: number of batches that the step sums; None to count the pending ones.

        Raises:
            ValueError: a parameter holds no per-sample gradients.
        """
        o = self.optimizer
        if accumulated is None:
            accumulated = int(o.accumulated_iterations)
        scale = 1.0
        if o.loss_reduction == "mean":
            # A distributed optimizer states the batch size of one process, and averages the
            # gradients of all.
            scale = float(o.expected_batch_size * accumulated * getattr(o, "world_size", 1))
        return StepClaim(
            noise_multiplier=_gradient_noise(o),
            max_grad_norm=as_number(o.max_grad_norm),
            scale=scale,
            accumulated=accumulated,
        )

    def copy_in(
        self, rows: Sequence[Direction], norm: float, seed: Seed = None, part: int = -1
    ) -> None:
        """Append each row, times ``norm``, to every ``grad_sample``.

        Raises:
            CannotEnter: a parameter holds no per-sample gradients, or used ones.
        """
        count = len(rows)
        waiting = [self._waiting(j, part) for j in range(len(self.params))]
        if not count:
            return
        grown = [_like(t, torch.cat([t, t.new_zeros((count, *t.shape[1:]))])) for t in waiting]
        as_rows(rows).write_all(grown, norm)
        # Nothing was changed so far: a failure above leaves the user's gradients unchanged.
        # A new element of a list would count as one more accumulated iteration.
        self._note(grown, count)
        for param, old, new in zip(self.params, waiting, grown, strict=True):
            exchange(param, old, new)
        self._mingle(grown, seed)

    def _note(self, grown: Sequence[torch.Tensor], rows: int) -> None:
        """Store the gradients whose last ``rows`` rows are canaries."""
        self._swapped = []
        if len(self._places):
            self._places = draw_places(None, 0, 0)
        self._rows, self._entered = rows, [weakref.ref(tensor) for tensor in grown]

    def _mingle(self, grown: Sequence[torch.Tensor], seed: Seed) -> None:
        """Move canaries among the data's rows if the step has a seed; correct AdaClip's count."""
        if not grown:
            return
        rows = self._rows
        if seed is not None:
            self._places = draw_places(seed, len(grown[0]) - rows, rows)
            self._sent = {}
            swap_rows(grown, self._places, rows, self._swapped, self._sent)
        if self.adapts_its_norm:
            self.optimizer.sample_size -= rows  # canaries are clipped but are not samples
            self._uncounted = rows

    def concerns(self, coming: Backward) -> bool:
        """Return whether the coming backward pass may reach this optimizer's parameters."""
        return same_objects(self.trained(), self.params) and self._prefill.in_use()

    def obstacle(self, coming: Backward) -> str:
        """Return why the coming backward's rows must be copied; empty if they need not."""
        if coming.accumulates:
            reason = "several backward passes make up a step"
        elif not coming.announced:
            reason = (
                "the audit did not see the backward pass begin (Lightning: call "
                "self.manual_backward(loss), not loss.backward())"
            )
        else:
            reason = self._prefill.obstacle()
        return reason and f"{_COPIED}: {reason}"

    def lay_out(self, rows: Sequence[Direction], norm: float, seed: Seed = None) -> None:
        """Reserve rows for the canaries before the backward pass, without a copy."""
        self._prefill.lay_out(len(rows))
        self._laid_out, self._rows, self._entered = (as_rows(rows), norm, seed), len(rows), []

    def conceal(self) -> None:
        """Hide the rows of `lay_out` from user code after the backward pass, until `put_in`."""
        self._prefill.conceal()

    def put_in(self) -> bool:
        """Insert the rows of `lay_out` into the pending gradients: all (True) or none."""
        rows, norm, seed = self._laid_out
        grown = self._prefill.put_in(rows, norm)
        self._note(grown, self._rows)
        self._mingle(grown, seed)
        self._prefill.forget()
        return bool(self._entered)

    def take_out(self) -> bool:
        """Remove the rows of `lay_out`, `put_in` and `copy_in`, if any."""
        self._prefill.take_out()
        waiting = False
        for param, entered in zip(self.params, self._entered, strict=False):
            grown = entered()
            if grown is not None:
                if id(grown) in self._swapped:
                    swap_rows([grown], self._places, self._rows, sent=self._sent)
                    self._swapped.remove(id(grown))
                waiting = waiting or not hasattr(grown, "_processed")
                exchange(param, grown, _like(grown, grown[: len(grown) - self._rows]))
        if waiting and self._uncounted:  # they were not clipped and counted
            self.optimizer.sample_size += self._uncounted
        self._entered, self._uncounted = [], 0
        return waiting

    def holds_canaries(self) -> bool:
        """Return whether the gradients to be clipped are those that contain the canaries."""
        return any(
            any(samples is entered() for samples in batches_of(p) if samples is not None)
            for p, entered in zip(self.params, self._entered, strict=False)
        )

    def _waiting(self, tensor: int, part: int) -> torch.Tensor:
        """Return the per-sample gradients of a tensor in one of the accumulated batches."""
        held = getattr(self.params[tensor], "grad_sample", None)
        found = held[part] if isinstance(held, list) and held else held
        if not isinstance(found, torch.Tensor):
            raise CannotEnter(f"{self.layout[tensor].name} holds no per-sample gradients")
        if hasattr(found, "_processed"):  # Opacus' step raises
            raise CannotEnter("the gradients of an earlier step were not cleared")
        return found

    @property
    def _generator(self) -> Any:
        """The generator of the noise, on the parameters' device if it is torch's own."""
        device = self.params[0].device
        if self.optimizer.generator is not None:
            return self.optimizer.generator
        if device.type == "cuda":
            return torch.cuda.default_generators[device.index or 0]
        return torch.default_generator

    def noise_seed(self) -> int | None:
        """Return the seed of the noise generator; None if it is not accessible."""
        try:
            return int(self._generator.initial_seed())
        except (AttributeError, RuntimeError):  # generators of Opacus' secure mode
            return None

    def noise_state(self) -> str | None:
        """Return a digest of the noise generator's state; None if it is not accessible."""
        try:
            state = self._generator.get_state()
        except (AttributeError, RuntimeError):  # generators of Opacus' secure mode
            return None
        return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).hexdigest()

    def batch_size(self) -> int | None:
        """Return the number of rows to be clipped, over all accumulated batches."""
        batches = batches_of(self.params[0])
        sizes = [len(batch) for batch in batches if isinstance(batch, torch.Tensor)]
        return sum(sizes) if len(sizes) == len(batches) else None

    def lost_rows(self) -> torch.Tensor | None:
        """Return which samples' gradients in the step's last part are not finite.

        Opacus frees the gradients when they are set to zero, after the update. If the sum of the
        earlier parts of a split batch is not finite, one row is appended for them.
        """
        canaries = {id(tensor()): self._rows for tensor in self._entered}
        rows = waiting_not_finite(self.params, canaries, self._places)
        return rows if rows is None else self._with_earlier(rows)

    def look_at_parts(self) -> None:
        """Check, before a batch's last part is clipped, whether the others' sum is finite."""
        self._earlier_lost = not all_finite(summed_by_opacus(self.params))

    def _with_earlier(self, rows: torch.Tensor) -> torch.Tensor:
        """Append one row for the records of earlier parts, if their sum is not finite."""
        lost, self._earlier_lost = self._earlier_lost, False
        return torch.cat([rows, rows.new_ones(1)]) if lost else rows

    def final_step_of_batch(self) -> bool:
        """Return False if more physical batches of the same logical batch follow."""
        return not self.optimizer._check_skip_next_step(pop_next=False)

    def splits_batches(self) -> bool:
        """Return whether a batch memory manager signals if more physical batches follow."""
        return bool(self.optimizer._step_skip_queue)


def _clip_shares(optimizer: DPOptimizer) -> list[float | None]:
    """Return each tensor's clipping norm over the gradient's; None unless clipped per layer."""
    if not isinstance(optimizer, DPPerLayerOptimizer):
        return [None] * len(optimizer.params)
    norms = [as_number(norm) for norm in optimizer.max_grad_norms]
    return [norm / math.hypot(*norms) for norm in norms]


def _gradient_noise(optimizer: Any) -> float:
    """Return the noise multiplier of the gradient.

    Adaptive clipping spends a part of the privacy budget on the count that it adapts to, and adds
    more noise to the gradient than the accountant records (Andrew et al. 2021, Theorem 1).
    """
    sigma = float(getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier))
    if isinstance(optimizer, AdaClipDPOptimizer) and sigma > 0:
        sigma = float((sigma**-2 - (2 * optimizer.unclipped_num_std) ** -2) ** -0.5)
    return sigma


#: Part of the expected batch that adaptive ghost clipping takes as the noise of its count.
_OF_BATCH = 20.0


def count_noise(optimizer: Any) -> tuple[float, float]:
    """Return the noise multiplier, and the noise of the count that Opacus' code adapts to.

    The count is divided by the batch's real size. Zeros without it.
    """
    if hasattr(optimizer, "_adjusted_noise_multiplier"):
        std = (optimizer.expected_batch_size or 0.0) / _OF_BATCH
    elif is_opacus(getattr(type(optimizer), "update_max_grad_norm", None)):
        std = optimizer.unclipped_num_std
    else:
        return 0.0, 0.0
    return float(optimizer.noise_multiplier), float(std)


def is_opacus(method: Any) -> bool:
    """Return whether the code of a method is Opacus' own."""
    return str(getattr(method, "__module__", "")).startswith("opacus.")  # an object may have none


def as_number(value: Any) -> float:
    """Return a number or a 0-dimensional tensor as a float."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Copy Opacus' `_processed` mark, which prevents a second use, to the new gradients."""
    if hasattr(old, "_processed"):
        new._processed = old._processed  # type: ignore[attr-defined]
    return new


def own_name(name: str) -> str:
    """Return a parameter's name without the level that Opacus' GradSampleModule adds."""
    return ".".join(part for part in name.split(".") if part != "_module")


def refuse_unsupported(optimizer: DPOptimizer) -> None:
    """Raise `UnsupportedOptimizer`, with what to change, if this adapter cannot audit it."""
    if isinstance(optimizer, DistributedPerLayerOptimizer):
        raise UnsupportedOptimizer(
            "DistributedPerLayerOptimizer clips within the backward pass, before a canary could "
            "enter; train with SimpleDistributedPerLayerOptimizer, which make_private gives."
        )
    if isinstance(optimizer, getattr(opacus_optimizers, "FSDPOptimizerFastGradientClipping", ())):
        raise UnsupportedOptimizer(
            f"{type(optimizer).__name__} cannot be audited yet; train with DistributedDataParallel "
            "and grad_sample_mode='ghost' to audit."
        )
    if optimizer.loss_reduction == "mean" and not optimizer.expected_batch_size > 0:
        raise UnsupportedOptimizer(
            f"expected_batch_size={optimizer.expected_batch_size!r} must be > 0: gradients are "
            "divided by it. Opacus computes int(len(dataset) * sample_rate); use a larger batch."
        )
    refuse_repeated_closures(innermost(optimizer))
