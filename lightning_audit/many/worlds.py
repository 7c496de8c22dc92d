"""The neighboring data sets of an audit over many trainings, their plan, the training."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.files import with_extra
from lightning_audit.many.records import Canary, LogitMargin, Records, ScoreError
from lightning_audit.many.store import Block, Outcome

# --- The neighboring data sets of an audit over many trainings.


class DataSets(Protocol):
    """The data set of each outcome of a training's coins."""

    data: Any

    @property
    def records(self) -> Sequence[Any]:
        """The records that the score takes, one a coin."""

    @property
    def canaries(self) -> int:
        """Number of coins of a training."""

    def of(self, coins: tuple[int, ...]) -> Any:
        """Return the data set of these coins."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Two neighboring data sets of your own.

    Args:
        without: the data set without the canary, in any form that the training takes.
        with_canary: the data set with it.
        record: the canary, which the score takes; None if the training itself returns a score.
    """

    without: Any
    with_canary: Any
    record: Any = None


@dataclass(eq=False)
class Worlds:
    """The data set of each outcome of the coins.

    Args:
        data: the data set without any canary, or both data sets.
        records: the canaries.
        adjacency: "add_remove": a canary is a record more. "replace_one": it takes the place of
            one of the last records.
    """

    data: Any
    records: tuple[Any, ...]
    adjacency: Adjacency
    _made: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)

    @property
    def canaries(self) -> int:
        """Number of coins of a training."""
        return len(self.records)

    def of(self, coins: tuple[int, ...]) -> Any:
        """Return the data set with the canaries whose coin is 1.

        Data sets of one canary are made once; those of many are made for each training.
        """
        if isinstance(self.data, Neighbors):
            return self.data.with_canary if coins[0] else self.data.without
        if coins in self._made:
            return self._made[coins]
        inside = np.flatnonzero(coins)
        data, others = Records(self.data), ~np.arange(len(inside))
        rows = np.arange(len(data))
        if self.adjacency == "add_remove":
            rows = np.concatenate([rows, others])
        else:
            rows[len(data) - self.canaries + inside] = others
        chosen = [self.records[place] for place in inside]
        world = data.rearranged(rows, chosen) if chosen else self.data
        if self.canaries == 1:
            self._made[coins] = world
        return world

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}


def worlds_of(dataset: Any, canary: Canary, adjacency: str) -> Worlds:
    """Return the neighboring data sets of an audit.

    Args:
        dataset: the data set without the canary, or `Neighbors`.
        canary: makes the canaries; ignored for `Neighbors`.
        adjacency: "add_remove" or "replace_one".

    Raises:
        BadArgument: if the data set has no known form, if it has fewer records than canaries
            replace, or if the canaries do not fit it.
        ValueError: if ``adjacency`` is unknown.
    """
    which: Any = _validate.one_of("adjacency", adjacency, ("add_remove", "replace_one"))
    if isinstance(dataset, Neighbors):
        return Worlds(dataset, (dataset.record,), which)
    data = Records(dataset)
    if not hasattr(canary, "records"):
        raise BadArgument(
            f"canary={shown(canary)} must be Blank(), Mislabeled(), Crafted(), "
            "ChosenRecord(record) or Many([...])."
        )
    records = tuple(canary.records(data))
    if which == "replace_one" and len(data) < len(records):
        raise BadArgument(
            f"canary={shown(canary)} replaces {len(records)} records, and dataset has only "
            f"{len(data)}; give fewer canaries or adjacency='add_remove'."
        )
    return Worlds(dataset, records, which)


# --- Runs the user's training function in a worker, and checks what it returns.

#: Function of (data set, seed) that returns a model or a score; or an object with ``many``.
Train = Callable[[Any, int], Any]
Score = Callable[[Any, Any], float]

_FORMS = "return the model, or its score as a finite number"


class BadTraining(Exception):
    """What the training function returns cannot be used in any training; says what to change."""


