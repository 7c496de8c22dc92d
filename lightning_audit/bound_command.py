"""`lightning-audit bound`: a lower bound on epsilon from an attack's scores, by name."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats.bounds import NamedBound, named_bound
from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    Maximum,
    Simultaneous,
    Split,
    ThresholdChoice,
)

Scores = NDArray[np.float64]

_CHOICES = "a number, several with commas, split, berk_jones, dkw or max"
_EXPECTED = (
    "it must hold the arrays scores_in and scores_out, or the coins and readings of an audit's "
    "observations.npz"
)


class BoundError(Exception):
    """The bound cannot be computed; the message says why and what to do."""


def run(options: argparse.Namespace) -> str:
    """Compute the bound.

    Args:
        options: the parsed arguments.

    Returns:
        What to print.

    Raises:
        BoundError: the file or an argument is wrong.
    """
    inside, outside, default = read_scores(options.scores)
    try:
        choice = default if options.threshold is None else parse_threshold(options.threshold)
        bound = named_bound(
            options.method, inside, outside, options.delta, options.significance, choice
        )
    except ValueError as error:
        raise BoundError(str(error)) from error
    if options.json:
        return _as_json(bound, len(inside), len(outside))
    return _as_text(bound, len(inside), len(outside))


def read_scores(path: str | os.PathLike[str]) -> tuple[Scores, Scores, ThresholdChoice]:
    """Read an attack's scores.

    Args:
        path: an .npz with scores_in and scores_out, or an audit's observations.npz.

    Returns:
        (scores in, scores out, how the threshold is chosen unless the user says so).

    Raises:
        BoundError: the file is absent, is no .npz, or holds neither.
    """
    name = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key != "header"}
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise BoundError(f"cannot read {name!r} as .npz ({error}); {_EXPECTED}.") from error
    if {"scores_in", "scores_out"} <= set(arrays):
        return _vector(arrays, "scores_in"), _vector(arrays, "scores_out"), Split()
    if {"coins", "readings", "canaries"} <= set(arrays):
        # Column `canaries` tells the steps whose canaries went in as planned.
        counted = arrays["canaries"] == 1
        coins, readings = arrays["coins"][counted] > 0, arrays["readings"][counted]
        finite = np.isfinite(readings)
        return readings[finite & coins], readings[finite & ~coins], Fixed(0.5)
    raise BoundError(f"{name!r} holds {sorted(arrays)}; {_EXPECTED}.")


def parse_threshold(text: str) -> ThresholdChoice:
    """The choice of a threshold that a word or numbers stand for.

    Args:
        text: a number, several with commas, or "split", "berk_jones", "dkw", "max".

    Raises:
        BoundError: it is none of them.

    Example:
        >>> parse_threshold("0.5"), parse_threshold("dkw")
        (Fixed(threshold=0.5), Simultaneous(band='dkw'))
    """
    match text:
        case "split":
            return Split()
        case "max":
            return Maximum()
        case "berk_jones" | "dkw":
            return Simultaneous(text)
    try:
        numbers = [float(part) for part in text.split(",")]
        return Fixed(numbers[0]) if len(numbers) == 1 else Grid(tuple(numbers))
    except ValueError as error:
        raise BoundError(f"threshold={text!r} must be {_CHOICES}; {error}.") from error


def _vector(arrays: dict[str, Any], name: str) -> Scores:
    array = arrays[name]
    if array.dtype.kind not in "iufb" or array.ndim != 1 or not np.isfinite(array).all():
        raise BoundError(
            f"{name} has dtype {array.dtype} and shape {array.shape}; it must be a vector of "
            "finite numbers, one score an observation."
        )
    vector: Scores = array.astype(np.float64)
    return vector


def _as_json(bound: NamedBound, n_in: int, n_out: int) -> str:
    fields: dict[str, Any] = {**dataclasses.asdict(bound), "n_in": n_in, "n_out": n_out}
    # JSON has no infinity; the reports write it in this way, too.
    plain = {k: str(v) if isinstance(v, float) and math.isinf(v) else v for k, v in fields.items()}
    return json.dumps(plain, indent=2, allow_nan=False)


def _as_text(bound: NamedBound, n_in: int, n_out: int) -> str:
    level = f"{100 * (1 - bound.significance):g} %"
    first = f"epsilon >= {bound.epsilon_lower:.6g} at delta {bound.delta:g}"
    if bound.mu_lower is not None:
        first += f" (mu >= {bound.mu_lower:.6g})"
    lines = [
        first,
        f"{bound.method}: {level} {bound.interpretation}, {n_in} scores in, {n_out} out",
    ]
    if bound.threshold is not None:
        lines.append(f"threshold {bound.threshold_value:.6g}, {bound.threshold}")
    if not bound.valid:
        lines.append(
            "NOT VALID: the threshold was chosen on the scores that the bound is computed from"
        )
    return "\n".join([*lines, *(f"assumes: {what}" for what in bound.assumptions)])
