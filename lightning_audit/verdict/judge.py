"""Computes the verdict PASS, VIOLATION or INCONCLUSIVE from checks and power.

Every violated check is the finding of a fault, or a consequence of exactly one fault. Consequences,
the reasons that block a pass, and what the user allows follow from what the report contains alone,
so that the run and the gate apply the same rules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from lightning_audit import _validate
from lightning_audit.accounting.composition import exceeds
from lightning_audit.checks.check import REGISTRY, in_order
from lightning_audit.checks.clipping import SENSITIVITY
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import NOISE_CANARY, SHOW_THE_RELEASE, PooledSums
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.replay_findings import unanswered
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.checks.update import NO_DP, no_dp_result
from lightning_audit.files import as_type
from lightning_audit.results.audit_report import (
    KINDS,
    SAME_FACTOR,
    AuditReport,
    CheckResult,
    LikelyFault,
    OptimizerSeen,
    Outcome,
    Power,
    Verdict,
)
from lightning_audit.results.report_details import PassBlocker
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.power import noise_power, sensitivity_power, steps_needed
from lightning_audit.verdict.allow import OF_PARAMETERS, Allow
from lightning_audit.verdict.diagnosis import likely_faults, loses_no_privacy

# --- Divides violated checks into findings and their consequences.


def settled(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Keep each consequence only for the first fault that explains it, and drop findings."""
    kept = tuple(faults)
    taken = {(fault.finding, fault.place.optimizer) for fault in kept}
    settled_faults = []
    for fault in kept:
        own = {name: (name, _owner(name, fault.place.optimizer)) for name in fault.consequences}
        names = tuple(name for name, key in own.items() if key not in taken)
        taken.update(own.values())
        settled_faults.append(dataclasses.replace(fault, consequences=names))
    return tuple(settled_faults)


def _owner(name: str, optimizer: str) -> str:
    """Return the optimizer of a check that follows from its fault; empty for a check of the run."""
    return optimizer if name in REGISTRY and REGISTRY[name].each else ""


def mark_consequences(
    checks: Sequence[CheckResult], faults: Sequence[LikelyFault]
) -> tuple[CheckResult, ...]:
    """Return the checks, each violated one with the finding that it follows from.

    Args:
        checks: results of all checks.
        faults: faults of the verdict on these checks.
    """
    return tuple(dataclasses.replace(c, follows_from=_cause(c, faults)) for c in checks)


def _cause(check: CheckResult, faults: Sequence[LikelyFault]) -> str:
    """Return the finding that a violated check follows from; empty for a finding or no violation.

    Both are of the same optimizer, or one of them is of the whole run.
    """
    findings = {(fault.finding, fault.place.optimizer) for fault in faults}
    if check.status != "violated" or (check.name, check.optimizer) in findings:
        return ""
    for fault in faults:
        whose = {fault.place.optimizer, check.optimizer}
        if check.name in fault.consequences and (len(whose) == 1 or "" in whose):
            return fault.finding
    return ""


# --- Text on what was examined by replay, and what was not: the first line of a pass.

#: What a check examines. The counts are omitted: they depend on batch sizes, which are private.
_OF = {
    REPLAY_SENSITIVITY.name: "records",
    REPLAY_CLIPPING.name: "crafted gradients",
    REPLAY_RELEASE.name: "the state after a step",
    REPLAY_NOISE.name: "draws of the noise",
    COUPLING.name: "coupling of records",
}


def describe_examined(checks: Iterable[CheckResult]) -> str:
    """Return what was examined, and what was not and why; empty if no check examines.

    Args:
        checks: results of all checks.
    """
    found = {check.name: check for check in checks}
    by_name = {name: found[name] for name in _OF if name in found}
    asked = {n: c for n, c in by_name.items() if c.status != "not_run"}
    reasons: dict[str, list[str]] = {}
    for name, check in by_name.items():
        if name not in asked:
            reasons.setdefault(check.message, []).append(name.removeprefix("replay."))
    unseen = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    if COUPLING.name in asked and (why := asked[COUPLING.name].evidence.get("before")):
        unseen.append(f"what is before the step ({why})")
    parts = (
        "by canaries and noise" if reasons else "",
        f"examined by replay: {', '.join(_OF[name] for name in asked)}" if asked else "",
        f"not examined: {'; '.join(unseen)}" if unseen else "",
    )
    return "; ".join(filter(None, parts))


