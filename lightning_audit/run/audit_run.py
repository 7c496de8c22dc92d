"""The audit of one training: its batches, steps, epochs, ledger and report."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import AbstractGradSampleModule

from lightning_audit.accounting.history import rates_known
from lightning_audit.canaries.inputs import InputCanary, rows
from lightning_audit.checks.accounting import Ledger
from lightning_audit.checks.replay import REPLAY_CLIPPING, REPLAY_RELEASE
from lightning_audit.checks.sampling import DrawnBatches
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.protocol import Backward
from lightning_audit.hooks.boundary import raised_in_audit
from lightning_audit.hooks.sampler_tap import BatchUse, can_be_watched
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.lints.settings import (
    SKIPPED,
    changes_of_noise,
    draw_state,
    follows_a_scheduler,
    logged_names,
    repeated_contents,
    repeated_indices,
)
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport, UnauditableTraining
from lightning_audit.run.earlier_fits import EarlierFits
from lightning_audit.run.epsilons import current_epsilons, run_history
from lightning_audit.run.evaluation import (
    Findings,
    build_report,
    epoch_metrics,
    run_checks,
    segment_state,
    violated,
)
from lightning_audit.run.examinations import Examinations
from lightning_audit.run.facts import (
    RunCourse,
    RunLints,
    TimeShare,
    TrainingInfo,
    links_of,
    rate_of_all,
    steps_of,
)
from lightning_audit.run.fence import Fence
from lightning_audit.run.optimizers import (
    AuditedOptimizers,
    draw_seed,
    refusing_what_does_not_fit,
)
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession

# --- The ledger of a run: the drawn batches, their steps, and what the accountant recorded.

_log = logging.getLogger(__name__)
#: Records per record of the batch from which on two steps are known to share some.
_SAME = 1.5
_MORE = (
    "some steps clipped more gradients than their batch has records: a record with several of them "
    "adds several times the clipping norm (replay.sensitivity tests single records)"
)
_FEWER = (
    "some steps clipped fewer gradients than their batch has records: records were left out, or "
    "several were summed before they were clipped"
)
_UNSEEN = (
    "the accountant holds {} steps from before this audit, which did not observe them: a training "
    "that continues takes the audit's state too: attach(..., state=), the audit.state_dict() that "
    "was saved with the weights (Lightning: a checkpoint with the callback)"
)
#: Ratio of a loader's batch size to the claimed one that is rounding.
_ALIKE = 1.25
#: Ratio of gradients to expected records, and standard errors above it, that are not chance.
_MANY, _ERRORS = 1.05, 5.0
#: Batches whose use by steps is watched: the first ``_FIRST``, then the first ``_IN_A_ROW`` of
#: every ``_OF``.
_FIRST, _IN_A_ROW, _OF = 100, 25, 250


class RunLedger:
    """Recorder of what happens to a run's batches.

    Args:
        optimizers: of the run.
        course: of the run.
        lints: how the loaders sample.
    """

    def __init__(self, optimizers: AuditedOptimizers, course: RunCourse, lints: RunLints) -> None:
        self._optimizers, self._course, self._lints = optimizers, course, lints
        self._sessions, self._notes = optimizers.sessions, course.notes
        #: The ledger.
        self.book = Ledger()
        #: Records of all steps of the only private optimizer before the present batch.
        self.rows_before: int | None = None
        self._public = 0  # rows of steps on no record of their batch
        #: Steps with these noise multipliers in the accountants before the first step.
        self.alike_before = 0
        #: Number of the next batch for which `start_batch` is called, and whether `end_batch` is
        #: called.
        self.due, self.looks = 0, False
        # Whether the previous batch ended with a step, so that the next step has a single batch.
        self._stepped = True
        # Whether more gradients than records were reported; gradients handed over before.
        self._too_many, self._handed = False, 0
        self._use = BatchUse()
        #: The module whose layers are given batches in training.
        self.module: torch.nn.Module | None = None
        #: Data set of the latest loader.
        self.data: Any = None

    def watch(self, loader: Any) -> None:
        """Read the batches of a loader's sampler, if possible.

        Args:
            loader: a training loader, before it is iterated for the first time.
        """
        self.data = getattr(loader, "dataset", None)
        if not can_be_watched(loader):
            return
        data = loader.dataset
        book, count = self.book, len(data)
        if book.draws is None:
            config = self._optimizers.config
            book.draws = DrawnBatches(count, config.significance)
            try:
                book.repeated, same = repeated_indices(data, config.items), repeated_contents(data)
            except Exception as error:  # an unusual data set
                if raised_in_audit(error):
                    raise
                _log.warning("it is unknown whether the data set holds records twice")
                same = None
            if same:
                self._notes.add(
                    "the data set holds records with equal contents: duplicated records get weaker "
                    "privacy than claimed"
                )
        elif book.draws.records != count:
            book.draws.obstacle = "the loader's data set changes"
        self._lints.watch(loader, book.draws.take)

    # ------------------------------------------------------------------ each batch

    def start_batch(self, batch: Any) -> None:
        """Watch a batch that is about to be trained, as the loader yielded it."""
        if not self._sessions:
            return
        if not self.book.begun:
            self._begin()
        number = self._course.trained_batches
        self.looks = number < _FIRST or number % _OF < _IN_A_ROW
        if not self.looks:
            self.detach()
            self.due = number + _OF - number % _OF
            return
        if not self._use.watches and self.module is not None:
            inner = (session.step.inner for session in self._sessions)
            modules = _private_modules(self.module)
            self._use.attach(modules, inner, lambda: self._optimizers.looks)
        self._use.start_batch(batch, number)

    def detach(self) -> None:
        """Remove all hooks."""
        self._use.detach()

    def _begin(self) -> None:
        """Record the accountant's steps and the steps taken before the first batch."""
        self.book.begun = True
        links = links_of(self._optimizers.facts)
        recorded = [phase for link in links for phase in link.accountant.history]
        self.book.told_before = sum(int(steps) for *_, steps in recorded)
        self.book.accountants = len(links)
        # Of another noise multiplier they are another mechanism's, such as a query before.
        own = self._optimizers.noise_multipliers
        self.alike_before = sum(int(steps) for sigma, _, steps in recorded if sigma in own)
        self.book.taken_before = self._optimizers.steps

    def end_batch(self, taken: int, batch: Any) -> None:
        """Compare the records of a trained batch with those of its steps.

        With several private optimizers it is unknown whose steps these were.

        Args:
            taken: number of steps within it.
            batch: as it was trained.
        """
        alone, self._stepped = self._stepped and taken == 1, taken > 0
        if len(self._sessions) != 1 or not taken:
            return
        planner, before, records = self._sessions[0].planner, self.rows_before, count_rows(batch)
        now, handed = planner.rows_taken, planner.rows_handed
        if now is None or before is None or records is None:
            self.book.unknown += taken > 1
            return
        had = now - before
        rows, self._handed = had or handed - self._handed, handed
        if alone and rows:
            self.book.compared += 1
            self.book.other_rows += rows != records
        if taken > 1 and had >= _SAME * records > 0:  # unless rows are public, as a GAN's fakes
            self.book.again += max(self._use.of_batch - 1, 0)
            self.book.unknown += not self._use.of_batch
            self._public += had - records if self._use.of_batch == 1 else 0
        elif alone and had > records and not self.book.elsewhere:
            self._notes.add(_MORE)
        elif alone and 0 < had < records and not self.book.elsewhere:
            self._notes.add(_FEWER)

    # ------------------------------------------------------------------ evaluation

    def settle(self) -> None:
        """Bring the ledger up to date."""
        book, use, lints = self.book, self._use, self._lints
        book.recognised, book.stale = book.recognised + use.recognised, book.stale + use.stale
        book.regiven += use.regiven
        use.recognised = use.stale = use.regiven = 0
        self._look_at_steps()
        optimizers, claim = self._optimizers.facts, self._optimizers.config.claim
        stated = claim is not None and claim.sample_rate is not None
        rates = (rate_of_all(optimizers, lints.loaders), lints.loader_rate)
        hooks = {optimizer.hook for optimizer in optimizers}
        book.elsewhere = self._draws_elsewhere()
        book.hook = "read" if hooks == {"read"} else "none"
        if "unread" in hooks and not stated:
            book.hook = "unread"
        if book.draws is not None:
            book.draws.rate = max((r for r in rates if r is not None), default=None)
            if lints.loaders > 1:
                book.draws.obstacle = "the training has several loaders"
            elif lints.loader is not None and lints.loader.kind != "poisson":
                # Other samplers are judged by the checks of the sampling, which the user may allow.
                book.draws.obstacle = "the sampler is not Poisson by its type"

    def _draws_elsewhere(self) -> bool:
        """Return whether the loader's batches have another size than those of the claim.

        Unless the steps clip one gradient for each of their records: then these are the batches.
        """
        claim = self._optimizers.config.claim
        size = None if self._lints.loader is None else self._lints.loader.batch_size
        sizes = [one.expected_batch_size for one in self._optimizers.facts]
        sizes += [claim.expected_batch_size] if claim is not None else []
        expected = next(filter(None, sizes), None)
        if size is None or expected is None or expected / _ALIKE <= size <= expected * _ALIKE:
            return False
        return 2 * self.book.other_rows >= self.book.compared

    def _look_at_steps(self) -> None:
        """Count the skipped batches and the changes of noise that follow no known schedule.

        Noise that changes at most steps is not counted once `replay.release` has tested a step.
        """
        self._compare_rows()
        book, course = self.book, self._course
        asked = course.examined.asked(REPLAY_RELEASE.name) > 0
        book.steps = book.changes = 0
        for session in self._sessions:
            changes = changes_of_noise(session.monitor.claims.runs())
            steps, changed = sum(number for _, number in changes), len(changes) - 1
            book.steps += steps
            known = changed <= 0 or (asked and 2 * changed >= steps)
            if not known and not follows_a_scheduler(changes, session.step.optimizer):
                book.changes += changed
        unseen = course.trained_batches - book.steps - self._lints.exchanged
        book.left_out = max(0, unseen) if self._lints.irregular else 0

    def _compare_rows(self) -> None:
        """Block a pass if the only optimizer's steps clip more gradients than the rate allows."""
        draws, sessions = self.book.draws, self._sessions
        if len(sessions) != 1 or draws is None or draws.obstacle or self._too_many:
            return
        planner, history = sessions[0].planner, sessions[0].monitor.history
        by_input = isinstance(planner.config.canaries[0], InputCanary)  # adds a row
        if by_input or planner.rows_taken is None or not rates_known(history) or not history:
            return
        expected = draws.records * sum(phase.steps * phase.known_rate for phase in history)
        rows = planner.rows_taken - self._public
        self._too_many = rows > _MANY * expected + _ERRORS * math.sqrt(expected)
        if self._too_many:
            planner.block_pass(
                "steps clip more gradients than the sample rate allows: batches are merged or "
                "padded after they are drawn, or hold public rows; state the actual rate, "
                "PrivacyClaim(sample_rate=...), or give public rows a forward pass of their own, "
                "one row per record"
            )


