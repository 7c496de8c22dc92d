"""What keeps a run from passing: one rule for the run that gives a verdict and for the gate.

Nothing here needs more than what stands in the report, nor anything but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_audit import _validate
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.noise.noise_size import SHOW_THE_RELEASE
from lightning_audit.files import typed_json as _typed
from lightning_audit.results.audit_report import CheckResult, OptimizerSeen, Outcome
from lightning_audit.verdict.exemptions import Allow

#: Power that a pass needs.
TARGET = 0.95
#: Share of steps with a failed injection or a non-finite reading above which nothing is concluded.
MAX_LOST = 0.01
#: A live canary's shift has its lower 95 % limit above this; a dead one reads mu = 0.
_LIVE = 0.5
#: How a blocker begins behind which no step is audited.
LAYOUT_CHANGED = "the set of trained parameters changed"
#: Of a run whose report is not its last.
NOT_ENDED = "the training has not ended"


#: What the verdict on a pass says where `noise_coefficients` are claimed.
MECHANISM_ALONE = (
    "the mechanism alone was judged, against the noise_coefficients of the claim: no epsilon is "
    "computed of noise that is correlated over steps"
)

#: Settings in (0, 1), and what to write for each.
_PROBABILITIES = {
    "delta": "take less than one over the number of samples",
    "significance": "e.g. 0.001",
    "bound_significance": "e.g. 0.05",
}


@dataclass(frozen=True)
class Resolution:
    """The violations that an audit must be able to see before it may pass.

    Args:
        noise: noise as a multiple of the claim, in (0, 1).
        sensitivity: what a canary adds as a multiple of what clipping allows, > 1.

    Raises:
        ValueError: a value outside its range.
    """

    noise: float = 0.8
    sensitivity: float = 2.0

    def __post_init__(self) -> None:
        _validate.open_unit("noise", self.noise, "0.8 asks to see noise of 0.8 times the claim")
        if not self.sensitivity > 1:
            raise ValueError(
                f"sensitivity={self.sensitivity!r} must be > 1; 2.0 asks to see a clipping norm "
                "twice the claimed one."
            )

    @property
    def parts(self) -> Mapping[str, float]:
        """Size of each violation, by the name of its part."""
        return {"noise": self.noise, "sensitivity": self.sensitivity}


@dataclass(frozen=True)
class OutcomeSettings:
    """Those settings of an audit on which its outcome rests.

    Args:
        claimed_epsilon: the user's claim, None if the accountants were asked.
        delta: of all epsilons.
        significance: probability of a false alarm over the whole run.
        bound_significance: probability that a bound on epsilon is wrong.
        resolution: what the run must be able to see.
        allow: names of checks whose violation the user acknowledges.
        exemptions: the same for one optimizer or some parameters, with the reason.

    Raises:
        ValueError: a probability outside (0, 1).
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
        """Read them from a report's settings.

        Raises:
            ValueError: one is absent, of another type or out of range; the message names it.
        """
        own = {name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        read: OutcomeSettings = _typed.read(cls, own, "settings")
        return read


def outcome_of(checks: Iterable[CheckResult], blockers: Sequence[str]) -> Outcome:
    """The outcome of a run.

    Args:
        checks: all checks, those that the user acknowledges marked.
        blockers: what stands in the way of a pass.
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
) -> list[str]:
    """What stands in the way of a pass, whichever private optimizer is looked at.

    Args:
        settings: what was asked of the audit.
        checks: all checks.
        epsilon_spent: epsilon of the steps that ran; None if unknown.
        others: what no check and no count shows, in sentences.
        complete: whether the training has ended as it should.
        mechanism_alone: whether no epsilon is computed, by the claim's `noise_coefficients`.
    """
    blockers = list(others)
    if not complete and not blockers:
        blockers.append(NOT_ENDED)
    unknown = epsilon_spent is None and not mechanism_alone
    if settings.claimed_epsilon is not None and unknown:
        blockers.append(
            "the sample rate is unknown, so the claimed epsilon cannot be checked; state it as "
            "PrivacyAudit(claim=PrivacyClaim(sample_rate=...)) or attach an accountant"
        )
    for name, known in REGISTRY.items():
        if known.blocks is not None and name not in settings.allow:
            blockers += filter(None, map(known.blocks, (c for c in checks if c.name == name)))
    undecided = [check.name for check in checks if check.status == "undecided"]
    if undecided:
        named = ", ".join(undecided)
        blockers.append(
            f"{named}: a fault, or post-processing of correct noise; {SHOW_THE_RELEASE}"
        )
    return blockers


def blockers_of_optimizer(seen: OptimizerSeen | None, resolution: Resolution) -> list[str]:
    """What one private optimizer's steps lack to pass.

    Args:
        seen: what they showed; None if there was no such optimizer.
        resolution: what they must have been able to show.
    """
    if seen is None or seen.steps == 0:
        blockers = seen.pass_blockers if seen else ()
        return [*blockers, "no step of a private optimizer was observed"]
    return [*_of_steps(seen, resolution), *_of_canaries(seen, resolution)]


def _of_steps(seen: OptimizerSeen, resolution: Resolution) -> list[str]:
    blockers = list(seen.pass_blockers)
    known = any(blocker.startswith(LAYOUT_CHANGED) for blocker in seen.pass_blockers)
    if seen.lost_steps > MAX_LOST * seen.steps and not known:
        blockers.append(
            f"{seen.lost_steps} of {seen.steps} steps were lost to failed injections or "
            "non-finite gradients; look for NaN or Inf in the training"
        )
    if seen.noiseless_steps:
        blockers.append(
            f"{seen.noiseless_steps} of {seen.steps} steps have noise_multiplier 0 and cannot be "
            "tested; set it above 0"
        )
    if seen.oversize < resolution.sensitivity:
        blockers.append(
            f"canaries of {seen.oversize:g}x max_grad_norm cannot show {resolution.sensitivity:g}x "
            "clipping; set oversize to 1000, or take an input canary whose gradient is longer, as "
            "Mislabeled(amplitude=100.0)"
        )
    return blockers


def _of_canaries(seen: OptimizerSeen, resolution: Resolution) -> list[str]:
    if seen.noiseless_steps == seen.steps:
        return []
    if seen.canary_steps == 0:
        return ["no canary was observed"]
    blockers = []
    wanted = {
        "noise": f"{resolution.noise:g}x noise",
        "sensitivity": f"{resolution.sensitivity:g}x clipping",
    }
    for part, violation in wanted.items():
        reached = seen.power.get(part)
        if reached is not None and not reached.power >= TARGET:
            more = reached.steps_needed - seen.steps
            need = (
                f"about {more} more steps are needed at the observed gradient variance"
                if 0 < more < 10**6
                else "the gradient variance of the data hides it so far; it may fall as the "
                "training converges"
            )
            blockers.append(
                f"{reached.power:.0%} power against {violation}, {TARGET:.0%} needed: {need}"
            )
    shift = seen.shift_lower
    needed = _LIVE * seen.released
    if shift is None or not shift > needed:
        limit = "unknown" if shift is None else f"{shift:.2f}"
        blockers.append(
            f"the canaries' signal was not detected (lower 95 % limit {limit}, above {needed:.2g} "
            "needed): train more steps, or look for code that removes it before the update"
        )
    return blockers
