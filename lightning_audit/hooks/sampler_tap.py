"""Observes the batches that a sampler draws and that steps use, without changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree
from torch.utils.data import DataLoader

from lightning_audit.hooks.boundary import Handles, entry

# --- Identifies the batches that a training's steps use, from the inputs of its layers.

#: Rows and values per row in a batch's digest; fewest distinct rows for which it is computed.
_ROWS, _VALUES, _FEWEST = 16, 32, 8
#: Largest number of batches whose digests are stored.
_REMEMBERED = 2**14


class BatchUse:
    """Counts steps on a batch that an earlier step used and the loader did not yield again.

    Layer inputs are compared with the loader's batches by a digest of some rows, in memory only. An
    input counts if a backward pass goes through its layer. A batch that is changed before the
    layers (augmented, cast) is not recognized and not counted.
    """

    def __init__(self) -> None:
        #: Number of steps whose batch was recognized, and number of steps on an earlier batch.
        self.recognised, self.stale = 0, 0
        #: Number of steps since the present batch began whose batch was recognized.
        self.of_batch = 0
        #: Number of batches that the loader yielded again.
        self.regiven = 0
        #: Number of the batch at which the first step on an earlier batch was taken.
        self.first: int | None = None
        # By digest: number of the batch when last yielded, and when a step last used it.
        self._given: dict[int, int] = {}
        self._used: dict[int, int] = {}
        # Digests of whole batches, of their tensors, and of constants, which differing ones have.
        self._wholes: set[int | None] = set()
        self._seen: set[int] = set()
        self._shared: set[int] = set()
        self._pending: set[int] = set()
        self._number = 0
        #: Tensors of the batch that were looked at: themselves, digest, digest of the order.
        self._looks: dict[Any, tuple[torch.Tensor, int | None, int | None]] = {}
        self._modules: set[int] = set()
        self._counts: Callable[[], bool] = lambda: True
        self._handles = Handles()

    @property
    def watches(self) -> bool:
        """Whether hooks are registered."""
        return bool(self._handles)

    def attach(
        self,
        modules: Iterable[torch.nn.Module],
        inner: Iterable[torch.optim.Optimizer],
        counts: Callable[[], bool] = lambda: True,
    ) -> None:
        """Register hooks on the modules' inputs and on the optimizers that update them.

        Args:
            modules: modules whose inputs are compared with the batches.
            inner: the optimizers.
            counts: returns whether the training itself runs now, not a replay of a step.
        """
        self.detach()
        self._counts = counts
        self._modules = {id(module) for module in modules}
        # A global hook: a module's own hook would be copied and saved with the user's module.
        self._handles = Handles()
        see = entry(self._see)

        def behind(module: torch.nn.Module, *seen: Any) -> None:
            if not torch.compiler.is_compiling():  # in a compiled module a hook is no graph break
                see(module, *seen)

        self._handles.append(register_module_forward_hook(behind, with_kwargs=True))
        for one in inner:
            self._handles.append(one.register_step_post_hook(entry(self._step)))

    def detach(self) -> None:
        """Unregister the hooks."""
        self._handles.remove()
        self._pending.clear()

    def start_batch(self, batch: Any, number: int) -> None:
        """Store the digests of a batch before it is trained on.

        Args:
            batch: the batch as the loader yielded it.
            number: number of the batch.
        """
        self._number, self._looks, self.of_batch = number, {}, 0
        looks = [self._look(leaf) for leaf in _pytree.tree_leaves(batch)]
        tensors = {content: order for content, order in looks if content is not None}
        if len(self._given) >= _REMEMBERED:
            tensors = {one: order for one, order in tensors.items() if one in self._given}
        if not tensors:
            return
        orders = {order for order in tensors.values() if order is not None}
        whole = None if any(order is None for _, order in looks) else hash(tuple(looks))
        if whole is not None and whole in self._wholes:
            self.regiven += not orders <= self._shared
        elif len(self._wholes) < _REMEMBERED:  # a constant is in each batch
            self._shared |= orders & self._seen
            self._wholes.add(whole)
            self._seen |= orders
        self._given.update(dict.fromkeys(tensors, number))

    def _see(self, module: torch.nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        if id(module) not in self._modules or not (torch.is_grad_enabled() and self._counts()):
            return
        contents = (self._look(leaf)[0] for leaf in _pytree.tree_leaves((args, kwargs)))
        seen = {content for content in contents if content in self._given}
        if not seen:
            return

        def used(_: torch.Tensor) -> None:
            self._pending.update(c for c in seen if c is not None)

        hook = entry(used)
        for leaf in _pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(hook)  # type: ignore[no-untyped-call]

    def _look(self, leaf: Any) -> tuple[int | None, int | None]:
        """Return the digests of a leaf, read once while it does not change."""
        if not isinstance(leaf, torch.Tensor):
            return digests_of(leaf)
        if leaf.grad_fn is not None:
            return None, None  # computed in the forward pass: no batch
        try:
            key = (id(leaf), leaf.data_ptr(), leaf._version)
        except (RuntimeError, NotImplementedError):  # under vmap, sparse, in inference mode
            return digests_of(leaf)
        held = self._looks.get(key)
        if held is None or held[0] is not leaf:
            held = self._looks[key] = (leaf, *digests_of(leaf))
        return held[1], held[2]

    def _step(self, *_: Any) -> None:
        if not (self._pending and self._counts()):
            return
        self.recognised, self.of_batch = self.recognised + 1, self.of_batch + 1
        # An earlier batch's step used it, and the loader has not yielded it since.
        if any(self._given[c] <= self._used.get(c, -1) < self._number for c in self._pending):
            self.stale += 1
            self.first = self._number if self.first is None else self.first
        self._looks = {}
        self._used.update(dict.fromkeys(self._pending, self._number))
        self._pending.clear()


def digests_of(leaf: Any) -> tuple[int | None, int | None]:
    """Return a digest of a leaf's first rows, None if too few are distinct, and one of their order.

    The second is None for a leaf that cannot be read, such as a sparse tensor.
    """
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biuf":
        leaf = torch.as_tensor(leaf)
    if not isinstance(leaf, torch.Tensor):
        plain = leaf is None or isinstance(leaf, str | bytes | int | float)
        return None, hash(leaf) if plain else None
    try:
        rows = _rows_of(leaf)
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, quantised, meta
        return None, None
    each, order = set(rows), hash((tuple(leaf.shape), *rows))
    many = leaf.ndim > 1 and len(each) >= _FEWEST
    return (hash((len(each), frozenset(each))) if many else None), order


def _rows_of(leaf: torch.Tensor) -> list[bytes]:
    if leaf.is_complex():
        leaf = torch.view_as_real(leaf.resolve_conj())
    rows = leaf.detach()[:_ROWS] if leaf.ndim else leaf.detach()[None]
    rows = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    rows = rows[:, :: max(rows.shape[1] // _VALUES, 1)].cpu().double().contiguous()
    return [row.tobytes() for row in rows.numpy()]


# --- Observes the batches of a loader's sampler, without changing them or their randomness.


class WatchedSampler:
    """Proxy of a batch sampler with the same type and attributes.

    Args:
        sampler: the batch sampler.
        start: called when the first batch of a pass is drawn.
        seen: called with each batch, before the loader gets it.
    """

    def __init__(
        self, sampler: Any, start: Callable[[], None], seen: Callable[[Any], None]
    ) -> None:
        own = vars(self)

        def look(batch: Any) -> Any:
            if own["_begins"]:
                own["_begins"] = False
                start()
            seen(batch)
            return batch

        own.update(_watched=sampler, _begins=False, _look=entry(look, lambda batch: batch))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance`, as in Opacus, sees the sampler's type
        return type(self._watched)

    def __iter__(self) -> Iterator[Any]:
        # Some samplers draw their order here; their exceptions are the user's.
        batches = iter(self._watched)
        vars(self)["_begins"] = True
        return map(vars(self)["_look"], batches)

    def __len__(self) -> int:
        return len(self._watched)

    def __getattr__(self, name: str) -> Any:
        if "_watched" not in vars(self):  # during copying
            raise AttributeError(name)
        return getattr(vars(self)["_watched"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._watched, name, value)


def unwatched(sampler: Any) -> Any:
    """Return the sampler of a `WatchedSampler`, or any other sampler unchanged."""
    return vars(sampler)["_watched"] if type(sampler) is WatchedSampler else sampler


class SamplerTap:
    """Observes the logical batches of a loader, until it is removed.

    If Opacus splits them into physical batches, the inner sampler is observed. Samplers run in the
    main process, ahead of the training if workers load the records.

    Args:
        loader: a torch loader with a batch sampler.
        start: called when the first batch of a pass is drawn.
        seen: called with each batch.
    """

    def __init__(
        self, loader: DataLoader[Any], start: Callable[[], None], seen: Callable[[Any], None]
    ) -> None:
        self._holder: Any = loader
        self._name = "batch_sampler"
        if isinstance(loader.batch_sampler, BatchSplittingSampler):
            self._holder, self._name = loader.batch_sampler, "sampler"
        self._own = unwatched(getattr(self._holder, self._name))
        # An initialized DataLoader rejects a new sampler; this one draws the same batches.
        self._handles = Handles()
        self._handles.append(self)
        self._put(WatchedSampler(self._own, start, seen))

    def remove(self) -> None:
        """Restore the loader's own sampler."""
        self._put(self._own)
        self._handles.forget()

    def _put(self, sampler: Any) -> None:
        object.__setattr__(self._holder, self._name, sampler)


def can_be_watched(loader: Any) -> bool:
    """Return whether this is a torch loader with a batch sampler and a data set of known size."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return False
    try:
        return len(loader.dataset) > 0  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return False
