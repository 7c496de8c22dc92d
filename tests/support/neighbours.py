"""Two trainings on neighbouring data sets that release the same gradients, and what they write.

The first training runs as it is; the gradient of every step is kept as it is released, with its
noise. In the second a record has other values, or is left out of every batch, and each step's noise
is what was released less the step's own clipped sum. Coins, seeds and releases are equal, so that
whatever differs between the artefacts is a function of the data that no noise covers.

The noise of the audit's own replays is drawn from seeds of the audit in both.
"""

import contextlib
import copy
import dataclasses
import io
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
import pytorch_lightning as pl
import torch
from artefacts import Artefacts, read_audit, read_checkpoints, read_metrics
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    DPTensorFastGradientAdaptiveClipping,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, TensorDataset
from training_matrix import Row
from training_support import trainer_for

from lightning_audit import InconclusiveAudit, PrivacyAudit, PrivacyViolation

Kind = Literal["replaced", "removed"]
#: Of so few records each is drawn often.
RECORDS = 96
#: Audited steps between two checkpoints.
BETWEEN = 4
_COUNTS = ("unclipped_num", "sample_size")


@dataclass
class Releases:
    """What each call that adds noise or updates releases, and how often each record was drawn.

    A training takes them instead of its own if ``forced``.
    """

    gradients: list[Any] = field(default_factory=list)
    forced: bool = False
    left_out: int | None = None
    drawn: Counter[int] = field(default_factory=Counter)
    audit: PrivacyAudit | None = None
    _next: int = 0
    _pid: int = field(default_factory=os.getpid)

    @property
    def live(self) -> bool:
        """Whether a step is the training's own, and no replay or trial of the audit."""
        if os.getpid() != self._pid:
            return False
        run = self.audit._run if self.audit is not None else None
        return run is not None and run.optimizers.looks

    def pass_on(self, values: list[Any]) -> list[Any]:
        """What a step releases: its own values, which are kept, or those of the first training."""
        if not self.forced:
            self.gradients.append(copy.deepcopy(values))
            return values
        self._next += 1
        return copy.deepcopy(self.gradients[self._next - 1])

    def batch(self, indices: list[int]) -> list[int]:
        """A batch as it is drawn, without the record that is left out."""
        self.drawn.update(indices)
        return [index for index in indices if index != self.left_out]

    def second(self, left_out: int | None) -> "Releases":
        """The same releases, to be taken by the second training."""
        return Releases(self.gradients, forced=True, left_out=left_out)


def neighbours(
    directory: Path,
    row: Row,
    kind: Kind,
    *,
    seed: int = 0,
    steps: int = 24,
    change: Callable[[TensorDataset, int], None] | None = None,
    resumes: bool = False,
    **audit: Any,
) -> tuple[Artefacts, Artefacts]:
    """Train a row of the matrix twice, on neighbouring data with the same releases.

    By default a record's values grow and its label changes. One that resumes stops half-way, and
    goes on from its last checkpoint.
    """
    first = Releases()
    one = _train(directory / "one", row, seed, steps, first, None, audit, resumes)
    record, _ = first.drawn.most_common(1)[0]
    second = first.second(record if kind == "removed" else None)
    changed = None if kind == "removed" else (record, change or _other_values)
    other = _train(directory / "other", row, seed, steps, second, changed, audit, resumes)
    assert second._next == len(first.gradients), "the second training took other steps"
    return one, other


def _other_values(data: TensorDataset, record: int) -> None:
    data.tensors[0][record] *= -7.0
    if not data.tensors[1].is_floating_point():
        data.tensors[1][record] = (data.tensors[1][record] + 1) % 10


