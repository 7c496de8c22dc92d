"""The claim that was audited, each part with its source, and what the epsilons rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import Assumption, ClaimedValue
from lightning_audit.session.audit_session import AuditSession

if TYPE_CHECKING:
    from lightning_audit.run.run_facts import RunFacts

#: Parts that `PrivacyClaim` states, if the user does.
_STATED = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "sampling",
    "adjacency",
)
_SPENT = {
    "noise": "each step adds Gaussian noise of the stated size, independent of all other steps",
    "clipping": "clipping bounds what one record adds to a step by max_grad_norm",
    "release": "the update uses the noisy gradients alone, and nothing else is released",
}
_BATCHES = {
    "poisson": "each record joins each batch independently, with the stated sample rate",
    "shuffled": "each record enters one step an epoch at most",
}
_NEIGHBORS = {
    "add_remove": "neighboring data sets differ by one record, added or removed",
    "replace_one": "neighboring data sets differ by one replaced record",
}
_NOT_EXCLUDED = {
    "constant": "a fault has the same size, relative to the claim, in all steps",
    "power": "what this run would have flagged with a power of 95 % is excluded, at the observed "
    "gradient variance",
    "kinds": "noise that is too small and clipping at too large a norm, and no other fault",
}


def claim_of(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> dict[str, ClaimedValue]:
    """Return each part of the claim, with its source; parts that are unknown are None.

    The number of records is included only if batches are shuffled: with Poisson sampling it is
    private. The same for a divisor that is computed from it, if the user states it as private.
    """
    read = {
        "noise_multiplier": (_noise(sessions), "optimizer"),
        "max_grad_norm": (_norms(sessions), "optimizer"),
        "expected_batch_size": (_divisors(facts, config), "optimizer"),
        "sample_rate": (_one([own.sample_rate for own in facts.optimizers]), "accountant"),
        "records": (_records(facts, config), "loader"),
        "sampling": ("poisson", "accountant" if facts.accountants else "default"),
        "adjacency": (config.adjacency, "default"),
        "accountant": (_accountants(facts), "optimizer"),
    }
    stated = config.claim.to_dict() if config.claim else {}
    user = {name: stated[name] for name in _STATED if stated.get(name) is not None}
    return {
        name: ClaimedValue(user[name], "user") if name in user else ClaimedValue(value, source)
        for name, (value, source) in read.items()
    }


def claimed_mu(history: Sequence[tuple[float, float | None, int]]) -> float | None:
    """Return the claimed mu of the step with the least noise; None without steps or noise."""
    least = min((phase[0] for phase in history), default=0.0)
    return 1.0 / least if least > 0.0 else None


def assumptions_of(report: AuditReport, config: AuditConfig) -> dict[str, tuple[Assumption, ...]]:
    """Return what ``epsilon_spent`` and ``epsilon_not_excluded`` rest on, if they are known."""
    of_both = {
        "batches": _BATCHES["shuffled" if config.shuffled else "poisson"],
        "neighbors": _NEIGHBORS[config.adjacency],
    }
    told = {
        "epsilon_spent": (report.epsilon_spent, {**_SPENT, **of_both}),
        "epsilon_not_excluded": (report.epsilon_not_excluded, {**_NOT_EXCLUDED, **of_both}),
    }
    return {
        name: tuple(Assumption(*item) for item in sentences.items())
        for name, (value, sentences) in told.items()
        if value is not None
    }


def _one(values: Sequence[Any]) -> Any:
    """Return the value if all optimizers have the same, else all; None if none is known."""
    if not values or all(value is None for value in values):
        return None
    return values[0] if all(value == values[0] for value in values) else list(values)


def _noise(sessions: Sequence[AuditSession]) -> Any:
    """Return the least noise multiplier of the steps, or that of the coming one."""
    return _one([min(_multipliers(session), default=None) for session in sessions])


def _multipliers(session: AuditSession) -> Iterator[float]:
    history = session.monitor.history
    yield from (phase.noise_multiplier for phase in history)
    if not history and (claim := session.planner.known_claim()) is not None:
        yield claim.noise_multiplier


def _norms(sessions: Sequence[AuditSession]) -> Any:
    claims = [session.planner.known_claim() for session in sessions]
    return _one([None if claim is None else claim.max_grad_norm for claim in claims])


def _divisors(facts: RunFacts, config: AuditConfig) -> Any:
    if config.private_size:
        return None
    return _one([own.expected_batch_size for own in facts.optimizers])


def _records(facts: RunFacts, config: AuditConfig) -> int | None:
    public = config.shuffled and not config.private_size
    return facts.loader.records if public and facts.loader is not None else None


def _accountants(facts: RunFacts) -> Any:
    names = [str(link.accountant.mechanism()) for link in facts.accountants]
    return _one(names)
