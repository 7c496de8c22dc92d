"""Configurations that cannot be audited, refused before the first step with what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from opacus.optimizers import DPOptimizer

from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.claims import PrivacyClaim
from lightning_audit.dpsgd.manual import ManualStep, stated_claim
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import UnsupportedOptimizer

if TYPE_CHECKING:
    import pytorch_lightning as pl

_UNSUPPORTED_PRECISION = ("16-mixed", "16-true", "16")


def refuse_trainer(trainer: pl.Trainer, audits: int) -> None:
    """Raise if this Trainer cannot be audited.

    Args:
        trainer: the Trainer.
        audits: number of audits among its callbacks.

    Raises:
        MisconfigurationException: several audits, several processes, or fp16.
    """
    if audits > 1:
        raise MisconfigurationException(
            f"The Trainer has {audits} PrivacyAudit callbacks; each would take the others' "
            "canaries for a fault. Keep one."
        )
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"PrivacyAudit audits one process, the Trainer has {trainer.world_size}; train with "
            "devices=1 to audit."
        )
    if str(trainer.precision) in _UNSUPPORTED_PRECISION:
        raise MisconfigurationException(
            f"PrivacyAudit cannot audit precision={trainer.precision!r}: its gradient scaler "
            "multiplies per-sample gradients before they are clipped; use '32-true' or "
            "'bf16-mixed'."
        )


def chosen_optimizer(optimizers: Sequence[Any]) -> DPOptimizer | None:
    """The private optimizer of a training, None if it has none.

    Args:
        optimizers: the Trainer's optimizers.

    Raises:
        MisconfigurationException: several private optimizers.
    """
    private = [o for o in map(private_optimizer, optimizers) if o is not None]
    if len(private) > 1:
        raise MisconfigurationException(
            f"PrivacyAudit audits one private optimizer, the module has {len(private)}; give all "
            "parameters to one optimizer, as parameter groups."
        )
    return private[0] if private else None


def hand_written_step(
    claim: PrivacyClaim, optimizers: Sequence[Any], module: pl.LightningModule
) -> ManualStep:
    """The step of a training that states DP-SGD and has no private optimizer.

    Args:
        claim: what the user states of the training, with a noise multiplier.
        optimizers: the Trainer's optimizers.
        module: the module that they train.

    Raises:
        MisconfigurationException: the claim lacks a part, there is not one optimizer, or its
            updates cannot be observed.
    """
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
        step = ManualStep(optimizers[0], names, stated)
    except (ValueError, UnsupportedOptimizer) as error:
        raise MisconfigurationException(str(error)) from error
    _refuse_late_clipping(module, step)
    return step


def _refuse_late_clipping(module: pl.LightningModule, step: ManualStep) -> None:
    """Raise if the Trainer clips the gradient that the audit reads, after the noise."""
    trainer = module.trainer
    own = type(module).configure_gradient_clipping
    lightnings = own.__module__.startswith(("pytorch_lightning.", "lightning."))
    late = step.inner is step.optimizer and _is_torchs_own(step.inner)
    if trainer.gradient_clip_val and lightnings and late and module.automatic_optimization:
        raise MisconfigurationException(
            f"gradient_clip_val={trainer.gradient_clip_val!r} clips the gradient that is already "
            "noisy, which makes the noise smaller than claim.noise_multiplier states; leave it "
            "out: hand-written DP-SGD clips each sample itself."
        )


def _is_torchs_own(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).step.__module__.startswith("torch.optim.")
