"""What is made of a gradient when its noise is in: does it rest on the release alone?

A function of a private release is as private as the release (post-processing), so that nothing
which is done to it is a fault, unless it looks at something else that is private. The canaries are
taken out where the noise is in, hence what follows their coins behind that place was made of other
things than the release.
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

#: Log likelihood ratio at which one of two explanations of small noise is taken for the right one.
_CLEAR = 3.0
#: Standard errors within which an estimate is taken to be right.
_ERRORS = 2.5

#: A canary that comes out smaller than this was shrunk, by more than the rounding of its norm.
_WHOLE = 0.97

#: Checks that a function of correct noise violates before those that tell its size.
_FIRST_SEEN = {
    check.name for check in (NOISE_SHAPE, NOISE_ENTRIES, NOISE_WHOLE, REUSE_FORECAST, REUSE_ENTRIES)
}


class _Following:
    """A bet that values follow their canaries' coins, whatever the values' unit.

    Args:
        coin_probability: known probability that a canary is in.
    """

    def __init__(self, coin_probability: float) -> None:
        self._coin_probability = coin_probability
        self._bet: CoinBet | None = None

    def update(self, coins: FloatArray, values: FloatArray) -> None:
        """Take in a step's values, ``[k]``; the bet is on the coins, given all values."""
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
    r"""Part of `gradient_replaced`: does the update follow coins whose canaries are out?

    Where the canaries are taken out exactly, the release says nothing of the coins of its step,
    given the past, and so does whatever is computed of it: the bets on them are e-processes. Where
    clipping lets more or less of a canary through than it claims, a rest of it stays in the
    release. The growth of bets on that rest, in either direction, is taken off; that this makes up
    for it is plausible (what is computed of a release says no more of the coins than the release
    does) and was simulated, but is not proved for these bets.

    Args:
        significance: of the whole run.
        coin_probability: known probability that a canary is in.
    """

    def __init__(self, significance: float, coin_probability: float = 0.5) -> None:
        self.evidence = GRADIENT_REPLACED.test(significance)
        # Values, and their sizes: a mask that is chosen by what came before the noise keeps more of
        # what a canary was in.
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
        """Take in a step whose coins count.

        Args:
            step: its number.
            coins: 1 where the canary was in, ``[k]``.
            rest: readings of the release without the canaries, ``[k]``.
            used: the same of the gradient when the update was done, in any unit; None if it is
                the release itself.
            moved: the same of minus the change of the weights; None if it was not watched.
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
        """`gradient_replaced`, with what this test says.

        Args:
            replaced: the result of steps whose gradient a backward pass replaced.
        """
        if replaced.status == "violated" or not self.evidence.observed:
            return replaced
        return GRADIENT_REPLACED.result(
            self.evidence,
            replaced.message,
            "the update follows the canaries' coins although the canaries were taken out of the "
            "noisy gradient: it uses gradients from before the noise",
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
    """Names of violated checks that a function of a correct release would violate as well.

    Noise and canary shrink together where something is done to both: a fault shrinks the noise
    alone. Where the gradient was read where the noise is known to be in, the fault is the likelier
    explanation, unless the canary clearly says otherwise; elsewhere it must be clear itself.

    Args:
        checks: results of one optimizer's checks.
        monitor: its checks by e-process.
        at_cut: whether every step was read where the noise is known to be in.
        weights_move: whether weights change outside of the update as noise would change them.
        raw: whether the gradients that were read are what backward passes left: nothing was done to
            them, noise included, unless in the pass itself.
        by_batch: whether gradients are clearly smaller where batches are larger.
        shares: how much was released of each canary, ``[k]``, and of each tensor; None for all.
    """
    violated = {check.name for check in checks if check.status == "violated"}
    if by_batch:  # of which no function of the release knows
        violated.discard(BATCH_NORMALISED.name)
    # Those that suppose noise of the claimed size, drawn anew, and those that tell its size.
    doubtful = [REGISTRY[name] for name in violated if REGISTRY[name].doubtful]
    of_noise = {check.name for check in doubtful if check.size_of != "signal"}
    sized = {check.name for check in doubtful if check.size_of == "noise"}
    if weights_move:
        return of_noise
    if raw:
        return set()
    canaries, tensors = shares or (np.ones(len(monitor.header.canaries)), np.ones(1))
    seen = _CanariesSeen(monitor, canaries)
    if not math.isfinite(seen.error):  # no canary says how much of a gradient comes out
        return set()
    found: set[str] = set()
    if sized and seen.shrank_with(_noise_ratio(monitor, sized, tensors), at_cut=at_cut):
        found |= of_noise
    shrunk = seen.shift + _ERRORS * seen.error < _WHOLE
    if at_cut:  # where a class does more in add_noise than to add noise, its canaries tell
        return found | (of_noise & _FIRST_SEEN if shrunk else set())
    if shrunk:
        found |= of_noise
    found |= violated & _FIRST_SEEN
    # What amplifies a canary amplifies the noise of every tensor as much.
    quietest = monitor.witness_noise.smallest_ratio
    if SENSITIVITY.name in violated and quietest >= seen.shift - _ERRORS * seen.error:
        found.add(SENSITIVITY.name)
    return found


def _noise_ratio(monitor: AuditMonitor, violated: Collection[str], released: FloatArray) -> float:
    """Noise over the claim, where it is smallest of what was flagged and released."""
    ratios = [math.inf]
    if NOISE_CANARY.name in violated:
        ratios.append(float(monitor.canary_noise.ratios().min()))
    if {NOISE.name, NOISE_TENSOR.name} & set(violated):
        # What was not released counts as noise of the claimed size.
        squares = monitor.witness_noise.ratios() ** 2 - (1.0 - released)
        ratios.append(math.sqrt(max(float((squares / np.maximum(released, 1e-9)).min()), 0.0)))
    return min(ratios)


class _CanariesSeen:
    """How much of the canaries came out, where anything was released.

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
        """Whether they came out smaller as the noise did, rather than that it alone is small."""
        seen = np.isfinite(self._each) & np.isfinite(self._errors)
        lower = self._each[seen] - (_ERRORS + 1.0) * self._errors[seen]
        # A mask can hide some canaries; one that comes out whole beside small noise is enough,
        # unless it and the noise along it are what a projection leaves of both.
        beside = np.where(self._noise[seen] < _WHOLE, self._noise[seen], noise)
        if np.any(lower > np.maximum(np.maximum(beside, noise), 0.5)):
            return False
        fault = ((self.shift - noise) ** 2 - (self.shift - 1.0) ** 2) / (2.0 * self.error**2)
        return fault < -_CLEAR if at_cut else fault < _CLEAR


def undecided(check: CheckResult) -> CheckResult:
    """A violated check that is not a fault for certain."""
    return dataclasses.replace(
        check,
        status="undecided",
        message=f"not certain: {check.message}, or something was done to correct noise",
        advice=SHOW_THE_RELEASE,
    )
