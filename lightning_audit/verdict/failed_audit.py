"""Report of a training whose audit failed: what was found before the failure, and no pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lightning_audit.checks.update.no_dp import no_dp_result
from lightning_audit.results.audit_report import AuditReport, Verdict
from lightning_audit.verdict.pass_blockers import NOT_ENDED, OutcomeSettings

_ADVICE = (
    "the steps after the failure were not audited: read the log, report the failure, and train "
    "again; on_inconclusive='raise' makes such a run fail"
)


def failed_report(
    before: AuditReport | None,
    config: OutcomeSettings,
    settings: Mapping[str, Any],
    failure: str,
) -> AuditReport:
    """Return the last report of a training whose audit failed, from plain values alone.

    Args:
        before: the last report before the failure; None if there is none.
        config: settings of the audit.
        settings: the settings as a report contains them.
        failure: what failed, "<type> in <module>.<function>".

    Returns:
        A report whose outcome is VIOLATION if one was found before, else INCONCLUSIVE.
    """
    sentence = f"the audit failed: {failure}"
    if before is None:
        return AuditReport(
            verdict=Verdict("INCONCLUSIVE", None, sentence, "", _ADVICE, (sentence,)),
            checks=(no_dp_result(0, 0, "", {}),),
            bounds=(),
            claimed_epsilon=config.claimed_epsilon,
            epsilon_spent=None,
            epsilon_not_excluded=None,
            delta=config.delta,
            steps=0,
            observations=0,
            history=(),
            power={},
            epochs=(),
            settings=settings,
            environment={},
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            complete=False,
            pass_blockers=(sentence,),
        )
    if sentence in before.pass_blockers:
        return before
    verdict = before.verdict
    if verdict.outcome != "VIOLATION":
        missing = (item for item in verdict.pass_blockers if item != NOT_ENDED)
        verdict = dataclasses.replace(
            Verdict("INCONCLUSIVE", None, sentence, "", _ADVICE, (sentence, *missing)),
            allowed=verdict.allowed,
            holds=verdict.holds,
        )
    return dataclasses.replace(
        before,
        verdict=verdict,
        notes=(*before.notes, sentence),
        pass_blockers=(sentence, *(item for item in before.pass_blockers if item != NOT_ENDED)),
    )
