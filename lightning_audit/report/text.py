"""Prints a report: a summary of at most 15 lines, or the whole table of its checks.

The verdict comes first, with its root. In the table, a check that follows from a finding has no row
of its own.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import os
import random
import re
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lightning_audit.checks.check import DECLARED, QUESTIONS, REGISTRY, Topic, headlines
from lightning_audit.files import visible
from lightning_audit.results.audit_report import (
    SAME_FACTOR,
    AuditReport,
    CheckResult,
    LikelyFault,
    TrainingsSeen,
    describe,
    first_of,
    measured_words,
    outcome_in_words,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# --- A verdict in a line, and its names and numbers in a few characters.

#: What a number is, the number, and a remark.
Fact = tuple[str, str, str]
LN10 = math.log(10.0)
#: What an audit over many trainings does not cover.
NOT_TRIED = "other canaries, scores, initial weights and data sets"


def headline(report: AuditReport) -> str:
    """Return what an audit found, in a few words."""
    verdict, seen = report.verdict, report.trainings
    if seen is not None:
        found = "refute" if verdict.outcome == "VIOLATION" else "do not refute"
        return f"{length(report)} {found} {seen.claim}"
    found = lower(headline_of(verdict.root)) if verdict.root else verdict.summary
    if verdict.outcome == "PASS":
        other = "other " if verdict.allowed else ""
        found = f"no {other}fault found in {length(report)}"
    return f"the claim ended the training; {found}" if report.claim_ended_it else found


def refutes_mechanism(report: AuditReport) -> bool:
    """Return whether the steps were not those whose epsilon is composed."""
    return report.verdict.outcome == "VIOLATION" and report.verdict.kind == "mechanism"


def length(report: AuditReport) -> str:
    """Return how much was audited: the steps of a training, or many trainings."""
    if report.trainings is not None:
        return plural(report.trainings.trainings, "training")
    return plural(report.steps, "step")


def counted(seen: TrainingsSeen) -> list[Fact]:
    """Return what an audit over many trainings counted."""
    failed = f", {seen.failures:,} failed" if seen.failures else ""
    more = seen.trainings > seen.planned  # a later call continued the store
    planned = f"({seen.planned:,} were planned{failed})" if more else f"of {seen.planned:,} planned"
    where = f"where {seen.least_error:.3g} or more is claimed"
    return [
        ("Trainings", f"{seen.trainings:,}", f"{planned}{'' if more else failed}"),
        ("Coins", f"{seen.errors:,}", f"of {seen.guesses:,} guessed wrong"),
        ("Error rate", f"at most {seen.error_upper:.3g}", where),
    ]


def counts_line(seen: TrainingsSeen) -> str:
    """Return what an audit over many trainings counted, in a line."""
    return "; ".join(f"{lower(name)}: {value} {remark}" for name, value, remark in counted(seen))


def look_at_sentence(phrase: str) -> str:
    """Return what to look at in a sentence, for a page without such a label; or empty."""
    return f"Look at: {phrase}." if phrase else ""


def headline_of(fault: LikelyFault) -> str:
    """Return a fault in a few words; its sentence in an earlier report that names none."""
    return fault.headline or _headlines().get(fault.name, fault.sentence)


@functools.cache
def _headlines() -> dict[str, str]:
    return headlines()


def significance_of(report: AuditReport) -> float:
    """Return the probability of an alarm in a correct training, at most."""
    return float(report.settings.get("significance", 1e-3))


def by_accountant(report: AuditReport) -> bool:
    """Return whether the user claims no epsilon: it is the accountant's for the same steps."""
    return report.settings.get("claimed_epsilon", 0.0) is None


def accountant_of(report: AuditReport) -> str:
    """Return the accountant of the optimizer, such as "PRV accountant"; its name may be unknown."""
    named = report.claim.get("accountant")
    known = f"{named.value.upper()} " if named and isinstance(named.value, str) else ""
    return f"{known}accountant"


def three_epsilons(report: AuditReport) -> dict[str, float | None]:
    """Return the proved, spent and claimed epsilon; a bound of 0 is no sign of privacy."""
    return {
        "proved": report.epsilon_lower or None,
        "spent": report.epsilon_spent,
        "claimed": report.claimed_epsilon,
    }


def stated(report: AuditReport, part: str) -> Any:
    """Return a part of the claim that the user states; None if it is not stated."""
    return (report.settings.get("claim") or {}).get(part)


