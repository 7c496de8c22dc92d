"""Scores of canaries from files, and the bounds and curves computed from them."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.files import MAX_VALUES, Archive, open_npz, read_json, text_lines
from lightning_audit.layout import FloatArray
from lightning_audit.record.report_directory import REPORT_NAME, archive_of
from lightning_audit.record.store import DROPPED, EARLIER, ENTERED, INJECTED, NOT_PLANNED
from lightning_audit.results.audit_report import AuditReport, ReportError
from lightning_audit.stats import membership
from lightning_audit.stats._arguments import places
from lightning_audit.stats.gaussian import mu_white_box_from_scores
from lightning_audit.stats.named_bounds import METHODS, NamedBound, named_bound
from lightning_audit.stats.one_run import (
    OneRunScores,
    Sides,
)
from lightning_audit.stats.one_run_bounds import (
    ONE_RUN_METHODS,
    epsilon_gaussian_pair_from_scores,
    named_one_run_bound,
)
from lightning_audit.stats.thresholds import Band, Fixed, Split, ThresholdChoice
from lightning_audit.stats.tradeoff import PiecewiseTradeoff

# --- Reads scores and memberships from a .csv file, and reports the line of an error.

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


# --- Reads scores, or an audit's readings, from an archive of untrusted origin.

_SCORES = ("scores_in", "scores_out")
_OBSERVATIONS = ("canaries", "coins", "readings")
_STATES = (NOT_PLANNED, INJECTED, DROPPED, EARLIER)
_EXPECTED = (
    "it must hold the arrays scores_in and scores_out, or the coins and readings of an audit's "
    "observations.npz"
)


class FoundScores(NamedTuple):
    """Contents of an archive, by the names of `CanaryScores`."""

    in_scores: NDArray[Any]
    out_scores: NDArray[Any]
    coin_probability: float | None = None
    dropped: int = 0
    steps: int | None = None


def read_score_npz(path: str | os.PathLike[str], max_values: int) -> FoundScores:
    """Read scores_in and scores_out, or the observations of an audit; nothing else is read.

    Raises:
        ScoresError: the file is absent, is no .npz, contains neither, or is inconsistent.
    """
    name = os.fspath(path)
    try:
        with open_npz(path, max_values) as archive:
            held = set(archive.names)
            if held.issuperset(_SCORES):
                inside, outside = (archive.numbers(key, "biuf", 1) for key in _SCORES)
                return FoundScores(inside, outside)
            if held.issuperset(_OBSERVATIONS):
                return _observations(archive)
    except (OSError, ValueError) as error:
        raise ScoresError(f"cannot read {name!r} as .npz ({error}); {_EXPECTED}.") from error
    raise ScoresError(f"{name!r} holds {_validate.shown(sorted(held - {'header'}))}; {_EXPECTED}.")


def _observations(archive: Archive) -> FoundScores:
    canaries = archive.numbers("canaries", "biuf", 1)
    coins = archive.numbers("coins", "biuf", 2)
    readings = archive.numbers("readings", "iuf", 2)
    if not len(canaries) == len(coins) == len(readings) or coins.shape != readings.shape:
        raise ValueError(
            f"canaries has shape {canaries.shape}, coins {coins.shape} and readings "
            f"{readings.shape}; they must be [steps], [steps, k] and [steps, k]"
        )
    for key, values, allowed in (("canaries", canaries, _STATES), ("coins", coins, (0, 1))):
        if (wrong := ~np.isin(values, allowed)).any():
            raise ValueError(f"{key} holds {values[wrong][0]:g}, must hold {allowed} only")
    # Use only steps whose canaries entered as planned.
    counted = np.isin(canaries, ENTERED)
    was_in, seen = coins[counted] > 0, readings[counted]
    finite = np.isfinite(seen)
    return FoundScores(
        seen[finite & was_in],
        seen[finite & ~was_in],
        _coin_probability(archive),
        dropped=int(np.sum(~finite)),
        steps=int(np.sum(counted)),
    )


def _coin_probability(archive: Archive) -> float | None:
    if "header" not in archive.names:
        return None
    header = read_json(archive.text("header"))
    if not isinstance(header, dict):
        raise ValueError(f"header={_validate.shown(header)} must be a JSON object")
    return _validate.open_unit("coin_probability", header.get("coin_probability"))


# --- Scores of canaries, and the bounds and curves computed from them.

_WITH_THRESHOLD = [name for name, method in METHODS.items() if method.from_counts is not None]
_WITH_GUESSES = [name for name, method in ONE_RUN_METHODS.items() if method.from_guesses]


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """Scores of an attack with and without the canary; larger scores mean "in".

    Args:
        in_scores: Scores with the canary in, finite, ``[n_in]``; kept as a read-only copy.
        out_scores: Scores with the canary out, finite, ``[n_out]``.
        threshold: Default choice of the threshold, fixed before the scores.
        coin_probability: Known probability with which a canary was in; None if unknown.
        dropped: Number of readings of the source that are not finite, and so no scores. For the
            bounds of one run they count as canaries without a guess.
        steps: Number of releases from which the scores were read; None if unknown.

    Raises:
        ScoresError: Scores are not a vector of finite numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = CanaryScores(1 + rng.standard_normal(1000), rng.standard_normal(1000))
        >>> round(scores.bound("fdp_pooled_cp", delta=1e-5, threshold=Fixed(0.5)).mu_lower, 2)
        0.84
        >>> round(scores.auroc(), 2), round(scores.tpr_at_fpr(0.01), 2)
        (0.75, 0.1)
    """

    in_scores: FloatArray
    out_scores: FloatArray
    threshold: ThresholdChoice = Split()  # noqa: RUF009  # frozen
    coin_probability: float | None = None
    dropped: int = 0
    steps: int | None = None

    def __post_init__(self) -> None:
        for field, name in (("in_scores", "scores_in"), ("out_scores", "scores_out")):
            scores = _vector(name, getattr(self, field))
            scores.flags.writeable = False
            object.__setattr__(self, field, scores)

    @classmethod
    def from_npz(
        cls, path: str | os.PathLike[str], *, max_values: int = MAX_VALUES
    ) -> CanaryScores:
        """Read scores_in and scores_out of an .npz, or an audit's observations.npz.

        Args:
            path: the file; its declared sizes are checked before memory is allocated.
            max_values: largest number of values that are read.

        Raises:
            ScoresError: The file is absent, is no .npz, contains neither, or is too large.
        """
        found = read_score_npz(path, max_values)
        threshold = Split() if found.steps is None else Fixed(0.5, given=False)
        return cls(**found._asdict(), threshold=threshold)

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], *, max_values: int = MAX_VALUES
    ) -> CanaryScores:
        """Read the columns ``score`` and ``in`` of a .csv file; other columns are ignored.

        Args:
            path: the file.
            max_values: largest number of lines that are read.

        Raises:
            ScoresError: The file is absent, lacks a column, or contains a value that is not a
                number.
        """
        scores, members = read_scores(path, max_values)
        return cls(scores[members == 1], scores[members == 0])

    @classmethod
    def from_report(
        cls, path: str | os.PathLike[str], *, max_values: int = MAX_VALUES
    ) -> CanaryScores:
        """Read the observations next to a ``report.json``; ``max_values`` as for `from_npz`.

        Raises:
            ScoresError: The report cannot be read, or names no record or several.
        """
        name = os.fspath(path)
        try:
            records = AuditReport.load(path).records
        except ReportError as error:
            raise ScoresError(str(error)) from error
        if len(records) != 1:
            raise ScoresError(
                f"{name!r} names {len(records)} records of observations; keep one, or pass the "
                "observations.npz of one optimizer."
            )
        try:
            archive = archive_of(records[0])
        except ValueError as error:
            raise ScoresError(f"{name!r}: {error}") from error
        return cls.from_npz(Path(path).with_name(archive), max_values=max_values)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_values: int = MAX_VALUES) -> CanaryScores:
        """Read a .csv, a report (.json, or its directory) or an .npz, by its suffix.

        ``max_values`` is as for the constructor of that kind.

        Raises:
            ScoresError: As for the constructor of that kind; or it is an audit's record (.bin).
        """
        if Path(path).is_dir():
            return cls.from_report(Path(path) / REPORT_NAME, max_values=max_values)
        match Path(path).suffix.lower():
            case ".csv":
                return cls.from_csv(path, max_values=max_values)
            case ".json":
                return cls.from_report(path, max_values=max_values)
            case ".bin":
                raise ScoresError(
                    f"{os.fspath(path)!r} is a record to which a training may still write; use "
                    "the .npz of the same name, which is written when the training ends."
                )
            case _:
                return cls.from_npz(path, max_values=max_values)

    def bound(
        self,
        method: str,
        delta: float,
        significance: float = 0.05,
        threshold: ThresholdChoice | None = None,
        *,
        guesses: Sequence[int] | None = None,
        sides: Sides = "both",
    ) -> NamedBound:
        """Return a lower bound of the literature, by the name of its method.

        Calls `stats.named_bounds.named_bound`, with this object's ``threshold`` for None,
        or `stats.one_run_bounds.named_one_run_bound` for one of its methods.
        """
        _validate.one_of("method", method, (*METHODS, *ONE_RUN_METHODS))
        if method in ONE_RUN_METHODS:
            if threshold is not None:
                raise ScoresError(
                    f"threshold={threshold!r} is not for method={method!r}, which has none; leave "
                    f"it out, or take one of {', '.join(_WITH_THRESHOLD)}."
                )
            guesses_coins = ONE_RUN_METHODS[method].from_guesses is not None
            groups = self._with_fair_coins() if guesses_coins else self._of_one_release(method)
            return named_one_run_bound(
                method, *groups, delta, significance, guesses, self.dropped, sides
            )
        if guesses is not None or sides != "both":
            given = f"guesses={guesses!r}" if guesses is not None else f"sides={sides!r}"
            raise ScoresError(
                f"{given} is not for method={method!r}, which does not guess coins; "
                f"leave it out, or take one of {', '.join(_WITH_GUESSES)}."
            )
        if threshold is None and method in _WITH_THRESHOLD:
            threshold = self.threshold
        return named_bound(method, self.in_scores, self.out_scores, delta, significance, threshold)

    def one_run(
        self, *, guesses: Sequence[int] | None = None, sides: Sides = "both"
    ) -> OneRunScores:
        """Return the scores as those of canaries with one fair coin each, for any scores.

        Its methods `epsilon`, `epsilon_fdp` and `mu` are lower bounds.
        """
        return OneRunScores(*self._with_fair_coins(), guesses, self.dropped, sides)

    def mu_white_box(self, significance: float = 0.05) -> float:
        """Return a lower bound on mu from readings of one noisy sum, orthonormal directions.

        Calls `lightning_audit.stats.gaussian.mu_white_box_from_scores`; valid for fair
        coins and any data.
        """
        return mu_white_box_from_scores(*self._of_one_release("white_box"), significance)

    def epsilon_gaussian_pair(self, delta: float, significance: float = 0.05) -> float:
        """Return a lower bound on epsilon for scores that are Gaussian in each group; asymptotic.

        Calls `stats.one_run_bounds.epsilon_gaussian_pair_from_scores`; see its assumptions.
        """
        groups = self._of_one_release("gaussian_pair")
        return epsilon_gaussian_pair_from_scores(*groups, delta, significance)

    def roc(self) -> membership.RocCurve:
        """Return the observed ROC curve: `lightning_audit.stats.membership.roc_curve`."""
        return membership.roc_curve(self.in_scores, self.out_scores)

    def auroc(self) -> float:
        """Return the area under the ROC curve, ties counted half: `stats.membership.auroc`."""
        return membership.auroc(self.in_scores, self.out_scores)

    def tpr_at_fpr(
        self, fpr: float, significance: float | None = None, band: Band = "berk_jones"
    ) -> float:
        """Return the true positive rate at a false positive rate: observed, or a lower bound.

        With ``significance`` this is `lightning_audit.stats.membership.tpr_at_fpr_lower`, else
        `lightning_audit.stats.membership.tpr_at_fpr`.
        """
        if significance is None:
            return membership.tpr_at_fpr(self.in_scores, self.out_scores, fpr)
        return membership.tpr_at_fpr_lower(self.in_scores, self.out_scores, fpr, significance, band)

    def tradeoff_upper(
        self, significance: float = 0.05, band: Band = "berk_jones"
    ) -> PiecewiseTradeoff:
        """Return an upper bound on the trade-off function: `roc.tradeoff_upper`."""
        return membership.tradeoff_upper(self.in_scores, self.out_scores, significance, band)

    def privacy_curve(
        self, deltas: ArrayLike, significance: float = 0.05, band: Band = "berk_jones"
    ) -> FloatArray:
        """Return lower bounds on epsilon at each delta, which hold simultaneously.

        Args:
            deltas: deltas in (0, 1), of any shape.
            significance: Probability in (0, 1) with which any of them may fail.
            band: As in `lightning_audit.stats.thresholds.simultaneous_upper_limits`.

        Returns:
            The bounds, of the shape of ``deltas``.
        """
        wanted = np.asarray(deltas, dtype=np.float64)
        curve = self.tradeoff_upper(significance, band).epsilon_at(wanted.reshape(-1))
        return np.asarray(curve).reshape(wanted.shape)

    def _with_fair_coins(self) -> tuple[FloatArray, FloatArray]:
        if self.coin_probability not in (None, 0.5):
            raise ScoresError(
                f"coin_probability={self.coin_probability!r} must be 0.5 for a bound of one run; "
                "use bound() for coins that are not fair."
            )
        return self.in_scores, self.out_scores

    def _of_one_release(self, method: str) -> tuple[FloatArray, FloatArray]:
        groups = self._with_fair_coins()
        if self.dropped:
            raise ScoresError(
                f"dropped={self.dropped!r} must be 0 for {method}, which needs the readings of "
                "all canaries; use one_run."
            )
        if (self.steps or 1) > 1:
            raise ScoresError(
                f"steps={self.steps!r} must be 1 for {method}, whose readings are those of one "
                "release: the data of a later step may depend on earlier coins; use fdp_cp or "
                "one_run."
            )
        return groups


def _vector(name: str, values: Any) -> FloatArray:
    array = np.asarray(values)
    # An empty list has no dtype of its own.
    numbers = array.dtype.kind in "iufb" or not array.size
    if not numbers or array.ndim != 1:
        raise ScoresError(
            f"{name} has dtype {array.dtype} and shape {array.shape}; it must be a vector of "
            "finite numbers, one score per observation."
        )
    with np.errstate(over="ignore"):  # a longdouble that is too large becomes infinite
        scores = array.astype(np.float64)
    if (wrong := ~np.isfinite(scores)).any():
        first = float(scores[wrong][0])
        raise ScoresError(f"{name} holds {first}, {NO_SCORE} ({places(wrong)}).")
    return scores
