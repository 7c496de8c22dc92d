"""Configurations that cannot be audited, refused before the first step with what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opacus.optimizers import DPOptimizer

from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.claims import PrivacyClaim
from lightning_audit.dpsgd.manual import ManualStep, stated_claim
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import UnsupportedOptimizer

if TYPE_CHECKING:
    import pytorch_lightning as pl

#: Strategies that leave each process a part of the parameters, or run outside torch's processes.
_SHARDING = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAStrategy"}
_UNSUPPORTED_PRECISION = ("16-mixed", "16-true", "16")


def refuse_trainer(trainer: pl.Trainer, audits: int) -> None:
    """Raise if this Trainer cannot be audited.

    Args:
        trainer: the Trainer.
        audits: number of audits among its callbacks.

    Raises:
        MisconfigurationException: several audits, fp16, or a strategy that shards parameters.
    """
    if audits > 1:
        raise MisconfigurationException(
            f"The Trainer has {audits} PrivacyAudit callbacks; each would take the others' "
            "canaries for a fault. Keep one."
        )
    _refuse_strategy(trainer)
    if str(trainer.precision) in _UNSUPPORTED_PRECISION:
        raise MisconfigurationException(
            f"PrivacyAudit cannot audit precision={trainer.precision!r}: its gradient scaler "
            "multiplies per-sample gradients before they are clipped; use '32-true' or "
            "'bf16-mixed'."
        )


def _refuse_strategy(trainer: pl.Trainer) -> None:
    strategy = type(trainer.strategy)
    # By name, since each of Lightning's two packages has classes of its own.
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


def private_optimizers(optimizers: Sequence[Any]) -> list[DPOptimizer]:
    """The private optimizers of a training.

    Args:
        optimizers: the Trainer's optimizers.

    Raises:
        MisconfigurationException: two of them train the same parameter.
    """
    private = [o for o in map(private_optimizer, optimizers) if o is not None]
    owners: dict[int, int] = {}
    for number, optimizer in enumerate(private, 1):
        for param in optimizer.params:
            owner = owners.setdefault(id(param), number)
            if owner != number:
                raise MisconfigurationException(
                    f"the private optimizers {owner} and {number} both train a parameter of shape "
                    f"{tuple(param.shape)}: each would clip the other's canaries. Give every "
                    "parameter to one optimizer to audit."
                )
    return private


def refuse_several(count: int, canaries: Sequence[object], processes: int) -> None:
    """Raise if so many private optimizers cannot be audited together.

    Args:
        count: number of private optimizers.
        canaries: of the audit.
        processes: number of processes.

    Raises:
        MisconfigurationException: an input canary, or more than one process.
    """
    if count < 2:
        return
    if any(isinstance(canary, InputCanary) for canary in canaries):
        raise MisconfigurationException(
            f"canaries={list(canaries)!r} would join the gradients of all {count} private "
            "optimizers at once; use gradient canaries, such as Dirac()."
        )
    if processes > 1:
        raise MisconfigurationException(
            f"PrivacyAudit audits {count} private optimizers in one process, the Trainer has "
            f"{processes}; train with devices=1, or give all parameters to one optimizer, as "
            "parameter groups."
        )


def hand_written_step(
    claim: PrivacyClaim, optimizers: Sequence[Any], module: pl.LightningModule
) -> ManualStep:
    """The step of a training that states DP-SGD and has no private optimizer.

    Args:
        claim: what the user states of the training, with a noise multiplier.
        optimizers: the Trainer's optimizers.
        module: the module that they train.

    Raises:
        MisconfigurationException: the claim lacks a part, there is not one optimizer or process,
            or the updates cannot be observed.
    """
    if module.trainer.world_size > 1:
        raise MisconfigurationException(
            f"PrivacyAudit audits hand-written DP-SGD in one process, the Trainer has "
            f"{module.trainer.world_size}; train with devices=1 to audit."
        )
    if len(optimizers) != 1:
        raise MisconfigurationException(
            f"claim.noise_multiplier={claim.noise_multiplier!r} states DP-SGD, no optimizer is "
            f"Opacus' DPOptimizer, and the module has {len(optimizers)} optimizers: it cannot be "
            "told which one takes the noisy gradient. Give all parameters to one optimizer, as "
            "parameter groups."
        )
    try:
        stated = stated_claim(claim)
        names = {id(p): name for name, p in module.named_parameters()}
        return ManualStep(optimizers[0], names, stated)
    except (ValueError, UnsupportedOptimizer) as error:
        raise MisconfigurationException(str(error)) from error
