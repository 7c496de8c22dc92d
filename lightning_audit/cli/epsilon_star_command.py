"""`lightning-audit epsilon-star`: Epsilon* of one model from the losses of its records."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import os
from typing import Any

import numpy as np

from lightning_audit import _validate
from lightning_audit.cli.options import add_max_values, positive_int, whole
from lightning_audit.cli.output import Refused, as_json
from lightning_audit.files.bounded import text_lines
from lightning_audit.files.npz import MAX_VALUES, open_npz
from lightning_audit.layout import FloatArray
from lightning_audit.stats.membership.epsilon_star import (
    Empirical,
    EpsilonStar,
    Method,
    Parametric,
    epsilon_star,
)
from lightning_audit.stats.membership.epsilon_star_null import PermutationNull, epsilon_star_null

_SIDES = ("train", "population")
_EXPECTED = (
    "it must be an .npz with the vectors losses_train and losses_population, or a .csv with the "
    "columns side (train or population) and loss"
)
_NO_BOUND = "it describes this model; it is not a bound on the epsilon of its training"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Epsilon*: how well a threshold on one model's losses separates training data "
        "from other data, with its values under random permutations. It describes the model and "
        "is not a bound on the epsilon of its training. Exits with 0, or with 2 if it cannot be "
        "computed."
    )
    parser.add_argument(
        "losses",
        help="an .npz with losses_train and losses_population, or a .csv with the columns side "
        "(train or population) and loss",
    )
    parser.add_argument("--delta", required=True, type=float, help="delta of Epsilon*, in [0, 1)")
    parser.add_argument(
        "--clip",
        type=float,
        default=0.001,
        help="smallest error rate in a denominator, in [0, 0.5) (default: 0.001); the value "
        "depends on it",
    )
    parser.add_argument(
        "--components",
        type=positive_int,
        metavar="N",
        help="fit mixtures of N Gaussians to each side (default: use the ranks of the losses)",
    )
    parser.add_argument(
        "--permutations",
        type=positive_int,
        default=999,
        metavar="N",
        help="random permutations of the losses over the sides (default: 999)",
    )
    parser.add_argument(
        "--seed", type=whole, default=0, help="seed of the permutations (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_max_values(parser)


def run(options: argparse.Namespace) -> str:
    """Compute Epsilon* and its null."""
    train, population = read_losses(options.losses, max_values=options.max_values)
    try:
        method: Method = Empirical(options.clip)
        if options.components:
            method = Parametric(options.clip, options.components)
        star = epsilon_star(train, population, options.delta, method)
        null = epsilon_star_null(
            train,
            population,
            options.delta,
            method,
            permutations=options.permutations,
            rng=np.random.default_rng(options.seed),
        )
    except ValueError as error:
        raise Refused(str(error)) from error
    show = _as_json if options.json else _as_text
    return show(star, null, (len(train), len(population)))


def read_losses(
    path: str | os.PathLike[str], *, max_values: int = MAX_VALUES
) -> tuple[FloatArray, FloatArray]:
    """Read the losses of both sides.

    Args:
        path: An .npz with losses_train and losses_population, or a .csv with side and loss.
        max_values: Largest number of losses to read, regardless of what the file declares.

    Returns:
        (training losses, losses of the population).

    Raises:
        Refused: If the file is absent or holds anything else.
    """
    name = os.fspath(path)
    names = [f"losses_{side}" for side in _SIDES]
    try:
        if name.lower().endswith(".csv"):
            return _from_csv(name, max_values)
        with open_npz(path, max_values) as archive:
            held = archive.names
            if set(names) <= set(held):
                train, population = (archive.numbers(n, "iuf", 1) for n in names)
                return train.astype(np.float64), population.astype(np.float64)
    except (OSError, ValueError, csv.Error) as error:
        raise Refused(f"cannot read {name!r} ({error}); {_EXPECTED}.") from error
    raise Refused(f"{name!r} holds {_validate.shown(held)}; {_EXPECTED}.")


def _from_csv(name: str, max_values: int) -> tuple[FloatArray, FloatArray]:
    found: dict[str, list[float]] = {side: [] for side in _SIDES}
    with text_lines(name, max_values) as lines:
        rows = csv.DictReader(lines)
        if not {"side", "loss"} <= set(rows.fieldnames or ()):
            raise ValueError(f"its columns are {_validate.shown(rows.fieldnames)}")
        for row in rows:
            if row["side"] not in found:
                raise ValueError(f"line {rows.line_num} has side={_validate.shown(row['side'])}")
            try:
                loss = float(row["loss"])
            except (TypeError, ValueError):
                loss = math.nan
            if math.isnan(loss):
                told = _validate.shown(row["loss"])
                raise ValueError(f"line {rows.line_num} has loss={told}, which is not a number")
            found[row["side"]].append(loss)
    train, population = (np.array(found[side]) for side in _SIDES)
    return train, population


def _as_json(star: EpsilonStar, null: PermutationNull, sizes: tuple[int, int]) -> str:
    fields: dict[str, Any] = {
        **dataclasses.asdict(star),
        "null": {k: v for k, v in dataclasses.asdict(null).items() if k != "value"},
        "decided_by": _decided_by(star, sizes),
        "n_train": sizes[0],
        "n_population": sizes[1],
        "interpretation": _NO_BOUND,
    }
    return as_json(fields)


def _decided_by(star: EpsilonStar, sizes: tuple[int, int]) -> str | None:
    """Return what limits the rate in the denominator; None if nothing does."""
    if not star.at_clip:
        return None
    one_loss = star.fit is None and star.clip < 1 / _denominator(star, sizes)[1]
    return "one loss" if one_loss else "clip"


def _denominator(star: EpsilonStar, sizes: tuple[int, int]) -> tuple[str, int]:
    """Return the name and number of the losses that give the rate in the denominator."""
    if star.inequality in ("train_below", "train_above"):
        return "losses of the population", sizes[1]
    return "training losses", sizes[0]


def _as_text(star: EpsilonStar, null: PermutationNull, sizes: tuple[int, int]) -> str:
    lines = [
        f"epsilon* {star.value:.6g} at delta {star.delta:g} and clip {star.clip:g}, "
        f"{sizes[0]} training losses, {sizes[1]} of the population",
        f"under random permutations: median {null.median:.6g}, 95 % below "
        f"{null.quantile_95:.6g}; p-value {null.p_value:.3g} ({null.permutations} permutations)",
    ]
    if star.threshold is not None:
        lines.append(
            f"attained at loss {star.threshold:.6g}: FPR {star.fpr:.4g}, FNR {star.fnr:.4g} "
            f"({star.inequality})"
        )
    decided_by = _decided_by(star, sizes)
    if decided_by == "clip":
        lines.append("the clip decides the value, not the losses: another clip gives another value")
    elif decided_by == "one loss":
        side, size = _denominator(star, sizes)
        where = "up to" if str(star.inequality).endswith("below") else "above"
        lines.append(
            f"one loss decides the value: at most 1 of the {size} {side} is {where} the threshold, "
            f"and none counts as 1/{size}; more losses may change it, a smaller clip does not"
        )
    if star.fit is not None:
        lines.append(
            f"Kolmogorov-Smirnov distance of the fits: train {star.fit.ks_train:.3g}, "
            f"population {star.fit.ks_population:.3g}"
        )
    return "\n".join([*lines, _NO_BOUND])
