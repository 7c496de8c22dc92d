"""The check `no_dp`: optimizers that step without clipping and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: Alternative advice if there is a private optimizer as well.
_OR_ALLOW = (
    "; if one of several optimizers learns about private records only through private weights "
    "(the generator of a GAN whose discriminator is private), exempt it: PrivacyAudit(allow=["
    "Allow('no_dp', optimizer=..., reason='...')]) (from lightning_audit), optimizer= its index "
    "in configure_optimizers, its class, or the prefix of its parameters' names. Train it on a "
    "fixed number of fakes: as many fakes as records reveal the size of the batch"
)

_BY_RECORDS = (
    "the number of records reaches an exempt optimizer: each step of {who} trains on as many rows "
    "as the batch has records, or a multiple of it, and no noise hides that number"
)

_FIXED = (
    "train the generator on a fixed number of fakes, such as the expected batch size, for any size "
    "of the batch; the private discriminator's step may use as many fakes as records, if they are "
    "detached"
)


def no_dp_result(
    plain_steps: int,
    private_steps: int,
    plain_name: str,
    exempt: Mapping[str, int] | None = None,
    refused: str = "",
    by_records: Sequence[str] = (),
) -> CheckResult:
    """Return the result of `no_dp`: no optimizer may step without DP-SGD unless it is exempt.

    Args:
        plain_steps: number of steps of optimizers without DP-SGD.
        private_steps: number of steps of the private optimizer.
        plain_name: type of the plain optimizer that stepped last.
        exempt: number of steps of each optimizer that the user exempts, by its description.
        refused: type of the plain optimizer whose first step the audit prevented.
        by_records: exempt optimizers that train on as many rows as the batch has records.
    """
    evidence: dict[str, Any] = {"plain_steps": plain_steps, "private_steps": private_steps}
    if refused:
        evidence["refused_steps"] = 1
    fine = "only the private optimizer took steps"
    if exempt:
        evidence["exempt_steps"] = sum(exempt.values())
        fine = "in addition to the private optimizer, exempt ones took steps: " + "; ".join(
            f"{count} of {words}" for words, count in exempt.items()
        )
    if not plain_steps and not private_steps and not refused:
        message = "no private optimizer took a step"
        return NO_DP.not_run(message, evidence)
    if by_records and not plain_steps and not refused:
        evidence["by_records"] = len(by_records)
        return NO_DP.judged(evidence, fine, _BY_RECORDS.format(who="; ".join(by_records)), _FIXED)
    return NO_DP.judged(
        evidence,
        fine,
        f"{refused} was stopped before its first step, which has no clipping and no noise"
        if refused
        else f"{plain_name} took {plain_steps} step{'s' * (plain_steps > 1)} without clipping and "
        "noise",
        "return the optimizer of PrivacyEngine.make_private from configure_optimizers, and give it "
        "every trainable parameter" + (_OR_ALLOW * bool(private_steps)),
    )


NO_DP = Check(
    "no_dp",
    "an optimizer steps without clipping and noise",
    title="Optimizers without DP-SGD",
    failed_title="An optimizer is not private",
    meaning="An optimizer steps without clipping and noise, or an exempt one trains on a number of "
    "rows that follows the number of records.",
    look_at="Check what `configure_optimizers` returns: each optimizer must come from "
    "`make_private`, or be exempt and train on a fixed number of rows.",
    topic="What the update uses",
    always=True,
    optimizers=0,  # an audited training claims privacy, even if no optimizer is private
    must_run=True,
    wrong=lambda seen: (
        seen["plain_steps"] > 0 or seen.get("refused_steps", 0) > 0 or seen.get("by_records", 0) > 0
    ),
    faults=(
        FaultRule(
            "number_of_records_reaches_exempt_optimizer",
            "the number of records reaches an optimizer without DP-SGD, by the number of rows it "
            "trains on",
            "how many fakes the generator is trained on: a fixed number passes",
            headline="The number of records reaches an exempt optimizer",
            rank=-8,
            applies=lambda seen: seen.get("by_records", 0) > 0,
        ),
        FaultRule(
            "no_dp",
            "no DP-SGD: an optimizer steps that is not the private one",
            "what configure_optimizers returns: every optimizer there must come from make_private",
            headline="An optimizer steps without clipping and noise",
            rank=-8,
        ),
    ),
)

CHECKS = (NO_DP,)
