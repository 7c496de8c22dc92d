"""Small data: scikit-learn's bundled sets with published scales, and synthetic ones.

No scale is computed from the records: these are constants of the sets' descriptions, or the data
are made with them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from torch.utils.data import Dataset, TensorDataset


def tensors(*arrays: Any) -> tuple[torch.Tensor, ...]:
    """Floats as float32, integers as int64."""
    return tuple(
        torch.tensor(a, dtype=torch.float32 if np.asarray(a).dtype.kind == "f" else torch.long)
        for a in arrays
    )


def digits(first: int = 0, records: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 64 grey values in [0, 1], and their digits."""
    x, y = load_digits(return_X_y=True)
    return tensors(x[first : first + records] / 16.0, y[first : first + records])


def public_digits(records: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits that no private training has."""
    return digits(1500, records)


def images(seed: int = 0) -> TensorDataset:
    x, y = digits()
    return TensorDataset(x.view(-1, 1, 8, 8), y)


def flat_digits(seed: int = 0, records: int = 500) -> TensorDataset:
    return TensorDataset(*digits(records=records))


def cancer(records: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """Thirty positive measurements, as logarithms, and whether the tumour is benign."""
    x, y = load_breast_cancer(return_X_y=True)
    return tensors(np.log1p(x[:records]) / 4.0, y[:records])


def tumours(seed: int = 0) -> TensorDataset:
    return TensorDataset(*cancer())


def diabetes(seed: int = 0) -> TensorDataset:
    """Ten features of size one, and the progression over a hundred, of 440 people."""
    x, y = load_diabetes(return_X_y=True)
    return TensorDataset(*tensors(x[:440] * 20.0, y[:440] / 100.0))


def iris(seed: int = 0) -> TensorDataset:
    x, y = load_iris(return_X_y=True)
    return TensorDataset(*tensors(x / 4.0 - 1.0, y))


def normals(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1000 + seed).standard_normal(shape)


def sentences(seed: int, records: int = 500, longest: int = 12, words: int = 60) -> TensorDataset:
    """Token ids with 0 as padding, and a label that the first topic word tells."""
    rng = np.random.default_rng(2000 + seed)
    labels = rng.integers(0, 2, records)
    ids = np.zeros((records, longest), dtype=np.int64)
    for row, (label, length) in enumerate(
        zip(labels, rng.integers(4, longest + 1, records), strict=True)
    ):
        low = 1 + 20 * label
        ids[row, :length] = rng.integers(low, low + words - 22, length)
    return TensorDataset(*tensors(ids, labels))


class Changed(Dataset[Any]):
    """A data set whose items are changed when they are read, as `transform` does.

    Args:
        data: the records.
        change: from the parts of a record to those that are trained with.
    """

    def __init__(self, data: TensorDataset, change: Callable[..., Any]) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.change(*self.data[index])
