"""`bound`, `epsilon-star`, `mcmc` and `power`: statistics of files and of planned audits."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.checks.clipping import SENSITIVITY
from lightning_audit.checks.noise import NOISE_CANARY
from lightning_audit.cli.main import (
    Command,
    Refused,
    add_max_values,
    as_json,
    positive_int,
    refusing,
    whole,
)
from lightning_audit.files import open_npz, read_json, text_lines
from lightning_audit.layout import FloatArray
from lightning_audit.record.scores import CanaryScores, ScoresError, reading
from lightning_audit.report.text import as_text, table
from lightning_audit.stats.attack_strength import (
    StrengthPosterior,
    attack_counts,
    attack_strength_posterior,
)
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior, pooled_attacks
from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.epsilon_star import (
    Empirical,
    EpsilonStar,
    Method,
    Parametric,
    PermutationNull,
    epsilon_star,
    epsilon_star_null,
)
from lightning_audit.stats.named_bounds import BOUND_NAMES, NamedBound
from lightning_audit.stats.one_run_bounds import ONE_RUN_NAMES
from lightning_audit.stats.power import (
    POWER_METHODS,
    bound_power,
    noise_power,
    sensitivity_power,
    steps_needed,
)
from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    Maximum,
    MultiSplit,
    Simultaneous,
    Split,
    ThresholdChoice,
)
from lightning_audit.stats.tradeoff import gaussian_mu


def show(fields: Mapping[str, Any], lines: Iterable[str], options: argparse.Namespace) -> str:
    """Return what a command prints: its fields as JSON if that is asked for, else the lines."""
    return as_json(fields) if options.json else "\n".join(lines)


# --- `lightning-audit bound`: a lower bound on epsilon from an attack's scores, by name.

#: False positive rates at which the option --roc prints the true positive rate.
_FPRS = (0.001, 0.01, 0.1)
_THRESHOLDS: Mapping[str, ThresholdChoice] = {
    "split": Split(),
    "multi_split": MultiSplit(),
    "berk_jones": Simultaneous("berk_jones"),
    "dkw": Simultaneous("dkw"),
    "max": Maximum(),
}
_CHOICES = "a number, several with commas, split, multi_split, berk_jones, dkw or max"


def add_bound_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Lower bound on the epsilon of one observation, from the scores of an attack "
        "with and without the canary. Exits with 0, or with 2 if it cannot be computed."
    )
    parser.add_argument(
        "scores",
        help="an .npz with scores_in and scores_out, or scores and memberships; a .csv or .npy "
        "with the scores and who was in; LeakPro's .json; an audit's observations.npz or its "
        "report.json",
    )
    parser.add_argument(
        "scores_out",
        nargs="?",
        metavar="out",
        help="a .csv or .npy with the scores without the canary; the first file has those with it",
    )
    parser.option("[--members FILE]", "a .csv or .npy that says who was in (1 or 0)")
    for of in ("score", "member"):
        parser.option(
            f"[--{of}-column NAME]",
            f"column of the {of}s, by its name, or from 0 in a table without names",
        )
    parser.option(
        "--method NAME",
        f"one of {', '.join(BOUND_NAMES)}; or, for many canaries of one training, of "
        f"{', '.join(ONE_RUN_NAMES)}",
    )
    parser.option("--delta", "delta of the epsilon, in (0, 1)", float)
    parser.option("[--significance]", "probability that the bound is wrong", float, 0.05)
    parser.option(
        "[--threshold CHOICE]",
        "how the threshold is chosen: a number, several with commas, split, multi_split, "
        "berk_jones, dkw, or max, which gives no valid bound (default: 0.5 for observations, split "
        "for scores); none for fdp_t and the methods of one training",
    )
    parser.option(
        "[--guesses N]",
        "number of canaries of one training to guess, those with the largest and the smallest "
        "scores; several with commas. Choose it before you see the scores: the bound rests on that "
        "(default: half, an eighth and a 32nd of them; with --sides in, a quarter, a 16th and a "
        "64th)",
    )
    parser.option(
        "[--sides]",
        "both: half of them are guessed in and half out (default); in: all are guessed in, "
        "for an attack that finds members only",
        ("both", "in"),
        "both",
    )
    parser.option("[--roc]", "also print the AUROC and the TPR at small FPRs", bool)
    parser.option("[--json]", "print the bound as JSON", bool)
    add_max_values(parser)


def run_bound(options: argparse.Namespace) -> str:
    """Compute the bound."""
    with refusing(ValueError):
        names = "members", "score_column", "member_column", "max_values"
        given = {name: getattr(options, name) for name in names}
        scores = CanaryScores.load(options.scores, options.scores_out, **given)
        for side, held in (("with", scores.in_scores), ("without", scores.out_scores)):
            if not held.size:
                raise Refused(
                    f"{options.scores!r} holds no score {side} the canary; both are needed."
                )
        choice = None if options.threshold is None else parse_threshold(options.threshold)
        guesses = None if options.guesses is None else parse_guesses(options.guesses)
        bound = scores.bound(
            options.method,
            options.delta,
            options.significance,
            choice,
            guesses=guesses,
            sides=options.sides,
        )
        rates = _rates(scores, options.significance) if options.roc else {}
    of = {"of": "attack"} if scores.steps is None else {"of": "one step", "steps": scores.steps}
    fields = {
        **asdict(bound),
        **of,
        "n_in": len(scores.in_scores),
        "n_out": len(scores.out_scores),
        "dropped": scores.dropped,
        "source": scores.source,
        **rates,
    }
    return show(fields, _bound_in_words(bound, scores, rates), options)


def parse_threshold(text: str) -> ThresholdChoice:
    """Return the threshold choice that an option's text names.

    Args:
        text: A number, several with commas, or "split", "multi_split",
            "berk_jones", "dkw", "max".

    Raises:
        Refused: If the text is none of them.

    Example:
        >>> parse_threshold("0.5"), parse_threshold("dkw")
        (Fixed(threshold=0.5), Simultaneous(band='dkw'))
    """
    if text in _THRESHOLDS:
        return _THRESHOLDS[text]
    try:
        numbers = [float(part) for part in text.split(",")]
        return Fixed(numbers[0]) if len(numbers) == 1 else Grid(tuple(numbers))
    except ValueError as error:
        raise Refused(f"threshold={text!r} must be {_CHOICES}; {error}.") from error


def parse_guesses(text: str) -> tuple[int, ...]:
    """Return the numbers of guesses in a text with commas.

    Raises:
        Refused: If a part is not a whole number >= 1.

    Example:
        >>> parse_guesses("250,62")
        (250, 62)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise Refused(f"guesses={text!r} must be a whole number >= 1, or several with commas.")
    return tuple(int(part) for part in parts)


