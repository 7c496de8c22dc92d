"""Refuse Trainers that cannot be audited, before the first step, and say what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_audit.callbacks._namespaces import MisconfigurationException

if TYPE_CHECKING:
    import pytorch_lightning as pl

#: Strategies that shard the parameters, or that do not use torch's process groups.
_SHARDING = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAStrategy"}
_UNSUPPORTED_PRECISION = ("16-mixed", "16-true", "16")


def refuse_trainer(trainer: pl.Trainer, audits: int) -> None:
    """Raise if this Trainer, with ``audits`` audits among its callbacks, cannot be audited.

    Raises:
        MisconfigurationException: several audits, fp16, or a strategy that shards parameters.
    """
    if audits > 1:
        raise MisconfigurationException(
            f"The Trainer has {audits} PrivacyAudit callbacks; each would report the others' "
            "canaries as a fault. Keep one."
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
