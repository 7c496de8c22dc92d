"""What could this audit have seen? A pass is worth no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.audit_report import Power
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.power import noise_power, sensitivity_power, steps_needed
from lightning_audit.verdict.pass_blockers import TARGET, Resolution


class PowerModel:
    """The power of a run, given the residual variances that it showed.

    The data's share of a variance is taken to be what exceeds the claimed noise. Data that fill
    exactly the gap that too small a noise leaves cannot be told from correct noise by variances.

    Args:
        monitor: the checks after the last step.
        oversize: norm of the canaries over the clipping norm; no canary adds more than that.
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
                ones, canaries.mean_square, canaries.count, "noise.canary", self._canary_rate
            )

    def noise(self, ratio: float, steps: int | None = None) -> float:
        """Probability of a flag for noise of ``ratio`` times the claim."""
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
        """Probability of a flag for a canary that adds ``shift`` times what it may."""
        steps = self._steps if steps is None else steps
        seen = int(steps * self._canary_rate)
        if not seen or not np.isfinite(self._std) or self._std <= 0 or shift > self._oversize:
            return 0.0
        significance = self._pooled * SENSITIVITY.share * self._significance
        return sensitivity_power(
            self._canaries, seen, shift, self._std, significance, self._coin_probability
        )

    def at(self, resolution: Resolution) -> dict[str, Power]:
        """Power for each part of the resolution."""
        tests: dict[str, Callable[[int], float]] = {
            "noise": lambda steps: self.noise(resolution.noise, steps),
            "sensitivity": lambda steps: self.sensitivity(resolution.sensitivity, steps),
        }
        return {
            name: Power(test(self._steps), steps_needed(test, TARGET), resolution.parts[name])
            for name, test in tests.items()
        }

    def not_excluded(self) -> tuple[float, float]:
        """The largest noise ratio and the smallest shift that the run was able to exclude.

        Returns:
            (noise ratio, shift); (0, inf) where nothing was.
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
    """Coordinates pooled from the quietest unit on, with the data's share of their variance."""
    groups = []
    order = np.argsort(mean_square, kind="stable")
    order = order[counts[order] > 0]  # a tensor without coordinates has no witness
    # A dozen sizes tell as much as hundreds.
    for size in np.unique(np.geomspace(1, len(order), 12).round().astype(int)):
        chosen = order[:size]
        weight = counts[chosen]
        mean = float(np.average(mean_square[chosen], weights=weight))
        # Two standard errors up: the variance was estimated from the same run.
        mean *= 1.0 + 2.0 * np.sqrt(2.0 / max(float(seen[chosen].sum()), 1.0))
        groups.append(_Group(check, int(weight.sum()), max(mean - 1.0, 0.0), rate))
    return groups
