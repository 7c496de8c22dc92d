"""What all checks by e-process have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lightning_audit.results import CheckResult, Kind

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


@dataclass
class Evidence:
    """The largest log e-value of one test so far, and whether it crossed its threshold.

    Args:
        name: a key of `SHARES`.
        significance: of the whole run.
        kind: which claim the test is about.
    """

    name: str
    significance: float
    kind: Kind = "mechanism"
    log_e: float = 0.0
    violated_at: int | None = None
    observed: bool = False

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
        return self.violated_at is not None

    def update(self, log_e: float, step: int) -> None:
        """Take in the log e-value after a step; looks cost nothing."""
        self.observed = True
        self.log_e = max(self.log_e, float(log_e))
        if self.violated_at is None and self.log_e >= self.threshold:
            self.violated_at = step

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
