"""An examination of one step, for a unit test: the definition of DP-SGD, tested by replay."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.callbacks._namespaces import (
    Callback,
    MisconfigurationException,
    refused_as_lightning_does,
)
from lightning_audit.callbacks.lightning_step import LightningStep
from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.manual import stated_claim
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.examine.answers import Answer
from lightning_audit.examine.questions import QUESTIONS, ask_all
from lightning_audit.examine.step_replay import StepReplay
from lightning_audit.examine.training_state import TrainingState
from lightning_audit.run.optimizer_refusals import hand_written_step
from lightning_audit.taps.method_hook import MethodHook

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule, Trainer

_log = logging.getLogger(__name__)


class Examination(Callback):
    """Tests the definition of DP-SGD on one step of a training, in a unit test.

    The step is replayed beside the training with the same random numbers and one record more or
    less, with gradients of the audit's own, and with one release; then all is put back, so that
    the training goes on as it would have:

        examination = lightning_audit.Examination()
        Trainer(max_steps=2, callbacks=[examination]).fit(module)
        assert examination.passed, examination

    A few steps of a small batch will do. What cannot be asked of a training has its reason in
    `answers`, and is no failure; `PrivacyAudit` tests the noise, the sampling and the accounting.

    Args:
        claim: of a training whose DP-SGD is written by hand, with noise multiplier, clipping norm
            and expected batch size; None for Opacus.
        after: number of the logical step that is examined, from 1; that of a batch of fewer than
            three records waits for the next.
        seed: of the replays.

    Raises:
        ValueError: an argument is of another type or outside its range.
    """

    def __init__(self, claim: PrivacyClaim | None = None, *, after: int = 1, seed: int = 0) -> None:
        super().__init__()
        if claim is not None and not isinstance(claim, PrivacyClaim):
            raise ValueError(f"claim={claim!r} must be a PrivacyClaim, or None for Opacus.")
        self.claim = claim
        self.after = _validate.positive_int("after", after)
        self.seed = seed
        #: What came of each question, by its name; empty before a step was examined.
        self.answers: Mapping[str, Answer] = {}
        self._steps = 0
        self._forget()

    @property
    def passed(self) -> bool:
        """Whether something was asked, and nothing was found."""
        asked = any(answer.asked for answer in self.answers.values())
        return asked and not any(answer.findings for answer in self.answers.values())

    def __str__(self) -> str:
        if not self.answers:
            return "no step was examined: none had a batch of three records"
        return "\n".join(
            f"{name}: {answer.describe()}" + (f" ({QUESTIONS[name]})" * bool(answer.findings))
            for name, answer in self.answers.items()
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot be examined, before anything is trained."""
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"Examination replays the steps of one process, the Trainer has "
                f"{trainer.world_size}; train with devices=1 to examine."
            )
        others = [c for c in trainer.callbacks if isinstance(c, PrivacyAudit | Examination)]  # type: ignore[attr-defined]
        if len(others) > 1:
            names = ", ".join(type(other).__name__ for other in others)
            raise MisconfigurationException(
                f"the Trainer has {names}: each would replay or read the other's steps; give it "
                "one of them."
            )
        self.answers, self._steps = {}, 0
        self._forget()

    @refused_as_lightning_does
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Follow the optimizer, to see which batches make up a step."""
        if not self.answers and not self._hooks:
            self._watch(self._adapter(trainer, pl_module))

    @refused_as_lightning_does
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Examine the step that has just been taken, if it is its turn."""
        if self.answers:
            return
        self._batches.append(batch)
        if not self._stepped:
            return
        batches, skips, self._steps = self._batches, self._skips, self._steps + 1
        self._forget()
        if self._steps >= self.after:
            answers = self._examine(trainer, pl_module, batches, skips)
            small = all("is too small" in answer.reason for answer in answers.values())
            self.answers = {} if small else answers

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let go of the training."""
        self._forget()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Let go of the training."""
        self._forget()

    # ------------------------------------------------------------------ the step

    def _examine(
        self, trainer: Any, module: Any, batches: list[Any], skips: list[bool]
    ) -> dict[str, Answer]:
        private = [o for o in map(private_optimizer, trainer.optimizers) if o is not None]
        if len(private) > 1:
            reason = f"{len(private)} private optimizers step together"
            return {name: Answer(reason=reason) for name in QUESTIONS}
        user = LightningStep(trainer, module, [self])
        step = self._adapter(trainer, module)
        state = TrainingState(user.roots(), [self, trainer])
        replay = StepReplay(user.take, module, step, self._claim_of(step), state, skips)
        low = str(trainer.precision) not in ("32-true", "64-true")
        try:
            answers = ask_all(replay, batches, self.seed, low_precision=low)
        except Exception as error:  # the examination's own troubles end no training
            _log.exception("the step could not be examined")
            return {name: Answer(reason=f"{type(error).__name__}: {error}") for name in QUESTIONS}
        for lost in state.lost:
            _log.warning("the training is not as it was before the examination: %s", lost)
        return answers

    def _adapter(self, trainer: Any, module: Any) -> DPSGDStep:
        private = next(filter(None, map(private_optimizer, trainer.optimizers)), None)
        if private is not None:
            names = {id(p): name for name, p in module.named_parameters()}
            return opacus_step(private, names, module.modules())
        if self.claim is None:
            raise MisconfigurationException(
                "no optimizer is Opacus' DPOptimizer, and claim=None; state what a hand-written "
                "DP-SGD claims: Examination(claim=PrivacyClaim(noise_multiplier=..., "
                "max_grad_norm=..., expected_batch_size=...))."
            )
        return hand_written_step(self.claim, trainer.optimizers, module)

    def _claim_of(self, step: DPSGDStep) -> StepClaim:
        """What is claimed of a step, before it is replayed."""
        return step.claim(1) if self.claim is None else stated_claim(self.claim)

    def _watch(self, step: DPSGDStep) -> None:
        """See steps of the optimizer, and which of its calls skip one."""
        private = private_optimizer(step.optimizer)
        if private is not None:

            def note_skip() -> None:
                self._skips.append(bool(getattr(private, "_is_last_step_skipped", False)))

            self._hooks.append(MethodHook(private, "pre_step", after=note_skip))

        def note_step(*_: Any) -> None:
            self._stepped = True

        self._hooks.append(step.inner.register_step_post_hook(note_step))

    def _forget(self) -> None:
        """Wait for the next step, with no hook."""
        for hook in getattr(self, "_hooks", []):
            hook.remove()
        self._hooks: list[Any] = []
        self._batches: list[Any] = []
        self._skips: list[bool] = []
        self._stepped = False
