"""Bets on the leakage of many runs at once, with what they say of one course of mu."""

import numpy as np
from scipy import special

from lightning_audit.stats.canary_bets import LeakageBet, StakePlan
from lightning_audit.stats.divergences import sharpest_score, sign_score


class AdmittedCourse:
    """A `LeakageBet`, and the e-value against a course of signal over noise."""

    def __init__(self, shape: tuple[int, ...], p: float = 0.5, planned: int | None = None) -> None:
        self.bet = LeakageBet(shape, p, planned)
        self._fair = 2 * min(p, 1 - p)
        self._plan = StakePlan(planned, shape[-1], self._fair)
        self._spent = np.zeros(len(self._plan.ends))

    def update(
        self,
        coins: np.ndarray,
        readings: np.ndarray,
        sigma: float,
        rate: float = 1.0,
        *,
        mu: float | None = None,
    ) -> None:
        """One step, which is mu-GDP; None for what is claimed, 1 / sigma."""
        self.bet.update(coins, readings, sigma, rate)
        now = self._plan.next(sigma, rate)
        at = np.asarray(1.0 / sigma if mu is None else mu)
        most = np.array([float(of(now.mu).most(at)) for of in (sharpest_score, sign_score)])
        self._spent = self._spent + np.log1p(
            np.array(now.stakes) * self._fair * most[self._plan.places]
        )

    @property
    def log_e(self) -> np.ndarray:
        """Log of the bets' average wealth against the course."""
        return special.logsumexp(self.bet.growth - self._spent, b=self._plan.shares, axis=-1)

    @property
    def factors(self) -> np.ndarray:
        """Wealth of each bet against the course, ``[..., bets]``."""
        return np.exp(self.bet.growth - self._spent)

    def refused(self, significance: float) -> np.ndarray:
        """Whether any of the bets refuses the course at its share of the significance."""
        return (self.bet.needed(significance, self.bet.growth) > self._spent).any(axis=-1)
