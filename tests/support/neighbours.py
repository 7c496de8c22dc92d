"""Two trainings on neighbouring data sets that release the same gradients, and what they write.

The first training runs as it is; the gradient of every step is kept as it is released, with its
noise. In the second a record has other values, or is left out of every batch, and each step's noise
is what was released less the step's own clipped sum. Coins, seeds and releases are equal, so that
whatever differs between the artefacts is a function of the data that no noise covers.

The noise of the audit's own replays is drawn from seeds of the audit in both.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import dataclasses
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    DPTensorFastGradientAdaptiveClipping,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, TensorDataset
from training_matrix import Row
from training_support import trainer_for

from lightning_audit import InconclusiveAudit, PrivacyAudit, PrivacyViolation
from lightning_audit.catalogue.registry import REGISTRY

Kind = Literal["replaced", "removed"]
#: Of so few records each is drawn often.
RECORDS = 96
#: Fields of a report that the clock decides.
_BY_THE_CLOCK = ("created", "audit_cost", "examination_cost")
_COUNTS = ("unclipped_num", "sample_size")
#: What the clock decides of the printed report.
_TIMES = re.compile(r"^the audit took .*$|\(written [^)]*\)", re.MULTILINE)
_E_VALUE = "audit/e_value"
#: E-values of private checks as the console prints them.
_PRIVATE = "|".join(re.escape(c.name) for c in REGISTRY.values() if c.private)
_E_VALUES = re.compile(rf"(?<=│ )(?:{_PRIVATE}) .*?e = [^│]*│")


@dataclass
class Releases:
    """What the steps of a training release, and of which records they were made.

    Args:
        gradients: of each call that adds noise or updates, in order.
        forced: whether a training takes them instead of its own.
        left_out: record that no batch holds, None where all do.
        drawn: how often each record was drawn.
        audit: of the training.
    """

    gradients: list[Any] = field(default_factory=list)
    forced: bool = False
    left_out: int | None = None
    drawn: Counter[int] = field(default_factory=Counter)
    audit: PrivacyAudit | None = None
    _next: int = 0

    @property
    def live(self) -> bool:
        """Whether a step is the training's own, and no replay of the audit."""
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

    def second(self, left_out: int | None) -> Releases:
        """The same releases, to be taken by the second training."""
        return Releases(self.gradients, forced=True, left_out=left_out)


@dataclass
class Artefacts:
    """What leaves the process of an audited training.

    Args:
        report: report.json as it was read.
        record: bytes of every file of observations, by name.
        metrics: of CSVLogger and TensorBoard.
        console: what was printed and logged.
        exception: message of what was raised, or empty.
        state: of the callback, as a checkpoint holds it.
    """

    report: dict[str, Any]
    record: dict[str, bytes]
    metrics: dict[str, Any]
    console: str
    exception: str
    state: dict[str, Any]


def neighbours(
    directory: Path,
    row: Row,
    kind: Kind,
    *,
    seed: int = 0,
    steps: int = 24,
    change: Callable[[TensorDataset, int], None] | None = None,
    **audit: Any,
) -> tuple[Artefacts, Artefacts]:
    """Train twice, on neighbouring data with the same releases.

    Args:
        directory: where both write.
        row: the training, of the matrix.
        kind: whether one record has other values or is left out.
        seed: of data, training and audit.
        steps: of each training.
        change: replaces the values of a record; by default they grow and its label changes.
        audit: further arguments of the audit.

    Returns:
        The artefacts of both.
    """
    first = Releases()
    one = _train(directory / "one", row, seed, steps, first, None, audit)
    record, _ = first.drawn.most_common(1)[0]
    second = first.second(record if kind == "removed" else None)
    changed = None if kind == "removed" else (record, change or _other_values)
    other = _train(directory / "other", row, seed, steps, second, changed, audit)
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
) -> Artefacts:
    torch.manual_seed(seed)
    module = row.module()
    first = 61 * seed % (len(module.dataset) - RECORDS + 1)
    data = TensorDataset(*(t[first : first + RECORDS].clone() for t in module.dataset.tensors))
    if changed is not None:
        changed[1](data, changed[0])
    module.dataset = data
    arguments = {"claimed_epsilon": 1000.0, "seed": seed + 1, "examinations": 2}
    audit = PrivacyAudit(**{**arguments, **_of_few_records(row.audit), **more})
    directory.mkdir(parents=True)
    loggers = [CSVLogger(directory, "csv"), TensorBoardLogger(directory, "board")]
    # A step of several batches is counted by Lightning as several, and so is one of two optimizers.
    limit = row.trainer.get("max_steps", 120) * steps // 120
    arguments = {**row.trainer, "max_steps": max(limit, steps), "logger": loggers}
    releases.audit = audit
    trainer = trainer_for(directory, _Seeds(releases, seed), audit, **arguments)
    console, exception = io.StringIO(), ""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_released(releases))
        stack.enter_context(_printed(console))
        try:
            trainer.fit(module)
        except (PrivacyViolation, InconclusiveAudit) as error:
            exception = str(error)
    folder = directory / "audit"
    return Artefacts(
        report=json.loads((folder / "report.json").read_text()),
        record={p.name: p.read_bytes() for p in sorted(folder.iterdir()) if "obs" in p.name},
        metrics=_metrics(directory),
        console=console.getvalue().replace(str(directory), ""),
        exception=exception,
        state=audit.state_dict(),
    )


