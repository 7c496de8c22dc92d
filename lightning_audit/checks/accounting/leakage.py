"""Lower bounds on the leakage of steps, from the record alone, and the check `epsilon`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.step_history import StepHistory
from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.record.store import RecordHeader
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.bounds.gaussian import mu_noncentral_t
from lightning_audit.stats.evalues.leakage_bet import Claim, LeakageBet, LeastLogs, ProvedPart
from lightning_audit.stats.evalues.signal_bet import SignalBet
from lightning_audit.stats.evalues.two_groups import TwoGroups

EPSILON = Check(
    "epsilon",
    "more leaks than claimed, over the run",
    title="Lower bound on epsilon",
    failed_title="More leaks than claimed",
    meaning="The epsilon that the readings prove for the run is larger than the claim.",
    look_at="Check clipping and noise of each step, and the noise multiplier that the accountant "
    "uses.",
    topic="Total epsilon",
    kind="epsilon",
    weight=100,
    group="leakage",
    always=True,
    doubtful=True,
    wrong=lambda seen: (
        seen["epsilon_lower"] is not None
        and exceeds(seen["epsilon_lower"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "leaks_more_than_claimed",
            "more leaks than the claim allows, by noise and clipping together",
            "clipping and noise of each step, and the noise multiplier that the accountant records",
            headline="More leaks than the claim allows",
            rank=5,
        ),
    ),
)

CHECKS = (EPSILON,)

#: Least ratio of the steps of two looks that are kept.
_APART = 1.03
#: Grid of a canary's signal over the clipping norm: a quarter percent apart up to 1.1, then coarse.
_SIGNAL_GRID = np.concatenate(
    [
        np.arange(0.05, 0.3, 0.05),
        np.geomspace(0.3, 1.1, 521),
        [1.15, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0, 10.0, 30.0, 100.0, 300.0, 1000.0],
    ]
)


class LeakageBound:
    """Lower bounds on the leakage of the steps up to each look; see `LeakageBet`."""

    def __init__(self, header: RecordHeader) -> None:
        self._bet = LeakageBet(
            (len(header.canaries),), header.coin_probability, header.planned_steps
        )
        self._claims = StepHistory()
        self._seen = 0
        # For each look kept: steps with canaries, all steps, and the bets' wealth.
        self._looks: list[tuple[int, int, Floats]] = []

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
        sigma, rate = float(entry["noise_multiplier"]), float(entry["sample_rate"])
        # If the rate is unknown, all steps have the same weight.
        rate = 1.0 if math.isnan(rate) or rate <= 0.0 else min(rate, 1.0)
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._bet.update(coins, np.asarray(entry["readings"]), sigma, rate)
        self._claims.add(sigma, rate)
        self._seen += 1
        # The latest look is always the last one kept.
        if len(self._looks) > 1 and self._looks[-1][0] < _APART * self._looks[-2][0]:
            self._looks.pop()
        self._looks.append((self._seen, int(entry["step"]) + 1, self._bet.growth))

    def front(self, significance: float) -> list[ProvedPart]:
        """Return what is proved for the steps up to each look, from the latest look back.

        All parts hold together with probability at least ``1 - significance``. The ratios increase
        and the numbers of steps decrease: no other look proves as large a ratio for more steps.
        """
        looks = [(seen, growth) for seen, _, growth in self._looks]
        ratios = self._bet.ratios(significance, looks, self._claims_up_to(self._seen))
        found: list[ProvedPart] = []
        for (seen, steps, growth), ratio in reversed([*zip(self._looks, ratios, strict=True)]):
            if ratio > max((part.ratio for part in found), default=0.0):
                logs = partial(self._logs, significance, seen, growth)
                found.append(ProvedPart(float(ratio), steps, logs))
        return found

    def _logs(self, significance: float, seen: int, growth: Floats) -> list[LeastLogs]:
        return self._bet.proved(significance, growth, self._claims_up_to(seen))

    def _claims_up_to(self, seen: int) -> list[Claim]:
        runs = self._claims.runs(seen)
        return [(run.noise_multiplier, run.known_rate, run.steps) for run in runs]

    def ratio_lower(self, significance: float) -> float:
        """Return the largest proved ratio, which some step exceeds; 0 if none is proved."""
        return max((part.ratio for part in self.front(significance)), default=0.0)


@dataclass(frozen=True)
class SignalOverNoise:
    """Limits of a canary's signal and of the noise, relative to their claims, at one look.

    Args:
        signal_lower: lower limit of what a canary adds in some step.
        noise_upper: upper limit of the noise in some step and coordinate.
    """

    signal_lower: float
    noise_upper: float

    @property
    def ratio_lower(self) -> float:
        """Lower limit of mu over its claim, if signal and noise over their claims are constant."""
        if self.signal_lower == 0.0:
            return 0.0
        return self.signal_lower / self.noise_upper if self.noise_upper > 0 else math.inf


class SignalBound:
    """Lower limit of what a canary adds, for any data and any noise."""

    def __init__(self, header: RecordHeader) -> None:
        self._k = len(header.canaries)
        self._coin_probability = header.coin_probability
        self._bet: SignalBet | None = None

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
        if self._bet is None:
            scale = float(entry["noise_multiplier"])
            self._bet = SignalBet((self._k,), _SIGNAL_GRID, scale, self._coin_probability)
        self._bet.update(np.asarray(entry["coins"], dtype=float), np.asarray(entry["readings"]))

    def lower(self, significance: float) -> float:
        """Return the limit, in units of what clipping allows; 0 if nothing is proved."""
        return float(self._bet.signal_lower(significance)) if self._bet is not None else 0.0


class StudentBound:
    """Lower limit of one step's mu by the noncentral t, at one look.

    It uses the steps with the first noise multiplier.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._groups = TwoGroups(len(header.canaries))

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
        coins = np.asarray(entry["coins"], dtype=np.float64)
        self._groups.update(coins, np.asarray(entry["readings"]), float(entry["noise_multiplier"]))

    def mu_lower(self, significance: float) -> tuple[float, float]:
        """Return the lower limit of one step's mu, and the noise multiplier of these steps."""
        sigma = self._groups.noise_multiplier
        if sigma is None:
            return 0.0, 1.0
        n_in, n_out, difference, squares = self._groups.statistics
        if squares == 0.0 and n_in + n_out > 2:  # no noise at all
            return (math.inf if difference > 0 else 0.0), sigma
        return float(mu_noncentral_t(n_in, n_out, difference, squares, significance)), sigma
