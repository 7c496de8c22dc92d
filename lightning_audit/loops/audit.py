"""`Audit`: the audit of the DP-SGD of a plain PyTorch loop, whose body does not change.

Every event comes from a hook: batches from the loader's class (`loops.events`), a batch begins with
its first forward pass, canaries enter before the optimizer clips, and what a step shows is raised
from the user's own ``optimizer.step()``.
"""

from __future__ import annotations

import atexit
import logging
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import distributed
from torch._C._functorch import peek_interpreter_stack
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils import _pytree
from torch.utils.data import DataLoader

from lightning_audit import _validate
from lightning_audit.accounting.history import Phase
from lightning_audit.checks.update import NO_DP
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import innermost, private_optimizer
from lightning_audit.hooks.boundary import Handles, attempt, entry, users_frame
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.lints.own_code import of_frame
from lightning_audit.lints.settings import watch_scalers
from lightning_audit.loops.body import LoopStep
from lightning_audit.loops.events import (
    Batches,
    Fetched,
    Listening,
    PassCount,
    drawn_by,
    forward_hooks,
    loss_in_backward,
)
from lightning_audit.loops.training import (
    AHEAD,
    FP16,
    Loop,
    listed,
    named,
    optimizers_of,
    refuse_second,
)
from lightning_audit.results.audit_report import OF_VERDICTS, AuditReport, UnauditableTraining
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.run.optimizers import verified
from lightning_audit.run.outcome import (
    MetricRows,
    Stopping,
    boundary,
    close_failed,
    left,
    send,
    tell,
    tell_failed,
)
from lightning_audit.session.entrances import join_batches
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession

_log = logging.getLogger(__name__)

#: Batches of another thread that may come later than those that it fetched after them.
_LATE = 8


_of_audit = operator.attrgetter("_boundary")


def _guarded(otherwise: Callable[..., Any] = left) -> Callable[[Callable[..., Any]], Any]:
    """Wrap a method of `Audit` so that failures stay inside it; see `hooks.boundary.entry`."""
    return lambda method: entry(method, otherwise, _of_audit)


def _batch_as_it_is(audit: Any, batch: Any, _: Any = None) -> Any:
    left(audit)
    return batch


