"""Reasons that block a pass: the same rules for the verdict of a run and for the gate.

This module uses only what the report contains, and only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_audit import _validate
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.noise.noise_size import SHOW_THE_RELEASE
from lightning_audit.files.json_reader import as_type
from lightning_audit.results.audit_report import CheckResult, OptimizerSeen, Outcome
from lightning_audit.verdict.exemptions import Allow

#: Power that a pass needs.
TARGET = 0.95
#: Largest share of steps with a failed injection or a non-finite reading that allows a pass.
MAX_LOST = 0.01
#: The lower 95 % limit of a live canary's shift is above this; a removed canary reads mu = 0.
_LIVE = 0.5
#: Number of missing steps from which none is stated.
MOST_STEPS = 10**6
#: First words of a blocker after which no step is audited.
LAYOUT_CHANGED = "the set of trained parameters changed"
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


def outcome_of(checks: Iterable[CheckResult], blockers: Sequence[str]) -> Outcome:
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
) -> list[str]:
    """Return the reasons that block a pass, other than those of one private optimizer.

    Args:
        settings: settings of the audit.
        checks: all checks.
        epsilon_spent: epsilon of the steps that ran; None if unknown.
        others: reasons that no check and no count shows, as text.
        complete: whether the training has ended without a failure.
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
    """Return the reasons of one private optimizer that block a pass.

    Args:
        seen: what was read of its steps; None if there was no private optimizer.
        resolution: violations that its steps must be able to detect.
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
    blockers = [text for _, text in lacking_power(seen, resolution)]
    shift = seen.shift_lower
    needed = _LIVE * seen.released
    if shift is None or not shift > needed:
        limit = "unknown" if shift is None else f"{shift:.2f}"
        blockers.append(
            f"the canaries' signal was not detected (lower 95 % limit {limit}, above {needed:.2g} "
            "needed): train more steps, or look for code that removes it before the update"
        )
    return blockers


def lacking_power(seen: OptimizerSeen, resolution: Resolution) -> Iterator[tuple[str, str]]:
    """Yield each part of the resolution whose power is too small, and that as a sentence.

    Args:
        seen: what was read of the steps of a private optimizer.
        resolution: violations that its steps must be able to detect.
    """
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
                if 0 < more < MOST_STEPS
                else "the gradient variance of the data hides it so far; it may fall as the "
                "training converges"
            )
            text = f"{reached.power:.0%} power against {violation}, {TARGET:.0%} needed: {need}"
            yield part, text
