"""Faults that loaders, losses, optimizers and settings show without a canary.

**Detects processes that draw the same noise.** Noise generators that start and end in the same
states have drawn the same noise. A generator's state is a secret of the mechanism: it is kept in
memory only.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    DPLossFastGradientAdaptiveClipping,
    DPTensorFastGradientAdaptiveClipping,
    PrivacyEngineAdaptiveClipping,
)
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from lightning_audit.accounting.history import Phase
from lightning_audit.dpsgd.opacus import chain
from lightning_audit.files import compiles
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.sampler_tap import can_be_watched, unwatched
from lightning_audit.hooks.step_hooks import MethodHook

# --- Gradient accumulation by the Trainer together with Opacus'.

#: Note on a loss that Lightning divides as well, by the number ``n`` of accumulated batches.
DIVIDED_TWICE = (
    "accumulate_grad_batches={n} divides gradients twice: Lightning divides the loss by {n}, and "
    "Opacus the noisy sum once more, so that gradients below the clipping norm are {n} times too "
    "small relative to the noise; this loses no privacy. Return {n} times the loss from "
    "training_step, or let opacus.utils.batch_memory_manager.BatchMemoryManager split large "
    "batches instead"
)


def accumulation_remarks(
    optimizer: Any, accumulate_grad_batches: int, module: torch.nn.Module | None = None
) -> list[str]:
    """Return a note if Lightning and Opacus both divide by the number of accumulated batches.

    If ``module`` has a module of `make_private` with Poisson sampling, Opacus raises instead.
    """
    n, parts = accumulate_grad_batches, () if module is None else module.modules()
    if n < 2:
        return []
    if any(getattr(part, "grad_accumulation_allowed", True) is False for part in parts):
        return [
            f"Opacus will end the training at its second batch: accumulate_grad_batches={n} sums "
            "the gradients of several batches, which make_private forbids with Poisson sampling. "
            f"Write accumulate_grad_batches=1 and a batch size {n} times as large, which "
            "opacus.utils.batch_memory_manager.BatchMemoryManager splits"
        ]
    both = isinstance(optimizer, DPOptimizer) and optimizer.loss_reduction == "mean"
    return [DIVIDED_TWICE.format(n=n)] if both else []


# --- Gradients and signals of split batches that remain in the optimizer after an epoch.


def splits_batches(loaders: Any) -> bool:
    """Return whether a loader splits logical batches into physical ones (`BatchMemoryManager`)."""
    samplers = (getattr(loader, "batch_sampler", None) for loader in _pytree.tree_leaves(loaders))
    return any(isinstance(sampler, BatchSplittingSampler) for sampler in samplers)


def signals_ahead(loaders: Any) -> int:
    """Return how many batch memory manager signals may be pending at an epoch's first batch.

    Returns:
        One for the batch, one for a batch that Lightning may prefetch, and those of the workers.
    """
    leaves = _pytree.tree_leaves(loaders)
    ahead = [(x.prefetch_factor or 0) * x.num_workers for x in leaves if isinstance(x, DataLoader)]
    return 2 + sum(ahead)


def carries_over(optimizer: DPOptimizer, ahead: int) -> bool:
    """Return whether the optimizer holds leftovers of the previous epoch.

    Args:
        optimizer: the private optimizer, before the first step of the epoch.
        ahead: number of signals that may be pending (`signals_ahead`).

    Returns:
        True if gradients of an incomplete logical batch are pending, or signals of batches that
        were never trained on.
    """
    unfinished = optimizer._is_last_step_skipped and any(
        getattr(p, "summed_grad", None) is not None for p in optimizer.params
    )
    return bool(unfinished) or len(optimizer._step_skip_queue) > ahead


# --- Notes on what Lightning silently does to ghost clipping; none of it loses privacy.

#: Note on gradients that are dropped, by the number ``n`` of accumulated batches.
ONE_BATCH_ONLY = (
    "accumulate_grad_batches={n} trains on one batch in {n} only: the backward pass of ghost "
    "clipping clears the gradients, so that each batch drops the previous one. Write "
    "accumulate_grad_batches=1 and let opacus.utils.batch_memory_manager.BatchMemoryManager split "
    "large batches"
)
_ADAPTIVE_OFF = (
    "adaptive clipping is off: the loss was divided, which drops adaptive clipping from Opacus' "
    "loss, so that max_grad_norm never changes. Call backward on the criterion's loss itself "
    "(Lightning: it divides by the number of accumulated batches; write "
    "`self.automatic_optimization = False` and call `self.manual_backward(loss)`)"
)


def ghost_remarks(
    optimizer: DPOptimizer, accumulate_grad_batches: int, gradient_clip_val: float | None
) -> list[str]:
    """Return notes on Trainer arguments that harm an optimizer with ghost clipping.

    Neither is a violation: dropped gradients need no noise, and clipping the sum does not increase
    the distance between the sums of neighboring data sets.

    Returns:
        Notes with what to write instead; empty for other optimizers.
    """
    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        return []
    remarks = []
    if accumulate_grad_batches > 1:
        remarks.append(ONE_BATCH_ONLY.format(n=accumulate_grad_batches))
    if gradient_clip_val:
        remarks.append(
            f"gradient_clip_val={gradient_clip_val} shortens the sum of the clipped gradients "
            "before the noise is added, but not the noise: the model learns less for the same "
            "epsilon. Write gradient_clip_val=None; max_grad_norm clips each record's gradient"
        )
    return remarks


def adaptive_remark(module: torch.nn.Module, loss: Any) -> str:
    """Return a note if adaptive clipping was set up but this loss does not adapt.

    Opacus' adaptive criterion or engine is searched among the attributes of ``module``.

    Returns:
        The note with what to write instead; empty if nothing is wrong.
    """
    adapts = isinstance(loss, DPTensorFastGradientAdaptiveClipping)
    if adapts or not isinstance(loss, DPTensorFastGradientClipping):
        return ""
    wanted = (DPLossFastGradientAdaptiveClipping, PrivacyEngineAdaptiveClipping)
    held = (value for part in module.modules() for value in vars(part).values())
    return _ADAPTIVE_OFF if any(isinstance(value, wanted) for value in held) else ""


_SCALED = "a gradient scaler multiplies per-sample gradients before they are clipped: leave it out"


def watch_scalers(optimizers: Sequence[Any], note: Callable[[str], None]) -> MethodHook:
    """Note steps of optimizers by an enabled ``torch.amp.GradScaler``, until it is removed."""

    def steps(scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        if scaler.is_enabled() and any(optimizer is one for one in optimizers):
            note(_SCALED)

    return MethodHook(torch.amp.GradScaler, "step", steps, shown=True)


def mixing_attention(module: torch.nn.Module) -> str:
    """Return the name of an attention layer that lets padding past its mask, or empty.

    Opacus' ``DPMultiheadAttention(batch_first=True)`` lays its outputs out wrongly.
    """
    parts = module.named_modules()
    mixing = (n for n, p in parts if isinstance(p, DPMultiheadAttention) and p.batch_first)
    return next(mixing, "").replace("_module.", "")


# --- Determines from a loader's type how it draws its batches.

_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


@dataclass(frozen=True)
class LoaderFacts:
    """How a loader draws its batches.

    Args:
        kind: "poisson", "not_poisson", or "unknown" for a sampler that is not torch's or Opacus'.
        description: the loader's type and batch sampler.
        sample_rate: the sampler's rate, None if it states none.
        records: number of records in the data set, None if it has no length.
        once: whether each record enters at most one batch per epoch.
        batch_size: number of records of a batch, None if it varies or is unknown.
        raised_in: epoch, from 0, since which the rate is this one; None if it never changed.
        empty: what is done with an empty batch: "stepped", "made_up" if a record of random numbers
            is trained on instead, "left_out" if the process has one batch less.
        drawn_from: number of records from which a process draws; None if unknown.
        data: class of the data set; empty without a loader.
    """

    kind: Literal["poisson", "not_poisson", "unknown"]
    description: str
    sample_rate: float | None = None
    records: int | None = field(default=None, compare=False)
    once: bool = False
    batch_size: int | None = None
    raised_in: int | None = None
    empty: Literal["stepped", "made_up", "left_out"] = "stepped"
    drawn_from: int | None = field(default=None, compare=False)
    data: str = field(default="", compare=False)


def loader_facts(loaders: Any) -> LoaderFacts:
    """Return how the trainer's loaders draw their batches.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.

    Returns:
        The facts of the first loader that is not Poisson, else of the first one.
    """
    facts = [
        replace(
            _facts(loader),
            records=len(loader.dataset) if can_be_watched(loader) else None,
            data=type(loader.dataset).__name__ if hasattr(loader, "dataset") else "",
        )
        for loader in _pytree.tree_leaves(loaders)
    ]
    doubtful = [fact for fact in facts if fact.kind != "poisson"]
    return (doubtful or facts or [LoaderFacts("unknown", "the loop's own code")])[0]


def rate_of(loader: Any) -> float | None:
    """Return the current sampling rate of a loader's sampler; None if it states none."""
    return getattr(_sampler_of(loader), "sample_rate", None)


