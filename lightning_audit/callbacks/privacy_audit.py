"""`PrivacyAudit`: audits the DP-SGD of an ordinary Lightning training, from inside."""

from __future__ import annotations

import dataclasses
import logging
import operator
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lightning_audit import _validate
from lightning_audit.callbacks._namespaces import Callback, MisconfigurationException
from lightning_audit.callbacks.arguments import (
    allowed_of,
    canaries_of,
    claimed_of,
    delta_of,
    oversize_of,
    seed_of,
)
from lightning_audit.callbacks.checkpoint import (
    VERSION,
    accountant_history,
    restore_accountant,
    to_arrays,
    to_tensors,
)
from lightning_audit.callbacks.evaluation import (
    Epsilons,
    RunFacts,
    Terms,
    build_report,
    current_epsilons,
    epoch_metrics,
    run_checks,
)
from lightning_audit.callbacks.refusals import chosen_optimizer, refuse_hand_written, refuse_trainer
from lightning_audit.callbacks.session import AuditSession, SessionSettings
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.checks.integrity import noise_restarted_result
from lightning_audit.checks.resolution import Resolution
from lightning_audit.claims import PrivacyClaim
from lightning_audit.dpsgd.lints import fingerprints, loader_facts
from lightning_audit.dpsgd.opacus import OpacusStep, accountant_link, innermost, private_optimizer
from lightning_audit.dpsgd.protocol import UnsupportedOptimizer
from lightning_audit.report.console import print_report
from lightning_audit.results import (
    AuditReport,
    CheckResult,
    InconclusiveAudit,
    PrivacyViolation,
    describe,
)
from lightning_audit.store import REPORT_NAME, ObservationStore, RecordHeader, set_aside

if TYPE_CHECKING:
    import pytorch_lightning as pl

_log = logging.getLogger(__name__)