def is_correlated(report: AuditReport) -> bool:
    """Return whether noise that is correlated over steps is claimed."""
    return bool(stated(report, "noise_coefficients"))


def powers(report: AuditReport) -> dict[str, tuple[float, float]]:
    """Return the size of a fault and the probability that it was seen, by part of a claim."""
    return {
        part: (float(row["size"]), float(row["power"]))
        for part in ("noise", "sensitivity")
        if {"size", "power"} <= (row := report.power.get(part, {})).keys()
    }


def result_of(report: AuditReport, fault: LikelyFault) -> CheckResult | None:
    """Return the result of the check that shows a fault."""
    of_name = [check for check in report.checks if check.name == fault.finding]
    whose = ("", fault.place.optimizer)
    every = (check for check in of_name if not whose[1] or check.optimizer in whose)
    return next(every, None)


#: Groups of checks that one fault violates, if the steps are enough for each of them.
_ALIKE = ({"noise", "channel"}, {"reuse", "channel"}, {"clipping", "replay"})


def as_shown(report: AuditReport) -> list[CheckResult]:
    """Return the checks as views show them.

    If a check of clipping, or of the noise, failed, another one of it that raised no alarm is
    undecided: with the steps that ran, the fault may have been too small for it.
    """
    failed = [check for check in report.checks if check.status == "violated"]
    return [_of_failed(c, failed) if c.status == "ok" else c for c in report.checks]


def _of_failed(check: CheckResult, failed: Sequence[CheckResult]) -> CheckResult:
    for found in failed:
        both = {getattr(DECLARED.get(one.name), "group", None) for one in (check, found)}
        of_one = len({check.optimizer, found.optimizer, ""}) < 3
        if of_one and any(both <= groups for groups in _ALIKE):
            root = found.follows_from or found.name
            text = f"raised no alarm of its own; {root} failed, and one fault may violate both"
            return replace(check, status="undecided", message=text, follows_from=root)
    return check


def records_of(report: AuditReport) -> int | None:
    """Return the number of records, as far as the claim's batch size and rate state it."""
    parts = {name: part.value for name, part in report.claim.items()}
    size, rate = parts.get("expected_batch_size"), parts.get("sample_rate")
    if not isinstance(size, int | float) or not isinstance(rate, int | float) or not rate > 0:
        return None
    return round(size / rate) if math.isfinite(size / rate) else None


def warnings_of(report: AuditReport) -> list[tuple[str, str]]:
    """Return what fails no gate and lets more out than epsilon says: each in short, and whole."""
    found = []
    if report.published:
        names = ["`{}`".format(name.replace("`", "'")) for name in report.published]
        short = f"logs {first_of(names)} without noise"
        unless = "no epsilon covers it unless it follows from released weights"
        found.append((short, f"the training {short}: records decide it, and {unless}"))
    records = records_of(report)
    above = any(check.evidence.get("delta_above_records") for check in report.checks)
    if above or (records and report.delta > 1.0 / records):
        shown = records is not None and not stated(report, "private_dataset_size")
        many = f"about {float(f'{records:.2g}'):,.0f}" if shown else "number of"
        short = f"delta {report.delta:g} is above one over the {many} records"
        found.append((short, f"{short}: such a delta admits publishing a record; take less"))
    for check in report.checks:
        if check.status == "warned" and not check.follows_from:
            title = lower(title_of(check.name, failed=True))
            found.append((f"{title} ({check.name})", f"{title}: {check.message}"))
        elif check.status == "ok" and check.evidence.get("private_dataset_size"):
            if check.evidence.get("epsilon_of_divisor"):  # it costs more than delta
                short = "the divisor is computed from the number of records"
                found.append((short, f"{short}, which is stated as private: {check.advice}"))
        elif check.status == "not_run" and "left_out" in check.evidence:
            found.append(("the schedule of steps or noise is set by hand", check.message))
    return found


def status_line(report: AuditReport) -> str:
    """Return a verdict in one line of a log.

    Example:
        VIOLATION: too little noise is added (noise), first seen in step 2, a.py:90 HalfNoise
    """
    words = [f"{outcome_in_words(report.verdict)}: {headline(report)}"]
    if root := report.verdict.root:
        words[0] += f" ({root.finding})"
        words += [] if root.place.step is None else [f"first seen in step {root.place.step + 1}"]
        words += code_of(root)[:1]
    return visible(", ".join(words))


