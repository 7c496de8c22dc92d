"""Names the likely faults from violated checks, as text that an engineer can act on.

**Checks that the noisy gradient is only post-processed.** A function of a private release is as
private as the release (post-processing), so it is no fault unless it also uses other private
values. The canaries are subtracted once the noise is added. Hence a value downstream of that point
which depends on their coins uses more than the release.

A rule names a fault, by numbers that the checks report as evidence. Rules are applied in the order
of their rank: what is certain, then the clipping, re-used noise, the scale and shape of the noise,
leaks, the sampling and the accounting. If a fault entails another finding, later rules do not name
a fault for that finding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from lightning_audit.checks.check import (
    REGISTRY,
    Candidate,
    Case,
    Fault,
    FaultRule,
    Monitored,
    entailed,
    group,
)
from lightning_audit.checks.clipping import SENSITIVITY, clipping_candidates
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import (
    BATCH_NORMALISED,
    NOISE,
    NOISE_CANARY,
    NOISE_ENTRIES,
    NOISE_SHAPE,
    NOISE_TENSOR,
    NOISE_WHOLE,
    SHOW_THE_RELEASE,
)
from lightning_audit.checks.noise_faults import noise_candidates
from lightning_audit.checks.randomness import (
    RECURRENCE,
    REUSE_BROADCAST,
    REUSE_ENTRIES,
    REUSE_FORECAST,
    REUSE_LAG,
    noise_of_another_shape,
    repeated_in_step,
    reuse_candidates,
    reuse_is_seen,
)
from lightning_audit.checks.replay import REPLAY_CLIPPING, REPLAY_RELEASE, REPLAY_SENSITIVITY
from lightning_audit.checks.update import GRADIENT_REPLACED
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult, LikelyFault
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.sequential import log_mean_exp

# --- Names the likely faults from violated checks, as text that an engineer can act on.

#: Rules that name a fault by several checks together, the likeliest first.
_OF_SEVERAL: tuple[Callable[[Case, Monitored], list[Candidate]], ...] = (
    clipping_candidates,
    reuse_candidates,
    repeated_in_step,
    noise_candidates,
    noise_of_another_shape,
)
#: Noise below this ratio to the claim is not explained by a batch that is large by chance.
_LARGE_BATCH = 0.5


def likely_faults(
    violated: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    oversize: float,
    processes: int = 1,
) -> tuple[LikelyFault, ...]:
    """Return the faults that may have caused the violated checks.

    Args:
        violated: the checks that count as violated, at least one.
        monitor: all checks by e-process after the last step; None if no step was observed.
        oversize: norm of the canaries over the clipping norm.
        processes: number of processes that train together.

    Returns:
        The faults, the likeliest first, at least one.
    """
    case = Case({check.name: check for check in violated}, monitor, oversize, processes)
    alone = _by_finding(case)
    candidates = [
        *(candidate for rule, candidate in alone if rule.rank < 0),
        *_divisor_candidates(case),
        *(candidate for rules in _OF_SEVERAL if monitor for candidate in rules(case, monitor)),
        *(by_itself := [candidate for rule, candidate in alone if rule.rank > 0]),
    ]
    kept: list[LikelyFault] = []
    explained: set[str] = set()
    for candidate in candidates:
        finding = candidate.fault.finding
        # An earlier rule may have named the fault of this check, by rank or more precisely.
        named = [f.name for f in kept if f.finding == finding]
        again = candidate.fault.name in named or (bool(named) and candidate in by_itself)
        if finding not in explained and not again:
            kept.append(candidate.fault)
            explained.update(name for name in candidate.explains if name != finding)
    explained.update(fault.finding for fault in kept)
    kept += [_unexplained(case, name) for name in case.violated if name not in explained]
    return tuple(kept)


def loses_no_privacy(violated: Sequence[CheckResult], monitor: AuditMonitor) -> bool:
    """Whether the shift is as small as the noise, so that the leakage stays within the claim.

    Args:
        violated: the checks that count as violated.
        monitor: all checks after the last step.
    """
    case = Case({check.name: check for check in violated}, monitor, 1.0)
    names = {*case.violated}
    # Noise that is too small also makes the differences small that the re-use checks test.
    if not names <= {*group("clipping"), *group("replay"), *group("noise"), *group("reuse")}:
        return False
    if {RECURRENCE.name, REPLAY_RELEASE.name} & names:
        return False
    if any(reuse_is_seen(case, monitor, name) for name in group("reuse")):
        return False
    if not {NOISE.name, NOISE_TENSOR.name} & names:  # over all steps the noise is right
        return False
    if monitor.signal_over_noise(monitor.significance).ratio_lower > 1.0:
        return False
    # Assume the largest shift within its error, and the smallest noise of any tensor.
    replayed = [case.violated[name].evidence.get("size") for name in names & {*group("replay")}]
    shifts = [monitor.sensitivity.shift_upper, *(size or math.inf for size in replayed)]
    return max(shifts) < 1.05 * monitor.witness_noise.smallest_ratio


def _by_finding(case: Case) -> list[tuple[FaultRule, Candidate]]:
    """Return the faults that single violated checks identify, the likeliest first."""
    found = []
    for name, violated in case.violated.items():
        rules = REGISTRY[name].faults if name in REGISTRY else ()
        rule = next((rule for rule in rules if rule.applies(violated.evidence)), None)
        if rule is not None:
            found.append((rule, case.candidate(rule.fault, name, explains=entailed(rule))))
    return sorted(found, key=lambda pair: pair[0].rank)


def _divisor_candidates(case: Case) -> list[Candidate]:
    """Return division by the realised batch size, unless re-used noise explains the finding."""
    tell = (BATCH_NORMALISED, REPLAY_RELEASE, REPLAY_SENSITIVITY, REPLAY_CLIPPING)
    rules = {c.name: c.faults[0] for c in tell if c.name in case.violated}
    finding, *also = [n for n, r in rules.items() if r.applies(case.violated[n].evidence)] or [""]
    if not finding:
        return []
    monitor = case.monitor
    if monitor is not None and monitor.witness_noise.onset.ratios():
        return []  # since some step all have too little noise, for any number of drawn records
    shared = (REUSE_BROADCAST.name, REUSE_LAG.name)
    if monitor is not None and any(reuse_is_seen(case, monitor, name) for name in shared):
        return []
    quiet = 1.0 if monitor is None else monitor.witness_noise.smallest_ratio
    small = group("noise") if quiet > _LARGE_BATCH else ()
    rule = rules[finding]
    explains = (*entailed(rule), *small, *also)
    return [case.candidate(rule.fault, finding, explains=explains)]


def _unexplained(case: Case, finding: str) -> LikelyFault:
    """Return the fault of a violated check without a rule, with the check's own message."""
    check = case.violated[finding]
    name = finding.replace(".", "_")
    fault = Fault(name, "", "", check.advice)
    return case.candidate(fault, finding, check.message or finding).fault


