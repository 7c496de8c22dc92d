"""Checks that noise is drawn independently for each step, coordinate and tensor.

The checks do not use correlations, which data increase in correct runs. They test whether the
variance is too small after a centre is subtracted: the reading some steps ago, the mean of earlier
readings of the step, or the same coordinate of another tensor.
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
    "noise that is not drawn independently",
    title="Noise across steps",
    failed_title="Noise repeats between steps",
    meaning="The same noise is added in several steps, so subtracting one step from another "
    "removes it.",
    look_at="Look for a generator that is seeded or restored between steps.",
    topic="Fresh randomness",
    weight=74,
    group="reuse",
    needs="no reading was compared with one of an earlier step",
    each=True,
    always=True,
    doubtful=True,
)
# One statistic gives the results of these three.
REUSE_LAG = dataclasses.replace(_REUSE, reads="steps", init=lambda *about: ReuseCheck(*about))
REUSE_BROADCAST = dataclasses.replace(
    _REUSE,
    name="reuse.broadcast",
    title="Noise across coordinates",
    failed_title="Coordinates share one noise value",
    meaning="Many coordinates of a step share one draw, so their differences have no noise.",
    look_at="Check the shape that the noise is drawn with: it must be that of the gradient.",
    topic="Fresh randomness",
    # With a tenth of the significance, two steps of shared noise are enough (median of runs).
    weight=113,
    needs="no readings of one step were compared with each other",
)

REUSE_PAIR = dataclasses.replace(
    _REUSE,
    name="reuse.pair",
    title="Noise across tensors",
    failed_title="Tensors share their noise",
    meaning="Two tensors get the same draw, so their difference has no noise.",
    look_at="Check whether one seed or key serves several tensors.",
    topic="Fresh randomness",
    weight=63,
    needs="no readings of two tensors were compared with each other",
)

CHECKS = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR)


class ReuseCheck:
    """Statistic of `reuse.lag`, `reuse.broadcast`, `reuse.pair`, from the probe coordinates."""

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
        """Update with one entry of the record."""
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
        """How often the noise recurs, as text."""
        if self.lag > self._lags:
            return "in every epoch"
        return "at every step" if self.lag == 1 else f"every {self.lag} steps"

    @property
    def lag(self) -> int:
        """The shortest lag at which readings agree about as well as at any lag, in steps.

        A number above `lags` means the same place in another epoch.
        """
        seen = self._lag_count > 0
        if not seen.any():
            return 1
        means = np.where(seen, self._lag_squares / np.maximum(self._lag_count, 1.0), np.inf)
        # Noise that recurs every l steps also recurs every 2 l steps; independent noise of the
        # claimed size reads about 2.
        clear = max(1.2 * means.min(), min(math.sqrt(means.min()), 0.5))
        return int(np.flatnonzero(means <= clear)[0]) + 1

    def lag_ratio(self) -> float:
        """Return the smallest root mean square difference at any lag, over the claimed noise."""
        seen = self._lag_count > 0
        if not seen.any():
            return math.inf
        return math.sqrt(float(np.min(self._lag_squares[seen] / self._lag_count[seen])))

    def residual_ratio(self, name: str) -> float | None:
        """Return the residual of a check of one step over the claimed noise; None if not read."""
        count, squares = self._single[name.removeprefix("reuse.")]
        return float(np.sqrt(squares / count)) if count > 0 else None

    def results(self) -> tuple[CheckResult, ...]:
        """Return the results of the three checks."""
        return (
            REUSE_LAG.result(
                self.evidence["reuse.lag"],
                "no noise recurs at a later step",
                "readings of different steps differ by less than independent noise of the claimed "
                f"size makes them: as if the noise recurred {self.period}",
                "look for a generator that is re-seeded, or restored, between steps",
                {"lag": self.lag, "lags": self._lags},
            ),
            REUSE_BROADCAST.result(
                self.evidence["reuse.broadcast"],
                "coordinates of a step have independent noise",
                "the coordinates of a step differ by less than independent noise makes them",
                "look for a noise drawn with too small a shape and broadcast over the gradient",
                {"residual_ratio": self.residual_ratio("reuse.broadcast")},
            ),
            REUSE_PAIR.result(
                self.evidence["reuse.pair"],
                "tensors have independent noise",
                "tensors differ by less than independent noise makes them",
                "look for one seed or key that is used for every tensor of a step",
                {"residual_ratio": self.residual_ratio("reuse.pair")},
            ),
        )