def _sampler_of(loader: Any) -> Any:
    """Return what draws the logical batches of a loader; None if nothing does."""
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    if isinstance(sampler, BatchSplittingSampler):  # into physical ones
        sampler = unwatched(sampler.sampler)
    return sampler


def draw_state(loaders: Any) -> int:
    """Return a checksum of the generator from which a process draws its share's positions.

    0 if the loader deals no shares out to processes, or if the generator is not accessible.
    """
    loader = next(iter(_pytree.tree_leaves(loaders)), None)
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    if not isinstance(sampler, DistributedUniformWithReplacementSampler):
        return 0
    generator = sampler.generator or torch.default_generator
    try:
        return zlib.crc32(generator.get_state().numpy().tobytes()) or 1
    except (AttributeError, RuntimeError):  # generators of Opacus' secure mode
        return 0


def loader_count(loaders: Any) -> int:
    """Return the number of the trainer's training loaders."""
    return len(_pytree.tree_leaves(loaders))


def _facts(loader: Any) -> LoaderFacts:
    sampler, name = _sampler_of(loader), type(loader).__name__
    draws = getattr(type(sampler), "__iter__", None)  # which a subclass may override
    if isinstance(sampler, _POISSON) and draws in [kind.__iter__ for kind in _POISSON]:
        facts = LoaderFacts("poisson", f"{name} with {type(sampler).__name__}", sampler.sample_rate)
        facts = replace(facts, drawn_from=sampler.num_samples)
        if draws is DistributedUniformWithReplacementSampler.__iter__:
            return replace(facts, empty="left_out")
        made_up = getattr(loader.collate_fn, "rand_on_empty", False)
        return replace(facts, empty="made_up") if made_up else facts
    if type(sampler) is BatchSampler:
        order, size = sampler.sampler, sampler.batch_size
        described = f"{name} with {type(order).__name__}, batches of {size}"
        return LoaderFacts("not_poisson", described, once=_deals_out(order), batch_size=size)
    if isinstance(loader, DataLoader):
        name += f" with {'no batch sampler' if sampler is None else type(sampler).__name__}"
    return LoaderFacts("unknown", name)