def _train(
    directory: Path,
    row: Row,
    seed: int,
    steps: int,
    releases: Releases,
    changed: tuple[int, Callable[[TensorDataset, int], None]] | None,
    more: Mapping[str, Any],
    resumes: bool,
) -> Artefacts:
    saved, exceptions, console = directory / "checkpoints", [], io.StringIO()
    # Files of a run that stops and goes on are those of its last part.
    for last in [steps // 2, steps] if resumes else [steps]:
        module, audit = _made(row, seed, changed, more)
        releases.audit = audit
        loggers = [CSVLogger(directory, "csv"), TensorBoardLogger(directory, "board")]
        course = _Course(releases, seed, saved, last)
        # Lightning counts parts of batches, the updates of several optimizers, or no step at all.
        arguments = {**row.trainer, "max_steps": -1, "max_epochs": 1000, "logger": loggers}
        trainer = trainer_for(directory, course, audit, **arguments)
        before = max(saved.glob("*.ckpt"), default=None)
        with _released(releases), _printed(console):
            try:
                trainer.fit(module, ckpt_path=before, weights_only=True if before else None)
            except (PrivacyViolation, InconclusiveAudit) as error:
                exceptions.append(str(error))
    return Artefacts(
        **read_audit(directory / "audit"),
        metrics=read_metrics(directory),
        console=console.getvalue().replace(str(directory), ""),
        exception="\n".join(exceptions),
        checkpoints=[*read_checkpoints(saved), audit.state_dict()],
    )


def _made(
    row: Row,
    seed: int,
    changed: tuple[int, Callable[[TensorDataset, int], None]] | None,
    more: Mapping[str, Any],
) -> tuple[pl.LightningModule, PrivacyAudit]:
    """The module of a row over few records, and its audit."""
    torch.manual_seed(seed)
    module = row.module()
    first = 61 * seed % (len(module.dataset) - RECORDS + 1)
    data = TensorDataset(*(t[first : first + RECORDS].clone() for t in module.dataset.tensors))
    if changed is not None:
        changed[1](data, changed[0])
    module.dataset = data
    arguments = {"claimed_epsilon": 1000.0, "seed": seed + 1, "examinations": 2}
    return module, PrivacyAudit(**{**arguments, **_of_few_records(row.audit), **more})


def _of_few_records(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an audit whose claim states the sample rate of these few records."""
    claim = audit.get("claim")
    if claim is None or claim.sample_rate is None:
        return dict(audit)
    rate = claim.expected_batch_size / RECORDS
    return {**audit, "claim": dataclasses.replace(claim, sample_rate=rate)}


class _Course(pl.Callback):
    """Saves checkpoints, ends the training, and gives each batch random numbers of its own."""

    def __init__(self, releases: Releases, seed: int, saved: Path, last: int) -> None:
        self._releases, self._seed, self._saved, self._last = releases, seed, saved, last
        self._steps = 0

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        """Give weights the names that they have before Opacus wraps their module."""
        held = checkpoint["state_dict"].items()
        checkpoint["state_dict"] = {name.replace("_module.", ""): value for name, value in held}

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self._releases.live:
            torch.manual_seed(
                2**40 + 10**6 * (self._seed + 1) + 1000 * trainer.current_epoch + batch_idx
            )

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        audit = self._releases.audit
        run = audit._run if audit is not None else None
        if run is None or run.optimizers.steps // len(run.sessions or [0]) == self._steps:
            return
        self._steps = run.optimizers.steps // len(run.sessions)
        if self._steps % BETWEEN == 0:
            trainer.save_checkpoint(self._saved / f"{self._steps:04d}.ckpt")
        trainer.should_stop = trainer.should_stop or self._steps >= self._last


@contextlib.contextmanager
def _released(releases: Releases) -> Iterator[None]:
    """Keep or force what each step of the training releases, beneath all hooks of the audit."""

    def pass_gradients(params: Any, holder: Any = None) -> None:
        if not releases.live:
            return
        held = [p for p in params if p.grad is not None]
        counts = [name for name in _COUNTS if hasattr(holder, name)]
        own = [p.grad.detach() for p in held] + [getattr(holder, name) for name in counts]
        taken = releases.pass_on(own)
        with torch.no_grad():
            for p, grad in zip(held, taken, strict=False):
                p.grad.copy_(grad)
        for name, count in zip(counts, taken[len(held) :], strict=True):
            setattr(holder, name, count)

    def before_update(optimizer: Any, *_: Any) -> None:
        pass_gradients([p for group in optimizer.param_groups for p in group["params"]])

    def adapts(own: Any) -> Any:
        def update(self: Any, norms: torch.Tensor) -> Any:
            values = list(own(self, norms))
            return tuple(releases.pass_on(values) if releases.live else values)

        return update

    def draws(own: Any) -> Any:
        def batches(self: Any) -> Iterator[list[int]]:
            for indices in own(self):
                yield releases.batch(indices)

        return batches

    depth = 0

    def noisy(own: Any) -> Any:
        def add_noise(self: Any) -> None:
            nonlocal depth
            depth += 1
            own(self)
            depth -= 1
            if depth == 0:
                pass_gradients(self.params, self)

        return add_noise

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")  # the times' digits must not move a line's end
        patch.setattr("lightning_audit.run.optimizers.uuid.uuid4", lambda: UUID(int=1))
        for kind in (DPOptimizer, *_subclasses(DPOptimizer)):
            if "add_noise" in vars(kind):
                patch.setattr(kind, "add_noise", noisy(vars(kind)["add_noise"]))
        ghost = DPTensorFastGradientAdaptiveClipping
        patch.setattr(ghost, "_update_clip_and_noise", adapts(ghost._update_clip_and_noise))
        for sampler in (UniformWithReplacementSampler, BatchSampler):
            patch.setattr(sampler, "__iter__", draws(sampler.__iter__))
        handle = register_optimizer_step_pre_hook(before_update)
        try:
            yield
        finally:
            handle.remove()


def _subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


@contextlib.contextmanager
def _printed(console: io.StringIO) -> Iterator[None]:
    """Take down what is printed, and what the audit and Lightning log."""
    handler = logging.StreamHandler(console)
    logs = [logging.getLogger(name) for name in ("lightning_audit", "lightning.pytorch")]
    for log in logs:
        log.addHandler(handler)
    try:
        with contextlib.redirect_stdout(console):
            yield
    finally:
        for log in logs:
            log.removeHandler(handler)
