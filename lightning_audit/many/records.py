"""Records of an audit over many trainings: data sets, canaries, clipped sums, the default score."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown

# --- Data sets as sequences of records, in the forms that a training may take them.

_FORMS = (
    "a tuple of arrays or tensors with one row a record, such as (inputs, targets), a torch "
    "TensorDataset or other map-style Dataset, or a list of records"
)


class Records:
    """A data set as a sequence of records, which makes data sets of the same form.

    Args:
        data: a tuple of arrays or tensors with one row a record, a `TensorDataset`, any other data
            set with ``__len__`` and ``__getitem__``, or a list of records.

    Raises:
        BadArgument: if ``data`` has another form, or is empty.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._columns = columns_of(data)
        if self._columns is None and not (
            hasattr(data, "__len__") and hasattr(data, "__getitem__")
        ):
            raise BadArgument(
                f"dataset={shown(data)} must be {_FORMS}; or give both data sets: "
                "dataset=Neighbors(without, with_canary)."
            )
        if len(self) == 0:
            raise BadArgument("dataset has no record; give at least one.")

    def __len__(self) -> int:
        return len(self.data if self._columns is None else self._columns[0])

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        if self._columns is None:
            return self.data[index]
        return tuple(column[index] for column in self._columns)

    def labeled(self, index: int) -> tuple[Any, Any]:
        """Return inputs and target of a record.

        Raises:
            BadArgument: if the record is no pair of an array and a class.
        """
        record = self[index] if -len(self) <= index < len(self) else None
        if not (isinstance(record, tuple | list) and len(record) == 2):
            raise BadArgument(
                f"record {index} of the {len(self):,} of dataset is {shown(record)} and no pair of "
                "inputs and class; give the canary as ChosenRecord(record)."
            )
        return record[0], record[1]

    def like(self, index: int, inputs: Any, target: Any) -> Any:
        """Return a record with the types of record ``index``."""
        old = self.labeled(index)[1]
        if hasattr(old, "dtype"):
            target = self.as_inputs(np.asarray(int(target)), old)
        return (inputs, target)

    def as_inputs(self, values: Any, like: Any) -> Any:
        """Return an array as the type of ``like``: a tensor or an array of its dtype."""
        if isinstance(like, Tensor):
            return torch.as_tensor(values, dtype=like.dtype).to(like.device)
        return np.asarray(values, dtype=like.dtype if hasattr(like, "dtype") else None)

    def rearranged(self, rows: ArrayLike, others: Sequence[Any] = ()) -> Any:
        """Return the data set of some records, in the form of this one.

        Args:
            rows: for each record its position, or ``~i`` for the i-th of the others, ``[n]``.
            others: records that are not in this data set.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        if self._columns is None:
            view = Rearranged(self.data, chosen, tuple(others))
            whole = isinstance(self.data, list)
            return [view[place] for place in range(len(view))] if whole else view
        chosen = np.where(chosen < 0, len(self) + ~chosen, chosen)
        columns = tuple(
            _with_rows(column, [record[place] for record in others])[chosen]
            for place, column in enumerate(self._columns)
        )
        return columns if isinstance(self.data, tuple) else type(self.data)(*columns)


@dataclass(frozen=True, eq=False)
class Rearranged:
    """Some records of a data set, and others.

    Args:
        data: the data set.
        rows: for each record its position, or ``~i`` for the i-th of the others, ``[n]``.
        others: the others.
    """

    data: Any
    rows: NDArray[np.int64]
    others: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        row = int(self.rows[int(index)])
        return self.data[row] if row >= 0 else self.others[~row]


def columns_of(data: Any) -> tuple[Any, ...] | None:
    """Return the columns of a data set of arrays; None if it is none."""
    if isinstance(data, TensorDataset):
        return tuple(data.tensors)
    if not isinstance(data, tuple):
        return None
    arrays = all(getattr(column, "shape", ()) != () for column in data)
    if not data or not arrays or len({len(column) for column in data}) != 1:
        raise BadArgument(
            f"dataset={shown(data)} is a tuple, and its entries must be arrays or tensors with one "
            "row a record and equal lengths; give a list for a list of records."
        )
    return data


def _array(values: Any) -> NDArray[Any]:
    """Return an array or a tensor of any device as an array."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _with_rows(column: Any, new: list[Any]) -> Any:
    """Return a column with rows at its end, in its type."""
    if isinstance(column, Tensor):
        rows = [torch.as_tensor(row, dtype=column.dtype, device=column.device)[None] for row in new]
        return torch.cat([column, *rows])
    return np.concatenate([column, *(np.asarray(row, dtype=column.dtype)[None] for row in new)])


