"""The facts of a run in addition to its observations: loaders, settings, parameters."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from opacus.grad_sample import AbstractGradSampleModule

from lightning_audit._validate import BadArgument
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import PassCounter
from lightning_audit.accounting.history import StepHistory
from lightning_audit.checks.accounting import PlannedCost, StatedTwice
from lightning_audit.checks.check import evidence_in
from lightning_audit.checks.replay import Coupling, ExaminationLog
from lightning_audit.checks.sampling import BatchCheck
from lightning_audit.checks.segments import EarlierSegments
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.opacus import AccountantLink
from lightning_audit.files import commit_of
from lightning_audit.hooks.boundary import RunTime, where
from lightning_audit.hooks.sampler_tap import SamplerTap
from lightning_audit.lints.own_code import INSTALLED, OwnCode
from lightning_audit.lints.settings import (
    SKIPPED,
    LeftOutBatches,
    LoaderFacts,
    accumulation_remarks,
    adaptive_remark,
    carries_over,
    draws_from,
    equal_draws,
    ghost_remarks,
    loader_count,
    loader_facts,
    rate_of,
    reduction_of,
    signals_ahead,
    splits_batches,
)
from lightning_audit.record.store import Kept
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import (
    CodePlace,
    CourseRow,
    Ended,
    ExaminationTold,
    RunAbout,
)
from lightning_audit.run.earlier_fits import EarlierFits, Target
from lightning_audit.run.fence import FenceLog
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession
from lightning_audit.stats.canary_bets import ProvedPart

# --- A training by plain values.


@dataclass(frozen=True)
class TrainingInfo:
    """What a front end states of a training when the audit is set up, and again when it begins.

    Args:
        module: the user's module, with all trained parameters.
        loaders: that it trains on, as `loader_facts` takes them; None before it begins.
        source: whose ``train_dataloader`` makes them; None for the module.
        owners: objects with hooks of the user's, in addition to the module.
        precision: as Lightning names it: "32-true", "16-mixed", ...
        device: as text; empty if unknown.
        strategy: name of how several processes train.
        processes: number of processes.
        accumulated: batches per step.
        epoch_batches: batches of an epoch; infinite if unknown.
        clip: value to which the front end clips raw gradients; None for none.
        planned_steps: of each optimizer in the whole training; None if unknown.
        taken_steps: before it begins.
        trial: whether it only tries a few batches, so that no file is written and nothing fails.
        loop: places in the user's loop by what is there, "step", "attach" or a finding; filled as
            they are found, and empty under Lightning.
    """

    module: Any
    loaders: Any = None
    source: Any = None
    owners: Sequence[Any] = ()
    precision: str = "32-true"
    device: str = ""
    strategy: str = ""
    processes: int = 1
    accumulated: int = 1
    epoch_batches: float = math.inf
    clip: float | None = None
    planned_steps: int | None = None
    taken_steps: int = 0
    trial: bool = False
    loop: Mapping[str, CodePlace] = field(default_factory=dict)

    def own_code(self, optimizers: Sequence[Any]) -> OwnCode:
        """Return the user's code; ``optimizers`` is a list that is kept up to date."""
        return OwnCode(self.module, optimizers, self.owners, self.loaders, self.source, self.loop)

    @property
    def _users(self) -> Any:
        """The user's own module, without Opacus' around it."""
        wrapped = isinstance(self.module, AbstractGradSampleModule)
        return self.module._module if wrapped else self.module

    @property
    def about(self) -> RunAbout:
        """What a report says of it."""
        return RunAbout(
            name=type(self._users).__name__ if self.module is not None else "",
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            device=self.device,
            precision=self.precision,
            processes=self.processes,
            strategy=self.strategy,
            commit=_commit(self._users),
        )


class FrontEnd:
    """What runs the user's training: Lightning's Trainer, or a loop."""

    #: Batches per step.
    accumulated: int = 1
    #: Whether the training was asked to stop.
    stopped: bool = False
    #: Whether the user's call that shows a violation raises it.
    raises: bool = False

    def steps_left(self) -> int | None:
        """Return how many steps each optimizer is planned to take from now on; None if unknown."""

    def epochs_left(self) -> int | None:
        """Return how many epochs will begin from now on; None if it may end before."""

    def is_over(self) -> bool:
        """Return whether the batch that has ended is the last one."""
        raise NotImplementedError

    def show(self, report: AuditReport) -> None:
        """Show the state of the audit while it trains."""

    def stop(self) -> None:
        """Ask the training to stop after the current step."""
        raise NotImplementedError

    def refuse(self, report: AuditReport | None) -> None:
        """Stop the training before the step that is about to be taken."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Restore what `stop` changed."""


