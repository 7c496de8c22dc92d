"""Declaration of a check: its claim, share, rule, words, and the faults it names by itself."""

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
#: Those of the channel assume noise of the claimed size in each coordinate: noise that is smaller,
#: or repeated, does not have the right shape either, nor does it fit the stated divisor.
Group = Literal["clipping", "replay", "noise", "reuse", "channel", "leakage"]
#: What a check is about, as a reader of reports and docs sees it.
Topic = Literal[
    "Clipping",
    "Noise",
    "Fresh randomness",
    "What the update uses",
    "Sampling and bookkeeping",
    "Total epsilon",
]
#: The question that the checks of each topic answer, in the order of the docs.
QUESTIONS: Mapping[Topic, str] = {
    "Clipping": "Can one record move a step by more than the clipping norm?",
    "Noise": "Does every step add the stated noise to every parameter?",
    "Fresh randomness": "Is the noise drawn independently for every step and every entry?",
    "What the update uses": "Does the model learn from the noisy gradient alone?",
    "Sampling and bookkeeping": "Are batches drawn and steps counted as the accountant assumes?",
    "Total epsilon": "Do all steps together stay within the claim?",
}
#: An epsilon that a finding refutes.
Refuted = Literal["claimed", "spent", "lower"]
#: Epsilons that findings about batches, or about the steps on them, refute.
OF_BATCHES: tuple[Refuted, ...] = ("claimed", "spent", "lower")
#: Groups of checks that measure gradients of steps, or replayed steps.
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
    """A fault that one violated check names by itself.

    Args:
        name: the fault's identifier.
        sentence: what is wrong.
        look_at: what to look at in the code.
        rank: the likeliest first. Faults below 0 are certain and precede the faults that follow
            from several checks; those above 0 come after them. A rule of rank 0 is placed among
            them by `verdict.diagnosis`.
        explains: further checks that the fault violates.
        explains_groups: groups of such checks.
        applies: whether the check's evidence shows this fault.
        headline: the fault in a few words, without numbers; the same in all rules of this name.
            Empty in rules of other packages only.
    """

    name: str
    sentence: str
    look_at: str
    rank: float
    explains: tuple[str, ...] = ()
    explains_groups: tuple[Group, ...] = ()
    applies: Callable[[Mapping[str, Any]], bool] = lambda _: True
    headline: str = ""


@dataclass(frozen=True)
class Check:
    """Declaration of a check, read by the report, the gate, the diagnosis and the docs.

    Checks of this package have all five words, `title` to `topic`. A check of another package may
    leave them out: its name then serves as its title (`heading`), and it belongs to no topic.

    Args:
        name: in reports and in ``allow``.
        finds: what is wrong if it is violated; checks with the same text share a row of the last
            table of docs/checks.md.
        title: what it looks at, in three to five words.
        failed_title: the title if it fails, in three to five words.
        meaning: what a failure means, in one sentence.
        look_at: where to look in the code after a failure, in one sentence.
        topic: the question that it helps to answer, see `QUESTIONS`.
        kind: which claim it is about.
        weight: >= 0, of a check by e-process: its share of the significance is proportional to it
            (`share`).
        group: of checks of the same property; None if it is alone.
        needs: what was missing if it did not run, in words, unless more is known.
        each: whether each private optimizer has its own result; if not, the run has one.
        always: whether it is in every report that may have it.
        optimizers: least number of private optimizers of a run that may have it.
        wrong: whether the evidence of a check without e-value shows that something is wrong; None
            for a check that finds nothing without an e-value.
        warns: whether a finding is a warning, which fails nothing.
        must_run: whether a pass requires that it observed something.
        doubtful: whether a finding may be undecided; see `verdict.post_processing`.
        size_of: the quantity whose size it measures over many steps.
        blocks: why a result prevents a pass, in a sentence, or empty; None if nothing but an
            undecided finding does, as for every check.
        faults: the rules by which it names a fault alone; the first that applies counts.
        private: whether its numbers are computed from un-noised data (clipped sums, noise alone,
            batches, records, replays); see `checks.base.disclosure` for what is shown of them. No
            checkpoint holds them: the check restarts at each resume, see `Evidence`.
        fine: message of a private check if nothing is wrong.
        public: names of the parts of a private check that are functions of settings, coins and
            released gradients only: keys of the evidence, or "message".
        reads: input of its statistic: "steps", entries of the record of steps with noise;
            "canaries", entries of those whose coins count; "readings", `NoiseStep` of each step;
            "noise", `NoiseStep` of steps whose noise is known without the data; None if its result
            is made elsewhere. One check of a family has the statistic, which gives all results.
        init: makes the statistic from the record's header and the significance of a run, see
            `EntryStatistic` and `NoiseStatistic`.
        refutes: which epsilons do not hold if it is violated and the user allows it: the claim,
            the epsilon that the steps compose to, or the lower bounds, which assume how batches are
            drawn.
    """

    name: str
    finds: str
    title: str = ""
    failed_title: str = ""
    meaning: str = ""
    look_at: str = ""
    topic: Topic | None = None
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

    def heading(self, *, failed: bool = False) -> str:
        """Return its title, or its title if it failed; the name of a check without titles."""
        return (failed and self.failed_title) or self.title or self.name

    def occurs(self, optimizers: int) -> tuple[int, int]:
        """Return how often it is in a report, at least and at most, by the number of optimizers."""
        most = 0
        if optimizers >= self.optimizers:
            most = optimizers if self.each else 1
        return (most if self.always else 0), most

    @property
    def share(self) -> float:
        """Share of the significance, or of the second one if it warns: see `registry.shares`."""
        from lightning_audit.checks.base import registry

        return registry.share(self)

    def test(self, significance: float) -> Evidence:
        """Return an empty e-process of this check, at its share of a run's significance."""
        return Evidence(self.name, significance, self.share, segment=int(self.private))

    @property
    def flag(self) -> Literal["violated", "warned"]:
        """Status of the check if something is wrong."""
        return "warned" if self.warns else "violated"

    def is_wrong(self, evidence: Mapping[str, Any]) -> bool:
        """Return whether the numbers of a check without e-value show that something is wrong.

        Raises:
            KeyError: the check has an e-value, or a number is missing.
        """
        if self.wrong is None:
            raise KeyError(f"{self.name} has an e-value")
        return self.wrong(evidence)

    def judged(
        self, evidence: Mapping[str, Any], fine: str, wrong: str, advice: str
    ) -> CheckResult:
        """Return the result of a check without e-value, with the status that its evidence gives.

        Args:
            evidence: the numbers that it rests on.
            fine: message if nothing is wrong.
            wrong: message if something is.
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
        """Return the result of a check by e-process.

        Args:
            test: its e-process.
            fine: message if nothing is wrong.
            wrong: message if something is.
            advice: what to do about that.
            evidence: numbers to show.
            lack: what was missing if nothing was observed, if more is known than `needs`.
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
        """Return the result of a check that could not run, with the reason."""
        return CheckResult(self.name, self.kind, "not_run", message, evidence=evidence or {})