def _rates(scores: CanaryScores, significance: float) -> dict[str, float]:
    """Return observed rates, and simultaneous lower bounds on the true rates."""
    rates = {"auroc": scores.auroc()}
    for fpr in _FPRS:
        rates[f"tpr_at_fpr_{fpr:g}"] = scores.tpr_at_fpr(fpr)
        rates[f"tpr_lower_at_fpr_{fpr:g}"] = scores.tpr_at_fpr(fpr, significance)
    return rates


def _bound_in_words(
    bound: NamedBound, scores: CanaryScores, rates: Mapping[str, float]
) -> Iterator[str]:
    level = f"{100 * (1 - bound.significance):g} %"
    mu = "" if bound.mu_lower is None else f" (mu >= {bound.mu_lower:.6g})"
    steps = (
        ""
        if scores.steps is None
        else f", for one step: {scores.steps:,} steps were read; what the run spends is another "
        "number"
    )
    yield f"epsilon >= {bound.epsilon_lower:.6g} at delta {bound.delta:g}{mu}{steps}"
    yield (
        f"{bound.method}: {level} {bound.interpretation}, {len(scores.in_scores)} scores in, "
        f"{len(scores.out_scores)} out"
    )
    yield scores.source
    if scores.dropped:
        yield f"{scores.dropped} readings were not finite and were left out"
    if bound.threshold is not None:
        yield f"threshold {bound.threshold_value:.6g}, {bound.rule}"
    if bound.guesses is not None:
        yield f"{bound.correct} of {bound.guesses} guesses right: {bound.rule}"
    if not bound.valid:
        yield (
            "NOT VALID: the threshold was chosen on the scores that the bound is computed from"
            if bound.threshold
            else "NOT VALID in general: scores that are not Gaussian, or data that differ from "
            "canary to canary, can raise it above the true epsilon"
        )
    yield from (f"assumes: {what}" for what in bound.assumptions)
    if rates:
        yield f"AUROC {rates['auroc']:.6g} (observed)"
    for fpr in _FPRS if rates else ():
        seen, lower = rates[f"tpr_at_fpr_{fpr:g}"], rates[f"tpr_lower_at_fpr_{fpr:g}"]
        yield (
            f"TPR at FPR {fpr:g}: {seen:.6g} observed, >= {lower:.6g} at {level}, if "
            "the scores are independent"
        )


