"""Opacus' `DPOptimizer`: canaries are additional rows of every parameter's `grad_sample`.

The rows enter upstream of every override of ``step``, ``pre_step``, ``clip_and_accumulate``,
``add_noise`` and ``scale_grad``, so that the audit covers the code that runs.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from opacus import optimizers as opacus_optimizers
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer

from lightning_audit.dpsgd.lost_rows import all_finite, waiting_not_finite
from lightning_audit.dpsgd.prefill import RowPrefill
from lightning_audit.dpsgd.protocol import (
    Backward,
    CannotEnter,
    DPSGDStep,
    StepClaim,
    UnsupportedOptimizer,
    refuse_repeated_closures,
)
from lightning_audit.dpsgd.row_buffer import exchange
from lightning_audit.dpsgd.row_places import draw_places, swap_rows
from lightning_audit.layout import Direction, IndexArray, Layout, TensorSlot, same_objects
from lightning_audit.taps.tensor_views import write_rows

#: Subclasses of DPOptimizer that cannot be audited, and what to train with instead.
_UNSUPPORTED = {
    "FSDPOptimizerFastGradientClipping": "Lightning's strategy='ddp' and grad_sample_mode='ghost'",
}
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
        self.row_seed = None
        self.adapts_its_norm = isinstance(optimizer, AdaClipDPOptimizer)
        self.params = optimizer.params
        self._prefill = RowPrefill(self.params, modules)
        #: Weak references to gradients with canaries, which the step frees; number of canaries.
        self._entered: list[weakref.ref[torch.Tensor]] = []
        self._rows = 0
        #: Ids of gradients with canaries among the data's rows; rows subtracted for AdaClip.
        self._swapped: list[int] = []
        self._uncounted = 0
        self._places: IndexArray = draw_places(None, 0, 0)
        self._earlier_lost = False
        self.layout: Layout = [
            TensorSlot(own_name(names.get(id(p), f"parameter_{j}")), tuple(p.shape), share)
            for j, (p, share) in enumerate(zip(self.params, _clip_shares(optimizer), strict=True))
        ]

    def trained(self) -> Sequence[torch.nn.Parameter]:
        """Return the parameters that Opacus clips."""
        return list(self.optimizer.params)

    def same_params(self) -> bool:
        """Return whether Opacus clips the parameters of the start, by identity."""
        return same_objects(self.optimizer.params, self.params)

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

    def inject(self, directions: Sequence[Direction], norm: float, part: int = -1) -> None:
        """Append one row per direction to every ``grad_sample``: ``norm`` times the direction.

        Raises:
            CannotEnter: a parameter holds no per-sample gradients.
        """
        rows = len(directions)
        waiting = [self._waiting(j, part) for j in range(len(self.params))]
        if not rows:
            return
        grown = [_like(t, torch.cat([t, t.new_zeros((rows, *t.shape[1:]))])) for t in waiting]
        write_rows(grown, directions, norm)
        # Nothing was changed so far: a failure above leaves the user's gradients unchanged.
        # A new element of a list would count as one more accumulated iteration.
        self._note(grown, rows)
        for param, old, new in zip(self.params, waiting, grown, strict=True):
            exchange(param, old, new)
        self._mingle(grown)

    def _note(self, grown: Sequence[torch.Tensor], rows: int) -> None:
        """Store the gradients whose last ``rows`` rows are canaries."""
        self._swapped = []
        if len(self._places):
            self._places = draw_places(None, 0, 0)
        self._rows, self._entered = rows, [weakref.ref(tensor) for tensor in grown]

    def _mingle(self, grown: Sequence[torch.Tensor]) -> None:
        """Move canaries among the data's rows if the step has a seed; correct AdaClip's count."""
        if not grown:
            return
        rows = self._rows
        if self.row_seed is not None:
            self._places = draw_places(self.row_seed, len(grown[0]) - rows, rows)
            swap_rows(grown, self._places, rows, self._swapped)
        if self.adapts_its_norm:
            self.optimizer.sample_size -= rows  # canaries are clipped but are not samples
            self._uncounted = rows

    def concerns(self, coming: Backward) -> bool:
        """Return whether the coming backward pass may reach this optimizer's parameters."""
        return self.same_params() and self._prefill.in_use()

    def obstacle(self, coming: Backward) -> str:
        """Return why the coming backward's rows must be copied; empty if they need not."""
        if coming.accumulates:
            reason = "several backward passes make up a step"
        elif coming.autocast:
            reason = "autocast chooses the precision of the gradients"
        elif not coming.announced:
            reason = "loss.backward() was called instead of manual_backward(loss)"
        else:
            reason = self._prefill.obstacle()
        return reason and f"{_COPIED}: {reason}"

    def prepare(self, directions: Sequence[Direction], norm: float) -> None:
        """Reserve rows for the canaries before the backward pass, without a copy."""
        self._prefill.fill(directions, norm)
        self._rows, self._entered = len(directions), []

    def conceal(self) -> None:
        """Hide the rows of `prepare` from user code after the backward pass, until `confirm`."""
        self._prefill.conceal()

    def confirm(self) -> bool:
        """Insert the rows of `prepare` into the pending gradients: all (True) or none."""
        grown = self._prefill.confirm()
        self._note(grown, self._rows)
        self._mingle(grown)
        self._prefill.forget()
        return bool(self._entered)

    def withdraw(self) -> bool:
        """Remove the rows of `prepare` and `inject`, if any."""
        self._prefill.withdraw()
        waiting = False
        for param, entered in zip(self.params, self._entered, strict=False):
            grown = entered()
            if grown is not None:
                if id(grown) in self._swapped:
                    swap_rows([grown], self._places, self._rows)
                    self._swapped.remove(id(grown))
                waiting = waiting or not hasattr(grown, "_processed")
                exchange(param, grown, _like(grown, grown[: len(grown) - self._rows]))
        if waiting and self._uncounted:  # they were not clipped and counted
            self.optimizer.sample_size += self._uncounted
        self._entered, self._uncounted = [], 0
        return waiting

    def holds_canaries(self) -> bool:
        """Return whether the gradients to be clipped are those that contain the canaries."""
        held = [getattr(p, "grad_sample", None) for p in self.params]
        return any(
            (grown := entered()) is not None
            and (
                samples is grown or (isinstance(samples, list) and any(s is grown for s in samples))
            )
            for samples, entered in zip(held, self._entered, strict=False)
        )

    def _waiting(self, tensor: int, part: int) -> torch.Tensor:
        """Return the per-sample gradients of a tensor in one of the accumulated batches."""
        held = getattr(self.params[tensor], "grad_sample", None)
        found = held[part] if isinstance(held, list) and held else held
        if not isinstance(found, torch.Tensor):
            raise CannotEnter(f"{self.layout[tensor].name} holds no per-sample gradients")
        return found

    def noise_state(self) -> str | None:
        """Return a digest of the noise generator's state; None if it is not accessible."""
        generator = self.optimizer.generator
        if generator is None:
            device = self.params[0].device
            generator = torch.default_generator
            if device.type == "cuda":
                generator = torch.cuda.default_generators[device.index or 0]
        try:
            state = generator.get_state()
        except (AttributeError, RuntimeError):  # generators of Opacus' secure mode
            return None
        return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).hexdigest()

    def batch_size(self) -> int | None:
        """Return the number of rows to be clipped, over all accumulated batches."""
        held = getattr(self.params[0], "grad_sample", None)
        batches = held if isinstance(held, list) else [held]
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
        sums = [getattr(p, "summed_grad", None) for p in self.params]
        self._earlier_lost = not all_finite(sums)

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
    for name, instead in _UNSUPPORTED.items():
        kind = getattr(opacus_optimizers, name, None)
        if kind is not None and isinstance(optimizer, kind):
            raise UnsupportedOptimizer(
                f"{type(optimizer).__name__} cannot be audited yet; train with {instead} to audit."
            )
    if optimizer.loss_reduction == "mean" and not optimizer.expected_batch_size > 0:
        raise UnsupportedOptimizer(
            f"expected_batch_size={optimizer.expected_batch_size!r} must be > 0: gradients are "
            "divided by it. Opacus computes int(len(dataset) * sample_rate); use a larger batch."
        )
    refuse_repeated_closures(innermost(optimizer))
