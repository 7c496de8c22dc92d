"""Epsilons and other numbers of a report in a few characters."""

from __future__ import annotations

from lightning_audit.results.audit_report import AuditReport


def proved(report: AuditReport) -> str:
    """Return the lower bound on epsilon, or a dash: a bound of 0 is no sign of privacy."""
    return number(report.epsilon_lower or None)


def number(value: float | None) -> str:
    """Return three digits of a number, or a dash if it is unknown."""
    return "-" if value is None else f"{value:.3g}"


def epsilons(report: AuditReport) -> str:
    """Return the epsilons of a report in a few words."""
    known = {
        "proved >=": proved(report),
        "spent": number(report.epsilon_spent),
        "claimed": number(report.claimed_epsilon),
    }
    shown = [f"{name} {value}" for name, value in known.items() if value != "-"]
    return f"epsilon {', '.join(shown)}" if shown else "epsilon unknown"
