"""Checks that the noisy gradient is only post-processed.

A function of a private release is as private as the release (post-processing), so it is no fault
unless it also uses other private values. The canaries are subtracted once the noise is added. Hence
a value downstream of that point which depends on their coins uses more than the release.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise.noise_at_entries import NOISE_ENTRIES, NOISE_WHOLE
from lightning_audit.checks.noise.noise_size import (
    NOISE,
    NOISE_CANARY,
    NOISE_TENSOR,
    SHOW_THE_RELEASE,
)
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.checks.randomness.noise_forecast import REUSE_FORECAST
from lightning_audit.checks.randomness.shared_entries import REUSE_ENTRIES
from lightning_audit.checks.update.gradient_replaced import GRADIENT_REPLACED
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Log likelihood ratio at which one of two explanations of small noise is accepted.
_CLEAR = 3.0
#: Standard errors within which an estimate is assumed to be right.
_ERRORS = 2.5

#: A canary below this ratio was shrunk: rounding of its norm explains no more.
_WHOLE = 0.97

#: Checks that post-processing of correct noise violates before the checks of its size.
_FIRST_SEEN = {
    check.name for check in (NOISE_SHAPE, NOISE_ENTRIES, NOISE_WHOLE, REUSE_FORECAST, REUSE_ENTRIES)
}


class _Following:
    """A bet that values depend on their canaries' coins, for any unit of the values.

    Args:
        coin_probability: known probability that a canary is in.
    """

    def __init__(self, coin_probability: float) -> None:
        self._coin_probability = coin_probability
        self._bet: CoinBet | None = None

    def update(self, coins: FloatArray, values: FloatArray) -> None:
        """Update with a step's values, ``[k]``; the bet is on the coins, given all values."""
        size = float(np.sqrt(np.mean(np.square(values))))
        if not math.isfinite(size) or size == 0.0:
            return
        if self._bet is None:
            self._bet = CoinBet((len(coins),), 0.0, size, self._coin_probability)
        self._bet.update(coins, values)

    @property
    def log_e(self) -> float:
        """Log e-value now."""
        return 0.0 if self._bet is None else float(self._bet.log_e)


class UseOfRelease:
    r"""Part of `gradient_replaced`: does the update depend on coins of canaries that were removed?

    If the canaries are subtracted exactly, the release is independent of the coins of its step,
    given the past, and so is any function of it: the bets on the coins are e-processes. If clipping
    lets more or less of a canary through than claimed, a remainder of the canary is in the release.
    The log e-value of bets on that remainder, in either direction, is subtracted. This correction
    is plausible (a function of the release contains no more information on the coins than the
    release) and was tested by simulation, but is not proved for these bets.

    Args:
        significance: of the whole run.
        coin_probability: known probability that a canary is in.
    """

    def __init__(self, significance: float, coin_probability: float = 0.5) -> None:
        self.evidence = GRADIENT_REPLACED.test(significance)
        # Bets on values and on their absolute values: a mask that is chosen by gradients before the
        # noise keeps more of the entries that contain a canary.
        self._used = [_Following(coin_probability) for _ in range(2)]
        self._moved = _Following(coin_probability)
        self._rest = [_Following(coin_probability) for _ in range(4)]

    def update(
        self,
        step: int,
        coins: FloatArray,
        rest: FloatArray,
        used: FloatArray | None,
        moved: FloatArray | None,
    ) -> None:
        """Update with a step whose coins count.

        Args:
            step: number of the step.
            coins: 1 where the canary was in, ``[k]``.
            rest: readings of the release without the canaries, ``[k]``.
            used: readings of the gradient that the update used, ``[k]``, in any unit; None if it
                is the release itself.
            moved: readings of the negative change of the weights, ``[k]``; None if not read.
        """
        for bet, values in zip(self._rest, (rest, -rest, np.abs(rest), -np.abs(rest)), strict=True):
            bet.update(coins, values)
        if used is not None:
            for bet, values in zip(self._used, (used, np.abs(used)), strict=True):
                bet.update(coins, values)
        if moved is not None:
            self._moved.update(coins, moved)
        if used is None and moved is None:
            return
        rest_log_e = float(log_mean_exp([bet.log_e for bet in self._rest]))
        follows = float(log_mean_exp([bet.log_e for bet in (*self._used, self._moved)]))
        self.evidence.update(follows - max(rest_log_e, 0.0), step)

    def result(self, replaced: CheckResult) -> CheckResult:
        """Return the result of `gradient_replaced`, with the evidence of this test.

        Args:
            replaced: result on steps whose gradient a backward pass replaced.
        """
        if replaced.status == "violated" or not self.evidence.observed:
            return replaced
        return GRADIENT_REPLACED.result(
            self.evidence,
            replaced.message,
            "the update depends on the canaries' coins although the canaries were subtracted from "
            "the noisy gradient: it uses gradients from before the noise",
            "look at what the optimizer, or a hook, does after the noise was added: p.grad_sample, "
            "p.summed_grad and gradients kept from before must not be used there",
            replaced.evidence,
        )


