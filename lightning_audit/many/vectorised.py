"""DP-SGD of many small models at once."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.identity import COUNTS_IF_SET
from lightning_audit.many.records import (
    ClippedSums,
    Loss,
    Records,
    Stacked,
    clipped_sums,
    columns_of,
)

#: Keys of the generators of a training: they draw other numbers than its initial weights.
_BATCHES, _NOISE = 0x62617463, 0x6E6F6973
_MIB, _BYTES = 2**20, 4
#: Bytes for each record of a data set and each model while one generator draws a block's batches.
_DRAWN = 16


def batch_generator(seed: int) -> torch.Generator:
    """Return the generator that draws the Poisson batches of a training with this seed."""
    return torch.Generator().manual_seed(seed ^ _BATCHES)


def noise_generator(seed: int) -> torch.Generator:
    """Return the generator that draws the noise of a training with this seed."""
    return torch.Generator().manual_seed(seed ^ _NOISE)


@dataclass(frozen=True, eq=False)
class DPSGDMany:
    """Training function for `audit_training` that trains many small models at once.

    Each model has its own Poisson batches and noise. On the CPU they come from generators of its
    seed, which draw what Opacus draws from the same generators. On an accelerator one generator
    draws them for all models that are trained together, from all of their seeds, and all data,
    models and noise are on the device; initial weights have the training's own seed on both. The
    per-sample loss is ``loss`` of a batch of one record.
    Stacks of linear layers with elementwise activations are clipped without per-sample gradients;
    for other models, torch.func computes them. Seeded noise is for audits: it does not protect a
    model that is released with its seed.

    Args:
        model: function without arguments that returns a new model, called with torch seeded by the
            training's seed; or a model, from whose weights each training starts.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        noise_multiplier: standard deviation of the noise in units of ``max_grad_norm``, >= 0.
        max_grad_norm: clipping norm, > 0; infinite for plain SGD, which needs
            ``noise_multiplier=0``.
        sample_rate: probability in (0, 1] with which a batch contains each record; 1 for full
            batches.
        expected_batch_size: the sum of gradients is divided by it, > 0. A constant: the number of
            records of a neighboring data set is another one, which a step must not depend on.
        steps: number of optimizer steps.
        learning_rate: of SGD without momentum, > 0.
        memory_mib: models that are trained at the same time share this much memory, > 0, in MiB;
            None for a tenth of a CUDA device's memory, and else for 10, since more than the cache
            of a core is slower.
        device: on which models are trained and returned, such as "cuda" or "mps"; None for the one
            that the data are on, which is the CPU for arrays. A store keeps its device.

    Raises:
        ValueError: if an argument is outside its range, or the model has a layer that Opacus
            refuses, random layers, or no trained parameter.
    """

    model: Callable[[], nn.Module] | nn.Module
    loss: Loss | None = None
    noise_multiplier: float = field(kw_only=True)
    max_grad_norm: float = field(kw_only=True)
    sample_rate: float = field(kw_only=True)
    expected_batch_size: float = field(kw_only=True)
    steps: int = field(kw_only=True)
    learning_rate: float = field(kw_only=True)
    memory_mib: float | None = field(default=None, kw_only=True, metadata=COUNTS_IF_SET)
    device: str | torch.device | None = field(default=None, kw_only=True, metadata=COUNTS_IF_SET)

    def __post_init__(self) -> None:
        _validate.non_negative("noise_multiplier", self.noise_multiplier)
        _validate.positive("max_grad_norm", self.max_grad_norm, finite=self.noise_multiplier > 0)
        _validate.rate("sample_rate", self.sample_rate, "1 for full batches")
        _validate.positive("expected_batch_size", self.expected_batch_size)
        _validate.positive_int("steps", self.steps)
        _validate.positive("learning_rate", self.learning_rate)
        if self.memory_mib is not None:
            _validate.positive("memory_mib", self.memory_mib, "such as 10")
        if self.loss is not None and not callable(self.loss):
            raise BadArgument(
                f"loss={shown(self.loss)} must be a function of (outputs, targets), or None for "
                "the mean cross-entropy."
            )
        _refuse(self._new(0))
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise BadArgument(
                f"device={shown(self.device)} must be a device of torch, such as 'cpu', 'cuda', "
                "'cuda:1' or 'mps', or None for that of the data."
            ) from None

    def __call__(self, dataset: Any, seed: int) -> nn.Module:
        """Return the model of one training; see `many`."""
        return self.many([dataset], [seed])[0]

    def many(self, data_sets: Sequence[Any], seeds: Sequence[int]) -> list[nn.Module]:
        """Train one model a data set, and return them in order, on the device of the training.

        Args:
            data_sets: each a tuple of arrays or tensors (inputs, targets), a map-style Dataset of
                such records, or a list of them.
            seeds: seeds in [0, 2^32), one a data set.

        Raises:
            ValueError: if the numbers of data sets and seeds differ, records have another form, the
                data sets are on several devices and ``device`` is None, or the device is not
                available or cannot hold the model.
        """
        if len(data_sets) != len(seeds):
            raise BadArgument(
                f"seeds has {len(seeds)} entries for {len(data_sets)} data sets; give one each."
            )
        different = {id(data): data for data in data_sets}
        device = self._device(list(different.values()))
        sums = clipped_sums(self._on(device), self.loss, self.max_grad_norm)
        dtype = next(self._new(0).parameters()).dtype
        made = {key: _tensors(data, dtype, device) for key, data in different.items()}
        pairs = [made[id(data)] for data in data_sets]
        most = self._at_once(pairs, sums)
        models: list[nn.Module] = []
        for first in range(0, len(pairs), most):
            part = slice(first, first + most)
            models += self._trained(_Batches(pairs[part], dtype), seeds[part], sums)
        return models

    def drawn_on(self, data: Any) -> str:
        """Return the kind of device that trains on a data set, and how it draws; empty for a CPU.

        The numbers of a training depend on it, so that a store must keep it.
        """
        device = self._device([data])
        return f"{device.type}, one generator a block" if _draws_blocks(device) else ""

    def _device(self, data_sets: Sequence[Any]) -> torch.device:
        """Return the device on which data sets are trained."""
        if self.device is not None:
            return torch.device(self.device)
        found = {_device_of(data) for data in data_sets}
        if len(found) > 1:
            names = " and ".join(sorted(map(str, found)))
            raise BadArgument(f"the data sets are on {names}; give device=, or put them on one.")
        return found.pop() if found else torch.device("cpu")

    def _on(self, device: torch.device) -> nn.Module:
        """Return a model on a device.

        Raises:
            BadArgument: if the device is not there, or cannot hold it.
        """
        model = self._new(0)
        try:
            torch.Generator(device)
            return model.to(device)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            whose = "of the data " if self.device is None else ""
            raise BadArgument(
                f"device={str(device)!r} {whose}cannot hold this model here ({reason}); give a "
                "device that torch has here, such as device='cpu'; MPS takes no float64."
            ) from error

    def _new(self, seed: int) -> nn.Module:
        """Return a model before its training, whose random weights depend on the seed alone."""
        if isinstance(self.model, nn.Module):
            made = copy.deepcopy(self.model)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                made = copy.deepcopy(self.model())  # it may return one object each time
        if not isinstance(made, nn.Module):
            raise BadArgument(
                f"model={shown(self.model)} must be a torch module, or a function without "
                f"arguments that returns a new one, not {shown(made)}."
            )
        return made.cpu().train()

    def _at_once(self, pairs: Sequence[_Pair], sums: ClippedSums) -> int:
        """Return how many models are trained at the same time."""
        records = max(len(targets) - 1 for _, targets in pairs)
        batch = max(1.0, self.sample_rate * records)
        each = _BYTES * batch * (sums.numbers + pairs[0][0][0].numel())
        device = pairs[0][1].device
        drawn = _DRAWN * records if _draws_blocks(device) else 0
        memory = 10.0 if self.memory_mib is None else self.memory_mib
        if self.memory_mib is None and device.type == "cuda":  # of all: parts are the same again
            memory = torch.cuda.get_device_properties(device).total_memory / _MIB / 10
        return max(1, int(memory * _MIB / (each + drawn)))

    def _trained(
        self, batches: _Batches, seeds: Sequence[int], sums: ClippedSums
    ) -> list[nn.Module]:
        """Return the models of one part, which are in memory together."""
        device = batches.device
        models = [self._new(seed).to(device) for seed in seeds]
        trained, fixed = _stacked(models)
        draws = _BlockDraws(seeds, device) if _draws_blocks(device) else _OwnDraws(seeds)
        deviation = self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0
        full = batches.full() if self.sample_rate == 1.0 else None
        for _ in range(self.steps):
            batch = full or batches.at(draws.poisson(batches.sizes, self.sample_rate))
            totals = sums(trained, fixed, *batch)
            for name, values in trained.items():
                noise = draws.noise(values, deviation) if deviation else torch.zeros_like(values)
                total = totals[name] + noise
                values.sub_(total.div_(self.expected_batch_size), alpha=self.learning_rate)
        with torch.no_grad():
            for number, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    if name in trained:
                        parameter.copy_(trained[name][number])
        return models


# --- The Poisson batches and the noise of models that are trained together.


class _OwnDraws:
    """Draws of each model from generators of its own seed, on the CPU: those of Opacus."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._batches = [batch_generator(seed) for seed in seeds]
        self._noises = [noise_generator(seed) for seed in seeds]

    def poisson(self, sizes: Sequence[int], sample_rate: float) -> Tensor:
        """Return the records of a batch a model; see `_padded`.

        Opacus' `UniformWithReplacementSampler` draws the same.
        """
        return _padded(
            [
                (torch.rand(size, generator=own) < sample_rate).nonzero().squeeze(1)
                for size, own in zip(sizes, self._batches, strict=True)
            ]
        )

    def noise(self, values: Tensor, deviation: float) -> Tensor:
        """Return the noise of a parameter of all models, ``[m, ...]``."""
        noise = torch.zeros_like(values)
        for one, generator in zip(noise.unbind(0), self._noises, strict=True):
            one.normal_(0.0, deviation, generator=generator)
        return noise


