"""The check `every_step`: what holds at every step of Opacus, between examinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.checks.check import NOISED, Check, Fault
from lightning_audit.checks.replay import CLIPPING, OF_CLIPPING
from lightning_audit.results.audit_report import CheckResult

#: Faults by the kind of finding, and its size in words.
_KINDS = {
    "row": Fault(
        "row_exceeds_its_norm",
        "A sum has more of one gradient than the clipping norm",
        "no bounded sensitivity: one per-sample gradient has more than the clipping norm in the "
        "sum of a step",
        "what decides how a gradient is clipped (its loss, its place, the step's number), and what "
        "changes max_grad_norm between clipping and noise",
    ),
    "zeros": Fault(
        "entries_without_noise",
        "Some entries get no noise at some steps",
        "noise of some entries: the noisy gradient equals the clipped sum there",
        "what leaves out entries where noise is added: a mask, a threshold, an index",
    ),
    "constant": Fault(
        "noise_from_constant_seed",
        "The noise generator was never seeded",
        "noise that anyone can compute: its torch.Generator() was never seeded, and starts from "
        "the same constant in every process",
        "the noise_generator of make_private: call its method seed(), or leave it out",
    ),
}
_SIZES = {"row": ": {:.3g} times", "zeros": ": {:.0f} entries so far", "constant": ""}
#: Faults of clipping that the rows of a step show.
_OF_ROWS = CLIPPING["sum"], CLIPPING["none"]
#: Kinds that prevent a pass.
_DOUBTS = {
    "sum": "the clipped sum has a part that is not made of the gradients of its batch, other than "
    "at earlier steps: look for a sum that is not cleared, or that more is added to at times",
    "quiet": "a row of a matrix has too little noise to be chance: look for noise that is scaled "
    "by row, or processed within add_noise",
    "seeded": "the generator of the noise was seeded again in three steps, with 32-bit numbers: "
    "such noise can be computed by trying the seeds; seed it once, before training",
}


def _doubts(found: CheckResult) -> str:
    seen = found.evidence.get("doubts", {})
    doubts = "; ".join(f"{_DOUBTS[kind]} (step {step + 1})" for kind, step in seen.items())
    return doubts and f"{doubts}; if intended, allow=['{BETWEEN.name}']"


def _broken(seen: Mapping[str, Any]) -> str:
    size = _SIZES[seen["of"]].format(seen["size"])
    return f"in step {seen['step'] + 1}, {_KINDS[seen['of']].sentence}{size}"


BETWEEN = Check(
    "every_step",
    title="Every step's sum and noise",
    failed_title="A step breaks its rules",
    meaning="At a step that was looked at, the sum of clipped gradients, its noise or the seed of "
    "the noise is not as at every step of DP-SGD.",
    look_at="code that acts at some steps or on some records only: what clips, what is added, what "
    "seeds",
    topic="Clipping",
    group="clipping",
    each=True,
    wrong=lambda seen: bool(seen["of"]),
    blocks=_doubts,
    private=True,
    fine="the steps that were looked at keep sum, noise and seed as DP-SGD does",
    message=_broken,
    public=("doubts",),
    faults=(
        *(rule for rule in OF_CLIPPING if rule.fault in _OF_ROWS),
        *(fault.rule(3.5, (*NOISED, "clipping"), "of", kind) for kind, fault in _KINDS.items()),
    ),
)


def between_result(found: Mapping[str, tuple[int, float]], clipping: str = "") -> CheckResult:
    """Return the result of `every_step`.

    Args:
        found: kind -> the first step, from 0, and the largest part of a gradient in units of the
            clipping norm, or the number of entries.
        clipping: how rows were clipped: "none", "sum", or empty.
    """
    of = next((kind for kind in _KINDS if kind in found), "")
    step, size = found.get(of, (0, 0.0))
    return BETWEEN.judged(
        {
            "of": of,
            "kind": clipping if of == "row" else "",
            "step": step if of else None,
            "doubts": {kind: at for kind, (at, _) in found.items() if kind in _DOUBTS},
        },
        size=size,
    )


#: The check of this subject.
CHECKS = (BETWEEN,)