# --- Reasons that block a pass: the same rules for the verdict of a run and for the gate.

#: Power that a pass needs.
TARGET = 0.95
#: Largest share of steps with a failed injection or a non-finite reading that allows a pass.
MAX_LOST = 0.01
#: The lower 95 % limit of a live canary's shift is above this; a removed canary reads mu = 0.
_LIVE = 0.5
#: Number of missing steps from which none is stated.
MOST_STEPS = 10**6
#: Blocker of a training whose epsilon is unknown, and the verdict's words for it.
NOT_COUNTED = PassBlocker(
    "run",
    "no accountant counts the steps, so that no epsilon is known; attach an accountant, "
    "optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate)), or state "
    "claim=PrivacyClaim(sample_rate=...)",
)
_NOT_CHECKED = PassBlocker(
    "run",
    "the sample rate is unknown, so the claimed epsilon cannot be checked; state it as "
    "claim=PrivacyClaim(sample_rate=...) or attach an accountant",
)
_NO_EPSILON = "no epsilon is known, because no accountant counts the steps"
#: Blocker of a training of which no step was read, and of one without a private optimizer.
NO_STEP = "no step of a private optimizer was observed"
NO_OPTIMIZER = (
    f"{NO_STEP}; DP-SGD by hand takes a line in its step, "
    "grads = lightning_audit.per_sample(grads, module=net)"
)
#: Blocker of a report during the training.
NOT_ENDED = "the training has not ended"


#: Text in the verdict of a pass if `noise_coefficients` are claimed.
MECHANISM_ALONE = (
    "the mechanism alone was judged, against the noise_coefficients of the claim: no epsilon is "
    "computed for noise that is correlated over steps"
)

#: Settings in (0, 1), and the advice for each.
_PROBABILITIES = {
    "delta": "take less than one over the number of samples",
    "significance": "e.g. 0.001",
    "bound_significance": "e.g. 0.05",
}


@dataclass(frozen=True)
class Resolution:
    """The violations that an audit must be able to detect before it may pass.

    Args:
        noise: noise as a multiple of the claim, in (0, 1).
        sensitivity: what a canary adds as a multiple of what clipping allows, > 1.

    Raises:
        ValueError: if a value is outside its range.
    """

    noise: float = 0.8
    sensitivity: float = 2.0

    def __post_init__(self) -> None:
        _validate.open_unit("noise", self.noise, "0.8 means detecting 0.8 times the claimed noise")
        if not self.sensitivity > 1:
            raise ValueError(
                f"sensitivity={self.sensitivity!r} must be > 1; 2.0 means that a clipping norm "
                "of twice the claimed one must be detected."
            )

    @property
    def parts(self) -> Mapping[str, float]:
        """Size of each violation, by the name of its part."""
        return {"noise": self.noise, "sensitivity": self.sensitivity}


@dataclass(frozen=True)
class OutcomeSettings:
    """The settings of an audit that determine its outcome.

    Args:
        claimed_epsilon: the user's claim; None if it comes from the accountants.
        delta: delta of all epsilons.
        significance: probability of a false alarm over the whole run.
        bound_significance: probability that a bound on epsilon is wrong.
        resolution: violations that the run must be able to detect.
        allow: names of checks whose violation the user acknowledges.
        exemptions: findings that the user allows for one optimizer or some parameters.

    Raises:
        ValueError: if a probability is outside (0, 1).
    """

    claimed_epsilon: float | None
    delta: float
    significance: float
    bound_significance: float
    resolution: Resolution
    allow: tuple[str, ...]
    exemptions: tuple[Allow, ...] = ()

    def __post_init__(self) -> None:
        for name, advice in _PROBABILITIES.items():
            value = _validate.open_unit(name, getattr(self, name), advice)
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> OutcomeSettings:
        """Return the settings of a report.

        Raises:
            ValueError: if one is missing, has another type or is out of range; it is named.
        """
        read: OutcomeSettings = as_type(cls, settings, "settings")
        return read