# --- `lightning-audit epsilon-star`: Epsilon* of one model from the losses of its records.

_SIDES = ("train", "population")
_EXPECTED_LOSSES = (
    "it must be an .npz with the vectors losses_train and losses_population, or a .csv with the "
    "columns side (train or population) and loss"
)
_ONE_MODEL = "it describes this model; it is not a bound on the epsilon of its training"


def add_epsilon_star_arguments(parser: Command) -> None:
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
    parser.option("--delta", "delta of Epsilon*, in [0, 1)", float)
    parser.option(
        "[--clip]",
        "smallest error rate in a denominator, in [0, 0.5) (default: 0.001); the value "
        "depends on it",
        float,
        0.001,
    )
    parser.option(
        "[--components N]",
        "fit mixtures of N Gaussians to each side (default: use the ranks of the losses)",
        positive_int,
    )
    parser.option(
        "[--permutations N]", "random permutations of the losses over the sides", positive_int, 999
    )
    parser.option("[--seed]", "seed of the permutations", whole, 0)
    parser.option("[--json]", "print the result as JSON", bool)
    add_max_values(parser)


def run_epsilon_star(options: argparse.Namespace) -> str:
    """Compute Epsilon* and its null."""
    with refusing(ValueError):
        train, population = read_losses(options.losses, options.max_values)
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
    sizes = len(train), len(population)
    fields = {
        **asdict(star),
        "null": {name: value for name, value in asdict(null).items() if name != "value"},
        "decided_by": _decided_by(star, sizes),
        "n_train": sizes[0],
        "n_population": sizes[1],
        "interpretation": _ONE_MODEL,
    }
    return show(fields, _epsilon_star_in_words(star, null, sizes), options)


def read_losses(path: str, max_values: int) -> tuple[FloatArray, FloatArray]:
    """Read the losses of both sides.

    Args:
        path: An .npz with losses_train and losses_population, or a .csv with side and loss.
        max_values: Largest number of losses to read, regardless of what the file declares.

    Returns:
        (training losses, losses of the population).

    Raises:
        ScoresError: If the file is absent or holds anything else.
    """
    with reading(path, "", _EXPECTED_LOSSES):
        if path.lower().endswith(".csv"):
            return _from_csv(path, max_values)
        with open_npz(path, max_values) as archive:
            names = [f"losses_{side}" for side in _SIDES]
            if set(names) <= set(archive.names):
                train, population = (archive.numbers(n, "iuf", 1) for n in names)
                return train.astype(np.float64), population.astype(np.float64)
    raise ScoresError(f"{path!r} holds {shown(archive.names)}; {_EXPECTED_LOSSES}.")


def _from_csv(name: str, max_values: int) -> tuple[FloatArray, FloatArray]:
    found: dict[str, list[float]] = {side: [] for side in _SIDES}
    with text_lines(name, max_values) as lines:
        rows = csv.DictReader(lines)
        if not {"side", "loss"} <= set(rows.fieldnames or ()):
            raise ValueError(f"its columns are {shown(rows.fieldnames)}")
        for row in rows:
            if row["side"] not in found:
                raise ValueError(f"line {rows.line_num} has side={shown(row['side'])}")
            try:
                loss = float(row["loss"])
            except (TypeError, ValueError):
                loss = math.nan
            if math.isnan(loss):
                told = shown(row["loss"])
                raise ValueError(f"line {rows.line_num} has loss={told}, which is not a number")
            found[row["side"]].append(loss)
    train, population = (np.array(found[side]) for side in _SIDES)
    return train, population


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


