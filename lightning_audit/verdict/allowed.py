"""What the user allows, by name, and which epsilon then still holds: for the run and the gate.

Everything is computed from what the report contains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.update.no_dp import NO_DP
from lightning_audit.results.audit_report import CheckResult, Verdict
from lightning_audit.verdict.exemptions import OF_PARAMETERS
from lightning_audit.verdict.pass_blockers import OutcomeSettings

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
    names = dict.fromkeys(check.name for checks in by.values() for check in checks)
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
    names = [c.name for c in checks if c.status == "allowed" or _vouched(c, settings)]
    exempt = any(c.name == NO_DP.name and c.evidence.get("exempt_steps") for c in checks)
    scoped = (*OF_PARAMETERS, NO_DP.name) if exempt else OF_PARAMETERS
    names += [f"{one.finding}{one.scope}" for one in settings.exemptions if one.finding in scoped]
    names += [name for name in OF_PARAMETERS if unaudited and name in settings.allow]
    return tuple(dict.fromkeys(names))


def _vouched(check: CheckResult, settings: OutcomeSettings) -> bool:
    """Whether the user allows a check that could not test what a pass needs."""
    known = REGISTRY[check.name]
    return check.name in settings.allow and known.blocks is not None and bool(known.blocks(check))


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
    return tuple(_worded(check, held) for check in checks)


def _worded(check: CheckResult, held: Held) -> CheckResult:
    numbers = ("claimed_epsilon", "epsilon_spent", "epsilon_lower")
    if not any(check.evidence.get(number) is not None for number in numbers):
        return check
    refuted = not (held.claim_holds and held.spent_holds and held.lower_holds)
    others = [name for name in held.refuted_by if name != check.name]
    if not refuted or not others or check.status == "not_run":
        return check
    return dataclasses.replace(
        check,
        message=f"{check.message}; not known to hold with {', '.join(others)} allowed",
        evidence={**check.evidence, "not_known_to_hold_beside": others},
    )