def outcome_of(checks: Iterable[CheckResult], blockers: Sequence[PassBlocker]) -> Outcome:
    """Return the outcome of a run.

    Args:
        checks: all checks; acknowledged ones have the status "allowed".
        blockers: reasons that block a pass.
    """
    if any(check.status == "violated" for check in checks):
        return "VIOLATION"
    return "INCONCLUSIVE" if blockers else "PASS"


def blockers_of_run(
    settings: OutcomeSettings,
    checks: Sequence[CheckResult],
    epsilon_spent: float | None,
    others: Sequence[str],
    *,
    complete: bool,
    mechanism_alone: bool = False,
) -> list[PassBlocker]:
    """Return the reasons that block a pass, other than those of one private optimizer.

    Args:
        settings: settings of the audit.
        checks: all checks.
        epsilon_spent: epsilon of the steps that ran; None if unknown.
        others: reasons that no check and no count shows, as text.
        complete: whether the training has ended without a failure.
        mechanism_alone: whether no epsilon is computed, by the claim's `noise_coefficients`.
    """
    blockers = [PassBlocker("run", text) for text in others]
    if not complete and not blockers:
        blockers.append(PassBlocker("run", NOT_ENDED))
    stepped = not any(c.name == NO_DP.name and c.status == "not_run" for c in checks)
    if epsilon_spent is None and not mechanism_alone and stepped:
        blockers.append(NOT_COUNTED if settings.claimed_epsilon is None else _NOT_CHECKED)
    found: dict[str, list[str]] = {}
    for check in in_order(checks):
        why = REGISTRY[check.name].blocker(check)
        if why and check.name not in settings.allow:
            found.setdefault(why, []).append(check.name)
    blockers += [_of_checks(names, why) for why, names in found.items()]
    if undecided := [check.name for check in checks if check.status == "undecided"]:
        why = f"a fault, or post-processing of correct noise; {SHOW_THE_RELEASE}"
        blockers.append(_of_checks(undecided, why))
    return blockers


def _of_checks(names: Sequence[str], why: str) -> PassBlocker:
    """Return what prevents a pass, of one check or of several for the same reason."""
    alone = names[0] if len(names) == 1 else ""
    return PassBlocker("check" if alone else "run", f"{', '.join(names)}: {why}", alone)


def blockers_of_optimizer(seen: OptimizerSeen | None, resolution: Resolution) -> list[PassBlocker]:
    """Return the reasons of one private optimizer that block a pass.

    Args:
        seen: what was read of its steps; None if there was no private optimizer.
        resolution: violations that its steps must be able to detect.
    """
    if seen is None or seen.steps == 0:
        texts = [NO_OPTIMIZER] if seen is None else [*seen.pass_blockers, NO_STEP]
        return [PassBlocker("optimizer" if seen else "run", text) for text in texts]
    noisy = seen.noiseless_steps < seen.steps
    return [
        *(PassBlocker("optimizer", text) for text in _of_steps(seen, resolution)),
        *(_lacking_power(seen, resolution) if noisy and seen.canary_steps else ()),
        *(PassBlocker("optimizer", text) for text in (_of_canaries(seen) if noisy else ())),
    ]


def too_many_lost(lost: int, steps: int) -> bool:
    """Return whether more steps were lost than a pass allows."""
    return lost > MAX_LOST * steps


def _of_steps(seen: OptimizerSeen, resolution: Resolution) -> Iterator[str]:
    yield from seen.pass_blockers
    explained = seen.lost_explained and seen.pass_blockers
    if too_many_lost(seen.lost_steps, seen.steps) and not explained:
        yield (
            f"{seen.lost_steps} of {seen.steps} steps were lost to failed injections or "
            "non-finite gradients; look for NaN or Inf in the training"
        )
    if seen.noiseless_steps:
        yield (
            f"{seen.noiseless_steps} of {seen.steps} steps have noise_multiplier 0 and cannot be "
            "tested; set it above 0"
        )
    if seen.oversize < resolution.sensitivity:
        yield (
            f"canaries of {seen.oversize:g}x max_grad_norm cannot show {resolution.sensitivity:g}x "
            "clipping; set oversize to 1000, or take an input canary whose gradient is longer, as "
            "Mislabeled(amplitude=100.0)"
        )


