"""An examination of one step for unit tests: the definition of DP-SGD, tested by replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.callbacks._namespaces import (
    MisconfigurationException,
    OneFit,
    refused_as_lightning_does,
)
from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.callbacks.trainer import LightningStep, training_info
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.replay import REPLAY_SENSITIVITY, Answer
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.hand_written import stated_claim
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.examiner import FACTORS, NAMES, Examined, examine_step, state_before
from lightning_audit.replay.order import Before, Order
from lightning_audit.replay.taken_step import StepWatch, TakenStep
from lightning_audit.replay.training_state import TrainingState
from lightning_audit.run.optimizers import hand_written_step

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule, Trainer


class Examination(OneFit):
    """Test of the definition of DP-SGD on one step of a training, for unit tests.

    The step is replayed with the same random numbers and one record more or less, with crafted
    gradients, and with a fixed release. Then all state is restored, so that the training continues
    as without the callback:

        examination = lightning_audit.Examination()
        Trainer(max_steps=2, callbacks=[examination]).fit(module)
        assert examination.passed, examination

    A few steps on small batches are enough. A question that cannot be tested has its reason in
    `answers` and is no failure. `PrivacyAudit` tests the noise, the sampling and the accounting.

    Args:
        claim: for hand-written DP-SGD, with noise multiplier, clipping norm and expected batch
            size; None for Opacus.
        after: number of the logical step to examine, from 1; a step on fewer than three records is
            skipped for the next one.
        seed: of the replays.

    Raises:
        ValueError: an argument is of the wrong type or outside its range.
    """

    def __init__(self, claim: PrivacyClaim | None = None, *, after: int = 1, seed: int = 0) -> None:
        super().__init__()
        if claim is not None and not isinstance(claim, PrivacyClaim):
            raise ValueError(f"claim={claim!r} must be a PrivacyClaim, or None for Opacus.")
        self.claim = claim
        self.after = _validate.positive_int("after", after)
        self.seed = seed
        #: The answer to each question, by its name; empty before a step was examined.
        self.answers: Mapping[str, Answer] = {}
        #: File of the user's optimizer or step; empty if neither is in user code.
        self.where = ""
        self._steps = 0
        self._watch: StepWatch | None = None
        self._user: LightningStep | None = None
        self._before: TrainingState | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle: the answers, not the training."""
        return super().__getstate__() | {"_watch": None, "_user": None, "_before": None}

    @property
    def passed(self) -> bool:
        """Whether a question was tested, and none has a finding."""
        asked = any(answer.asked for answer in self.answers.values())
        return asked and not any(answer.findings for answer in self.answers.values())

    def __str__(self) -> str:
        if not self.answers:
            few = f"{self._steps} steps were taken, after={self.after}"
            none = "none had a batch of three records"
            return f"no step was examined: {few if self._steps < self.after else none}"
        where = f"; look at {self.where}" if self.where else ""
        return "\n".join(
            f"{name}: {answer.describe()}"
            + (f" ({REGISTRY[name].heading(failed=True)}){where}" * bool(answer.findings))
            for name, answer in sorted(self.answers.items(), key=lambda item: not item[1].findings)
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a training that cannot be examined, before it starts."""
        if stage != "fit":
            return
        self._take(trainer)
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"Examination replays the steps of one process only, the Trainer has "
                f"{trainer.world_size}; train with devices=1 to examine."
            )
        others = [c for c in trainer.callbacks if isinstance(c, PrivacyAudit | Examination)]  # type: ignore[attr-defined]
        if len(others) > 1:
            names = ", ".join(type(other).__name__ for other in others)
            raise MisconfigurationException(
                f"the Trainer has {names}: each would replay or read the other's steps; use only "
                "one of them."
            )
        self.answers, self._steps = {}, 0
        self._forget()

    @refused_as_lightning_does
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Watch the optimizer, to find which batches make up a step."""
        if self.answers:
            return
        if self._watch is None:
            self._user = LightningStep(trainer, pl_module, self)
            self._user.begin()
            due = self._steps + 1 >= self.after
            self._before = state_before(self._user) if due else None
            self._watch = StepWatch(self._adapter(trainer, pl_module))
        self._watch.start_batch(batch)

    @refused_as_lightning_does
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Examine the step that was just taken, if it is due."""
        taken = self._watch.end_batch() if self._watch is not None else None
        if taken is None:
            return
        self._steps += 1
        if self._steps >= self.after:
            self._watch.remove()  # type: ignore[union-attr]
            found = self._examine(trainer, pl_module, taken)
            self.answers = {} if found.waits else found.answers
        self._forget()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the hooks."""
        self._forget()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the hooks, unless this Trainer was refused the callback."""
        if self._serves(trainer):
            self._forget()

    # ------------------------------------------------------------------ the step

    def _examine(self, trainer: Any, module: Any, taken: TakenStep) -> Examined:
        private = [o for o in map(private_optimizer, trainer.optimizers) if o is not None]
        if len(private) > 1:
            reason = f"{len(private)} private optimizers step together"
            return Examined({name: Answer(reason=reason) for name in NAMES if name != FACTORS})
        step = self._adapter(trainer, module)
        accumulated = 1 if any(taken.skips) else len(taken.batches)

        def claimed() -> StepClaim:
            return step.claim(accumulated) if self.claim is None else stated_claim(self.claim)

        user, before = self._user, None if self._before is None else Before(self._before, claimed)
        assert user is not None
        code = training_info(trainer).own_code(trainer.optimizers)
        self.where = code.places(REPLAY_SENSITIVITY.name)
        return examine_step(Order(user, step, claimed(), taken, self.seed, before=before))

    def _adapter(self, trainer: Any, module: Any) -> DPSGDStep:
        private = next(filter(None, map(private_optimizer, trainer.optimizers)), None)
        if private is not None:
            names = {id(p): name for name, p in module.named_parameters()}
            return opacus_step(private, names, module.modules())
        if self.claim is None:
            raise MisconfigurationException(
                "no optimizer is Opacus' DPOptimizer, and claim=None; state the claim of a "
                "hand-written DP-SGD: Examination(claim=PrivacyClaim(noise_multiplier=..., "
                "max_grad_norm=..., expected_batch_size=...))."
            )
        return hand_written_step(self.claim, trainer.optimizers, module, trainer.world_size)

    def _forget(self) -> None:
        """Remove the hook, and what was kept; the next batch starts a new watch."""
        if self._watch is not None:
            self._watch.remove()
        self._watch = self._user = self._before = None
