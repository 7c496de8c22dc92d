"""The checks by replay: tests of the definition of DP-SGD on the user's own step."""

from __future__ import annotations

import dataclasses

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.checks.replay.examined_noise import REPLAY_NOISE
from lightning_audit.checks.replay.unanswered import unanswered

#: What to look at in the code, by clipping fault.
CLIPPING_ADVICE = {
    "clip_after_average": "where gradients are summed or averaged: each sample's gradient must be "
    "clipped before that, by its own norm",
    "no_clipping": "whether the step that clips per-sample gradients runs at all, and whether what "
    "it returns is what is summed",
    "clipping_norm_too_large": "whether gradients are clipped to the max_grad_norm that the "
    "accountant and the noise use",
    "clip_per_tensor": "whether a sample's norm is taken over all tensors together; if L tensors "
    "are clipped separately, each must be clipped to max_grad_norm / sqrt(L)",
    "clipping_misses_tensors": "whether the norm by which a sample is clipped is taken over all "
    "trainable tensors",
    "clipping_norm_of_the_batch": "what the clipping norm of a step is computed from: a median, "
    "mean or quantile of the batch's own norms is private; clip at max_grad_norm, or use Opacus' "
    "adaptive clipping, which adds noise to its counts",
    "parts_count_differently": "where the clipped sums of the parts are added up: a sum that "
    "shares its memory with p.grad, that is added twice, or that is not set to zero after the step",
    "record_counts_twice": "whether views, augmentations or time steps of a record, or a layer "
    "that is used several times, give per-sample gradients that are clipped separately",
}


def _told(kind: str, name: str, headline: str, sentence: str) -> FaultRule:
    """Return the rule of a clipping fault that a few more replays distinguish from others."""
    return FaultRule(
        name,
        sentence,
        CLIPPING_ADVICE[name],
        headline=headline,
        rank=0.55,
        explains_groups=("replay", "clipping", "leakage"),
        applies=lambda seen: seen.get("kind") == kind,
    )


#: A fault that canaries can show as well has the same name there.
_OF_CLIPPING = (
    _told(
        "sum",
        "clip_after_average",
        "The mean of the batch is clipped instead of each gradient",
        "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
        "gradient before the sum",
    ),
    _told(
        "none",
        "no_clipping",
        "Gradients are not clipped",
        "no clipping: gradients pass with their full norm",
    ),
    _told(
        "norm",
        "clipping_norm_too_large",
        "Gradients are clipped at more than `max_grad_norm`",
        "clipping norm too large: gradients are clipped at more than max_grad_norm",
    ),
    _told(
        "tensors",
        "clip_per_tensor",
        "Each tensor is clipped separately",
        "clipping per tensor: each tensor is clipped to max_grad_norm separately",
    ),
    _told(
        "some",
        "clipping_misses_tensors",
        "Clipping leaves some tensors out",
        "clipping misses some tensors: gradients in them pass with their full norm, and those in "
        "others are clipped",
    ),
    _told(
        "batch",
        "clipping_norm_of_the_batch",
        "The clipping norm depends on the batch",
        "clipping norm made of the batch: the norm at which a gradient is clipped depends on the "
        "other gradients of its batch, and grows with them",
    ),
    _told(
        "parts",
        "parts_count_differently",
        "Parts of a split batch count differently",
        "parts of a split batch count differently: a record adds more in one of them than in "
        "another",
    ),
    _told(
        "rows",
        "record_counts_twice",
        "One record counts more than once in a step",
        "a record counts more than once: several per-sample gradients are computed from it, and "
        "clipped separately",
    ),
)