class _BlockDraws:
    """Draws of all models from one generator on their device, one call for all of them.

    Its seed is a hash of all of theirs. So trainings that are repeated in another block, after a
    loss or because the plan is longer now, share no number with those that are stored.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        key = hashlib.sha256(f"block/{[int(seed) for seed in seeds]}".encode()).digest()
        self._generator = torch.Generator(device).manual_seed(int.from_bytes(key[:8], "big"))
        self._device = device

    def poisson(self, sizes: Sequence[int], sample_rate: float) -> Tensor:
        """Return the records of a batch a model; see `_padded`."""
        shape, on = (len(sizes), max(sizes)), self._device
        drawn = torch.rand(shape, generator=self._generator, device=on, dtype=torch.float32)
        ends = torch.tensor(sizes, device=on)[:, None]
        picked = (drawn < sample_rate) & (torch.arange(max(sizes), device=on) < ends)
        places = picked.cumsum(1) - 1
        models, records = picked.nonzero(as_tuple=True)
        index = places.new_full((len(sizes), max(1, int(places.max()) + 1)), _PADDING)
        index[models, places[models, records]] = records
        return index

    def noise(self, values: Tensor, deviation: float) -> Tensor:
        """Return the noise of a parameter of all models, ``[m, ...]``."""
        return torch.empty_like(values).normal_(0.0, deviation, generator=self._generator)


def _draws_blocks(device: torch.device) -> bool:
    """Return whether one generator draws for all models of a block on this device."""
    return device.type != "cpu"


#: Position of the row of zeros of a data set.
_PADDING = -1


def _padded(picked: list[Tensor]) -> Tensor:
    """Return positions of records, ``[m, b]``, padded with `_PADDING` to one record at least."""
    index = pad_sequence(picked, batch_first=True, padding_value=_PADDING)
    return index if index.shape[1] else torch.full((len(picked), 1), _PADDING)


#: Inputs and targets of a data set, one row a record, and a row of zeros at the end.
_Pair = tuple[Tensor, Tensor]


class _Batches:
    """Makes batches of m data sets, padded with zeros to the largest one.

    A batch is inputs ``[m, b, ...]``, targets ``[m, b, ...]`` and counts ``[m, b]``: 1 for a record
    and 0 for padding.

    Args:
        pairs: m data sets, some of which may be the same one.
        dtype: of the counts.
    """

    def __init__(self, pairs: Sequence[_Pair], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.device = pairs[0][1].device
        #: Number of records of each data set.
        self.sizes = [len(targets) - 1 for _, targets in pairs]
        owners = [id(pair) for pair in pairs]
        self._groups = [
            (pair, torch.tensor([n for n, own in enumerate(owners) if own == key]).to(self.device))
            for key, pair in {id(pair): pair for pair in pairs}.items()
        ]

    def full(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of all records."""
        return self.at(_padded([torch.arange(size) for size in self.sizes]))

    def at(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of the records at these positions; see `_padded`."""
        index = index.to(self.device)
        counts = (index != _PADDING).to(self._dtype)
        inputs, targets = (self._gathered(column, index) for column in (0, 1))
        return inputs, targets, counts

    def _gathered(self, column: int, index: Tensor) -> Tensor:
        if len(self._groups) == 1:
            return self._groups[0][0][column][index]
        first = self._groups[0][0][column]
        gathered = first.new_empty(*index.shape, *first.shape[1:])
        for pair, rows in self._groups:
            gathered[rows] = pair[column][index[rows]]
        return gathered


def _refuse(model: nn.Module) -> None:
    """Refuse a model that cannot be trained here.

    Raises:
        BadArgument: with the reason.
    """
    errors = ModuleValidator.validate(model, strict=False)
    if errors:
        raise BadArgument(f"model cannot be trained with DP-SGD: {errors[0]}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadArgument(f"model={shown(model)} has no trained parameter.")
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            raise BadArgument(
                f"model has {shown(module)}, whose random numbers do not come from the seed of "
                "one training; remove it, or train one model at a time with opacus_training."
            )


def _device_of(data: Any) -> torch.device:
    """Return the device of a data set's inputs."""
    columns = columns_of(data)
    first = columns[0] if columns is not None else Records(data).labeled(0)[0]
    return first.device if isinstance(first, Tensor) else torch.device("cpu")


def _tensors(data: Any, dtype: torch.dtype, device: torch.device) -> _Pair:
    """Return the inputs and targets of a data set, numbers with a fraction in this dtype.

    Raises:
        BadArgument: if its records are no pairs of arrays of one shape.
    """
    columns = columns_of(data)
    if columns is None:
        records = Records(data)
        columns = tuple(zip(*(records.labeled(i) for i in range(len(records))), strict=True))
    if len(columns) != 2:
        raise BadArgument(
            f"DPSGDMany trains on records (inputs, target), and these have {len(columns)} entries; "
            "give a function of (data set, seed) as train."
        )
    try:
        inputs, targets = (_rows(column, dtype).to(device) for column in columns)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgument(
            f"DPSGDMany trains on records of one shape ({error}); give a function of (data set, "
            "seed) as train."
        ) from error
    return inputs, targets


def _rows(column: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(column, Tensor):
        rows = column.detach()
    elif isinstance(column, np.ndarray):
        rows = torch.from_numpy(column)
    else:
        rows = torch.stack([torch.as_tensor(row) for row in column])
    rows = rows.to(dtype) if rows.is_floating_point() else rows
    return torch.cat([rows, torch.zeros_like(rows[:1])])


def _stacked(models: Sequence[nn.Module]) -> tuple[Stacked, Stacked]:
    """Return the trained parameters, and the other parameters and buffers, ``[m, ...]`` each."""
    trained: Stacked = {}
    fixed: Stacked = {}
    for name, parameter in models[0].named_parameters():
        values = torch.stack([model.get_parameter(name).detach() for model in models])
        (trained if parameter.requires_grad else fixed)[name] = values
    for name, _ in models[0].named_buffers():
        fixed[name] = torch.stack([model.get_buffer(name) for model in models])
    return trained, fixed