_ON_VIOLATION = ("raise", "stop", "warn")
_ON_INCONCLUSIVE = ("raise", "warn")
_NO_ACCOUNTANT = (
    "no accountant feeds on the optimizer's steps, so no epsilon is composed; each step is audited "
    "all the same"
)
_FULL_PRECISION = ("32-true", "64-true", "bf16-true")
#: Largest shift that a correctly clipped canary shows where low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class PrivacyAudit(Callback):
    """Audits the privacy of a DP-SGD training while it runs.

    Each step carries canary gradients through the user's own clipping and noise; what comes out
    is read before the update, and the canaries are taken out again, so that the trained model is
    what it would have been. At each epoch's end lower bounds on epsilon are logged; when the
    training ends, a verdict is given: PASS, VIOLATION or INCONCLUSIVE.

    Without arguments everything is read off the optimizer and its accountant, and the claim is
    the accountant's own epsilon.

    It is a callback of `pytorch_lightning` and of `lightning.pytorch`. In the YAML of a
    LightningCLI its ``class_path`` is ``lightning_audit.PrivacyAudit``; ``claim`` and
    ``resolution`` take their arguments with a ``class_path`` or without, and each of the
    ``canaries`` has one, such as ``lightning_audit.canaries.Dirac`` or ``Dirac``.

    Args:
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        delta: the delta of all epsilons, in (0, 1); None for the claim's, or 1e-5.
        claim: what cannot be read off the optimizer, or shall be tested instead of what it states.
        canaries: the canaries of an audited step; None for the default mix.
        num_canaries: size of the default mix, >= 1; not used where ``canaries`` are given.
        oversize: norm of the canaries over the clipping norm, >= 1. A canary of norm 1 is blind
            to clipping faults.
        every_n_steps: canaries enter each n-th step; None for every step, and for fewer after the
            first 500 where per-sample gradients must be copied for it.
        significance: probability of a false alarm over the whole run, in (0, 1).
        bound_significance: probability that a logged lower bound is wrong, in (0, 1).
        resolution: what the audit must be able to see before it may pass; None for noise of 0.8
            times the claim and a clipping norm twice too large.
        allow: names of findings that shall not fail the run; they are still shown.
        on_violation: "raise" `PrivacyViolation` when the training has ended (it is asked to stop
            at the end of the epoch), "stop" the training only, or "warn" only.
        on_inconclusive: "warn", or "raise" `InconclusiveAudit` when the training has ended.
        report_dir: where report and observations go; None for ``default_root_dir/audit``.
        log_prefix: first part of the names of the logged metrics.
        seed: of the audit's own coins; None to draw one. It is written to the report.

    Raises:
        ValueError: an argument is outside its range, or, when training starts, a canary names a
            tensor that is not trained.
        MisconfigurationException: when training starts, if this Trainer or optimizer cannot be
            audited.
        PrivacyViolation: from ``Trainer.fit``, after the last checkpoint, if the claim is false.

    Example:
        >>> PrivacyAudit(claimed_epsilon=8.0, delta=1e-5).claimed_epsilon
        8.0
    """

    def __init__(
        self,
        claimed_epsilon: float | None = None,
        delta: float | None = None,
        claim: PrivacyClaim | None = None,
        canaries: Sequence[GradientCanary] | None = None,
        num_canaries: int = 8,
        oversize: float = 1000.0,
        every_n_steps: int | None = None,
        significance: float = 1e-3,
        bound_significance: float = 0.05,
        resolution: Resolution | None = None,
        allow: Sequence[str] = (),
        on_violation: Literal["raise", "stop", "warn"] = "raise",
        on_inconclusive: Literal["raise", "warn"] = "warn",
        report_dir: str | Path | None = None,
        log_prefix: str = "audit",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.claimed_epsilon = claimed_of(claimed_epsilon, claim)
        self.delta = delta_of(delta, claim)
        self.claim = claim
        self.canaries = canaries_of(canaries, num_canaries)
        self.oversize = oversize_of(oversize)
        self.every_n_steps = (
            None
            if every_n_steps is None
            else _validate.positive_int("every_n_steps", every_n_steps)
        )
        self.significance = _validate.open_unit("significance", significance, "e.g. 0.001")
        self.bound_significance = _validate.open_unit(
            "bound_significance", bound_significance, "e.g. 0.05"
        )
        self.resolution = resolution or Resolution()
        self.allow = allowed_of(allow)
        self.on_violation = _validate.one_of("on_violation", on_violation, _ON_VIOLATION)
        self.on_inconclusive = _validate.one_of(
            "on_inconclusive", on_inconclusive, _ON_INCONCLUSIVE
        )
        self.report_dir = report_dir
        self.log_prefix = log_prefix
        self.seed = seed_of(seed)
        #: State of a checkpoint from which this training goes on, or of the training that ended.
        self._kept: dict[str, Any] = {}
        self._reset()

    def _reset(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._session: AuditSession | None = None
        self._facts = RunFacts()
        self._plain_handles: list[Any] = []
        self._attached: list[Any] = []
        self._report: AuditReport | None = None
        self._directory: Path | None = None
        self._signal = 1.0
        self._untrained: dict[str, tuple[float, float]] = {}
        self._ended = False
        self._told = False
        self._run = uuid.uuid4().hex
        self._first_noise: str | None = None
        self._noise_known = False

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training; None before the first epoch has ended."""
        return self._report

    # ------------------------------------------------------------------ set-up and attachment

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what cannot be audited, before anything is trained."""
        if stage != "fit":
            return
        self._reset()
        self._kept = {}  # Lightning loads a checkpoint after this hook
        audits = [callback for callback in trainer.callbacks if isinstance(callback, PrivacyAudit)]  # type: ignore[attr-defined]
        refuse_trainer(trainer, len(audits))
        if not _is_trial(trainer):
            root = self.report_dir or Path(trainer.default_root_dir) / "audit"
            self._directory = Path(root)
            if self._directory.is_dir():
                # A gate must never read the report of an earlier run; its record may go on.
                set_aside(self._directory, but_the_record=True)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the optimizers and read how the loader samples."""
        if trainer.global_step > 0 and not self._kept.get("session"):
            self._facts.resumed = (
                f"the training was resumed at step {trainer.global_step} from a checkpoint without "
                "this audit's state: earlier steps were not observed"
            )
        self._facts.loader = loader_facts(trainer.train_dataloader)
        self._attach(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Follow optimizers that were made anew."""
        if self._session is not None:
            self._session.start_batch()
        self._follow(trainer, pl_module)
        if self._session is None:
            # Not before the first batch: a callback may make the training private until then.
            refuse_hand_written(self.claim)

    def _follow(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the optimizers that are in use now, unless that was done."""
        now = trainer.optimizers
        if len(now) != len(self._attached) or any(map(operator.is_not, now, self._attached)):
            self._attach(trainer, pl_module)

    def _attach(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for handle in self._plain_handles:
            handle.remove()
        self._attached = list(trainer.optimizers)
        plain = [innermost(o) for o in trainer.optimizers if private_optimizer(o) is None]
        self._plain_handles = [o.register_step_post_hook(self._count_plain) for o in plain]
        private = chosen_optimizer(trainer)
        if private is None:
            return
        names = {id(p): name for name, p in pl_module.named_parameters()}
        try:
            step = OpacusStep(private, names, pl_module.modules())
        except UnsupportedOptimizer as error:
            raise MisconfigurationException(str(error)) from error
        self._signal = _SIGNALS.get(str(trainer.precision).split("-")[0], 1.0)
        self._facts.accountant = accountant_link(private)
        stated = self.claim is not None and self.claim.sample_rate is not None
        if (
            self._facts.accountant is None
            and not stated
            and _NO_ACCOUNTANT not in self._facts.notes
        ):
            self._facts.notes.append(_NO_ACCOUNTANT)
        if self._session is None:
            self._untrained = fingerprints(pl_module, step.params)
            self._start(step)
        elif not self._session.follow(step):
            raise MisconfigurationException(
                "PrivacyAudit cannot follow an optimizer over other parameters during a training; "
                "keep the parameters and change their learning rates instead."
            )

    def _start(self, step: OpacusStep) -> None:
        """Begin the audit of a training, or go on with the one that a checkpoint holds."""
        kept = self._kept
        if kept.get("session"):
            self.seed, self._run = kept["seed"], kept["run"]
            self._rng = np.random.default_rng(self.seed)
        self._session = self._new_session(step)
        kind = self._facts.loader.kind if self._facts.loader else "unknown"
        self._session.track_batch_sizes = kind == "unknown"
        if not kept.get("session"):
            return
        try:
            self._session.load(to_arrays(kept["session"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MisconfigurationException(
                f"PrivacyAudit cannot go on from this checkpoint: {error}"
            ) from error
        self._facts.load(kept["facts"])
        self._first_noise = kept["first_noise"]
        self._untrained = {name: (a, b) for name, (a, b) in kept["untrained"].items()}
        restore_accountant(self._facts.accountant, kept["accountant"])
        self._kept = {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the audit; it loads under ``weights_only=True``."""
        if self._session is None:
            return self._kept
        return {
            "version": VERSION,
            "run": self._run,
            "seed": self.seed,
            "session": to_tensors(self._session.state()),
            "facts": self._facts.state(),
            "first_noise": self._first_noise,
            "untrained": {name: list(sums) for name, sums in self._untrained.items()},
            "accountant": accountant_history(self._facts.accountant),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the optimizers are there."""
        version = state_dict.get("version", VERSION)
        if version > VERSION:
            raise ValueError(
                f"the checkpoint's audit has version {version}, this lightning-audit reads up to "
                f"{VERSION}; upgrade lightning-audit to go on from it."
            )
        self._kept = dict(state_dict)

    def _new_session(self, step: OpacusStep) -> AuditSession:
        settings = SessionSettings(
            canaries=self.canaries,
            oversize=self.oversize,
            every_n_steps=self.every_n_steps,
            significance=self.significance,
            claim=self.claim,
            signal=self._signal,
        )
        open_store = self._open_store if self._directory is not None else None
        return AuditSession(step, settings, self._rng, self._current_rate, open_store)

    def _open_store(self, header: RecordHeader) -> ObservationStore:
        assert self._directory is not None
        if self._kept.get("session"):
            entries = self._kept["session"]["entries"]
            store = ObservationStore.resume(self._directory, header, self._run, entries)
            if store is not None:
                return store
            self._facts.notes.append(
                f"the record of the first {entries} steps is not in {self._directory}; the checks "
                "go on from the checkpoint's sums, the record from here"
            )
        return ObservationStore(self._directory, header, self._run)

    def _current_rate(self, accumulated: int) -> float | None:
        """Sample rate of the present step: stated, or told to the accountant."""
        link = self._facts.accountant
        if self.claim is not None and self.claim.sample_rate is not None:
            self._facts.sample_rate = self.claim.sample_rate
            return self.claim.sample_rate
        if link is None:
            return None
        self._facts.sample_rate = link.sample_rate
        return min(link.sample_rate * accumulated, 1.0)

    def _count_plain(self, optimizer: Any, *_: Any) -> None:
        self._facts.plain_steps += 1
        self._facts.plain_name = type(optimizer).__name__

    # ------------------------------------------------------------------ each step and epoch

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Any
    ) -> None:
        """Lay the canaries' rows out before Opacus fills in the others, which spares a copy."""
        # The module, and callbacks after this one, had their on_train_batch_start since.
        self._follow(trainer, pl_module)
        # Where batches accumulate the step comes later; under autocast the rows' type is unknown.
        whole = trainer.accumulate_grad_batches == 1 and str(trainer.precision) in _FULL_PRECISION
        if self._session is not None and whole:
            self._session.epoch = trainer.current_epoch
            self._session.prepare()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Put the canaries in: after backward, before clipping."""
        session = self._session
        if session is not None and private_optimizer(optimizer) is session.step.optimizer:
            session.epoch = trainer.current_epoch
            session.inject()
            if not self._noise_known:
                self._look_at_noise(session)

    def _look_at_noise(self, session: AuditSession) -> None:
        """See whether the noise of a resumed training starts as it did at the very first step."""
        self._noise_known = True
        state = session.step.noise_state()
        if not session.recorder.steps:
            self._first_noise = state
        else:
            again = state is not None and state == self._first_noise
            self._facts.noise_restarted = self._facts.noise_restarted or again
            if again:
                warnings.warn(noise_restarted_result(restarted=True).message, stacklevel=2)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the bounds; ask the training to stop when the claim is false."""
        if self._session is not None:
            self._session.end_epoch()
            now = fingerprints(pl_module, self._session.step.params)
            self._facts.unaudited = tuple(
                name for name, sums in self._untrained.items() if now.get(name, sums) != sums
            )
        epsilons, checks = self._evaluate()
        metrics = epoch_metrics(self._session, epsilons, checks)
        row = {"epoch": trainer.current_epoch, **metrics}
        # A run that goes on from the middle of an epoch's end meets that end again.
        known = [old for old in self._facts.epochs if old["epoch"] != row["epoch"]]
        self._facts.epochs = [*known, row]
        pl_module.log_dict({f"{self.log_prefix}/{name}": value for name, value in metrics.items()})
        self._write_report(epsilons, checks, complete=False)
        if self._report and self._report.verdict.outcome == "VIOLATION":
            if not self._told:
                _log.error("privacy audit: %s", self._report.verdict.summary)
                self._told = True
            if self.on_violation in ("raise", "stop") and not _is_trial(trainer):
                trainer.should_stop = True

    # ------------------------------------------------------------------ the end

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the report; raising waits until every other callback has had its end."""
        self._end()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the report, and raise if the verdict asks for it."""
        if not self._ended:  # nothing was trained, so that the training had no end either
            self._end()
        self._detach()
        report = self._report
        if report is None:
            return
        if trainer.is_global_zero:
            path = self._directory / REPORT_NAME if self._directory else None
            print_report(report, path)
            if path is None:
                print("Report: none is written in a fast_dev_run")
        if _is_trial(trainer):
            return
        if report.verdict.outcome == "VIOLATION" and self.on_violation == "raise":
            raise PrivacyViolation(report)
        if report.verdict.outcome == "INCONCLUSIVE" and self.on_inconclusive == "raise":
            raise InconclusiveAudit(report)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the user's training as it was found, and what was recorded readable."""
        if not self._ended and self._attached:
            self._facts.break_off = f"the training broke off with {type(exception).__name__}"
            try:
                self._end()
                self._tell_of_report()
            except Exception:  # the user must see the training's own exception, not this one
                _log.exception("the audit's report could not be written")
        self._detach()
        self._release()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take all hooks off and let go of the training; the report stays."""
        self._detach()
        if stage == "fit":
            self._release()

    def _end(self) -> None:
        self._ended = True
        self._write_report(*self._evaluate(), complete=not self._facts.break_off)
        if self._session is not None and self._session.store is not None:
            self._session.recorder.digest()
            self._session.store.close()

    def _evaluate(self) -> tuple[Epsilons, tuple[CheckResult, ...]]:
        epsilons = current_epsilons(self._session, self._facts, self._terms)
        return epsilons, run_checks(self._session, self._facts, self._terms, epsilons)

    def _write_report(
        self, epsilons: Epsilons, checks: tuple[CheckResult, ...], *, complete: bool
    ) -> None:
        self._report = build_report(
            self._session, self._facts, self._terms, epsilons, checks, complete=complete
        )
        if self._directory is None:
            return
        if self._session is not None and self._session.store is not None:
            self._session.recorder.digest()
            self._session.store.flush()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._report.save(self._directory / REPORT_NAME)

    def _tell_of_report(self) -> None:
        if self._report is not None and self._directory is not None:
            path = self._directory / REPORT_NAME
            _log.warning("privacy audit: %s\nReport: %s", describe(self._report.verdict), path)

    def _release(self) -> None:
        """Keep no optimizer and no file: the callback can be copied and pickled again."""
        # Checkpoints may be saved after the training, too.
        self._kept = self.state_dict()
        self._session = None
        self._attached = []
        self._facts = RunFacts()

    def _detach(self) -> None:
        for handle in self._plain_handles:
            handle.remove()
        self._plain_handles = []
        if self._session is not None:
            self._session.detach()

    @property
    def _terms(self) -> Terms:
        return Terms(
            epsilon=self.claimed_epsilon,
            delta=self.delta,
            significance=self.significance,
            bound_significance=self.bound_significance,
            resolution=self.resolution,
            oversize=self.oversize,
            allow=self.allow,
            settings=self._settings(),
        )

    def _settings(self) -> dict[str, Any]:
        """The arguments, as they go into the report."""
        return {
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "claim": self.claim.to_dict() if self.claim else None,
            "canaries": [repr(canary) for canary in self.canaries],
            "oversize": self.oversize,
            "every_n_steps": self.every_n_steps,
            "significance": self.significance,
            "bound_significance": self.bound_significance,
            "resolution": dataclasses.asdict(self.resolution),
            "allow": self.allow,
            "on_violation": self.on_violation,
            "on_inconclusive": self.on_inconclusive,
            "seed": self.seed,
        }


def _is_trial(trainer: pl.Trainer) -> bool:
    """Whether this is a fast_dev_run: everything is run, nothing written, nothing failed."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # set by the Trainer at run time