def progress(report: AuditReport) -> str:
    """Return a verdict in the characters that a progress bar has room for.

    Example:
        ok | eps>=0.41
    """
    verdict = report.verdict
    if verdict.outcome == "VIOLATION":
        return f"VIOLATION | {verdict.root.finding}" if verdict.root else "VIOLATION"
    unclear = any(check.status == "undecided" for check in report.checks)
    proved = f" | eps>={report.epsilon_lower:.2g}" if report.epsilon_lower else ""
    return f"{'unclear' if unclear else 'ok'}{proved}"


def code_of(fault: LikelyFault) -> list[str]:
    """Return the places of the user's code that a fault points to, the likeliest first."""
    return [place.pointer for place in fault.place.code]


def power_of_ten(log_value: float) -> str:
    """Return a number by its natural logarithm as a power of ten.

    Example:
        >>> power_of_ten(math.log(4e4)), power_of_ten(math.log(10.0) * 750.2)
        ('10^4.6', '10^750')
    """
    power = log_value / LN10
    return f"10^{power:.0f}" if abs(power) >= 10 else f"10^{round(power, 1) + 0.0:g}"


def fewer(names: Sequence[str]) -> list[str]:
    """Return all names as text, then fewer of them and how many more there are."""
    return [first_of(names, most) for most in range(len(names), 0, -1)]


#: Where a clause ends, the better ends first: the rest may be left out.
_ENDS = (
    re.compile(r"[.;:,]? (?=\([^()]*\)([.;:,]|$))|[.;:,] (and |or )?| - "),
    re.compile(r" (?=(and|or|that|which|where|when|so|if|because|with|for)\b)"),
)
_IN_BRACKETS = re.compile(r" \([^()]*\)")
#: No whole clauses: few words after another one, such as a label; names; a conjunction at the end.
_BROKEN = re.compile(
    r"([.;:] ([^ ]+ ){0,2}|^([^ ]+ )?)[^ ]+$|^\S+(, \S+)*$|\b(and|or|that|which|than)$"
)


def shortened(text: str, fits: Callable[[str], bool]) -> str:
    """Return the longest beginning of a text that fits, in whole clauses; the text if none does.

    Example:
        >>> shortened("the noise is half of the stated (99 %), or less", lambda t: len(t) < 40)
        'the noise is half of the stated (99 %)'
    """
    bare = _IN_BRACKETS.sub("", text)
    for ends, said in itertools.product(_ENDS, (text, bare)):
        if fits(said):
            return said
        for end in reversed(list(ends.finditer(said))):
            short = said[: end.start()]
            whole = short.count("(") == short.count(")") and short.count("`") % 2 == 0
            if whole and fits(short) and not _BROKEN.search(short):
                return short
    return text


def title_of(name: str, *, failed: bool = False) -> str:
    """Return the title of a check; its name if this release has no such check."""
    known = DECLARED.get(name)
    return known.heading(failed=failed) if known else name


def lower(text: str) -> str:
    """Return text that begins in lower case, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def visible_lines(text: str) -> str:
    """Return text of several lines, with what cannot be seen in them escaped."""
    return "\n".join(map(visible, text.split("\n")))


def plural(count: int, word: str) -> str:
    """Return a number of things.

    Example:
        >>> plural(1, "step"), plural(2272, "reading")
        ('1 step', '2,272 readings')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# --- Prints text and tables: with signs and color on a terminal, in plain ASCII everywhere else.

#: Style of a cell by its text, in every table.
STYLES: Mapping[str, str] = {
    "PASS": "bold green",
    "VIOLATION": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "VIOLATED": "bold red",
    "undecided": "bold yellow",
    "allowed": "yellow",
    "warning": "yellow",
    "ok": "green",
    "not run": "dim",
    "found": "green",
    "warned": "green",
    "not accused": "green",
    "not found": "bold red",
    "accused": "bold red",
}
#: A file has no width: a table folded to columns cannot be searched.
_OF_A_FILE = 100_000
#: Nothing that is printed is markup or an emoji code.
_LITERAL: Any = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}
_RAISED = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")
_POWER = re.compile(r"10\^(-?\d+(?:\.\d+)?)")


