"""Every check by its name: how often a report has it, and which evidence makes it a violation.

The checks go by these rules when they are made, and the gate goes by them when it reads a report.
A check by e-process is violated when its e-value reaches its threshold; see `checks.evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.evidence import SHARES, WARNING_SHARES
from lightning_audit.results.audit_report import CheckResult, Kind

#: Low precision rounds norms, but not by as much as this.
NORM_TOLERANCE = 1.1
#: A loader's rate is often rounded: no finding for one per cent.
RATE_TOLERANCE = 1.01

#: Findings about the same property: a fault that explains one of them explains the others.
NOISE = ("noise", "noise.tensor", "noise.canary", "noise.step")
REUSE = ("reuse.lag", "reuse.broadcast", "reuse.pair", "reuse.recurrence")
LEAKAGE = ("epsilon",)
#: Tests that suppose noise of the claimed size in each coordinate: noise that is smaller, or the
#: same twice, is not of the right shape, nor does the stated divisor fit it.
CHANNEL = ("noise.shape", "batch_normalised")
#: What is estimated from the gradients of many steps.
MEASURED = ("sensitivity", *CHANNEL, *NOISE, *REUSE, *LEAKAGE)

#: What helps where too little noise can be a fault or a function of correct noise.
SHOW_THE_RELEASE = (
    "if more is done to the noisy gradient than to update with it, do it behind Opacus' add_noise, "
    "or show it where its noise is in: grads = lightning_audit.released(grads, module=self)"
)

_Rule = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Known:
    """What is known of a check by its name.

    Args:
        each: whether each private optimizer has one of its own; if not, the run has one.
        always: whether it is there wherever a private optimizer is.
        wrong: tells by the evidence of a check without e-value whether what it found is wrong; None
            where such a check finds nothing.
        warns: whether what is wrong is a warning, and fails nothing.
        must_run: whether a pass rests on it, so that it must have seen something.
        doubtful: whether what is wrong may be undecided; see `checks.post_processing`.
    """

    each: bool = False
    always: bool = False
    wrong: _Rule | None = None
    warns: bool = False
    must_run: bool = False
    doubtful: bool = False


#: Checks on which the power of `power_model.PowerModel`, and so a pass, rests.
_RESTED_ON = ("noise", "noise.tensor", "noise.step", "noise.canary", "sensitivity")

#: Checks that a function of a correct release can violate.
_DOUBTFUL = (
    *_RESTED_ON,
    *(name for name in SHARES if name.startswith("reuse.")),
    "noise.shape",
    "batch_normalised",
)

REGISTRY: Mapping[str, Known] = {
    **{
        name: Known(each=True, always=True, must_run=name in _RESTED_ON, doubtful=name in _DOUBTFUL)
        for name in SHARES
    },
    **{name: Known(each=True, always=True, warns=True) for name in WARNING_SHARES},
    # Of those above, what follows has other rules.
    # Parts of a batch that are too long, or processes of equal noise, are seen without an e-value.
    "noise.excess": Known(each=True, always=True, warns=True, wrong=lambda _: True),
    "gradient_replaced": Known(
        each=True, always=True, must_run=True, wrong=lambda seen: seen["replaced"] > 0
    ),
    "finite": Known(each=True, always=True, wrong=lambda seen: "records" in seen),
    "clipping.norm": Known(each=True, wrong=lambda seen: seen["largest_ratio"] > NORM_TOLERANCE),
    # Where the number of records is private, and the divisor tells it at more than is claimed.
    "expected_batch_size": Known(
        each=True,
        wrong=lambda seen: (
            seen.get("private_dataset_size") is True
            and seen["claimed_epsilon"] is not None
            and exceeds(seen["epsilon_of_divisor"], seen["claimed_epsilon"])
        ),
    ),
    "no_dp": Known(always=True, must_run=True, wrong=lambda seen: seen["plain_steps"] > 0),
    "epsilon": Known(
        always=True,
        wrong=lambda seen: (
            seen["epsilon_lower"] is not None
            and exceeds(seen["epsilon_lower"], seen["claimed_epsilon"])
        ),
    ),
    "accounting": Known(
        always=True, wrong=lambda seen: exceeds(seen["epsilon_spent"], seen["claimed_epsilon"])
    ),
    "unsynchronised": Known(wrong=lambda seen: seen["synchronised"] is not True),
    "reuse.resume": Known(wrong=lambda seen: seen["restarted"] is not False),
    "reuse.optimizers": Known(wrong=lambda seen: seen["shared"] is not False),
    "coupling": Known(wrong=lambda seen: seen["step"] is not None),
    "logical_batch": Known(wrong=lambda seen: seen["carried_over"] > 0),
    "loss_reduction": Known(warns=True, wrong=lambda seen: seen["loss"] != seen["optimizer"]),
    "sampling.not_poisson": Known(always=True, wrong=lambda seen: seen["poisson"] is not True),
    "sampling.rate": Known(
        wrong=lambda seen: seen["loader_rate"] > RATE_TOLERANCE * seen["accounted_rate"]
    ),
    "sampling.repeated": Known(wrong=lambda seen: seen["processes"] > 1),
}


def is_wrong(name: str, evidence: Mapping[str, Any]) -> bool:
    """Whether a check without e-value found something wrong.

    Args:
        name: of the check.
        evidence: the numbers behind it.

    Raises:
        KeyError: no such check, or the evidence lacks a number.
    """
    rule = REGISTRY[name].wrong
    if rule is None:
        raise KeyError(f"{name} has an e-value")
    return rule(evidence)


def judged(
    name: str,
    evidence: Mapping[str, Any],
    fine: str,
    wrong: str,
    advice: str,
    kind: Kind = "mechanism",
) -> CheckResult:
    """Result of a check without e-value, with the status that its evidence gives.

    Args:
        name: of the check.
        evidence: the numbers behind it.
        fine: message where nothing is wrong.
        wrong: message where something is.
        advice: what to do about that.
        kind: which claim the check is about.
    """
    if not is_wrong(name, evidence):
        return CheckResult(name, kind, "ok", fine, evidence=evidence)
    status: Literal["violated", "warned"] = "warned" if REGISTRY[name].warns else "violated"
    return CheckResult(name, kind, status, wrong, advice, evidence=evidence)
