"""What the audit reads of a Trainer: refusals, hooks on its strategy, the user's step.

**Whether a later fit continues the training of an earlier one.** A Trainer that fits again
continues counting its steps and epochs, with the module's current weights. Lightning has no hook
that reports it.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch

from lightning_audit.callbacks._namespaces import (
    MisconfigurationException,
    refused_as_lightning_does,
)
from lightning_audit.hooks.boundary import Boundary, StepRefused, undoing
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.lints.own_code import of_methods
from lightning_audit.lints.settings import splits_batches
from lightning_audit.replay.order import BatchSource
from lightning_audit.report.text import progress
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.run.facts import FrontEnd, TrainingInfo, device_name
from lightning_audit.run.fence import HOOKS, Fence
from lightning_audit.session.planner import Ranks

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from lightning_audit.run.audit_run import AuditRun

# --- Refuse Trainers that cannot be audited, before the first step, and say what to change.

#: Strategies that shard the parameters, or that do not use torch's process groups.
_SHARDING = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAStrategy"}
_UNSUPPORTED_PRECISION = ("16-mixed", "16-true", "16")


def refuse_several(audits: int) -> None:
    """Raise if a Trainer has more than one audit among its callbacks."""
    if audits > 1:
        raise MisconfigurationException(
            f"The Trainer has {audits} PrivacyAudit callbacks; each would report the others' "
            "canaries as a fault. Keep one."
        )


def refuse_trainer(trainer: pl.Trainer, audits: int) -> None:
    """Raise if this Trainer, with ``audits`` audits among its callbacks, cannot be audited.

    Raises:
        MisconfigurationException: several audits, fp16, or a strategy that shards parameters.
    """
    refuse_several(audits)
    strategy = type(trainer.strategy)
    # By name, because each of Lightning's two packages has its own classes.
    names = {kind.__name__ for kind in strategy.__mro__}
    if names & _SHARDING:
        raise MisconfigurationException(
            f"PrivacyAudit cannot audit strategy={strategy.__name__}: it shards the parameters, so "
            "that no process holds a whole gradient; use strategy='ddp' and Opacus' "
            "DistributedDPOptimizer (make_private with grad_sample_mode='hooks') to audit."
        )
    if trainer.world_size > 1 and "DDPStrategy" not in names:
        raise MisconfigurationException(
            f"PrivacyAudit cannot audit {trainer.world_size} processes of "
            f"strategy={strategy.__name__}; use strategy='ddp', or devices=1, to audit."
        )
    if str(trainer.precision) in _UNSUPPORTED_PRECISION:
        raise MisconfigurationException(
            f"PrivacyAudit cannot audit precision={trainer.precision!r}: its gradient scaler "
            "multiplies per-sample gradients before they are clipped; use '32-true' or "
            "'bf16-mixed'."
        )


# --- A Trainer's training by plain values.


def training_info(trainer: Any, *, begins: bool = True) -> TrainingInfo:
    """Return what the audit reads of a Trainer.

    Args:
        trainer: during `fit`.
        begins: whether its loaders and optimizers exist.
    """
    module = trainer.lightning_module
    source = getattr(getattr(trainer.fit_loop, "_data_source", None), "instance", None)
    device = getattr(trainer.strategy, "root_device", None)
    info = TrainingInfo(
        module=module,
        source=source,
        owners=trainer.callbacks,
        precision=str(trainer.precision),
        device=device_name(device) if isinstance(device, torch.device) else "",
        strategy=type(trainer.strategy).__name__,
        processes=trainer.world_size,
        accumulated=trainer.accumulate_grad_batches,
        clip=trainer.gradient_clip_val,
        trial=bool(trainer.fast_dev_run),
    )
    if not begins:
        return info
    return replace(
        info,
        loaders=trainer.train_dataloader,
        planned_steps=planned_steps(trainer),
        taken_steps=trainer.global_step,
        epoch_batches=trainer.num_training_batches,
    )


def planned_steps(trainer: Any) -> int | None:
    """Return the steps of each optimizer in the whole training; None if unknown."""
    if len(trainer.optimizers) > 1:  # Lightning counts the steps of all of them
        return None
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # of a Trainer whose accumulation changes, say
        return None
    if not math.isfinite(total) or splits_batches(trainer.train_dataloader):
        return None
    return int(total)


def ends_with_this_epoch(trainer: Any) -> bool:
    """Return whether the training is known to end with the current epoch."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    by_epochs = epochs not in (None, -1) and trainer.current_epoch + 1 >= epochs
    by_steps = steps not in (None, -1) and trainer.global_step >= steps
    return bool(trainer.should_stop or by_epochs or by_steps)


