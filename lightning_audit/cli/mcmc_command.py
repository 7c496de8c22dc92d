"""`lightning-audit mcmc`: posterior of epsilon and attack strength from the counts of attacks."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_audit._validate import shown
from lightning_audit.cli.options import positive_int, whole
from lightning_audit.cli.output import Refused, as_json
from lightning_audit.files.json_reader import read_json
from lightning_audit.stats.attack_strength.correlated_attacks import (
    correlated_attack_posterior,
    pooled_attacks,
)
from lightning_audit.stats.attack_strength.strength_posterior import (
    StrengthPosterior,
    attack_counts,
    attack_strength_posterior,
)
from lightning_audit.stats.bounds.counts import ConfusionCounts

_COUNTS = ("false_negatives", "n_in", "false_positives", "n_out")
_OPTIONAL = ("delta", "cluster", "groups")
_EXPECTED = (
    "it must be a JSON object with the lists false_negatives and false_positives, n_in and n_out "
    "(a list, or one number for all attacks), and may have delta, cluster and groups"
)
_NO_BOUND = (
    "an estimate under a prior of epsilon and of the attacks' strength, not a bound: its interval "
    "has its level averaged over the prior, not for this mechanism"
)


@dataclass(frozen=True)
class McmcResult:
    """The numbers that the command prints.

    Args:
        epsilon_mean: Posterior mean of epsilon.
        epsilon_interval: Equal-tailed credible interval of epsilon.
        strength_mean: Posterior mean of the strength.
        strength_interval: Equal-tailed credible interval of the strength.
        significance: One minus the level of the intervals.
        delta: Delta of epsilon.
        attacks: Number of attacks, after pooling.
        cluster: Number of decisions that depend on each other; None for independent ones.
        tau: Mean and standard deviation of the correlation within one kind of decisions.
        rho: Mean and standard deviation of the correlation between both kinds.
        interpretation: What the numbers mean.
    """

    epsilon_mean: float
    epsilon_interval: tuple[float, float]
    strength_mean: float
    strength_interval: tuple[float, float]
    significance: float
    delta: float
    attacks: int
    cluster: int | None = None
    tau: tuple[float, float] | None = None
    rho: tuple[float, float] | None = None
    interpretation: str = _NO_BOUND


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "MCMC-DP-Est by quadrature: posterior of epsilon and of the strength of "
        "attacks that may be weaker than the best possible ones, from their error counts. An "
        "estimate, not a bound. Exits with 0, or with 2 if it cannot be computed."
    )
    parser.add_argument(
        "counts",
        help="a JSON object with the lists false_negatives and false_positives, and n_in and "
        "n_out; it may have delta, cluster and groups",
    )
    parser.add_argument("--delta", type=float, help="delta in [0, 1) (default: the file's)")
    parser.add_argument(
        "--cluster",
        type=whole,
        metavar="M",
        help="decisions of one kind that depend on each other, such as all challenges of cross-fed "
        "attacks (default: the file's, else independent decisions)",
    )
    parser.add_argument(
        "--significance",
        type=float,
        default=0.1,
        help="one minus the level of the credible intervals (default: 0.1)",
    )
    parser.add_argument(
        "--epsilon-variance",
        type=float,
        default=10.0,
        metavar="V",
        help="variance of the half-normal prior of epsilon (default: 10)",
    )
    parser.add_argument(
        "--strength-shapes",
        type=float,
        nargs=2,
        default=(1.0, 1.0),
        metavar=("A", "B"),
        help="shapes of the Beta prior of the strength (default: 1 1)",
    )
    parser.add_argument(
        "--max-attacks",
        type=positive_int,
        default=1000,
        metavar="N",
        help="at most N attacks of different counts; each takes about 0.1 s (default: 1000)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> str:
    """Compute the posterior."""
    counts, given = read_counts(options.counts)
    delta = given.get("delta") if options.delta is None else options.delta
    if delta is None:
        raise Refused(f"{options.counts!r} has no delta; add it, or pass --delta.")
    cluster = given.get("cluster") if options.cluster is None else options.cluster
    try:
        if "groups" in given:
            counts, members = pooled_attacks(counts, given["groups"])
            cluster = members if cluster is None else cluster
        _refuse_many(counts, options.max_attacks)
        result = _result(counts, delta, cluster, options)
    except ValueError as error:
        raise Refused(str(error)) from error
    return as_json(asdict(result)) if options.json else _as_text(result)


def read_counts(path: str | os.PathLike[str]) -> tuple[ConfusionCounts, dict[str, Any]]:
    """Read the counts of attacks.

    Args:
        path: A JSON file; see docs/estimators/mcmc-dp-est.md.

    Returns:
        (the counts, other fields of the file: delta, cluster, groups).

    Raises:
        Refused: If the file is absent or holds anything else.
    """
    name = os.fspath(path)
    try:
        given = read_json(Path(path))
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read {name!r} as JSON ({error}); {_EXPECTED}.") from error
    if not isinstance(given, dict) or not set(_COUNTS) <= set(given):
        held = shown(sorted(given)) if isinstance(given, dict) else type(given).__name__
        raise Refused(f"{name!r} holds {held}; {_EXPECTED}.")
    unknown = set(given) - {*_COUNTS, *_OPTIONAL}
    if unknown:
        raise Refused(f"{name!r} holds {shown(sorted(unknown))}, which are unknown; {_EXPECTED}.")
    groups = given.get("groups", [])
    kinds = {type(label) for label in groups} if isinstance(groups, list) else {list}
    if len(kinds) > 1 or not kinds <= {int, str}:  # numpy would take 1 and "1" for one label
        raise Refused(
            f"{name!r}: groups={shown(groups)} must be a list of strings, or of whole numbers."
        )
    for key in _COUNTS:  # numpy would take true for 1
        if any(isinstance(v, bool) for v in np.ravel(np.array(given[key], dtype=object))):
            raise Refused(f"{name!r}: {key}={shown(given[key])} must hold whole numbers >= 0.")
    lengths = {key: len(given[key]) for key in _COUNTS if isinstance(given[key], list)}
    # numpy would broadcast a list of one number to every attack.
    if min(lengths.values(), default=1) == 1 < max(lengths.values(), default=1):
        raise Refused(f"{name!r} holds lists of lengths {lengths}, one number an attack in each.")
    try:
        counts = attack_counts(*(given[key] for key in _COUNTS))
    except ValueError as error:
        raise Refused(f"{name!r}: {error}") from error
    return counts, given


def _refuse_many(counts: ConfusionCounts, most: int) -> None:
    """Raise if there are too many distinct attacks, which determine the run time."""
    rows = np.broadcast_arrays(counts.fn, counts.tp, counts.fp, counts.tn)
    different = len(np.unique(np.stack(rows), axis=1).T)
    if different > most:
        raise Refused(
            f"{different} attacks of different counts are more than max_attacks={most}; pool them "
            "by groups, or raise --max-attacks: each takes about 0.1 s."
        )


def _result(
    counts: ConfusionCounts, delta: float, cluster: int | None, options: argparse.Namespace
) -> McmcResult:
    prior = {
        "epsilon_variance": options.epsilon_variance,
        "strength_shapes": tuple(options.strength_shapes),
    }
    tau = rho = None
    if cluster is None:
        joint: StrengthPosterior = attack_strength_posterior(counts, delta, **prior)
    else:
        found = correlated_attack_posterior(counts, delta, cluster, **prior)
        joint, tau, rho = found.joint, found.tau, found.rho
    return McmcResult(
        epsilon_mean=joint.epsilon.mean,
        epsilon_interval=joint.epsilon.interval(options.significance),
        strength_mean=joint.strength.mean,
        strength_interval=joint.strength.interval(options.significance),
        significance=options.significance,
        delta=delta,
        attacks=int(counts.fn.size),
        cluster=cluster,
        tau=tau,
        rho=rho,
    )


def _as_text(result: McmcResult) -> str:
    level = f"{100 * (1 - result.significance):g} %"
    low, high = result.epsilon_interval
    weak, strong = result.strength_interval
    kind = "independent decisions"
    if result.cluster is not None:
        kind = f"decisions correlated in clusters of {result.cluster}"
    lines = [
        f"epsilon {result.epsilon_mean:.4g}, {level} credible interval ({low:.4g}, {high:.4g}) at "
        f"delta {result.delta:g}",
        f"attack strength {result.strength_mean:.3g}, {level} credible interval ({weak:.3g}, "
        f"{strong:.3g})",
        f"{result.attacks} attacks, {kind}",
    ]
    if result.tau is not None and result.rho is not None:
        lines.append(
            f"tau {result.tau[0]:.3g} +- {result.tau[1]:.2g}, "
            f"rho {result.rho[0]:.3g} +- {result.rho[1]:.2g}"
        )
    return "\n".join([*lines, result.interpretation])
