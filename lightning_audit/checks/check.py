"""What a check is, how its evidence adds up, and the registry of all checks.

**Registry of all checks, in the order of the report, for the gate, the diagnosis and the docs.**
The modules of `lightning_audit.checks` declare checks, and so do other packages, by entry points of
the group `lightning_audit.checks`: each names a `Check`, or a tuple of them.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.record.store import OTHERS, Observation, RecordHeader, name_in_snapshots
from lightning_audit.results.audit_report import CheckResult, Kind, LikelyFault, Place
from lightning_audit.results.report_details import places_in

# --- The e-process of a check: its largest value, and when it crossed its threshold.

#: Factor by which a log e-value above 1 must grow for its step to be kept.
_GROWTH = 1.25


def log_weight(number: int) -> float:
    """Return the log of ``1 / (k (k + 1))``, the weight of the k-th of any number of e-values.

    The weights of all k add up to 1. So the weighted sum of e-values, each of which is valid given
    its past, is an e-value.

    Args:
        number: k, >= 1.
    """
    return -math.log(number * (number + 1.0))


@dataclass
class Evidence:
    r"""The largest log e-value of one test so far, and whether it crossed its threshold.

    A test of private numbers restarts when a training is resumed, because no checkpoint holds them.
    In segment k its e-process ``E_k`` starts at 1, and is valid given all earlier segments. It has
    the weight ``w_k = 1 / (k (k + 1))``. By Ville's inequality, segment k ever reaches
    ``1 / (w_k * share * significance)`` with probability at most ``w_k * share * significance``.
    The weights of all k add up to 1. By the union bound, the test flags in any segment with
    probability at most its share of the significance, for any number of resumes at any times.
    ``log_e`` is the largest of all ``log(w_k E_k)``.

    The significance may change when a run continues after a stop. The e-values do not depend on
    it, so the test is then judged by the new significance from its beginning.

    Args:
        name: of the check.
        significance: of the whole run.
        share: the test's part of it; the shares of one significance add up to at most 1 (Ville's
            inequality for each test, the union bound for all).
        segment: number of the segment of the run, from 1, of a test that restarts at each resume;
            0 for a test that a checkpoint continues.
    """

    name: str
    significance: float
    share: float
    segment: int = 0
    log_e: float = 0.0
    observed: bool = False
    #: Whether the latest log e-value was NaN, which is no evidence.
    undefined: bool = False
    #: Steps at which the log e-value reached a new maximum, with that maximum: the latest one, the
    #: one that crossed the threshold, and one for each growth by a quarter.
    growth: list[tuple[int, float]] = field(default_factory=list)

    @property
    def threshold(self) -> float:
        """Log e-value of the current segment, as passed to `update`, at which the test flags."""
        return self._level - self._log_weight

    @property
    def _level(self) -> float:
        return -math.log(self.share * self.significance)

    @property
    def _log_weight(self) -> float:
        return log_weight(self.segment) if self.segment else 0.0

    @property
    def violated(self) -> bool:
        """Whether the test has flagged."""
        return self.log_e >= self._level

    @property
    def violated_at(self) -> int | None:
        """The step at which the test flagged; None if it has not.

        If the significance has changed since then, the latest step that it can be.
        """
        level = self._level
        return next((step for step, log_e in self.growth if log_e >= level), None)

    def update(self, log_e: ArrayLike, step: ArrayLike) -> None:
        """Update with the log e-value after a step, or after each of several.

        Any number of looks is valid.

        Args:
            log_e: the log e-values, ``[]`` or ``[n]``.
            step: the numbers of their steps, alike.
        """
        looks, weight = np.ravel(log_e).tolist(), self._log_weight
        if looks:
            self.observed, self.undefined = True, math.isnan(looks[-1])
        for value, at in zip(looks, np.ravel(step).tolist(), strict=True):
            if value + weight > self.log_e:  # not if it is NaN
                self._grow(value + weight, at)

    def _grow(self, log_e: float, step: int) -> None:
        self.log_e, kept = log_e, self.growth
        before = kept[-2][1] if len(kept) > 1 else 0.0
        small = kept and kept[-1][1] < max(1.0, _GROWTH * before)
        if small and not before < self._level <= kept[-1][1]:
            kept.pop()
        kept.append((step, self.log_e))


def flagged(tests: Iterable[Evidence]) -> int:
    """Return how many of the tests have flagged."""
    return sum(test.violated for test in tests)


def evidence_in(part: object) -> Iterator[Evidence]:
    """Yield every test in an object of this package or of one that adds checks, at any depth.

    Args:
        part: such an object, or a list, tuple or dict of such objects.
    """
    return iter([*_evidence_in(part, packages(), set())])


def _evidence_in(part: object, packages: set[str], seen: set[int]) -> Iterator[Evidence]:
    inner: Iterable[object] = ()
    match part:
        case Evidence():
            yield part
        case Check():
            pass
        case dict():
            inner = part.values()
        case list() | tuple():
            inner = part
        case _ if type(part).__module__.partition(".")[0] in packages and id(part) not in seen:
            seen.add(id(part))  # objects of other packages may refer to each other
            inner = vars(part).values()
    for item in inner:
        yield from _evidence_in(item, packages, seen)


def judge_again(tests: Iterable[Evidence], significance: float) -> tuple[list[str], list[str]]:
    """Judge tests by a new significance, from their beginning.

    Args:
        tests: the tests.
        significance: of the whole run.

    Returns:
        Names of the tests that flag now but did not before, and of those that flagged before but
        do not now.
    """
    new: list[str] = []
    gone: list[str] = []
    for test in tests:
        before, test.significance = test.violated, significance
        if test.violated != before:
            (new if test.violated else gone).append(test.name)
    return new, gone


def refuse_others(now: Mapping[str, float], then: Mapping[str, float]) -> None:
    """Raise if the checks of a checkpoint are not those of this run.

    Args:
        now: share of the significance of each check of this run, 0 without an e-value.
        then: that of each check of the checkpoint.

    Raises:
        ValueError: a check is missing or added, or has another share of the significance, as when
            a package adds or no longer adds a check.
    """
    if now != then:
        names = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
        raise ValueError(
            f"the checkpoint's audit had other checks, or other shares of the significance "
            f"({', '.join(names)}); resume with the packages that add checks as they were."
        )


def largest_shared_log_e(tests: Iterable[tuple[float, float]]) -> float:
    """Return the log of the shared e-value: the largest share times e-value, at least 0.

    The claim is refuted when it reaches ``log(1 / significance)``.

    Args:
        tests: log e-value and share, > 0, of each.
    """
    return max([0.0, *(log_e + math.log(share) for log_e, share in tests)])


# --- Declaration of a check: its claim, share, rule, words, and the faults it names by itself.

#: Why a check by e-process whose latest e-value is NaN did not run.
_UNDEFINED = "its e-value is not a number"

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
#: Groups of checks that a fault of clipping violates, and a fault of the noise.
CLIPPED: tuple[Group, ...] = ("clipping", "replay", "leakage")
NOISED: tuple[Group, ...] = ("noise", "reuse", "channel", "leakage")
#: Groups of checks that measure gradients of steps, or replayed steps.
MEASURED: tuple[Group, ...] = ("clipping", "replay", "noise", "reuse", "channel", "leakage")


@dataclass(frozen=True)
class Fault:
    """A fault in words, which are written once: for its rules, the report and the docs.

    A module of `lightning_audit.checks` keeps a fault that several checks name together as a
    constant, for `headlines`.

    Args:
        name: its identifier.
        headline: in a few words, without numbers; empty for the title of the check that names it,
            if it failed.
        sentence: what is wrong; of a fault that several checks name a template, see
            `Case.candidate`.
        look_at: what to look at in the code, as a noun phrase; empty for that of the check that
            names it.
        measured: of a fault that several checks name: a template that follows the sentence and a
            colon, for what was measured.
    """

    name: str
    headline: str = ""
    sentence: str = ""
    look_at: str = ""
    measured: str = ""

    def rule(
        self,
        rank: float,
        groups: tuple[Group, ...] = (),
        key: str = "",
        *values: str,
        explains: tuple[str, ...] = (),
        applies: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> FaultRule:
        """Return the rule of a check that names the fault alone.

        Args:
            rank: see `FaultRule`.
            groups: of checks that the fault violates.
            key: of the evidence that shows the fault if its value is one of ``values``; empty if
                ``applies`` decides.
            values: such values.
            explains: further checks that the fault violates.
            applies: see `FaultRule`.
        """
        of_key = (lambda seen: seen.get(key) in values) if key else applies
        return FaultRule(self, rank, explains, groups, of_key)


@dataclass(frozen=True)
class FaultRule:
    """A fault that one violated check names by itself; `Fault.rule` makes it.

    Args:
        fault: the fault.
        rank: the likeliest first. Faults below 0 are certain and precede the faults that follow
            from several checks; those above 0 come after them. A rule of rank 0 is placed among
            them by `verdict.diagnosis`.
        explains: further checks that the fault violates.
        explains_groups: groups of such checks.
        applies: whether the check's evidence shows this fault.
    """

    fault: Fault
    rank: float
    explains: tuple[str, ...] = ()
    explains_groups: tuple[Group, ...] = ()
    applies: Callable[[Mapping[str, Any]], bool] = lambda _: True


@dataclass(frozen=True)
class Check:
    """Declaration of a check, read by the report, the gate, the diagnosis and the docs.

    Checks of this package have all five words, `title` to `topic`. A check of another package may
    leave them out: its name then serves as its title (`heading`), and it belongs to no topic.

    Args:
        name: in reports and in ``allow``.
        title: what it looks at, in three to five words.
        failed_title: the title if it fails, in three to five words.
        meaning: what a failure means, in one sentence.
        look_at: what to look at in the code after a failure, as a noun phrase: pages write "Look
            at" before it.
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
        doubtful: whether a finding may be undecided; see `verdict.diagnosis`.
        size_of: the quantity whose size it measures over many steps.
        blocks: why a result prevents a pass, in a sentence, or empty; None if nothing but an
            undecided finding does, as for every check.
        faults: the rules by which it names a fault alone; the first that applies counts.
        private: whether its numbers are computed from un-noised data (clipped sums, noise alone,
            batches, records, replays); see `checks.disclosure` for what is shown of them. No
            checkpoint holds them: the check restarts at each resume, see `Evidence`.
        fine: message if nothing is wrong, without a number in a private check.
        message: message if something is wrong: a template that `str.format` fills with the
            evidence, or a function of the evidence; empty for its title if it failed.
        public: names of the parts of a private check that are functions of settings, coins and
            released gradients only: keys of the evidence, or "message".
        reads: input of its statistic: "steps", entries of the record of steps with noise;
            "canaries", entries of those whose coins count; "readings", those whose noise was read;
            "noise", those whose noise is known without the data; None if its result
            is made elsewhere. One check of a family has the statistic, which returns all results.
        statistic: class of its statistic.
        refutes: which epsilons do not hold if it is violated and the user allows it: the claim,
            the epsilon that the steps compose to, or the lower bounds, which assume how batches are
            drawn.
    """

    name: str
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
    message: str | Callable[[Mapping[str, Any]], str] = ""
    public: tuple[str, ...] = ()
    reads: Literal["steps", "canaries", "readings", "noise"] | None = None
    statistic: type[Statistic] | None = None
    refutes: tuple[Refuted, ...] = ("claimed", "spent")

    def __post_init__(self) -> None:
        """Validate how its statistic is declared.

        Raises:
            ValueError: it would never run, or what it computes from un-noised data would reach a
                checkpoint or a report.
        """
        if (self.reads is None) != (self.statistic is None):
            raise ValueError(
                f"the check {self.name!r} must have both `reads` and `statistic`, or none."
            )
        if self.reads is None:
            return
        if not self.each:
            raise ValueError(f"the check {self.name!r} has a statistic for each optimizer: `each`.")
        of_data = self.reads in ("readings", "noise")
        if of_data != self.private:
            declare = "must be declared" if of_data else "must not be declared"
            raise ValueError(
                f"the check {self.name!r} reads {self.reads!r} and {declare} `private`."
            )

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
        """Share of the significance: its part of all weights, times `_HANDED_OUT`.

        Adding a check costs the others almost nothing: all shares shrink a little. Checks that only
        warn share a second significance of the same size.
        """
        if not self.weight:
            return 0.0
        weights = {c.name: c.weight for c in REGISTRY.values() if c.warns == self.warns}
        weights[self.name] = self.weight  # the check need not be registered
        return _HANDED_OUT * self.weight / math.fsum(weights.values())

    def test(self, significance: float) -> Evidence:
        """Return an empty e-process of this check, at its share of a run's significance."""
        return Evidence(self.name, significance, self.share, segment=int(self.private))

    def new_statistic(self, header: RecordHeader, significance: float) -> Statistic:
        """Return the statistic of a check that has one, without observations.

        Args:
            header: what the entries of the record mean.
            significance: of the whole run.
        """
        assert self.statistic is not None
        return self.statistic(self, header, significance)

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

    def judged(self, evidence: Mapping[str, Any], fine: str = "", **said: Any) -> CheckResult:
        """Return the result of a check without e-value, with the status that its evidence gives.

        Args:
            evidence: the numbers that it rests on.
            fine: message if nothing is wrong, if more is known than `fine`.
            said: further values for `message`, which are not shown as evidence.
        """
        if not self.is_wrong(evidence):
            return CheckResult(self.name, self.kind, "ok", fine or self.fine, evidence=evidence)
        return self._flagged(evidence, said)

    def result(
        self,
        test: Evidence,
        evidence: Mapping[str, Any],
        lack: str = "",
        fine: str = "",
        **said: Any,
    ) -> CheckResult:
        """Return the result of a check by e-process.

        Args:
            test: its e-process.
            evidence: numbers to show.
            lack: what was missing if nothing was observed, if more is known than `needs`.
            fine: message if nothing is wrong, if more is known than `fine`.
            said: further values for `message`, which are not shown as evidence.
        """
        if test.violated:
            found = self._flagged(evidence, said)
        elif test.observed and not test.undefined:
            found = CheckResult(self.name, self.kind, "ok", fine or self.fine)
        else:
            found = self.not_run(_UNDEFINED if test.undefined else lack or self.needs)
        return replace(
            found,
            log_e_value=test.log_e,
            share=test.share,
            evidence={**evidence, "violated_at_step": test.violated_at},
        )

    def _flagged(self, evidence: Mapping[str, Any], said: Mapping[str, Any]) -> CheckResult:
        seen = {**evidence, **said}
        message = self.message(seen) if callable(self.message) else self.message.format(**seen)
        message, advice = message or self.heading(failed=True), self.looks_at(evidence)
        return CheckResult(self.name, self.kind, self.flag, message, advice, evidence=evidence)

    def blocker(self, found: CheckResult) -> str:
        """Return why its result prevents a pass; empty if it does not."""
        return self.blocks(found) if self.blocks else ""

    def looks_at(self, evidence: Mapping[str, Any]) -> str:
        """Return what to look at by the first rule that applies, or by the check."""
        rule = next((rule for rule in self.faults if rule.applies(evidence)), None)
        return rule.fault.look_at if rule and rule.fault.look_at else self.look_at

    def not_run(self, message: str, evidence: Mapping[str, Any] | None = None) -> CheckResult:
        """Return the result of a check that could not run, with the reason."""
        return CheckResult(self.name, self.kind, "not_run", message, evidence=evidence or {})


