"""Which batches the steps of a training use, recognised where its layers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree

from lightning_audit.taps.boundary import Handles, entry

#: Rows by which a batch is recognised, and values of each; of fewer different rows nothing is told.
_ROWS, _VALUES, _FEWEST = 16, 32, 8
#: Batches that are remembered.
_REMEMBERED = 2**14


class BatchUse:
    """Counts steps on batches that an earlier batch's step had used, and no loader gave again.

    What layers see is compared with what the loader gave by a digest of some rows, in memory alone.
    It counts where a backward pass goes through these layers. A batch that is changed on its way
    (augmented, cast) is not recognised, and says nothing.
    """

    def __init__(self) -> None:
        #: Steps whose batch was recognised; those on a batch of before, and the number of the batch
        #: at which the first of them was taken.
        self.recognised, self.stale = 0, 0
        #: Batches that came to the training again.
        self.regiven = 0
        self.first: int | None = None
        # By digest: the batch as which it was given last, and that at which a step used it last.
        self._given: dict[int, int] = {}
        self._used: dict[int, int] = {}
        # By digest: the rows' order when it was given first.
        self._orders: dict[int, int] = {}
        self._pending: set[int] = set()
        self._number = 0
        self._modules: set[int] = set()
        self._counts: Callable[[], bool] = lambda: True
        self._handles = Handles()

    @property
    def watches(self) -> bool:
        """Whether hooks are on."""
        return bool(self._handles)

    def attach(
        self,
        modules: Iterable[torch.nn.Module],
        inner: Iterable[torch.optim.Optimizer],
        counts: Callable[[], bool] = lambda: True,
    ) -> None:
        """Watch what modules are given, and the optimizers that update them.

        Args:
            modules: of which the input is compared with the batches.
            inner: the optimizers.
            counts: whether what happens now is training, and no replay of it.
        """
        self.detach()
        self._counts = counts
        self._modules = {id(module) for module in modules}
        # For all modules: a hook of one's own would be copied and saved with the user's module.
        self._handles = Handles()
        self._handles.append(register_module_forward_hook(entry(self._see), with_kwargs=True))
        for one in inner:
            self._handles.append(one.register_step_post_hook(entry(self._step)))

    def detach(self) -> None:
        """Take the hooks off."""
        self._handles.remove()
        self._pending.clear()

    def start_batch(self, batch: Any, number: int) -> None:
        """A batch is about to be trained.

        Args:
            batch: as the loader gave it.
            number: of the batch.
        """
        self._number = number
        again = False
        for leaf in _pytree.tree_leaves(batch):
            content = content_of(leaf)
            if content is not None and (content in self._given or len(self._given) < _REMEMBERED):
                again |= content in self._given and self._orders.get(content) == _order_of(leaf)
                self._orders.setdefault(content, _order_of(leaf))
                self._given[content] = number
        self.regiven += again

    def _see(self, module: torch.nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        if id(module) not in self._modules or not (torch.is_grad_enabled() and self._counts()):
            return
        contents = (content_of(leaf) for leaf in _pytree.tree_leaves((args, kwargs)))
        seen = {content for content in contents if content in self._given}
        if not seen:
            return

        def used(_: torch.Tensor) -> None:
            self._pending.update(c for c in seen if c is not None)

        hook = entry(used)
        for leaf in _pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(hook)  # type: ignore[no-untyped-call]

    def _step(self, *_: Any) -> None:
        if not (self._pending and self._counts()):
            return
        self.recognised += 1
        # A step of another batch used it, and since then the loader did not give it again.
        if any(self._given[c] <= self._used.get(c, -1) < self._number for c in self._pending):
            self.stale += 1
            self.first = self._number if self.first is None else self.first
        self._used.update(dict.fromkeys(self._pending, self._number))
        self._pending.clear()


def content_of(leaf: Any) -> int | None:
    """A digest of a batch's first rows; None where they are too few, or too alike, to tell it."""
    if not isinstance(leaf, torch.Tensor) or leaf.ndim < 2 or leaf.is_complex():
        return None
    try:
        if len(leaf) < _FEWEST:
            return None
        each = set(_rows_of(leaf))
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, quantised, meta
        return None
    return hash((len(each), frozenset(each))) if len(each) >= _FEWEST else None


def _order_of(leaf: torch.Tensor) -> int:
    """A digest of the first rows in their order, and of the number of all."""
    return hash((len(leaf), *_rows_of(leaf)))


def _rows_of(leaf: torch.Tensor) -> list[bytes]:
    rows = leaf.detach()[:_ROWS].flatten(1)
    rows = rows[:, :: max(rows.shape[1] // _VALUES, 1)].cpu().double().contiguous()
    return [row.tobytes() for row in rows.numpy()]
