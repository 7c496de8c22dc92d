"""Warning about noise whose mean is not zero: `noise.mean`."""

from __future__ import annotations

import numpy as np

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_shape import sign_log_e

NOISE_MEAN = Check(
    "noise.mean",
    "noise whose mean is not zero (a warning: no privacy is lost, no gate fails)",
    title="Mean of the noise",
    failed_title="Noise mean is not zero",
    meaning="The noise is not centered at zero; no privacy is lost, but the training drifts.",
    look_at="Check the distribution that the noise is drawn from, and whether a constant is added "
    "to it.",
    topic="Noise",
    weight=500,
    needs=NOISE_SHAPE.needs,
    each=True,
    always=True,
    warns=True,
    private=True,
    fine="the noise is as often above zero as below",
    reads="noise",
    init=lambda _, significance: NoiseMean(significance),
)

CHECKS = (NOISE_MEAN,)


class NoiseMean:
    """Test of the noise's signs against fair coins; its size and its tails do not matter.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._signs = np.zeros(2, dtype=np.int64)
        self._test = NOISE_MEAN.test(significance)

    def update(self, step: NoiseStep) -> None:
        """Update with a step's noise."""
        assert step.noise is not None
        self._signs += [np.sum(step.noise > 0), np.sum(step.noise < 0)]
        self._test.update(sign_log_e(*self._signs.tolist()), step.number)

    def result(self, lack: str = "") -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        positive, negative = self._signs.tolist()
        return NOISE_MEAN.result(
            self._test,
            NOISE_MEAN.fine,
            "the mean of the noise is not zero; that loses no privacy, but biases the training",
            "look at the mean that the noise is drawn with, and whether anything else, such as "
            "momentum or weight decay, is added to the gradient before the update",
            {"positive": positive, "negative": negative},
            lack,
        )