class Audit:
    """The audit of one plain training, made by `attach`; also a context manager.

    Args:
        config: of the audit.
        given: the arguments of `attach`, by name.
    """

    def __init__(self, config: AuditConfig, given: Mapping[str, Any]) -> None:
        self.config, self._directory = config, Path(given["report_dir"])
        self._loop = loop = Loop(given)
        self._loggers = listed(given["log"]) if given["log"] is not None else []
        self._prefix = given["log_prefix"]
        self._verbose, step = given["verbose"], given["step"]
        # State of an earlier part of the training; its own once it has ended.
        self._resumed, self._kept = given["state"], dict[str, Any]()
        self._boundary = boundary()
        self._boundary.begin()
        self._user = LoopStep(loop.root, loop.optimizers, loop.precision, [self], step)
        self._user.loader = loop.loader
        self._stopping = Stopping(config.on_violation)
        loop.refuses = self._refuse
        self._run: AuditRun | None = None
        self._report: AuditReport | None = None
        self._error: Exception | None = None  # that ends the training
        self._ended = False
        #: The latest metrics, such as "audit/epsilon_lower".
        self.metrics: dict[str, float] = {}
        self._rows = MetricRows(self._loggers, self._prefix, self.metrics)
        # The batch that was fetched; whether it began, and whether a step was taken on it.
        self._batch: Any = None
        self._held = Fetched(None, None)
        self._begun = self._stepped = self._forward_ran = False
        # The batch that was fetched last, while the model was not in training mode yet.
        self._aside: Fetched | None = None
        # The loader of the last pass; whether this pass ends with the batch that was fetched.
        self._passed: Any = None
        self._ends_with_batch = False
        # Where the graphs of the batch's last forward and backward passes begin.
        self._graphs: deque[Any] = deque(maxlen=8)
        # The outermost module of the forward pass that runs.
        self._outer: torch.nn.Module | None = None
        # Batches that were fetched before it in this pass, and have not begun; the last of those
        # that were passed over, which another thread may bring later.
        self._ahead, self._over = deque[Fetched](), deque[Fetched](maxlen=_LATE)
        # Whether a pass over the loader is counted, a batch was ever fetched, a backward runs.
        self._in_epoch = self._fetches = self._backward = False
        self._by_input = self._ghost = False
        # Passes over the followed loader whose batches may come; whether the present batch is one
        # of theirs, and whether any was; another loader that was iterated since the last of them.
        self._passes: list[PassCount] = []
        self._is_loaders = self._hears = False
        self._heard: Any = None
        # The thread that trains; whether another one fetches ahead.
        self._thread = self._fetcher = threading.get_ident()
        self._threaded = False
        self._lock = threading.Lock()  # of the passes
        self._handles = Handles()
        self._settled = 0  # steps after which the claim's budget was looked at

    def __deepcopy__(self, memo: Any) -> Audit:
        """Return the audit itself: a copy of its training is not audited."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an Audit belongs to its process; save audit.state_dict() instead.")

    # ------------------------------------------------------------------ begin

    def _start(self) -> None:
        """Attach to the training; see `attach`."""
        atexit.register(self._at_exit)
        try:
            self._begin()
            self._raise_if_told()
        except BaseException:
            self._put_away()
            raise

    @_guarded()
    def _begin(self) -> None:
        loop, state = self._loop, self._resumed
        loop.places |= named("attach", users_frame())
        if loop.precision.startswith("16"):
            raise UnauditableTraining(FP16)
        refuse_second(loop.optimizers)
        count = distributed.get_world_size() if distributed.is_initialized() else 1
        ranks = Ranks(distributed.get_rank() if count > 1 else 0, count, talk=True)
        self._by_input = join_batches(self.config.canaries, count, loop.root)
        self._run = run = AuditRun(self.config, loop.info(count), ranks, self._directory)
        run.take_directory(again=bool(state))
        if state:
            run.keep(verified(state))
            run.go_on_in_its_directory()
        self._watch_loader(run)
        run.start(loop.info(count))
        run.fence.begin(loop.root, lambda: loop.loader, loop=True)
        self._follow(run)
        run.note_settings()
        run.examinations.open_to(self._user)
        self._stopping.begin(loop, run)
        self._hook(run)
        run.fence.note_reads(now=True)

    def _watch_loader(self, run: AuditRun) -> None:
        if self._loop.loader is not None and not run.ranks.several:
            run.ledger.watch(self._loop.loader)

    def _follow(self, run: AuditRun) -> None:
        run.follow(self._loop.optimizers, self._loop.root)
        run.optimizers.begins = self._begin_by_hand
        run.optimizers.depends = self._depends
        if not run.sessions:
            run.follow_hand_written(self._loop.root)
        self._ghost = any(isinstance(session.step, GhostStep) for session in run.sessions)

    def _hook(self, run: AuditRun) -> None:
        """Hook in after the sessions, so that these hooks run around theirs."""
        self._handles.remove()
        self._handles = handles = Handles()
        self._private = [o for o in map(private_optimizer, self._loop.optimizers) if o is not None]
        for private in self._private:
            handles.append(MethodHook(private, "pre_step", partial(self._before_step, private)))
        by_hand = [s.step.inner for s in run.sessions if s.step.optimizer not in self._private]
        for inner in by_hand:
            handles.append(inner.register_step_pre_hook(entry(self._before_step)))
        for optimizer in self._loop.optimizers:
            after = entry(self._after_step)
            handles.append(innermost(optimizer).register_step_post_hook(after))
        own = {id(module) for module in self._loop.root.modules()}
        own |= {id(module) for module in self._loop.model.modules()}
        before, behind = entry(self._before_forward), entry(self._after_forward)
        handles += forward_hooks(lambda: self._outer, own, before, behind, run.fence.reads)
        step = MethodHook(ReduceLROnPlateau, "step", self._schedules, shown=True)
        scaler = watch_scalers(self._loop.optimizers, run.optimizers.notes.add)
        handles += [step, scaler, Listening(self)]

    @_guarded()
    def follow(self, *, model: Any = None, optimizer: Any = None, loader: Any = None) -> None:
        """Continue with another model around the same parameters, optimizer or loader.

        After the first step, an optimizer that cannot be followed ends the audit: the report says
        so, and the training continues.

        Args:
            model: that the loop calls from now on; None if it is the same.
            optimizer: one, or a list; None if they are the same.
            loader: of the batches from now on; None if it is the same.

        Raises:
            UnauditableTraining: the optimizer cannot be audited, before the first step.
        """
        self.end_epoch()
        run, loop = self._run, self._loop
        if run is None:
            return
        if model is not None:
            loop.model = loop.root = self._user.module = model
        if optimizer is not None:
            loop.optimizers[:] = optimizers_of(optimizer)
        if loader is not None:
            loop.loader = self._user.loader = loader
            self._watch_loader(run)
        try:
            self._follow(run)
        except UnauditableTraining as error:
            if not run.optimizers.steps:
                raise
            run.break_off(str(error))
            self._conclude(ends=False)
            return
        self._hook(run)

    # ------------------------------------------------------------------ passes and batches

    @property
    def _is_elsewhere(self) -> bool:
        """Whether another thread than the one that trains calls, which fetches ahead."""
        return self._thread != threading.get_ident()

    @property
    def _is_training(self) -> bool:
        """Whether what runs now may train, and is no evaluation."""
        return self._loop.model.training and torch.is_grad_enabled()

    @property
    def _looks(self) -> bool:
        """Whether the training runs, and not a replay of a step."""
        return self._run is not None and not self._ended and self._run.optimizers.looks

    @property
    @_guarded(lambda *_: False)
    def _replays(self) -> bool:
        """Whether this thread runs a replay of a step."""
        return self._user.runs and not self._is_elsewhere

    @property
    def _failure(self) -> str:
        """Where the audit failed; empty if it did not."""
        return self._boundary.failure

    @_guarded()
    def _add_lost(self, phases: Sequence[Phase] | None) -> None:
        """Count earlier rounds whose audits were lost; see `EarlierFits.add_lost`."""
        if self._run is not None:
            self._run.fits.add_lost(phases)

    @_guarded(lambda *_: False)
    def _follows(self, loader: Any) -> bool:
        """Return whether a loader draws this training's batches; see `loops.events`."""
        own, run = self._loop.loader, self._run
        if own is None or run is None or not (self._looks or self._is_elsewhere):
            return False
        followed = loader is own or (
            drawn_by(own) is not None and drawn_by(loader) is drawn_by(own)
        )
        if run.fence.watches and not (followed and self._is_training):
            run.fence.reads.loader(loader)
        if not followed and self._loop.model.training:
            self._heard = loader
        return followed

    @_guarded()
    def _starts_pass(self, loader: Any) -> None:
        """Note a memory manager's loader, which is made when a pass begins."""
        if not self._is_elsewhere:
            if self._ends_with_batch and self._in_epoch and not self._begun:
                self._end_epoch()  # the loop left out what it had fetched
            self._ahead.clear()
        self._passed = loader
        self._look_at_parts()

    def _look_at_parts(self) -> None:
        if self._passed not in (None, self._loop.loader) and self._run is not None:
            self._run.lints.split(self._passed)

    @_guarded(_batch_as_it_is)
    def _around(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the iterator of a followed loader."""
        return Batches(batches, self, PassCount())

    @_guarded()
    def _asks(self) -> None:
        """End the last batch: nothing is trained on it any more."""
        if self._is_elsewhere:
            return
        self._note_reads(now=False)
        if self._looks and self._begun:
            if self._by_input and not self._forward_ran and self._run is not None:
                if not self._run.optimizers.steps:
                    raise UnauditableTraining(AHEAD)
                self._run.skipped()  # the loop left the batch out
            self._end_batch()

    @_guarded(_batch_as_it_is)
    def _fetched(self, batch: Any, count: PassCount | None = None) -> Any:
        """Hold a batch, which begins with its first forward pass: the loop may not train on it."""
        run = self._run
        if run is None or not (self._looks or self._is_elsewhere):  # which no replay stops
            return batch
        trains, held = self._is_training, Fetched(batch, count)
        if count is not None:
            self._hears = True
            with self._lock:
                count.fetch(empty=held.empty, trains=trains)
                self._passes = [*(one for one in self._passes if one is not count), count]
        self._aside = None if trains else held
        if not trains:
            self._note_reads()
            return batch
        self._fetches, self._heard = True, None
        self._threaded = self._is_elsewhere and not self._by_input
        if self._threaded:
            self._ahead.append(held)
            return batch
        if self._batch is not None and not self._begun:
            self._ahead.append(self._held)
        self._forget_batch()
        self._batch, self._held = batch, held
        self._user.fetched(users_frame())
        run.examinations.keep_before(run.optimizers.steps)
        if not self._by_input:
            return batch
        self._begin_batch(run)
        thread, self._fetcher = self._thread, threading.get_ident()
        self._batch = run.admit(batch, self._loop.root)
        self._forward_ran, self._thread = False, thread  # forward passes were the audit's own
        return self._batch

    @_guarded()
    def _ends_pass(self, count: PassCount | None = None) -> None:
        """End the pass over the loader."""
        if count is not None:
            count.over = True
            if not self._is_training:  # an evaluation
                self._leave_out([count])
        if self._looks and self._in_epoch:
            waits = self._batch is not None and not self._begun
            if self._ahead or waits or self._is_elsewhere:  # fetched ahead
                self._ends_with_batch = True
            else:
                self._end_epoch()
                self._raise_if_told()
        elif self._looks and self._batch is not None and self._run is not None:
            self._run.fence.reads.loader(self._loop.loader)  # a pass without a step
        self._note_reads()

    def batches(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Follow batches that no torch loader gives: ``for batch in audit.batches(own):``."""
        return Batches(iter(iterable), self)

    def _note_reads(self, *, now: bool = True) -> None:
        """Note what the loop reads until it asks for its next batch."""
        if self._run is not None and not self._is_elsewhere:
            self._run.fence.note_reads(now=now)

    def _forget_batch(self) -> None:
        self._batch, self._begun, self._stepped, self._outer = None, False, False, None
        self._graphs.clear()
        # A backward pass that raised does not end.
        self._forward_ran = self._backward = False

    def _choose(self, args: Any) -> int | None:
        """Make the batch that is trained now the present one, if it is known by its tensors.

        Returns:
            The number of batches that its pass fetched before it, and that were not trained on; -1
            if it was one of these; None if it is unknown.
        """
        waits = self._batch is not None and not self._begun
        if not self._ahead:
            return 0 if waits and self._held.among(args) else None
        if waits:
            self._ahead.append(self._held)
        over = [*self._over] if self._threaded else []
        for place, held in enumerate([*over, *self._ahead], start=-len(over)):
            if held.among(args):
                passed = [self._ahead.popleft() for _ in range(place + 1)]
                self._over.extend(passed[:-1])
                if place < 0:
                    self._over.remove(held)
                if self._begun:
                    self._end_batch()
                self._batch, self._held = held.batch(), held
                return sum(one.count is held.count for one in passed) - 1
        if waits:
            self._ahead.pop()
        return None

    def _take(self, run: AuditRun, passed: int | None) -> bool:
        """Count the batch that begins; return whether the followed loader yielded it."""
        own = [one for one in self._passes if one.ahead > 0]
        count = self._held.count if passed is not None else own[-1] if own else None
        if count is None:
            return False
        with self._lock:
            count.train(passed)
        if count in self._passes:
            self._close_passes(run, self._passes[: self._passes.index(count)])
        return True

    def _close_passes(self, run: AuditRun, passes: Sequence[PassCount]) -> None:
        """Count what earlier passes left out: a later one trains now."""
        self._leave_out(passes)
        for one in passes:
            run.left_out(one.left_out, empty=one.left_out_empty)

    def _leave_out(self, passes: Sequence[PassCount]) -> None:
        with self._lock:
            self._passes = [one for one in self._passes if one not in passes]

    @property
    def _is_followed(self) -> bool:
        """Return whether a pass over the loader is noticed."""
        iterates = getattr(type(self._loop.loader), "__iter__", None)
        return iterates is DataLoader.__iter__ or self._hears

    def _begin_batch(self, run: AuditRun, passed: int | None = None) -> None:
        if self._begun:
            return
        self._begun, self._is_loaders = True, self._take(run, passed)
        self._note_reads(now=False)
        if not self._in_epoch:
            self._rows.send(run)
            self._in_epoch = True
            run.start_epoch()
        run.follow(self._loop.optimizers, self._loop.root)
        run.start_batch(self._loop.epoch, self._batch)

    def _begin_by_hand(self) -> None:
        if (run := self._run) is not None and self._looks:
            self._begin_batch(run)

    def _end_batch(self) -> None:
        run, batch = self._run, self._batch
        self._note_reads(now=False)
        self._forget_batch()
        if run is None:
            return
        run.end_batch(batch)
        if self._ends_with_batch and all(one.count is not self._held.count for one in self._ahead):
            self._end_epoch()
        self._stopping.look()
        self._raise_if_told()

    def _end_epoch(self, *, due: bool = False) -> None:
        run, self._in_epoch, self._ends_with_batch = self._run, False, False
        if run is None:
            return
        metrics, report = run.end_epoch(self._loop.epoch, self._loop.root, due=due)
        self._loop.epoch += 1
        self._rows.take(run, metrics)
        self._stopping.respond(report)

    # ------------------------------------------------------------------ forward, backward, step

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Begin the batch that was fetched; without a loader, one of its own."""
        run = self._run
        if self._looks:
            self._user.trains(late=bool(self._ahead))
        if run is None or not self._looks or peek_interpreter_stack() is not None:
            return  # under vmap the batch begins with `per_sample`
        self._outer, self._forward_ran, self._thread = module, True, threading.get_ident()
        if self._by_input and self._fetcher != self._thread and not run.optimizers.steps:
            raise UnauditableTraining(AHEAD)  # here, where the step would be taken
        if self._begun and self._fetches and not (self._stepped and self._ahead):
            return
        if self._batch is None and self._aside is not None and self._aside.among(args):
            self._batch, self._held, self._aside = self._aside.batch(), self._aside, None
        waiting = len(self._ahead)
        passed = self._choose(args)
        unsure = bool(self._ahead) and passed is None
        if unsure and self._begun and not self._threaded:
            return
        if waiting and not run.optimizers.steps and not self._threaded:
            # An earlier batch may have initialized weights.
            run.fence.reads.seen[0] = lambda _: True
        if unsure:
            if self._begun:
                self._end_batch()
            self._ahead.clear()
        if not self._fetches and self._stepped:
            self._end_batch()
        if self._batch is not None or not self._fetches:
            run = self._with_autocast(run)
            self._batch = self._user.given(self._batch)
            self._begin_batch(run, passed)

    def _with_autocast(self, run: AuditRun) -> AuditRun:
        """Return the run, begun again before the first step here if its forward is autocast."""
        kind = self._loop.param.device.type
        if not self._loop.read or self._in_epoch or not torch.is_autocast_enabled(kind):
            return run
        self._loop.read = False
        if torch.get_autocast_dtype(kind) is torch.float16:
            self._conclude("UnauditableTraining", ends=False)
            raise UnauditableTraining(FP16)
        self._loop.precision = self._user.precision = "bf16-mixed"
        self._release(run)
        self._begin()
        self._look_at_parts()
        assert self._run is not None
        return self._run

    def _after_forward(self, output: Any) -> None:
        """Hook on the outputs of a forward pass, whose gradients are a backward pass's first."""
        self._outer = None
        if not self._looks or not self._begun or not torch.is_grad_enabled():
            return
        hook = entry(self._backward_begins)
        for leaf in _pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                self._graphs.append(leaf.grad_fn)
                if not self._ghost:
                    leaf.register_hook(hook)  # type: ignore[no-untyped-call]

    def _backward_begins(self, _: torch.Tensor) -> None:
        run = self._run
        if run is None or self._backward or not self._begun or not self._looks:
            return
        self._backward = True
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(entry(self._backward_ends))
        if (loss := loss_in_backward()) is not None:
            self._see_loss(run, loss, loss.grad_fn)
        run.prepare(loss, 1)

    def _backward_ends(self) -> None:
        self._backward = False
        if self._run is not None:
            self._run.conceal()

    def _see_loss(self, run: AuditRun, loss: Any, graph: Any) -> None:
        self._graphs.append(graph)
        if not run.lints.loss_seen:
            run.lints.look_at_loss(self._loop.root, loss)
            self._stopping.begin_steps()

    def _depends(self, params: Mapping[int, Any], known: bool) -> bool:
        """Return whether gradients of the batch depend on parameters; note who trains these.

        A tensor that is no parameter is an input that is optimized, such as an adversarial one.
        """
        wanted = {number for number, p in params.items() if isinstance(p, torch.nn.Parameter)}
        seen = {*(nodes := [*self._graphs])}
        for node in nodes if wanted else ():  # these grow
            before = {one for one, _ in node.next_functions if one is not None} - seen
            nodes += before
            seen |= before
        known |= any(id(getattr(node, "variable", None)) in wanted for node in nodes)
        if known:
            self._loop.places |= named(NO_DP.name, users_frame())
        return known

    def _schedules(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """Warn if a scheduler gets a metric of training records, before a step of its own."""
        run, of = self._run, innermost(scheduler.optimizer)
        if (
            run is not None
            and self._looks
            and any(of is innermost(o) for o in self._loop.optimizers)
        ):
            place = next(of_frame(users_frame()), "an unknown line")
            if told := run.fence.follows_metric(f"{type(scheduler).__name__}.step at {place}"):
                _log.warning("privacy audit: %s", told)

    @_guarded(lambda *_: False)
    def _clips(self, loss: Any) -> bool:
        """Return whether a loss of ghost clipping is this training's; see `loops.events`."""
        return self._looks and self._begun and any(loss.optimizer is o for o in self._private)

    @_guarded()
    def _before_ghost(self, loss: Any) -> None:
        """Lay out the canaries before the two backward passes of ghost clipping."""
        if (run := self._run) is not None:
            self._see_loss(run, loss, loss.loss_per_sample.grad_fn)
            run.prepare(loss, 1)

    @_guarded()
    def _after_ghost(self) -> None:
        """Hide the canaries after them."""
        if self._run is not None:
            self._run.conceal()

    def _before_step(self, optimizer: Any = None, *_: Any) -> None:
        """Inject the canaries, before clipping; a step by hand has them already."""
        run = self._run
        if run is None or not self._looks:
            return
        self._thread = threading.get_ident()
        self._begin_batch(run)  # also of a step on a batch that the loader did not give
        self._spend(run)  # raises before the first step that would exceed the claim
        if self._stopping.why == "budget" and self.config.on_budget == "raise":
            self._stopping.refuse()
        run.inject(optimizer)

    def _spend(self, run: AuditRun) -> None:
        """Look whether the claim allows the step that comes, once for each step."""
        self._loop.steps = max((s.recorder.steps for s in run.sessions), default=0)
        if self._settled != self._loop.steps:
            self._settled = self._loop.steps
            self._stopping.keep_to_budget()

    def _refuse(self) -> None:
        """Raise why the step that is about to be taken is refused, if configured."""
        self._raise_if_told()
        if self._stopping.why == "budget":
            self._raise()

    def _after_step(self, *_: Any) -> None:
        """Raise what the step shows, once the weights have moved."""
        run = self._run
        if run is None or not self._looks or not self._begun:
            return
        self._stepped = True
        # After the loader's last batch, nothing divides those that were fetched ahead.
        own = self._is_loaders and (run.has_own_batches or self._take(run, None))
        if self._is_followed and not own:
            run.leave_loader(self._heard)
        if "step" not in self._loop.places:
            self._loop.places |= named("step", users_frame())
        if len(self._loop.optimizers) == 1 and run.end_step():
            self._stopping.look()
            self._raise_if_told()

    # ------------------------------------------------------------------ what the user sees

    @_guarded()
    def _couples(self, divisor: str) -> None:
        """Take that a divisor of the loss couples records; see `checks.replay.Coupling`."""
        if (run := self._run) is not None and self._looks:
            run.course.coupling.divisor, run.look_is_due = divisor, True
            self._stopping.look()
            self._raise_if_told()

    @_guarded()
    def _note(self, sentence: str) -> None:
        """Log a remark on the training, which the report's notes then have."""
        if self._run is not None:
            _log.warning("privacy audit: %s", sentence)
            self._run.optimizers.notes.add(sentence)

    @property
    def report(self) -> AuditReport | None:
        """The report so far; None before the first evaluation."""
        return self._run.report if self._run is not None else self._report

    def _planned(self) -> tuple[int, int | None, Sequence[AuditSession], str]:
        """Return steps so far and planned, sessions, and the warning if these exceed the claim."""
        sessions = () if self._run is None else tuple(self._run.sessions)
        steps = sum(session.recorder.steps for session in sessions)
        return steps, self._loop.planned, sessions, self._stopping.warned

    @property
    def should_stop(self) -> bool:
        """Whether a violation was found, or the next step would exceed the claim."""
        self._look_ahead()
        return self._loop.stopped or self._stopping.told

    @_guarded()
    def _look_ahead(self) -> None:
        if self._run is not None and self._looks:
            self._spend(self._run)

    def step(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run a whole training step, and remember it for replays.

        Args:
            function: of a batch: forward, backward and the optimizer's step.
            batch: to train on.

        Returns:
            What the function returns.
        """
        self._user.function = function
        self._hold(batch)
        return function(batch)

    @_guarded()
    def _hold(self, batch: Any) -> None:
        if self._looks and not (self._begun and not self._stepped):
            if self._begun:
                self._end_batch()
            self._batch = batch

    def state_dict(self) -> dict[str, Any]:
        """Return the audit's state for a checkpoint; call it between two batches.

        It loads under ``weights_only=True``; pass it to `attach` as ``state``.

        Raises:
            PrivacyViolation: the last batch showed one.
        """
        self.end_epoch(epoch=False)
        state: dict[str, Any] = self._state()
        return state

    @_guarded(lambda audit: audit._kept)
    def _state(self) -> Any:
        if self._run is not None:
            self._kept = self._run.state()
        return self._kept

    @_guarded()
    def end_epoch(self, *, epoch: bool = True) -> None:
        """Mark the end of an epoch in a loop whose loader is not followed.

        Args:
            epoch: False to end the batch that is open, and no more.
        """
        if self._looks:
            if self._begun:
                self._end_batch()
            if epoch and self._in_epoch:
                self._end_epoch(due=True)
                self._raise_if_told()
            self._note_reads()

    # ------------------------------------------------------------------ the end

    def _raise_if_told(self) -> None:
        if self._stopping.told and self.config.on_violation == "raise" and not self._ended:
            self._raise()

    def _raise(self) -> None:
        self._conclude()
        if self._error is not None:
            raise self._error

    @_guarded(lambda audit, *_: audit._give_up())
    def close(self, error: BaseException | None = None) -> AuditReport | None:
        """End the audit: write and print the report, and remove all hooks.

        Args:
            error: the exception by which the training ended; None if it ended as planned.

        Returns:
            The report.

        Raises:
            PrivacyViolation: the verdict is VIOLATION, and ``on_violation`` is "raise".
            InconclusiveAudit: it is INCONCLUSIVE, and ``on_inconclusive`` is "raise".
        """
        if own := isinstance(error, OF_VERDICTS):
            _validate.end_at_user(error)
        if self._ended:
            return self._report
        if error is None:
            self._loop.over = True
            self.end_epoch()
            self._raise()
        return self._conclude("" if error is None or own else type(error).__name__, ends=False)

    def _conclude(self, broke: str = "", *, ends: bool = True) -> AuditReport | None:
        """Write the report, print it unless an error ends the training, and leave this."""
        if self._ended:
            return self._report
        self._finish(broke, ends)
        self._ended = True
        self._put_away()
        return self._report

    @_guarded(lambda audit, _, ends: audit._finish_failed(ends))
    def _finish(self, broke: str, ends: bool) -> None:
        run = self._run
        if run is None:
            return
        self._close_passes(run, [*self._passes])
        if broke:
            run.ranks.part()  # other processes may be elsewhere, or may have ended
            run.break_off(f"the training broke off with {broke}")
        run.end(self._stopping.reason())
        self._rows.send(run, run.last_metrics)
        send(run, self._loggers, self._loop.steps, f"{self._prefix}/report")
        self._error = tell(run, verbose=self._verbose, ends=ends)

    def _finish_failed(self, ends: bool = False) -> None:
        close_failed(self, None if distributed.is_initialized() else self._directory)
        self._error = tell_failed(self, ends=ends)

    def _give_up(self) -> AuditReport | None:
        """Leave the training after a failure at the end of the audit."""
        if not self._ended:
            attempt(self._finish_failed)
        attempt(self._put_away)
        return self._report

    def _put_away(self) -> None:
        """Remove all hooks, and release files and the training; the report is kept."""
        run, self._ended = self._run, True
        for part in (partial(self._note_reads, now=False), self._forget_batch, self._state):
            attempt(part)
        if run is not None:
            self._release(run)
        attempt(partial(atexit.unregister, self._at_exit))
        self._run = self._heard = None
        self._loop.loader = self._user.loader = self._user.function = None

    def _release(self, run: AuditRun) -> None:
        self._report = run.report if run.report is not None else self._report
        # First the handles, which wrap the others.
        parts = [self._handles.remove, self._stopping.put_back, run.detach]
        parts += [self._boundary.remove_hooks, run.optimizers.close_records]
        for part in [*parts, *([run.files.release] if run.files is not None else [])]:
            attempt(part)

    def _at_exit(self) -> None:
        """Write the report of an audit that was not closed when its process ended."""
        last: Any = getattr(sys, "last_value", None)
        if not isinstance(last, BaseException):
            attempt(self.end_epoch)
        broke = type(last).__name__ if isinstance(last, BaseException) else ""
        self._conclude(broke, ends=False)

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close(error)
        except OF_VERDICTS as ends:
            _validate.end_at_user(ends)
            raise
