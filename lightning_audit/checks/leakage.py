"""How much leaks at least: bounds on what a step does, from the record alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.check import Check, FaultRule
from lightning_audit.record.store import RecordHeader
from lightning_audit.stats.bounds.gaussian import mu_noncentral_t
from lightning_audit.stats.evalues.error_rate_bet import ErrorRateBet
from lightning_audit.stats.evalues.rejected_looks import RejectedLooks
from lightning_audit.stats.evalues.sequential import is_look
from lightning_audit.stats.evalues.signal_bet import SignalBet
from lightning_audit.stats.evalues.two_groups import TwoGroups

#: Grid of one step's mu, relative to the first step's claim; 2 % apart.
_MU_GRID = np.geomspace(0.01, 12.0, 359)
#: Grid of what a canary adds over what it may: up to 1 one or two percent apart, coarse elsewhere.
_SIGNAL_GRID = np.concatenate(
    [
        np.arange(0.05, 0.3, 0.05),
        np.arange(0.3, 0.7, 0.02),
        np.arange(0.7, 1.005, 0.01),
        [1.03, 1.07, 1.1, 1.2, 1.3, 1.5, 1.75],
        [2.0, 2.5, 3.0, 5.0, 10.0, 30.0, 100.0, 300.0, 1000.0],
    ]
)


EPSILON = Check(
    "epsilon",
    "more leaks than claimed, over the run",
    kind="epsilon",
    share=0.1,
    group="leakage",
    always=True,
    wrong=lambda seen: (
        seen["epsilon_lower"] is not None
        and exceeds(seen["epsilon_lower"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "leaks_more_than_claimed",
            "more leaks than the claim allows, by noise and clipping together",
            "clipping and noise of each step, and the noise multiplier that the accountant is told",
            rank=1,
        ),
    ),
)


class LeakageBound:
    """Lower bounds on ``r``: the steps were not all (r / noise_multiplier)-GDP.

    What is rejected at a look is about the steps up to that look; see `ErrorRateBet`.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._k = len(header.canaries)
        self._coin_probability = header.coin_probability
        self._bet: ErrorRateBet | None = None
        self._looks: RejectedLooks | None = None
        self._seen = 0

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        sigma = float(entry["noise_multiplier"])
        if self._bet is None or self._looks is None:
            self._bet = ErrorRateBet((self._k,), sigma * _MU_GRID, self._coin_probability)
            self._looks = RejectedLooks(self._bet.ratios)
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._bet.update(coins, np.asarray(entry["readings"]), sigma)
        self._seen += 1
        if is_look(self._seen):
            self._looks.update(self._bet.log_e, int(entry["step"]) + 1)

    def front(self, significance: float) -> list[tuple[float, int]]:
        """Ratios and the numbers of steps up to the looks that reject them.

        All of them hold together with probability ``1 - significance``. The ratios increase and the
        numbers of steps decrease: no other look proves as much of more steps.
        """
        return self._looks.front(significance) if self._looks is not None else []

    def ratio_lower(self, significance: float) -> float:
        """The largest ratio that any look rejected: some step leaks more; 0 if none is proved."""
        return max((ratio for ratio, _ in self.front(significance)), default=0.0)


@dataclass(frozen=True)
class SignalOverNoise:
    """Limits of what a canary adds and of the noise, over their claims, of one look.

    Args:
        signal_lower: a canary adds at least this, in some step.
        noise_upper: the noise is at most this, in some step and coordinate.
    """

    signal_lower: float
    noise_upper: float

    @property
    def ratio_lower(self) -> float:
        """Mu over its claim, where signal and noise over their claims are constant."""
        if self.signal_lower == 0.0:
            return 0.0
        return self.signal_lower / self.noise_upper if self.noise_upper > 0 else math.inf


class SignalBound:
    """A lower limit of what a canary adds: any data, any noise."""

    def __init__(self, header: RecordHeader) -> None:
        self._k = len(header.canaries)
        self._coin_probability = header.coin_probability
        self._bet: SignalBet | None = None

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        if self._bet is None:
            scale = float(entry["noise_multiplier"])
            self._bet = SignalBet((self._k,), _SIGNAL_GRID, scale, self._coin_probability)
        self._bet.update(np.asarray(entry["coins"], dtype=float), np.asarray(entry["readings"]))

    def lower(self, significance: float) -> float:
        """The limit, over what a canary may add; 0 if nothing is proved."""
        return float(self._bet.signal_lower(significance)) if self._bet is not None else 0.0


class StudentBound:
    """One step's mu by the noncentral t, for one look; of the first noise multiplier's steps."""

    def __init__(self, header: RecordHeader) -> None:
        self._groups = TwoGroups(len(header.canaries))

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._groups.update(coins, np.asarray(entry["readings"]), float(entry["noise_multiplier"]))

    def mu_lower(self, significance: float) -> tuple[float, float]:
        """Lower limit of one step's mu, and the noise multiplier it was seen at."""
        sigma = self._groups.noise_multiplier
        if sigma is None:
            return 0.0, 1.0
        n_in, n_out, difference, squares = self._groups.statistics
        if squares == 0.0 and n_in + n_out > 2:  # no noise at all
            return (math.inf if difference > 0 else 0.0), sigma
        return float(mu_noncentral_t(n_in, n_out, difference, squares, significance)), sigma
