"""The neighboring data sets of an audit over many trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.many.game.canary_records import Canary
from lightning_audit.many.game.records import Records


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
        chosen = {i: record for i, record in enumerate(self.records) if coins[i]}
        data = Records(self.data)
        if self.adjacency == "add_remove":
            world = data.extended(list(chosen.values()), {})
        else:
            first = len(data) - self.canaries
            world = data.extended([], {first + i: record for i, record in chosen.items()})
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