def _private_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that get the batches: Opacus', or without one the top two levels."""
    wrapped = [m for m in module.modules() if isinstance(m, AbstractGradSampleModule)]
    return wrapped or [module, *module.children()]


def count_rows(batch: Any) -> int | None:
    """Return the number of records of a batch; None if it is unknown."""
    try:
        return rows(batch)
    except ValueError:
        return None


# --- The audit of one training: its batches, steps, epochs and report.

#: Largest part of the time since the last evaluated epoch end, or the start, that one may take.
EPOCH_SHARE = 0.02
#: Seconds that the first one is taken to need.
_USUAL = 0.15
#: An uncertain finding is evaluated again once the number of steps grew by this factor.
_AGAIN = 1.5


class AuditRun(RunFacts):
    """Audit of one training.

    Args:
        config: of the audit.
        info: of the training, as far as it is known when the audit is set up.
        ranks: its processes.
        directory: of report and records.
    """

    def __init__(
        self, config: AuditConfig, info: TrainingInfo, ranks: Ranks, directory: str | Path
    ) -> None:
        self.ranks = ranks
        #: Whether the training only tries a few batches: no file is written, and nothing fails.
        self.trial = info.trial
        self.files = ReportFiles(directory) if self.ranks.is_first and not self.trial else None
        self.report: AuditReport | None = None
        self.course = RunCourse.of(info, shuffled=config.shuffled)
        notes = self.course.notes
        self.lints = RunLints(notes, config.significance, self.ranks)
        seed, drawn = self.ranks.shared((config.seed, draw_seed() if config.seed is None else None))
        config = replace(config, seed=seed, drawn_seed=drawn)
        self.optimizers = AuditedOptimizers(config, self.files, info, self.ranks, notes, self.lints)
        self._steps_before = self._found_at_end = 0
        self.look_is_due = False  # whether to evaluate the checks after the present batch
        # What the checks had flagged at the last look, and the step of the next one in any case.
        self._flagged = self._next_look = 0
        self._bounds = TimeShare(_USUAL)  # of the bounds at an epoch's end
        #: Metrics of the whole training, once it has ended.
        self.last_metrics: dict[str, float] = {}
        self.ledger = RunLedger(self.optimizers, self.course, self.lints)
        self.book = self.ledger.book
        MethodHook(
            PrivacyEngine, "make_private_with_epsilon", after=self.course.target.keep, shown=True
        )
        self.examinations = Examinations(config, self.optimizers, self.ranks, self.course)
        #: Watches the weights outside of the steps; begun by the front end.
        live = partial(getattr, self.optimizers, "looks") if ranks.is_first else bool
        self.fence = Fence(self.course.fence, live, self.sessions)

    def take_directory(self, *, again: bool) -> None:
        """Lock the report directory for this training; all processes must call it.

        Args:
            again: whether the report in it may be this training's own.

        Raises:
            UnauditableTraining: nothing can be written there.
        """
        files = self.files
        self.ranks.from_first(lambda: files.acquire(again=again) if files is not None else None)

    @property
    def session(self) -> AuditSession | None:
        """The session of the first private optimizer."""
        return next(iter(self.sessions), None)

    # ------------------------------------------------------------------ resuming

    def go_on_in_its_directory(self) -> None:
        """Change to the directory in which the checkpoint's run began, if there is a checkpoint."""
        if self.files is not None:
            if run := self.optimizers.kept.get("run"):
                self.files.change_to(run)
            for note in self.files.notes:
                self.course.notes.add(note)

    def keep(self, state: dict[str, Any], report: AuditReport | None = None) -> None:
        """Hold a checkpoint's state until the optimizers exist.

        Args:
            state: of the audit, without its checksum.
            report: the last report of that audit, if this process wrote it.
        """
        self.report = report
        self.optimizers.keep(state)

    def forget(self, held: dict[str, Any], state: Any) -> None:
        """Drop the state of this training, because a checkpoint is being loaded.

        Args:
            held: current state of the audit.
            state: of the audit in the checkpoint, which may be another training's.
        """
        self.keep({})
        same = isinstance(state, dict) and state.get("run") == held["run"]
        if not same and self.files is not None:  # the report there is another training's
            self.files.set_report_aside()

    def take_up(self, info: TrainingInfo, optimizers: Sequence[Any]) -> None:
        """Load a checkpoint's audit if there is nothing left to train; keep a report of our own."""
        if self.report is not None or not self.optimizers.kept:
            return
        module = info.module
        self.start(info)
        self.follow(optimizers, module)
        if not self.sessions:
            self.follow_hand_written(module)
        self.optimizers.read_rates()
        self.course.unaudited = self.optimizers.unaudited(module)

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """See `AuditedOptimizers.follow`."""
        self.optimizers.follow(optimizers, module)
        self._go_on(module)

    def follow_hand_written(self, module: torch.nn.Module) -> None:
        """See `AuditedOptimizers.follow_hand_written`."""
        self.optimizers.follow_hand_written(module)
        self._go_on(module)

    def _go_on(self, module: torch.nn.Module) -> None:
        """Load the rest of a checkpoint's state once the optimizers exist."""
        self.ledger.module = module
        kept = self.optimizers.kept
        if self.course.resumed:
            self.optimizers.begin_amid()
        if not kept or not self.sessions:
            return
        try:
            with refusing_what_does_not_fit():
                self.lints.load(kept["lints"])
                self.course.load(kept["course"])
                tested = [self.lints.batches, self.book, *self.optimizers.tests]
                self.course.begin_segment(kept["segments"], self.optimizers.steps, tested)
        except UnauditableTraining:
            self.optimizers.close_records()
            raise
        self.optimizers.keep({})

    def state(self) -> dict[str, Any]:
        """Return the audit's state for a checkpoint: tensors and plain values."""
        return self.optimizers.state(
            lints=self.lints.state(),
            course=self.course.state(steps_of(self.sessions)),
            segments=segment_state(self._settle()),
        )

    @property
    def fits(self) -> EarlierFits:
        """Earlier fits on the same records."""
        return self.course.fits

    def _settle(self) -> RunFacts:
        """Bring ledger and schedule up to date, and return the run for its results."""
        self.examinations.look_at_processing()
        self.ledger.settle()
        return self

    # ------------------------------------------------------------------ the path of a batch

    def admit(self, batch: Any, module: torch.nn.Module) -> Any:
        """Return the batch to train on, with an input canary if one is due."""
        session = self.session if self.optimizers.looks else None
        return batch if session is None else session.admit(batch, module)

    def skipped(self) -> None:
        """Record that automatic optimization skips this step."""
        if self.session is not None and self.optimizers.looks:
            self.session.skip()

    def start(self, info: TrainingInfo) -> None:
        """Read how the loaders sample, and whether earlier steps were not observed."""
        self.optimizers.info = info
        self.lints.start(info.loaders)
        if info.taken_steps > 0 and not self.optimizers.kept:
            self.course.resumed = (
                f"the training was resumed after step {info.taken_steps} from a checkpoint without "
                "this audit's state: earlier steps were not observed"
            )

    def note_settings(self) -> None:
        """Note how the training's settings affect the private optimizers."""
        info, private = self.optimizers.info, [s.step.optimizer for s in self.sessions]
        self.lints.note_settings(private, self.optimizers.attached, info)
        self.course.planned_steps = info.planned_steps

    def look_at_monitors(self) -> None:
        """Warn of decisions by metrics without noise, as far as they are known before step 1."""
        module = self.optimizers.info.module
        if module is not None:
            self.course.fence.logged += self.lints.read(logged_names, module, otherwise=[])
        for sentence in self.fence.look_at_monitors() if self.ranks.is_first else ():
            _log.warning("privacy audit: %s", sentence)

    def start_epoch(self) -> None:
        """Start an epoch: look for gradients left over from the last one."""
        self.lints.start_epoch([session.step.optimizer for session in self.sessions])
        if (passes := self.course.passes) is not None:
            passes.start_pass(steps_of(self.sessions))

    def start_batch(self, epoch: int, batch: Any) -> None:
        """Start a batch; a step that broke off is dropped."""
        self.course.trained_batches += 1
        if (passes := self.course.passes) is not None:
            passes.start_batch(steps_of(self.sessions))
        self._steps_before, plain = self.optimizers.steps, self.optimizers.plain
        plain.records = count_rows(batch) if plain.rows else None
        plain.unknown = plain.unknown if self._steps_before else 0
        if self.course.trained_batches >= self.ledger.due:
            self.ledger.start_batch(batch)
        if self.sessions and self.fence.watches:
            self.fence.start_batch()
        for session in self.sessions:
            session.start_batch(epoch)
            self.ledger.rows_before = session.planner.rows_taken
        if self._steps_before + 1 >= self.examinations.schedule.due:
            self.examinations.start_batch(batch, self._steps_before)
        soon = self._steps_before + 2 >= self.examinations.schedule.due
        self.examinations.earlier = batch if soon else None
        if self.sessions and self.ranks.is_first and not (self.trial or self.fits.begun):
            self._begin_fit()

    def _begin_fit(self) -> None:
        if (module := self.ledger.module) is not None:
            book, fits = self.book, self.fits
            counted = book.told_before > 0 or bool(self.course.resumed)
            fits.begin(module, self.ledger.data, self.files, counted=counted)
            unseen = self.ledger.alike_before - book.taken_before - fits.observed()
            if unseen > 0 and not self.course.resumed:
                self.course.resumed = _UNSEEN.format(unseen)
                self.optimizers.begin_amid()

    def end_batch(self, batch: Any) -> None:
        """End a batch: nothing is trained until the next one."""
        for session in self.sessions:
            session.end_batch()
        steps, replayed = self.optimizers.steps, False
        taken = steps - self._steps_before
        if taken > 1 or self.ledger.looks:
            self.ledger.end_batch(taken, batch)
        waits = bool(self.sessions) and all(session.recorder.waits for session in self.sessions)
        noise, stepped = self.optimizers.noise_multipliers, taken > 0
        regular = waits and taken == 1 and noise == self.lints.regular
        if not regular and self.lints.end_batch(batch, self.sessions, noise, stepped=stepped):
            self.examinations.look_at_schedule(steps)
        if any(session.between.asks for session in self.sessions):
            self.examinations.look_at_schedule(steps, REPLAY_CLIPPING.name)
            for session in self.sessions:
                session.between.asks = False
        self.look_is_due |= self.lints.rate_rose
        if self.examinations.behind is not None or self.examinations.watch is not None:
            asked = self.course.examined.asked(REPLAY_RELEASE.name)
            self.examinations.end_batch(steps, stepped=stepped)
            replayed = self.course.examined.asked(REPLAY_RELEASE.name) > asked
            self.look_is_due |= self.course.examined.found(self.config.significance)
        if self.fence.watches:
            self.fence.end_batch(steps, examined=replayed and self.examinations.whole)
            if self.fence.news:  # something began to change weights within steps
                self.fence.news = False
                self.examinations.schedule.hasten(REPLAY_RELEASE.name)
        if not waits or self.ledger.looks:
            self.look_is_due |= self._has_news()

    def end_step(self) -> bool:
        """Return whether what a step showed is worth a look before its batch ends.

        Of a step that will be examined, the look waits for the replays.
        """
        waits = all(session.recorder.waits for session in self.sessions)
        if not self.sessions or waits or self.examinations.watch is not None:
            return False
        self.look_is_due |= self._has_news()
        return self.look_is_due

    def _has_news(self) -> bool:
        """Return whether a check has flagged since the last look, or an uncertain one is due again.

        It costs almost nothing per step, and all processes decide alike.
        """
        sessions, book, plain = self.sessions, self.book, self.optimizers.without_dp[0]
        steps = plain + self.optimizers.steps
        if self.ranks.several:
            found = sum(session.recorder.flagged_alike for session in sessions)
        else:
            found = sum(s.recorder.flagged + len(s.between.found) for s in sessions)
            found += book.again + book.stale + sum(getattr(s.step, "another", 0) for s in sessions)
        flagged = found + (steps > 0) + (plain > 0)
        if flagged == self._flagged and not (found and steps >= self._next_look):
            return False
        self._flagged, self._next_look = flagged, int(_AGAIN * steps) + 1
        return True

    @property
    def has_own_batches(self) -> bool:
        """Whether no private optimizer has taken a second step on the present batch."""
        return self.optimizers.steps - self._steps_before <= len(self.sessions)

    def leave_loader(self, other: Any) -> None:
        """Note a step on a batch that the followed loader did not yield.

        Args:
            other: a loader that the training iterates instead; None if none is known.
        """
        if self.book.unfetched:
            return
        self.book.unfetched = True
        if other is not None and self.fence.reads_records_of(other):
            self.lints.go_on_with(other)

    def left_out(self, count: int, *, empty: bool) -> None:
        """Note batches of a pass that no step was taken on, and whether empty ones were among them.

        Args:
            count: number of those that are not empty.
            empty: whether empty ones were among them.
        """
        if empty:
            self.course.notes.add(SKIPPED)
        if count:
            self.course.trained_batches += count
            self.lints.irregular = True
            self.examinations.look_at_schedule(self.optimizers.steps)

    def look(self, *, composed: bool = False) -> AuditReport | None:
        """Write and return the report if ``composed``, or if a check but `epsilon` is violated."""
        self.look_is_due = self.lints.rate_rose = False
        if not self.optimizers.steps:
            self.optimizers.read_rates()
        if not self.ranks.from_first(lambda: composed or violated(self._settle())):
            return None
        self.report = self.ranks.from_first(lambda: self._write(self._findings(), complete=False))
        return self.report

    def prepare(self, loss: Any, accumulated: int) -> None:
        """Lay out the canaries before a backward pass, if possible."""
        coming = Backward(loss, accumulated > 1)
        for session in self.sessions:
            if len(self.optimizers.attached) == 1 or session.step.concerns(coming):
                session.prepare(coming)

    def conceal(self) -> None:
        """Hide the canaries after a backward pass: other code sees the batch's gradients alone."""
        for session in self.sessions:
            session.conceal()

    def inject(self, optimizer: Any) -> None:
        """Inject the canaries after a backward pass, before clipping."""
        if (audit := self.optimizers.audit_of(optimizer)) is not None:
            audit.session.inject()

    def end_epoch(
        self, epoch: int, module: torch.nn.Module, *, due: bool = True
    ) -> tuple[dict[str, float], AuditReport | None]:
        """Write the report, if due; return the metrics to log and the report."""
        for session in self.sessions:
            session.planner.end_epoch()
        if self.fence.watches:
            self.fence.end_epoch()
        if self.sessions:
            self.course.unaudited = self.optimizers.unaudited(module)
        self.course.comparison.compare(self.session, self.ranks, draw_state(self.lints.draws_from))
        if not self.ranks.from_first(lambda: due or self._bounds.allow(EPOCH_SHARE)):
            self.course.end_epoch(epoch, self.sessions, self.config)
            return {}, None
        with self._bounds.measured():
            metrics, self.report = self.ranks.from_first(lambda: self._close_epoch(epoch))
        return metrics, self.report

    def _close_epoch(self, epoch: int) -> tuple[dict[str, float], AuditReport]:
        found = self._findings()
        metrics = epoch_metrics(found)
        self.course.end_epoch(epoch, self.sessions, self.config, metrics)
        return metrics, self._write(found, complete=False)

    def end(self, reason: str = "") -> None:
        """Close the records and write the final report; ``reason`` as in `Ended`."""
        self.course.ended_by = reason
        if self.fence.watches:
            self.fence.end()
        self._found_at_end = self.course.fence.size
        self.course.comparison.compare(self.session, self.ranks, draw_state(self.lints.draws_from))
        self.examinations.look_behind(self.optimizers.steps, now=True)
        for session in self.sessions:
            session.recorder.close()
        self.report = self.ranks.from_first(self._close)

    def end_again(self, name: str = "") -> bool:
        """Write the final report again if hooks after it changed weights; return whether it was.

        Args:
            name: of what has run since; empty if watched hooks have.
        """
        if self.fence.watches:
            self.fence.end(name)
        if self.course.fence.size == self._found_at_end:
            return False
        self._found_at_end = self.course.fence.size
        self.report = self._write(self._findings(), complete=not self.course.break_off)
        return True

    def _close(self) -> AuditReport:
        found = self._findings()
        self.last_metrics = epoch_metrics(found)
        report = self._write(found, complete=not self.course.break_off)
        module, fits = self.ledger.module, self.fits
        if module is not None and not self.trial:
            # An accountant that holds earlier fits composes them too.
            whole = self.config.shuffled or not fits.counted_before
            phases = found.epsilons.composed if whole else run_history(self.sessions)
            sound = report.verdict.outcome != "VIOLATION"
            fits.end(module, phases, self.files, steps=report.steps * sound)
        return report

    def break_off(self, why: str) -> None:
        """Record why the training ended early."""
        self.course.break_off = why

    def detach(self) -> None:
        """Remove all hooks."""
        for part in (self.fence, self.lints, self.examinations, self.ledger, self.optimizers):
            part.detach()

    def _findings(self) -> Findings:
        for session in self.sessions:
            session.recorder.digest()
        run = self._settle()
        return run_checks(run, current_epsilons(run))

    def _write(self, found: Findings, *, complete: bool) -> AuditReport:
        for session in self.sessions:
            session.recorder.flush()
        report = self._report_of(found, complete, besides=(REPORT_NAME,))
        if self.files is not None:
            whole = any(session.store and not session.store.trouble for session in self.sessions)
            if self.files.write(REPORT_NAME, report.save, beside=whole) is None:
                return self._report_of(found, complete)  # states that it was not written
        return report

    def _report_of(
        self, found: Findings, complete: bool, besides: Sequence[str] = ()
    ) -> AuditReport:
        """Return the report, including which other files could not be written."""
        if self.files is not None:
            stores = [session.store for session in self.sessions if session.store is not None]
            troubles = [store.trouble for store in stores if store.trouble]
            failed = [text for name, text in self.files.unwritten.items() if name not in besides]
            self.course.unwritten = [*troubles, *failed]
        return build_report(found, complete=complete)
