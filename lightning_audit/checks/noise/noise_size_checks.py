"""Declarations of the checks of the noise's size; `noise_size` computes them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lightning_audit.checks.base.check import Check, EntryStatistic

if TYPE_CHECKING:
    from lightning_audit.record.store import RecordHeader


def _of_coordinates(header: RecordHeader, significance: float) -> EntryStatistic:
    from lightning_audit.checks.noise.noise_size import WitnessNoiseCheck

    return WitnessNoiseCheck(header, significance)


def _of_canaries(header: RecordHeader, significance: float) -> EntryStatistic:
    from lightning_audit.checks.noise.noise_size import CanaryNoiseCheck

    return CanaryNoiseCheck(header, significance)


_FINDS = "too little noise: everywhere, in a tensor, in a few steps, on a canary"

_NO_STEP = "no finite gradient was read at a step with claimed noise"

NOISE = Check(
    "noise",
    _FINDS,
    title="Size of the noise",
    failed_title="Too little noise overall",
    meaning="The gradients have less noise than the privacy guarantee is computed from.",
    look_at="Compare the standard deviation that `add_noise` draws with `noise_multiplier * "
    "max_grad_norm`, and look for code that changes the gradient after the noise is added.",
    topic="Noise",
    weight=100,
    group="noise",
    needs=_NO_STEP,
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="noise",
    # Its statistic gives the results of `noise.tensor` and `noise.step` as well.
    reads="steps",
    init=_of_coordinates,
)

NOISE_TENSOR = dataclasses.replace(
    NOISE,
    name="noise.tensor",
    title="Noise in each tensor",
    failed_title="Some tensors lack noise",
    meaning="Some tensors get less noise than claimed, so what they learn can be traced to single "
    "records.",
    look_at="Check which parameters get noise, and at which scale: biases, frozen or late layers, "
    "parameter groups.",
    topic="Noise",
    reads=None,
    init=None,
)

NOISE_STEP = dataclasses.replace(
    NOISE,
    name="noise.step",
    title="Noise in each step",
    failed_title="Some steps lack noise",
    meaning="Some steps add less noise than claimed, and each of them reveals more of its records "
    "than is accounted.",
    look_at="Check branches around `add_noise` (the last batch, skipped steps, gradient "
    "accumulation, warm-up), and what the noisy sum is divided by.",
    topic="Noise",
    size_of=None,
    reads=None,
    init=None,
)

NOISE_CANARY = dataclasses.replace(
    NOISE,
    name="noise.canary",
    title="Noise along the canaries",
    failed_title="Canary directions lack noise",
    meaning="The noise along the directions of the audit's canaries is smaller than claimed.",
    look_at="Check the scale of the noise, and if one canary alone is affected, the tensors that "
    "it lies in.",
    topic="Noise",
    needs="no finite gradient was read at a step with canaries",
    reads="canaries",
    init=_of_canaries,
)

CHECKS = (NOISE, NOISE_TENSOR, NOISE_STEP, NOISE_CANARY)
