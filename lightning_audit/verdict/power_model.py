"""Power of an audit: which faults the run would have detected. It limits what a pass means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_size import NOISE_CANARY
from lightning_audit.results.audit_report import Power
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.power import noise_power, sensitivity_power, steps_needed
from lightning_audit.verdict.pass_blockers import TARGET, Resolution


class PowerModel:
    """Power of a run, given its residual variances.

    The variance of the data is taken to be what exceeds the claimed noise. Variances cannot
    distinguish correct noise from noise that is too small plus data that make up the difference.

    Args:
        monitor: the checks after the last step.
        oversize: norm of the canaries over the clipping norm, the most that a canary can add.
    """

    def __init__(self, monitor: AuditMonitor, oversize: float = math.inf) -> None:
        self._oversize = oversize
        self._significance = monitor.significance
        self._steps = max(monitor.steps, 1)
        self._canary_rate = monitor.canary_steps / self._steps
        self._canaries = len(monitor.header.canaries)
        self._coin_probability = monitor.header.coin_probability
        self._std = monitor.sensitivity.residual_std
        several = len(set(monitor.header.canary_kinds)) > 1
        self._pooled = (CoinBet.POOLED if several else 1.0) * monitor.sensitivity.together
        groups = monitor.witness_noise.sums
        self._noise = [
            *_quiet_groups(
                np.array(monitor.header.witnesses), groups.mean_square, groups.count, "noise"
            ),
        ]
        canaries = monitor.canary_noise.sums
        if monitor.canary_steps:
            ones = np.ones(self._canaries, dtype=np.int64)
            self._noise += _quiet_groups(
                ones, canaries.mean_square, canaries.count, NOISE_CANARY.name, self._canary_rate
            )

    def noise(self, ratio: float, steps: int | None = None) -> float:
        """Return the probability that noise of ``ratio`` times the claim is flagged."""
        steps = self._steps if steps is None else steps
        best = 0.0
        for group in self._noise:
            seen = int(steps * group.rate)
            if seen:
                significance = REGISTRY[group.check].share * self._significance
                power = noise_power(group.coordinates, seen, ratio, group.data, significance)
                best = max(best, power)
        return best

    def sensitivity(self, shift: float, steps: int | None = None) -> float:
        """Return the probability that canaries which add ``shift`` times the claim are flagged."""
        steps = self._steps if steps is None else steps
        seen = int(steps * self._canary_rate)
        if not seen or not np.isfinite(self._std) or self._std <= 0 or shift > self._oversize:
            return 0.0
        significance = self._pooled * SENSITIVITY.share * self._significance
        return sensitivity_power(
            self._canaries, seen, shift, self._std, significance, self._coin_probability
        )

    def at(self, resolution: Resolution) -> dict[str, Power]:
        """Return the power for each part of the resolution."""
        tests: dict[str, Callable[[int], float]] = {
            "noise": lambda steps: self.noise(resolution.noise, steps),
            "sensitivity": lambda steps: self.sensitivity(resolution.sensitivity, steps),
        }
        return {
            name: Power(test(self._steps), steps_needed(test, TARGET), resolution.parts[name])
            for name, test in tests.items()
        }

    def not_excluded(self) -> tuple[float, float]:
        """Return the largest noise ratio and the smallest shift that the run could exclude.

        Returns:
            (noise ratio, shift); 0 or inf if the run could exclude none.
        """
        ratios = np.arange(0.99, 0.04, -0.01)
        shifts = np.geomspace(1.02, 1000.0, 120)
        ratio = next((float(r) for r in ratios if self.noise(float(r)) >= TARGET), 0.0)
        shift = next((float(s) for s in shifts if self.sensitivity(float(s)) >= TARGET), np.inf)
        return ratio, float(shift)


@dataclass(frozen=True)
class _Group:
    check: str
    coordinates: int
    data: float
    rate: float


def _quiet_groups(
    counts: np.ndarray, mean_square: np.ndarray, seen: np.ndarray, check: str, rate: float = 1.0
) -> list[_Group]:
    """Return pools of the units with the smallest mean squares, with the variance of their data."""
    groups = []
    order = np.argsort(mean_square, kind="stable")
    order = order[counts[order] > 0]  # some tensors have no probe coordinates
    # A dozen pool sizes are about as good as hundreds.
    for size in np.unique(np.geomspace(1, len(order), 12).round().astype(int)):
        chosen = order[:size]
        weight = counts[chosen]
        mean = float(np.average(mean_square[chosen], weights=weight))
        # Add two standard errors: the variance is estimated from the same run.
        mean *= 1.0 + 2.0 * np.sqrt(2.0 / max(float(seen[chosen].sum()), 1.0))
        groups.append(_Group(check, int(weight.sum()), max(mean - 1.0, 0.0), rate))
    return groups