def _of_few_records(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an audit whose claim states the sample rate of these few records."""
    claim = audit.get("claim")
    if claim is None or claim.sample_rate is None:
        return dict(audit)
    rate = claim.expected_batch_size / RECORDS
    return {**audit, "claim": dataclasses.replace(claim, sample_rate=rate)}


class _Seeds(pl.Callback):
    """Gives each batch random numbers of its own, whatever the batch before drew."""

    def __init__(self, releases: Releases, seed: int) -> None:
        self._releases, self._seed = releases, seed

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self._releases.live:
            torch.manual_seed(10**6 * (self._seed + 1) + 1000 * trainer.current_epoch + batch_idx)


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
        patch.setattr("lightning_audit.run.audited_optimizers.uuid.uuid4", lambda: UUID(int=1))
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


def _metrics(directory: Path) -> dict[str, Any]:
    """What the loggers hold, by logger; the times at which it was written left out."""
    (table,) = directory.glob("csv/*/metrics.csv")
    (events,) = directory.glob("board/*/events*")
    board = EventAccumulator(str(events)).Reload()
    scalars = {
        tag: [(event.step, event.value) for event in board.Scalars(tag)]
        for tag in board.Tags()["scalars"]
    }
    return {"csv": table.read_text(), "board": scalars}


# ------------------------------------------------------------------ comparing


def differences(one: Artefacts, other: Artefacts, coarse: bool = False) -> list[str]:
    """Where two trainings' artefacts differ beside what the clock decides.

    Args:
        one: of the first training.
        other: of its neighbour.
        coarse: whether fields that are declared `coarse` count as well.
    """
    found: list[str] = []
    _compare(_public(one, coarse), _public(other, coarse), "", found)
    return found


def _public(artefacts: Artefacts, coarse: bool) -> dict[str, Any]:
    held = {
        "report.json": {k: v for k, v in artefacts.report.items() if k not in _BY_THE_CLOCK},
        "record": artefacts.record,
        "metrics": artefacts.metrics,
        "console": _TIMES.sub("", artefacts.console).splitlines(),
        "exception": artefacts.exception,
    }
    return held if coarse else _without_coarse(held)


def _without_coarse(held: dict[str, Any]) -> dict[str, Any]:
    """What is left where e-values of private numbers are left out."""
    report = held["report.json"]
    checks = [
        {**check, "log_e_value": None} if REGISTRY[check["name"]].private else check
        for check in report["checks"]
    ]
    epochs = [{**row, "e_value": None} for row in report["epochs"]]
    rows = list(csv.DictReader(io.StringIO(held["metrics"]["csv"])))
    board = {k: v for k, v in held["metrics"]["board"].items() if k != _E_VALUE}
    return {
        **held,
        "report.json": {**report, "checks": checks, "epochs": epochs},
        "metrics": {"csv": [{**row, _E_VALUE: None} for row in rows], "board": board},
        "console": [_E_VALUES.sub("", line) for line in held["console"]],
    }


def _compare(one: Any, other: Any, place: str, found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            _compare(one.get(key), other.get(key), f"{place}/{key}", found)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            name = a.get("name", number) if isinstance(a, dict) else number
            _compare(a, b, f"{place}/{name}", found)
    elif one != other:
        if isinstance(one, bytes) and isinstance(other, bytes):
            one, other = f"{len(one)} bytes", f"{len(other)} other bytes"
        found.append(f"{place}: {one!r} / {other!r}")
