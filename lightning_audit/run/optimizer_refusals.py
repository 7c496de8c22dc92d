"""Refuse optimizers that cannot be audited, before the first step, and say what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from opacus.optimizers import DPOptimizer

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.update.no_dp import NO_DP
from lightning_audit.dpsgd.manual import ManualStep, stated_claim
from lightning_audit.dpsgd.opacus import innermost, private_optimizer
from lightning_audit.dpsgd.protocol import UnsupportedOptimizer
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.verdict.exemptions import Allow

if TYPE_CHECKING:
    import pytorch_lightning as pl
    import torch


def private_optimizers(optimizers: Sequence[Any]) -> list[DPOptimizer]:
    """Return the private ones of the Trainer's optimizers.

    Raises:
        UnauditableTraining: two of them train the same parameter, or one wraps another.
    """
    private = [o for o in map(private_optimizer, optimizers) if o is not None]
    for outer in private:
        if (inner := private_optimizer(outer.original_optimizer)) is not None:
            raise UnauditableTraining(
                f"{type(outer).__name__} wraps {type(inner).__name__}: each clips and adds noise, "
                "and the second clips what the first has clipped. Call make_private once, with a "
                "plain torch optimizer, and return its result from configure_optimizers."
            )
    owners: dict[int, int] = {}
    for number, optimizer in enumerate(private, 1):
        for param in optimizer.params:
            owner = owners.setdefault(id(param), number)
            if owner != number:
                raise UnauditableTraining(
                    f"the private optimizers {owner} and {number} both train a parameter of shape "
                    f"{tuple(param.shape)}: each would clip the other's canaries. Give every "
                    "parameter to one optimizer to audit."
                )
    return private


@dataclass(frozen=True)
class ScopedOptimizer:
    """An optimizer of the Trainer, and the findings that the user allows for it alone.

    Args:
        optimizer: as the Trainer has it.
        names: of its parameters.
        allowed: the user's exemptions for this optimizer.
    """

    optimizer: Any
    names: tuple[str, ...]
    allowed: tuple[Allow, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings that are allowed."""
        return tuple(one.finding for one in self.allowed)

    @property
    def exempt(self) -> str:
        """The text that names its steps without DP-SGD as exempt, or empty."""
        kind = type(innermost(self.optimizer)).__name__
        found = (one for one in self.allowed if one.finding == "no_dp")
        return next((f"{kind},{one.scope[3:]} ({one.reason})" for one in found), "")

    def watched(self, module: torch.nn.Module) -> tuple[Any, str, torch.nn.Module | None]:
        """Return the arguments of `PlainSteps.watch`, given the user's module."""
        levels = zip(*(name.split(".")[:-1] for name in self.names), strict=False)
        common = [level[0] for level in takewhile(lambda level: len({*level}) == 1, levels)]
        holder = module.get_submodule(".".join(common)) if common else None
        return innermost(self.optimizer), self.exempt, holder


def scoped_optimizers(
    optimizers: Sequence[Any], names: Mapping[int, str], allowed: Sequence[Allow]
) -> list[ScopedOptimizer]:
    """Return the Trainer's optimizers, each with the findings allowed for it alone.

    Args:
        optimizers: the Trainer's.
        names: of the module's parameters, by their identity.
        allowed: by the user.

    Raises:
        UnauditableTraining: an exemption fits no optimizer or several, allows `no_dp` for a private
            optimizer, or names parameters that do not exist.
    """
    scoped = []
    for place, optimizer in enumerate(optimizers):
        inner = innermost(optimizer)
        params = [p for group in inner.param_groups for p in group["params"]]
        own = tuple(names.get(id(p), "") for p in params)  # without a name it has no prefix
        kind = type(inner).__name__
        of_it = tuple(one for one in allowed if one.is_of(place, kind, own))
        scoped.append(ScopedOptimizer(optimizer, own, of_it))
    for one in allowed:
        _refuse_misfit(one, scoped)
        pattern = one.parameters
        if pattern is not None and not any(fnmatchcase(name, pattern) for name in names.values()):
            raise UnauditableTraining(
                f"allow: parameters={pattern!r} matches none of the module's parameters: "
                f"{_shown(list(names.values()))}."
            )
    return scoped


def _refuse_misfit(one: Allow, scoped: Sequence[ScopedOptimizer]) -> None:
    """Raise if an exemption for one optimizer fits none of them, or several."""
    if one.optimizer is None or not scoped:
        return
    fits = [found for found in scoped if one in found.allowed]
    if len(fits) != 1:
        listed = "; ".join(
            f"{place} is {type(innermost(found.optimizer)).__name__} of {_shown(found.names)}"
            for place, found in enumerate(scoped)
        )
        which = f"is {len(fits)} of the training's" if fits else "is none of the training's"
        raise UnauditableTraining(
            f"allow: optimizer={one.optimizer!r} {which}: {listed}. Name its place, its class, or "
            "the prefix of all its parameters, so that it fits one optimizer alone."
        )
    if one.finding == NO_DP.name and private_optimizer(fits[0].optimizer) is not None:
        raise UnauditableTraining(
            f"allow: optimizer={one.optimizer!r} is private, so {one.finding!r} does not apply to "
            "it; name the optimizer that steps without DP-SGD."
        )


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" if name else "one outside the module" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown or "no parameter"


def refuse_several(count: int, canaries: Sequence[object], processes: int) -> None:
    """Raise if ``count`` private optimizers cannot be audited together with these canaries.

    Raises:
        UnauditableTraining: several optimizers with an input canary or several processes.
    """
    if count < 2:
        return
    if any(isinstance(canary, InputCanary) for canary in canaries):
        raise UnauditableTraining(
            f"canaries={list(canaries)!r} would be in the gradients of all {count} private "
            "optimizers at once; use gradient canaries, such as Dirac()."
        )
    if processes > 1:
        raise UnauditableTraining(
            f"PrivacyAudit audits {count} private optimizers in one process only, the Trainer has "
            f"{processes}; train with devices=1, or give all parameters to one optimizer, as "
            "parameter groups."
        )


def hand_written_step(
    claim: PrivacyClaim, optimizers: Sequence[Any], module: pl.LightningModule
) -> ManualStep:
    """Return the step of a training that claims DP-SGD without a private optimizer.

    Args:
        claim: the user's, with a noise multiplier.
        optimizers: the Trainer's.
        module: the user's.

    Raises:
        UnauditableTraining: the claim lacks a part, there is more than one optimizer or process,
            or the updates cannot be observed.
    """
    if module.trainer.world_size > 1:
        raise UnauditableTraining(
            f"PrivacyAudit audits hand-written DP-SGD in one process only, the Trainer has "
            f"{module.trainer.world_size}; train with devices=1 to audit."
        )
    if len(optimizers) != 1:
        raise UnauditableTraining(
            f"claim.noise_multiplier={claim.noise_multiplier!r} states DP-SGD, no optimizer is "
            f"Opacus' DPOptimizer, and the module has {len(optimizers)} optimizers: it is unknown "
            "which one takes the noisy gradient. Give all parameters to one optimizer, as "
            "parameter groups."
        )
    try:
        stated = stated_claim(claim)
        names = {id(p): name for name, p in module.named_parameters()}
        return ManualStep(optimizers[0], names, stated)
    except (ValueError, UnsupportedOptimizer) as error:
        raise UnauditableTraining(str(error)) from error
