"""What is declared of a check: its claim, its share, when it is wrong and which fault that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.results.audit_report import CheckResult, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lightning_audit.checks.noise.noise_seen import NoiseStep
    from lightning_audit.record.store import RecordHeader

#: Checks of the same property: a fault that explains one of them explains the others.
#: Those of the channel suppose noise of the claimed size in each coordinate: noise that is smaller,
#: or the same twice, is not of the right shape, nor does the stated divisor fit it.
Group = Literal["clipping", "replay", "noise", "reuse", "channel", "leakage"]
#: An epsilon that a finding refutes.
Refuted = Literal["claimed", "spent", "lower"]
#: By findings of the batches, or of steps on them.
OF_BATCHES: tuple[Refuted, ...] = ("claimed", "spent", "lower")
#: What is measured on the gradients of steps, or on steps that are replayed.
MEASURED: tuple[Group, ...] = ("clipping", "replay", "noise", "reuse", "channel", "leakage")


class EntryStatistic(Protocol):
    """Statistic of a record's entries; checkpoints hold it, see `record.snapshot`."""

    def update(self, entry: NDArray[np.void]) -> None:
        """Add one entry that counts."""

    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks."""


class NoiseStatistic(Protocol):
    """Statistic of what steps show of their noise; no checkpoint holds it."""

    def update(self, step: NoiseStep) -> None:
        """Add one step."""

    def result(self, lack: str) -> CheckResult:
        """Result of the check; ``lack`` is why the latest step shows no noise, or empty."""


@dataclass(frozen=True)
class FaultRule:
    """A fault that one violated check tells by itself.

    Args:
        name: the fault's identifier.
        sentence: what is wrong.
        look_at: what to look at in the code.
        rank: the likeliest first. Below 0 is what was seen for certain, and stands before the
            faults that are told by several checks; what is above stands behind them. 0 is for a
            rule that stands among them, see `verdict.diagnosis`.
        explains: further checks that the fault violates, and groups of them.
        applies: tells by the check's evidence whether it is this fault.
    """

    name: str
    sentence: str
    look_at: str
    rank: float
    explains: tuple[str, ...] = ()
    explains_groups: tuple[Group, ...] = ()
    applies: Callable[[Mapping[str, Any]], bool] = lambda _: True


@dataclass(frozen=True)
class Check:
    """A check, as the report, the gate, the diagnosis and the documents know it.

    Args:
        name: in reports and in ``allow``.
        finds: what is wrong where it is violated; checks of the same words share a row of the docs.
        kind: which claim it is about.
        weight: of a check by e-process, >= 0: what it gets of the significance is in proportion to
            it (`share`).
        group: of checks of the same property, None if it is alone.
        needs: what was missing where it did not run, in words, if nothing more is known.
        each: whether each private optimizer has one of its own; if not, the run has one.
        always: whether it is there wherever it may be.
        optimizers: number of private optimizers from which on it may be there.
        wrong: tells by the evidence of a check without e-value whether what it found is wrong; None
            where such a check finds nothing.
        warns: whether what is wrong is a warning, and fails nothing.
        must_run: whether a pass rests on it, so that it must have seen something.
        doubtful: whether what is wrong may be undecided; see `checks.post_processing`.
        size_of: what it tells the size of, over many steps.
        blocks: what of a result stands in the way of a pass, in a sentence, or empty; None where
            nothing does but what is undecided, as of every check.
        faults: the rules by which it names a fault alone; the first that applies counts.
        private: whether its numbers are computed from un-noised data (clipped sums, noise alone,
            batches, records, replays); see `checks.base.disclosure` for what is shown of them. No
            checkpoint holds them: the check restarts at each resume, see `Evidence`.
        fine: message of a private check where nothing is wrong.
        public: names of those parts of a private check that are functions of settings, coins and
            released gradients all the same: keys of the evidence, or "message".
        reads: what its statistic is given: "steps", entries of the record of steps with noise;
            "canaries", entries of those whose coins count; "readings", `NoiseStep` of each step;
            "noise", the same of steps whose noise is known without the data; None if its result is
            made elsewhere. Of a family of checks one has the statistic, which gives all results.
        init: makes the statistic of the record's header and the significance of a run, see
            `EntryStatistic` and `NoiseStatistic`.
        refutes: which epsilons do not hold where it is violated and the user allows it: the claim,
            what the steps are composed to, or the lower bounds, which suppose how batches are
            drawn.
    """

    name: str
    finds: str
    kind: Kind = "mechanism"
    weight: float = 0.0
    group: Group | None = None
    needs: str = "nothing was seen of it"
    each: bool = False
    always: bool = False
    optimizers: int = 1
    wrong: Callable[[Mapping[str, Any]], bool] | None = None
    warns: bool = False
    must_run: bool = False
    doubtful: bool = False
    size_of: Literal["noise", "signal"] | None = None
    blocks: Callable[[CheckResult], str] | None = None
    faults: tuple[FaultRule, ...] = ()
    private: bool = False
    fine: str = ""
    public: tuple[str, ...] = ()
    reads: Literal["steps", "canaries", "readings", "noise"] | None = None
    init: Callable[[RecordHeader, float], Any] | None = None
    refutes: tuple[Refuted, ...] = ("claimed", "spent")

    def occurs(self, optimizers: int) -> tuple[int, int]:
        """How often it is in a report at least and at most, by the number of optimizers."""
        most = 0
        if optimizers >= self.optimizers:
            most = optimizers if self.each else 1
        return (most if self.always else 0), most

    @property
    def share(self) -> float:
        """Of the significance, or of the second one where it warns: see `registry.shares`."""
        from lightning_audit.checks.base import registry

        return registry.share(self)

    def test(self, significance: float) -> Evidence:
        """An empty e-process of this check, at its share of the significance of a run."""
        return Evidence(self.name, significance, self.share, segment=int(self.private))

    @property
    def flag(self) -> Literal["violated", "warned"]:
        """The status of the check where something is wrong."""
        return "warned" if self.warns else "violated"

    def is_wrong(self, evidence: Mapping[str, Any]) -> bool:
        """Whether the numbers of a check without e-value say that something is wrong.

        Raises:
            KeyError: the check has an e-value, or a number is missing.
        """
        if self.wrong is None:
            raise KeyError(f"{self.name} has an e-value")
        return self.wrong(evidence)

    def judged(
        self, evidence: Mapping[str, Any], fine: str, wrong: str, advice: str
    ) -> CheckResult:
        """Result of a check without e-value, with the status that its evidence gives.

        Args:
            evidence: the numbers behind it.
            fine: message where nothing is wrong.
            wrong: message where something is.
            advice: what to do about that.
        """
        if not self.is_wrong(evidence):
            return CheckResult(self.name, self.kind, "ok", fine, evidence=evidence)
        return CheckResult(self.name, self.kind, self.flag, wrong, advice, evidence=evidence)

    def result(
        self,
        test: Evidence,
        fine: str,
        wrong: str,
        advice: str,
        evidence: Mapping[str, Any],
        lack: str = "",
    ) -> CheckResult:
        """Result of a check by e-process.

        Args:
            test: its e-process.
            fine: message where nothing is wrong.
            wrong: message where something is.
            advice: what to do about that.
            evidence: numbers to show.
            lack: what was missing, if nothing was observed and that is known better than `needs`.
        """
        status = self.flag if test.violated else "ok" if test.observed else "not_run"
        messages = {self.flag: wrong, "ok": fine, "not_run": f"not tested: {lack or self.needs}"}
        return CheckResult(
            name=self.name,
            kind=self.kind,
            status=status,
            message=messages[status],
            advice=advice if test.violated else "",
            log_e_value=test.log_e,
            share=test.share,
            evidence={**evidence, "violated_at_step": test.violated_at},
        )

    def not_run(self, message: str, evidence: Mapping[str, Any] | None = None) -> CheckResult:
        """Result of a check that could not be made, and why."""
        return CheckResult(self.name, self.kind, "not_run", message, evidence=evidence or {})
