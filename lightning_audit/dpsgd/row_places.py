"""Positions of canaries among a batch's rows: canaries are swapped with rows of the data.

Code that treats the last rows of a batch differently would treat canaries appended to the batch
differently from records. Swapping neither drops nor adds a row: a sum over all rows does not
change, except for the order of its terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lightning_audit.layout import IndexArray
from lightning_audit.taps.tensor_views import numpy_view


def draw_places(seed: Sequence[int] | None, batch: int, canaries: int) -> IndexArray:
    """Draw distinct rows of the batch for the first canaries; the others stay after the batch.

    The number that stays is drawn as if the canaries' positions were uniform over all rows, so that
    each row is a canary with the same probability.

    Args:
        seed: the audit's own seed; None to leave all canaries after the batch.
        batch: number of the data's rows.
        canaries: number of canaries after them.

    Returns:
        Row indices, ``[m]``, m at most ``min(canaries, batch)``; ``[0]`` without a seed.
    """
    if seed is None or not batch or not canaries:
        return np.zeros(0, dtype=np.int64)
    rng = np.random.default_rng(seed)
    among = canaries - int(rng.hypergeometric(canaries, batch, canaries))
    return rng.choice(batch, size=among, replace=False).astype(np.int64)


@torch.no_grad()
def swap_rows(
    tensors: Sequence[torch.Tensor],
    places: IndexArray,
    canaries: int,
    done: list[int] | None = None,
) -> None:
    """Swap the first rows after the batch with the rows at ``places``, in each tensor.

    A second call restores the order.

    Args:
        tensors: the batch's rows, followed by the canaries', ``[batch + canaries, *shape]``.
        places: from `draw_places`, ``[m]``.
        canaries: number of rows after the batch.
        done: list to which the id of each swapped tensor is appended.
    """
    if not len(places):
        return
    at: dict[torch.device, torch.Tensor] = {}
    done = [] if done is None else done
    for rows in tensors:
        first = len(rows) - canaries
        if rows.numel() and (entries := numpy_view(rows)) is not None:  # a third of torch's time
            view = entries.reshape(len(rows), -1)
            pairs = list(zip(places.tolist(), view[first:], strict=False))
            held = [view[place].copy() for place, _ in pairs]
            for (place, canary), own in zip(pairs, held, strict=True):
                view[place] = canary
                canary[:] = own
            done.append(id(rows))
            continue
        if rows.device not in at:  # copied to each device once, for all tensors
            at[rows.device] = torch.from_numpy(places).to(rows.device)
        behind, where = rows[first : first + len(places)], at[rows.device]
        records, own = rows.index_select(0, where), behind.clone()
        rows.index_copy_(0, where, own)
        behind.copy_(records)
        done.append(id(rows))


def rows_of_records(rows: torch.Tensor, places: IndexArray, canaries: int) -> torch.Tensor:
    """Return a value per record, in the batch's original order, from a value per row.

    Args:
        rows: one value per row after `swap_rows`, ``[batch + canaries]``.
        places: as for `swap_rows`.
        canaries: as for `swap_rows`.

    Returns:
        One value per record, ``[batch]``; a new tensor.
    """
    known = rows.clone()
    swap_rows([known], places, canaries)
    return known[: len(known) - canaries]
