"""`EpsilonStar`: logs Epsilon* of the model while it trains, private or not."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from lightning_audit import _validate
from lightning_audit.callbacks._namespaces import MisconfigurationException, OneFit, isolate_rng
from lightning_audit.hooks.boundary import where
from lightning_audit.layout import FloatArray
from lightning_audit.stats import epsilon_star as statistics
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    PermutationNull,
    checked_method,
    epsilon_star_null,
)

if TYPE_CHECKING:
    import pytorch_lightning as pl

# --- Losses of single records, evaluated during a training without changing it.

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


# --- `EpsilonStar`: logs Epsilon* of the model while it trains, private or not.

_log = logging.getLogger(__name__)

#: Method of the LightningModule that returns one loss per record, unless a function is passed.
LOSS_HOOK = "losses_per_record"


@dataclass(frozen=True)
class EpochEpsilonStar:
    """Epsilon* after an epoch: a description of this model, and no proof about its training.

    Args:
        epoch: number of the epoch, from 0.
        star: the value, the point at which it is attained, and its clip.
        null: values of the same losses when they are split into the two sides at random.
        n_train: number of training losses.
        n_population: number of losses of the population.
    """

    epoch: int
    star: statistics.EpsilonStar
    null: PermutationNull
    n_train: int
    n_population: int


class EpsilonStar(OneFit):
    """Callback that logs how well the model's losses separate training data from other data.

    Epsilon* needs one model and no differential privacy. It describes this model: it is no bound on
    the training's epsilon and not part of a verdict. It is positive even without leakage, so its
    values under random permutations are logged as well.

    Logged at the ends of epochs are ``value``, ``null_median``, ``null_95`` (median and 95 %
    quantile of the permutations), ``p_value`` (probability of a value this large under the
    permutations) and ``at_clip`` (1 if the clip, or a single loss, decides the value), each after
    ``log_prefix`` and a slash. They are nan, with a warning, in an epoch whose losses have no
    value, such as after a divergence.

    The callback does not change the training: the model is evaluated in eval mode and without
    gradients, its modes and the global random numbers are restored, and the Trainer's own loaders
    are not iterated. Exception: a dataset with its own generator draws from it again. Training data
    must be prepared like the population's: without augmentations that validation data do not have.
    With several processes, each evaluates all records.

    It is a callback of `pytorch_lightning` and of `lightning.pytorch`.

    Args:
        delta: delta in [0, 1), such as one over the number of training records.
        method: `Empirical` or `Parametric`, with its clip; None for ``Empirical(clip=0.001)``.
        train_dataloader: batches of training records; None for the records of the Trainer's
            training loader, in order. A loader of its own: it is iterated.
        population_dataloader: batches of records that were not trained on; None for those of the
            Trainer's validation loader.
        losses: function of the LightningModule and a batch that returns one loss per record,
            ``[records]``; None for the module's own method ``losses_per_record(batch)``.
        every_n_epochs: evaluate after each n-th epoch.
        max_records: largest number of records per side to evaluate; None for all.
        permutations: number of random permutations to compare the value with.
        seed: of these permutations.
        log_prefix: first part of the names of the logged metrics.

    Raises:
        ValueError: an argument is outside its range.
        TypeError: ``method`` is neither `Empirical` nor `Parametric`.
        MisconfigurationException: when training starts, without losses or loaders; when it is
            evaluated, if the losses are not one per record.

    Example:
        >>> EpsilonStar(delta=1e-5).method
        Empirical(clip=0.001)
    """

    def __init__(
        self,
        delta: float,
        method: Empirical | Parametric | None = None,
        train_dataloader: Iterable[Any] | None = None,
        population_dataloader: Iterable[Any] | None = None,
        losses: Callable[[Any, Any], Any] | None = None,
        every_n_epochs: int = 1,
        max_records: int | None = 10_000,
        permutations: int = 99,
        seed: int = 0,
        log_prefix: str = "epsilon_star",
    ) -> None:
        super().__init__()
        self.delta = delta_or_zero(delta)
        self.method = Empirical(clip=0.001) if method is None else checked_method(method)
        self.train_dataloader = train_dataloader
        self.population_dataloader = population_dataloader
        self.losses = losses
        self.every_n_epochs = _validate.positive_int("every_n_epochs", every_n_epochs)
        self.max_records = (
            None if max_records is None else _validate.positive_int("max_records", max_records)
        )
        self.permutations = _validate.positive_int("permutations", permutations, "99 are usual")
        self.seed = int(_validate.non_negative("seed", seed))
        self.log_prefix = log_prefix
        #: Results, one for each evaluated epoch of the latest training.
        self.history: list[EpochEpsilonStar] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a module without losses before the training starts."""
        if stage != "fit":
            return
        self._take(trainer)
        self.history = []
        if self.losses is None and not callable(getattr(pl_module, LOSS_HOOK, None)):
            raise MisconfigurationException(
                f"losses=None needs a method {LOSS_HOOK}(self, batch) of {type(pl_module).__name__}"
                " that returns one loss per record, such as F.cross_entropy(self(x), y,"
                " reduction='none'); define it, or pass losses=function_of_module_and_batch."
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse loaders that cannot be evaluated before the training starts."""
        self._sides(trainer)

    def _sides(self, trainer: pl.Trainer) -> tuple[Iterable[Any], Iterable[Any]]:
        """Return the loaders of both sides, for the Trainer's current records."""
        own, validation = trainer.train_dataloader, _only(trainer.val_dataloaders)
        given = (self.train_dataloader, self.population_dataloader)
        for name, loader in zip(("train_dataloader", "population_dataloader"), given, strict=True):
            if loader is not None and (loader is own or loader is validation):
                raise MisconfigurationException(
                    f"{name} is a loader of the Trainer, must be a separate one: iterating it "
                    "changes the training; pass None to evaluate its records, or another loader."
                )
        train, population = given
        if train is None:
            train = fixed_loader("train_dataloader", own, self.max_records)
        if population is None:
            population = fixed_loader("population_dataloader", validation, self.max_records)
        return train, population

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate the model and log the results."""
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        train, population = (
            losses_of(trainer, pl_module, side, self._loss, self.max_records)
            for side in self._sides(trainer)
        )
        values = dict.fromkeys(("value", "null_median", "null_95", "p_value", "at_clip"), math.nan)
        try:
            found = self._found(trainer.current_epoch, train, population)
        except ValueError as error:
            _log.warning("no Epsilon* after epoch %d: %s", trainer.current_epoch, error)
        except Exception as error:  # internal errors of the statistic do not stop the training
            _log.warning("no Epsilon* after epoch %d: %s:%d", trainer.current_epoch, *where(error))
        else:
            self.history.append(found)
            values["value"], values["at_clip"] = found.star.value, float(found.star.at_clip)
            values["null_median"], values["null_95"] = found.null.median, found.null.quantile_95
            values["p_value"] = found.null.p_value
        named = {f"{self.log_prefix}/{name}": value for name, value in values.items()}
        pl_module.log_dict(named, sync_dist=trainer.world_size > 1)

    def _loss(self, module: Any, batch: Any) -> Any:
        if self.losses is not None:
            return self.losses(module, batch)
        return getattr(module, LOSS_HOOK)(batch)

    def _found(self, epoch: int, train: Any, population: Any) -> EpochEpsilonStar:
        star = statistics.epsilon_star(train, population, self.delta, self.method)
        null = epsilon_star_null(
            train,
            population,
            self.delta,
            self.method,
            permutations=self.permutations,
            # Seeded by the epoch, so that a resumed training gets the same values.
            rng=np.random.default_rng((self.seed, epoch)),
        )
        return EpochEpsilonStar(epoch, star, null, len(train), len(population))


def _only(loaders: Any) -> Any:
    if isinstance(loaders, list | tuple) and len(loaders) == 1:
        return loaders[0]
    return loaders