def _deals_out(sampler: Any) -> bool:
    """Return whether a torch sampler yields each record at most once."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) is SequentialSampler


def draws_from(loaders: Any, *, part: bool) -> bool:
    """Return whether a Poisson loader draws from all records, not one process's share of them.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.
        part: test instead whether it draws from a `Subset` of the records, chosen by the user.
    """
    return any(
        isinstance(getattr(loader, "batch_sampler", None), UniformWithReplacementSampler)
        and isinstance(loader.dataset, Subset) == part
        for loader in _pytree.tree_leaves(loaders)
    )


# --- Names that a training logs from its records, by its source.

#: Hooks of a LightningModule that see training records or what was computed from them.
_OF_TRAINING = ("training_step", "on_train_batch_end", "training_epoch_end", "on_train_epoch_end")


@compiles
def logged_names(module: Any) -> list[str]:
    """Return names that a LightningModule logs in training, as far as its source shows them.

    What is logged with a call that mentions an epsilon is left out: it is the accountant's.

    Args:
        module: whose methods, and those that they call, are read.
    """
    found: dict[str, None] = {}
    todo, known = [*_OF_TRAINING], set[str]()
    while todo:
        name = todo.pop()
        method = getattr(type(module), name, None)
        library = str(getattr(method, "__module__", "")).startswith(
            ("pytorch_lightning", "lightning.")
        )
        if name in known or library or not inspect.isfunction(method):
            continue
        known.add(name)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        except (OSError, SyntaxError):  # typed into a notebook
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                todo.append(call.func.attr)
                if call.func.attr in ("log", "log_dict") and "epsilon" not in ast.dump(call):
                    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
                    keys = [k for one in given for k in getattr(one, "keys", [one])]
                    found |= {str(k.value): None for k in keys if isinstance(k, ast.Constant)}
    return [*found]


# --- Determines whether a loss is the mean or the sum over its batch.

Reduction = Literal["mean", "sum"]

#: Values that autograd nodes of torch's losses store for the argument ``reduction``.
_REDUCTIONS: dict[Any, Reduction] = {1: "mean", 2: "sum"}
#: Nodes before a sum or mean after which the reduction is unknown: stacked or weighted losses.
_UNTOLD = ("StackBackward", "CatBackward", "MulBackward", "DivBackward")


def reduction_of(loss: Any, accumulated: int = 1) -> Reduction | None:
    """Return the reduction of a loss over its batch, by its last autograd operation.

    Args:
        loss: tensor on which ``backward`` will be called.
        accumulated: number of batches per step, by which Lightning divides the loss.

    Returns:
        "mean" or "sum" if the last operation is one of torch's losses, ``mean()`` or ``sum()``, or
        a sum of such terms with the same reduction; None otherwise, for example for a scaled loss
        or one of stacked or weighted losses.
    """
    node = getattr(loss, "grad_fn", None)
    if node is not None and str(node.name()).startswith("DivBackward"):
        by_batches = False
        # Without modes of the user's; or its backward pass has gone by.
        with contextlib.suppress(AttributeError, RuntimeError), _disable_current_modes():
            divisor = torch.as_tensor(node._saved_other)
            by_batches = divisor.numel() == 1 and float(divisor) == accumulated
        if by_batches:
            node = node.next_functions[0][0]
    return _reduction(node)


def _reduction(node: Any) -> Reduction | None:
    if node is None:
        return None
    name = str(node.name())
    if name.startswith("AddBackward"):
        terms = [child for child, _ in node.next_functions if child is not None]
        found = {_reduction(term) for term in terms}
        return found.pop() if len(found) == 1 else None
    for prefix, reduction in (("MeanBackward", "mean"), ("SumBackward", "sum")):
        if name.startswith(prefix):
            child = node.next_functions[0][0]
            made = str(child.name()) if child is not None else ""
            untold = _UNTOLD if reduction == "sum" else _UNTOLD[:2]
            return None if made.startswith(untold) else reduction  # type: ignore[return-value]
    return _REDUCTIONS.get(getattr(node, "_saved_reduction", None))


# --- Detects processes that draw the same noise.

#: Number of steps that are compared, from the first on.
STEPS = 3


class NoiseDraws:
    """Digests of the draws of one process's noise generator in the first steps."""

    def __init__(self) -> None:
        #: Digest of each step's draws, equal for equal draws; 0 if nothing was drawn.
        self.numbers = [0] * STEPS
        self._before: str | None = None

    def start(self, state: str | None) -> None:
        """Store the generator's state before clipping and noise; None if unknown."""
        self._before = state

    def end(self, step: int, state: str | None) -> None:
        """Compute the digest of a step from the generator's state after its noise."""
        before, self._before = self._before, None
        if step < STEPS and before is not None and state is not None and state != before:
            self.numbers[step] = zlib.crc32(f"{before} {state}".encode()) or 1


