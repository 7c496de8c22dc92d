"""Does the noise of a step depend on that of earlier steps, by whatever rule?"""

from __future__ import annotations

from lightning_audit.catalogue.reuse_checks import REUSE_FORECAST
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.forecast import ForecastBet, LatestNoise

#: Steps of which each is a look, and one in so many later.
_EACH, _LATER = 20, 4


class NoiseForecast:
    """`reuse.forecast`: forecasts of the noise from the steps before.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = LatestNoise()
        self._bet = ForecastBet()
        self._test = REUSE_FORECAST.test(significance)

    def update(self, readings: FloatArray, step: int) -> None:
        """Take in a step's noise, beside data where it is not known alone, ``[n]``."""
        self._bet.update(self._past.before(step, len(readings)), readings)
        self._past.add(readings, step)
        if self._bet.compared and (step < _EACH or step % _LATER == 0):
            self._test.update(self._bet.log_e, step)

    def result(self, lack: str) -> CheckResult:
        """Result of the check; ``lack`` is why no noise was seen."""
        lag, coefficient = self._bet.best
        by = f"that of {lag} steps before" if lag > 1 else "that of the step before"
        by = by if lag else "the sum of all noise so far"
        return REUSE_FORECAST.result(
            self._test,
            REUSE_FORECAST.fine,
            "forecasts made of earlier steps leave less than the claimed noise: the best one takes "
            f"{coefficient:.2g} times {by}, and leaves {self._bet.left:.0%} of the variance",
            "draw all noise from one generator that is seeded once, and add each draw to one step "
            "alone, without a rest of earlier ones",
            {
                "lag": lag,
                "coefficient": coefficient,
                "left": self._bet.left,
                "ratio": self._bet.ratio,
            },
            lack,
        )
