"""Batches as trees of tensors: cutting one sample out of a batch, and appending one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit._validate import BadArgument


@dataclass(frozen=True)
class Sample:
    """One sample in the form of a batch: every tensor has one row.

    Args:
        leaves: The tensors, ``[1, ...]``.
        structure: The containers around them.
        input_at: Position of the input among the leaves.
        label_at: Position of the label; None if there is none.
    """

    leaves: tuple[torch.Tensor, ...]
    structure: Any
    input_at: int
    label_at: int | None

    @property
    def batch(self) -> Any:
        """The sample in the containers of a batch."""
        return _pytree.tree_unflatten(list(self.leaves), self.structure)

    @property
    def input(self) -> torch.Tensor:
        """The input, ``[1, ...]``."""
        return self.leaves[self.input_at]

    @property
    def label(self) -> torch.Tensor | None:
        """The label, ``[1]``."""
        return None if self.label_at is None else self.leaves[self.label_at]

    def with_input(self, value: torch.Tensor) -> Sample:
        """Return the sample with another input."""
        return self._with(self.input_at, value)

    def with_label(self, value: int) -> Sample:
        """Return the sample with another label; it must have one."""
        assert self.label_at is not None
        return self._with(self.label_at, torch.full_like(self.leaves[self.label_at], value))

    def _with(self, at: int, value: torch.Tensor) -> Sample:
        return replace(self, leaves=(*self.leaves[:at], value, *self.leaves[at + 1 :]))


def rows(batch: Any) -> int:
    """Return the number of samples of a batch: the first dimension that all its tensors have.

    Raises:
        ValueError: If the batch holds anything but tensors with the samples first, in tuples,
            lists, dicts or named tuples.
    """
    return _rows(_named_leaves(batch))


def leaves(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch; arguments and errors are those of `rows`."""
    return [tensor for _, tensor in _named_leaves(batch)]


def sample_of(batch: Any, row: int, input_name: str | None, label_name: str | None) -> Sample:
    """Cut one sample out of a batch.

    Args:
        batch: As in `rows`.
        row: Index of the sample.
        input_name: Position of the input, such as ``"0"`` or ``"image"`` or ``"views.0"``; None for
            the first floating-point tensor, or the first one.
        label_name: Position of the label; None for the last tensor with one whole number per
            sample.

    Returns:
        A copy of the sample.

    Raises:
        ValueError: If the batch holds anything else, or no tensor of that name.
    """
    leaves = _named_leaves(batch)
    _rows(leaves)
    names = [name for name, _ in leaves]
    tensors = [tensor for _, tensor in leaves]
    input_at = _found(names, "input", input_name)
    if input_at is None:
        floating = [i for i, tensor in enumerate(tensors) if tensor.is_floating_point()]
        input_at = (floating or [0])[0]
    label_at = _found(names, "label", label_name)
    if label_at is None:
        labels = [i for i, t in enumerate(tensors) if i != input_at and _is_label(t)]
        label_at = labels[-1] if labels else None
    own = tuple(tensor[row : row + 1].detach().clone() for tensor in tensors)
    return Sample(own, _pytree.tree_structure(batch), input_at, label_at)


def appended(batch: Any, sample: Sample) -> Any:
    """Return a new batch with the sample appended; ``batch`` does not change.

    The new batch is one row longer, in the same containers.

    Raises:
        ValueError: If the batch has another structure than the sample.
    """
    tensors = [tensor for _, tensor in _named_leaves(batch)]
    if _pytree.tree_structure(batch) != sample.structure:
        raise BadArgument(
            "a batch has other containers than the batch from which the canary was made; return "
            "the same kind of batch from collate_fn at every step."
        )
    longer: list[Any] = []
    for tensor, own in zip(tensors, sample.leaves, strict=True):
        if tensor.shape[1:] != own.shape[1:]:
            raise BadArgument(
                f"a batch holds samples of shape {tuple(tensor.shape[1:])}, the canary has "
                f"{tuple(own.shape[1:])}; pad all samples to one shape to use an input canary."
            )
        longer.append(torch.cat([tensor, own.to(tensor)]))
    return _pytree.tree_unflatten(longer, sample.structure)


def copies(batch: Any) -> tuple[Any, Any, int]:
    """Return two batches of the same size with copies of the first sample.

    The second batch keeps the samples whose index has an even number of ones in binary. So every
    other sample, every fourth and so on includes both kinds, as does any three in a row.

    Batch and errors are those of `rows`.

    Returns:
        A batch of copies alone; one in which about half of the samples are copies; and the number
        of copies in the second. New tensors in the same containers.
    """
    size = rows(batch)
    mixed = [row if row.bit_count() % 2 == 0 else 0 for row in range(size)]
    return taken(batch, [0] * size), taken(batch, mixed), mixed.count(0)


def taken(batch: Any, chosen: Sequence[int]) -> Any:
    """Return the chosen samples of a batch, in the given order.

    Args:
        batch: Tensors with the samples first, in tuples, lists, dicts or named tuples.
        chosen: Indices of samples; an index may repeat.

    Returns:
        New tensors in the same containers.

    Raises:
        ValueError: If the batch holds anything else.
    """
    index = torch.tensor(list(chosen), dtype=torch.long)
    tensors = [tensor[index.to(tensor.device)] for tensor in leaves(batch)]
    return _pytree.tree_unflatten(tensors, _pytree.tree_structure(batch))


def _is_label(tensor: torch.Tensor) -> bool:
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.dim() == 1 and whole and tensor.dtype != torch.bool


def _found(names: Sequence[str], argument: str, name: str | None) -> int | None:
    if name is None:
        return None
    if name not in names:
        raise BadArgument(
            f"{argument}={name!r} must name a tensor of the batch, one of {list(names)}."
        )
    return names.index(name)


def _named_leaves(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a batch with their keys, joined by dots."""
    leaves = []
    for path, leaf in _pytree.tree_flatten_with_path(batch)[0]:
        name = ".".join(_key(key) for key in path)
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            where = f" at {name!r}" if name else ""
            kind = "a tensor without dimensions" if isinstance(leaf, torch.Tensor) else _kind(leaf)
            raise BadArgument(
                f"the batch holds {kind}{where}; an input canary needs tensors with the samples "
                "first, in tuples, lists, dicts or named tuples: return these from collate_fn, or "
                "make the container known with torch.utils._pytree.register_pytree_node."
            )
        leaves.append((name, leaf))
    if not leaves:
        raise BadArgument(
            f"the batch, {_kind(batch)}, holds no tensor; return one from collate_fn."
        )
    return leaves


def _rows(leaves: Sequence[tuple[str, torch.Tensor]]) -> int:
    sizes = {name: len(tensor) for name, tensor in leaves}
    if len(set(sizes.values())) != 1:
        raise BadArgument(
            f"the batch's tensors have first dimensions {sizes}, which must be one number, that of "
            "the samples; move everything else out of the batch to use an input canary."
        )
    return next(iter(sizes.values()))


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def _key(key: Any) -> str:
    match key:
        case _pytree.SequenceKey(idx=name) | _pytree.GetAttrKey(name=name):
            return str(name)
        case _pytree.MappingKey(key=name):
            return str(name)
    return str(key)
