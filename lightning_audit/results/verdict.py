"""The verdict of an audit, with the faults that may explain it, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_audit.files.printable import visible
from lightning_audit.results.report_details import CodePlace

Outcome = Literal["PASS", "VIOLATION", "INCONCLUSIVE"]
Kind = Literal["mechanism", "epsilon", "accounting"]

#: The first that is violated is the verdict's.
KINDS: tuple[Kind, ...] = ("mechanism", "epsilon", "accounting")

#: Remark of a summary on a violation that loses no privacy.
SAME_FACTOR = (
    "noise and clipping are off by the same factor, so this loses no privacy by itself, but the "
    "mechanism is not the stated one"
)
#: Exit codes of the gate.
EXIT_CODES: Mapping[Outcome, int] = {"PASS": 0, "VIOLATION": 1, "INCONCLUSIVE": 2}


@dataclass(frozen=True)
class Place:
    """Where a fault was seen, as far as that is known.

    Args:
        parameters: names of the parameters that show it; empty where all do, or none is known.
        step: optimizer step, from 0, at which it was first seen; None if unknown.
        process: rank of the process, None if all show it.
        optimizer: which of several private optimizers; empty where there is no other.
        code: the user's own code to look at; empty where it is none of theirs.
    """

    parameters: tuple[str, ...] = ()
    step: int | None = None
    process: int | None = None
    optimizer: str = ""
    code: tuple[CodePlace, ...] = ()


@dataclass(frozen=True)
class LikelyFault:
    """What may be wrong in the code, given what the checks found.

    Args:
        name: a short identifier that stays the same, such as "clip_after_average".
        sentence: what is wrong, in words.
        finding: name of the check that shows it.
        look_at: what to look at in the code, in a sentence.
        evidence: the numbers that support it.
        place: where it was seen.
        consequences: names of the other violated checks that it explains.
        headline: what is wrong, in a few words without numbers; empty in earlier reports.
    """

    name: str
    sentence: str
    finding: str
    look_at: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    place: Place = Place()
    consequences: tuple[str, ...] = ()
    headline: str = ""

    def shares_finding(self, other: LikelyFault) -> bool:
        """Whether the same check of the same optimizer shows both: one of them is the cause."""
        whose = {self.place.optimizer, other.place.optimizer}
        return self.finding == other.finding and (len(whose) == 1 or "" in whose)


@dataclass(frozen=True)
class Verdict:
    """The answer of an audit.

    Args:
        outcome: PASS, VIOLATION or INCONCLUSIVE.
        kind: for a violation, which claim is false.
        summary: what was seen, in a sentence; of a violation the root, and names of what it does
            not explain.
        fault: the likeliest fault in words; empty if none. It is taken of ``faults`` if not given.
        advice: what to do next; empty where ``look_at`` of the root says it.
        pass_blockers: what keeps an inconclusive audit from a pass; shown under "Missing".
        faults: what may be wrong, the root first. One with another finding than those before it is
            a further finding, which none of those explains.
        allowed: findings that the user allows, which the first line names.
        holds: which epsilon holds with them, in words; empty where nothing is allowed.

    Raises:
        ValueError: ``fault`` is not the sentence of the first of ``faults``.
    """

    outcome: Outcome
    kind: Kind | None
    summary: str
    fault: str = ""
    advice: str = ""
    pass_blockers: tuple[str, ...] = ()
    faults: tuple[LikelyFault, ...] = ()
    allowed: tuple[str, ...] = ()
    holds: str = ""

    def __post_init__(self) -> None:
        if not self.faults:
            return
        first = self.faults[0].sentence
        if self.fault not in ("", first):
            raise ValueError(f"fault={self.fault!r} must be {first!r}, as faults has it.")
        object.__setattr__(self, "fault", first)

    @property
    def root(self) -> LikelyFault | None:
        """The fault that the verdict leads with; None where no check is violated."""
        return self.faults[0] if self.faults else None

    @property
    def further(self) -> tuple[LikelyFault, ...]:
        """The first fault of each finding that the root does not explain."""
        return tuple(
            fault
            for i, fault in enumerate(self.faults)
            if not any(fault.shares_finding(before) for before in self.faults[:i])
        )[1:]

    @property
    def exit_code(self) -> int:
        """0 for PASS, 1 for VIOLATION, 2 for INCONCLUSIVE."""
        return EXIT_CODES[self.outcome]


def outcome_in_words(verdict: Verdict) -> str:
    """The outcome, with the kind of a violation and what the user allows."""
    kind = f" ({verdict.kind})" if verdict.kind else ""
    names = ", ".join(verdict.allowed)
    allowed = f" except {names} (allowed)" if names and verdict.outcome == "PASS" else ""
    if names and not allowed:
        allowed = f", with {names} allowed"
    return f"{verdict.outcome}{kind}{allowed}"


def describe(verdict: Verdict) -> str:
    """A verdict in a few lines of text; of a report from elsewhere, no line can pose as two."""
    holds = f"; {verdict.holds}" if verdict.holds else ""
    lines = [f"{outcome_in_words(verdict)}{holds}: {verdict.summary}"]
    if verdict.fault:
        lines.append(f"Likely fault: {verdict.fault}")
    if root := verdict.root:
        lines += _details(root, verdict.advice)
        lines += [
            f"Also possible: {_briefly(fault, root.place)}"
            for fault in verdict.faults[1:]
            if fault.shares_finding(root)
        ]
        lines += [f"Also: {_further(fault)}" for fault in verdict.further]
    lines.extend(f"Missing: {item}" for item in verdict.pass_blockers)
    if verdict.advice:
        lines.append(f"Next: {verdict.advice}")
    return "\n".join(visible(line) for line in lines)


def _details(root: LikelyFault, advice: str) -> list[str]:
    """What is known of the root, each in a line if there is anything to say."""
    evidence = ", ".join(f"{k} {_shown(_from_one(k, v))}" for k, v in root.evidence.items())
    parts = {
        "Where": _in_words(root.place),
        "Evidence": evidence,
        "Look at": "" if advice else root.look_at,
        "Follows from it": ", ".join(root.consequences),
    }
    return [f"  {title}: {text}" for title, text in parts.items() if text]


def _briefly(fault: LikelyFault, beside: Place = Place()) -> str:
    place = "" if fault.place == beside else _in_words(fault.place)
    return f"{fault.sentence} ({place})" if place else fault.sentence


def _further(fault: LikelyFault) -> str:
    """A finding that the root does not explain, in a line."""
    follows = f"; follows from it: {', '.join(fault.consequences)}" if fault.consequences else ""
    look_at = f"; look at: {fault.look_at}" if fault.look_at else ""
    return f"{fault.finding}: {_briefly(fault)}{look_at}{follows}"


def _in_words(place: Place) -> str:
    parts = [place.optimizer] if place.optimizer else []
    if place.parameters:
        more = f" and {len(place.parameters) - 5} more" if len(place.parameters) > 5 else ""
        parts.append(", ".join(f"`{name}`" for name in place.parameters[:5]) + more)
    if place.process is not None:
        parts.append(f"process {place.process}")
    if place.step is not None:
        parts.append(f"first seen in step {place.step + 1}")
    if place.code:
        parts.append(f"see {', '.join(map(str, place.code))}")
    return ", ".join(parts)


def _from_one(name: str, value: Any) -> Any:
    """Numbers of steps as people count them, from 1; in the report they count from 0."""
    numbers = name.endswith("steps") and isinstance(value, list | tuple)
    return [n + 1 if isinstance(n, int) else n for n in value] if numbers else value


def _shown(value: Any) -> str:
    """A number in three digits, the first five entries of a table."""
    if isinstance(value, Mapping):
        cells = [f"{name} {_shown(item)}" for name, item in list(value.items())[:5]]
        return f"({', '.join(cells)}{', ...' if len(value) > 5 else ''})"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
