"""Audits the DP-SGD of a Hugging Face `Trainer`, by a callback or around its `train`.

The audit is that of a plain loop (`loops.audit`), which follows the private optimizer and not the
Trainer's events. From the Trainer it gets its step, for replays, its logs, its checkpoints and its
end.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from lightning_audit.config import AuditConfig, named_as_here
from lightning_audit.files import with_extra
from lightning_audit.hooks.boundary import entry
from lightning_audit.loops.attaching import attach as attach_to_loop
from lightning_audit.loops.audit import Audit
from lightning_audit.loops.training import Unattached, listed
from lightning_audit.results.audit_report import (
    AuditReport,
    PrivacyViolation,
    UnauditableTraining,
)

try:
    from transformers import DataCollatorWithFlattening, PreTrainedModel, Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        f"lightning_audit.transformers needs transformers: {with_extra('transformers')}"
    ) from error

_log = logging.getLogger(__name__)

#: File of the audit's state in a checkpoint's folder.
STATE_NAME = "privacy_audit.pt"
#: Label of a token that has none.
_NO_LABEL = -100
#: Methods of the Trainer in which the code of a training runs.
_OF_TRAINING = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")

_TOKENS = "the number of labelled tokens of the batch (num_items_in_batch)"
_NORM = (
    "max_grad_norm of TrainingArguments clips the raw gradient of the batch, which the private "
    "step does not use, and the Trainer logs its norm, which is not private: set max_grad_norm=0"
)


class PrivacyAuditCallback(TrainerCallback):
    """Audits the trainings of a Hugging Face `Trainer` whose optimizer is Opacus'.

        trainer = Trainer(..., callbacks=[PrivacyAuditCallback(claimed_epsilon=8.0)])
        trainer.train()

    The Trainer gets optimizer and loader of `make_private`: ``optimizers=(optimizer, scheduler)``,
    and a ``get_train_dataloader`` that returns the loader. `PrivacyViolation` is raised from
    ``trainer.train()``. The audit's state is saved in each checkpoint's folder and loaded by
    ``resume_from_checkpoint``; its metrics are logged by ``trainer.log``. See
    docs/hugging-face.md.

    Args:
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        arguments: others of `lightning_audit.attach`, such as ``delta`` and ``on_violation``.
            ``report_dir`` is ``audit`` in the Trainer's ``output_dir`` by default.

    Raises:
        TypeError: there is no such argument.
        ValueError: an argument is outside its range.
        UnauditableTraining: from ``train``, if this Trainer cannot be audited; the message says
            what to change.
    """

    @partial(named_as_here, of=attach_to_loop)
    def __init__(self, claimed_epsilon: float | None = None, **arguments: Any) -> None:
        called = inspect.signature(attach_to_loop).bind(
            None, None, None, claimed_epsilon, **arguments
        )
        called.apply_defaults()
        #: The audit's configuration.
        self.config = AuditConfig.of_arguments(attach_to_loop, called.arguments)
        self._given = {"claimed_epsilon": claimed_epsilon, **arguments}
        #: The audit of the latest training; None before it begins.
        self.audit: Audit | None = None
        # The report of a training that was refused before its first step.
        self._refused: AuditReport | None = None
        self._trainer: Any = None
        # Whether the loss is divided by the labelled tokens of a batch, and no batch has shown it.
        self._couples = False

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training; None before its first epoch has ended."""
        return self._refused if self.audit is None else self.audit.report

    def __enter__(self) -> PrivacyAuditCallback:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close(error)

    # ------------------------------------------------------------------ the Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        """Attach to the training, with the state of the checkpoint that it resumes."""
        self._close(RuntimeError())  # an earlier training, of which no end was seen
        self.audit, self._refused, self._couples = None, None, False
        try:
            loader, given, couples = self._look_at(args, state, now)
        except UnauditableTraining:
            raise
        except Exception as error:  # the audit's own
            place = self._given.get("report_dir") or Path(args.output_dir) / "audit"
            self.audit = cast("Audit", Unattached(self.config, Path(place), error))
            return
        trainer = self._trainer
        try:
            self.audit = attach_to_loop(trainer.model_wrapped, trainer.optimizer, loader, **given)
        except PrivacyViolation as error:
            self._refused = error.report
            raise
        if args.max_grad_norm > 0.0:
            self.audit._note(_NORM)
        for name in _OF_TRAINING:
            setattr(trainer, name, self._ended_by_errors(getattr(trainer, name)))
        self._couples = couples and not self.audit._failure

    def _look_at(self, args: Any, state: Any, now: Any) -> tuple[Any, dict[str, Any], bool]:
        """Find the Trainer; return its loader, the arguments of `attach`, and its `_couples`."""
        frame = _trainers_frame()
        self._trainer = trainer = frame.f_locals["self"]
        _refuse(trainer)
        loader = now["train_dataloader"]
        loader = getattr(loader, "base_dataloader", loader)
        log = [*listed(self._given.get("log") or []), trainer.log]
        given = {
            "report_dir": Path(args.output_dir) / "audit",
            "step": _step_of(trainer),
            "precision": "bf16-mixed" if args.bf16 else None,
            "epochs": _passes(state, loader),
            "state": _saved(frame.f_locals.get("resume_from_checkpoint")),
            **self._given,
            "log": log,
        }
        return loader, given, _couples(trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the training after a violation, if configured."""
        if self.audit is not None and self.config.on_violation != "warn":
            control.should_training_stop |= self.audit.should_stop

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the pass: the Trainer counts its batches, and asks for no further one.

        The last pass is evaluated while the loggers still listen.
        """
        if self.audit is None:
            return
        if control.should_training_stop or state.global_step >= state.max_steps:
            self.audit.end_epoch()
        else:
            self.audit._asks()
            self.audit._ends_pass()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the audit's state in the folder of the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.audit is None or not folder.is_dir():
            return
        kept = self.audit.state_dict()
        try:
            torch.save(kept, folder / STATE_NAME)
        except OSError as error:
            _log.warning("privacy audit: its state could not be saved in %s: %s", folder, error)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the report, and raise the error of its verdict if configured."""
        self._close(None)

    # ------------------------------------------------------------------ the end

    def _ended_by_errors(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of the Trainer, which has no event for an exception."""
        look = entry(self._look_at_labels, of=lambda _: self.audit._boundary)  # type: ignore[union-attr]

        @functools.wraps(own)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                result = own(*args, **kwargs)
                if self._couples and own.__name__ == "get_batch_samples":
                    look(result[0])
            except BaseException as error:
                self._close(error)
                raise
            return result

        return called

    def _look_at_labels(self, batches: Sequence[Any]) -> None:
        """Look, before the step, whether records have unequal numbers of labelled tokens."""
        for batch in batches:
            labels = batch.get("labels") if isinstance(batch, Mapping) else None
            if isinstance(labels, torch.Tensor) and labels.dim() > 1 and self.audit is not None:
                numbers = labels.ne(_NO_LABEL).flatten(1).sum(1)
                if bool((numbers != numbers[:1]).any()):
                    self.audit._couples(_TOKENS)
                    self._couples = False

    def _close(self, error: BaseException | None) -> None:
        trainer, self._trainer = self._trainer, None
        for name in _OF_TRAINING if trainer is not None else ():
            vars(trainer).pop(name, None)
        if self.audit is not None:
            self.audit.close(error)


def attach(
    trainer: Trainer, claimed_epsilon: float | None = None, **arguments: Any
) -> PrivacyAuditCallback:
    """Audit the DP-SGD of a Hugging Face `Trainer`, from its next ``train()`` on.

        with lightning_audit.transformers.attach(trainer, claimed_epsilon=8.0):
            trainer.train()

    Args:
        trainer: whose training is private; see `PrivacyAuditCallback`.
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        arguments: others of `lightning_audit.attach`.

    Returns:
        The callback, which was added to the Trainer; also a context manager.
    """
    callback = PrivacyAuditCallback(claimed_epsilon, **arguments)
    trainer.add_callback(callback)
    return callback


# --- What the audit takes from the Trainer.


def _trainers_frame() -> Any:
    """Return the frame of the Trainer's training loop; no event passes the Trainer on."""
    frame: Any = sys._getframe(1)
    while not isinstance(frame.f_locals.get("self"), Trainer):
        frame = frame.f_back
    return frame


def _step_of(trainer: Any) -> Callable[[Any], None]:
    """Return a function of a batch that does what the Trainer's loop does with it.

    It holds what a replay restores: attributes of the Trainer, and callbacks of the user's. The
    library's callbacks get no event: they only show the training.
    """
    handler = trainer.callback_handler
    users = [c for c in handler.callbacks if not _is_library(type(c))]
    methods = trainer.get_batch_samples, trainer.training_step
    return functools.partial(_step, trainer, vars(trainer), users, *methods)


def _step(
    trainer: Any,
    kept: dict[str, Any],
    callbacks: Sequence[TrainerCallback],
    batches: Callable[..., Any],
    train: Callable[..., Any],
    batch: Any,
) -> None:
    handler, every = trainer.callback_handler, trainer.callback_handler.callbacks

    def tell(event: str) -> None:
        handler.call_event(event, trainer.args, trainer.state, copy.copy(trainer.control))

    handler.callbacks = callbacks
    try:
        tell("on_step_begin")
        (batch,), items = batches(iter([batch]), 1, trainer.args.device)
        train(trainer.model_wrapped, batch, items)
        if trainer.args.max_grad_norm > 0.0:
            trainer._clip_grad_norm(trainer.model_wrapped)
        tell("on_pre_optimizer_step")
        trainer.optimizer.step()
        tell("on_optimizer_step")
        if not isinstance(trainer.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            trainer.lr_scheduler.step()
        trainer.model_wrapped.zero_grad()
        tell("on_step_end")
    finally:
        handler.callbacks = every


def _is_library(kind: type) -> bool:
    """Return whether a class is of transformers, or of this package."""
    return kind.__module__.partition(".")[0] in ("transformers", "lightning_audit")


def _passes(state: Any, loader: Any) -> int | None:
    """Return the number of planned passes over the loader; None if they are not whole ones."""
    try:
        steps = state.num_train_epochs * len(loader)
    except TypeError:  # of an iterable data set, which has no length
        return None
    return (
        int(state.num_train_epochs) if state.max_steps == steps and not state.global_step else None
    )


def _saved(checkpoint: Any) -> Any:
    """Return the audit's state in a checkpoint; None if there is none."""
    path = Path(checkpoint or "") / STATE_NAME
    return torch.load(path, weights_only=True) if checkpoint and path.is_file() else None


# --- What cannot be audited, and what couples records.


def _refuse(trainer: Any) -> None:
    """Raise if the Trainer's settings leave nothing to audit."""
    args, collator = trainer.args, trainer.data_collator
    parts, devices = args.gradient_accumulation_steps, args.world_size * max(args.n_gpu, 1)
    for refused, why in (
        (
            parts > 1,
            f"gradient_accumulation_steps={parts} divides the loss of a batch, and Opacus refuses "
            "its second backward pass; write 1; where a batch does not fit in memory, train in a "
            "plain loop with BatchMemoryManager of Opacus",
        ),
        (
            args.fp16,
            "fp16=True scales per-sample gradients before they are clipped; write bf16=True",
        ),
        (
            getattr(args, "activation_checkpointing", False) or args.gradient_checkpointing,
            "gradient_checkpointing runs the hooks of Opacus twice a step; write "
            "gradient_checkpointing=False",
        ),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size trains again after an error, with other batches than the "
            "accountant's; write auto_find_batch_size=False",
        ),
        (
            devices > 1 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
            "the Trainer trains in several processes or on several devices; train on one",
        ),
        (
            isinstance(collator, DataCollatorWithFlattening),
            "DataCollatorWithFlattening joins the records of a batch to one, so that no record is "
            "clipped by itself; use DataCollatorWithPadding",
        ),
    ):
        if refused:
            raise UnauditableTraining(f"this Trainer cannot be audited: {why}.")


def _couples(trainer: Any) -> bool:
    """Return whether the loss surely is divided by the labelled tokens of a batch.

    A model or a loss of the user's may divide by the number of records.
    """
    model = next((m for m in trainer.model.modules() if isinstance(m, PreTrainedModel)), None)
    own = type(trainer).compute_loss is not Trainer.compute_loss or trainer.compute_loss_func
    if model is None or own or not _is_library(type(model)):
        return False
    return "_loss_function" not in vars(model) and trainer.model_accepts_loss_kwargs
