"""Findings of examinations by replay, and reasons for which a test was not run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from lightning_audit.checks.check import Check
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
        in_weights: whether weights or optimizer state after the step show it.
    """

    name: str
    size: float
    allowed: float
    whole: float | None = None
    in_one_tensor: bool = False
    decides: Literal["", "step", "noise"] = ""
    tensors: tuple[str, ...] = ()
    in_weights: bool = False

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

_ELSE = "fix this, or accept it by allow=, with the names of these checks"
_SHOW = "grads = lightning_audit.released(grads, module=net)"


class Reason(StrEnum):
    """Why a test by replay was not run; a reason that only one training has is a plain string.

    A result holds the name, and the text as its message.
    """

    #: What a user does about it, as it prevents a pass; empty if the text says it. None if a pass
    #: names the reason instead: it lasts although a training is correct, or is the user's choice.
    to_do: str | None

    OFF = "examinations=0", None
    RANKS = "several processes train, and a step is replayed in one only", None
    SEVERAL = "several private optimizers step together", None
    TOO_SMALL = "the batch is too small", None
    NO_ROOM = (
        "a replay does not fit into memory next to the training; a smaller batch would",
        None,
    )
    NO_ROWS = "no per-sample gradients of a batch are formed", None
    IN_PARTS = "the batch is clipped in several parts", None
    ACCUMULATED = "the gradients of several batches are accumulated", None
    ADAPTS = "the clipping norm adapts to counts that are not part of the release", None
    TOO_COARSE = "rounding of the released sum hides what one record adds", None

    NOT_EXAMINED = "no step was examined", "train more steps, or state examinations=1"
    #: One of the next steps may answer.
    NONE_LEFT = (
        "no replays were left for it",
        "train about 10 more steps, or state examinations=1, which examines everything at once",
    )
    NO_STEP = "the batch makes no step", _ELSE
    NOT_REPEATED = (
        "the step, repeated from the same state, gives other bits: it keeps state that a replay "
        "cannot restore, draws random numbers that cannot be seeded, or is not deterministic",
        _ELSE,
    )
    NOT_SHOWN = f"it is unknown which gradient has the noise; show it: {_SHOW}", ""
    NOISED_BESIDE = (
        "the state after a step depends on a record, with noise other than that of the release",
        f"if a noisy gradient is kept before it is processed, show it: {_SHOW}; if it is another "
        "release, account for it and state allow=['replay.release']",
    )
    OWN_MEMORY = (
        "a record changes, without noise, what the training keeps, and in the next step this "
        "changes the gradient of that record alone",
        "no theorem bounds a record's memory of its own over many steps; if it reaches neither "
        "checkpoint nor other records, state allow=['replay.release']",
    )
    OVERWRITTEN = (
        "the optimizer keeps what was computed from raw gradients until the next step overwrites "
        "it, and a checkpoint would hold it",
        "set it to zero after the step",
    )
    SEEDED = (
        "the training seeds the noise generator itself, so that replays under other random numbers "
        "do not show how its noise is drawn",
        "seed once, before training, or give Opacus a noise_generator of its own",
    )
    NOISE_ON_WEIGHTS = (
        "the gradient has no noise when the update begins, and the weights have some after it",
        f"add it to the gradient before the update, or show the noisy gradient: {_SHOW}",
    )
    NO_RECORD = (
        "no record of the batch changes the release: the step gets its records elsewhere, or their "
        "gradients are zero",
        "train on the records of the batch that the loader gives",
    )
    NOT_CALLED = (
        "lightning_audit.per_sample is not called with the per-sample gradients",
        "call grads = lightning_audit.per_sample(grads, module=net) before clipping; if the step "
        "forms no per-sample gradients, state allow=['replay.clipping', 'replay.noise', "
        "'coupling']",
    )
    ONE_NUMBER = (
        "a step releases one number times a direction, as zeroth-order methods do, whose noise is "
        "not tested entry by entry",
        "this mechanism is not audited: review how the number is clipped and noised",
    )
    OTHER_ROWS = (
        "the number of clipped gradients per record is not one",
        "clip one gradient per record: views of a record that are clipped apart add more than C, "
        "and one record of a microbatch that shares a clip changes it by 2 C; give public rows, "
        "such as fakes of a GAN, a forward pass of their own, one row per record",
    )

    def __new__(cls, text: str, to_do: str | None) -> Reason:
        """Make a reason whose value is its text."""
        self = str.__new__(cls, text)
        self._value_, self.to_do = text, to_do
        return self


def not_asked(check: Check, reason: str) -> CheckResult:
    """Return the result of a check by replay that was not run."""
    name = reason.name if isinstance(reason, Reason) else ""
    return replace(check.not_run(str(reason)), reason=name)


def unanswered(check: CheckResult) -> str:
    """Return what prevents a pass if a test was not run that could have run."""
    if check.status != "not_run":
        return ""
    to_do = Reason[check.reason].to_do if check.reason in Reason.__members__ else _ELSE
    return "" if to_do is None else "; ".join(filter(None, (check.message, to_do)))
