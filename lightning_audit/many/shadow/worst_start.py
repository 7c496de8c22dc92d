"""Worst-case initial parameters: a model that was trained on other records, without privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from lightning_audit import _validate
from lightning_audit.many.game.clipped_sums import Loss
from lightning_audit.many.game.records import Records
from lightning_audit.many.game.vectorised import DPSGDMany

__all__ = ["worst_case_start"]


def worst_case_start(
    make_model: Callable[[], nn.Module],
    auxiliary: Any,
    *,
    steps: int,
    learning_rate: float,
    batch_size: int = 64,
    loss: Loss | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a model from whose weights trainings start, so that they hide a canary less.

    After a training without privacy on other records, the gradients of ordinary records are small,
    and that of a canary is large (Annamalai and De Cristofaro, arXiv:2405.14106). The
    guarantee of DP-SGD holds for any initial parameters that do not depend on the audited records,
    so the bounds remain valid.

    Give the result as ``model`` to `DPSGDMany`, or ``lambda: start`` as ``make_model`` to
    `opacus_training`: both train copies of it.

    Args:
        make_model: function without arguments that returns a new model.
        auxiliary: records of the same distribution, none of which is in the audited data set, in
            any form that `DPSGDMany` takes.
        steps: number of steps of SGD with Poisson batches.
        learning_rate: > 0.
        batch_size: expected number of records of a batch; at most all of them.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        seed: of initial weights and batches.

    Returns:
        The trained model.

    Raises:
        ValueError: if an argument is outside its range, or `DPSGDMany` refuses the model.
    """
    size = _validate.positive_int("batch_size", batch_size)
    rate = min(1.0, size / len(Records(auxiliary)))
    train = DPSGDMany(
        make_model,
        loss,
        noise_multiplier=0.0,
        max_grad_norm=math.inf,
        sample_rate=rate,
        expected_batch_size=rate * len(Records(auxiliary)),
        steps=steps,
        learning_rate=learning_rate,
    )
    return train(auxiliary, seed)
