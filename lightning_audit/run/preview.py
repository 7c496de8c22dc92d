"""What a few steps show of an audit: whether it is possible, and how many steps a PASS takes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.replay import COUPLING, REPLAY_CHECKS
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.session.plan import HandedRows, InputSample
from lightning_audit.session.step import AuditSession

#: Steps that are taken for a preview, and largest number of batches per step.
STEPS, MOST_BATCHES = 16, 4
#: Warm-up steps, whose times are left out.
_WARM = 4
#: Checks by replay whose missing answers are listed.
_ASKED = (*REPLAY_CHECKS, REPLAY_NOISE.name, COUPLING.name)


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
        steps_needed: steps of a private optimizer until a PASS, at the gradient variance of the
            first steps; None if there were none.
        steps_planned: steps that the Trainer plans; None if unknown.
        step_seconds: time of a step without the audit's own time; None if too few were taken.
        audit_seconds: time that the audit adds to an early step, without that of clipping canaries.
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
    steps_needed: int | None = None
    steps_planned: int | None = None
    step_seconds: float | None = None
    audit_seconds: float | None = None
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
        if self.steps_needed is not None:
            planned = f", {self.steps_planned:,} are planned" if self.steps_planned else ""
            enough = (
                ": too few"
                if self.steps_planned is not None and self.steps_planned < self.steps_needed
                else ""
            )
            lines.append(f"a PASS takes about {self.steps_needed:,} steps{planned}{enough}")
        if self.step_seconds is not None and self.audit_seconds is not None:
            lines.append(
                f"cost: {1e3 * self.audit_seconds:.2g} ms on a {1e3 * self.step_seconds:.2g} ms "
                "step at first, less after 100 steps"
            )
        if self.examination_seconds is not None:
            lines[-1:] = [
                f"{lines[-1]}; the first examination by replay {self.examination_seconds:.2g} s"
            ]
        return "\n".join(lines)


def preview_of(
    report: AuditReport | None,
    sessions: Sequence[AuditSession],
    planned: int | None,
    times: Sequence[tuple[float, float]] = (),
    warned: str = "",
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
        stops: whether the training stops before a step that would exceed the claim.
    """
    if report is None or not sessions:
        return Preview("no private optimizer took a step: check that make_private was called")
    inputs = any(isinstance(session.inserter, InputSample) for session in sessions)
    needed = [part.steps_needed for one in report.optimizers for part in one.power.values()]
    timed = times[_WARM:]
    found, root = _found(report), report.verdict.root
    if warned:  # a copy does not stop at the claim, as the training would
        spent = [one for one in found if one.startswith(f"{ACCOUNTING.name}:")]
        found = [one for one in found if one not in spent]
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
            f"{check.name}: {check.message.removeprefix('not asked: ')}"
            for check in report.checks
            if check.name in _ASKED and check.status == "not_run"
        ),
        missing=_lacking(report, inputs=inputs),
        steps_needed=max(needed, default=None),
        steps_planned=planned,
        step_seconds=_median([whole - own for whole, own in timed]),
        audit_seconds=_median([own for _, own in timed]),
        examination_seconds=report.examination_cost.get("first"),
    )


def _found(report: AuditReport) -> list[str]:
    """Return the violated checks that follow from no other one, the root cause first."""
    faults = [fault.finding for fault in report.verdict.faults]
    own = [c for c in report.checks if c.status == "violated" and not c.follows_from]
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
