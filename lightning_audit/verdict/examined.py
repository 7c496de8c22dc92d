"""Text on what was examined by replay, and what was not: the first line of a pass."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_audit.checks.replay.examined_noise import REPLAY_NOISE
from lightning_audit.checks.replay.record_coupling import COUPLING
from lightning_audit.checks.replay.replay_checks import (
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.results.audit_report import CheckResult

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
            reason = check.message.removeprefix("not asked: ")
            reasons.setdefault(reason, []).append(name.removeprefix("replay."))
    unseen = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    if any(check.evidence.get("between_epochs") for check in asked.values()):
        unseen.append("what changes the weights between epochs")
    examined = "examined by replay: " + ", ".join(_OF[name] for name in asked)
    return "; ".join(
        [
            *["by canaries and noise"] * bool(reasons),
            *[examined] * bool(asked),
            *[f"not examined: {'; '.join(unseen)}"] * bool(unseen),
        ]
    )