class NoScore(Exception):
    """What one training returns is no score; says what it is."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a worker runs, for each block of the plan.

    Args:
        train: function of (data set, seed); or an object with ``many(data_sets, seeds)``, which
            trains all at once and returns one result each. If its numbers depend on a device,
            ``drawn_on(data_set)`` says on which, and a store keeps it.
        worlds: the data sets.
        score: function of (result of ``train``, record) that returns a number; None for
            `LogitMargin` unless ``train`` itself returns numbers. An object with
            ``many(result, records)`` scores all canaries at once.
    """

    train: Any
    worlds: DataSets
    score: Score | None = None

    @property
    def at_once(self) -> bool:
        """Whether the trainings of a block are one call."""
        return hasattr(self.train, "many")

    @property
    def drawn_on(self) -> str:
        """What the training says of the device that draws its numbers; empty for nothing."""
        data = self.worlds.data
        data = data.without if isinstance(data, Neighbors) else data
        return self.train.drawn_on(data) if hasattr(self.train, "drawn_on") else ""

    def run(self, block: Block) -> Iterator[Outcome]:
        """Yield what each training gave, in order.

        An exception of a training fails it alone, also one that would end its process.
        """
        for part in [block] if self.at_once else zip(block):
            start = time.perf_counter()
            made, error, fatal = _tried(self._trained, part)
            for training, result in zip(part, made or part, strict=True):
                scores, why, always = None, error, fatal
                if made is not None:
                    scores, why, always = _tried(self._scores, result, training.number)
                spent = (time.perf_counter() - start) / len(part)
                yield Outcome(training.number, scores, spent, why, always)

    def _trained(self, part: Block) -> Sequence[Any]:
        """Return what ``train`` returns for each training."""
        set_seeds(part[0].seed)
        data, seeds = [self.worlds.of(one.coins) for one in part], [one.seed for one in part]
        if not self.at_once:
            return [self.train(data[0], seeds[0])]
        found = self.train.many(data, seeds)
        results = [] if found is None else list(found)
        if len(results) != len(part):
            told = "None" if found is None else f"{len(results)} results"
            raise BadTraining(
                f"train.many returned {told} for {len(part)} trainings; return a list with one "
                "model or score a training."
            )
        return results

    def _scores(self, result: Any, number: int) -> tuple[float, ...]:
        """Return the scores of a result, one a canary.

        Raises:
            BadTraining: if they are not numbers, or not one a canary.
        """
        if result is None:
            raise BadTraining(f"train returned None for training {number}; {_FORMS}.")
        canaries = self.worlds.canaries
        values = _numbers(result) if self.score is None else None
        if values is None:
            each = self._each(result)
            singles = [_numbers(value) for value in each]
            if any(value is None or value.size != 1 for value in singles):
                raise BadTraining(
                    f"score returned {shown(each[0])} for training {number}; return one number."
                )
            values = np.array([value.item() for value in singles if value is not None])
        if values.size != canaries:
            raise BadTraining(
                f"train returned {values.size} scores for training {number} (shape "
                f"{tuple(values.shape)}); return {_count(canaries)} in each training."
            )
        if not np.isfinite(values).all():
            raise NoScore(f"NoScore: the score is {values[~np.isfinite(values)][0]}")
        return tuple(values.ravel().tolist())

    def _each(self, result: Any) -> Sequence[Any]:
        """Return what the score gives for each canary."""
        score = self.score or LogitMargin()
        if hasattr(score, "many"):
            return list(score.many(result, self.worlds.records))
        return [score(result, record) for record in self.worlds.records]


def set_seeds(seed: int) -> None:
    """Seed Python, NumPy and torch, so that a training does not depend on those before it.

    Each new process of torch starts with the same seed: without seeds of its own, the first
    trainings of all workers would draw the same noise.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """Return numbers as an array; None if this is something else, such as a model."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    kinds = (int, float, np.number, np.ndarray, list, tuple)
    if isinstance(value, kinds) and not isinstance(value, bool) and not callable(value):
        with contextlib.suppress(TypeError, ValueError):
            return np.asarray(value, dtype=np.float64)
    return None


