"""Is the noise drawn anew for every step, coordinate and tensor?

Not by correlations, which data raise in correct runs, but by a residual variance that becomes too
small once the right centre is taken out: the reading some steps ago, the mean of the earlier
readings of the step, the same coordinate of another tensor.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.base.check import Check
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import is_look, log_mean_exp

_REUSE = Check(
    "reuse.lag",
    "noise that is not drawn anew",
    weight=80,
    group="reuse",
    needs="no reading was compared with that of an earlier step",
    each=True,
    always=True,
    doubtful=True,
)
# One statistic gives the results of these three.
REUSE_LAG = dataclasses.replace(_REUSE, reads="steps", init=lambda *about: ReuseCheck(*about))
REUSE_BROADCAST = dataclasses.replace(
    _REUSE,
    name="reuse.broadcast",
    weight=100,
    needs="no readings of one step were compared with each other",
)

REUSE_PAIR = dataclasses.replace(
    _REUSE,
    name="reuse.pair",
    weight=70,
    needs="no readings of two tensors were compared with each other",
)

CHECKS = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR)


class ReuseCheck:
    """`reuse.lag`, `reuse.broadcast` and `reuse.pair`, from the witness coordinates."""

    def __init__(self, header: RecordHeader, significance: float) -> None:
        # The short lags, then the same place in the previous and in the first epoch.
        self._lags = header.lags
        self._seen = 0
        self._lag_count = np.zeros(header.lags + 2)
        self._lag_squares = np.zeros(header.lags + 2)
        self._single = {"broadcast": np.zeros(2), "pair": np.zeros(2)}
        checks = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR)
        self.evidence = {check.name: check.test(significance) for check in checks}

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry of the record."""
        step = int(entry["step"])
        count, squares = np.asarray(entry["lag_count"]), np.asarray(entry["lag_squares"])
        count = np.concatenate([count, entry["epoch_count"]])
        squares = np.concatenate([squares, entry["epoch_squares"]])
        self._seen += 1
        look = is_look(self._seen)
        if count.any() and np.isfinite(squares).all():
            self._lag_count += count
            self._lag_squares += squares
            if look:
                log_e = log_mean_exp(noise_log_e(self._lag_count, self._lag_squares))
                self.evidence["reuse.lag"].update(float(log_e), step)
        for name, sums in self._single.items():
            terms = np.array([entry[f"{name}_count"], entry[f"{name}_squares"]], dtype=np.float64)
            if terms[0] > 0 and np.isfinite(terms).all():
                sums += terms
                if look:
                    self.evidence[f"reuse.{name}"].update(float(noise_log_e(*sums)), step)

    @property
    def lags(self) -> int:
        """Number of lags at which steps are compared; see `lag`."""
        return self._lags

    @property
    def period(self) -> str:
        """How often the noise comes back, in words."""
        if self.lag > self._lags:
            return "in every epoch"
        return "at every step" if self.lag == 1 else f"every {self.lag} steps"

    @property
    def lag(self) -> int:
        """The shortest lag at which readings agree about as well as at any, in steps.

        More than the number of lags stands for the same place in another epoch.
        """
        seen = self._lag_count > 0
        if not seen.any():
            return 1
        means = np.where(seen, self._lag_squares / np.maximum(self._lag_count, 1.0), np.inf)
        # Noise that comes back every l steps comes back every 2 l steps as well; fresh noise of
        # the claimed size reads about 2.
        clear = max(1.2 * means.min(), min(math.sqrt(means.min()), 0.5))
        return int(np.flatnonzero(means <= clear)[0]) + 1

    def lag_ratio(self) -> float:
        """Smallest root mean square of the differences at any lag, over the claimed noise."""
        seen = self._lag_count > 0
        if not seen.any():
            return math.inf
        return math.sqrt(float(np.min(self._lag_squares[seen] / self._lag_count[seen])))

    def residual_ratio(self, name: str) -> float | None:
        """Residual of `reuse.broadcast` or `reuse.pair` over the claimed noise, None if unseen."""
        count, squares = self._single[name.removeprefix("reuse.")]
        return float(np.sqrt(squares / count)) if count > 0 else None

    def results(self) -> tuple[CheckResult, ...]:
        """Results of the three checks."""
        return (
            REUSE_LAG.result(
                self.evidence["reuse.lag"],
                "no noise comes back at a later step",
                "readings of different steps differ by less than fresh noise of the claimed size "
                f"makes them: as if the noise came back {self.period}",
                "look for a generator that is seeded again, or restored, between steps",
                {"lag": self.lag, "lags": self._lags},
            ),
            REUSE_BROADCAST.result(
                self.evidence["reuse.broadcast"],
                "coordinates of a step have noise of their own",
                "the coordinates of a step differ by less than noise of their own makes them",
                "look for a noise drawn with too small a shape and broadcast over the gradient",
                {"residual_ratio": self.residual_ratio("reuse.broadcast")},
            ),
            REUSE_PAIR.result(
                self.evidence["reuse.pair"],
                "tensors have noise of their own",
                "tensors differ by less than noise of their own makes them",
                "look for one seed or key that is used for every tensor of a step",
                {"residual_ratio": self.residual_ratio("reuse.pair")},
            ),
        )
