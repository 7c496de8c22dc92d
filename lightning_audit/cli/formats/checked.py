"""What the gate found of each report, for every format."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_audit.files.printable import inside
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.in_words import headline, headline_of
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, Outcome

#: From the best outcome to the worst.
_ORDER: tuple[Outcome, ...] = ("PASS", "INCONCLUSIVE", "VIOLATION")
#: Folder that a training writes to by default; it says nothing about the training.
_DEFAULT_FOLDER = "audit"
#: Parts of a path outside of a repository that name a report, at least.
_PARTS = 3


@dataclass(frozen=True)
class Remark:
    """A finding of the gate itself, in addition to the report's verdict.

    Args:
        rule: "unreadable", or the option that the report does not satisfy, without its dashes.
        outcome: VIOLATION, or INCONCLUSIVE if the gate could not decide.
        text: a sentence.
    """

    rule: Literal["unreadable", "max-epsilon", "baseline"]
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Checked:
    """A report as the gate found it.

    Args:
        path: as the user named it.
        training: name of the training, the same on every machine in a clone of its repository.
        place: path of the report from its repository.
        report: the report; None if it is unreadable.
        remarks: what the gate found in addition.
    """

    path: str
    training: str
    place: str
    report: AuditReport | None
    remarks: tuple[Remark, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of the verdict and the remarks."""
        verdict = [self.report.verdict.outcome] if self.report else []
        return worst([*verdict, *(remark.outcome for remark in self.remarks)])

    @property
    def reasons(self) -> list[str]:
        """Reasons for an outcome other than PASS, the first the most important."""
        remarks = [r.text for r in self.remarks if r.outcome == self.outcome]
        if self.outcome == "PASS" or self.report is None:
            return remarks
        if self.report.verdict.outcome != self.outcome:
            return remarks
        verdict = self.report.verdict
        if root := verdict.root:
            return [f"{headline_of(root)} ({root.finding})", *remarks]
        if self.report.trainings is not None and self.outcome == "VIOLATION":
            return [headline(self.report), *remarks]
        return [*(verdict.pass_blockers or (verdict.summary,)), *remarks]


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome; a violation is worse than an inconclusive report."""
    return max(outcomes, key=_ORDER.index)


def exit_code(checked: Sequence[Checked]) -> int:
    """Return the exit code of the worst outcome."""
    return EXIT_CODES[worst(one.outcome for one in checked)]


def counts(checked: Sequence[Checked]) -> dict[Outcome, int]:
    """Return the number of reports by outcome, the worst outcome first."""
    found = Counter(one.outcome for one in checked)
    return {outcome: found[outcome] for outcome in reversed(_ORDER)}


def named(paths: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return each path with the name of its training and its place, as `Checked` has them.

    Names are unique if the paths are.
    """
    places = _places(paths)
    names = [_training(place) for place in places]
    times = Counter(names)
    names = [name if times[name] == 1 else place for name, place in zip(names, places, strict=True)]
    return list(zip(paths, names, places, strict=True))


def _places(paths: Sequence[str]) -> list[str]:
    """Return relative paths; outside of a repository, as many last parts as make them differ."""
    found = [inside(path) for path in paths]
    outside = {path: os.path.abspath(path).split(os.sep)[1:] for path in paths}
    deepest = max(map(len, outside.values()), default=_PARTS)
    for length in range(_PARTS, max(deepest, _PARTS) + 1):
        places = [
            place or "/".join(outside[path][-length:])
            for path, place in zip(paths, found, strict=True)
        ]
        if len(set(places)) == len(places):
            break
    return places


def _training(place: str) -> str:
    folder, _, name = place.rpartition("/")
    if name != REPORT_NAME:
        return place.removesuffix(".json")
    parent, _, last = folder.rpartition("/")
    return parent if parent and last == _DEFAULT_FOLDER else folder or place
