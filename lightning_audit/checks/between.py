"""Checks of what holds at every step of Opacus: the sum and its rows, the noise, its seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_audit.checks.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: Entries without noise, beyond ten times those that rounding explains, that are a finding.
_ZEROS, _ROUNDED = 5, 10.0
#: Log p-value of a row with too little noise.
_SURE = math.log(1e-7)
#: Number of times that a generator is seeded anew from which on its noise can be computed.
_SEEDED = 3


def _changed(found: CheckResult) -> str:
    step = found.evidence.get("changed_at")
    if step is None:
        return ""
    return (
        f"the clipped sum of step {step + 1} has a part that is not made of the gradients of its "
        "batch, other than the sums of earlier steps: look for a sum that is not cleared, and for "
        "code that adds to it at times; if it is intended, allow clipping.sum"
    )


def _quiet(found: CheckResult) -> str:
    step = found.evidence.get("quiet_at")
    if step is None:
        return ""
    return (
        f"in step {step + 1} a row of a matrix had too little noise to be chance: look for noise "
        "that is scaled by row, or processed within add_noise; if it is intended, allow noise.zeros"
    )


def _seeded(found: CheckResult) -> str:
    times = found.evidence.get("seeds", 0)
    if times < _SEEDED or found.evidence.get("unseeded"):
        return ""
    return (
        f"the generator of the noise was seeded anew {times} times between steps, with numbers of "
        "32 bits: such noise can be computed by trying the seeds. Seed it once, before training, "
        "or give Opacus a noise_generator of its own; if it is intended, allow reuse.seed"
    )


CLIPPING_SUM = Check(
    "clipping.sum",
    "a step's sum has more of one per-sample gradient than the clipping norm",
    title="Sum of each step",
    failed_title="One gradient exceeds the clipping norm",
    meaning="In the sum of a step that was looked at, one per-sample gradient has more than the "
    "clipping norm by which its noise is scaled.",
    look_at="Look for gradients that are left unclipped or counted twice at times, and for a "
    "`max_grad_norm` that changes between clipping and noise.",
    topic="Clipping",
    group="clipping",
    needs="no per-sample gradients were compared with their sum",
    each=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=_changed,
    private=True,
    fine="no per-sample gradient has more than the clipping norm in the sums that were looked at",
    public=("changed_at",),
    faults=(
        FaultRule(
            "row_exceeds_its_norm",
            "no bounded sensitivity: one per-sample gradient has more than the clipping norm in "
            "the sum of a step",
            "what decides how a gradient is clipped (its loss, its norm, its place, the step's "
            "number), and what changes max_grad_norm between clipping and noise",
            headline="A sum has more of one gradient than the clipping norm",
            rank=3,
            explains_groups=("clipping", "leakage"),
        ),
    ),
)

NOISE_ZEROS = Check(
    "noise.zeros",
    "some entries of a step's gradient have exactly no noise",
    title="Noise at every entry",
    failed_title="Some entries have no noise",
    meaning="At some entries, the noisy gradient of a step equals the clipped sum exactly.",
    look_at="Look for a mask, a threshold or an index that leaves out entries as noise is added.",
    topic="Noise",
    group="channel",
    needs="no step's noise was read at every entry",
    each=True,
    wrong=lambda seen: seen["zeros"] > _ZEROS + _ROUNDED * seen["rounded"],
    blocks=_quiet,
    private=True,
    fine="every entry that was looked at has noise",
    public=("quiet_at",),
    faults=(
        FaultRule(
            "entries_without_noise",
            "noise of some entries: the noisy gradient equals the clipped sum there",
            "what leaves entries out where noise is added: a mask, a threshold, an index",
            headline="Some entries get no noise",
            rank=0.7,
            explains_groups=("noise", "channel", "leakage"),
        ),
    ),
)

SEED = Check(
    "reuse.seed",
    "the noise comes from a generator that was never seeded, whose numbers are the same in every "
    "process",
    title="Seed of the noise",
    failed_title="Noise comes from the constant seed",
    meaning="The noise comes from a `torch.Generator()` that nobody has seeded: it starts from a "
    "constant, so that anyone can compute the noise.",
    look_at="Call `generator.seed()` on the `noise_generator`, or leave `noise_generator` out.",
    topic="Fresh randomness",
    each=True,
    wrong=lambda seen: seen["unseeded"],
    blocks=_seeded,
    fine="the generator of the noise does not start from torch's constant seed",
    faults=(
        FaultRule(
            "noise_from_constant_seed",
            "noise that anyone can compute: its generator was never seeded, and starts from the "
            "same constant in every process",
            "the noise_generator that make_private gets: torch.Generator() must be seeded, as by "
            "its method seed()",
            headline="The noise generator was never seeded",
            rank=-5.5,
            explains_groups=("reuse",),
        ),
    ),
)


@dataclass
class BetweenSteps:
    """What the looks at an optimizer's steps have found.

    Args:
        sums: number of sums that were compared with their rows.
        step: the first step, from 0, at which a row exceeded the clipping norm; None if none did.
        size: the largest part of a row, in units of the clipping norm.
        changed_at: the first step whose sum was not made of its rows, although earlier ones were.
        looks: number of steps whose noise was read at all entries.
        zeros: number of entries with exactly no noise.
        rounded: number of these that rounding explains.
        zeros_at: the first step with too many of them; None if there was none.
        quiet_at: the first step with a row of a matrix that has too little noise.
        seeds: how often the generator was seeded anew with a small number.
        unseeded: whether the generator has torch's constant seed.
        seen_seed: whether its seed could be read.
    """

    sums: int = 0
    step: int | None = None
    size: float = 0.0
    changed_at: int | None = None
    looks: int = 0
    zeros: float = 0.0
    rounded: float = 0.0
    zeros_at: int | None = None
    quiet_at: int | None = None
    seeds: int = 0
    unseeded: bool = False
    seen_seed: bool = False

    def exceed(self, step: int, size: float) -> None:
        """Add a row that exceeds the clipping norm."""
        self.step = step if self.step is None else self.step
        self.size = max(self.size, size)

    def take_noise(self, step: int, zeros: float, rounded: float, log_p: float) -> None:
        """Add a look at a step's noise.

        Args:
            step: its number, from 0.
            zeros: number of entries without noise.
            rounded: how many rounding explains.
            log_p: log p-value of the row with the least noise.
        """
        self.looks += 1
        self.zeros, self.rounded = self.zeros + zeros, self.rounded + rounded
        if NOISE_ZEROS.is_wrong(self._noise) and self.zeros_at is None:
            self.zeros_at = step
        # Looks share the significance: the weights 1 / (k (k + 1)) add up to 1.
        sure = log_p + math.log(self.looks * (self.looks + 1.0)) < _SURE
        self.quiet_at = step if sure and self.quiet_at is None else self.quiet_at

    @property
    def is_seeded(self) -> bool:
        """Whether the training seeds the generator of the noise itself."""
        return self.seeds >= _SEEDED

    @property
    def _noise(self) -> Mapping[str, Any]:
        return {"zeros": int(self.zeros), "rounded": self.rounded, "looks": self.looks}

    @property
    def found(self) -> int:
        """Number of findings."""
        return (self.step is not None) + (self.zeros_at is not None) + self.unseeded

    def results(self) -> Iterator[CheckResult]:
        """Yield the results of the checks for which something was seen."""
        if self.sums:
            yield CLIPPING_SUM.judged(
                {"step": self.step, "size": self.size, "changed_at": self.changed_at},
                CLIPPING_SUM.fine,
                f"in step {(self.step or 0) + 1} one per-sample gradient has {self.size:.3g} times "
                "the clipping norm in the clipped sum",
                "clip each per-sample gradient to the max_grad_norm by which the step's noise is "
                "scaled, and count it once",
            )
        if self.looks:
            yield NOISE_ZEROS.judged(
                {**self._noise, "step": self.zeros_at, "quiet_at": self.quiet_at},
                NOISE_ZEROS.fine,
                f"{int(self.zeros)} entries had exactly no noise in {self.looks} steps, and "
                f"rounding explains {self.rounded:.2g}",
                "add noise to every entry of the gradient",
            )
        if self.seen_seed:
            yield SEED.judged(
                {"seeds": self.seeds, "unseeded": self.unseeded},
                SEED.fine,
                "the noise comes from a torch.Generator() that was never seeded, which starts from "
                "the same constant in every process",
                "seed it: generator.seed(), or leave noise_generator out",
            )


#: The checks of this subject, in the order of the report.
CHECKS = (CLIPPING_SUM, NOISE_ZEROS, SEED)