def screen() -> Console:
    """Return standard output; nothing that is printed to it is markup or an emoji code."""
    state = random.getstate()  # which the import of rich advances
    from rich.console import Console  # only now: a gate of one report needs no table

    random.setstate(state)
    return Console(**_LITERAL)


def has_signs(console: Console) -> bool:
    """Return whether it is a terminal that shows signs beyond ASCII."""
    return console.is_terminal and console.encoding.startswith("utf")


def as_ascii(text: str) -> str:
    r"""Return text with every other character escaped.

    Example:
        >>> as_ascii("café")
        'caf\\xe9'
    """
    return text.encode("ascii", "backslashreplace").decode()


def with_signs(text: str) -> str:
    """Return text with raised powers of ten and signs.

    Example:
        >>> with_signs("e = 10^4.6, proved >= 2")
        'e = 10⁴·⁶, proved ≥ 2'
    """
    raised = _POWER.sub(lambda power: f"10{power[1].translate(_RAISED)}", text)
    return raised.replace(">=", "≥").replace("<=", "≤")


def print_lines(*renderables: RenderableType) -> None:
    """Print text or tables, each from a new line.

    Without a terminal the text is ASCII, has no trailing blanks, and is folded nowhere.
    """
    from rich.table import Table

    console = screen()
    if not has_signs(console):
        print(as_ascii(as_text(*renderables)))
        return
    for one in renderables:
        # A path broken over several lines cannot be copied.
        console.print(one, soft_wrap=not isinstance(one, Table))