def equal_draws(told: Sequence[Sequence[int]]) -> bool:
    """Return whether two processes drew the same noise in a step.

    Args:
        told: `NoiseDraws.numbers` of each process.
    """
    drawn = ([number for number in numbers if number] for numbers in zip(*told, strict=True))
    return any(len(set(of_step)) < len(of_step) for of_step in drawn)


# --- Tests whether the steps' noise follows an Opacus scheduler, stepped every n steps.

_KNOWN = (ExponentialNoise, LambdaNoise, StepNoise)


def changes_of_noise(runs: Iterable[Phase]) -> list[tuple[float, int]]:
    """Return consecutive noise multipliers, each with its number of steps.

    Args:
        runs: phases of equal steps, in order.
    """
    by_noise = groupby(runs, key=lambda phase: phase.noise_multiplier)
    return [(sigma, sum(phase.steps for phase in phases)) for sigma, phases in by_noise]


def follows_a_scheduler(changes: Sequence[tuple[float, int]], optimizer: Any) -> bool:
    """Return whether a scheduler gives the noise of all steps from the number of steps alone.

    Subclasses of Opacus' schedulers are not accepted, since they may use other data. The function
    of a `LambdaNoise` is evaluated again and must return the same values.

    Args:
        changes: noise multipliers in order, each with its number of steps.
        optimizer: the private optimizer.
    """
    own = {id(each) for each in chain(optimizer)}
    # `type`, not `isinstance`: a proxy may imitate the class of its object.
    known = [each for each in gc.get_objects() if type(each) in _KNOWN]
    return any(_follows(changes, each) for each in known if id(each.optimizer) in own)