def _epsilon_star_in_words(
    star: EpsilonStar, null: PermutationNull, sizes: tuple[int, int]
) -> Iterator[str]:
    yield (
        f"epsilon* {star.value:.6g} at delta {star.delta:g} and clip {star.clip:g}, "
        f"{sizes[0]} training losses, {sizes[1]} of the population"
    )
    yield (
        f"under random permutations: median {null.median:.6g}, 95 % below "
        f"{null.quantile_95:.6g}; p-value {null.p_value:.3g} ({null.permutations} permutations)"
    )
    if star.threshold is not None:
        yield (
            f"attained at loss {star.threshold:.6g}: FPR {star.fpr:.4g}, FNR {star.fnr:.4g} "
            f"({star.inequality})"
        )
    decided_by = _decided_by(star, sizes)
    if decided_by == "clip":
        yield "the clip decides the value, not the losses: another clip gives another value"
    elif decided_by == "one loss":
        side, size = _denominator(star, sizes)
        where = "up to" if str(star.inequality).endswith("below") else "above"
        yield (
            f"one loss decides the value: at most 1 of the {size} {side} is {where} the threshold, "
            f"and none counts as 1/{size}; more losses may change it, a smaller clip does not"
        )
    if star.fit is not None:
        yield (
            f"Kolmogorov-Smirnov distance of the fits: train {star.fit.ks_train:.3g}, "
            f"population {star.fit.ks_population:.3g}"
        )
    yield _ONE_MODEL


# --- `lightning-audit mcmc`: posterior of epsilon and attack strength from the counts of attacks.

_COUNTS = ("false_negatives", "n_in", "false_positives", "n_out")
_OPTIONAL = ("delta", "cluster", "groups")
_EXPECTED_COUNTS = (
    "it must be a JSON object with the lists false_negatives and false_positives, n_in and n_out "
    "(a list, or one number for all attacks), and may have delta, cluster and groups"
)
_ESTIMATE_ONLY = (
    "an estimate under a prior of epsilon and of the attacks' strength, not a bound: its interval "
    "has its level averaged over the prior, not for this mechanism"
)


def add_mcmc_arguments(parser: Command) -> None:
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
    parser.option("[--delta]", "delta in [0, 1) (default: the file's)", float)
    parser.option(
        "[--cluster M]",
        "decisions of one kind that depend on each other, such as all challenges of cross-fed "
        "attacks (default: the file's, else independent decisions)",
        whole,
    )
    parser.option("[--significance]", "one minus the level of the credible intervals", float, 0.1)
    parser.option(
        "[--epsilon-variance V]", "variance of the half-normal prior of epsilon", float, 10.0
    )
    parser.option(
        "[--strength-shapes A B]",
        "shapes of the Beta prior of the strength (default: 1 1)",
        float,
        (1.0, 1.0),
    )
    parser.option(
        "[--max-attacks N]",
        "at most N attacks of different counts; each takes about 0.1 s",
        positive_int,
        1000,
    )
    parser.option("[--json]", "print the result as JSON", bool)


def run_mcmc(options: argparse.Namespace) -> str:
    """Compute the posterior."""
    counts, given = read_counts(options.counts)
    delta = given.get("delta") if options.delta is None else options.delta
    if delta is None:
        raise Refused(f"{options.counts!r} has no delta; add it, or pass --delta.")
    cluster = given.get("cluster") if options.cluster is None else options.cluster
    with refusing(ValueError):
        if "groups" in given:
            counts, members = pooled_attacks(counts, given["groups"])
            cluster = members if cluster is None else cluster
        _refuse_many(counts, options.max_attacks)
        fields = _posterior(counts, delta, cluster, options)
    return show(fields, _posterior_in_words(fields), options)


