from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from lightning_audit.results.audit_report import AuditReport, OperatingPoint, Verdict

LITERATURE = (
    *("fdp_cp", "fdp_pooled_cp", "fdp_bayes", "fdp_t"),
    *("eps_cp", "eps_jeffreys", "eps_bayes", "katz"),
)


#: Near the curve of mu = 1, and far below it.
HEALTHY = OperatingPoint(0.5, fn=310, tp=690, fp=305, tn=695)


BROKEN = OperatingPoint(0.5, fn=20, tp=980, fp=25, tn=975)


VERDICTS = (
    Verdict("PASS", None, "no check failed"),
    Verdict("VIOLATION", "mechanism", "the noise is smaller than claimed"),
    Verdict("INCONCLUSIVE", None, "too short", pass_blockers=("400 more steps",)),
)


def rows(count: int, scale: float = 1.0) -> tuple[dict[str, float], ...]:
    shares = [(i + 1) / count for i in range(count)]
    return tuple(
        {
            "epoch": float(i),
            "step": 29.0 * (i + 1),
            "epsilon_lower": scale * max(0.0, share - 0.2),
            "epsilon_spent": 0.5 + share,
            "claimed_epsilon": 8.0,
        }
        | {
            f"epsilon_lower/{name}": scale * share * (j + 1) / 8
            for j, name in enumerate(LITERATURE)
        }
        for i, share in enumerate(shares)
    )


def report(**changes: Any) -> AuditReport:
    fields: dict[str, Any] = {
        "verdict": VERDICTS[0],
        "checks": (),
        "bounds": (),
        "claimed_epsilon": 8.0,
        "epsilon_spent": 1.5,
        "epsilon_not_excluded": 4.0,
        "delta": 1e-5,
        "steps": 145,
        "observations": 2000,
        "history": ((2.0, 0.01, 45), (1.0, 0.01, 100)),
        "power": {},
        "epochs": rows(5),
        "settings": {"bound_significance": 0.05},
        "environment": {},
        "operating_points": (HEALTHY,),
    }
    return AuditReport(**{**fields, **changes})


def line(drawn: Figure, panel: int, label: str) -> Any:
    found = [item for item in drawn.axes[panel].lines if item.get_label() == label]
    assert len(found) == 1, [item.get_label() for item in drawn.axes[panel].lines]
    return found[0]


def labels(drawn: Figure, panel: int) -> list[str]:
    return drawn.axes[panel].get_legend_handles_labels()[1]
