"""The description of a fault, and how to plant it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)

from lightning_audit.checks.check import teller
from lightning_audit.files import with_extra
from lightning_audit.testing import trainings

#: Optimizers that do not clip whole per-sample gradients at one fixed norm.
_CLIP_OTHERWISE = (DPPerLayerOptimizer, AdaClipDPOptimizer, DPOptimizerFastGradientClipping)
#: Optimizer classes that some faults need.
_KINDS = (DPOptimizerFastGradientClipping, DistributedDPOptimizer)


@dataclass(frozen=True)
class Fault:
    """A fault, and how the audit reports it.

    Args:
        name: its name in `lightning_audit.testing.faults.FAULTS`.
        wrong: what is wrong, as text.
        met_in: where the fault was found in practice.
        check: name of the finding that fires; empty if a note of the report states the fault.
        sentence: how `Verdict.fault` begins; for a warning, how its message begins. If left out, it
            comes, like ``check``, from the first check that names the fault; a given
            ``check`` selects that one.
        optimizer: the faulty class, for faults that can be planted.
        training: a class of `lightning_audit.testing.trainings` that shows the fault.
        settings: of that training; a planted fault may be harmless without them.
        audit: arguments of `PrivacyAudit` for that training.
        steps: number of steps within which that training shows the fault.
        ends: outcome of that training's audit.
        warn_only: whether no privacy is lost, so that the check warns and fails no gate.
        reason: why the fault is found late, if it is.
        named: name of the first of `Verdict.faults`, if it differs from the fault's name.
        otherwise: another finding, and how `Verdict.fault` then begins, if the noise decides which
            of two names comes first.
        processes: number of processes that train; for several see
            `lightning_audit.testing.runs.train_together`.
        trainer: further arguments of the Trainer.
        resumes: whether it is trained in two runs, the second from a checkpoint of the first.
        remarked: whether no privacy is lost and no check warns: a note of the report, or the
            message of the check, begins with ``sentence``.
    """

    name: str
    wrong: str
    met_in: str
    check: str = ""
    sentence: str = ""
    optimizer: type[DPOptimizer] | None = None
    training: type[trainings.Training] = trainings.Training
    settings: Mapping[str, float] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 20
    ends: Literal["PASS", "VIOLATION", "INCONCLUSIVE"] = "VIOLATION"
    warn_only: bool = False
    reason: str = ""
    named: str = ""
    otherwise: tuple[str, str] | None = None
    processes: int = 1
    trainer: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False
    remarked: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "warn_only", self.warn_only or self.remarked)
        told = None if self.sentence else teller(self.likely, self.check)
        if told is not None:
            check, rule = told
            object.__setattr__(self, "check", check.name)
            object.__setattr__(self, "sentence", rule.sentence)

    @property
    def likely(self) -> str:
        """Name of the fault that the audit reports as the likeliest."""
        return self.named or self.name

    def apply(self, optimizer: DPOptimizer) -> DPOptimizer:
        """Make a private optimizer faulty; accountant, generator and settings do not change.

        Args:
            optimizer: as `make_private` returned it.

        Returns:
            The same object, of a faulty class.

        Raises:
            TypeError: the fault is not an optimizer's, or ``optimizer`` is not private.
            ValueError: the optimizer's clipping does not fit the fault, or its settings make the
                fault harmless.
        """
        if self.optimizer is None:
            raise TypeError(
                f"{self.name!r} is no optimizer fault; train FAULTS[{self.name!r}].module()."
            )
        if not isinstance(optimizer, DPOptimizer):
            raise TypeError(
                f"optimizer={type(optimizer).__name__} must be the DPOptimizer that make_private "
                "returned; plant the fault in configure_optimizers."
            )
        needed = next((kind for kind in _KINDS if issubclass(self.optimizer, kind)), DPOptimizer)
        if not isinstance(optimizer, needed):
            raise ValueError(
                f"optimizer={type(optimizer).__name__} must be a {needed.__name__} for "
                f"{self.name!r}."
            )
        clips = needed is DPOptimizer and self.optimizer.add_noise is DPOptimizer.add_noise
        if clips and isinstance(optimizer, _CLIP_OTHERWISE):
            raise ValueError(
                f"optimizer={type(optimizer).__name__} does not clip whole gradients at one norm, "
                f"as {self.name!r} needs; use a fault of the noise."
            )
        for setting in self.settings:
            if getattr(optimizer, setting) >= 1.0:
                raise ValueError(
                    f"{setting}={getattr(optimizer, setting)} must be < 1, or {self.name!r} is "
                    "harmless."
                )
        kind = type(optimizer)
        own = self.optimizer
        optimizer.__class__ = own if kind is DPOptimizer else type(own.__name__, (own, kind), {})
        return optimizer

    def module(self, base: type | None = None) -> Any:
        """Make a small training on random data with the fault.

        Args:
            base: the `LightningModule` of either package; None for the first installed one.

        Returns:
            The module, with its own loader and optimizer.
        """
        base = base or lightning().LightningModule
        kind: Any = type(self.training.__name__, (self.training, base), {})
        return kind(self.apply if self.optimizer else None, **self.settings)


def lightning() -> Any:
    """Return the first installed one of Lightning's two packages.

    Raises:
        ImportError: neither is installed.
    """
    for package in ("pytorch_lightning", "lightning.pytorch"):
        try:
            return import_module(package)
        except ImportError:
            continue
    raise ImportError(f"PyTorch Lightning is not installed: {with_extra('lightning')}.")
