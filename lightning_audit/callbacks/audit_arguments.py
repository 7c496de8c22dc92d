"""Checks of the callbacks' arguments beside those of single numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.gradient import GradientCanary, default_mix
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.registry import REGISTRY
from lightning_audit.run.terms import Terms
from lightning_audit.stats.bounds.named_bounds import BOUND_NAMES

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

Given = TypeVar("Given")

DEFAULT_DELTA = 1e-5

#: What may follow a verdict.
ON_VIOLATION = ("raise", "stop", "warn")
ON_INCONCLUSIVE = ("raise", "warn")

#: Everything that an audit may find.
FINDINGS = (*REGISTRY, "unaudited")


def given(name: str, value: Any, kind: type[Given]) -> Given | None:
    """An argument that is of a class of this package, or None.

    Raises:
        ValueError: it is something else.
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"{name}={value!r} must be a {kind.__name__}; write {name}={kind.__name__}(...)."
        )
    return value


def claimed_of(claimed_epsilon: float | None, claim: PrivacyClaim | None) -> float | None:
    """The stated epsilon, by the argument or by the claim; None if neither states one."""
    stated = claim.epsilon if claim is not None else None
    if claimed_epsilon is None:
        return stated
    value = _validate.positive(
        "claimed_epsilon", claimed_epsilon, "leave it out to audit the accountant's own epsilon"
    )
    if stated is not None and stated != value:
        raise ValueError(
            f"claimed_epsilon={claimed_epsilon!r} contradicts claim.epsilon={stated!r}; give one "
            "of them."
        )
    return value


def delta_of(delta: float | None, claim: PrivacyClaim | None) -> float:
    """The delta of all epsilons, by the argument, by the claim, or the default."""
    stated = claim.delta if claim is not None else None
    if delta is None:
        return DEFAULT_DELTA if stated is None else stated
    value = _validate.open_unit("delta", delta, "take less than one over the number of samples")
    if stated is not None and stated != value:
        raise ValueError(f"delta={delta!r} contradicts claim.delta={stated!r}; give one of them.")
    return value


def canaries_of(
    canaries: Sequence[GradientCanary | InputCanary] | None, num_canaries: int
) -> tuple[GradientCanary | InputCanary, ...]:
    """The canaries that are named, or the default mix."""
    count = _validate.positive_int("num_canaries", num_canaries, "an audit needs a canary")
    if canaries is None:
        return default_mix(count)
    kinds = (GradientCanary, InputCanary)
    if isinstance(canaries, kinds) or not isinstance(canaries, Sequence):
        raise ValueError(f"canaries={canaries!r} must be a list; write [Dirac()] for one canary.")
    if not canaries:
        raise ValueError("canaries=[] must hold a canary; leave it out for the default mix.")
    for canary in canaries:
        if not isinstance(canary, kinds) or type(canary) in kinds:
            raise ValueError(
                f"canaries holds {canary!r}; it must hold objects of lightning_audit.canaries, "
                "such as Dirac()."
            )
    if len(canaries) > 1 and any(isinstance(canary, InputCanary) for canary in canaries):
        raise ValueError(
            f"canaries={list(canaries)!r} must hold one input canary alone: the gradient of an "
            "input overlaps with any other canary's direction, which would alarm on correct runs; "
            "train once with each."
        )
    return tuple(canaries)


def oversize_of(oversize: float) -> float:
    """The norm of the canaries over the clipping norm."""
    advice = "a canary below the clipping norm adds less than one record may"
    value = _validate.positive("oversize", oversize, advice)
    if value < 1:
        raise ValueError(f"oversize={oversize!r} must be >= 1; {advice}.")
    return value


def seed_of(seed: int | None) -> int:
    """The seed that is given, or one drawn from the operating system."""
    if seed is None:
        return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]  # an int if drawn
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number >= 0; leave it out to draw one.")
    return seed


def count_or_none(name: str, value: int | None) -> int | None:
    """An argument that is a whole number >= 1, or None."""
    return None if value is None else _validate.positive_int(name, value)


def flag_of(name: str, value: bool) -> bool:
    """An argument that is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be True or False.")
    return value


def bounds_of(bounds: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the literature's bounds, in their own order; all of them for None."""
    if bounds is None:
        return BOUND_NAMES
    if isinstance(bounds, str) or not isinstance(bounds, Sequence):
        raise ValueError(f"bounds={bounds!r} must be a list; write ['fdp_cp'] for one bound.")
    for name in bounds:
        if name not in BOUND_NAMES:
            raise ValueError(f"bounds holds {name!r}; it must hold names of {list(BOUND_NAMES)}.")
    return tuple(name for name in BOUND_NAMES if name in bounds)


def allowed_of(allow: Sequence[str]) -> tuple[str, ...]:
    """The findings that are allowed, each one that an audit can make."""
    names = (allow,) if isinstance(allow, str) else tuple(allow)
    for name in names:
        if name not in FINDINGS:
            raise ValueError(
                f"allow holds {name!r}; it must hold names of findings, of {sorted(FINDINGS)}."
            )
    return names


def terms_of(audit: PrivacyAudit) -> Terms:
    """The arguments of a callback, as its runs take them."""
    return Terms(**{field.name: getattr(audit, field.name) for field in fields(Terms)})
