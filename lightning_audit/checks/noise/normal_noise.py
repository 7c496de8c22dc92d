"""Check of the noise's distribution: `noise.shape`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_shape import TailBet, TieBet, repeated_share
from lightning_audit.stats.evalues.sequential import log_mean_exp

# One or two steps show most of these faults, with enough evidence for a small share.
NOISE_SHAPE = Check(
    "noise.shape",
    "noise whose tails are not those of normal noise, or that lies on a lattice",
    title="Distribution of the noise",
    failed_title="Noise is not Gaussian",
    meaning="The noise does not have the tails of a normal distribution, or lies on a lattice, so "
    "the accountant's epsilon does not apply.",
    look_at="Check which distribution is drawn, and whether the noise is rounded, clipped or cast "
    "to low precision afterwards.",
    topic="Noise",
    weight=10,
    group="channel",
    needs="no step's entries were read between its noise and its update",
    each=True,
    always=True,
    doubtful=True,
    private=True,
    fine="the noise has the tails of normal noise, and lies on no lattice",
    reads="readings",
    init=lambda _, significance: NormalNoise(significance),
)

CHECKS = (NOISE_SHAPE,)

#: Smallest shift of `TailBet`, in standard deviations; rounding is as large as a smaller one.
_SMALLEST_SHIFT = 0.01


class NormalNoise:
    """Statistic of `noise.shape`: tails and ties of the readings.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._tails, self._ties = TailBet(), TieBet()
        self._test = NOISE_SHAPE.test(significance)
        #: Share of values that occur more than once in the step at which the test flagged.
        self._repeated = 0.0

    def update(self, step: NoiseStep) -> None:
        """Update with a step's readings."""
        shift = max(1.0 / step.seen.noise_multiplier, _SMALLEST_SHIFT)
        self._tails.update(step.readings, min(1.0, shift))
        self._ties.update(step.readings)
        before = self._test.violated
        both = [self._tails.log_e, self._ties.log_e]
        self._test.update(float(log_mean_exp(both)), step.number)
        if self._test.violated and not before:
            self._repeated = repeated_share(step.readings)

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why the latest step shows no noise."""
        what = (
            "values of the noise repeat exactly, as if it were rounded to a lattice"
            if self._ties.log_e > self._tails.log_e
            else "the noise does not have the distribution of normal noise of the claimed size"
        )
        return NOISE_SHAPE.result(
            self._test,
            NOISE_SHAPE.fine,
            f"{what}: some events reveal one record more than the claim allows",
            "draw the noise with torch.normal or torch.randn in single precision, and neither "
            "round nor clip it",
            {
                "log_e_tails": self._tails.log_e,
                "log_e_ties": self._ties.log_e,
                "repeated": self._repeated,
            },
            lack,
        )
