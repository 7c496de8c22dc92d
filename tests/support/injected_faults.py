"""Raises an exception at the n-th call inside the package during a training, and looks at the end.

Functions that others call are not counted: an exception there is raised before the audit's own code
has begun. They are known by their caller, which is outside of the package.
"""

import logging
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten, OneByOne
from trained import Forwarding
from training_matrix import Ghost
from training_support import PrivateModule, trainer_for

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.dpsgd.opacus import innermost
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.trainings import PhysicalBatches

PACKAGE = str(Path(lightning_audit.__file__).parent)
TESTING = str(Path(PACKAGE) / "testing")
STEPS = 6


class Injected(Exception):
    """An exception that no code expects."""


class Faults:
    """Counts calls inside the package, and raises at one of them, or at each call of a name."""

    def __init__(
        self, at: int | None = None, kind: Callable[[], BaseException] = Injected, named: str = ""
    ) -> None:
        self.at, self.kind, self.named = at, kind, named
        self.count = 0
        #: Numbers of the calls of each function.
        self.calls: dict[str, list[int]] = {}
        self.place = ""

    def __enter__(self) -> "Faults":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _inside(frame) or not _inside(frame.f_back):
            return
        code = frame.f_code
        # A generator is also called when it is thrown away; the guard's `try` is in its own frame.
        if code.co_name in ("<genexpr>", "entered"):
            return
        self.count += 1
        name = f"{Path(code.co_filename).stem}.{code.co_name}"
        self.calls.setdefault(name, []).append(self.count)
        if self.count == self.at or (self.named and code.co_name == self.named):
            self.place = name
            raise self.kind()

    def choose(self, rng: random.Random) -> int:
        """The number of a call: any of a function, and any function."""
        return rng.choice(self.calls[rng.choice(sorted(self.calls))])


# Code of the audit that asks whose an exception is takes that of a test's frame for the user's.
Faults._trace.__code__ = Faults._trace.__code__.replace(co_filename="site-packages/faults.py")


def _inside(frame: FrameType | None) -> bool:
    name = "" if frame is None else frame.f_code.co_filename
    return name.startswith(PACKAGE) and not name.startswith(TESTING)


# ------------------------------------------------------------------ trainings


def split() -> pl.LightningModule:
    return Fault("sound", "nothing", "", training=PhysicalBatches).module(pl.LightningModule)


Audited = tuple[Callable[[], pl.LightningModule], Callable[[], PrivacyAudit]]
TRAININGS: dict[str, Audited] = {
    "prefilled": (PrivateModule, lambda: PrivacyAudit(seed=1)),
    "copied": (
        lambda: PrivateModule(mode="functorch"),
        lambda: PrivacyAudit(seed=1, examinations=0),
    ),
    "ghost": (Ghost, lambda: PrivacyAudit(seed=1, examinations=0)),
    "by hand": (HandWritten, lambda: PrivacyAudit(seed=1, claim=CLAIM, examinations=0)),
    "one by one": (OneByOne, lambda: PrivacyAudit(seed=1, claim=CLAIM, examinations=0)),
    "input": (
        Forwarding,
        lambda: PrivacyAudit(seed=1, canaries=[Mislabeled(amplitude=100.0)], examinations=0),
    ),
    "split": (split, lambda: PrivacyAudit(seed=1, examinations=0)),
    "long": (PrivateModule, lambda: PrivacyAudit(seed=1, examinations=0)),
    "resumed": (lambda: Kept(), lambda: PrivacyAudit(seed=1, examinations=0)),
}
#: Steps of the long one, and the trainings that pass without a fault.
LONG, PASSING = 64, ("long", "resumed")