# --- Checks that the noisy gradient is only post-processed.

#: Log likelihood ratio at which one of two explanations of small noise is accepted.
_CLEAR = 3.0
#: Standard errors within which an estimate is assumed to be right.
_ERRORS = 2.5

#: A canary below this ratio was shrunk: rounding of its norm explains no more.
_WHOLE = 0.97

#: Steps without noise, so few that the others hide them, leave more of a tensor than this.
_OFTEN_ZERO = 0.9

#: Checks that post-processing of correct noise violates before the checks of its size.
_FIRST_SEEN = {
    check.name for check in (NOISE_SHAPE, NOISE_ENTRIES, NOISE_WHOLE, REUSE_FORECAST, REUSE_ENTRIES)
}


class _Following:
    """Bets that values depend on their canaries' coins, for any unit of the values.

    Args:
        coin_probability: known probability that a canary is in.
        forms: number of forms of the values, each with a bet.
    """

    def __init__(self, coin_probability: float, forms: int) -> None:
        self._coin_probability = coin_probability
        self._bet: CoinBet | None = None
        #: Log e-values now, ``[forms]``.
        self.log_e: FloatArray = np.zeros(forms)

    def update(self, coins: FloatArray, *forms: FloatArray) -> FloatArray:
        """Update with steps; the bets are on the coins, given all values.

        Args:
            coins: of the steps, ``[n, k]``.
            forms: the values in each form, all of one size, ``[n, k]`` each.

        Returns:
            Log e-values after each step, ``[n, forms]``.
        """
        values = np.stack(forms, axis=1)
        sizes = np.sqrt(np.mean(np.square(forms[0]), axis=-1))
        some, log_e = np.isfinite(sizes) & (sizes > 0.0), self.log_e[None]
        if some.any():
            if self._bet is None:
                size = float(sizes[some][0])
                self._bet = CoinBet(values.shape[1:], 0.0, size, self._coin_probability)
            of_each = np.broadcast_to(coins[:, None], values.shape)
            log_e = np.concatenate([log_e, self._bet.update(of_each[some], values[some])])
            self.log_e = log_e[-1]
        return np.asarray(log_e[np.cumsum(some)])


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
        self._used, self._moved = _Following(coin_probability, 2), _Following(coin_probability, 1)
        self._rest = _Following(coin_probability, 4)

    def update(
        self,
        steps: Sequence[int],
        coins: FloatArray,
        readings: Sequence[tuple[FloatArray, FloatArray | None, FloatArray | None]],
    ) -> None:
        """Update with steps whose coins count.

        Args:
            steps: their numbers, ``[n]``.
            coins: 1 where the canary was in, ``[n, k]``.
            readings: of each step those of the release without the canaries, ``[k]``; of the
                gradient that the update used, ``[k]``, in any unit, None if it is the release
                itself; of the negative change of the weights, ``[k]``, None if not read.
        """
        rest = np.stack([release for release, _, _ in readings])
        small = np.abs(rest)
        rest_log_e = log_mean_exp(self._rest.update(coins, rest, -rest, small, -small))
        for i, (_, used, moved) in enumerate(readings):
            if used is not None:
                self._used.update(coins[i : i + 1], used[None], np.abs(used)[None])
            if moved is not None:
                self._moved.update(coins[i : i + 1], moved[None])
            if used is not None or moved is not None:
                follows = log_mean_exp(np.append(self._used.log_e, self._moved.log_e))
                self.evidence.update(follows - max(rest_log_e[i], 0.0), steps[i])

    def result(self, replaced: CheckResult) -> CheckResult:
        """Return the result of `gradient_replaced`, with the evidence of this test.

        Args:
            replaced: result on steps whose gradient a backward pass replaced.
        """
        if replaced.status == "violated" or not self.evidence.observed:
            return replaced
        return GRADIENT_REPLACED.result(self.evidence, replaced.evidence, fine=replaced.message)


def explained_by_processing(
    checks: Sequence[CheckResult],
    monitor: AuditMonitor,
    *,
    at_cut: bool,
    processed: bool = False,
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
        processed: whether noise comes after what was read (weights change as by noise), or the
            training's own `add_noise` does more than add noise.
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
    if processed:
        return of_noise
    if raw:
        return set()
    canaries, tensors = shares or (np.ones(len(monitor.header.canaries)), np.ones(1))
    seen = _CanariesSeen(monitor, canaries)
    if not math.isfinite(seen.error):  # no canary shows which part of a gradient is released
        return set()
    found: set[str] = set()
    ratio = _noise_ratio(monitor, sized, tensors)
    if sized and seen.shrank_with(ratio, at_cut=at_cut):
        found |= of_noise
    # A part is set to zero, and what is left is as large as claimed: it was chosen by its size.
    left = _noise_ratio(monitor, {NOISE_TENSOR.name}, tensors)
    if not at_cut and left >= _WHOLE and float(tensors.min()) < _OFTEN_ZERO:
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
