"""What the noisy sum is divided by: `batch_normalised`."""

from __future__ import annotations

import dataclasses

import numpy as np

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseSeen
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.divisor import DivisorTest, QuietEntries

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
    reads=None,
    init=None,
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

#: Said if no other divisor was found, and the data may hide one.
_BESIDE_DATA = (
    "no evidence against the stated divisor; the sums before the noise are not shown, so that "
    "large data may hide another one"
)


class StatedDivisor:
    """`batch_normalised`: the noise of a step over the divisors that it may have instead.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._bet, self._small = DivisorTest(), QuietEntries()
        self._test = BATCH_NORMALISED.test(significance)
        self._beside_data = False

    def update(self, seen: NoiseSeen, step: int) -> None:
        """Add a step, if it may have another divisor than the stated one."""
        if not seen.divisors:
            return
        self._beside_data |= seen.sums is None
        released, sums = seen.released, seen.sums
        if sums is None:
            released = self._small.take(released, seen.noise_multiplier)
            sums = np.zeros_like(released)
        self._bet.update(released, sums, seen.noise_multiplier, seen.divisors)
        self._test.update(self._bet.log_e, step)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller in larger batches."""
        return self._bet.shrinks_with_divisor

    def result(self, lack: str) -> CheckResult:
        """Result of the check; ``lack`` is why nothing can be seen, or empty."""
        return BATCH_NORMALISED.result(
            self._test,
            _BESIDE_DATA if self._beside_data else BATCH_NORMALISED.fine,
            "the noisy sum is divided by the number of samples that the batch happens to have, so "
            "that the size of the gradient and of its noise reveals it",
            "divide by the expected batch size, which is the same at every step",
            {},
            lack,
        )
