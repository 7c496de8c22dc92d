"""What each per-sample gradient adds to a clipped sum, from one linear system."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import scipy

from lightning_audit.stats._arguments import Floats

#: Entries beyond the number of rows that determine their factors.
_LEAST_SPARE = 8
#: Distance of sums that are equal up to rounding, and of sums that surely differ, in units of one
#: plus the norm of the sum.
_EQUAL, _APART = 1e-4, 1e-2
#: Diagonal of the system's triangle, over its largest entry, below which rows are dependent.
_DEPENDENT = 1e-6
#: Standard errors that are subtracted from a factor.
_ERRORS = 6.0

Relation = Literal["rule", "linear", "other", "unclear"]


def parts_of_sum(rows: Floats, norms: Floats, total: Floats) -> tuple[Relation, Floats]:
    """Return how a clipped sum is made of its rows, and what each row adds to it at least.

    Args:
        rows: per-sample gradients at some entries, in units of the clipping norm, ``[n, m]``.
        norms: norms of the whole gradients, in this unit, ``[n]``.
        total: the sum at these entries, in this unit, ``[m]``.

    Returns:
        "rule" if each row is clipped to norm 1; "linear" if the sum is another combination of the
        rows; "other" if it is none; "unclear" if the entries do not determine it. And what each
        row adds, less `_ERRORS` standard errors, ``[n]``; zeros unless "linear".

    Example:
        >>> rows, norms = np.random.default_rng(0).normal(size=(3, 40)), np.ones(3)
        >>> rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        >>> parts_of_sum(rows, norms, rows.sum(axis=0))[0]
        'rule'
        >>> relation, parts = parts_of_sum(rows, norms, 2.0 * rows[0] + rows[1])
        >>> relation, parts[:2].round(3).tolist()
        ('linear', [2.0, 1.0])
    """
    found = np.zeros(len(rows))
    known = np.isfinite(rows).all(axis=1) & np.isfinite(norms) & (norms > 0.0)
    if not np.isfinite(total).all():
        return "unclear", found
    size = 1.0 + float(np.linalg.norm(total))
    usual = (rows[known] / np.maximum(norms[known], 1.0)[:, None]).sum(axis=0)
    if float(np.linalg.norm(usual - total)) <= _EQUAL * size:
        return "rule", found
    # A mask leaves zeros in the sum. What it hides of a row is not part of what the row adds.
    live = total != 0.0
    shown = np.linalg.norm(rows[:, live], axis=1)
    chosen = np.flatnonzero(known & (shown > 0.0))  # not a spike elsewhere, as a canary's
    whole = shown if rows[known][:, ~live].any() else norms
    system = (rows[chosen][:, live] / shown[chosen, None]).T
    spare = system.shape[0] - system.shape[1]
    if not len(chosen) or spare < _LEAST_SPARE:
        return "unclear", found
    q, r = np.linalg.qr(system)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() < _DEPENDENT * diagonal.max():
        return "unclear", found
    factors = scipy.linalg.solve_triangular(r, q.T @ total[live])
    rest = float(np.linalg.norm(system @ factors - total[live]))
    if rest > _EQUAL * size:
        return ("other" if rest > _APART * size else "unclear"), found
    inverse = scipy.linalg.solve_triangular(r, np.eye(len(r)))
    errors = np.linalg.norm(inverse, axis=1) * rest / math.sqrt(spare)
    sure = np.abs(factors) - _ERRORS * errors
    found[chosen] = sure * whole[chosen] / shown[chosen]
    return "linear", found
