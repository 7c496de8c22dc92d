"""`lightning-audit bound`: a lower bound on epsilon from an attack's scores, by name."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lightning_audit.cli.options import add_max_values
from lightning_audit.cli.output import Refused, as_json
from lightning_audit.record.scores import CanaryScores
from lightning_audit.stats.bounds.named_bounds import BOUND_NAMES, NamedBound
from lightning_audit.stats.bounds.thresholds import (
    Fixed,
    Grid,
    Maximum,
    MultiSplit,
    Simultaneous,
    Split,
    ThresholdChoice,
)
from lightning_audit.stats.one_run.one_run_bounds import ONE_RUN_NAMES

#: False positive rates at which the option --roc prints the true positive rate.
_FPRS = (0.001, 0.01, 0.1)
_CHOICES = "a number, several with commas, split, multi_split, berk_jones, dkw or max"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Lower bound on the epsilon of one observation, from the scores of an attack "
        "with and without the canary. Exits with 0, or with 2 if it cannot be computed."
    )
    parser.add_argument(
        "scores",
        help="an .npz with scores_in and scores_out, a .csv with the columns score and in, an "
        "audit's observations.npz or its report.json",
    )
    parser.add_argument(
        "--method",
        required=True,
        metavar="NAME",
        help=f"one of {', '.join(BOUND_NAMES)}; or, for many canaries of one training, of "
        f"{', '.join(ONE_RUN_NAMES)}",
    )
    parser.add_argument(
        "--delta", required=True, type=float, help="delta of the epsilon, in (0, 1)"
    )
    parser.add_argument(
        "--significance",
        type=float,
        default=0.05,
        help="probability that the bound is wrong (default: 0.05)",
    )
    parser.add_argument(
        "--threshold",
        metavar="CHOICE",
        help="how the threshold is chosen: a number, several with commas, split, multi_split, "
        "berk_jones, dkw, or max, which gives no valid bound (default: 0.5 for observations, split "
        "for scores); none for fdp_t and the methods of one training",
    )
    parser.add_argument(
        "--guesses",
        metavar="N",
        help="number of canaries of one training to guess, those with the largest and the smallest "
        "scores; several with commas. Choose it before you see the scores: the bound rests on that "
        "(default: half, an eighth and a 32nd of them; with --sides in, a quarter, a 16th and a "
        "64th)",
    )
    parser.add_argument(
        "--sides",
        choices=("both", "in"),
        default="both",
        help="both: half of them are guessed in and half out (default); in: all are guessed in, "
        "for an attack that finds members only",
    )
    parser.add_argument(
        "--roc", action="store_true", help="also print the AUROC and the TPR at small FPRs"
    )
    parser.add_argument("--json", action="store_true", help="print the bound as JSON")
    add_max_values(parser)


def run(options: argparse.Namespace) -> str:
    """Compute the bound."""
    try:
        scores = CanaryScores.load(options.scores, max_values=options.max_values)
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
    except ValueError as error:
        raise Refused(str(error)) from error
    return (_as_json if options.json else _as_text)(bound, scores, rates)


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
    match text:
        case "split":
            return Split()
        case "multi_split":
            return MultiSplit()
        case "max":
            return Maximum()
        case "berk_jones" | "dkw":
            return Simultaneous(text)
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


def _as_json(bound: NamedBound, scores: CanaryScores, rates: dict[str, float]) -> str:
    return as_json({**dataclasses.asdict(bound), **_numbers_of(scores), **rates})


def _numbers_of(scores: CanaryScores) -> dict[str, Any]:
    n_in, n_out = len(scores.in_scores), len(scores.out_scores)
    of = {"of": "attack"} if scores.steps is None else {"of": "one step", "steps": scores.steps}
    return {**of, "n_in": n_in, "n_out": n_out, "dropped": scores.dropped}


def _as_text(bound: NamedBound, scores: CanaryScores, rates: dict[str, float]) -> str:
    level = f"{100 * (1 - bound.significance):g} %"
    numbers = _numbers_of(scores)
    first = f"epsilon >= {bound.epsilon_lower:.6g} at delta {bound.delta:g}"
    if bound.mu_lower is not None:
        first += f" (mu >= {bound.mu_lower:.6g})"
    if scores.steps is not None:
        first += (
            f", for one step: {scores.steps:,} steps were read; what the run spends is another "
            "number"
        )
    lines = [
        first,
        f"{bound.method}: {level} {bound.interpretation}, {numbers['n_in']} scores in, "
        f"{numbers['n_out']} out",
    ]
    if numbers["dropped"]:
        lines.append(f"{numbers['dropped']} readings were not finite and were left out")
    if bound.threshold is not None:
        lines.append(f"threshold {bound.threshold_value:.6g}, {bound.rule}")
    if bound.guesses is not None:
        lines.append(f"{bound.correct} of {bound.guesses} guesses right: {bound.rule}")
    if not bound.valid:
        lines.append(
            "NOT VALID: the threshold was chosen on the scores that the bound is computed from"
            if bound.threshold
            else "NOT VALID in general: scores that are not Gaussian, or data that differ from "
            "canary to canary, can raise it above the true epsilon"
        )
    lines.extend(f"assumes: {what}" for what in bound.assumptions)
    if rates:
        lines.append(f"AUROC {rates['auroc']:.6g} (observed)")
    for fpr in _FPRS if rates else ():
        seen, lower = rates[f"tpr_at_fpr_{fpr:g}"], rates[f"tpr_lower_at_fpr_{fpr:g}"]
        lines.append(
            f"TPR at FPR {fpr:g}: {seen:.6g} observed, >= {lower:.6g} at {level}, if "
            "the scores are independent"
        )
    return "\n".join(lines)
