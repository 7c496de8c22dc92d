"""What all checks by e-process have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_audit.results.audit_report import CheckResult, Kind

_PACKAGE = __name__.partition(".")[0]

#: How the significance of a run is shared. What is handed out may never exceed 1 (Ville's
#: inequality for each, the union bound for all).
SHARES: Mapping[str, float] = {
    "noise": 0.1,
    "noise.tensor": 0.1,
    "noise.step": 0.1,
    "noise.canary": 0.1,
    # It needs the most steps of all: what is left over helps it most.
    "sensitivity": 0.17,
    "epsilon": 0.1,
    "reuse.lag": 0.09,
    "reuse.broadcast": 0.1,
    "reuse.pair": 0.08,
    # What these look for shows in a step or two, with evidence that needs no larger share.
    "reuse.recurrence": 0.01,
    "noise.shape": 0.01,
    "batch_normalised": 0.01,
    # The update follows coins whose canaries were taken out; raw gradients show in a step or two.
    "gradient_replaced": 0.01,
    # Of samplers whose type does not tell how they draw; a wrong one is seen in a few batches.
    "sampling.not_poisson": 0.01,
    "sampling.rate": 0.01,
}

#: How a second significance, of the same size, is shared by tests that only warn.
WARNING_SHARES: Mapping[str, float] = {"noise.mean": 0.5, "noise.excess": 0.5}


#: Growth of a log e-value that is kept with its step: by so much, from one on.
_GROWTH = 1.25


@dataclass
class Evidence:
    """The largest log e-value of one test so far, and whether it crossed its threshold.

    The significance may be another one when a run goes on after a stop: what was seen does not
    depend on it, so that the test is then judged by the new one from its beginning.

    Args:
        name: a key of `SHARES`.
        significance: of the whole run.
        kind: which claim the test is about.
    """

    name: str
    significance: float
    kind: Kind = "mechanism"
    log_e: float = 0.0
    observed: bool = False
    #: Steps at which the log e-value was larger than ever, and how large: the latest, the one at
    #: which the threshold was crossed, and of the others one for each growth by a quarter.
    growth: list[tuple[int, float]] = field(default_factory=list)

    _flag: ClassVar[Literal["violated", "warned"]] = "violated"

    @property
    def share(self) -> float:
        """The test's share of the significance."""
        return SHARES[self.name]

    @property
    def threshold(self) -> float:
        """Log e-value at which the test flags."""
        return -math.log(self.share * self.significance)

    @property
    def violated(self) -> bool:
        """Whether the test has flagged."""
        return self.log_e >= self.threshold

    @property
    def violated_at(self) -> int | None:
        """The step at which the test flagged; None if it has not.

        Where the significance was another one at that step, the latest that it can be.
        """
        level = self.threshold
        return next((step for step, log_e in self.growth if log_e >= level), None)

    def update(self, log_e: float, step: int) -> None:
        """Take in the log e-value after a step; looks cost nothing."""
        self.observed = True
        if not log_e > self.log_e:  # nor where it is NaN
            return
        self.log_e, kept = float(log_e), self.growth
        before = kept[-2][1] if len(kept) > 1 else 0.0
        small = kept and kept[-1][1] < max(1.0, _GROWTH * before)
        if small and not before < self.threshold <= kept[-1][1]:
            kept.pop()
        kept.append((step, self.log_e))

    def precede(self, growth: Iterable[tuple[int, float]], *, observed: bool) -> None:
        """Put what was seen before a stop before what was seen since."""
        since, self.growth, self.log_e = self.growth, [], 0.0
        observed = observed or self.observed
        for step, log_e in (*growth, *since):
            self.update(log_e, step)
        self.observed = observed

    def result(
        self, fine: str, wrong: str, advice: str, evidence: Mapping[str, Any]
    ) -> CheckResult:
        """The check's result: one sentence if nothing is wrong, another with advice if it is."""
        status = self._flag if self.violated else "ok" if self.observed else "not_run"
        messages = {self._flag: wrong, "ok": fine, "not_run": "nothing was observed"}
        return CheckResult(
            name=self.name,
            kind=self.kind,
            status=status,
            message=messages[status],
            advice=advice if self.violated else "",
            log_e_value=self.log_e,
            share=self.share,
            evidence={**evidence, "violated_at_step": self.violated_at},
        )


class Warned(Evidence):
    """Evidence of what is not as stated, but loses no privacy; its name is in `WARNING_SHARES`."""

    _flag = "warned"

    @property
    def share(self) -> float:
        """The test's share of the significance of warnings."""
        return WARNING_SHARES[self.name]


def evidence_in(part: object) -> Iterator[Evidence]:
    """Every test that checks hold, wherever they hold it, so that none can be forgotten.

    Args:
        part: an object of this package, or a list, tuple or dict of such.
    """
    match part:
        case Evidence():
            yield part
        case dict():
            yield from evidence_in(list(part.values()))
        case list() | tuple():
            for item in part:
                yield from evidence_in(item)
        case _ if type(part).__module__.partition(".")[0] == _PACKAGE:
            yield from evidence_in(list(vars(part).values()))


def judge_again(tests: Iterable[Evidence], significance: float) -> tuple[list[str], list[str]]:
    """Judge tests by another significance, from their beginning.

    Args:
        tests: the tests.
        significance: of the whole run.

    Returns:
        Names of those that flag now and did not before, and of those that did and do no longer.
    """
    new: list[str] = []
    gone: list[str] = []
    for test in tests:
        before, test.significance = test.violated, significance
        if test.violated != before:
            (new if test.violated else gone).append(test.name)
    return new, gone


def shared_log_e(checks: Iterable[CheckResult]) -> float:
    """Log of the shared e-value: the largest of share times e-value, at least 0.

    The claim is refuted when it reaches ``log(1 / significance)``. Tests that only warn count for
    nothing.
    """
    values = [
        check.log_e_value + math.log(check.share)
        for check in checks
        if check.log_e_value is not None and check.name in SHARES and check.share > 0
    ]
    return max([0.0, *values])
