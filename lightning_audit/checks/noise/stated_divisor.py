"""What the noisy sum is divided by: `batch_normalised`."""

from __future__ import annotations

import dataclasses

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE

BATCH_NORMALISED = dataclasses.replace(
    NOISE_SHAPE,
    name="batch_normalised",
    finds="the noisy sum is divided by the number of records that the batch happens to have "
    "(Opacus' optimizers in one process; by hand where gradients pass through "
    "lightning_audit.per_sample and the data leave enough of the noise to see, sometimes as "
    "`noise.step`; the report says where it could not be told)",
    needs="no step was read of which it is known what else it may be divided by",
    fine="the noisy sum is divided by what is stated",
    public=("message",),
    faults=(
        FaultRule(
            "divides_by_realised_batch",
            "divided by the realised batch size: the noise of a step depends on how many records "
            "it drew, and large batches have too little",
            "what the sum of gradients and noise is divided by: it must be the expected batch "
            "size, a constant",
            rank=0,
            explains=("noise.shape", "noise.entries", "noise.whole"),
            explains_groups=("clipping", "reuse", "leakage"),
        ),
    ),
)

CHECKS = (BATCH_NORMALISED,)
