"""What the user allows, by name, and which epsilon holds beside it: for the run and the gate.

Nothing here needs more than what stands in the report.
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

#: Evidence of a finding that refutes what steps are composed to, and leaves another epsilon.
HOLDS = "epsilon_that_holds"


@dataclass(frozen=True)
class Held:
    """The epsilons of a run that hold beside what the user allows.

    Args:
        refuted_by: names of the findings that refute one of them; empty where nothing is allowed.
        claimed: the user's claim, or the accountant's while nothing refutes it.
        claim_holds: whether nothing refutes the claim.
        spent: what the steps cost; None where that is unknown.
        spent_holds: whether that is what the steps were composed to.
        lower_holds: whether lower bounds are composed of the batches that were drawn.
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
    """Which epsilons hold.

    Args:
        checks: all checks, those that the user allows marked.
        composed: what the steps are composed to; None if unknown.
        claimed: by the user, else by the accountants.
        stated: by the user; None where the accountants were asked.
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
    if stated is not None:  # it may be above what holds
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
    """The findings that the user allows, those that were found or could not be looked for.

    Args:
        checks: all checks, those that the user allows marked.
        settings: what was asked of the audit.
        unaudited: parameters that changed although no private optimizer trains them.
    """
    names = [c.name for c in checks if c.status == "allowed" or _vouched(c, settings)]
    exempt = any(c.name == NO_DP.name and c.evidence.get("exempt_steps") for c in checks)
    scoped = (*OF_PARAMETERS, NO_DP.name) if exempt else OF_PARAMETERS
    names += [f"{one.finding}{one.scope}" for one in settings.exemptions if one.finding in scoped]
    names += [name for name in OF_PARAMETERS if unaudited and name in settings.allow]
    return tuple(dict.fromkeys(names))


def _vouched(check: CheckResult, settings: OutcomeSettings) -> bool:
    """Whether the user answers for what a check could not see."""
    known = REGISTRY[check.name]
    return check.name in settings.allow and known.blocks is not None and bool(known.blocks(check))


def with_allowed(verdict: Verdict, names: Sequence[str], held: Held, delta: float) -> Verdict:
    """The verdict, whose first line names what is allowed and the epsilon that holds.

    Args:
        verdict: without it.
        names: see `named`.
        held: see `held`.
        delta: of the epsilon.
    """
    if not names:
        return dataclasses.replace(verdict, allowed=(), holds="")
    holds = "no epsilon is known to hold"
    if held.spent is not None:
        how = "" if held.spent_holds else ", with each record in one step an epoch"
        rests = [name for name in names if name not in held.refuted_by]
        word = f", if {', '.join(rests)} is what you say it is" if rests else ""
        holds = f"the epsilon that holds is {held.spent:.4g} at delta {delta:g}{how}{word}"
    return dataclasses.replace(verdict, allowed=tuple(names), holds=holds)


def worded(checks: Sequence[CheckResult], held: Held) -> tuple[CheckResult, ...]:
    """The checks; those with an epsilon that does not hold say so, and by which findings.

    Args:
        checks: all checks, those that the user allows marked.
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
        message=f"{check.message}; not known to hold beside {', '.join(others)}",
        evidence={**check.evidence, "not_known_to_hold_beside": others},
    )
