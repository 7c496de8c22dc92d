"""What was read of each tensor's noise, as rows of the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.report_details import TensorNoise
from lightning_audit.stats.evalues.noise_scale import limits_of_each

#: Most rows of tensors that are not flagged.
MOST_UNFLAGGED = 50


def rows_of(
    monitor: AuditMonitor, sizes: Mapping[str, int], optimizer: str = ""
) -> list[TensorNoise]:
    """Return a row for each tensor of a private optimizer.

    Args:
        monitor: the current checks.
        sizes: number of entries by name of the tensor.
        optimizer: its label, if there are several.
    """
    noise, header = monitor.witness_noise, monitor.header
    flagged = {*noise.flagged_tensors()}
    lower, upper = limits_of_each(noise.sums.count, noise.sums.squares)
    return [
        TensorNoise(
            name=name,
            size=sizes[name],
            entries=header.witnesses[j],
            reads=int(noise.sums.count[j]),
            ratio=float(np.sqrt(noise.sums.mean_square[j])) if noise.sums.count[j] else None,
            lower=float(lower[j]) if lower[j] > 0.0 else None,
            upper=float(upper[j]) if np.isfinite(upper[j]) else None,
            flagged=name in flagged,
            optimizer=optimizer,
        )
        for j, name in enumerate(header.tensors)
    ]


def capped(rows: Iterable[TensorNoise]) -> tuple[tuple[TensorNoise, ...], int]:
    """Return the flagged tensors and those with the least noise, and how many are left out."""
    every = sorted(rows, key=lambda row: (not row.flagged, row.ratio is None, row.ratio or 0.0))
    flagged = sum(row.flagged for row in every)
    kept = every[: flagged + MOST_UNFLAGGED]
    return tuple(kept), len(every) - len(kept)