def device_name(device: torch.device) -> str:
    """Return a device as a report shows it."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def _commit(module: Any) -> str | None:
    """Return the commit of the repository with the file of the module's class, else of the script.

    The class of an installed package, such as torch's Sequential, is in no repository of the user.
    """
    try:
        file = inspect.getsourcefile(type(module))
    except (OSError, TypeError):  # typed into a notebook
        return None
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = (one for one in (file, script) if one and not {*Path(one).parts} & {*INSTALLED})
    return commit_of(first) if (first := next(own, None)) else None


# --- The facts of a run at one moment, in addition to its observations.


@dataclass
class OptimizerFacts:
    """Facts of one private optimizer, in addition to its observations.

    Args:
        label: its number and first parameter; empty if it is the only one.
        accountant: the accountant that its step hook calls; None if there is none.
        hook: "read" if the accountant was found in its step hook, "unread" if not, "none" without.
        sample_rate: of its last step, None if unknown.
        largest_rate: of all its steps in this process; 0 while none is known.
        expected_batch_size: divisor of its gradients, over all processes together; None if they
            are summed.
        loss_reduction: as the optimizer assumes it, "mean" or "sum"; None if it states none.
        poisson: whether `make_private` was called with ``poisson_sampling``; None if unknown.
        allow: names of the findings that the user allows for this optimizer alone.
        stated_twice: what the claim and it, or its accountant, both state before the first step.
    """

    label: str = ""
    accountant: AccountantLink | None = None
    hook: str = "none"
    sample_rate: float | None = None
    largest_rate: float = 0.0
    expected_batch_size: float | None = None
    loss_reduction: str | None = None
    poisson: bool | None = None
    allow: frozenset[str] = frozenset()
    stated_twice: Sequence[StatedTwice] = ()

    def current_rate(self, claim: PrivacyClaim | None, accumulated: int) -> float | None:
        """Return the sample rate of the present step, from the claim or the accountant.

        None if it is unknown, or if the claim states shuffled batches: nothing is sampled then.
        """
        shuffled = claim is not None and claim.sampling == "shuffled"
        if claim is not None and claim.sample_rate is not None:
            self.sample_rate = claim.sample_rate
            return None if shuffled else claim.sample_rate
        if self.accountant is None:
            return None
        link = self.accountant
        rate = link.stated_rate if link.stated_rate is not None else link.sample_rate
        self.sample_rate, self.largest_rate = rate, max(self.largest_rate, rate or 0.0)
        return None if rate is None or shuffled else min(rate * accumulated, 1.0)

    def named(self, sentence: str) -> str:
        """Prefix a sentence about this optimizer with its label, if there are several."""
        return f"{self.label}: {sentence}" if self.label else sentence


_log = logging.getLogger(__name__)
_FEW_BATCHES = (
    "accumulate_grad_batches={accumulated} is above the {most} batches of an epoch: Lightning then "
    "steps once an epoch, on fewer batches than the divisor counts; write at most {most}"
)


class Notes:
    """Notes on a run, each once, in the order in which they were added."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def load(self, kept: Sequence[str]) -> None:
        """Load a checkpoint's notes; notes added since are kept, after them."""
        since, self.sentences = self.sentences, list(kept)
        for sentence in since:
            self.add(sentence)


def steps_of(sessions: Sequence[AuditSession]) -> list[int]:
    """Return the number of steps of each private optimizer so far."""
    return [session.recorder.steps for session in sessions]


def links_of(optimizers: Sequence[OptimizerFacts]) -> tuple[AccountantLink, ...]:
    """Return the optimizers' links to accountants, each accountant once."""
    links = (o.accountant for o in optimizers if o.accountant is not None)
    return tuple({id(link.accountant): link for link in links}.values())


def rate_of_all(optimizers: Sequence[OptimizerFacts], loaders: int) -> float | None:
    """Return the rate to compare a run's loaders with; None while no rate is known.

    A single loader serves all optimizers and must not exceed the smallest of their rates. With
    several loaders it is unknown which one serves which optimizer: the largest rate counts.
    """
    rates = [max(o.sample_rate, o.largest_rate) for o in optimizers if o.sample_rate is not None]
    if not rates:
        return None
    return min(rates) if loaders == 1 else max(rates)


