"""The facts of a run at one moment, in addition to its observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.shuffled_passes import PassCounter
from lightning_audit.checks.accounting.accounted_epsilon import PlannedCost
from lightning_audit.checks.accounting.ledger import Ledger
from lightning_audit.checks.base.evidence import evidence_in
from lightning_audit.checks.replay.record_coupling import Coupling
from lightning_audit.checks.replay.replay_answers import ExaminationLog
from lightning_audit.checks.sampling.batch_sampling import BatchCheck
from lightning_audit.dpsgd.accountant_link import AccountantLink
from lightning_audit.lints.loader_facts import LoaderFacts
from lightning_audit.lints.noise_draws import equal_draws
from lightning_audit.lints.own_code import OwnCode
from lightning_audit.record.earlier_segments import EarlierSegments
from lightning_audit.record.kept import Kept
from lightning_audit.run.details.circumstances import Circumstances
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.taps.own_time import RunTime

if TYPE_CHECKING:
    from lightning_audit.run.audited_optimizers import AuditedOptimizers
    from lightning_audit.run.run_lints import RunLints


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


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run at one moment, collected from its parts, in addition to its observations.

    Args:
        optimizers: facts of the private optimizers, in the order of their sessions.
        plain_steps: steps of optimizers that are not private.
        plain_name: class of the last of these.
        plain_refused: class of the one whose first step was refused, or empty.
        exempt_steps: steps of those that the user exempts, by the text that names them.
        exempt_by_records: those of them that train on as many rows as there are records.
        unaudited: parameters that changed although no private optimizer trains them.
        loader: how the training loader samples; None before that is known.
        loaders: number of training loaders.
        repeated: whether each process draws from all records.
        batches: test of a sampler's batches, if its type does not show how it draws.
        batches_per_step: batches that the Trainer accumulates per step.
        trained_batches: batches that were trained on.
        split_epochs: epochs with split batches.
        begun: epochs that began.
        passes: steps that a record may have entered, if shuffled batches are claimed; else 0.
        planned: planned steps or epochs that cost more than the claim; None if they do not.
        carried_over: epochs with split batches that began with the rest of a batch.
        loss_reduction: how the first loss was reduced, "mean" or "sum"; None if unknown.
        processes: number of processes that train together.
        synchronised: whether they read the same gradients so far; None if they were not compared.
        noise_equal: whether two of them drew the same noise.
        coupling: what examinations found on whether a record's gradient depends on other records.
        examined: the other results of examinations.
        ledger: the recorded batches, steps and accountant calls.
        epochs: the metrics logged at the ends of epochs.
        notes: on the run.
        break_off: why the training broke off, or empty.
        resumed: which steps before a resume were not observed, or empty.
        unwritten: which parts of report and records could not be written, as text.
        cost: see `RunTime.cost`.
        earlier: results of the segments before the last resume.
        code: locates the user's code; None before the training begins.
        about: its circumstances, course and examinations.
    """

    optimizers: Sequence[OptimizerFacts] = ()
    plain_steps: int = 0
    plain_name: str = ""
    plain_refused: str = ""
    exempt_steps: Mapping[str, int] = field(default_factory=dict)
    exempt_by_records: tuple[str, ...] = ()
    unaudited: tuple[str, ...] = ()
    loader: LoaderFacts | None = None
    loaders: int = 1
    repeated: bool = False
    batches: BatchCheck | None = None
    batches_per_step: int = 1
    trained_batches: int = 0
    split_epochs: int = 0
    begun: int = 0
    passes: int = 0
    planned: PlannedCost | None = None
    carried_over: int = 0
    loss_reduction: str | None = None
    processes: int = 1
    synchronised: bool | None = None
    noise_equal: bool = False
    coupling: Coupling = field(default_factory=Coupling)
    examined: ExaminationLog = field(default_factory=ExaminationLog)
    ledger: Ledger = field(default_factory=Ledger)
    epochs: Sequence[Mapping[str, float]] = ()
    notes: Sequence[str] = ()
    break_off: str = ""
    resumed: str = ""
    unwritten: Sequence[str] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    earlier: EarlierSegments = field(default_factory=EarlierSegments)
    code: OwnCode | None = None
    about: Circumstances = field(default_factory=Circumstances)

    @classmethod
    def of(
        cls,
        optimizers: AuditedOptimizers,
        lints: RunLints,
        course: RunCourse,
        ranks: Ranks,
        ledger: Ledger,
    ) -> RunFacts:
        """Collect the current facts from the parts of a run."""
        return cls(
            optimizers=optimizers.facts,
            plain_steps=optimizers.plain.count,
            plain_name=optimizers.plain.kind,
            plain_refused=optimizers.plain.refused,
            exempt_steps=dict(optimizers.plain.exempt),
            exempt_by_records=optimizers.plain.follow_records,
            unaudited=course.unaudited,
            loader=lints.loader,
            loaders=lints.loaders,
            repeated=lints.repeated,
            batches=lints.batches,
            batches_per_step=lints.batches_per_step,
            trained_batches=course.trained_batches,
            split_epochs=lints.split_epochs,
            begun=lints.epochs,
            passes=course.passes.passes(steps_of(optimizers.sessions)) if course.passes else 0,
            planned=lints.planned,
            carried_over=lints.carried_over,
            loss_reduction=lints.loss_reduction,
            processes=ranks.count,
            synchronised=course.comparison.synchronised,
            noise_equal=course.comparison.noise_equal,
            coupling=course.coupling,
            examined=course.examined,
            ledger=ledger,
            epochs=course.epochs,
            notes=[*course.notes.sentences, *filter(None, [course.earlier.note])],
            break_off=course.break_off,
            resumed=course.resumed,
            unwritten=course.unwritten,
            cost=course.time.cost(),
            earlier=course.earlier,
            code=lints.code,
            about=course.about,
        )

    @property
    def accountants(self) -> tuple[AccountantLink, ...]:
        """The links to the run's accountants, each once."""
        return links_of(self.optimizers)

    @property
    def sample_rate(self) -> float | None:
        """The rate to compare the loader with; see `rate_of_all`."""
        return rate_of_all(self.optimizers, self.loaders)


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