def read_counts(name: str) -> tuple[ConfusionCounts, dict[str, Any]]:
    """Read the counts of attacks.

    Args:
        name: A JSON file; see docs/estimators/mcmc-dp-est.md.

    Returns:
        (the counts, other fields of the file: delta, cluster, groups).

    Raises:
        Refused: If the file is absent or holds anything else.
    """
    with refusing(ScoresError), reading(name, " as JSON", _EXPECTED_COUNTS):
        given = read_json(Path(name))
    if not isinstance(given, dict) or not set(_COUNTS) <= set(given):
        held = shown(sorted(given)) if isinstance(given, dict) else type(given).__name__
        raise Refused(f"{name!r} holds {held}; {_EXPECTED_COUNTS}.")
    unknown = set(given) - {*_COUNTS, *_OPTIONAL}
    if unknown:
        raise Refused(
            f"{name!r} holds {shown(sorted(unknown))}, which are unknown; {_EXPECTED_COUNTS}."
        )
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
        return attack_counts(*(given[key] for key in _COUNTS)), given
    except ValueError as error:
        raise Refused(f"{name!r}: {error}") from error


def _refuse_many(counts: ConfusionCounts, most: int) -> None:
    """Raise if there are too many distinct attacks, which determine the run time."""
    rows = np.broadcast_arrays(counts.fn, counts.tp, counts.fp, counts.tn)
    different = len(np.unique(np.stack(rows), axis=1).T)
    if different > most:
        raise Refused(
            f"{different} attacks of different counts are more than max_attacks={most}; pool them "
            "by groups, or raise --max-attacks: each takes about 0.1 s."
        )