class Statistic:
    """Statistic of a check: what was read of the steps, the check's e-process, and the result.

    A subclass has `begin` and `update`, and `evidence` if its result shows numbers. Checkpoints
    hold the statistic of a check that reads "steps" or "canaries", with all of its attributes: see
    `record.store.snapshot`.

    Args:
        check: whose statistic it is.
        header: what the entries of the record mean.
        significance: of the whole run.
    """

    #: The e-process of the check; absent in one without e-value.
    test: Evidence

    def __init__(self, check: Check, header: RecordHeader, significance: float) -> None:
        self.check = check
        if check.weight:
            self.test = check.test(significance)
        self.begin(header)

    def begin(self, header: RecordHeader) -> None:
        """Set the attributes of a statistic that has read nothing."""

    def update(self, seen: Observation) -> None:
        """Update with a step that shows its noise, or with steps of the record.

        Args:
            seen: the step; for "steps" and "canaries" steps of one claim, of which the columns'
                first axis is that of the steps.
        """
        raise NotImplementedError

    def evidence(self) -> dict[str, Any]:
        """Return the numbers to show."""
        return {}

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the results of its check, or checks.

        Args:
            lack: why the latest step shows no noise; empty if it does.
        """
        if not self.check.weight:
            return (self.check.judged(self.evidence()),)
        return (self.check.result(self.test, self.evidence(), lack),)


# --- Registry of all checks, in the order of the report, for the gate, the diagnosis and the docs.

ENTRY_POINTS = "lightning_audit.checks"
#: The modules of each subject, in the order of the report.
_SUBJECTS = (
    *(("update",), ("noise", "noise_faults"), ("clipping",), ("between",)),
    ("replayed_noise", "replay"),
    *(("randomness",), ("sampling",), ("opacus",), ("accounting",)),
)


def _modules(subject: tuple[str, ...]) -> Iterator[ModuleType]:
    """Import the modules of a subject."""
    for name in subject:
        yield importlib.import_module(f"{ENTRY_POINTS}.{name}")


def _own() -> Iterator[Check]:
    """Yield `CHECKS` of the modules of each subject.

    Those that a pass requires come first, that of the run before those of each optimizer.
    """
    for subject in _SUBJECTS:
        declared = [c for module in _modules(subject) for c in getattr(module, "CHECKS", ())]
        yield from sorted(declared, key=lambda c: (not c.must_run, c.must_run and c.each))


def _from_outside() -> Iterator[Check]:
    """Yield the checks of other packages.

    Raises:
        ImportError: an entry point cannot be loaded.
        TypeError: an entry point names something other than a check.
        ValueError: a check can find nothing.
    """
    for point in entry_points(group=ENTRY_POINTS):
        try:
            named = point.load()
        except Exception as error:
            raise ImportError(
                f"the check {point.value!r} cannot be loaded ({type(error).__name__}: {error}); "
                f"repair or uninstall the package that has the entry point {point.name!r} of "
                f"{ENTRY_POINTS}."
            ) from error
        for check in named if isinstance(named, tuple) else (named,):
            if not isinstance(check, Check):
                raise TypeError(
                    f"the entry point {point.name!r} of {ENTRY_POINTS} must name a Check or a "
                    f"tuple of them, and {point.value!r} is a {type(check).__name__}."
                )
            if not check.weight and check.wrong is None:
                raise ValueError(
                    f"the check {check.name!r} of {point.value!r} can find nothing: give it a "
                    "`weight`, if its statistic has an e-value, or `wrong`."
                )
            OTHERS.setdefault(point.module, []).append(check.name)
            yield check


class _Registry(UserDict[str, Check]):
    """Checks by name; the modules are imported when the registry is first read."""

    def __init__(self) -> None:
        """Hold nothing until it is read."""

    @functools.cached_property
    def data(self) -> dict[str, Check]:  # type: ignore[override]
        """Checks by name.

        Raises:
            ValueError: two checks have the same name.
        """
        found: dict[str, Check] = {}
        for check in (*_own(), *_from_outside()):
            if found.setdefault(check.name, check) is not check:
                raise ValueError(
                    f"two checks are named {check.name!r}; rename the one of your own package."
                )
        return found


REGISTRY: MutableMapping[str, Check] = _Registry()

#: Part of the significance that is assigned to checks; part of all decisions of replays whether
#: noise hides a record; the rest is reserved for future checks.
_HANDED_OUT, OF_REPLAYS = 0.9, 0.05


def shares(*, warns: bool = False) -> dict[str, float]:
    """Return the share of the significance of each check that has one.

    Args:
        warns: whether to return the checks that only warn, which share a second significance of
            the same size.
    """
    return {c.name: c.share for c in REGISTRY.values() if c.weight > 0 and c.warns == warns}


def statistics(reads: str, header: RecordHeader, significance: float) -> dict[str, Statistic]:
    """New statistics of the checks that read something, by the names of the checks.

    Args:
        reads: see `Check`.
        header: what the entries of the record mean.
        significance: of the whole run.
    """
    return {
        check.name: check.new_statistic(header, significance)
        for check in REGISTRY.values()
        if check.reads == reads
    }


def packages() -> set[str]:
    """Names of the packages whose statistics a checkpoint may hold."""
    made = (c.statistic.__module__ for c in REGISTRY.values() if c.statistic is not None)
    return {ENTRY_POINTS.partition(".")[0], *(module.partition(".")[0] for module in made)}


name_in_snapshots("check", Check, REGISTRY, packages)


def group(name: Group) -> tuple[str, ...]:
    """Return the names of the checks of a group."""
    return tuple(check.name for check in REGISTRY.values() if check.group == name)


def entailed(rule: FaultRule) -> tuple[str, ...]:
    """Return the names of the other checks that a fault violates."""
    return (*rule.explains, *(name for of in rule.explains_groups for name in group(of)))


def headlines() -> dict[str, str]:
    """Return the headline of each fault, by its name.

    A fault is in the rules of the checks that name it alone, or a constant of a module that names
    it by several checks together.
    """
    modules = (module for subject in _SUBJECTS for module in _modules(subject))
    of_several = (one for module in modules for one in vars(module).values())
    known = {one.name: one.headline for one in of_several if isinstance(one, Fault)}
    for check in REGISTRY.values():
        known |= {
            rule.fault.name: rule.fault.headline or check.heading(failed=True)
            for rule in check.faults
        }
    return known


def in_order(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return results in the order of the report."""
    places = {name: place for place, name in enumerate(REGISTRY)}
    return sorted(results, key=lambda result: places[result.name])