class RankComparison(Kept):
    """Comparison of the processes of a run: same gradients, different noise."""

    KEPT = ("synchronised", "noise_equal")

    def __init__(self) -> None:
        #: See `RunFacts`, which has them by the same names.
        self.synchronised: bool | None = None
        self.noise_equal = False

    def compare(self, session: AuditSession | None, ranks: Ranks) -> None:
        """Compare what the processes read so far, if they can communicate; each one must call it.

        Args:
            session: of the only private optimizer; None before there is one.
            ranks: the processes.
        """
        if session is None or not ranks.talk:
            return
        draws = session.draws.numbers
        own = [session.recorder.steps, session.checksum, session.planner.copied, *draws]
        told = ranks.gathered([*own, *session.lost.numbers()])
        session.lost.hear([row[len(own) :] for row in told])
        same = all(row[:2] == told[0][:2] for row in told)
        self.synchronised = same and self.synchronised is not False
        session.planner.anyone_copies = any(row[2] for row in told)
        self.noise_equal |= equal_draws([row[3 : len(own)] for row in told])


@dataclass
class RunCourse:
    """The course of a run; see `RunFacts`, which has the same names."""

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
    about: Circumstances = field(default_factory=Circumstances)

    @classmethod
    def of(cls, trainer: Any, *, shuffled: bool) -> RunCourse:
        """Return the course of a new run, which counts passes if batches are shuffled."""
        return cls(passes=PassCounter() if shuffled else None, about=Circumstances.of(trainer))

    def end_epoch(self, row: Mapping[str, float]) -> None:
        """Keep an epoch's metrics; a run resumed at an epoch's end replaces those of that epoch."""
        known = [old for old in self.epochs if old["epoch"] != row["epoch"]]
        self.epochs = [*known, row]

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
        """Return what a resumed run cannot recompute.

        Args:
            steps: of each private optimizer. The batch count is capped at the largest, because a
                larger one would reveal the number of records.
        """
        return {
            "notes": list(self.notes.sentences),
            "comparison": self.comparison.state(),
            "epochs": [dict(row) for row in self.epochs],
            "about": self.about.state(),
            "resumed": self.resumed,
            "trained_batches": min(self.trained_batches, max(steps, default=0)),
            "passes": self.passes.state(steps) if self.passes else {"passes": 0, "steps": [*steps]},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        self.notes.load(state["notes"])
        self.comparison.load(state["comparison"])
        self.epochs = [dict(row) for row in state["epochs"]]
        self.about.load(state.get("about", {}))
        self.resumed, self.trained_batches = state["resumed"], state["trained_batches"]
        if self.passes is not None:
            self.passes.load(state["passes"])