def _count(canaries: int) -> str:
    return "one score" if canaries == 1 else f"{canaries} scores, one a canary,"


def _tried(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str, bool]:
    """Return what a call returns; else None, why it failed, and whether each training would."""
    try:
        return call(*arguments), "", False
    except (BadTraining, BadArgument, ScoreError) as error:
        return None, str(error), True
    except NoScore as error:
        return None, str(error), False
    except BaseException as error:  # a training that would end its process has failed
        return None, _named(error), False


def _named(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}".strip().rstrip(":")


def lightning_training(
    make_module: Callable[[Any], Any],
    make_trainer: Callable[[], Any],
    make_loader: Callable[[Any], Any] | None = None,
) -> Train:
    """Return a training function of a LightningModule and a Trainer.

    Args:
        make_module: function of a data set that returns a new LightningModule.
        make_trainer: function that returns a new Trainer. It should write no checkpoints and log
            nothing: it is called once a training.
        make_loader: function of a data set that returns the training loader; None if the module
            has its own ``train_dataloader``.

    Returns:
        A function of (data set, seed) that seeds, trains and returns the module.
    """
    try:
        import pytorch_lightning as pl
    except ImportError as error:
        raise ImportError(
            f"PyTorch Lightning is not installed: {with_extra('lightning')}."
        ) from error

    def train(dataset: Any, seed: int) -> Any:
        pl.seed_everything(seed, workers=True, verbose=False)
        module = make_module(dataset)
        if getattr(module, "_trainer", None) is not None:
            raise BadTraining(
                f"make_module={shown(make_module)} returned a module that was trained already, "
                "must return a new one each time; make it inside the function."
            )
        loader = None if make_loader is None else make_loader(dataset)
        make_trainer().fit(module, loader)
        return module

    return train


def opacus_training(
    make_model: Callable[[], Any],
    make_optimizer: Callable[[Any], Any],
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    sample_rate: float,
    expected_batch_size: int,
    steps: int,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Train:
    """Return the training function of a plain loop over Opacus' Poisson batches.

    `PrivacyEngine.make_private` computes sampling rate and expected batch size from the number of
    records, which a canary changes: a full batch of 30 becomes two half batches of 31. Here both
    are given.

    Args:
        make_model: function without arguments that returns a new model.
        make_optimizer: function of its parameters that returns an optimizer.
        noise_multiplier: as `PrivacyEngine.make_private` takes it, >= 0.
        max_grad_norm: clipping norm, > 0.
        sample_rate: probability in (0, 1] with which a record joins a batch.
        expected_batch_size: number by which the sum of a batch is divided, >= 1.
        steps: number of optimizer steps.
        loss: function of (outputs, targets); None for the mean cross-entropy.

    Returns:
        A function of (data set, seed) that seeds, trains and returns the model.
    """

    def train(dataset: Any, seed: int) -> Any:
        from opacus import PrivacyEngine
        from opacus.data_loader import DPDataLoader

        torch.manual_seed(seed)
        if isinstance(dataset, tuple):
            dataset = torch.utils.data.TensorDataset(*dataset)
        model = copy.deepcopy(make_model())  # it may return one object each time
        criterion = torch.nn.functional.cross_entropy if loss is None else loss
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=make_optimizer(model.parameters()),
            data_loader=DPDataLoader(dataset, sample_rate=sample_rate),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            poisson_sampling=False,  # the loader samples already
        )
        optimizer.expected_batch_size = expected_batch_size
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        for inputs, targets in itertools.islice(epochs, steps):
            optimizer.zero_grad()
            criterion(private(inputs), targets).backward()
            optimizer.step()
        return model

    return train
