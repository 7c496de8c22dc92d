"""Findings of examinations by replay, and reasons for which a test was not run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lightning_audit.results.audit_report import CheckResult

# --- Findings of an examination by replay.


@dataclass(frozen=True)
class Finding:
    """A neighboring batch whose step differs by more than DP-SGD allows.

    Args:
        name: of the neighboring batch.
        size: norm of the difference of releases over the clipping norm, or relative difference of
            the states after the step. Infinite if it is unknown.
        allowed: largest size that the definition of DP-SGD allows.
        whole: norm of a crafted gradient over the clipping norm; None for a record.
        in_one_tensor: whether that gradient is zero outside one of several tensors.
        decides: what the records of a step decide: whether it is taken, or its noise multiplier.
        tensors: names of the tensors that show it; empty where all do, or none is known.
    """

    name: str
    size: float
    allowed: float
    whole: float | None = None
    in_one_tensor: bool = False
    decides: Literal["", "step", "noise"] = ""
    tensors: tuple[str, ...] = ()

    @property
    def rounded(self) -> float | None:
        """The size in two digits, or in as many as exceed what is allowed; None if infinite."""
        if not math.isfinite(self.size):
            return None
        return next(
            size
            for digits in range(2, 18)
            if (size := float(f"{self.size:.{digits}g}")) != self.allowed or size == self.size
        )

    def describe(self) -> str:
        """Return the neighbor and its size as text."""
        size = self.rounded
        if not self.allowed:
            return self.name
        if size is None:
            of = self.name if self.whole is None else f"with a crafted gradient ({self.name})"
            return f"{of} the gradient of the step is not finite"
        return f"{self.name}: {size:g} C, at most {self.allowed:g} C is allowed"


# --- Reasons for which a test by replay was not run, and what to do about them.

#: Reasons that last although a training is correct, and the user's own choice: a pass names them.
OFF = "examinations=0"
RANKS = "several processes train, and a step is replayed in one only"
SEVERAL = "several private optimizers step together"
TOO_SMALL = "the batch is too small"
NO_ROOM = "a replay does not fit into memory next to the training; a smaller batch would"
NO_ROWS = "no per-sample gradients of a batch are formed"
IN_PARTS = "the batch is clipped in several parts"
ACCUMULATED = "the gradients of several batches are accumulated"
ADAPTS = "the clipping norm adapts to counts that are not part of the release"
TOO_COARSE = "rounding of the released sum hides what one record adds"
#: Reason if no step was examined at all.
NOT_EXAMINED = "no step was examined"
#: Why a test was not run that one of the next steps may run.
NONE_LEFT = "no replays were left for it; examinations=1 makes as many as it needs"
#: Reasons that a change of the training's code would remove.
NOT_SHOWN = (
    "it is unknown which gradient has the noise; show it: "
    "grads = lightning_audit.released(grads, module=net)"
)
NOISED_BESIDE = (
    "the state after a step depends on a record, with noise other than that of the release"
)
OWN_MEMORY = (
    "a record changes, without noise, what the training keeps, and in the next step this changes "
    "the gradient of that record alone"
)
OVERWRITTEN = (
    "the optimizer keeps what was computed from raw gradients until the next step overwrites it"
)
SEEDED = (
    "the training seeds the noise generator itself, so that replays under other random numbers do "
    "not show how its noise is drawn"
)
NOISE_ON_WEIGHTS = (
    "the gradient has no noise when the update begins, and the weights have some after it"
)
NO_RECORD = (
    "no record of the batch changes the release: the step gets its records elsewhere, or their "
    "gradients are zero"
)
NOT_CALLED = "lightning_audit.per_sample is not called with the per-sample gradients"
ONE_NUMBER = (
    "a step releases one number times a direction, as zeroth-order methods do, whose noise is not "
    "tested entry by entry"
)
_ELSE = "; fix this, or accept it by allow=, with the names of these checks"
OTHER_ROWS = "the number of clipped gradients per record is not one"

#: The message of a check by replay that was not run.
NOT_ASKED = "not asked: {}"
_LASTING = (
    *(OFF, RANKS, SEVERAL, TOO_SMALL, NO_ROOM, NO_ROWS, IN_PARTS, ACCUMULATED, ADAPTS, TOO_COARSE),
)
#: What to do about a reason that prevents a pass, as every other one does.
_TO_DO = {
    NOT_EXAMINED: f"{NOT_EXAMINED}; train more steps, or state examinations=1",
    NONE_LEFT: "not examined yet; train about 10 more steps, or state examinations=1, which "
    "examines everything at once",
    NOT_SHOWN: "not examined; a hand-written step must show the noisy gradient before it processes "
    "it: grads = lightning_audit.released(grads, module=net)",
    NOISED_BESIDE: f"{NOISED_BESIDE}; if a noisy gradient is kept before it is processed, show it: "
    "grads = lightning_audit.released(grads, module=net); if it is another release, account for "
    "it and state allow=['replay.release']",
    OWN_MEMORY: f"{OWN_MEMORY}: no theorem bounds a record's memory of its own over many steps; "
    "if it reaches neither checkpoint nor other records, state allow=['replay.release']",
    OVERWRITTEN: f"{OVERWRITTEN}, and a checkpoint would hold it: set it to zero after the step",
    NOISE_ON_WEIGHTS: f"{NOISE_ON_WEIGHTS}; add it to the gradient before the update, or show the "
    "noisy gradient: grads = lightning_audit.released(grads, module=net)",
    SEEDED: f"{SEEDED}; seed once, before training, or give Opacus a noise_generator of its own",
    NO_RECORD: f"{NO_RECORD}; train on the records of the batch that the loader gives",
    NOT_CALLED: "not examined: call grads = lightning_audit.per_sample(grads, module=net) before "
    "clipping; if the step forms no per-sample gradients, state allow=['replay.clipping', "
    "'replay.noise', 'coupling']",
    ONE_NUMBER: f"{ONE_NUMBER}; this mechanism is not audited: review how the number is clipped "
    "and noised",
    OTHER_ROWS: f"{OTHER_ROWS}; clip one gradient per record: views of a record that are clipped "
    "apart add more than C, and one record of a microbatch that shares a clip changes it by 2 C; "
    "give public rows, such as fakes of a GAN, a forward pass of their own, one row per record",
}


def unanswered(check: CheckResult) -> str:
    """Return what prevents a pass if a test was not run that could have run."""
    if check.status != "not_run" or check.message in map(NOT_ASKED.format, _LASTING):
        return ""
    known = (what for reason, what in _TO_DO.items() if check.message == NOT_ASKED.format(reason))
    return next(known, f"{check.message}{_ELSE}")