def explained_by_processing(
    checks: Sequence[CheckResult],
    monitor: AuditMonitor,
    *,
    at_cut: bool,
    weights_move: bool = False,
    raw: bool = False,
    by_batch: bool = False,
    shares: tuple[FloatArray, FloatArray] | None = None,
) -> set[str]:
    """Return the violated checks that post-processing of a correct release would violate as well.

    Post-processing shrinks noise and canaries together; a fault shrinks the noise alone. If the
    gradient was read at a point where noise is known to have been added, the fault is assumed
    unless the canaries clearly contradict it; otherwise the canaries must clearly show the fault.

    Args:
        checks: results of one optimizer's checks.
        monitor: its checks by e-process.
        at_cut: whether every step was read at a point where noise is known to have been added.
        weights_move: whether weights change outside of the update as noise would change them.
        raw: whether the gradients that were read are those of backward passes: nothing changed them
            or added noise to them, except in the pass itself.
        by_batch: whether gradients are clearly smaller in larger batches.
        shares: share of each canary, ``[k]``, and of each tensor, ``[L]``, that was released; None
            if all was released.
    """
    violated = {check.name for check in checks if check.status == "violated"}
    if by_batch:  # post-processing does not know the batch size
        violated.discard(BATCH_NORMALISED.name)
    # Checks that assume independent noise of the claimed size, and checks of that size.
    doubtful = [REGISTRY[name] for name in violated if REGISTRY[name].doubtful]
    of_noise = {check.name for check in doubtful if check.size_of != "signal"}
    sized = {check.name for check in doubtful if check.size_of == "noise"}
    if weights_move:
        return of_noise
    if raw:
        return set()
    canaries, tensors = shares or (np.ones(len(monitor.header.canaries)), np.ones(1))
    seen = _CanariesSeen(monitor, canaries)
    if not math.isfinite(seen.error):  # no canary shows which part of a gradient is released
        return set()
    found: set[str] = set()
    if sized and seen.shrank_with(_noise_ratio(monitor, sized, tensors), at_cut=at_cut):
        found |= of_noise
    shrunk = seen.shift + _ERRORS * seen.error < _WHOLE
    if at_cut:  # canaries show whether a class's add_noise does more than add noise
        return found | (of_noise & _FIRST_SEEN if shrunk else set())
    if shrunk:
        found |= of_noise
    found |= violated & _FIRST_SEEN
    # Post-processing that amplifies a canary amplifies the noise of every tensor as much.
    quietest = monitor.witness_noise.smallest_ratio
    if SENSITIVITY.name in violated and quietest >= seen.shift - _ERRORS * seen.error:
        found.add(SENSITIVITY.name)
    return found


def _noise_ratio(monitor: AuditMonitor, violated: Collection[str], released: FloatArray) -> float:
    """Return the smallest ratio of noise to claim among what was flagged and released."""
    ratios = [math.inf]
    if NOISE_CANARY.name in violated:
        ratios.append(float(monitor.canary_noise.ratios().min()))
    if {NOISE.name, NOISE_TENSOR.name} & set(violated):
        # Count the part that was not released as noise of the claimed size.
        squares = monitor.witness_noise.ratios() ** 2 - (1.0 - released)
        ratios.append(math.sqrt(max(float((squares / np.maximum(released, 1e-9)).min()), 0.0)))
    return min(ratios)


class _CanariesSeen:
    """Which part of the canaries is in the released gradient.

    Args:
        monitor: the checks after the last step.
        released: share of each canary that was released, ``[k]``.
    """

    def __init__(self, monitor: AuditMonitor, released: FloatArray) -> None:
        sensitivity = monitor.sensitivity
        share = max(float(released.mean()), 1e-9)
        self.shift = sensitivity.shift / share
        self.error = max(sensitivity.shift_error, 1e-12) / share
        each = np.maximum(released, 1e-9)
        #: Noise over the claim along each canary.
        self._noise = monitor.canary_noise.ratios()
        self._each, self._errors = sensitivity.shifts() / each, sensitivity.shift_errors() / each

    def shrank_with(self, noise: float, *, at_cut: bool) -> bool:
        """Whether the canaries shrank together with the noise, rather than the noise alone."""
        seen = np.isfinite(self._each) & np.isfinite(self._errors)
        lower = self._each[seen] - (_ERRORS + 1.0) * self._errors[seen]
        # A mask can remove some canaries. One whole canary with small noise is enough evidence of a
        # fault, unless a projection left both the canary and the noise along it.
        beside = np.where(self._noise[seen] < _WHOLE, self._noise[seen], noise)
        if np.any(lower > np.maximum(np.maximum(beside, noise), 0.5)):
            return False
        fault = ((self.shift - noise) ** 2 - (self.shift - 1.0) ** 2) / (2.0 * self.error**2)
        return fault < -_CLEAR if at_cut else fault < _CLEAR


def undecided(check: CheckResult) -> CheckResult:
    """Return a violated check as undecided: it may be no fault."""
    return dataclasses.replace(
        check,
        status="undecided",
        message=f"not certain: {check.message}, or correct noise was post-processed",
        advice=SHOW_THE_RELEASE,
    )