class Kept(PrivateModule):
    """Private from the start, so that a checkpoint's names are those of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.private = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self.private


@dataclass
class Trained:
    """What is left of a training."""

    weights: torch.Tensor
    generators: tuple[Any, ...]
    module: pl.LightningModule
    audit: PrivacyAudit | None = None
    report: AuditReport | None = None
    steps: int = 0


def train(
    directory: Path,
    name: str,
    faults: Faults | None = None,
    trainings: Mapping[str, Audited] = TRAININGS,
    **options: Any,
) -> Trained:
    """Train, under the audit if ``faults`` are given."""
    make, audited = trainings[name]
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    module = make()
    audit = audited() if faults is not None else None
    callbacks = [] if audit is None else [audit]
    length: dict[str, Any] = {"max_steps": LONG if name == "long" else STEPS}
    given: dict[str, Any] = {}
    if name == "resumed":
        given = {"ckpt_path": saved(directory, audit is not None), "weights_only": True}
        length = {"max_epochs": 2}
    trainer = trainer_for(directory, *callbacks, **(length | options))
    if faults is None:
        trainer.fit(module, **given)
    else:
        with faults:
            trainer.fit(module, **given)
    flat = torch.cat([p.detach().flatten().double() for p in module.parameters()])
    path = directory / "audit" / "report.json"
    report = AuditReport.load(path) if path.exists() else None
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    return Trained(flat, states, module, audit, report, trainer.global_step)


def saved(directory: Path, audited: bool) -> Path:
    """A checkpoint in the middle of a training."""
    trainer = trainer_for(
        directory, *([PrivacyAudit(seed=1, examinations=0)] if audited else []), max_epochs=1
    )
    trainer.fit(Kept())
    path = directory / "middle.ckpt"
    trainer.save_checkpoint(path)
    torch.manual_seed(4)
    return path


def changes(plain: Trained, audited: Trained) -> list[str]:
    """What an audited training with a fault left different from the unaudited one."""
    found = []
    off = float(torch.linalg.norm(audited.weights - plain.weights))
    if not off <= 1e-6 * float(torch.linalg.norm(plain.weights)):
        found.append(f"weights are off by {off:g}")
    same = (
        torch.equal(plain.generators[0], audited.generators[0]),
        np.array_equal(plain.generators[1], audited.generators[1]),
        plain.generators[2] == audited.generators[2],
    )
    if not all(same):
        found.append(f"generators differ: {same}")
    return found + hooks_left(audited.module)


def differences(plain: Trained, audited: Trained, place: str, said: str) -> list[str]:
    """What of an audited training with a fault is not as it must be."""
    found, report = changes(plain, audited), audited.report
    notes = () if report is None else report.notes
    if any(place and place in note and "could not be read" in note for note in notes):
        return found  # of a setting, which no check needs
    if "details failed" in said and place in said:
        return found  # of a report that a later one replaced
    if report is None:
        found.append("no report")
    elif report.verdict.outcome == "PASS":
        found.append("PASS")
    elif place and not any(place in item for item in (*report.pass_blockers, *report.notes)):
        found.append(f"the report does not name {place}: {report.pass_blockers} {report.notes}")
    if place and place not in said:
        found.append("the log does not name it")
    return found


def hooks_left(module: pl.LightningModule) -> list[str]:
    """Hooks of the audit that are still there."""
    found = []
    optimizers = module.optimizers()
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        inner = innermost(optimizer)
        found += [f"step hooks: {inner}"] * bool(
            inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks
        )
        raw = getattr(optimizer, "_optimizer", optimizer)
        found += [f"{n} of the optimizer" for n in ("pre_step", "add_noise") if n in vars(raw)]
    for p in module.parameters():
        found += ["hook of a gradient"] * bool(getattr(p, "_post_accumulate_grad_hooks", None))
    if torch.nn.modules.module._global_forward_hooks:
        found.append("global forward hook")
    return found


def try_one(directory: Path, name: str, plain: Trained, faults: Faults, log: Any) -> list[str]:
    """Train with a fault; what is not as it must be."""
    log.clear()
    try:
        audited = train(directory, name, faults)
    except BaseException as error:
        return [f"fit ended: {type(error).__name__}: {error}"]
    said = "\n".join(r.getMessage() for r in log.records if r.levelno >= logging.WARNING)
    return differences(plain, audited, faults.place, said)
