"""Canaries of an audit over many trainings: records that one world has and the other has not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.many.game.records import Records

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
        flat = np.stack([np.asarray(data.labeled(i)[0]).ravel() for i in range(len(data))])
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