# --- The course of a run: where and how it ran, what happened, its epochs' ends, and how it ended.


class TimeShare:
    """Time that something takes, which decides how soon it may run again.

    Args:
        seconds: that it is taken to need at first.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds, self._ended = seconds, perf_counter()

    def allow(self, share: float) -> bool:
        """Return whether it takes at most this share of the time since it last ran."""
        return self._seconds <= share * (perf_counter() - self._ended)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the time of a run of it."""
        begun = perf_counter()
        yield
        self._ended = perf_counter()
        self._seconds = self._ended - begun


class RankComparison(Kept):
    """Comparison of the processes of a run: same gradients, different noise."""

    KEPT = ("synchronised", "noise_equal", "drawn_alike")

    def __init__(self) -> None:
        #: Whether their gradients are the same, None if unknown; whether noise and batches are.
        self.synchronised: bool | None = None
        self.noise_equal = self.drawn_alike = False

    def compare(self, session: AuditSession | None, ranks: Ranks, draws_from: int = 0) -> None:
        """Compare what the processes read so far, if they can communicate; each one must call it.

        Args:
            session: of the only private optimizer; None before there is one.
            ranks: the processes.
            draws_from: `draw_state` of this process's loader; 0 if unknown.
        """
        if session is None or not ranks.talk:
            return
        draws = session.draws.numbers
        copied = session.planner.copied
        own = [session.recorder.steps, session.checksum, copied, *draws, draws_from]
        rows = ranks.gathered([*own, *session.lost.numbers()])
        session.lost.hear([row[len(own) :] for row in rows])
        same = all(row[:2] == rows[0][:2] for row in rows)
        self.synchronised = same and self.synchronised is not False
        session.planner.hear(anyone_copies=any(row[2] for row in rows))
        self.noise_equal |= equal_draws([row[3 : len(own) - 1] for row in rows])
        self.drawn_alike = draws_from > 0 and all(row[len(own) - 1] == draws_from for row in rows)


#: Most rows of the course.
MOST_ROWS = 200
#: Largest part of the time since the last bound on mu that the next one may take.
_SHARE = 0.01


def proved_mu(front: Sequence[ProvedPart], claims: StepHistory) -> float:
    """Return the lower bound on the leakiest step's mu.

    Args:
        front: what is proved for the steps up to each look.
        claims: of the steps.
    """
    # Each ratio with the noise multiplier at the step up to which it was proved.
    at_looks = ((part.ratio, claims.noise_at(part.steps)) for part in front)
    return max((ratio / sigma for ratio, sigma in at_looks if sigma > 0), default=0.0)


