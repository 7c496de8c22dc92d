"""Scores of canaries from files, and the bounds and curves computed from them."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.files import MAX_VALUES, Archive, open_npz, read_json, read_npy, text_lines
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

# --- Reads columns of scores and of memberships from a .csv or .npy file.

#: What the columns of a table hold, the option that names one, and the names known without it.
_HOLDS = {"score": "the scores", "member": "who was in (1 or 0)"}
_KNOWN = {"score": ("score", "scores"), "member": ("in", "member", "is_member", "membership")}
#: One more name of memberships; in a table of more than two columns it may be that of a class.
_IN_PAIRS = "label"
#: Error text for a score that is not finite.
NO_SCORE = "which is no score; find out why the attack gave none there"
_TABLES = (".csv", ".txt", ".npy")
_COLUMNS = (
    "its columns must be numbers, the scores and who was in (1 or True with the canary, 0 or False "
    "without)"
)


class ScoresError(ValueError):
    """Scores cannot be read; the message says why and what to do."""


@contextlib.contextmanager
def reading(file: str, kind: str, expected: str) -> Iterator[None]:
    """Say in one sentence why a file cannot be read, and what it must hold.

    Args:
        file: name of the file.
        kind: what it is read as, such as " as .npz"; empty if that is not known.
        expected: what it must hold.

    Raises:
        ScoresError: the block raised an OSError, a ValueError or an error of csv.
    """
    try:
        yield
    except ScoresError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise ScoresError(f"cannot read {file!r}{kind} ({error}); {expected}.") from error


class Column(NamedTuple):
    """A column of a table: of scores, or of memberships (1 or True with the canary).

    Args:
        of: which of the two.
        given: its name, or its number from 0 in a table without names; None for a known name.
        mask: whether an .npy table of memberships has a row for each column of scores, ``[m, n]``.
    """

    of: Literal["score", "member"]
    given: str | None = None
    mask: bool = False

    def found(self, file: str, names: Sequence[str] | None, width: int) -> int:
        """Return the column's number; ``names`` is None for a table without a first line."""
        given = self.given
        if width == 1 and (given is None or (self.mask and names is None)):
            return 0
        if names is None:
            if given is not None and given.isdecimal() and int(given) < width:
                return int(given)
            file_too = "" if self.of == "score" or self.mask else ", or name a file: --members FILE"
            raise ScoresError(
                f"{file!r} has {width} columns without names; state which of 0 to {width - 1} "
                f"holds {_HOLDS[self.of]}: --{self.of}-column N{file_too}."
            )
        known = _KNOWN[self.of] if given is None else (given,)
        if given is None and self.of == "member" and width == 2:
            known = (*known, _IN_PAIRS)
        for name in known:
            if name in names:
                return names.index(name)
        raise ScoresError(
            f"{file!r} has the columns {shown(list(names))}, none named {' or '.join(known)}; "
            f"name the one that holds {_HOLDS[self.of]}: --{self.of}-column NAME."
        )

    def wrong(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Return where a value is no score, or neither 1 nor 0."""
        return ~np.isfinite(values) if self.of == "score" else ~np.isin(values, (0.0, 1.0))

    def refuse(self, values: NDArray[Any], where: str) -> None:
        """Raise for the first wrong value, with its place."""
        if (wrong := self.wrong(values)).any():
            what = NO_SCORE if self.of == "score" else "which must be 1 or 0"
            raise ScoresError(
                f"{where} holds {self.of}={values[wrong][0]:g}, {what} "
                f"({np.sum(wrong)} of {wrong.size})."
            )


def read_columns(
    path: str | os.PathLike[str], max_values: int, *columns: Column
) -> tuple[list[FloatArray], list[str]]:
    """Read columns of a .csv or .npy file, with or without names in its first line.

    Args:
        path: the file; one that does not end in .npy is read as .csv.
        max_values: largest number of lines after the first one, or of numbers of an .npy.
        columns: those to read; others are ignored.

    Returns:
        The values of each, ``[n]``, and its name as an error or a line shows it.

    Raises:
        ScoresError: the file is absent, lacks a column, or holds a wrong value, whose line it says.
    """
    file, is_npy = os.fspath(path), Path(path).suffix.lower() == ".npy"
    read = _npy_columns if is_npy else _csv_columns
    with reading(file, " as .npy" if is_npy else " as .csv", _COLUMNS):
        values, names = read(file, max_values, columns)
    for column, held in zip(columns, values, strict=True):
        where = repr(file)
        if not is_npy and column.wrong(held).any():
            where = f"line {_line_of(file, max_values, column)} of {where}"
        column.refuse(held, where)
    return values, names


def _npy_columns(
    file: str, max_values: int, columns: Sequence[Column]
) -> tuple[list[FloatArray], list[str]]:
    table = read_npy(file, "biuf", max_values)
    if table.ndim == 1:
        table = table[:, None]
    elif columns[0].mask:
        table = table.T
    used = _used(file, columns, None, table.shape[1])
    return [table[:, n].astype(np.float64) for n in used], [f"column {n}" for n in used]


def _csv_columns(
    file: str, max_values: int, columns: Sequence[Column]
) -> tuple[list[FloatArray], list[str]]:
    with text_lines(file, max_values) as lines:
        first, names = _named(next(csv.reader(lines), []))
        used = _used(file, columns, names, len(first))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            table = np.loadtxt(
                lines if names else itertools.chain([",".join(first)], lines),
                delimiter=",",
                usecols=used,
                ndmin=2,
                quotechar='"',
                encoding=None,  # text for the converters, not bytes
                converters={
                    n: _member for n, c in zip(used, columns, strict=True) if c.of == "member"
                },
            ).reshape(-1, len(columns))
    return list(table.T), [repr(names[n]) if names else f"column {n}" for n in used]


def _used(
    file: str, columns: Sequence[Column], names: Sequence[str] | None, width: int
) -> list[int]:
    """Return the number of each column; see `Column.found`."""
    if width < len(columns):
        raise ScoresError(
            f"{file!r} has {width} of {len(columns)} columns, the scores and who was in (1 or 0); "
            "if it holds scores alone, add --members FILE with who was in, or name two files: the "
            "scores with the canary, then those without."
        )
    return [column.found(file, names, width) for column in columns]


def _named(fields: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the fields of a table's first line, and the names in it; None if it has numbers."""
    first = [field.strip() for field in fields]
    with contextlib.suppress(ValueError):
        if [_member(field) for field in first]:
            return first, None
    return first, first


def _member(text: str) -> float:
    """Parse a membership: 1 or 0, or True or False as written by pandas."""
    truth = {"true": 1.0, "false": 0.0}.get(text.strip().lower())
    return float(text) if truth is None else truth


def _line_of(file: str, max_values: int, column: Column) -> int | None:
    """Return the number of the first line with a wrong value in a column; None if not found."""
    with text_lines(file, max_values) as text, contextlib.suppress(csv.Error):
        lines = csv.reader(text)
        first, names = _named(next(lines, []))
        at = column.found(file, names, len(first))
        for fields in itertools.chain([] if names else [first], lines):
            if len(fields) <= at or fields[0].lstrip().startswith("#"):
                continue
            with contextlib.suppress(ValueError):
                if column.wrong(_member(fields[at].split("#")[0])):
                    return lines.line_num
    return None


# --- Reads scores, or an audit's readings, from an archive or JSON of untrusted origin.

_SCORES = ("scores_in", "scores_out")
_PAIRS = ("scores", "memberships")  # Privacy Meter
_LEAKPRO = ("signal_values", "true_labels")
_OBSERVATIONS = ("canaries", "coins", "readings")
_STATES = (NOT_PLANNED, INJECTED, DROPPED, EARLIER)
_EXPECTED = (
    "it must hold the arrays scores_in and scores_out, or scores and memberships, or the coins and "
    "readings of an audit's observations.npz"
)


def read_score_npz(path: str | os.PathLike[str], max_values: int) -> CanaryScores:
    """Read scores of two groups, scores and memberships, or an audit's observations; no more.

    Raises:
        ScoresError: the file is absent, is no .npz, contains neither, or is inconsistent.
    """
    name = os.fspath(path)
    with reading(name, " as .npz", _EXPECTED), open_npz(path, max_values) as archive:
        held = set(archive.names)
        if held.issuperset(_SCORES):
            inside, outside = (archive.numbers(key, "biuf", 1) for key in _SCORES)
            return CanaryScores(inside, outside, source=_told(name, *_SCORES))
        if held.issuperset(_PAIRS):
            values, members = (archive.numbers(key, "biuf", 1) for key in _PAIRS)
            return _by_member(values, members, _told(name, *_PAIRS))
        if held.issuperset(_OBSERVATIONS):
            told = f"read {name!r}: readings of an audit's canaries, by their coins"
            return _observations(archive, told)
    raise ScoresError(f"{name!r} holds {shown(sorted(held - {'header'}))}; {_EXPECTED}.")


def read_score_json(path: str | os.PathLike[str]) -> CanaryScores | None:
    """Read LeakPro's signal_values and true_labels; None if the file is absent or another one.

    Raises:
        ScoresError: they are no lists of as many numbers and memberships.
    """
    try:
        held = read_json(Path(path))
    except (OSError, ValueError):
        return None
    if not isinstance(held, dict) or not set(_LEAKPRO) <= set(held):
        return None
    values, members = (_vector(key, held[key]) for key in _LEAKPRO)
    return _by_member(values, members, _told(os.fspath(path), *_LEAKPRO))


def _told(file: str, *read: str) -> str:
    """Return the line of what was read."""
    meaning = "" if read == _SCORES else " (1: in)"
    return f"read {file!r}: {read[0]} and {read[1]}{meaning}"


def _by_member(values: NDArray[Any], members: NDArray[Any], source: str) -> CanaryScores:
    if len(values) != len(members):
        raise ScoresError(
            f"{source}: {len(values)} scores and {len(members)} memberships; there must be as many."
        )
    Column("member").refuse(members, source)
    return CanaryScores(values[members == 1], values[members == 0], source=source)


def _observations(archive: Archive, source: str) -> CanaryScores:
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
    return CanaryScores(
        seen[finite & was_in],
        seen[finite & ~was_in],
        Fixed(0.5, given=False),
        _coin_probability(archive),
        dropped=int(np.sum(~finite)),
        steps=int(np.sum(counted)),
        source=source,
    )


def _coin_probability(archive: Archive) -> float | None:
    if "header" not in archive.names:
        return None
    header = read_json(archive.text("header"))
    if not isinstance(header, dict):
        raise ValueError(f"header={shown(header)} must be a JSON object")
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
        source: What was read from which file, a line; empty for scores that were passed.

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
    source: str = ""

    def __post_init__(self) -> None:
        for field, name in (("in_scores", "scores_in"), ("out_scores", "scores_out")):
            scores = _vector(name, getattr(self, field))
            scores.flags.writeable = False
            object.__setattr__(self, field, scores)

    @classmethod
    def from_npz(
        cls, path: str | os.PathLike[str], *, max_values: int = MAX_VALUES
    ) -> CanaryScores:
        """Read scores_in and scores_out, scores and memberships, or an audit's observations.npz.

        Args:
            path: the file; its declared sizes are checked before memory is allocated.
            max_values: largest number of values that are read.

        Raises:
            ScoresError: The file is absent, is no .npz, contains none of them, or is too large.
        """
        return read_score_npz(path, max_values)

    @classmethod
    def from_table(
        cls,
        path: str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        *,
        members: str | os.PathLike[str] | None = None,
        score_column: str | None = None,
        member_column: str | None = None,
        max_values: int = MAX_VALUES,
    ) -> CanaryScores:
        """Read a .csv or .npy file: scores and memberships, or one of them with a second file.

        Other columns are ignored. Without their options the columns are ``score`` and ``in``, or
        ``member``, ``is_member``, ``membership``; in a table of two columns also ``label``.

        Args:
            path: the file, with names in its first line or without.
            out: file with the scores without the canary; ``path`` then has those with it.
            members: file with the memberships of the scores, 1 or 0. An .npy table of them has a
                row for each column of scores, as Privacy Meter writes it.
            score_column: name of the scores' column, or its number from 0 in a table without names.
            member_column: the same for memberships, in ``members`` or in ``path``.
            max_values: largest number of lines, or of numbers of an .npy, that are read.

        Raises:
            ScoresError: A file is absent, lacks a column, or contains a value that is not a
                number; or both ``out`` and memberships are given.
        """
        scores, file = Column("score", score_column), os.fspath(path)
        if out is not None:
            if members is not None or member_column is not None:
                raise ScoresError(
                    f"out={os.fspath(out)!r} has the scores without the canary, which leaves no "
                    "memberships to read; leave out members and member_column."
                )
            (inside,), (name,) = read_columns(path, max_values, scores)
            (outside,), (row,) = read_columns(out, max_values, scores)
            source = f"read {file!r}: {name} with the canary; {os.fspath(out)!r}: {row} without"
            return cls(inside, outside, source=source)
        if members is None:
            held = Column("member", member_column)
            (values, was_in), names = read_columns(path, max_values, scores, held)
            source = f"{names[0]} as scores, {names[1]}"
        else:
            (values,), (name,) = read_columns(path, max_values, scores)
            if member_column is None and Path(members).suffix.lower() == ".npy":
                member_column = score_column
            held = Column("member", member_column, mask=True)
            (was_in,), (row,) = read_columns(members, max_values, held)
            source = f"{name} as scores; {os.fspath(members)!r}: {row}"
        told = f"read {file!r}: {source} as who was in (1: in)"
        return _by_member(values, was_in, told)

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
    def load(
        cls,
        path: str | os.PathLike[str],
        *others: str | os.PathLike[str] | None,
        max_values: int = MAX_VALUES,
        **columns: str | None,
    ) -> CanaryScores:
        """Read a table, a report (.json, or its directory), LeakPro's .json, or an .npz.

        The suffix decides: .csv, .txt and .npy are tables. ``others`` and ``columns`` are those
        of `from_table`, and ``max_values`` is as for the constructor of that kind.

        Raises:
            ScoresError: As for the constructor of that kind; or it is an audit's record (.bin).
        """
        suffix = Path(path).suffix.lower()
        if suffix in _TABLES:
            table = cls.from_table(path, *others, max_values=max_values, **columns)
            second = next((one for one in others if one is not None), None)
            inside, outside = table.in_scores, table.out_scores
            if second and len(inside) == len(outside) and _are_flags(outside) > _are_flags(inside):
                raise ScoresError(
                    f"{os.fspath(second)!r} holds only 0 and 1: who was in, no scores without "
                    "the canary; write --members before it."
                )
            return table
        given = [one for one in (*others, *columns.values()) if one is not None]
        if given:
            raise ScoresError(
                f"{shown([os.fspath(one) for one in given])} is for tables ({', '.join(_TABLES)}); "
                f"{os.fspath(path)!r} says by itself who was in."
            )
        if Path(path).is_dir():
            return cls.from_report(Path(path) / REPORT_NAME, max_values=max_values)
        match suffix:
            case ".json":
                found = read_score_json(path)
                return found or cls.from_report(path, max_values=max_values)
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


def _are_flags(values: NDArray[Any]) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


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
