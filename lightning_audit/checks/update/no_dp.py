"""Optimizers that step without clipping and noise: `no_dp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: What else is to be done about an optimizer beside a private one.
_OR_ALLOW = (
    "; if one of several optimizers learns nothing of private records but through private weights "
    "(the generator of a GAN whose discriminator is private), say so: PrivacyAudit(allow=["
    "Allow('no_dp', optimizer=..., reason='...')]) (from lightning_audit), optimizer= its place "
    "in configure_optimizers, its class, or the prefix of its parameters' names. Train it on a "
    "fixed number of fakes: as many as the batch has records tell it how many these are"
)

_BY_RECORDS = (
    "the number of records reaches an exempt optimizer: each step of {who} trains on as many rows "
    "as the batch has records, or a multiple, and no noise hides that number"
)

_FIXED = (
    "train the generator on a fixed number of fakes, such as the expected batch size, whatever the "
    "batch's own; the fakes of the private discriminator's own step may be as many as the records, "
    "if they are detached"
)


def no_dp_result(
    plain_steps: int,
    private_steps: int,
    plain_name: str,
    exempt: Mapping[str, int] | None = None,
    refused: str = "",
    by_records: Sequence[str] = (),
) -> CheckResult:
    """Result of `no_dp`: whoever audits a training claims privacy, and an optimizer steps without.

    Args:
        plain_steps: steps of optimizers without DP-SGD.
        private_steps: steps of the private optimizer.
        plain_name: type of the plain optimizer that stepped last.
        exempt: steps of optimizers that the user exempts, by the words in which they are named.
        refused: type of the plain optimizer whose first step the audit did not let happen.
        by_records: those of the exempt ones that train on as many rows as the batch has records.
    """
    evidence: dict[str, Any] = {"plain_steps": plain_steps, "private_steps": private_steps}
    if refused:
        evidence["refused_steps"] = 1
    fine = "only the private optimizer took steps"
    if exempt:
        evidence["exempt_steps"] = sum(exempt.values())
        fine = "besides the private optimizer, steps are exempt: " + "; ".join(
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
        "return the optimizer that PrivacyEngine.make_private gives from configure_optimizers, "
        "and give it every trainable parameter" + (_OR_ALLOW * bool(private_steps)),
    )


NO_DP = Check(
    "no_dp",
    "an optimizer steps without clipping and noise",
    always=True,
    optimizers=0,  # whoever audits claims privacy, also where no optimizer is private
    must_run=True,
    wrong=lambda seen: (
        seen["plain_steps"] > 0 or seen.get("refused_steps", 0) > 0 or seen.get("by_records", 0) > 0
    ),
    faults=(
        FaultRule(
            "number_of_records_reaches_exempt_optimizer",
            "the number of records reaches an optimizer without DP-SGD, by the size of what it is "
            "trained on",
            "how many fakes the generator is trained on: a fixed number passes",
            rank=-8,
            applies=lambda seen: seen.get("by_records", 0) > 0,
        ),
        FaultRule(
            "no_dp",
            "no DP-SGD: an optimizer steps that is not the private one",
            "what configure_optimizers returns: every optimizer there must come from make_private",
            rank=-8,
        ),
    ),
)

CHECKS = (NO_DP,)
