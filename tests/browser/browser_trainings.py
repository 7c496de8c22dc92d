"""Trainings whose reports the browser shows: of every outcome, and with names that break pages."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate_reports import TRAININGS as OF_THE_GATE
from gate_reports import NotPoisson
from places import DOCS
from shown_code import blocks, run
from torch import nn
from training_support import PrivateModule, digits, trainer_for

from lightning_audit import PrivacyAudit, PrivacyClaim, audit_training
from lightning_audit.many import DPSGDMany, ThisProcess
from lightning_audit.testing.faulty import HalfNoise

#: 300 letters of markup without a place for a break.
LONG = "<img/src=x>&quot;{{7*7}}<script>alert(1)</script>" + 251 * "n"


class LongNames(PrivateModule):
    """Half the noise on tensors and of an optimizer whose names are long and have markup."""

    def __init__(self) -> None:
        layers = OrderedDict(
            {LONG: nn.Linear(64, 32), "relu": nn.ReLU(), "y" * 300: nn.Linear(32, 10)}
        )
        optimizer = type("X" * 300, (HalfNoise,), {})
        super().__init__(nn.Sequential(layers), dataset=digits(), optimizer_class=optimizer)


class Correlated(PrivateModule):
    """The banded noise of the docs, of which no epsilon is composed."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        (code,) = blocks(DOCS / "correlated-noise.md", "python")
        optimizer.__class__ = run(code)["Banded"]
        return optimizer


_CORRELATED = PrivacyClaim(noise_coefficients=(1.0, -0.5, -0.25))
_SHUFFLED = PrivacyClaim(sampling="shuffled", epsilon=1000.0, delta=1e-5)
#: For each page the module, the audit's arguments, and the Trainer's.
TRAININGS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "correct": OF_THE_GATE["correct"],
    "half-noise": OF_THE_GATE["half noise"],
    "short": OF_THE_GATE["short"],
    "one-of-two": OF_THE_GATE["half noise in one of two"],
    "allowed": OF_THE_GATE["allowed"],
    "shuffled": (NotPoisson, {"claim": _SHUFFLED}, {"max_epochs": 2}),
    "correlated": (Correlated, {"claim": _CORRELATED}, {"max_steps": 60}),
    "long-names": (LongNames, {}, {"max_steps": 20}),
}


#: Noise multiplier of each training of an audit over many, whose claim says 4.
MANY = {"many-refuted": 0.5, "many-trainings": 4.0}


def train_many(name: str, folder: Path) -> Path:
    """Audit a training function over many trainings, and return the path of the report."""
    inputs, targets = digits().tensors
    start = nn.Linear(64, 10)
    many = DPSGDMany(
        lambda: start,
        noise_multiplier=MANY[name],
        max_grad_norm=1.0,
        sample_rate=1.0,
        expected_batch_size=60,
        steps=10,
        learning_rate=0.5,
    )
    claim = PrivacyClaim(noise_multiplier=4.0, sample_rate=1.0, steps=10, delta=1e-5)
    audit_training(
        many,
        (inputs[:60], targets[:60]),
        claim,
        trainings=60,
        engine=ThisProcess(),
        store=folder / "audit",
        display=False,
    )
    return folder / "audit" / "report.json"


#: Of the others no step is replayed, which takes most of their time.
_EXAMINED = {"correct", "half-noise"}


def train(name: str, folder: Path) -> Path:
    """Train, and return the path of the report."""
    module, audit, trainer = TRAININGS[name]
    given = {"on_violation": "warn", **({} if name in _EXAMINED else {"examinations": 0}), **audit}
    callback = PrivacyAudit(seed=1, **given)
    trainer_for(folder, callback, **trainer).fit(module())
    return folder / "audit" / "report.json"
