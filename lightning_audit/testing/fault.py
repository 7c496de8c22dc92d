"""What a fault is, how to declare it on the class that has it, and how to plant it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeVar

from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)

from lightning_audit.checks.check import REGISTRY
from lightning_audit.files import with_extra
from lightning_audit.testing.trainings import Training

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
        optimizer: the faulty class, for faults that can be planted.
        training: a class of `lightning_audit.testing.trainings`, or of `faulty_trainings` there,
            that shows the fault.
        settings: of that training; a planted fault may be harmless without them.
        audit: arguments of `PrivacyAudit` for that training.
        steps: number of steps within which that training shows the fault.
        ends: outcome of that training's audit.
        reason: why the fault is found late, if it is.
        named: name of the first of `Verdict.faults`, if it differs from the fault's name.
        otherwise: another name of that one, if the noise decides which of two comes first.
        check: of a fault that loses no privacy: name of the check that warns, or whose result shows
            the fault without a warning; empty if a note of the report states the fault.
        sentence: of such a fault: the whole message of that check, or the whole note.
        shows: of such a fault: key of the check's evidence that has a value if the fault is there.
        processes: number of processes that train; for several see
            `lightning_audit.testing.runs.train_together`.
        trainer: further arguments of the Trainer.
        resumes: whether it is trained in two runs, the second from a checkpoint of the first.
    """

    name: str
    wrong: str
    met_in: str
    optimizer: type[DPOptimizer] | None = None
    training: type[Training] = Training
    settings: Mapping[str, float] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 20
    ends: Literal["PASS", "VIOLATION", "INCONCLUSIVE"] = "VIOLATION"
    reason: str = ""
    named: str = ""
    otherwise: str = ""
    check: str = ""
    sentence: str = ""
    shows: str = ""
    processes: int = 1
    trainer: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False

    @property
    def warn_only(self) -> bool:
        """Whether no privacy is lost, so that no gate fails."""
        return self.ends != "VIOLATION"

    @property
    def remarked(self) -> bool:
        """Whether no privacy is lost and no check warns: a note or a check's result shows it."""
        return self.warn_only and not (self.check and REGISTRY[self.check].warns)

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


#: The faults by name, in the order in which they are declared.
DECLARED: dict[str, Fault] = {}
_Faulty = TypeVar("_Faulty", bound=type)


def fault(met_in: str, *, wrong: str = "", **more: Any) -> Callable[[_Faulty], _Faulty]:
    """Declare a fault, on the class of the optimizer or of the training that has it.

    The class has the name of the fault: ``ClipAtTwice`` is "clip_at_twice".

    Args:
        met_in: see `Fault`.
        wrong: see `Fault`; empty for the first line of the class's docstring.
        more: further arguments of `Fault`.
    """

    def declare(kind: _Faulty) -> _Faulty:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        line = (kind.__doc__ or "").split("\n")[0].rstrip(".")
        of = "optimizer" if issubclass(kind, DPOptimizer) else "training"
        said = wrong or line[:1].lower() + line[1:]
        DECLARED[name] = Fault(name, said, met_in, **{**more, of: kind})
        return kind

    return declare


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
