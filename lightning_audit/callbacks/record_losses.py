"""Losses of single records, evaluated beside a training without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from lightning_audit.callbacks._namespaces import MisconfigurationException, isolate_rng
from lightning_audit.layout import FloatArray

if TYPE_CHECKING:
    import pytorch_lightning as pl

#: From the LightningModule and a batch to one loss a record, ``[records]``.
LossFunction = Callable[[Any, Any], torch.Tensor]

#: Records a batch, where the loader draws its batches in its own way.
_BATCH = 64


def fixed_loader(name: str, loader: Any, max_records: int | None) -> DataLoader[Any]:
    """A loader of the same records, or an even choice of them, that draws nothing.

    A loader of the training must not be iterated: its sampler would go on, and the training with
    other batches than without.

    Args:
        name: argument that the user would pass instead.
        loader: the Trainer's own loader.
        max_records: largest number of records; None for all.

    Raises:
        MisconfigurationException: If it is no loader of a dataset with a length.
    """
    dataset = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
        raise MisconfigurationException(
            f"{name}=None takes the records from the Trainer's loader, which must be one DataLoader"
            f" of a dataset with a length but is {type(loader).__name__}; pass {name}, a loader of"
            " its own."
        )
    records = len(dataset)  # type: ignore[arg-type]
    if max_records is not None and records > max_records:
        chosen = np.linspace(0, records - 1, max_records).round().astype(np.int64)
        dataset = Subset(dataset, chosen.tolist())  # type: ignore[arg-type]
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=loader.batch_size or _BATCH,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        multiprocessing_context=loader.multiprocessing_context,
    )


def losses_of(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    batches: Iterable[Any],
    loss_function: LossFunction,
    max_records: int | None,
) -> FloatArray:
    """One loss a record, ``[n]``: in eval mode, without gradients, random numbers put back.

    Raises:
        MisconfigurationException: If the function gives anything but one loss a record.
    """
    found: list[FloatArray] = []
    count = 0
    precision = trainer.precision_plugin
    with isolate_rng(), _eval_mode(module), torch.no_grad(), precision.forward_context():
        for batch in batches:
            losses = loss_function(module, trainer.strategy.batch_to_device(batch))
            if not isinstance(losses, torch.Tensor) or losses.ndim != 1:
                raise MisconfigurationException(
                    f"the losses of a batch are {_described(losses)}, must be a tensor of shape "
                    "[records]; compute them with reduction='none', and reduce what a record has "
                    "several of."
                )
            found.append(losses.detach().cpu().double().numpy())
            count += losses.numel()
            if max_records is not None and count >= max_records:
                break
    return np.concatenate(found)[:max_records] if found else np.empty(0)


def _described(losses: Any) -> str:
    if isinstance(losses, torch.Tensor):
        return f"of shape {tuple(losses.shape)}"
    return f"of type {type(losses).__name__}"


@contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    # Each on its own: parts of a model may be in eval mode while the rest trains.
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