def _posterior(
    counts: ConfusionCounts, delta: float, cluster: int | None, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what the command says; ``attacks`` after pooling, ``cluster`` None if independent."""
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
    return {
        "epsilon_mean": joint.epsilon.mean,
        "epsilon_interval": joint.epsilon.interval(options.significance),
        "strength_mean": joint.strength.mean,
        "strength_interval": joint.strength.interval(options.significance),
        "significance": options.significance,
        "delta": delta,
        "attacks": int(counts.fn.size),
        "cluster": cluster,
        "tau": tau,
        "rho": rho,
        "interpretation": _ESTIMATE_ONLY,
    }


def _posterior_in_words(told: Mapping[str, Any]) -> Iterator[str]:
    level = f"{100 * (1 - told['significance']):g} %"
    low, high = told["epsilon_interval"]
    weak, strong = told["strength_interval"]
    yield (
        f"epsilon {told['epsilon_mean']:.4g}, {level} credible interval ({low:.4g}, {high:.4g}) at "
        f"delta {told['delta']:g}"
    )
    yield (
        f"attack strength {told['strength_mean']:.3g}, {level} credible interval ({weak:.3g}, "
        f"{strong:.3g})"
    )
    cluster = told["cluster"]
    kind = "independent decisions"
    if cluster is not None:
        kind = f"decisions correlated in clusters of {cluster}"
    yield f"{told['attacks']} attacks, {kind}"
    if cluster is not None:
        tau, rho = told["tau"], told["rho"]
        yield f"tau {tau[0]:.3g} +- {tau[1]:.2g}, rho {rho[0]:.3g} +- {rho[1]:.2g}"
    yield told["interpretation"]


# --- `lightning-audit power`: steps and canary readings needed to refute a false claim.

_LIMIT = 10**7


@dataclass(frozen=True)
class TestPower:
    """What one test needs to reach the target power.

    Args:
        name: The check of the audit, or the bound of the literature.
        sees: The kind of violation that it detects.
        significance: Probability of its false alarm.
        observations: Number of canary readings that give the target power; None above ten million.
        steps: Number of training steps with this number of readings.
    """

    name: str
    sees: str
    significance: float
    observations: int | None
    steps: int | None


def add_power_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Canary readings, and steps, after which the audit's tests and the bounds "
        "of the literature detect that one step is less private than claimed. For Gaussian noise, "
        "without simulation. Exits with 0, or with 2 if it cannot be computed."
    )
    for name, what in (("claimed", "claimed for one step"), ("true", "actually spent by one step")):
        parser.option(f"--{name}-epsilon X", f"epsilon {what}", float)
    parser.option("--delta", "delta of both, in (0, 1)", float)
    parser.option("[--target]", "power", float, 0.95)
    parser.option("[--significance]", "probability that a bound is wrong", float, 0.05)
    parser.option(
        "[--audit-significance P]", "probability of a false alarm of the whole audit", float, 1e-3
    )
    parser.option("[--canaries K]", "canaries a step", whole, 8)
    parser.option("[--json]", "print the numbers as JSON", bool)


def run_power(options: argparse.Namespace) -> str:
    """Compute what each test needs."""
    with refusing(ValueError):
        claimed, true = _mus(options.claimed_epsilon, options.true_epsilon, options.delta)
        tests = _tests(options, claimed, true)
    fields = {
        "claimed_epsilon": options.claimed_epsilon,
        "true_epsilon": options.true_epsilon,
        "delta": options.delta,
        "mu_claimed": claimed,
        "mu_true": true,
        "target": options.target,
        "canaries": options.canaries,
        "tests": list(map(asdict, tests)),
    }
    return show(fields, _power_in_words(options, claimed, true, tests), options)


def _mus(claimed_epsilon: float, true_epsilon: float, delta: float) -> tuple[float, float]:
    claimed = _validate.positive("claimed_epsilon", claimed_epsilon)
    true = _validate.positive("true_epsilon", true_epsilon)
    if true <= claimed:
        raise ValueError(
            f"true_epsilon={true!r} must exceed claimed_epsilon={claimed!r}; a claim that holds is "
            "refuted only by a false alarm."
        )
    small = _validate.open_unit("delta", delta, "such as 1e-5; no Gaussian mechanism has delta 0")
    return float(gaussian_mu(claimed, small)), float(gaussian_mu(true, small))


def powers(
    options: argparse.Namespace, claimed: float, true: float
) -> list[tuple[str, str, float, Callable[[int], float], int]]:
    """Return of each test its name, what it sees, its level, its power, and readings of a unit.

    The power is a function of a number of units: steps of an audit, or pairs of readings.
    """
    k = _validate.positive_int("canaries", options.canaries)
    whole = _validate.open_unit("audit_significance", options.audit_significance)
    level = _validate.open_unit("significance", options.significance)
    ratio = true / claimed
    noise = NOISE_CANARY.share * whole
    # The default canaries are of several kinds, which takes a part of the significance.
    shift = CoinBet.POOLED * SENSITIVITY.share * whole

    def of_noise(steps: int) -> float:
        return noise_power(k, steps, 1.0 / ratio, 0.0, noise)

    def of_shift(steps: int) -> float:
        return sensitivity_power(k, steps, ratio, 1.0 / claimed, shift)

    def of_bound(method: str) -> Callable[[int], float]:
        return lambda n: bound_power(method, claimed, true, n, level)

    return [
        ("audit: noise.canary", "noise too small", noise, of_noise, k),
        ("audit: sensitivity", "clipping too loose", shift, of_shift, k),
        *((f"bound: {name}", "either", level, of_bound(name), 2) for name in POWER_METHODS),
    ]


def _tests(options: argparse.Namespace, claimed: float, true: float) -> list[TestPower]:
    found = []
    for name, sees, significance, power, readings in powers(options, claimed, true):
        count = steps_needed(power, options.target, _LIMIT // readings)
        observations = None if count >= _LIMIT // readings else count * readings
        steps = None if observations is None else -(-observations // options.canaries)
        found.append(TestPower(name, sees, significance, observations, steps))
    return found


def _power_in_words(
    options: argparse.Namespace, claimed: float, true: float, tests: list[TestPower]
) -> Iterator[str]:
    yield (
        f"claim epsilon {options.claimed_epsilon:g}, truth {options.true_epsilon:g} at delta "
        f"{options.delta:g} (mu {claimed:.5g} and {true:.5g}) for one reading of a canary"
    )
    yield f"needed for a power of {options.target:g} ({options.canaries} canaries a step):"
    yield ""
    columns = ["test", "detects", "false alarm", "readings", "steps"]
    rows = [
        (
            test.name,
            test.sees,
            f"{test.significance:g}",
            f"> {_LIMIT:g}" if test.observations is None else str(test.observations),
            "" if test.steps is None else str(test.steps),
        )
        for test in tests
    ]
    yield as_text(table(columns, rows, right=columns[2:]))
    yield ""
    yield (
        "audit: anytime-valid, at a share of the whole audit's significance; the power is at the "
        "last step"
    )
    yield (
        "bound: one look, half of the readings with the canary, a threshold fixed midway; "
        "fdp_bayes is a credible bound, not a confidence bound"
    )
    yield "for readings without a data term; gradients of the data raise the numbers"