# --- Sums of clipped per-sample gradients of many models of one architecture at once.

#: Tensors of m models by name, each ``[m, ...]``.
Stacked = dict[str, Tensor]
#: Function of (outputs, targets) of a batch that returns the mean loss of its records.
Loss = Callable[[Tensor, Tensor], Tensor]

#: Opacus adds it to a norm before it divides by the norm.
_SMALL = 1e-6
#: Modules that map each number of a record by itself, without parameters or random numbers.
_ELEMENTWISE = (
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.ReLU,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)


class ClippedSums(Protocol):
    """Computes the sums of clipped gradients of m models, each on a batch of its own.

    Attributes:
        numbers: numbers that are in memory for each record of a batch of one model.
    """

    numbers: int

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums, each ``[m, ...]`` as in ``trained``.

        Args:
            trained: trained parameters.
            fixed: other parameters and buffers.
            inputs: batches, ``[m, b, ...]``.
            targets: ``[m, b, ...]``.
            counts: 1 for a record of the batch and 0 for padding, ``[m, b]``.
        """


def clipped_sums(model: nn.Module, loss: Loss | None, max_grad_norm: float) -> ClippedSums:
    """Return what computes the sums for models like this one.

    Args:
        model: a stack of linear layers with elementwise activations between them, whose norms are
            computed without the gradients; any other model gets per-sample gradients.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """
    layers = linear_stack(model)
    if layers is None:
        return PerSampleSums(model, loss, max_grad_norm)
    return GhostSums(layers, loss, max_grad_norm)


def linear_stack(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the modules of a stack of linear layers, each with the prefix of its tensors' names.

    Returns:
        None if the model is something else: a module of another kind, a layer that is used twice,
        parameters that are not trained, hooks, or an activation that works in place.
    """
    modules = list(_flat(model, ""))
    linear = [module for _, module in modules if type(module) is nn.Linear]
    plain = all(
        type(module) is nn.Linear
        or (type(module) in _ELEMENTWISE and not getattr(module, "inplace", False))
        or (index == 0 and _flattens(module))
        for index, (_, module) in enumerate(modules)
    )
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    trained = all(parameter.requires_grad for parameter in model.parameters())
    owned = {id(parameter) for parameter in model.parameters()}
    used = [parameter for module in linear for parameter in module.parameters()]
    once = len(used) == len(owned)  # also if two layers share a tensor
    return modules if linear and plain and once and trained and not hooked else None