def _of_canaries(seen: OptimizerSeen) -> Iterator[str]:
    shift, needed = seen.shift_lower, _LIVE * seen.released
    if seen.canary_steps == 0:
        yield "no canary was observed"
    elif shift is None or not shift > needed:
        limit = "unknown" if shift is None else f"{shift:.2f}"
        yield (
            f"the canaries' signal was not detected (lower 95 % limit {limit}, above {needed:.2g} "
            "needed): train more steps, or look for code that removes it before the update"
        )


def _lacking_power(seen: OptimizerSeen, resolution: Resolution) -> Iterator[PassBlocker]:
    """Yield each part of the resolution whose power is too small."""
    wanted = {
        "noise": f"{resolution.noise:g}x noise",
        "sensitivity": f"{resolution.sensitivity:g}x clipping",
    }
    for part, violation in wanted.items():
        reached = seen.power.get(part)
        if reached is not None and not reached.power >= TARGET:
            more = reached.steps_needed - seen.steps
            need = f"about {more} more steps are needed at the observed gradient variance"
            if more >= MOST_STEPS:
                need = (
                    f"the gradient varies {seen.spread:.2g}x as much as the claimed noise alone "
                    "would: its noise is above the claim, or noise_multiplier is small compared "
                    "with the gradients of the data, which may shrink as the training converges"
                )
            elif part == "sensitivity" and more > seen.steps:
                need += ", or resolution=Resolution(sensitivity=...) above it"
            text = f"{reached.power:.0%} power against {violation}, {TARGET:.0%} needed: {need}"
            within = more if 0 < more < MOST_STEPS else None
            yield PassBlocker("power", text, part, reached.power, TARGET, within)


# --- Power of an audit: which faults the run would have detected. It limits what a pass means.


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
        probes = np.array(monitor.header.witnesses)
        self._noise = _quiet_groups(probes, monitor.witness_noise.sums, "noise")
        if monitor.canary_steps:
            ones, sums = np.ones(self._canaries, dtype=np.int64), monitor.canary_noise.sums
            self._noise += _quiet_groups(ones, sums, NOISE_CANARY.name, self._canary_rate)

    def noise(self, ratio: float, steps: int | None = None) -> float:
        """Return the probability that noise of ``ratio`` times the claim is flagged."""
        steps = self._steps if steps is None else steps
        powers = [0.0]
        for group in self._noise:
            if seen := int(steps * group.rate):
                level = REGISTRY[group.check].share * self._significance
                powers.append(noise_power(group.coordinates, seen, ratio, group.data, level))
        return max(powers)

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
    counts: np.ndarray, sums: PooledSums, check: str, rate: float = 1.0
) -> list[_Group]:
    """Return pools of the units with the smallest mean squares, with the variance of their data."""
    groups, mean_square = [], sums.mean_square
    order = np.argsort(mean_square, kind="stable")
    order = order[counts[order] > 0]  # some tensors have no probe coordinates
    # A dozen pool sizes are about as good as hundreds.
    for size in np.unique(np.geomspace(1, len(order), 12).round().astype(int)):
        chosen = order[:size]
        weight = counts[chosen]
        mean = float(np.average(mean_square[chosen], weights=weight))
        # Add two standard errors: the variance is estimated from the same run.
        mean *= 1.0 + 2.0 * np.sqrt(2.0 / max(float(sums.count[chosen].sum()), 1.0))
        groups.append(_Group(check, int(weight.sum()), max(mean - 1.0, 0.0), rate))
    return groups


# --- What the user allows, by name, and which epsilon then still holds: for the run and the gate.

#: Evidence key of the epsilon that holds although a finding refutes the composed one.
HOLDS = "epsilon_that_holds"