def shared_log_e(results: Iterable[CheckResult]) -> float:
    """Return the log of the e-value that checks share; checks that only warn do not count."""
    sharing = shares()
    return largest_shared_log_e(
        (result.log_e_value, result.share)
        for result in results
        if result.log_e_value is not None and result.share > 0 and result.name in sharing
    )


# --- Input and output of the rules that name a fault: the case, and candidates.

#: Keys of a check's evidence that hold the step of the first finding.
STEPS = ("first_step", "step", "violated_at_step")
#: Noise below this fraction of the claim counts as missing.
MISSING = 0.1
#: Keys of a check's evidence that hold the parameters of the finding.
_PARAMETERS = ("parameters", "flagged")
#: Keys that only rules use.
_INTERNAL = (
    *("added_ratio", "alike", "allowed", "doubts", "examined", "findings", "flagged_noise_ratio"),
    *("flagged_ratio", "in_one_tensor", "kind", "of", "passes_whole", "ratio_of_the_others"),
    *("smallest_ratio", "where"),
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


class Monitored(Protocol):
    """What the rules for naming a fault read of the checks after the last step."""

    header: RecordHeader
    steps: int
    last_scale: float
    last_norm: float

    @property
    def sensitivity(self) -> Any:
        """The statistic of what canaries add."""

    @property
    def witness_noise(self) -> Any:
        """That of the noise at the probe coordinates."""

    @property
    def canary_noise(self) -> Any:
        """That of the noise along the canaries."""

    @property
    def reuse(self) -> Any:
        """That of noise that is used again."""

    @property
    def history(self) -> Any:
        """The claims of the steps."""


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
    monitor: Monitored | None
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

    def seen(self, check: Check) -> Mapping[str, Any]:
        """Return the evidence of a check; empty if it is not violated."""
        found = self.violated.get(check.name)
        return {} if found is None else found.evidence

    def first_of(self, names: tuple[str, ...]) -> str | None:
        """Return the first of the names that is violated; None if none is."""
        return next((name for name in names if name in self.violated), None)

    def candidate(
        self,
        fault: Fault,
        finding: str,
        sentence: str = "",
        evidence: Mapping[str, Any] | None = None,
        parameters: tuple[str, ...] | None = None,
        explains: tuple[str, ...] = (),
        measured: str = "",
        **said: Any,
    ) -> Candidate:
        """Return a candidate, placed at its finding.

        Args:
            fault: the fault.
            finding: name of a violated check.
            sentence: what is wrong, if more is known than the fault's own sentence.
            evidence: numbers; None for the evidence of the check.
            parameters: names of parameters; None for those in the evidence of the check.
            explains: findings that the fault entails.
            measured: what was measured, if ``sentence`` is given, or if more is known.
            said: values that the fault's templates have in addition to the evidence.
        """
        found = self.violated[finding].evidence
        if evidence is None:
            evidence = {k: v for k, v in found.items() if k not in (*_PLACES, *_INTERNAL)}
        if parameters is None:
            named = next((found[key] for key in _PARAMETERS if found.get(key)), ())
            parameters = (named,) if isinstance(named, str) else tuple(map(str, named))
        # A loader may draw more batches than steps are taken.
        last = max(self.monitor.steps - 1, 0) if self.monitor else math.inf
        entailed = tuple(n for n in self.violated if n in explains and n != finding)
        # The step at which the first sign of the fault was seen, by any of these checks.
        steps = [first_seen(self.violated[name].evidence) for name in (finding, *entailed)]
        step = min((step for step in steps if step is not None), default=None)
        place = Place(
            parameters,
            None if step is None else int(min(step, last)),
            None if found.get("process") is None else int(found["process"]),
            code=places_in(str(found.get("where", ""))),
        )
        known = REGISTRY.get(finding)
        look_at = fault.look_at or (known.look_at if known else "")
        values = {**evidence, **said}
        seen = measured or ("" if sentence else fault.measured.format(**values))
        words = ": ".join(filter(None, (sentence or fault.sentence.format(**values), seen)))
        about = fault.name, words, finding, look_at, dict(evidence), place, entailed
        return Candidate(LikelyFault(*about, seen=seen), explains)


def named_tensors(monitor: Monitored, labels: Iterable[str]) -> tuple[str, ...]:
    """Return the tensors named in canary labels; a canary over several tensors names none."""
    inside = dict.fromkeys(map(monitor.header.tensor_of, labels))
    return tuple(name for name in inside if name in monitor.header.tensors)


# --- The check of an audit over many trainings, and the declarations of the checks of any report.

#: It is in no report of one training, and so it is not in the registry.
GUESSED_COINS = Check(
    "trainings.coins",
    title="Coins of many trainings",
    failed_title="Trainings show the canary more than claimed",
    meaning="The coins of the trainings are guessed with fewer errors than the claim allows.",
    look_at="clipping, noise, sampling and number of steps of a training, compared with the claim",
    topic="Total epsilon",
    kind="epsilon",
)
#: Checks of any report, by name.
DECLARED = ChainMap(REGISTRY, {GUESSED_COINS.name: GUESSED_COINS})
