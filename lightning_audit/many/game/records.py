"""Data sets as sequences of records, in the forms that a training may take them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_audit._validate import BadArgument, shown

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
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(like, torch.Tensor):
            return torch.as_tensor(values, dtype=like.dtype, device=like.device)
        return np.asarray(values, dtype=like.dtype if hasattr(like, "dtype") else None)

    def chosen(self, rows: Sequence[int]) -> Any:
        """Return the data set of these records, in this order."""
        if self._columns is not None:
            columns = tuple(column[list(rows)] for column in self._columns)
            return columns if isinstance(self.data, tuple) else type(self.data)(*columns)
        if isinstance(self.data, list):
            return [self.data[row] for row in rows]
        return ChosenDataset(self.data, tuple(rows))

    def extended(self, records: Sequence[Any], replaced: dict[int, Any]) -> Any:
        """Return the data set with records at its end and others instead of its own.

        Args:
            records: appended in order.
            replaced: new records by index.
        """
        if not records and not replaced:
            return self.data
        if self._columns is None:
            if isinstance(self.data, list):
                new = [replaced.get(i, record) for i, record in enumerate(self.data)]
                return [*new, *records]
            return ChangedDataset(self.data, tuple(records), dict(replaced))
        columns = tuple(
            _changed(column, [record[place] for record in records], place, replaced)
            for place, column in enumerate(self._columns)
        )
        return columns if isinstance(self.data, tuple) else type(self.data)(*columns)


@dataclass(frozen=True)
class ChangedDataset:
    """A data set with records at its end, and others instead of its own.

    Args:
        data: the data set.
        records: appended.
        replaced: new records by index.
    """

    data: Any
    records: tuple[Any, ...]
    replaced: dict[int, Any]

    def __len__(self) -> int:
        return len(self.data) + len(self.records)

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        index = range(len(self))[int(index)]
        if index >= len(self.data):
            return self.records[index - len(self.data)]
        return self.replaced[index] if index in self.replaced else self.data[index]


@dataclass(frozen=True)
class ChosenDataset:
    """Some records of a data set.

    Args:
        data: the data set.
        rows: positions of the records.
    """

    data: Any
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        return self.data[self.rows[int(index)]]


def columns_of(data: Any) -> tuple[Any, ...] | None:
    """Return the columns of a data set of arrays; None if it is none."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.utils.data.TensorDataset):
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


def _changed(column: Any, new: list[Any], place: int, replaced: dict[int, Any]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(column, torch.Tensor):
        rows = [torch.as_tensor(row, dtype=column.dtype).to(column.device)[None] for row in new]
        column = torch.cat([column, *rows]) if rows else column.clone()
        for index, record in replaced.items():
            column[index] = torch.as_tensor(record[place], dtype=column.dtype)
        return column
    rows = [np.asarray(row, dtype=column.dtype)[None] for row in new]
    column = np.concatenate([column, *rows]) if rows else np.array(column)
    for index, record in replaced.items():
        column[index] = record[place]
    return column
