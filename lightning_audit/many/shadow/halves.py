"""The plan of shadow models: which half of the records each of them is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_audit._validate import BadArgument
from lightning_audit.many.game.plan import Plan, PlannedTraining
from lightning_audit.many.game.records import Records


@dataclass(frozen=True)
class Halves(Plan):
    """Random halves of the records in complementary pairs: models 2i and 2i + 1 share no record.

    A coin is whether a record is in a model's data. The coins of even models are fair and
    independent, as those of `Plan`; those of the model after it are the opposite ones. So each
    record is in one model of each pair (Carlini et al., arXiv:2112.03570, section V), and the first
    models of the pairs are those of a plan with independent coins.
    """

    def training(self, number: int) -> PlannedTraining:
        """Return the model with this number."""
        first = super().training(number - number % 2)
        if number % 2 == 0:
            return first
        return PlannedTraining(number, tuple(1 - c for c in first.coins), self._seed(number))


class Subsets:
    """The data set of each half of the records of a data set.

    Args:
        data: a tuple of arrays or tensors, a map-style Dataset, or a list of records.

    Raises:
        BadArgument: if the data set has another form, or fewer than two records.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._records = Records(data)
        if len(self._records) < 2:
            raise BadArgument("dataset has one record; give at least two, which halves can divide.")

    @property
    def canaries(self) -> int:
        """Number of records."""
        return len(self._records)

    @property
    def records(self) -> list[Any]:
        """All records, in order."""
        return [self._records[row] for row in range(self.canaries)]

    def of(self, coins: tuple[int, ...]) -> Any:
        """Return the data set of the records whose coin is 1."""
        return self._records.chosen(np.flatnonzero(coins).tolist())