REPLAY_SENSITIVITY = Check(
    "replay.sensitivity",
    "replayed without a record, or with one more, a step's release moves by more than clipping "
    "allows",
    title="Replay with one record changed",
    failed_title="Replay exceeds the clipping norm",
    meaning="Replaying a step with the same noise, but with one record removed, added or replaced, "
    "moved the released gradient by more than clipping allows.",
    look_at="Check everything that one record can change between `training_step` and the noise: "
    "clipping factors, sums, several rows of one record, losses over the batch.",
    topic="Clipping",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    fine="no record that was left out, put in or replaced moves the release by more than clipping "
    "allows",
    faults=(
        *(dataclasses.replace(rule, rank=0.57) for rule in _OF_CLIPPING),
        FaultRule(
            "one_record_moves_too_much",
            "no bounded sensitivity: with the same noise, one record moves what a step releases "
            "by more than the clipping norm",
            "everything between training_step and the noise that one record can change: clipping "
            "factors, sums, several rows of one record, losses over the batch",
            headline="One record moves a step by more than the clipping norm",
            rank=1,
            explains_groups=("replay", "clipping", "leakage"),
        ),
    ),
)

REPLAY_CLIPPING = Check(
    "replay.clipping",
    "a crafted per-sample gradient adds more to a step's release than the clipping norm",
    title="Clipping of crafted gradients",
    failed_title="Crafted gradients escape clipping",
    meaning="A per-sample gradient that the audit crafted, for example a huge one, added more than "
    "the clipping norm to a replayed step.",
    look_at="Check the norm that is used for clipping, and whether any rows, sizes or batches are "
    "exempt from it.",
    topic="Clipping",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    fine="no crafted gradient adds more than the clipping norm",
    faults=(
        *_OF_CLIPPING,
        FaultRule(
            "some_gradients_not_clipped",
            "clipping that can be passed: some per-sample gradients add more than the clipping "
            "norm, even if those of this batch do not",
            "the norm that clips, and the rows, sizes and batches that it leaves out",
            headline="Some gradients escape clipping",
            rank=2,
            explains_groups=("clipping", "leakage"),
        ),
    ),
)

REPLAY_RELEASE = Check(
    "replay.release",
    "after the same release the training continues differently with a record than without it, or "
    "records decide whether a step is taken, or its noise_multiplier",
    title="State after a replayed step",
    failed_title="Records leak past the noise",
    meaning="Given the same noisy gradient, the training continues differently with a record than "
    "without it, or records decide whether a step is taken or how much noise it gets.",
    look_at="Look for state that is computed from raw gradients, inputs or losses: momentum, "
    "learning rates, skipped steps, `noise_multiplier`, statistics, weights changed elsewhere.",
    topic="What the update uses",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    fine="after the same release the training continues the same with a record and without it",
    public=("between_epochs",),
    faults=(
        dataclasses.replace(
            BATCH_NORMALISED.faults[0],
            rank=0.52,
            applies=lambda seen: seen.get("kind") == "divisor",
        ),
        FaultRule(
            "steps_depend_on_records",
            "steps are taken or skipped by the records of their batch: whether the weights change "
            "reveals these records without noise, and no accountant counts that",
            "what decides whether optimizer.step() is called: a loss, a gradient or an output must "
            "not; step on every batch, or by the number of batches, steps or epochs",
            headline="Records decide whether a step is taken",
            rank=-11,
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "step",
        ),
        FaultRule(
            "noise_set_by_records",
            "the noise of a step is set by records: noise_multiplier follows a loss or other "
            "values without noise, so the schedule itself reveals them, and no accountant's "
            "epsilon holds",
            "what sets optimizer.noise_multiplier: the number of steps or epochs may, as in "
            "opacus.schedulers, and what was released; a loss of training records must not",
            headline="Records decide how much noise a step gets",
            rank=-11,
            explains=(REPLAY_NOISE.name,),
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "noise",
        ),
        FaultRule(
            "more_than_the_release",
            "more than the release is used: the state after a step depends on a record, "
            "without noise",
            "what is computed from raw gradients, inputs or losses and kept: momentum, learning "
            "rates, clipping norms, statistics, weights that are changed elsewhere",
            headline="The training uses more than the noisy gradient",
            rank=3,
            explains_groups=("leakage",),
        ),
    ),
)

CHECKS = (REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)
