"""Input and output of the rules that name a fault: the case, and candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_audit.checks.base.registry import REGISTRY, group
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Place
from lightning_audit.results.report_details import places_in

if TYPE_CHECKING:
    from lightning_audit.checks.monitor import AuditMonitor

#: Keys of a check's evidence that hold the step of the first finding.
STEPS = ("first_step", "step", "violated_at_step")
#: Noise below this fraction of the claim counts as missing.
MISSING = 0.1
#: Keys of a check's evidence that hold the parameters of the finding.
_PARAMETERS = ("parameters", "flagged")
#: Keys that only rules use.
_INTERNAL = (
    "added_ratio",
    "alike",
    "allowed",
    "examined",
    "findings",
    "flagged_noise_ratio",
    "flagged_ratio",
    "in_one_tensor",
    "kind",
    "of",
    "passes_whole",
    "ratio_of_the_others",
    "smallest_ratio",
    "where",
)
_PLACES = (*STEPS, *_PARAMETERS, "process")


def first_seen(evidence: Mapping[str, Any]) -> Any:
    """Return the optimizer step, from 0, at which a check was first violated; None if unknown.

    In a report that was edited it may be of any type.
    """
    return next((evidence[key] for key in STEPS if evidence.get(key) is not None), None)


@dataclass(frozen=True)
class Candidate:
    """A fault that may have caused the findings.

    Args:
        fault: the fault.
        explains: findings that it entails, which need no other explanation.
    """

    fault: LikelyFault
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Everything that the rules for naming a fault read.

    Args:
        violated: the violated checks, by name.
        monitor: all checks by e-process after the last step; None if no step was observed.
        oversize: norm of the canaries over the clipping norm.
        processes: number of processes that train together.
    """

    violated: Mapping[str, CheckResult]
    monitor: AuditMonitor | None
    oversize: float
    processes: int = 1

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the checks of the noise's size; the check of single steps is last."""
        return tuple(sorted(group("noise"), key=lambda name: REGISTRY[name].size_of is None))

    @property
    def of_noise(self) -> tuple[str, ...]:
        """Names of all checks that a noise fault may violate."""
        return (*self.sizes, *group("reuse"), *self.beyond)

    @property
    def beyond(self) -> tuple[str, ...]:
        """Names of the checks of the channel and of the leakage."""
        return (*group("channel"), *group("leakage"))

    def first_of(self, names: tuple[str, ...]) -> str | None:
        """Return the first of the names that is violated; None if none is."""
        return next((name for name in names if name in self.violated), None)

    def candidate(
        self,
        name: str,
        finding: str,
        sentence: str,
        look_at: str,
        evidence: Mapping[str, Any] | None = None,
        parameters: tuple[str, ...] | None = None,
        explains: tuple[str, ...] = (),
    ) -> Candidate:
        """Return a candidate, placed at its finding.

        Args:
            name: the fault's identifier.
            finding: name of a violated check.
            sentence: what is wrong.
            look_at: what to look at in the code.
            evidence: numbers; None for the evidence of the check.
            parameters: names of parameters; None for those in the evidence of the check.
            explains: findings that the fault entails.
        """
        seen = self.violated[finding].evidence
        if evidence is None:
            evidence = {k: v for k, v in seen.items() if k not in (*_PLACES, *_INTERNAL)}
        if parameters is None:
            named = next((seen[key] for key in _PARAMETERS if seen.get(key)), ())
            parameters = (named,) if isinstance(named, str) else tuple(map(str, named))
        place = Place(
            parameters,
            None if (step := first_seen(seen)) is None else int(step),
            None if seen.get("process") is None else int(seen["process"]),
            code=places_in(str(seen.get("where", ""))),
        )
        entailed = tuple(n for n in self.violated if n in explains and n != finding)
        fault = LikelyFault(name, sentence, finding, look_at, dict(evidence), place, entailed)
        return Candidate(fault, explains)


def named_tensors(monitor: AuditMonitor, labels: Iterable[str]) -> tuple[str, ...]:
    """Return the tensors named in canary labels; a canary over several tensors names none."""
    inside = [
        label.partition("(")[2].removesuffix(")").removesuffix(", moving") for label in labels
    ]
    return tuple(name for name in dict.fromkeys(inside) if name in monitor.header.tensors)
