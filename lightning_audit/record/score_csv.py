"""Reads scores and memberships from a .csv file, and reports the line of an error."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import warnings
from collections.abc import Callable

import numpy as np

from lightning_audit._validate import shown
from lightning_audit.files.bounded import text_lines
from lightning_audit.layout import FloatArray

_COLUMNS = (
    "the first line must name the columns score and in (1 or True with the canary, 0 or False "
    "without)"
)
#: Error text for a score that is not finite.
NO_SCORE = "which is no score; find out why the attack gave none there"


class ScoresError(ValueError):
    """Scores cannot be read; the message says why and what to do."""


def read_scores(path: str | os.PathLike[str], max_values: int) -> tuple[FloatArray, FloatArray]:
    """Read the columns ``score`` and ``in``; other columns are ignored.

    Args:
        path: the .csv file.
        max_values: largest number of lines after the first one.

    Returns:
        The scores, finite, ``[n]``, and 1 or 0 for in or out, ``[n]``.

    Raises:
        ScoresError: the file is absent, lacks a column, or contains a value that is not a number.
    """
    name = os.fspath(path)
    try:
        with text_lines(path, max_values) as lines:
            columns = [column.strip() for column in next(csv.reader(lines), [])]
            if not {"score", "in"} <= set(columns):
                raise ScoresError(f"{name!r} has the columns {shown(columns)}; {_COLUMNS}.")
            used = [columns.index("score"), columns.index("in")]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "loadtxt: input contained no data")
                table = np.loadtxt(
                    lines,
                    delimiter=",",
                    usecols=used,
                    ndmin=2,
                    quotechar='"',
                    encoding=None,  # text for the converters, not bytes
                    converters={used[1]: _member},
                )
    except ScoresError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise ScoresError(f"cannot read {name!r} as .csv ({error}); {_COLUMNS}.") from error
    scores, members = table.reshape(-1, 2).T
    if (wrong := ~np.isfinite(scores)).any():
        line = _line_of(path, max_values, used[0], lambda score: not math.isfinite(score))
        raise ScoresError(
            f"line {line} of {name!r} holds score={scores[wrong][0]:g}, {NO_SCORE} "
            f"({np.sum(wrong)} of {wrong.size})."
        )
    if (wrong := ~np.isin(members, (0.0, 1.0))).any():
        line = _line_of(path, max_values, used[1], lambda member: member not in (0.0, 1.0))
        raise ScoresError(
            f"line {line} of {name!r} holds in={members[wrong][0]:g}, must be 1 or 0 "
            f"({np.sum(wrong)} of {wrong.size}); {_COLUMNS}."
        )
    return scores, members


def _member(text: str) -> float:
    """Parse a membership: 1 or 0, or True or False as written by pandas."""
    truth = {"true": 1.0, "false": 0.0}.get(text.strip().lower())
    return float(text) if truth is None else truth


def _line_of(
    path: str | os.PathLike[str], max_values: int, column: int, wrong: Callable[[float], bool]
) -> int | None:
    """Return the number of the first line with a wrong value in a column; None if not found."""
    with text_lines(path, max_values) as text, contextlib.suppress(csv.Error):
        lines = csv.reader(text)
        next(lines)
        for fields in lines:
            if len(fields) <= column or fields[0].lstrip().startswith("#"):
                continue
            with contextlib.suppress(ValueError):
                if wrong(_member(fields[column].split("#")[0])):
                    return lines.line_num
    return None