def as_text(*renderables: RenderableType) -> str:
    """Return text or tables as lines without color, trailing blanks and a final newline."""
    from rich.console import Console

    plain: Any = {**_LITERAL, "color_system": None, "force_terminal": False}
    flat = Console(file=io.StringIO(), width=_OF_A_FILE, **plain)
    with flat.capture() as captured:
        for one in renderables:
            flat.print(one)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    widths: Sequence[int] = (),
    right: Container[str] = (),
) -> Table:
    """Return a table for `print_lines`: ruled on a terminal, aligned columns elsewhere.

    Args:
        columns: their headings; all empty for a table without a head.
        rows: a text for each column, shown as it is; `STYLES` colors some.
        title: above the table; empty for none.
        widths: least width of each column; empty for none.
        right: headings of the columns that are aligned to the right.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ruled = any(columns) and has_signs(screen())
    made = Table(
        title=title or None,
        title_justify="left",
        box=box.HEAVY_HEAD if ruled else None,
        pad_edge=ruled,
        show_header=any(columns),
    )
    for number, column in enumerate(columns):
        made.add_column(
            column,
            overflow="fold",
            min_width=widths[number] if widths else None,
            justify="right" if column and column in right else "left",
        )
    for row in rows:
        made.add_row(*(Text(visible(cell), style=STYLES.get(cell, "")) for cell in row))
    return made


# --- A report in at most 15 lines: what is wrong, where, what to do, what was not examined.

MOST_LINES, WIDTH = 15, 80
_INDENT, _LABEL = 2, 13
_ROOM = WIDTH - _INDENT - _LABEL
#: Rows that give way if there are too many lines, in this order, and the lines that they keep.
_GIVE_WAY = (
    *(("Note", 1), ("Note", 0), ("Not covered", 0), ("Not examined", 2), ("Code", 1), ("Where", 1)),
    *(("Measured", 2), ("Epsilon", 2)),
    *(("Also", 1), ("Or", 1), ("Look at", 2), ("Seen", 1), ("But", 1), ("Warning", 1)),
    *(("Not examined", 1), ("Allowed", 1), ("Missing", 1), ("Look at", 1), ("Explains", 0)),
    *(("Warning", 0), ("Or", 0), ("Would catch", 0), ("Missing", 0), ("Where", 0), ("But", 0)),
)
#: Topics in a word.
_TOPICS = {
    "Fresh randomness": "Randomness",
    "What the update uses": "Update",
    "Sampling and bookkeeping": "Sampling",
    "Total epsilon": "Epsilon",
}
_OTHER = "Own checks"
_IN_A_ROW, _CELL = 3, 20
#: What no audit of a training covers.
_NOT_COVERED = "preprocessing, other releases, several records of one person"


@dataclass(frozen=True)
class Row:
    """A row of the summary.

    Args:
        label: its first column; empty in the first row, which is the verdict.
        text: in one line, of any length.
        most: lines that it may take; negative for a path, which is not broken.
        shorter: the text in fewer words, the longest first.
    """

    label: str
    text: str
    most: int = 1
    shorter: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """The text in at most `most` lines: the longest that fits, or the clauses that do."""
        if not self.most:
            return []
        # Each character is one column wide.
        texts = [as_ascii(visible(text)) for text in (self.text, *self.shorter)]
        if self.most < 0:
            return [visible(self.text)]
        text = next(filter(self._fits, texts), None) or shortened(texts[-1], self._fits)
        return self._wrapped(text)[: self.most] or [""]

    def _wrapped(self, text: str) -> list[str]:
        return textwrap.wrap(text, _ROOM if self.label else WIDTH - _INDENT)

    def _fits(self, text: str) -> bool:
        return len(self._wrapped(text)) <= self.most


def summary_rows(report: AuditReport, path: str | os.PathLike[str] | None = None) -> list[Row]:
    """Return the rows of a report's summary.

    Args:
        report: the report.
        path: where it was saved; None if it was not.

    Returns:
        Rows of `MOST_LINES` lines together, each of at most `WIDTH` columns with its label, paths
        excepted.
    """
    outcome = outcome_in_words(replace(report.verdict, kind=None))
    rows = [
        Row(
            "",
            f"{outcome}: {headline(report)}",
            2,
            [f"{outcome}: {headline(report).split('; ')[0]}"],
        ),
        *_found(report),
        *_guessed(report),
        *_undecided(report),
        *_no_fault(report),
        *_missing(report),
        *([Row("Allowed", report.verdict.holds, 2)] if report.verdict.holds else []),
        Row("Epsilon", epsilons(report), 3),
        *([Row("Measured", measured, 3)] if (measured := measured_words(report)) else []),
        *_power(report),
        *_tallies(report),
    ]
    if report.trainings is None:
        whole, *shorter = _not_examined(report)
        rows.append(Row("Not examined", whole, 4, shorter))
    if report.verdict.outcome != "VIOLATION":
        rows.append(Row("Not covered", _NOT_COVERED if report.trainings is None else NOT_TRIED))
    if path is not None:
        name = os.fspath(path)
        if report.notes:
            first, many = report.notes[0], plural(len(report.notes), "note")
            more = f" (and {plural(len(report.notes) - 1, 'note')})" if report.notes[1:] else ""
            short = shortened(first, lambda text: len(text + more) <= _ROOM)
            rows.append(Row("Note", first + more, 4, [short + more, f"{many} in the report"]))
        rows.append(Row("Report", f"lightning-audit show {name}", -1))
    return _fitting(rows)


def _fitting(rows: list[Row]) -> list[Row]:
    """Return rows of at most `MOST_LINES` lines."""
    # Lines that a text does not need are not given.
    rows = [replace(row, most=min(row.most, len(row.lines))) for row in rows]
    for label, fewest in _GIVE_WAY:
        for at in reversed(range(len(rows))):
            while (
                rows[at].label == label
                and rows[at].most > fewest
                and sum(len(row.lines) for row in rows) > MOST_LINES
            ):
                rows[at] = replace(rows[at], most=rows[at].most - 1)
    return [row for row in rows if row.most]


# ------------------------------------------------------------------ what is wrong


def _found(report: AuditReport) -> Iterator[Row]:
    """Yield the rows of the root, and of what it does not explain."""
    verdict, root = report.verdict, report.verdict.root
    if root is None:
        return
    check = result_of(report, root)
    yield Row("Seen", root.seen or (check.message if check else verdict.summary), 2)
    if SAME_FACTOR in verdict.summary:
        yield Row("But", SAME_FACTOR, 2)
    yield Row("Evidence", "; ".join(_evidence(report, root, check)))
    names = [*root.place.parameters]
    where = [root.place.optimizer] if root.place.optimizer else []
    where += [] if root.place.process is None else [f"process {root.place.process}"]
    if where or names:
        whole, *shorter = (", ".join(filter(None, [*where, some])) for some in fewer(names) or [""])
        yield Row("Where", whole, 2, shorter)
    code = code_of(root) or ["no line known; see Look at"]
    yield Row("Code", ", ".join(code), 2, [first_of(code, 1)])
    look_at = root.look_at or verdict.advice or (check.advice if check else "")
    if look_at:
        yield Row("Look at", look_at, 3)
    if root.consequences:
        yield Row("Explains", plural(len(root.consequences), "more failed check"))
    for other in [f for f in verdict.faults[1:] if f.shares_finding(root)][:1]:
        yield Row("Or", lower(headline_of(other)), 2)
    if further := verdict.further:
        more = f"; and {plural(len(further) - 1, 'other finding')}" if len(further) > 1 else ""
        yield Row("Also", f"{lower(headline_of(further[0]))} ({further[0].finding}){more}", 2)


def _guessed(report: AuditReport) -> Iterator[Row]:
    """Yield what an audit over many trainings counted, and what a longer run would show."""
    seen, verdict = report.trainings, report.verdict
    if seen is None:
        return
    trainings, coins, rate = (f"{value} {remark}" for _, value, remark in counted(seen))
    yield Row("Trainings", trainings)
    yield Row("Coins", f"{coins}; error rate {rate}", 2)
    if verdict.advice:
        yield Row("Look at" if verdict.outcome == "VIOLATION" else "Next", verdict.advice, 3)


def _evidence(report: AuditReport, root: LikelyFault, check: CheckResult | None) -> Iterator[str]:
    if check and check.log_e_value is not None and check.share > 0:
        level = check.share * significance_of(report)
        alarm = power_of_ten(-math.log(level))
        yield f"e-value {power_of_ten(check.log_e_value)}, alarm at {alarm}"
    else:
        yield "seen directly"
    if root.place.step is not None:
        yield f"first seen in step {root.place.step + 1} of {report.steps}"


def _undecided(report: AuditReport) -> Iterator[Row]:
    names = [c.name for c in report.checks if c.status == "undecided" and not c.follows_from]
    if names:
        more = f"; and {len(names) - 1} more" if len(names) > 1 else ""
        yield Row("Unclear", f"{lower(title_of(names[0], failed=True))} ({names[0]}){more}")
    warnings = [short for short, _ in warnings_of(report)]
    if warnings and report.verdict.outcome != "VIOLATION":  # there the fault has all the room
        yield Row("Warning", "; ".join(warnings), 2)


def _no_fault(report: AuditReport) -> Iterator[Row]:
    """Yield the row of a report that accuses no code."""
    if report.trainings is not None:  # they point at no code
        return
    doubtful = any(check.status == "undecided" for check in report.checks)
    if report.verdict.outcome != "VIOLATION" and not doubtful:
        done = report.verdict.outcome == "PASS" and not report.verdict.allowed
        to_do = "; nothing to do" if done else ""
        yield Row("Code", f"no line is suspected of a fault{to_do}")


# ------------------------------------------------------------------ what is missing or accepted


def _missing(report: AuditReport) -> Iterator[Row]:
    items = report.verdict.pass_blockers
    for item in items[:3]:
        names, _, rest = item.partition(": ")
        yield Row("Missing", item, 3, [rest] if rest and _BROKEN.search(names) else [])
    if len(items) > 3:
        yield Row("Missing", f"and {len(items) - 3} more")


def epsilons(report: AuditReport) -> str:
    """Return the epsilons of a report, with what is known not to hold."""
    if is_correlated(report):
        return "not composed: the mechanism alone was judged"
    proved, free = report.epsilon_lower, report.epsilon_not_excluded
    remarks = [accountant_of(report)] if by_accountant(report) else []
    remarks += [] if report.claim_holds else ["not known to hold"]
    cost = " (PLD, as stated)" if refutes_mechanism(report) else " (PLD)"
    cost = " (PLD, holds)" if report.epsilon_refuted_by else cost
    known = {
        "claimed {}" + (f" ({', '.join(remarks)})" if remarks else ""): report.claimed_epsilon,
        f"spent {{}}{cost}": report.epsilon_spent,
        "proved >= {}": proved or None,
        "at the planned end >= {}": report.epsilon_lower_at_end or None,
        "not excluded up to {}": free,
    }
    shown = _numbers(known, 3)
    if free == math.inf:
        shown[-1] = "none excluded yet"
    if proved == 0.0:  # no news, and no sign of privacy
        shown.insert(len(shown) - (free is not None), "no bound proved")
    return f"{', '.join(shown) or 'unknown'}; delta {report.delta:g}{report.of_items}"


def _numbers(known: Mapping[str, float | None], digits: int) -> list[str]:
    """Return known numbers, each in its words."""
    return [name.format(f"{x:.{digits}g}") for name, x in known.items() if x is not None]


def _power(report: AuditReport) -> Iterator[Row]:
    """Yield what the run could have shown, with its probability."""
    if report.verdict.outcome == "VIOLATION":
        return
    words = {"noise": "the noise", "sensitivity": "the clipping norm"}
    seen = [
        f"{size:g} times {words[part]} ({_percent(power)})"
        for part, (size, power) in powers(report).items()
    ]
    if seen:
        yield Row("Would catch", ", ".join(seen))


# ------------------------------------------------------------------ what was examined


def _tallies(report: AuditReport) -> Iterator[Row]:
    """Yield for each topic how many of its checks that ran are fine, and a sign if not all are."""
    if report.trainings is not None:  # one check, whose counts are shown
        return
    topics: dict[Topic | None, list[CheckResult]] = {topic: [] for topic in QUESTIONS}
    for check in as_shown(report):
        known = REGISTRY.get(check.name)
        topics.setdefault(known.topic if known else None, []).append(check)
    cells = [_tally(topic, checks) for topic, checks in topics.items()]
    for at in range(0, len(cells), _IN_A_ROW):
        row = "".join(f"{cell:<{_CELL}}" for cell in cells[at : at + _IN_A_ROW])
        yield Row("Checks ok" if at == 0 else " ", row.rstrip(), -1)


def _tally(topic: Topic | None, checks: list[CheckResult]) -> str:
    name = _TOPICS.get(topic, topic) if topic else _OTHER
    statuses = [check.status for check in checks if check.status != "not_run"]
    if not statuses:
        return f"{name} -"
    fine = sum(status in ("ok", "warned", "allowed") for status in statuses)
    signs = {"violated": " x", "undecided": " ?", "allowed": " !", "warned": " !"}
    sign = next((sign for status, sign in signs.items() if status in statuses), "")
    return f"{name} {fine}/{len(statuses)}{sign}"


def _not_examined(report: AuditReport) -> list[str]:
    """Return which checks did not run, the longest text first."""
    left = [check for check in report.checks if check.status == "not_run"]
    names = list(dict.fromkeys(lower(title_of(check.name)) for check in left))
    before = [str(c.evidence["before"]) for c in report.checks if "before" in c.evidence]
    names += ["what is before the step"] * bool(before)
    if not names:
        return ["no check was left out" if report.checks else "everything"]
    reasons = {check.message for check in left} | {*before}
    why = f" ({next(iter(reasons))})" if len(reasons) == 1 else ""
    return [f"{', '.join(names)}{why}", *fewer(names)]


def _percent(probability: float) -> str:
    return ">99%" if probability >= 0.995 else f"{100.0 * probability:.0f}%"


# --- Prints a report: a summary of at most 15 lines, or the whole table of its checks.

_MARKS = {
    "violated": "VIOLATED",
    "undecided": "undecided",
    "allowed": "allowed",
    "warned": "warning",
    "ok": "ok",
    "not_run": "not run",
}
#: Signs of the outcomes differ in shape: nothing is shown by color alone.
SIGNS: Mapping[str, str] = {"PASS": "✓", "VIOLATION": "✕", "INCONCLUSIVE": "?"}


def print_summary(
    report: AuditReport, path: str | os.PathLike[str] | None = None, *, blank: bool = True
) -> None:
    """Print a report in at most 15 lines to standard output.

    Args:
        report: the report.
        path: where it was saved; None if it was not.
        blank: whether a blank line comes first.
    """
    shown = _with_color(report, path) if has_signs(screen()) else summary(report, path)
    print_lines(*([""] if blank else []), shown)


def summary(report: AuditReport, path: str | os.PathLike[str] | None = None) -> str:
    """Return the summary of a report in ASCII, without a final newline; for arguments see above."""
    lines = [f"{label}{text}" for label, text in _labeled(report, path)]
    return as_ascii("\n".join(line.rstrip() for line in lines))


def _labeled(report: AuditReport, path: str | os.PathLike[str] | None) -> list[tuple[str, str]]:
    """Return the lines of the summary, each as its first column and its text."""
    found = []
    for row in summary_rows(report, path):
        for number, text in enumerate(row.lines):
            label = row.label if number == 0 else ""
            indent = f"  {label:<{_LABEL}}" if row.label else "  " * bool(number)
            found.append((indent, text))
    return found


def _with_color(report: AuditReport, path: str | os.PathLike[str] | None) -> Text:
    """Return the summary with signs, raised powers and colors."""
    from rich.text import Text

    outcome = report.verdict.outcome
    text = Text()
    for number, (label, line) in enumerate(_labeled(report, path)):
        shown = with_signs(line)
        if number == 0:
            text.append(f"{SIGNS[outcome]} {outcome}", STYLES[outcome])
            text.append(shown[len(outcome) :], "bold")
        else:
            text.append(f"\n{label}", "dim")
            text.append(shown, STYLES[outcome] if label.strip() == "Evidence" else "")
    return text


def print_report(report: AuditReport, path: str | os.PathLike[str] | None = None) -> None:
    """Print the verdict in full, every check, and all numbers of a report to standard output.

    Args:
        report: the report.
        path: where it was saved; None if it was not.
    """
    rows = [
        (check.name, _MARKS[check.status], evidence_of(check), check.message)
        for check in as_shown(report)
        if not check.follows_from or check.status == "undecided"
    ]
    print_lines(
        "",
        describe(report.verdict),
        table(("check", "result", "evidence", "observed"), rows, title="Checks"),
        *_epsilon_lines(report),
        *(f"as measured: {words}" for words in [measured_words(report)] if words),
        *_closing_lines(report, path),
    )


def evidence_of(check: CheckResult) -> str:
    """Return a check's e-value as a power of ten; empty for a deterministic check."""
    if check.log_e_value is None or check.status == "not_run":
        return ""
    return f"e = 10^{check.log_e_value / math.log(10.0):.1f}"


