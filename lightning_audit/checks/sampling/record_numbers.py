"""Converts the batches of a sampler to record numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def record_numbers(batch: Any, records: int) -> np.ndarray[Any, Any] | None:
    """Return the numbers of a batch's records, in order; None if it is no list of such numbers.

    Args:
        batch: what a sampler yields; an iterator is not consumed.
        records: number of records in the data set; their numbers are 0 to ``records - 1``.
    """
    if hasattr(batch, "__next__"):
        return None
    try:
        numbers = np.asarray(batch)
    except Exception:  # a sampler may yield any object
        return None
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)
    known = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    if not known or not 0 <= numbers.min() <= numbers.max() < records:
        return None
    return numbers.astype(np.int64)