#: Callbacks that may end a training before its last epoch, by class name.
_END_EARLIER = {"EarlyStopping", "Timer"}
#: Name of the audit's item of a progress bar.
ITEM = "audit"


class _Words(str):
    """Text that a progress bar may format as a number, as it may do with all its items."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


class LightningFrontEnd(FrontEnd):
    """A Trainer as a `FrontEnd`.

    Args:
        trainer: of the training, which is about to begin.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # The training's loop, and its min_epochs and min_steps before they were set to None.
        self._least: tuple[Any, Any, Any] | None = None

    @property
    def accumulated(self) -> int:  # type: ignore[override]
        """Batches per step."""
        return int(self._trainer.accumulate_grad_batches)

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        """Whether the training was asked to stop."""
        return bool(self._trainer.should_stop)

    def steps_left(self) -> int | None:
        """Return how many steps each optimizer is planned to take from now on."""
        total = planned_steps(self._trainer)
        left = 0 if total is None else total - int(self._trainer.global_step)
        return left if left > 0 else None

    def epochs_left(self) -> int | None:
        """Return how many epochs will begin from now on; None if it may end before."""
        trainer, steps = self._trainer, self.steps_left()
        classes = {kind.__name__ for each in trainer.callbacks for kind in type(each).__mro__}
        if trainer.max_epochs in (None, -1) or classes & _END_EARLIER:
            return None
        batches = trainer.num_training_batches
        left = max(trainer.max_epochs - trainer.current_epoch, 0)
        if not batches or trainer.max_steps in (None, -1):
            return left if batches else None
        if not trainer.lightning_module.automatic_optimization or not math.isfinite(batches):
            return None
        each = math.ceil(batches / trainer.accumulate_grad_batches)
        return None if steps is None else min(left, math.ceil(steps / each))

    def is_over(self) -> bool:
        """Return whether the batch that has ended is the training's last one."""
        trainer = self._trainer
        steps, epochs = trainer.max_steps, trainer.max_epochs
        if steps not in (None, -1) and trainer.global_step >= steps:
            return True
        last = epochs not in (None, -1) and trainer.current_epoch + 1 >= epochs
        return bool(last and trainer.is_last_batch)

    def show(self, report: AuditReport) -> None:
        """Show the state of the audit in the progress bar, among the metrics of the training."""
        self._trainer.progress_bar_metrics[ITEM] = _Words(progress(report))

    def stop(self) -> None:
        """Ask the Trainer to stop, regardless of min_epochs and min_steps."""
        self._trainer.should_stop = True
        loop = self._trainer.fit_loop
        if self._least is None:
            self._least = (loop, loop.min_epochs, loop.epoch_loop.min_steps)
            loop.min_epochs = loop.epoch_loop.min_steps = None

    def refuse(self, report: AuditReport | None) -> None:
        """End Lightning's loop over batches; the error is raised in on_fit_end."""
        raise StepRefused

    def put_back(self) -> None:
        """Restore the loop's min_epochs and min_steps."""
        if self._least is not None:
            loop, epochs, steps = self._least
            loop.min_epochs, loop.epoch_loop.min_steps, self._least = epochs, steps, None


def ranks_of(trainer: Any, boundary: Boundary | None = None) -> Ranks:
    """Return the processes of a Trainer."""
    return Ranks(trainer.global_rank, trainer.world_size, talk=True, boundary=boundary)


# --- Whether a later fit continues the training of an earlier one.


@dataclass(frozen=True)
class _End:
    """Trainer position at the end of its last fit with an audit."""

    state: str
    step: int
    module: ref[Any]


#: Kept outside of the callback, which must be copied and pickled without its Trainer.
_ends: WeakKeyDictionary[Any, _End] = WeakKeyDictionary()


def note_end(trainer: Any, module: Any, state: Mapping[str, Any]) -> None:
    """Record a Trainer's position at the end of a fit.

    Args:
        trainer: the Trainer whose fit ends.
        module: the trained module.
        state: the audit's checkpoint state at the end; empty if no step was audited.
    """
    _ends.pop(trainer, None)
    if state:
        _ends[trainer] = _End(state["checksum"], trainer.global_step, ref(module))


def goes_on(trainer: Any, module: Any, state: Mapping[str, Any]) -> bool:
    """Return whether a Trainer continues from the end of the fit that this audit state is from.

    A copy of the callback from the middle of that fit has an earlier state: False.
    """
    end = _ends.get(trainer)
    return (
        end is not None
        and end.state == state.get("checksum")
        and 0 < end.step == trainer.global_step
        and end.module() is module
    )


