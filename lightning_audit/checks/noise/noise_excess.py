"""Warning about noise that is larger than claimed: `noise.excess`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from lightning_audit.checks.noise.noise_mean import NOISE_MEAN
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.noise_scale import excess_log_e

NOISE_EXCESS = dataclasses.replace(
    NOISE_MEAN,
    name="noise.excess",
    finds="noise that is larger than claimed (a warning: no privacy is lost, no gate fails)",
    title="Noise above the claim",
    failed_title="More noise than claimed",
    meaning="The noise is larger than claimed; no privacy is lost, but accuracy is.",
    look_at="Check whether noise is added more than once, such as in each part of a split batch or "
    "in each process with one seed, or to the mean instead of the sum.",
    topic="Noise",
    fine="the noise is no larger than claimed",
    # Clipped sums that are too long, and processes with equal noise, are found without an e-value.
    wrong=lambda _: True,
    reads=None,
    init=None,
)

CHECKS = (NOISE_EXCESS,)

#: Largest norm of a clipped sum over its number of terms that rounding explains.
_ROUNDING = 1.05
_ADVICE = (
    "add the noise once a step, and compare its scale with noise_multiplier * max_grad_norm; "
    "momentum, or anything else that is added to the gradient before the update, looks like noise "
    "as well"
)


class NoiseExcess:
    """Statistic of `noise.excess`: squares of the noise, and clipped sums that are too long.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._sums = np.zeros(2)
        self._longest, self._long_at = 0.0, -1
        self._test = NOISE_EXCESS.test(significance)

    def update(self, step: NoiseStep) -> None:
        """Update with a step's noise, if it is known separately, and its clipped sum's norm.

        Noise that was added in place is part of the sum that is read. That is correct unless the
        sum was made in several parts.
        """
        seen, noise = step.seen, step.noise
        if noise is not None:
            self._sums += [len(noise), float(noise @ noise)]
            self._test.update(float(excess_log_e(*self._sums)), step.number)
        elif not seen.split:
            return
        if seen.sum_norm is None or not seen.terms or not math.isfinite(seen.sum_norm):
            return
        ratio = seen.sum_norm / seen.terms
        if ratio > _ROUNDING and self._long_at < 0:
            self._long_at = step.number
        self._longest = max(self._longest, ratio)

    @property
    def sums_are_long(self) -> bool:
        """Whether a sum's norm exceeded what its clipped terms can add up to."""
        return self._long_at >= 0

    def result(self, lack: str, *, clips: bool) -> CheckResult:
        """Return the check's result.

        Args:
            lack: the reason why the latest step's noise is unknown, or empty.
            clips: whether no check contradicts the clipping; if one does, a long sum is no sign of
                noise.
        """
        count, squares = self._sums.tolist()
        ratio = math.sqrt(squares / count) if count else math.nan
        evidence = {"ratio": ratio, "sum_norm_over_terms": self._longest}
        if clips and self.sums_are_long and not self._test.violated:
            return NOISE_EXCESS.judged(
                {**evidence, "violated_at_step": self._long_at},
                "",
                "too much noise: clipped sums are longer than clipping allows, so noise is added "
                "before a sum is complete, perhaps to each part of a split batch; that loses no "
                "privacy, but accuracy",
                _ADVICE,
            )
        return NOISE_EXCESS.result(
            self._test,
            NOISE_EXCESS.fine,
            "too much noise: it is larger than claimed, or something else was added to the "
            "clipped sums; that loses no privacy, but accuracy",
            _ADVICE,
            evidence,
            lack,
        )


def equal_noise_result(processes: int) -> CheckResult:
    """Return the result of `noise.excess` if processes draw the same noise: the sum is too large.

    Args:
        processes: number of processes.
    """
    return NOISE_EXCESS.judged(
        {"processes": processes},
        "",
        "too much noise: several of the processes draw the same noise, whose sum is larger than "
        "that of independent draws; that loses no privacy, but accuracy",
        "let one process add the noise, or seed the generator of each with its rank",
    )
