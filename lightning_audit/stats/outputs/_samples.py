"""Validation of samples of a mechanism's outputs, and of claims about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.tradeoff.tradeoff_functions import TradeoffFunction

#: Larger samples are rejected: their squares are not finite.
LARGEST = 1e100


def sample_rows(name: str, value: ArrayLike, least: int = 2) -> Floats:
    """Return samples as a table of finite numbers, ``[n, d]``; a vector is one column."""
    table = np.asarray(value)
    if table.dtype.kind not in "iufb":
        raise ValueError(f"{name} has dtype {table.dtype}, must hold real numbers, [n] or [n, d].")
    if table.ndim == 0 or len(table) < least:
        raise ValueError(
            f"{name} has shape {table.shape}, must hold at least {least} samples, [n] or [n, d]; "
            "draw more."
        )
    rows = table.astype(np.float64).reshape(len(table), -1)
    if not rows.shape[1]:
        raise ValueError(f"{name} has shape {table.shape}; a sample must hold a number.")
    if len(rows) and np.abs(rows).max() > LARGEST and np.isfinite(rows).all():
        raise ValueError(
            f"{name} holds numbers beyond {LARGEST:g}, whose squares are not finite; rescale them."
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] is not finite ({len(bad)} of {len(rows)} samples are not); "
            "a failed draw is not a sample, and must not be dropped unreported."
        )
    return rows


def sample_pair(
    samples_p: ArrayLike, samples_q: ArrayLike, least: int = 2
) -> tuple[Floats, Floats]:
    """Return samples of both worlds, of one dimension."""
    p, q = sample_rows("samples_p", samples_p, least), sample_rows("samples_q", samples_q, least)
    if p.shape[1] != q.shape[1]:
        raise ValueError(
            f"samples_p has {p.shape[1]} numbers a sample and samples_q {q.shape[1]}, must be as "
            "many; draw both from the same mechanism."
        )
    return p, q


def claim_of_both_orders(claim: TradeoffFunction) -> TradeoffFunction:
    """Return the claim, unless it states that it covers only one order of the two data sets."""
    direction = getattr(claim, "direction", "both")
    if direction != "both":
        raise ValueError(
            f"claim={claim!r} is of the direction {direction!r} only, must be of both, as f-DP is; "
            "take direction='both'."
        )
    return claim
