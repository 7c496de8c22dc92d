"""What was examined by replay, and what was not: the first line of a pass."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_audit.catalogue.noise_examination import REPLAY_NOISE
from lightning_audit.catalogue.registry import group
from lightning_audit.catalogue.replay_checks import REPLAY_CLIPPING, REPLAY_SENSITIVITY
from lightning_audit.catalogue.step_checks import COUPLING
from lightning_audit.results.audit_report import CheckResult


def describe_examined(checks: Iterable[CheckResult]) -> str:
    """What was examined and what was not, each with its reason; empty where there is no such check.

    Args:
        checks: results of all checks.
    """
    replayed = (*group("replay"), REPLAY_NOISE.name, COUPLING.name)
    by_name = {check.name: check for check in checks if check.name in replayed}
    asked = {n: c for n, c in by_name.items() if c.status != "not_run"}
    reasons: dict[str, list[str]] = {}
    for name, check in by_name.items():
        if name not in asked:
            reason = check.message.removeprefix("not asked: ")
            reasons.setdefault(reason, []).append(name.removeprefix("replay."))
    unseen = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    if any(check.evidence.get("between_epochs") for check in asked.values()):
        unseen.append("what changes the weights between epochs")
    left = "; ".join(unseen)
    if not asked:
        return f"no step was examined by replay: {'; '.join(reasons)}" if by_name else ""
    steps = max(check.evidence.get("examined", 0) for check in asked.values())
    counts = {
        "records": asked.get(REPLAY_SENSITIVITY.name),
        "crafted gradients": asked.get(REPLAY_CLIPPING.name),
    }
    shown = [f"{c.evidence.get('asked')} {what}" for what, c in counts.items() if c is not None]
    if (noise := asked.get(REPLAY_NOISE.name)) is not None:
        shown.append(f"{noise.evidence.get('draws')} draws of the noise")
    line = f"examined {steps} step{'s' * (steps != 1)} by replay"
    line += f": {', '.join(shown)}" if shown else ""
    return f"{line}; not asked: {left}" if left else line
