"""The checks of the size and the shape of the noise."""

from __future__ import annotations

import dataclasses

from lightning_audit.catalogue.check import Check, FaultRule

#: What helps where too little noise can be a fault or a function of correct noise.
SHOW_THE_RELEASE = (
    "if more is done to the noisy gradient than to update with it, do it behind Opacus' add_noise, "
    "or show it where its noise is in: grads = lightning_audit.released(grads, module=self)"
)

_FINDS = "too little noise: everywhere, in a tensor, in a few steps, on a canary"

_NO_STEP = "no finite gradient was read of a step whose noise is claimed"

NOISE = Check(
    "noise",
    _FINDS,
    weight=100,
    group="noise",
    needs=_NO_STEP,
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="noise",
)

NOISE_TENSOR = dataclasses.replace(NOISE, name="noise.tensor")

NOISE_STEP = dataclasses.replace(NOISE, name="noise.step", size_of=None)

NOISE_CANARY = dataclasses.replace(
    NOISE, name="noise.canary", needs="no finite gradient was read of a step with canaries"
)

# What most of these look for shows in a step or two, with evidence that needs no larger share.
NOISE_SHAPE = Check(
    "noise.shape",
    "noise whose tails are not those of normal noise, or that lies on a lattice",
    weight=10,
    group="channel",
    needs="of no step were entries read between its noise and its update",
    each=True,
    always=True,
    doubtful=True,
    private=True,
    fine="the noise has the tails of normal noise, and no lattice",
)

#: Noise over a tensor that is smaller than this has more than single entries without noise.
_MORE_THAN_ENTRIES = 0.9

NOISE_ENTRIES = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.entries",
    weight=5,
    finds="single entries of the gradient with too little noise, or with the same at every step",
    needs="of no step the noise of entries was read apart from the clipped sums",
    fine="every entry that is read has noise of its own, of the claimed size at least",
    faults=(
        FaultRule(
            "noise_missing_at_entries",
            "noise of some entries: single entries of the gradient have too little noise, or none",
            "whether the noise has the gradient's shape, and what writes to single entries after "
            "it was added: a mask, an index, a slice",
            rank=0.7,
            explains=("noise.tensor",),
            explains_groups=("reuse", "channel", "leakage"),
        ),
    ),
)

_OVER_A_TENSOR = FaultRule(
    "noise_too_small_over_a_tensor",
    "noise too small: over all entries of a tensor it is smaller than claimed",
    "the standard deviation with which this tensor's noise is drawn, and what is done to it before "
    "it is added",
    rank=0.65,
    explains_groups=("reuse", "channel", "leakage"),
    applies=lambda seen: seen["smallest_ratio"] < _MORE_THAN_ENTRIES,
)

NOISE_WHOLE = dataclasses.replace(
    NOISE_SHAPE,
    name="noise.whole",
    weight=5,
    finds="too little noise over all entries of a tensor, at one step or more (Opacus, in one "
    "process)",
    needs="of no step whole tensors were read beside their clipped sums",
    fine="over all entries of a tensor the noise of no step is smaller than claimed",
    # Single entries come between: they make that of a whole tensor a little small.
    faults=(
        _OVER_A_TENSOR,
        dataclasses.replace(_OVER_A_TENSOR, rank=0.75, applies=lambda _: True),
    ),
)

BATCH_NORMALISED = dataclasses.replace(
    NOISE_SHAPE,
    name="batch_normalised",
    finds="the noisy sum is divided by the number of records that the batch happens to have "
    "(Opacus' optimizers in one process; by hand where gradients pass through "
    "lightning_audit.per_sample and the data leave enough of the noise to see, sometimes as "
    "`noise.step`; the report says where it could not be told)",
    needs="no step was read of which it is known what else it may be divided by",
    fine="the noisy sum is divided by what is stated",
    public=("message",),
    faults=(
        FaultRule(
            "divides_by_realised_batch",
            "divided by the realised batch size: the noise of a step depends on how many records "
            "it drew, and large batches have too little",
            "what the sum of gradients and noise is divided by: it must be the expected batch "
            "size, a constant",
            rank=0,
            explains=("noise.shape", "noise.entries", "noise.whole"),
            explains_groups=("clipping", "reuse", "leakage"),
        ),
    ),
)

NOISE_MEAN = Check(
    "noise.mean",
    "noise whose mean is not zero (a warning: no privacy is lost, no gate fails)",
    weight=500,
    needs=NOISE_SHAPE.needs,
    each=True,
    always=True,
    warns=True,
    private=True,
    fine="the noise is as often above zero as below",
)

NOISE_EXCESS = dataclasses.replace(
    NOISE_MEAN,
    name="noise.excess",
    finds="noise that is larger than claimed (a warning: no privacy is lost, no gate fails)",
    fine="the noise is no larger than claimed",
    # Parts of a batch that are too long, or processes of equal noise, are seen without an e-value.
    wrong=lambda _: True,
)
