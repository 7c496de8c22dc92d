"""The segments of a run between its resumes, and the findings of earlier segments.

A checkpoint contains only data computed from released gradients, the audit's coins and settings. A
check that is declared `private` therefore restarts at each resume. For such a check a checkpoint
stores what a report shows: the verdict, and the e-value as a whole power of ten; see
`checks.disclosure`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_audit.checks.check import REGISTRY, Check, Evidence
from lightning_audit.checks.disclosure import shown
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.results.report_json import plain

#: Tolerance for comparing an e-value with its threshold, relative.
_ROUNDING = 1e-9
_EARLIER = "{title}: by the e-value of the steps before step {step}, at the present significance"
_NOTE = (
    "the training was resumed {times}: checks of un-noised numbers, which a checkpoint must not "
    "contain, restart at a resume; segment k of the {segments} gets the share 1 / (k (k + 1)) of "
    "their significance"
)


class EarlierSegments:
    """Findings, before the last resume, of the checks that restart.

    Attributes:
        count: number of segments before the present one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._step = 0
        #: By check, for each private optimizer in the order of the sessions, and last for the run.
        self._found: list[dict[str, CheckResult]] = []

    @property
    def note(self) -> str:
        """Note for a report; empty in a training that was never resumed."""
        if not self.count:
            return ""
        times = "once" if self.count == 1 else f"{self.count} times"
        return _NOTE.format(times=times, segments=self.count + 1)

    def number(self, tests: Iterable[Evidence]) -> None:
        """Set the segment number of the tests that restart."""
        for test in tests:
            if REGISTRY[test.name].private:
                test.segment = self.count + 1

    def joined(
        self, place: int, checks: Sequence[CheckResult], significance: float
    ) -> list[CheckResult]:
        """Return the results of all segments together.

        Args:
            place: index of the private optimizer's session; -1 for the checks of the run.
            checks: results of the present segment, before the user's `allow`.
            significance: significance whose shares are the checks' levels.
        """
        if not self._found:
            return list(checks)
        earlier = self._found[place]
        both = [self._of_both(earlier.get(now.name), now, significance) for now in checks]
        # Keep findings of checks that no longer run.
        names = {check.name for check in checks}
        gone = (check for name, check in earlier.items() if name not in names)
        return both + [check for check in gone if check.status == REGISTRY[check.name].flag]

    def found(self, name: str) -> bool:
        """Return whether an earlier segment has flagged a check of the run."""
        check = self._found[-1].get(name) if self._found else None
        return check is not None and check.status == REGISTRY[name].flag

    def _of_both(
        self, earlier: CheckResult | None, now: CheckResult, significance: float
    ) -> CheckResult:
        if earlier is None:
            return now
        known = REGISTRY[now.name]
        if earlier.log_e_value is None or now.log_e_value is None:
            keeps = earlier.status == known.flag or now.status == "not_run"
            return earlier if keeps else now
        log_e = max(earlier.log_e_value, now.log_e_value)
        level = -math.log(now.share * significance) * (1.0 - _ROUNDING)
        if log_e < level:
            if now.status != "ok" and earlier.status != "not_run":
                now = dataclasses.replace(now, status="ok", message=known.fine or now.message)
            return dataclasses.replace(now, log_e_value=log_e)
        if earlier.log_e_value >= level:
            kept = earlier if earlier.status == known.flag else self._by_its_e_value(known, now)
            return dataclasses.replace(kept, log_e_value=log_e)
        return dataclasses.replace(now, log_e_value=log_e)

    def _by_its_e_value(self, known: Check, now: CheckResult) -> CheckResult:
        """Return the result of a check that an earlier e-value violates at a new significance."""
        title = known.heading(failed=True)
        return dataclasses.replace(
            now,
            status=known.flag,
            message=_EARLIER.format(title=title, step=self._step + 1),
            evidence={**now.evidence, "violated_at_step": self._step},
        )

    # ------------------------------------------------------------------ checkpoints

    def state(
        self, checks: Sequence[Sequence[CheckResult]], levels: Sequence[float]
    ) -> dict[str, Any]:
        """Return, for a checkpoint, what a report shows of the checks that restart.

        Args:
            checks: results of all segments, for each private optimizer and last for the run.
            levels: significance for each of these, whose shares are the checks' levels.
        """
        found = [
            [_plain(shown(check, level)) for check in of_place if REGISTRY[check.name].private]
            for of_place, level in zip(checks, levels, strict=True)
        ]
        return {"segment": self.count + 1, "found": found}

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Begin a new segment from a checkpoint's state.

        Args:
            state: `state` of the previous segment.
            step: number of the coming step.

        Raises:
            ValueError: it has results of a check that no installed package declares.
        """
        names = {kept["name"] for of_place in state["found"] for kept in of_place}
        if absent := sorted(names - {*REGISTRY}):
            raise ValueError(
                f"the checkpoint's audit had other checks ({', '.join(absent)}); resume with the "
                "packages that add checks as they were."
            )
        self.count, self._step = state["segment"], step
        self._found = [
            {check.name: _decided(check) for check in (CheckResult(**kept) for kept in of_place)}
            for of_place in state["found"]
        ]


def _decided(check: CheckResult) -> CheckResult:
    """Return an undecided result as flagged; whether it is undecided is determined again."""
    if check.status != "undecided":
        return check
    return dataclasses.replace(check, status=REGISTRY[check.name].flag)


def _plain(check: CheckResult) -> dict[str, Any]:
    kept: dict[str, Any] = plain(dataclasses.asdict(check))
    return {**kept, "log_e_value": check.log_e_value}