# --- Hooks on methods of the Trainer's strategy, for events without a Lightning hook.


def watch_loaders(trainer: Any, look: Callable[[Any], None]) -> MethodHook:
    """Call ``look`` with each training loader that the strategy processes from now on.

    Lightning has no hook between `train_dataloader` and the loader's first iteration, in which
    samplers draw and workers start.

    Args:
        trainer: the Trainer, before it requests its loaders.
        look: called with the loader that will be iterated.
    """

    def handed(loader: Any, *_: Any, **__: Any) -> None:
        if trainer.training:  # no validation loaders
            look(loader)

    return MethodHook(trainer.strategy, "process_dataloader", after=handed, shown=True)


def show_batches(trainer: Any, module: torch.nn.Module, run: AuditRun) -> MethodHook:
    """Pass each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls the module's ``training_step``, for automatic and for manual optimization,
    after every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        run: the audit, which may add a canary to the batch.
    """
    admit = refused_as_lightning_does(run.admit)

    def given(batch: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        # Extra passes run in the training's precision.
        with trainer.precision_plugin.train_step_context():
            return (admit(batch, module), *args)

    def done(output: Any, *_: Any, **__: Any) -> None:
        if output is None and module.automatic_optimization:
            run.skipped()

    return MethodHook(trainer.strategy, "training_step", given, done, done, shown=True)


# --- What the fence watches of a Trainer's training.

#: Modules of Lightning's own callbacks that change weights, and those that only average them.
_CHANGE = ("finetuning", "lambda_function", "pruning", "quantization")
_AVERAGE = ("stochastic_weight_avg", "weight_averaging")


def fence_hooks(trainer: Any, module: Any, own: Any, fence: Fence) -> None:
    """Watch the hooks of the user's module and callbacks that may change weights.

    Args:
        trainer: before its `fit` sets up the training.
        module: the user's module.
        own: the audit's callback.
        fence: watches.
    """
    for owner in (module, *(c for c in trainer.callbacks if c is not own)):
        name = "the module" if owner is module else type(owner).__name__
        for hook in HOOKS:
            method = getattr(owner, hook, None)
            where = getattr(method, "__module__", "") or ""
            theirs = where.startswith(("pytorch_lightning.", "lightning.", "lightning_audit.cal"))
            if callable(method) and (not theirs or where.endswith((*_CHANGE, *_AVERAGE))):
                trusted = type(owner).__module__ == where and where.endswith(_AVERAGE)
                fence.watch(owner, hook, name, trusted=trusted)
    fence.watch(trainer.strategy, "validation_step", "the module")
    fence.watch_loaders()
    # The hooks of the module that may change a checkpoint run within this method of Lightning's.
    connector = trainer._checkpoint_connector

    begun = time.time()

    def loading() -> None:
        path = trainer.ckpt_path
        if path and os.path.exists(path) and os.path.getmtime(path) > begun:
            return  # written in this fit, of what it has read
        saved = connector._loaded_checkpoint.get("state_dict", {})
        fence.loading({k: v for k, v in saved.items() if isinstance(v, torch.Tensor)})

    MethodHook(connector, "restore_model", loading, fence.loaded)


def monitors(trainer: Any, own: str) -> list[tuple[str, str]]:
    """Return what decides by a metric in a Trainer's training, and the metric's name.

    Args:
        trainer: during `fit`.
        own: first part of the names of the audit's metrics.
    """
    watched = [(callback, getattr(callback, "monitor", None)) for callback in trainer.callbacks]
    configs = trainer.lr_scheduler_configs
    watched += [(c.scheduler, c.monitor) for c in configs if c.reduce_on_plateau]
    return [
        (type(who).__name__, name)
        for who, name in watched
        if isinstance(name, str) and not name.startswith(f"{own}/")
    ]


# --- The user's step as Lightning runs it, for replays during the training.

#: Callbacks that only display or save, by class name in either Lightning package.
_SHOW_OR_SAVE = {"Checkpoint", "ProgressBar", "ModelSummary", "Timer"}


class LightningStep:
    """A training step, run as Lightning's loop runs it, between two batches.

    Args:
        trainer: in `fit`.
        module: the user's module.
        own: the audit's callback, which is not called.
    """

    #: See `UserStep`: the step that is run again is the user's, and a replay runs all of it.
    sure = whole = True

    def __init__(self, trainer: Any, module: Any, own: Any) -> None:
        self._trainer = trainer
        #: The user's module.
        self.module = module
        self._silent = [
            c
            for c in trainer.callbacks
            if c is own or _SHOW_OR_SAVE & {kind.__name__ for kind in type(c).__mro__}
        ]
        #: Names of what ``training_step`` logs.
        self.logged: dict[str, set[Any]] = {}
        # Number of the first batch of the step that is run again.
        self._first = 0

    def begin(self) -> bool:
        """Note the number of the batch that begins."""
        self._first = self._trainer.fit_loop.epoch_loop.batch_idx
        return True

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the training."""
        optimizers: Sequence[Any] = self._trainer.optimizers
        return optimizers

    @property
    def precision(self) -> str:
        """The precision of the training."""
        return str(self._trainer.precision)

    @property
    def aside(self) -> Sequence[object]:
        """Objects whose state is neither saved nor restored."""
        return [self._trainer, *self._silent]

    def obstacle(self) -> str:
        """Return nothing: Lightning's loop can be run again."""
        return ""

    def doubt(self, reason: str, repeated: bool) -> str:
        """Return the reason itself: the step that was run again is the user's."""
        return reason

    def roots(self) -> list[object]:
        """Return the objects that a step may change, for `TrainingState`."""
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        progress = (
            loop.automatic_optimization.optim_progress,
            loop.manual_optimization.optim_step_progress,
            loop.scheduler_progress,
            loop.batch_progress,
        )
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        wrapped = self.module.optimizers()
        wrappers = wrapped if isinstance(wrapped, list) else [wrapped]
        return [
            self.module,
            *trainer.optimizers,
            *wrappers,
            *schedulers,
            *(c for c in trainer.callbacks if c not in self._silent),
            trainer.precision_plugin,
            *progress,
        ]

    def source(self) -> BatchSource:
        """Return the way from records to a batch: the loader, and Lightning's transfer hooks."""
        trainer, module = self._trainer, self.module

        def transfer(batch: Any) -> Any:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

        names = "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"
        held = [trainer.datamodule] * bool(trainer.datamodule)
        hooks = [str(code) for owner in (*held, module) for code in of_methods(owner, *names)]
        where = " or ".join(hooks) or BatchSource.where
        return BatchSource(trainer.train_dataloader, transfer, where, held)

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""
        with self._quiet():
            for index, batch in enumerate(batches, start=self._first):
                self._train_on(batch, index)

    def _train_on(self, batch: Any, index: int) -> None:
        trainer, module = self._trainer, self.module
        loop = trainer.fit_loop.epoch_loop
        loop.batch_progress.current.ready = index + 1  # the loop accumulates gradients by this
        for callback in trainer.callbacks:
            callback.on_train_batch_start(trainer, module, batch, index)
        module.on_train_batch_start(batch, index)
        arguments = loop._build_kwargs(OrderedDict(), batch, index)
        if module.automatic_optimization:
            output = loop.automatic_optimization.run(trainer.optimizers[0], index, arguments)
        else:
            output = loop.manual_optimization.run(arguments)
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        for callback in trainer.callbacks:
            callback.on_train_batch_end(trainer, module, output, batch, index)
        module.on_train_batch_end(output, batch, index)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Disable callbacks that display or save, and all logging, within this context."""
        trainer, module = self._trainer, self.module
        callbacks, loggers, stops = trainer.callbacks, trainer.loggers, trainer.should_stop
        logs = {name: vars(module)[name] for name in ("log", "log_dict") if name in vars(module)}

        def put_back() -> None:
            trainer.callbacks, trainer.loggers, trainer.should_stop = callbacks, loggers, stops
            for name in ("log", "log_dict"):
                vars(module).pop(name, None)
            vars(module).update(logs)

        with undoing(put_back), contextlib.redirect_stdout(io.StringIO()):
            trainer.callbacks = [c for c in callbacks if c not in self._silent]
            trainer.loggers = [silent_logger(trainer) for _ in loggers]
            vars(module).update(log=self._drop, log_dict=self._drop)
            yield

    def _drop(self, logged: Any, value: Any = None, *_: Any, **__: Any) -> None:
        """Keep logged values by their names, and log nothing."""
        for name, one in (logged if isinstance(logged, dict) else {logged: value}).items():
            one = one.detach() if torch.is_tensor(one) else one
            plain = isinstance(one, int | float) or (torch.is_tensor(one) and one.numel() == 1)
            # Other objects, such as metrics, sum up records.
            self.logged.setdefault(name, set()).add(float(one) if plain else object())


def silent_logger(trainer: Any) -> Any:
    """Return a logger of the Trainer's package that discards everything."""
    package = type(trainer).__module__.partition(".trainer")[0]
    return import_module(f"{package}.loggers.logger").DummyLogger()
