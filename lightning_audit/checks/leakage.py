"""How much leaks: the mu of a step, and the epsilon of the run."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.family import Evidence
from lightning_audit.results import CheckResult
from lightning_audit.stats.error_rate_bet import ErrorRateBet
from lightning_audit.stats.gaussian import mu_noncentral_t
from lightning_audit.stats.mu_test import MuTest
from lightning_audit.stats.sequential import is_look
from lightning_audit.store import RecordHeader

#: Grid of one step's mu, relative to the first step's claim; 2 % apart.
_MU_GRID = np.geomspace(0.01, 12.0, 359)


_NOT_FAIR = (
    "left out, as the coins are not fair: a data term that is skewed would look like leakage; the "
    "tests `sensitivity`, `noise` and `epsilon` have no such weakness"
)


class MuCheck:
    """`mu`: shift over standard deviation of a step against 1 / noise_multiplier.

    Of fair coins alone; `two_sample_t_log_e` says why.
    """

    _fair = True  # in snapshots of the first release

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._fair = header.coin_probability == 0.5
        self._test = MuTest((len(header.canaries),), header.signal)
        self._seen = 0
        self.evidence = Evidence("mu", significance)

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        if not self._fair:
            return
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._test.update(coins, np.asarray(entry["readings"]), float(entry["noise_multiplier"]))
        self._seen += 1
        if is_look(self._seen):
            self.evidence.update(float(self._test.log_e), int(entry["step"]))

    def mu_lower(self, significance: float) -> tuple[float, float]:
        """Lower limit of one step's mu for one look, and the noise multiplier it was seen at."""
        sigma = self._test.noise_multiplier
        if sigma is None:
            return 0.0, 1.0
        n_in, n_out, difference, squares = (v.item() for v in self._test.statistics)
        if squares == 0.0 and n_in + n_out > 2:  # no noise at all
            return (math.inf if difference > 0 else 0.0), sigma
        return mu_noncentral_t(int(n_in), int(n_out), difference, squares, significance), sigma

    def results(self) -> tuple[CheckResult, ...]:
        """Result of the check."""
        if not self._fair:
            return (CheckResult("mu", "mechanism", "not_run", _NOT_FAIR),)
        return (
            self.evidence.result(
                "one step's mu is not above the claim",
                "one step leaks more than 1 / noise_multiplier (mu) allows",
                "the other findings say whether the noise or the clipping is at fault",
                {"frozen": self._test.frozen},
            ),
        )


class LeakageBound:
    """Lower bounds on ``r``: not every step was (r / noise_multiplier)-GDP."""

    _coin_probability = 0.5  # in snapshots of the first release

    def __init__(self, header: RecordHeader) -> None:
        self._k = len(header.canaries)
        self._coin_probability = header.coin_probability
        self._bet: ErrorRateBet | None = None

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        sigma = float(entry["noise_multiplier"])
        if self._bet is None:
            self._bet = ErrorRateBet((self._k,), sigma * _MU_GRID, self._coin_probability)
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._bet.update(coins, np.asarray(entry["readings"]), sigma)

    def ratio_lower(self, significance: float) -> float:
        """The bound at ``significance``, valid at all times together; 0 if nothing is proved."""
        return float(self._bet.ratio_lower(significance)) if self._bet is not None else 0.0