def _follows(changes: Sequence[tuple[float, int]], scheduler: Any) -> bool:
    try:
        planned = _planned(scheduler, changes[0][0])
    except Exception as error:  # raised by the user's function
        if raised_in_audit(error):
            raise
        return False
    taken = [sigma for sigma, number in changes for _ in range(number)]
    first = next((n for n, sigma in enumerate(planned) if sigma != planned[0]), 0)
    each, rest = divmod(changes[0][1], first) if first else (0, 1)
    if rest:
        return False
    return taken == [planned[n // each] for n in range(min(len(taken), len(planned) * each))]


def _planned(scheduler: Any, first: float) -> list[float]:
    """Return the noise multipliers that a scheduler has set so far, in order."""
    numbers = range(scheduler.last_epoch + 1)
    if type(scheduler) is LambdaNoise:
        return [scheduler.base_noise_multiplier * scheduler.noise_lambda(n) for n in numbers]
    every = scheduler.step_size if type(scheduler) is StepNoise else 1
    planned = [first]
    for number in numbers[1:]:
        planned.append(planned[-1] * (1.0 if number % every else scheduler.gamma))
    return planned


# --- Detects changes of parameters that no private optimizer trains.


def fingerprints(
    module: torch.nn.Module, trained: Iterable[torch.nn.Parameter]
) -> dict[str, tuple[float, float]]:
    """Return two sums of every parameter that no private optimizer trains, to detect changes.

    Returns:
        Parameter name -> (sum, sum of absolute values).
    """
    known = {id(p) for p in trained}
    with torch.no_grad():
        return {
            name: (float(p.double().sum()), float(p.double().abs().sum()))
            for name, p in module.named_parameters()
            if id(p) not in known
        }


# --- Detects batches without a step: empty ones, and others at irregular intervals.

SKIPPED = (
    "empty batches were skipped: Poisson sampling sometimes draws no record, and the accountant "
    "assumes a step with only noise then; skipping the step reveals that the batch was empty. Step "
    "on such batches too, as Opacus' loader and optimizer do"
)


class LeftOutBatches:
    """Detector of batches without a step.

    Within an epoch a step is taken on every batch, or on every k-th one if gradients are
    accumulated or several optimizers alternate. The first and the last interval of an epoch may be
    shorter. Intervals that contain an empty batch are not tested.
    """

    def __init__(self) -> None:
        #: Whether non-empty batches were left out at irregular intervals.
        self.irregular = False
        #: Whether an empty batch was left out, and no non-empty batch before it was.
        self.empty = False
        self._once_a_batch = True
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset at the start of an epoch, which may have another interval."""
        self._distance: int | None = None
        # Number of batches up to the first step's, 0 if unknown; number since the last step.
        self._first, self._batches = 0, 0
        self._begins, self._unsure, self._early = True, False, False

    @property
    def regular(self) -> bool:
        """Whether every recent batch made a step, so that one more changes no state."""
        return self._distance == 1 and not (self._batches or self._begins or self._unsure)

    def take(self, batch: Any, *, stepped: bool) -> None:
        """Update after a batch was trained on.

        Args:
            batch: the batch.
            stepped: whether it made a step.
        """
        if not stepped and is_empty(batch):
            self.empty |= self._once_a_batch
            self._unsure = True
            return
        self._once_a_batch &= stepped
        self._batches += 1
        if not (self._begins or self._unsure):
            late = self._distance is not None and self._batches >= self._distance + stepped
            self.irregular |= self._early or late
        if not stepped:
            return
        if self._begins:
            self._first = 0 if self._unsure else self._batches
        elif not self._unsure:
            self._distance = self._distance or self._batches
            self._early = self._batches < self._distance
            self.irregular |= self._first > self._distance
        self._batches, self._begins, self._unsure = 0, False, False


def is_empty(batch: Any) -> bool:
    """Return whether the tensors of a batch contain no sample."""
    tensors = [x for x in _pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    return bool(tensors) and all(len(tensor) == 0 for tensor in tensors)


# --- Finds duplicate records of a data set, by their indices or by their contents.

#: Largest size of a data set whose contents are compared, in bytes.
_BYTES = 200_000_000


def repeated_indices(data: Any, items: int = 1) -> int | None:
    """Return the number of duplicate records of a data set by their indices.

    Args:
        items: how often each record may be in it.
        data: a data set of any kind; torch's `Subset` and `ConcatDataset` are resolved.

    Returns:
        The number of entries in excess of ``items`` a record; None if it cannot be determined.
    """
    try:
        places = _places(data)
    except (TypeError, AttributeError, NotImplementedError):
        return None
    total = 0
    by_base: dict[int, list[np.ndarray[Any, Any]]] = {}
    for base, indices in places:
        by_base.setdefault(id(base), []).append(indices)
    for parts in by_base.values():
        counts = np.unique(np.concatenate(parts), return_counts=True)[1]
        total += int(np.maximum(counts - items, 0).sum())
    return total


def _places(data: Any) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    """Return the underlying data sets, each with the indices that are used."""
    if type(data) is Subset:
        chosen = np.asarray(list(data.indices), dtype=np.int64)
        found, start = [], 0
        for base, indices in _places(data.dataset):
            inside = chosen[(chosen >= start) & (chosen < start + len(indices))] - start
            found.append((base, indices[inside]))
            start += len(indices)
        return found
    if type(data) is ConcatDataset:
        return [place for part in data.datasets for place in _places(part)]
    return [(data, np.arange(len(data)))]


def repeated_contents(data: Any) -> int | None:
    """Return the number of duplicate records by their contents; None if it is unknown.

    Args:
        data: a data set; only a `TensorDataset` is read.
    """
    if type(data) is not TensorDataset:
        return None
    tensors = [t.detach().cpu() for t in data.tensors]
    if sum(t.numel() * t.element_size() for t in tensors) > _BYTES or not len(data):
        return None
    rows = [_bytes(t) for t in tensors]
    sums = np.add.reduce([_sums(of_one) for of_one in rows])
    _, place, counts = np.unique(sums, return_inverse=True, return_counts=True)
    alike = counts[place] > 1  # all others are distinct
    if not alike.any():
        return 0
    joined = np.ascontiguousarray(np.concatenate([of_one[alike] for of_one in rows], axis=1))
    kinds = joined.view(np.dtype((np.void, joined.shape[1]))).ravel()
    return len(kinds) - len(np.unique(kinds))


def _sums(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a hash of each row of bytes, ``[n]``, in a twentieth of the time to sort them."""
    whole = rows.shape[1] // 8 * 8
    words = rows[:, :whole].view(np.uint64)
    rest = rows[:, whole:].astype(np.uint64)
    factors = np.random.default_rng(0).integers(
        2**64, size=words.shape[1] + rest.shape[1], dtype=np.uint64
    )
    return np.asarray(words @ factors[: words.shape[1]] + rest @ factors[words.shape[1] :])


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    flat = tensor.reshape(len(tensor), -1).contiguous()
    return flat.view(torch.uint8).numpy() if flat.shape[1] else np.zeros((len(flat), 0), np.uint8)