def _epsilon_lines(report: AuditReport) -> list[str]:
    source = f" (by the {accountant_of(report)})" if by_accountant(report) else ""
    by, end = ", ".join(report.epsilon_refuted_by), report.epsilon_lower_at_end
    if report.claimed_epsilon is not None and not report.claim_holds:
        source += f" (not known to hold with {by} allowed)"
    readings = "readings" if report.trainings is None else "coins, at any look"
    how = "PLD, holds" if by else "composed from the steps, PLD"
    numbers = {
        f"claimed {{}}{source}": report.claimed_epsilon,
        f"spent {{}} ({how})": report.epsilon_spent,
        f"proved at least {{}} (from the {readings})": report.epsilon_lower,
        **({} if report.trainings else {"at the planned end at least {}": end}),
        "not excluded up to {}": report.epsilon_not_excluded,
    }
    shown = _numbers(numbers, 4)
    line = f"epsilon at delta {report.delta:g}{report.of_items}: {', '.join(shown) or 'unknown'}"
    mu = [
        f"mu of a step: at least {bound.mu_lower:.4g} with {100 - 100 * bound.significance:.4g} % "
        "confidence, if signal and noise kept a constant ratio to their claims"
        for bound in report.bounds
        if bound.name == "mu" and bound.looks == "single" and bound.mu_lower is not None
    ]
    steps = f"{report.steps} steps, {report.observations} canary readings"
    counts = [steps if report.trainings is None else counts_line(report.trainings)]
    if report.trainings is not None and end:
        counts.append(f"epsilon at least {end:.4g} by one look at the planned end")
    return [line, *mu, *counts, *_cost_lines(report)]


def _cost_lines(report: AuditReport) -> list[str]:
    """Return the time that the audit took, and that of the examinations by replay."""
    cost, examined = report.audit_cost, report.examination_cost
    if not {"seconds", "share"} <= cost.keys():
        return []
    percent = f"{100.0 * cost['share']:.{0 if cost['share'] >= 0.1 else 1}f} %"
    line = f"the audit took {cost['seconds']:.2g} s, {percent} of the rest of the training"
    if {"first", "first_step_times", "later"} <= examined.keys():
        first = f"{examined['first']:.2g} s ({examined['first_step_times']:.0f} step times)"
        line += f"; the first examination by replay {first}, later ones {examined['later']:.2g} s"
    return [line]


def _closing_lines(report: AuditReport, path: str | os.PathLike[str] | None) -> list[str]:
    lines = [f"Warning: {visible(text)}" for _, text in warnings_of(report)]
    lines += [f"Note: {visible(note)}" for note in report.notes]
    if path is not None:
        written = f" (written {visible(report.created)})" if report.created else ""
        lines.append(f"Report: {visible(os.fspath(path))}{written}")
    return lines