@dataclass(frozen=True)
class Held:
    """The epsilons of a run that hold in spite of what the user allows.

    Args:
        refuted_by: names of the findings that refute an epsilon; empty if nothing is allowed.
        claimed: the user's claim, else the accountants' if no finding refutes it; else None.
        claim_holds: whether the claim holds.
        spent: epsilon of the steps; None if unknown.
        spent_holds: whether no finding refutes the composed epsilon of the steps.
        lower_holds: whether no finding refutes the lower bounds.
    """

    refuted_by: tuple[str, ...]
    claimed: float | None
    claim_holds: bool
    spent: float | None
    spent_holds: bool
    lower_holds: bool


def held(
    checks: Sequence[CheckResult],
    composed: float | None,
    claimed: float | None,
    stated: float | None,
) -> Held:
    """Return which epsilons hold.

    Args:
        checks: all checks; those that the user allows have the status "allowed".
        composed: epsilon that the steps are composed to; None if unknown.
        claimed: epsilon claimed by the user, else by the accountants.
        stated: epsilon claimed by the user; None if it comes from the accountants.
    """
    if not any(check.status == "allowed" for check in checks):
        return Held((), claimed, True, composed, True, True)
    found = [check for check in checks if check.status in ("allowed", "violated")]
    by = {
        what: [check for check in found if what in REGISTRY[check.name].refutes]
        for what in ("claimed", "spent", "lower")
    }
    spent = composed
    if by["spent"]:
        others = [check.evidence.get(HOLDS) for check in by["spent"]]
        known = [float(one) for one in others if one is not None]
        spent = max(known) if len(known) == len(others) else None
    claim_holds = not by["claimed"]
    if stated is not None:  # the statement may be above the epsilon that holds
        claim_holds = spent is not None and not exceeds(spent, stated)
    names = {check.name for checks in by.values() for check in checks}
    return Held(
        tuple(name for name in REGISTRY if name in names),
        claimed if claim_holds or stated is not None else None,
        claim_holds,
        spent,
        not by["spent"],
        not by["lower"],
    )


