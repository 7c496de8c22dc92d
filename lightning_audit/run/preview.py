"""What a few steps show of an audit: whether it is possible, and how many steps a PASS takes."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.noise import PooledSums
from lightning_audit.checks.replay import COUPLING, REPLAY_CHECKS
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.report.text import plural
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.session.entrances import HandedRows, InputSample
from lightning_audit.session.step import AuditSession
from lightning_audit.verdict.judge import MOST_STEPS, PowerModel

#: Steps that a preview takes at least and at most, and largest number of batches per step.
STEPS, LAST_STEP, MOST_BATCHES = 16, 256, 4
#: Warm-up steps, whose times are left out.
_WARM = 4
#: Seconds after which a preview takes no more than the least number of steps.
_SECONDS = 30.0
#: Checks by replay whose missing answers are listed.
_ASKED = (*REPLAY_CHECKS, REPLAY_NOISE.name, COUPLING.name)


# --- How many steps a PASS takes, by the readings of a few.

#: Two extrapolated numbers of steps must be within this factor.
_APART = 2.0


class StepsToPass:
    """Follows a few steps until they show how many a PASS takes.

    They show it when their own readings have the power that a PASS needs. The first gradients often
    vary most, so that as many steps like the later half of them have more power. If the steps end
    before, both numbers are extrapolated, and must be close.

    Args:
        steps: number of steps to take at least.
    """

    def __init__(self, steps: int = STEPS) -> None:
        self._least, self._next = steps, max(steps // 2, 1)
        self._until = time.perf_counter() + _SECONDS
        self._batches, self._seen = 0, list[list[_Sums]]()
        #: Fewest and most steps to a PASS; None if the steps so far do not show it.
        self.needed: tuple[int, int] | None = None
        #: Where these numbers are from, or why there are none.
        self.reason = "cannot be estimated without a step"

    def shown(self, sessions: Sequence[AuditSession], *, last: bool = False) -> bool:
        """Return whether no further step is needed; call it after each batch.

        Args:
            sessions: of the private optimizers.
            last: whether no step follows.
        """
        steps = min((session.monitor.steps for session in sessions), default=0)
        self._batches += 1
        if not steps or (steps < self._next and not last):
            return self._batches >= MOST_BATCHES * max(steps, self._least)
        self._next = steps + max(steps // 8, 1)
        now = [_sums(session) for session in sessions]
        earlier = [seen for seen in self._seen if 2 * seen[0]["steps"] <= steps]
        self._seen.append(now)
        if steps < self._least and not last:
            return False
        late = whole = max(map(_steps_needed, sessions, now))
        if earlier:
            since = [
                {name: sums[name] - before[name] for name in sums}
                for sums, before in zip(now, earlier[-1], strict=True)
            ]
            late = max(map(_steps_needed, sessions, since))
        if whole <= steps:
            self.needed = min(late, steps), steps
            self.reason = f"the first {steps:,} have enough power"
            if _differ(*self.needed):
                self.reason += f"; {late:,} would if gradients varied as in the later half of them"
            return True
        if earlier and max(whole, late) < min(_APART * min(whole, late), MOST_STEPS):
            self.needed = min(whole, late), max(whole, late)
            self.reason = f"extrapolated from {steps:,} steps and from the later half of them"
        else:
            self.needed = None
            why = "; `lightning-audit plan` takes more of them"
            if earlier:
                why = ", whose gradients vary far more than the noise, or less and less"
            self.reason = f"cannot be estimated from {plural(steps, 'step')}{why}"
        return steps >= LAST_STEP or time.perf_counter() > self._until


def _differ(fewest: int, most: int) -> bool:
    """Return whether two numbers are worth stating both."""
    return fewest < 0.9 * most


#: Sums over the steps of a session, of which a difference is that over later steps.
_Sums = dict[str, Any]


def _sums(session: AuditSession) -> _Sums:
    monitor = session.monitor
    each = {"witness": monitor.witness_noise.sums, "canary": monitor.canary_noise.sums}
    readings = monitor.sensitivity.observations
    return {
        "steps": monitor.steps,
        "canary_steps": monitor.canary_steps,
        "readings": readings,
        "squares": monitor.sensitivity.residual_std**2 * readings,
        **{f"{name}_count": sums.count.copy() for name, sums in each.items()},
        **{f"{name}_squares": sums.squares.copy() for name, sums in each.items()},
    }


def _steps_needed(session: AuditSession, sums: _Sums) -> int:
    """Return the number of steps to a PASS if all had these variances.

    It is `MOST_STEPS` or more if none suffices.
    """

    def pooled(name: str) -> Any:
        groups = PooledSums(len(sums[f"{name}_count"]))
        groups.count, groups.squares = (sums[f"{name}_{of}"] for of in ("count", "squares"))
        return SimpleNamespace(sums=groups)

    monitor = session.monitor
    as_seen: Any = SimpleNamespace(
        header=monitor.header,
        significance=monitor.significance,
        steps=sums["steps"],
        canary_steps=sums["canary_steps"],
        witness_noise=pooled("witness"),
        canary_noise=pooled("canary"),
        sensitivity=SimpleNamespace(
            residual_std=math.sqrt(max(sums["squares"], 0.0) / max(sums["readings"], 1)),
            together=monitor.sensitivity.together,
        ),
    )
    powers = PowerModel(as_seen, session.inserter.oversize).at(session.planner.config.resolution)
    return max(power.steps_needed for power in powers.values())


# --- What a preview says.


@dataclass(frozen=True)
class Preview:
    """Preview of the audit of a training.

    Args:
        refused: why the training cannot be audited, and what to change; empty if it can.
        optimizers: how each private optimizer is audited, as text.
        found: what a few steps, or the planned steps, showed to be wrong: the root cause first,
            then what it does not explain; each with the finding's name.
        next: what to look at, or to do, about the first of them.
        follows: names of findings that follow from the first of them.
        over_claim: how many of the planned steps the claim allows, if not all of them.
        not_asked: questions that the first examination does not test, with the reason.
        missing: what would prevent a PASS for a training of any length, as text.
        steps_needed: fewest and most steps of a private optimizer until a PASS; None if the steps
            that were taken do not show it.
        steps_reason: where these numbers are from, or why there are none; empty if refused.
        steps_planned: steps that the Trainer plans; None if unknown.
        step_seconds: time of a step without the audit's own time; None if too few were taken.
        audit_seconds: time that the audit adds to an early step, without that of clipping canaries.
        sample_rate: of the latest step; None if it is unknown, or differs among optimizers.
        examination_seconds: time of the first examination by replay; None if there was none.
    """

    refused: str = ""
    optimizers: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    next: str = ""
    follows: tuple[str, ...] = ()
    over_claim: str = ""
    not_asked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    steps_needed: tuple[int, int] | None = None
    steps_reason: str = ""
    steps_planned: int | None = None
    step_seconds: float | None = None
    audit_seconds: float | None = None
    sample_rate: float | None = None
    examination_seconds: float | None = None

    @property
    def can_be_audited(self) -> bool:
        """Whether the audit would not refuse the training."""
        return not self.refused

    def __str__(self) -> str:
        if self.refused:
            return f"cannot be audited: {self.refused}"
        lines = [f"wrong: {one}" for one in self.found[:1]]
        lines += [f"  next: {self.next}"] * bool(self.next)
        lines += [f"  follows from it: {', '.join(self.follows)}"] * bool(self.follows)
        lines += [f"also wrong: {one}" for one in self.found[1:]]
        lines += [f"can be audited: {one}" for one in self.optimizers]
        lines += [f"over the claim: {self.over_claim}"] * bool(self.over_claim)
        lines += [f"not asked at first: {one}" for one in self.not_asked]
        lines += [f"a PASS lacks: {one}" for one in self.missing]
        if self.steps_reason:
            lines.append(self._steps_as_text())
        if self.step_seconds is not None and self.audit_seconds is not None:
            lines.append(
                f"cost: {_digits(1e3 * self.audit_seconds)} ms on a "
                f"{_digits(1e3 * self.step_seconds)} ms step at first, less after 100 steps"
            )
        if self.examination_seconds is not None:
            seconds = _digits(self.examination_seconds)
            lines[-1:] = [f"{lines[-1]}; the first examination by replay {seconds} s"]
        return "\n".join(lines)

    def _steps_as_text(self) -> str:
        if self.steps_needed is None:
            return f"how many steps a PASS takes {self.steps_reason}"
        fewest, most = self.steps_needed
        count = f"{fewest:,} to {most:,}" if _differ(fewest, most) else f"about {most:,}"
        planned, few = self.steps_planned, ""
        if planned and planned < most:
            few = ": too few" if planned < fewest else ": perhaps too few"
        of = f", {planned:,} are planned{few}" if planned else ""
        return f"a PASS takes {count} steps{of} ({self.steps_reason})"


def preview_of(
    report: AuditReport | None,
    sessions: Sequence[AuditSession],
    planned: int | None,
    times: Sequence[tuple[float, float]] = (),
    warned: str = "",
    counted: StepsToPass | None = None,
    *,
    stops: bool = True,
) -> Preview:
    """Predict the audit of a whole training from a few steps.

    Args:
        report: of these steps; None if there is none.
        sessions: of the private optimizers.
        planned: steps of the whole training; None if unknown.
        times: of each batch, the total and the audit's own, in seconds.
        warned: the warning about planned steps or epochs that exceed the claim, or empty.
        counted: what followed the steps; None if nothing did.
        stops: whether the training stops before a step that would exceed the claim.
    """
    if report is None or not sessions:
        return Preview("no private optimizer took a step: check that make_private was called")
    inputs = any(isinstance(session.inserter, InputSample) for session in sessions)
    counted = counted or StepsToPass()
    if all(one.monitor.noiseless_steps == one.monitor.steps > 0 for one in sessions):
        counted.needed, counted.reason = None, "is no question: noise_multiplier 0 is no noise"
    elif counted.needed is None:
        counted.shown(sessions, last=True)
    rates = {one.monitor.history[-1].sample_rate for one in sessions if one.monitor.steps}
    timed = times[_WARM:STEPS]
    # These steps do not stop at the claim, as the training would.
    found, root = _found(report, but=ACCOUNTING.name if warned else ""), report.verdict.root
    if warned:
        root = None if root and root.finding == ACCOUNTING.name else root
        if not stops or (report.settings["claim"] or {}).get("sampling") == "shuffled":
            found, warned = [*found, f"{ACCOUNTING.name}: {warned}"], ""
    return Preview(
        optimizers=tuple(map(_way_of, sessions)),
        found=tuple(found),
        next=(report.verdict.advice or root.look_at) if root else "",
        follows=root.consequences if root else (),
        over_claim=warned,
        not_asked=tuple(
            f"{check.name}: {check.message}"
            for check in report.checks
            if check.name in _ASKED and check.status == "not_run"
        ),
        missing=_lacking(report, inputs=inputs),
        steps_needed=counted.needed,
        steps_reason=counted.reason,
        steps_planned=planned,
        step_seconds=_median([whole - own for whole, own in timed]),
        audit_seconds=_median([own for _, own in timed]),
        sample_rate=rates.pop() if len(rates) == 1 else None,
        examination_seconds=report.examination_cost.get("first"),
    )


def _digits(number: float) -> str:
    """Return a number to two digits, without a power of ten."""
    return f"{float(f'{number:.2g}'):,.9g}"


def _found(report: AuditReport, but: str) -> list[str]:
    """Return the violated checks that follow from no other one, the root cause first, but one."""
    faults = [fault.finding for fault in report.verdict.faults]
    violated = [c for c in report.checks if c.status == "violated" and c.name != but]
    own = [c for c in violated if not c.follows_from]
    return [f"{c.name}: {c.message}" for c in sorted(own, key=lambda c: faults.index(c.name))]


def _median(seconds: list[float]) -> float | None:
    return sorted(seconds)[len(seconds) // 2] if seconds else None


def _way_of(session: AuditSession) -> str:
    """Describe how a private optimizer is audited."""
    step, source = session.step, session.inserter
    by_hand = isinstance(step, ManualStep)
    name = type(step.inner if by_hand else step.optimizer).__name__
    count = len(session.planner.config.canaries)
    how = "a canary sample in the batch" if isinstance(source, InputSample) else ""
    if isinstance(source, HandedRows):
        how = f"{count} canary gradients per step, added by per_sample()"
    elif not how:
        how = f"{count} canary gradients per step in addition to the records'"
    return f"{name}{' by hand' if by_hand else ''}, {len(step.layout)} tensors, {how}"


def _lacking(report: AuditReport, *, inputs: bool) -> tuple[str, ...]:
    """List what prevents a PASS regardless of the training's length."""
    lacks = [lack for one in report.optimizers for lack in one.pass_blockers]
    lacks += report.pass_blockers
    if inputs:
        lacks.append("an input canary gives one reading per step: 10 or more times as many steps")
    return tuple(lacks)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress prints, warnings and logging up to ERROR within this context."""
    root = logging.getLogger()
    level = root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