def _flat(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module._modules.items():
        if child is not None:
            yield from _flat(child, f"{prefix}{name}.")


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def _factors(squared: Tensor, counts: Tensor, max_grad_norm: float) -> Tensor:
    """Return what each record's gradient is multiplied by, from its squared norm."""
    return (max_grad_norm / (squared.sqrt() + _SMALL)).clamp(max=1.0) * counts


class GhostSums:
    """Sums of clipped gradients of stacks of linear layers, without per-sample gradients.

    The gradient of a layer for one record is the outer product of the gradient d of the layer's
    output and of its input a. Its squared norm is ``|d|^2 |a|^2``, and with a bias
    ``|d|^2 (|a|^2 + 1)`` (Goodfellow, arXiv:1510.01799). The clipped sum is one product of
    matrices a layer.

    Args:
        layers: as `linear_stack` returns them.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """

    def __init__(
        self, layers: list[tuple[str, nn.Module]], loss: Loss | None, max_grad_norm: float
    ) -> None:
        self._layers, self._loss, self._norm = layers, loss, max_grad_norm
        linear = [module for _, module in layers if isinstance(module, nn.Linear)]
        self.numbers = sum(layer.in_features + 2 * layer.out_features for layer in linear)

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums; see `ClippedSums`."""
        with torch.enable_grad():
            seen, outputs, result = self._forward(trained, inputs)
            total = self._total(result.flatten(0, 1), targets.flatten(0, 1))
            gradients = torch.autograd.grad(total, outputs)
        squared = torch.zeros_like(counts)
        for (name, values), gradient in zip(seen, gradients, strict=True):
            norms = values.square().sum(-1)
            if f"{name}bias" in trained:
                norms = norms + 1.0
            squared += gradient.square().sum(-1) * norms
        factors = _factors(squared, counts, self._norm)[..., None]
        sums = {}
        for (name, values), gradient in zip(seen, gradients, strict=True):
            clipped = gradient * factors
            sums[f"{name}weight"] = torch.bmm(clipped.transpose(1, 2), values)
            if f"{name}bias" in trained:
                sums[f"{name}bias"] = clipped.sum(1)
        return sums

    def _forward(
        self, trained: Stacked, inputs: Tensor
    ) -> tuple[list[tuple[str, Tensor]], list[Tensor], Tensor]:
        """Return the inputs and outputs of the linear layers, and those of the whole stack."""
        values, seen, outputs = inputs, [], []
        for name, module in self._layers:
            if type(module) is nn.Linear:
                seen.append((name, values.detach()))
                weight, bias = trained[f"{name}weight"], trained.get(f"{name}bias")
                values = torch.bmm(values, weight.transpose(1, 2))
                values = values if bias is None else values + bias[:, None]
                values = values if values.requires_grad else values.requires_grad_()
                outputs.append(values)
            else:
                values = values.flatten(2) if type(module) is nn.Flatten else module(values)
        return seen, outputs, values

    def _total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of all records, each as the mean over itself alone."""
        loss = self._loss
        if loss is None:
            return nn.functional.cross_entropy(outputs, targets, reduction="sum")
        each: Tensor = vmap(lambda one, target: loss(one[None], target[None]))(outputs, targets)
        return each.sum()


class PerSampleSums:
    """Sums of clipped gradients of any model that torch.func.vmap can map.

    Args:
        model: gives the architecture; its own tensors are not used.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, max_grad_norm: float) -> None:
        empty = copy.deepcopy(model).to("meta")
        criterion = nn.functional.cross_entropy if loss is None else loss

        def loss_of(
            trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor], one: Tensor, target: Tensor
        ) -> Tensor:
            outputs = functional_call(empty, {**trained, **fixed}, (one[None],))
            return criterion(outputs, target[None])

        per_sample = vmap(grad(loss_of), in_dims=(None, None, 0, 0))

        def of_one_model(
            trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
        ) -> Stacked:
            gradients = per_sample(trained, fixed, inputs, targets)
            squared = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
            factors = _factors(squared, counts, max_grad_norm)
            return {n: torch.einsum("b,b...->...", factors, g) for n, g in gradients.items()}

        self._of_all = vmap(of_one_model)
        self.numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums; see `ClippedSums`."""
        sums: Stacked = self._of_all(trained, fixed, inputs, targets, counts)
        return sums


# --- The default score of a trained model: the logit of the canary's class.

Floats = NDArray[np.float64]

#: Records of which a module computes logits at once.
_BATCH = 1024


class ScoreError(TypeError):
    """A model that a score cannot be computed from; the message says what to give instead."""


@dataclass(frozen=True)
class LogitMargin:
    """Score of a classifier on a record: ``log p / (1 - p)`` of the record's class.

    It does not saturate as the loss does, because ``log (1 - p)`` is the logsumexp of the other
    classes (Carlini et al., arXiv:2112.03570, section V).
    """

    def __call__(self, model: Any, record: Any) -> float:
        """Return the score in natural logarithms.

        Args:
            model: function of a batch of inputs, ``[b, ...]``, that returns logits, ``[b, c]``; or
                ``[b]`` and ``[b, 1]`` for the logit of class 1 of two.
            record: (inputs, class).

        Raises:
            ScoreError: if the model cannot be called, or its outputs or the record have another
                form.
        """
        return float(self.many(model, [record])[0])

    def many(self, model: Any, records: Sequence[Any]) -> Floats:
        """Return the scores of records, ``[n]``.

        Args:
            model: as in `__call__`. A torch module gets batches of records of one shape.
            records: (inputs, class) each.

        Raises:
            ScoreError: see `__call__`.
        """
        for record in records:
            if not callable(model) or not isinstance(record, tuple | list) or len(record) != 2:
                raise ScoreError(
                    f"LogitMargin takes a model and a record (inputs, class), not {shown(model)} "
                    f"and {shown(record)}; give score=, a function of (model, record), or return "
                    "the score from train."
                )
        inputs = [torch.as_tensor(record[0]) for record in records]
        alike = len({(each.shape, each.dtype) for each in inputs}) == 1
        size = _BATCH if alike and isinstance(model, nn.Module) else 1
        parts = [torch.stack(inputs[i : i + size]) for i in range(0, len(inputs), size)]
        logits = torch.cat([_logits(model, part) for part in parts])
        return _margins(logits, torch.tensor([int(target) for _, target in records])).numpy()


def _margins(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log odds of the targets ``[n]`` from logits ``[n, c]``."""
    classes = logits.shape[1]
    if classes == 1 and bool(((targets == 0) | (targets == 1)).all()):
        return logits[:, 0] * (2 * targets - 1)
    outside = (targets < 0) | (targets >= classes)
    if bool(outside.any()):
        raise ScoreError(
            f"the model returns {classes} logits, and the canary has class "
            f"{int(targets[outside][0])}; give score= for another kind of model."
        )
    others = logits.scatter(1, targets[:, None], -torch.inf)
    return logits.gather(1, targets[:, None])[:, 0] - others.logsumexp(1)


def _logits(model: Any, batch: Tensor) -> Tensor:
    """Return the model's logits of a batch of b records as doubles, ``[b, c]``."""
    if isinstance(model, nn.Module):
        model.eval()
        first = next(model.parameters(), None)
        if first is not None:  # doubles in the model's dtype: MPS has none
            wide = batch.dtype == torch.float64 and first.is_floating_point()
            batch = batch.to(first.device, first.dtype if wide else batch.dtype)
    with torch.no_grad():
        outputs = model(batch)
    size = len(batch)
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (size,) or outputs.dim() > 2:
        form = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ScoreError(
            f"the model returns {form} and not logits, [{size}, classes]; give score=, a function "
            "of (model, record)."
        )
    return outputs.detach().cpu().double().reshape(size, -1)


# --- Canaries of an audit over many trainings: records that one world has and the other has not.

#: Most features of a record of which `Crafted` computes directions.
_MOST_FEATURES = 4096


class Canary(Protocol):
    """Makes the records that are canaries."""

    def records(self, data: Records) -> list[Any]:
        """Return one record a canary, each like the records of ``data``."""


@dataclass(frozen=True)
class Blank:
    """A record of zeros.

    Args:
        label: its class; None for the class of the first record.
    """

    label: int | None = None

    def records(self, data: Records) -> list[Any]:
        """Return the record."""
        inputs, target = data.labeled(0)
        return [data.like(0, inputs * 0, target if self.label is None else self.label)]


@dataclass(frozen=True)
class Mislabeled:
    """A copy of a record with another class.

    Args:
        index: which record is copied.
        label: the class; None for the next one, cyclic in the classes of the data.
    """

    index: int = 0
    label: int | None = None

    def records(self, data: Records) -> list[Any]:
        """Return the record."""
        inputs, target = data.labeled(self.index)
        label = self.label
        if label is None:
            classes = sorted({int(data.labeled(i)[1]) for i in range(len(data))})
            if len(classes) < 2:
                raise BadArgument(
                    f"canary={self!r} needs data of at least two classes; give label=."
                )
            label = classes[(classes.index(int(target)) + 1) % len(classes)]
        if int(label) == int(target):
            raise BadArgument(
                f"canary={self!r} has the class of record {self.index}; give another label=."
            )
        return [data.like(self.index, inputs, label)]


@dataclass(frozen=True)
class Crafted:
    """A record along the direction in which the inputs vary least, as in ClipBKD.

    Its gradient in a linear layer is almost orthogonal to those of the data, so that training on
    the data does not hide it (Jagielski et al., arXiv:2006.07709, section 4).

    Args:
        length: norm of its inputs, > 0; None for three times the largest norm of the data.
        label: its class; None for the class of the first record.
    """

    length: float | None = None
    label: int | None = None

    def records(self, data: Records) -> list[Any]:
        """Return the record."""
        inputs, target = data.labeled(0)
        features = int(np.prod(np.shape(inputs)))
        if features > _MOST_FEATURES:
            raise BadArgument(
                f"canary={self!r} needs at most {_MOST_FEATURES} features a record, and these have "
                f"{features}; give Blank(), Mislabeled() or ChosenRecord()."
            )
        flat = np.stack([_array(data.labeled(i)[0]).ravel() for i in range(len(data))])
        flat = flat.astype(np.float64)
        _, directions = np.linalg.eigh(flat.T @ flat)
        length = self.length
        if length is None:
            length = 3 * float(np.linalg.norm(flat, axis=1).max()) or 1.0
        direction = directions[:, 0] * _validate.positive("length", length)
        shaped = data.as_inputs(direction.reshape(np.shape(inputs)), inputs)
        return [data.like(0, shaped, target if self.label is None else self.label)]


@dataclass(frozen=True)
class ChosenRecord:
    """A record of your choice.

    Args:
        record: like an item of the data set: (inputs, target).
    """

    record: Any

    def records(self, data: Records) -> list[Any]:
        """Return the record."""
        return [self.record]


@dataclass(frozen=True)
class Many:
    """Several canaries in each training, each with a fair coin of its own.

    Their guesses are not those of as many trainings: the statistics are those of one run.

    Args:
        canaries: at least two.
    """

    canaries: Sequence[Canary]

    def records(self, data: Records) -> list[Any]:
        """Return one record a canary."""
        if len(self.canaries) < 2:
            raise BadArgument(f"canaries={self.canaries!r} must be at least two canaries.")
        return [record for canary in self.canaries for record in canary.records(data)]
