"""Check of what the noisy sum is divided by: `batch_normalised`."""

from __future__ import annotations

import dataclasses

import numpy as np

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_at_entries import NOISE_ENTRIES, NOISE_WHOLE
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
    "`noise.step`; the report says if the divisor could not be tested)",
    title="Divisor of the noisy sum",
    failed_title="Divided by actual batch size",
    meaning="The noisy sum is divided by the number of records that were drawn, so large batches "
    "have too little noise.",
    look_at="Check the division after the noise: the divisor must be the expected batch size, a "
    "constant.",
    topic="Noise",
    needs="no step was read whose other possible divisors are known",
    fine="the noisy sum is divided by the stated divisor",
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
            headline="The noisy sum is divided by the actual batch size",
            rank=0,
            explains=(NOISE_SHAPE.name, NOISE_ENTRIES.name, NOISE_WHOLE.name),
            explains_groups=("clipping", "reuse", "leakage"),
        ),
    ),
)

CHECKS = (BATCH_NORMALISED,)

#: Message if no other divisor was found, but data may mask one.
_BESIDE_DATA = (
    "no evidence against the stated divisor; the sums before the noise are not shown, so large "
    "data may mask another divisor"
)


class StatedDivisor:
    """Statistic of `batch_normalised`: tests the stated divisor against other possible divisors.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._bet, self._small = DivisorTest(), QuietEntries()
        self._test = BATCH_NORMALISED.test(significance)
        self._beside_data = False

    def update(self, seen: NoiseSeen, step: int) -> None:
        """Update with a step, if another divisor than the stated one is possible."""
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
        """Return the check's result; ``lack`` is the reason why it cannot be tested, or empty."""
        return BATCH_NORMALISED.result(
            self._test,
            _BESIDE_DATA if self._beside_data else BATCH_NORMALISED.fine,
            "the noisy sum is divided by the actual number of samples in the batch, so the size of "
            "the gradient and of its noise reveals that number",
            "divide by the expected batch size, which is the same at every step",
            {},
            lack,
        )
