"""Dry run of an audit: estimate its cost and the steps to a PASS from a few steps on a copy."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.callbacks._namespaces import Callback, MisconfigurationException, isolate_rng
from lightning_audit.callbacks.trainer import planned_steps, silent_logger
from lightning_audit.checks.accounting import ACCOUNTING
from lightning_audit.checks.replay import COUPLING, REPLAY_CHECKS
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.hooks.boundary import OWN_TIME
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.earlier_fits import fits_put_back
from lightning_audit.session.plan import HandedRows, InputSample
from lightning_audit.session.step import AuditSession

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

#: Steps for which the copy is trained.
STEPS = 16
#: Largest number of batches per step.
_MOST = 4
#: Warm-up steps, whose times are left out.
_WARM = 4
#: Callbacks that only display, save or stop, by class name in either Lightning package.
_LEFT_OUT = {"Checkpoint", "ProgressBar", "ModelSummary", "Timer", "EarlyStopping", "PrivacyAudit"}
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


class Watch(Callback):
    """Timer of a copy's steps, which also ends the copy's training."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.planned: int | None = None
        #: Times of each batch: the total and the audit's own, in seconds.
        self.times: list[tuple[float, float]] = []
        self.sessions: list[AuditSession] = []
        self.audit: PrivacyAudit | None = None
        #: The audit's warning about planned steps or epochs that exceed the claim, or empty.
        self.warned = ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the number of planned steps, and limit the training to a few."""
        self.planned = planned_steps(trainer)
        trainer.fit_loop.epoch_loop.max_steps = self.steps

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the time of a batch."""
        self._began = time.perf_counter(), OWN_TIME.seconds

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Record the time of a batch, and stop after enough of them."""
        began, own = self._began
        self.times.append((time.perf_counter() - began, OWN_TIME.seconds - own))
        if len(self.times) >= _MOST * self.steps:  # Lightning does not count this module's steps
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_train_end(self, *_: Any) -> None:
        """Keep the audit's sessions and its warning."""
        if self.audit is not None and self.audit._run is not None:
            self.sessions = list(self.audit._run.sessions)
            self.warned = self.audit._stopping.warned


def preview(
    audit: PrivacyAudit, trainer: Any, model: Any, *, steps: int = STEPS, **data: Any
) -> Preview:
    """Train a copy for a few steps, and predict the audit of the training.

    Trainer and model do not change. Nothing is written, logged or saved, and random numbers are
    restored. The Trainer's callbacks are copied, except those that display, save or stop.

    Args:
        audit: the callback; a copy of it is used.
        trainer: a Trainer that has not fitted the model yet.
        model: the user's module.
        steps: number of steps for which the copy is trained.
        data: more arguments of ``fit``: ``train_dataloaders`` or ``datamodule``.

    Raises:
        ValueError: trainer or model cannot be copied.
    """
    watch = Watch(steps)
    with isolate_rng(), tempfile.TemporaryDirectory() as folder, _silence():
        try:
            trial, model, data = _copied(trainer, model, data)
            _prepare(trial, audit, watch, folder)
        except Exception as error:  # a generator, a lock, an open file
            raise ValueError(
                f"trainer or model cannot be copied ({type(error).__name__}: {error}); "
                "Trainer(fast_dev_run=True) shows the same for a training of one step"
            ) from error
        try:
            with fits_put_back():
                trial.fit(model, **data)
        except MisconfigurationException as error:
            return Preview(str(error))
        assert watch.audit is not None
        report = watch.audit.report
        stops = audit.on_violation != "warn"
        given = (watch.sessions, watch.planned, watch.times, watch.warned)
        return preview_of(report, *given, stops=stops)


def _copied(trainer: Any, model: Any, data: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return connected copies, without callbacks that display or save and without loggers."""
    if trainer.optimizers:
        raise ValueError("it has fitted a model; take a new one")
    callbacks, loggers = trainer.callbacks, trainer.loggers
    trainer.callbacks = [
        c for c in callbacks if not _LEFT_OUT & {kind.__name__ for kind in type(c).__mro__}
    ]
    trainer.loggers = []
    torch.optim.Optimizer.__deepcopy__ = _copy_optimizer  # type: ignore[attr-defined]
    try:
        copies: tuple[Any, Any, dict[str, Any]] = copy.deepcopy((trainer, model, data))
    finally:
        del torch.optim.Optimizer.__deepcopy__  # type: ignore[attr-defined]
        trainer.callbacks, trainer.loggers = callbacks, loggers
    # torch does not copy attributes of parameters, such as Opacus' `_forward_counter`.
    for param, made in zip(model.parameters(), copies[1].parameters(), strict=True):
        vars(made).update(copy.deepcopy(vars(param)))
    return copies


def _copy_optimizer(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Copy all attributes of an optimizer, and the accountant that its step hook calls."""
    memo[id(optimizer)] = made = object.__new__(type(optimizer))
    vars(made).update(copy.deepcopy(vars(optimizer), memo))
    hook = getattr(made, "step_hook", None)
    if isinstance(hook, FunctionType) and hook.__closure__:
        held = (CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in hook.__closure__)
        own = (hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, tuple(held))
        made.step_hook = FunctionType(*own)
    return made


def _prepare(trial: Any, audit: PrivacyAudit, watch: Watch, folder: str) -> None:
    """Add a copy of the audit to a copy of a Trainer, which displays, logs and saves nothing."""
    own = copy.deepcopy(audit)
    own.config = replace(
        audit.config, on_violation="warn", on_inconclusive="warn", on_budget="stop"
    )
    own.report_dir = Path(folder)
    trial.callbacks, watch.audit = [*trial.callbacks, own, watch], own
    trial.loggers = [silent_logger(trial)]
    # A learning rate schedule may monitor a validation metric.
    trial.limit_val_batches, trial.num_sanity_val_steps = min(1, trial.limit_val_batches), 0


@contextlib.contextmanager
def _silence() -> Iterator[None]:
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