def named(
    checks: Sequence[CheckResult], settings: OutcomeSettings, unaudited: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the allowed findings that were found or could not be tested.

    Args:
        checks: all checks; those that the user allows have the status "allowed".
        settings: settings of the audit.
        unaudited: parameters that changed although no private optimizer trains them.
    """
    # Those that could not test what a pass needs have a blocker.
    names = [
        check.name
        for check in checks
        if check.status == "allowed"
        or (check.name in settings.allow and REGISTRY[check.name].blocker(check))
    ]
    exempt = any(c.name == NO_DP.name and c.evidence.get("exempt_steps") for c in checks)
    scoped = (*OF_PARAMETERS, NO_DP.name) if exempt else OF_PARAMETERS
    names += [f"{one.finding}{one._scope}" for one in settings.exemptions if one.finding in scoped]
    names += [name for name in OF_PARAMETERS if unaudited and name in settings.allow]
    return tuple(dict.fromkeys(names))


def with_allowed(verdict: Verdict, names: Sequence[str], held: Held, delta: float) -> Verdict:
    """Return the verdict with what is allowed and the epsilon that holds in its first line.

    Args:
        verdict: the verdict without them.
        names: see `named`.
        held: see `held`.
        delta: delta of the epsilon.
    """
    if not names:
        return dataclasses.replace(verdict, allowed=(), holds="")
    holds = "no epsilon is known to hold"
    if held.spent is not None:
        how = "" if held.spent_holds else ", with each record in one step an epoch"
        rests = [name for name in names if name not in held.refuted_by]
        word = f", if allowing {', '.join(rests)} is correct" if rests else ""
        holds = f"the epsilon that holds is {held.spent:.4g} at delta {delta:g}{how}{word}"
    return dataclasses.replace(verdict, allowed=tuple(names), holds=holds)


def worded(checks: Sequence[CheckResult], held: Held) -> tuple[CheckResult, ...]:
    """Return the checks; the message of one whose epsilon does not hold names the findings.

    Args:
        checks: all checks; those that the user allows have the status "allowed".
        held: see `held`.
    """
    if held.claim_holds and held.spent_holds and held.lower_holds:
        return tuple(checks)
    return tuple(_worded(check, held) for check in checks)


def _worded(check: CheckResult, held: Held) -> CheckResult:
    numbers = ("claimed_epsilon", "epsilon_spent", "epsilon_lower")
    states = any(check.evidence.get(number) is not None for number in numbers)
    others = [name for name in held.refuted_by if name != check.name]
    if not states or not others or check.status == "not_run":
        return check
    return dataclasses.replace(
        check,
        message=f"{check.message}; not known to hold with {', '.join(others)} allowed",
        evidence={**check.evidence, "not_known_to_hold_beside": others},
    )


# --- Computes the verdict PASS, VIOLATION or INCONCLUSIVE from checks and power.

_ORDER = {"violated": 0, "undecided": 1, "allowed": 2, "warned": 3, "ok": 4, "not_run": 5}


def acknowledge(checks: Iterable[CheckResult], allow: Collection[str]) -> tuple[CheckResult, ...]:
    """Mark violated checks whose names the user allows, and sort violated ones first."""
    marked = [
        dataclasses.replace(check, status="allowed")
        if check.status in ("violated", "undecided") and check.name in allow
        else check
        for check in checks
    ]
    return tuple(sorted(marked, key=lambda check: _ORDER[check.status]))


def seen_of(
    monitor: AuditMonitor,
    power: Mapping[str, Power],
    oversize: float,
    pass_blockers: Sequence[str] = (),
    label: str = "",
    released: float = 1.0,
    *,
    lost_explained: bool = False,
) -> OptimizerSeen:
    """Return what the verdict uses of one private optimizer in addition to its checks.

    Args:
        monitor: the checks by e-process after the last step.
        power: power of the steps by part of the resolution; empty during the training.
        oversize: norm of the canaries over the clipping norm.
        pass_blockers: other reasons that block a pass, as text.
        label: name of the optimizer if there are several.
        released: see `OptimizerSeen`.
        lost_explained: see `OptimizerSeen`.
    """
    return OptimizerSeen(
        label=label,
        steps=monitor.steps,
        canaries=len(monitor.header.canaries),
        canary_steps=monitor.canary_steps,
        lost_steps=monitor.lost_steps,
        noiseless_steps=monitor.noiseless_steps,
        oversize=oversize,
        shift_lower=monitor.sensitivity.shift_lower,
        power=power,
        pass_blockers=tuple(pass_blockers),
        released=released,
        spread=monitor.witness_noise.smallest_ratio,
        lost_explained=lost_explained,
    )


def blockers_of(
    checks: Sequence[CheckResult],
    seen: OptimizerSeen | None,
    resolution: Resolution,
    of_run: Sequence[PassBlocker] = (),
) -> list[PassBlocker]:
    """Return all that blocks a pass of one private optimizer.

    Args:
        checks: results of all checks; acknowledged ones have the status "allowed".
        seen: see `seen_of`; None if no step was observed.
        resolution: violations that the run must be able to detect to pass.
        of_run: see `blockers_of_run`.
    """
    blockers = [*of_run, *blockers_of_optimizer(seen, resolution)]
    if not blockers:  # a pass requires these checks
        needed = [c for c in checks if c.status == "not_run" and REGISTRY[c.name].must_run]
        blockers = [_of_checks([check.name], check.message) for check in needed]
    return blockers


def judge(
    checks: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    seen: OptimizerSeen | None,
    resolution: Resolution,
    blockers: Sequence[PassBlocker],
    processes: int = 1,
    *,
    mechanism_alone: bool = False,
) -> Verdict:
    """Return the verdict on one private optimizer.

    Args:
        checks: results of all checks; acknowledged ones have the status "allowed".
        monitor: the checks by e-process after the last step; None if no step was observed.
        seen: see `seen_of`; None if no step was observed.
        resolution: violations that the run must be able to detect to pass.
        blockers: see `blockers_of`.
        processes: number of processes that train together.
        mechanism_alone: whether no epsilon is computed, by the claim's `noise_coefficients`.

    Returns:
        The verdict, with the likely faults and what to do.
    """
    outcome = outcome_of(checks, blockers)
    if outcome == "VIOLATION":
        violated = [check for check in checks if check.status == "violated"]
        return _violation(violated, monitor, seen.oversize if seen else math.inf, processes)
    if outcome == "INCONCLUSIVE":
        summary = "no check failed, but a PASS needs more than this run has shown"
        if any(check.name in _OF and unanswered(check) for check in checks):
            summary += f"; {describe_examined(checks)}"
        return Verdict(
            "INCONCLUSIVE",
            None,
            _NO_EPSILON if NOT_COUNTED in blockers else summary,
            advice="resolve the items under Missing; on_inconclusive='raise' makes such a run fail",
            pass_blockers=tuple(blocker.sentence for blocker in blockers),
        )
    said = (
        describe_examined(checks),
        f"no check failed; {TARGET:.0%} power against {resolution.noise:g}x noise or "
        f"{resolution.sensitivity:g}x clipping, at the observed gradient variance",
        MECHANISM_ALONE if mechanism_alone else "",
    )
    return Verdict("PASS", None, "; ".join(filter(None, said)))


#: What `judge` reads of one private optimizer: checks, monitor, and what was seen of its steps.
Judged = tuple[Sequence[CheckResult], AuditMonitor | None, OptimizerSeen | None]


def judge_all(
    optimizers: Sequence[Judged],
    resolution: Resolution,
    of_run: Sequence[PassBlocker],
    processes: int = 1,
    *,
    mechanism_alone: bool = False,
) -> tuple[Verdict, tuple[PassBlocker, ...]]:
    """Return the verdict of a run, and all that blocks a pass of it.

    Args:
        optimizers: what `judge` reads of each, at least one; checks include those of the run.
        resolution: see `judge`.
        of_run: see `blockers_of_run`.
        processes: see `judge`.
        mechanism_alone: see `judge`.
    """
    labels = [seen.label if seen else "" for _, _, seen in optimizers]
    missing = [blockers_of(checks, seen, resolution, of_run) for checks, _, seen in optimizers]
    verdicts = [
        judge(*one, resolution, lacks, processes, mechanism_alone=mechanism_alone)
        for one, lacks in zip(optimizers, missing, strict=True)
    ]
    violated = (c for checks, _, _ in optimizers for c in checks if c.status == "violated")
    blockers = joined(missing, labels, of_run)
    return worst(verdicts, labels, blockers, {check.optimizer for check in violated}), blockers


def joined(
    blockers: Sequence[Sequence[PassBlocker]], labels: Sequence[str], of_run: Sequence[PassBlocker]
) -> tuple[PassBlocker, ...]:
    """Return the blockers of all private optimizers, each of a single one with its label.

    Args:
        blockers: of each optimizer, see `blockers_of`.
        labels: their names; a single one's is empty.
        of_run: those of all of them.
    """
    owned = (
        one
        if one in of_run or not label
        else dataclasses.replace(one, sentence=f"{label}: {one.sentence}")
        for label, own in zip(labels, blockers, strict=True)
        for one in own
    )
    return tuple(dict.fromkeys(owned))


def worst(
    verdicts: Sequence[Verdict],
    labels: Sequence[str],
    blockers: Sequence[PassBlocker],
    broken: Collection[str] = (),
) -> Verdict:
    """Return the verdict of a run with several private optimizers: the worst of theirs.

    Args:
        verdicts: one for each optimizer, at least one.
        labels: their names, as their checks give them.
        blockers: see `joined`.
        broken: labels of optimizers with a violated check of that optimizer.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    named = list(zip(labels, verdicts, strict=True))
    violated = [pair for pair in named if pair[1].outcome == "VIOLATION"]
    if violated:
        own = [pair for pair in violated if pair[0] in broken] or violated[:1]
        own.sort(key=lambda pair: _severity(pair[1]))
        chosen, others = own[0][1], [label for label, _ in own[1:]]
        also = f"; also: {'; '.join(others)}" if others else ""
        faults = _together(_placed(fault, label) for label, one in own for fault in one.faults)
        return dataclasses.replace(chosen, summary=chosen.summary + also, faults=faults)
    doubtful = [verdict for verdict in verdicts if verdict.outcome == "INCONCLUSIVE"]
    if not doubtful:
        return verdicts[0]
    return dataclasses.replace(doubtful[0], pass_blockers=tuple(b.sentence for b in blockers))


def _placed(fault: LikelyFault, optimizer: str) -> LikelyFault:
    """Return the fault with its optimizer as the place, unless it is a fault of the whole run."""
    if fault.finding in REGISTRY and not REGISTRY[fault.finding].each:
        return fault
    return dataclasses.replace(fault, place=dataclasses.replace(fault.place, optimizer=optimizer))


def _together(faults: Iterable[LikelyFault]) -> tuple[LikelyFault, ...]:
    """Merge faults of several optimizers; keep a fault of the run once, if no other explains it."""
    kept: list[LikelyFault] = []
    for fault in faults:
        of_run = not fault.place.optimizer
        twin = next((i for i, k in enumerate(kept) if of_run and k.name == fault.name), None)
        if twin is not None:
            both = dict.fromkeys([*kept[twin].consequences, *fault.consequences])
            kept[twin] = dataclasses.replace(kept[twin], consequences=tuple(both))
        elif not (of_run and any(fault.finding in other.consequences for other in kept)):
            kept.append(fault)
    return settled(kept)


def _severity(verdict: Verdict) -> int:
    return KINDS.index(verdict.kind) if verdict.kind else len(KINDS)


def _violation(
    violated: Sequence[CheckResult], monitor: AuditMonitor | None, oversize: float, processes: int
) -> Verdict:
    by_name = {check.name: check for check in violated}
    faults = likely_faults(violated, monitor, oversize, processes)
    # The first fault gives the verdict its message and kind; faults are sorted by kind.
    faults = settled(sorted(faults, key=lambda fault: KINDS.index(by_name[fault.finding].kind)))
    root = faults[0]
    check = by_name[root.finding]
    verdict = Verdict(
        "VIOLATION",
        check.kind,
        f"{check.name}: {check.message}",
        advice="" if root.look_at else check.advice,
        faults=faults,
    )
    summary = verdict.summary
    if verdict.further:
        summary += f" (also: {', '.join(fault.finding for fault in verdict.further)})"
    if monitor and loses_no_privacy(violated, monitor):
        summary += f"; {SAME_FACTOR}"
    return dataclasses.replace(verdict, summary=summary)


# --- Report of a training whose audit failed: what was found before the failure, and no pass.

_ADVICE = (
    "the steps after the failure were not audited: read the log, report the failure, and train "
    "again; on_inconclusive='raise' makes such a run fail"
)


def failed_report(
    before: AuditReport | None, config: OutcomeSettings, settings: Mapping[str, Any], failure: str
) -> AuditReport:
    """Return the last report of a training whose audit failed, from plain values alone.

    Args:
        before: the last report before the failure; None if there is none.
        config: settings of the audit.
        settings: the settings as a report contains them.
        failure: what failed, "<type> in <module>.<function>".

    Returns:
        A report whose outcome is VIOLATION if one was found before, else INCONCLUSIVE.
    """
    sentence = f"the audit failed: {failure}"
    if before is None:
        return AuditReport(
            verdict=Verdict("INCONCLUSIVE", None, sentence, "", _ADVICE, (sentence,)),
            checks=(no_dp_result(0, 0, "", {}),),
            bounds=(),
            claimed_epsilon=config.claimed_epsilon,
            epsilon_spent=None,
            epsilon_not_excluded=None,
            delta=config.delta,
            steps=0,
            observations=0,
            history=(),
            power={},
            epochs=(),
            settings=settings,
            environment={},
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            complete=False,
            pass_blockers=(sentence,),
        )
    if sentence in before.pass_blockers:
        return before
    verdict = before.verdict
    if verdict.outcome != "VIOLATION":
        missing = (item for item in verdict.pass_blockers if item != NOT_ENDED)
        verdict = dataclasses.replace(
            Verdict("INCONCLUSIVE", None, sentence, "", _ADVICE, (sentence, *missing)),
            allowed=verdict.allowed,
            holds=verdict.holds,
        )
    return dataclasses.replace(
        before,
        verdict=verdict,
        notes=(*before.notes, sentence),
        pass_blockers=(sentence, *(item for item in before.pass_blockers if item != NOT_ENDED)),
    )
