"""Losses of single records, evaluated during a training without changing it."""

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

#: Maps the LightningModule and a batch to one loss per record, ``[records]``.
LossFunction = Callable[[Any, Any], torch.Tensor]

#: Records per batch, if the loader has no batch size.
_BATCH = 64


def fixed_loader(name: str, loader: Any, max_records: int | None) -> DataLoader[Any]:
    """Return a sequential loader of the same records, or of an evenly spaced subset.

    The training's own loader must not be iterated: its sampler would advance, and the training
    would get other batches.

    Args:
        name: the argument that the user can pass instead.
        loader: the Trainer's own loader.
        max_records: largest number of records; None for all.

    Raises:
        MisconfigurationException: ``loader`` is not a DataLoader of a dataset with a length.
    """
    dataset = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
        raise MisconfigurationException(
            f"{name}=None takes the records from the Trainer's loader, which must be one DataLoader"
            f" of a dataset with a length but is {type(loader).__name__}; pass {name}, a separate"
            " loader."
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
    """Return one loss per record, ``[n]``, in eval mode, without gradients or effects on the RNGs.

    Raises:
        MisconfigurationException: the function does not return one loss per record.
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
                    "[records]; compute them with reduction='none', and reduce them to one per "
                    "record."
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
    # Per module: parts of a model may be in eval mode while the rest trains.
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
