"""Where canaries stand among a batch's rows: a canary and a row of the data change places.

Code that treats the last rows of a batch otherwise than the others would treat canaries behind the
batch otherwise than records. No row is lost and none is added: a sum over all rows is the same, but
for the order of its terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lightning_audit.layout import IndexArray
from lightning_audit.taps.tensor_views import numpy_view


def draw_places(seed: Sequence[int] | None, batch: int, canaries: int) -> IndexArray:
    """Distinct rows of the batch for the first canaries; the others stay behind it.

    As many stay as stood there if all places were drawn alike, so that any row may be a canary's.

    Args:
        seed: of the audit's own; None to leave all canaries behind the batch.
        batch: number of the data's rows.
        canaries: number of canaries behind them.

    Returns:
        Row numbers, ``[m]``, m at most ``min(canaries, batch)``; ``[0]`` without a generator.
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
    """Let the first rows behind the batch and the rows at ``places`` change places, in each tensor.

    Doing it twice changes nothing.

    Args:
        tensors: the batch's rows and the canaries' behind them, ``[batch + canaries, *shape]``.
        places: of `draw_places`, ``[m]``.
        canaries: number of rows behind the batch.
        done: takes the identity of each tensor whose rows have changed places.
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
        if rows.device not in at:  # one way to a device for all tensors
            at[rows.device] = torch.from_numpy(places).to(rows.device)
        behind, where = rows[first : first + len(places)], at[rows.device]
        records, own = rows.index_select(0, where), behind.clone()
        rows.index_copy_(0, where, own)
        behind.copy_(records)
        done.append(id(rows))


def rows_of_records(rows: torch.Tensor, places: IndexArray, canaries: int) -> torch.Tensor:
    """What is known of each row, without the canaries', in the order that the batch had.

    Args:
        rows: a value for each row after `swap_rows`, ``[batch + canaries]``.
        places: as there.
        canaries: as there.

    Returns:
        A value for each record, ``[batch]``; a new tensor.
    """
    known = rows.clone()
    swap_rows([known], places, canaries)
    return known[: len(known) - canaries]