@dataclass
class RunCourse:
    """The course of a run.

    Args:
        notes: remarks on the run.
        comparison: of the processes.
        coupling: whether records of a batch depend on each other.
        examined: answers of the examinations by replay.
        epochs: metrics of each epoch's end.
        trained_batches: number of batches.
        passes: over shuffled batches; None if the claim states none.
        break_off: why it broke off, or empty.
        resumed: what was not observed before it was resumed, or empty.
        unaudited: parameters that changed although no private optimizer trains them.
        unwritten: what could not be written, as text.
        time: of training and audit.
        earlier: findings before the last resume, of checks that restart.
        fits: earlier ones on the same records.
        target: the epsilon that Opacus was given.
        fence: what happened outside of the steps.
        about: what is known of the training when it begins.
        planned_steps: of the whole training; None if unknown.
        planned_epochs: that will have begun at its end; None if unknown.
        ended_by: why it ended, see `Ended`; empty while it runs.
        rows: of epochs' ends, at most `MOST_ROWS`.
        examinations: of steps by replay.
    """

    notes: Notes = field(default_factory=Notes)
    comparison: RankComparison = field(default_factory=RankComparison)
    coupling: Coupling = field(default_factory=Coupling)
    examined: ExaminationLog = field(default_factory=ExaminationLog)
    epochs: list[Mapping[str, float]] = field(default_factory=list)
    trained_batches: int = 0
    passes: PassCounter | None = None
    break_off: str = ""
    resumed: str = ""
    unaudited: tuple[str, ...] = ()
    unwritten: list[str] = field(default_factory=list)
    time: RunTime = field(default_factory=RunTime)
    earlier: EarlierSegments = field(default_factory=EarlierSegments)
    fits: EarlierFits = field(default_factory=EarlierFits)
    target: Target = field(default_factory=Target)
    fence: FenceLog = field(default_factory=FenceLog)

    about: RunAbout | None = None
    planned_steps: int | None = None
    planned_epochs: int | None = None
    ended_by: str = ""
    rows: list[CourseRow] = field(default_factory=list)
    examinations: list[ExaminationTold] = field(default_factory=list)
    #: Number of epochs from one row to the next.
    _every: int = 1
    _began: float = field(default_factory=perf_counter)
    #: Time of the latest bound on mu.
    _bounds: TimeShare = field(default_factory=TimeShare)

    #: Parts that a checkpoint holds.
    _PARTS: ClassVar = ("comparison", "fence", "fits")

    @classmethod
    def of(cls, info: TrainingInfo, *, shuffled: bool) -> RunCourse:
        """Return the course of a new run, which counts passes if batches are shuffled."""
        return cls(passes=PassCounter() if shuffled else None, about=info.about)

    @property
    def training(self) -> RunAbout | None:
        """What is known of the training, with the seconds so far."""
        seconds = perf_counter() - self._began
        return None if self.about is None else replace(self.about, seconds=seconds)

    def ended(self, steps: int) -> Ended | None:
        """Return how the training ended after a number of steps; None while it runs."""
        reason = "broke off" if self.break_off else self.ended_by
        return Ended(steps, reason) if reason else None

    def end_epoch(
        self,
        epoch: int,
        sessions: Sequence[AuditSession],
        config: AuditConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Keep metrics and row of an epoch's end; a resumed epoch replaces its own.

        Args:
            epoch: its number, from 0.
            sessions: of the private optimizers.
            config: of the audit.
            metrics: of this epoch's end; None to compute the bound on mu here, if that is cheap.
        """
        if metrics is not None:
            known = [old for old in self.epochs if old["epoch"] != epoch]
            self.epochs = [*known, {"epoch": epoch, **metrics}]
        if epoch % self._every or not sessions:
            return
        monitors = [session.monitor for session in sessions]
        row = CourseRow(
            step=sum(monitor.steps for monitor in monitors),
            epoch=epoch,
            mu_lower=self._mu(sessions, config) if metrics is None else metrics.get("mu_lower"),
            log_e=max(monitor.log_e_value for monitor in monitors),
            observations=sum(monitor.sensitivity.observations for monitor in monitors),
        )
        self.rows = [*(old for old in self.rows if old.epoch < epoch), row]
        if len(self.rows) > MOST_ROWS:
            self._every *= 2
            self.rows = [old for old in self.rows if old.epoch % self._every == 0]

    def _mu(self, sessions: Sequence[AuditSession], config: AuditConfig) -> float | None:
        """Return the largest bound on mu if that is cheap, else None."""
        if config.mechanism_alone or not self._bounds.allow(_SHARE):
            return None
        level = config.bound_significance / len(sessions)
        monitors = [session.monitor for session in sessions if session.monitor.canary_steps]
        with self._bounds.measured():
            mus = [proved_mu(monitor.leakage.front(level), monitor.claims) for monitor in monitors]
        return max(mus, default=None)

    def begin_segment(self, state: Mapping[str, Any], step: int, tested: Sequence[object]) -> None:
        """Load the results of earlier segments, and begin a new one.

        Args:
            state: of the previous segment.
            step: number of the next step.
            tested: objects that hold the tests of steps and batches.
        """
        self.earlier.load(state, step)
        self.earlier.number(evidence_in([*tested, self.examined]))

    def state(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return what a resumed run cannot recompute, without examined steps, which are private.

        Args:
            steps: of each private optimizer. The batch count is capped at the largest, because a
                larger one would reveal the number of records.
        """
        return {
            **{name: getattr(self, name).state() for name in self._PARTS},
            "notes": list(self.notes.sentences),
            "epochs": [dict(row) for row in self.epochs],
            "about": {"every": self._every, "rows": [asdict(row) for row in self.rows]},
            "resumed": self.resumed,
            "trained_batches": min(self.trained_batches, max(steps, default=0)),
            "passes": self.passes.state(steps) if self.passes else {"passes": 0, "steps": [*steps]},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        for name in self._PARTS:
            getattr(self, name).load(state[name])
        self.notes.load(state["notes"])
        self.epochs = [dict(row) for row in state["epochs"]]
        about = state.get("about", {"every": 1, "rows": []})  # earlier versions had none
        self._every, self.rows = int(about["every"]), [CourseRow(**row) for row in about["rows"]]
        self.resumed, self.trained_batches = state["resumed"], state["trained_batches"]
        if self.passes is not None:
            self.passes.load(state["passes"])


# --- What a run shows without a canary: how its loaders sample, and the Trainer's settings.

_PARTS = (
    "each process draws from its own Subset: epsilon holds if no record is in two of them, which "
    "is not checked"
)


_UNREAD = LoaderFacts("unknown", "a loader whose sampler could not be read")
_NOT_READ = "a setting of the training could not be read: {where}"


class RunLints(Kept):
    """Reader of a run's loaders, loss and Trainer settings.

    Args:
        notes: remarks on the run.
        significance: probability of a false alarm over the run.
        ranks: the processes that train together.
    """

    def __init__(self, notes: Notes, significance: float, ranks: Ranks) -> None:
        self._notes = notes
        #: How the loader samples; finds the user's code; both None before the training begins.
        self.loader: LoaderFacts | None = None
        self.code: OwnCode | None = None
        self.loaders, self.repeated = 1, False
        #: The training loaders, as the Trainer has them.
        self.draws_from: Any = None
        self.batches: BatchCheck | None = None
        self.batches_per_step = 1
        self.split_epochs = self.carried_over = self.epochs = 0
        self.loss_reduction: str | None = None
        #: Cost of the planned steps or epochs, if it exceeds the claim.
        self.planned: PlannedCost | None = None
        self._significance = significance
        self._ranks = ranks
        self._taps: list[SamplerTap] = []
        self._split = False
        # Whether a pass over the data began before its epoch is counted.
        self._fresh = False
        #: Whether the sample rate rose since the last evaluation of the checks.
        self.rate_rose = False
        self._left_out = LeftOutBatches()
        self._noise: list[Any] = []
        #: Whether batches without a step occurred at irregular distances.
        self.irregular = False
        #: Noise multipliers while every batch makes a step; batches with the same are not tested.
        self.regular: list[Any] | None = None
        #: How often optimizers were replaced: a step of a new one may have been missed.
        self.exchanged = 0
        self._ahead = 0
        #: Whether the first loss was read, and whether an epoch began in this process.
        self.loss_seen = self.began = False

    def read(self, lint: Callable[..., Any], *args: Any, otherwise: Any = None) -> Any:
        """Return what a lint reads; if it fails on the user's objects, it is noted and left out."""
        try:
            return lint(*args)
        except BadArgument:
            raise
        except Exception as error:
            _log.debug("a lint failed", exc_info=error)
            self._notes.add(_NOT_READ.format(where=where(error)[0]))
            return otherwise

    def start(self, loaders: Any) -> None:
        """Read how the loaders sample."""
        self.loader, self.draws_from = self.read(loader_facts, loaders, otherwise=_UNREAD), loaders
        self.loaders = self.read(loader_count, loaders, otherwise=1)
        if self.batches is not None and self.loaders > 1:
            self.batches.obstacle = "the training has several loaders"
        self._split = self.read(splits_batches, loaders, otherwise=False)
        self._ahead = self.read(signals_ahead, loaders, otherwise=0)
        if self._ranks.several:
            self.repeated = draws_from(loaders, part=False)
            if draws_from(loaders, part=True):
                self._notes.add(_PARTS)

    def watch(self, loader: Any, take: Callable[[Any], None]) -> None:
        """Watch a training loader's batches, and test them if its type does not show how it draws.

        Args:
            loader: the loader, before it is iterated for the first time.
            take: called with each batch that its sampler yields.
        """
        self.detach()  # from earlier loaders: each batch counts once
        found = self.read(loader_facts, loader, otherwise=_UNREAD)
        if self.loader is not None and not found.once:
            self.loader = replace(self.loader, once=False)
        if self.loader is not None and found.kind == "not_poisson" != self.loader.kind:
            self.loader, self.rate_rose = replace(found, once=False), True
        if found.kind != "unknown" or found.records is None:
            seen = _both(partial(self._look_at_rate, loader), take)
            self._taps.append(SamplerTap(loader, self._start_pass, seen))
            return
        check = self.batches
        if check is None:
            check = self.batches = BatchCheck(found.records, self._significance)
        elif check.records != found.records:
            check.obstacle = "the loader's data set changes"
        self._taps.append(SamplerTap(loader, check.start_epoch, _both(check.take, take)))

    def go_on_with(self, loader: Any) -> None:
        """Judge how another loader samples, which the training iterates instead."""
        found = self.read(loader_facts, loader, otherwise=_UNREAD)
        if found.kind == "not_poisson":
            self.loader, self.rate_rose = replace(found, once=False), True

    def _start_pass(self) -> None:
        self._fresh = True

    def _look_at_rate(self, loader: Any, _: Any) -> None:
        """Check whether the sampler's rate rose by the time a batch was drawn."""
        rate, known = self.read(rate_of, loader), self.loader_rate
        if self.loader is not None and rate is not None and known is not None and rate > known:
            # Batches are prefetched before their epoch is counted.
            epoch = self.epochs if self._fresh else self.epochs - 1
            self.loader = replace(self.loader, sample_rate=rate, raised_in=epoch)
            self.rate_rose = True

    @property
    def loader_rate(self) -> float | None:
        """The sampler's stated rate; None if it states none."""
        return None if self.loader is None else self.loader.sample_rate

    @property
    def records(self) -> int | None:
        """Number of records of the loader; None if it is unknown."""
        return None if self.loader is None else self.loader.records

    @property
    def needs_sizes(self) -> bool:
        """Whether batch sizes are the only evidence of how the loader samples."""
        return (self.loader is None or self.loader.kind == "unknown") and self.batches is None

    def note_settings(
        self, private: Sequence[Any], optimizers: list[Any], info: TrainingInfo
    ) -> None:
        """Note how a training's settings affect private optimizers; locate the user's code.

        Args:
            private: the private optimizers, as they are stepped.
            optimizers: of the training; a list that is kept up to date.
            info: of the training that begins.
        """
        self.code = self.read(info.own_code, optimizers)
        accumulated = info.accumulated
        if info.epoch_batches < accumulated:
            self._notes.add(_FEW_BATCHES.format(accumulated=accumulated, most=info.epoch_batches))
        for optimizer in private:
            self.batches_per_step = accumulated
            remarks = self.read(ghost_remarks, optimizer, accumulated, info.clip)
            remarks = remarks or self.read(
                accumulation_remarks, optimizer, accumulated, info.module
            )
            for sentence in remarks or ():
                self._notes.add(sentence)
                _log.warning("privacy audit: %s", sentence)

    def split(self, loader: Any) -> None:
        """Read that a loader, made after the training began, splits logical batches."""
        if self.read(splits_batches, loader):
            self._split, self._ahead = True, self.read(signals_ahead, loader, otherwise=0)

    def start_epoch(self, optimizers: Sequence[Any]) -> None:
        """Start an epoch; check whether gradients of the previous one are left in optimizers."""
        self.epochs, self.began, self._fresh = self.epochs + 1, True, False
        self._left_out.start_epoch()
        self.regular = None
        if self._split:
            self.split_epochs += 1
            carried = [carries_over(optimizer, self._ahead) for optimizer in optimizers]
            self.carried_over += any(carried)

    def end_batch(
        self,
        batch: Any,
        sessions: Sequence[AuditSession],
        noise: list[Any],
        *,
        stepped: bool,
    ) -> bool:
        """Check whether a batch made a step, and whether the noise changed.

        If logical batches are split, batches without a step are not counted.

        Args:
            batch: as it was trained.
            sessions: of the private optimizers.
            noise: their noise multipliers.
            stepped: whether the batch made a step.

        Returns:
            Whether batches were left out irregularly for the first time, or the noise changed.
        """
        if not sessions:
            return False
        news, self._noise = self._noise not in ([], noise), noise
        if not self._split and all(session.planner.changed_at is None for session in sessions):
            before = self.irregular
            self._left_out.take(batch, stepped=stepped)
            self.regular = noise if self._left_out.regular else None
            self.irregular |= self._left_out.irregular
            news |= self.irregular and not before
            if self._left_out.empty:
                self._notes.add(SKIPPED)
        return news

    def look_at_loss(self, module: torch.nn.Module, loss: Any) -> None:
        """Read the reduction of the first loss, and whether Lightning detached a part of it."""
        self.loss_seen = True
        self.loss_reduction = self.read(reduction_of, loss, self.batches_per_step)
        if sentence := self.read(adaptive_remark, module, loss):
            self._notes.add(sentence)

    KEPT = ("epochs", "exchanged", "irregular", "loss_reduction", "split_epochs")

    def detach(self) -> None:
        """Remove the hooks from the loaders."""
        for tap in self._taps:
            tap.remove()
        self._taps = []


def _both(one: Callable[[Any], None], other: Callable[[Any], None]) -> Callable[[Any], None]:
    def take(batch: Any) -> None:
        one(batch)
        other(batch)

    return take
