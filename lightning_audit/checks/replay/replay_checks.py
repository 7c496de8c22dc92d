"""The checks by replay: the definition of DP-SGD, tested on the user's own step."""

from __future__ import annotations

import dataclasses

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.results.audit_report import CheckResult

#: Why a question was not asked that one of the next steps may be asked.
NONE_LEFT = "no replays were left for it; examinations=1 makes as many as it needs"
#: Why questions have no answer that a change of the training's code would give them.
NOT_SHOWN = (
    "it cannot be told where the noise is in; show it: "
    "grads = lightning_audit.released(grads, module=self)"
)
NOISED_BESIDE = (
    "what a step leaves behind shows a record, under noise of its own that is not the release's"
)
NOISE_ON_WEIGHTS = (
    "the gradient has no noise where the update begins, and the weights have some behind it"
)
NO_RECORD = (
    "no record of the batch changes the release: the step takes its records elsewhere, or their "
    "gradients are zero"
)
OTHER_ROWS = "other than one gradient of each record comes to be clipped"

#: What to do about a reason with which no run passes.
_TO_DO = {
    NONE_LEFT: "not examined yet; train about 10 more steps, or state examinations=1, which "
    "examines everything at once",
    NOT_SHOWN: "not examined; by hand the noisy gradient is to be shown before more is "
    "done to it: grads = lightning_audit.released(grads, module=self)",
    NOISED_BESIDE: f"{NOISED_BESIDE}; if a noisy gradient is kept before it is processed, show it: "
    "grads = lightning_audit.released(grads, module=self); if it is another release, account for "
    "it and state allow=['replay.release']",
    NOISE_ON_WEIGHTS: f"{NOISE_ON_WEIGHTS}; add it to the gradient before the update, or show the "
    "noisy gradient: grads = lightning_audit.released(grads, module=self)",
    NO_RECORD: f"{NO_RECORD}; train on the records of the batch that training_step is given",
    OTHER_ROWS: f"{OTHER_ROWS}; make one gradient of all rows of a record before it is clipped",
}


def unanswered(check: CheckResult) -> str:
    """What stands in the way of a pass where a question has no answer and could have one."""
    if check.status != "not_run":
        return ""
    to_do = (to_do for reason, to_do in _TO_DO.items() if check.message.endswith(reason))
    return next((f"{check.name}: {what}" for what in to_do), "")


#: What to look at in code whose clipping is wrong, by the fault.
CLIPPING_ADVICE = {
    "clip_after_average": "where gradients are summed or averaged: each sample's must be clipped "
    "before that, and the norm be taken over one sample",
    "no_clipping": "whether the step that clips per-sample gradients runs at all, and whether what "
    "it returns is what is summed",
    "clipping_norm_too_large": "whether gradients are clipped to the max_grad_norm that the "
    "accountant and the noise use",
    "clip_per_tensor": "whether a sample's norm is taken over all tensors together; clipped one by "
    "one, each of L tensors may keep max_grad_norm / sqrt(L)",
    "clipping_misses_tensors": "whether the norm by which a sample is clipped is taken over all "
    "trainable tensors",
    "clipping_norm_of_the_batch": "what the clipping norm of a step is computed of: a median, mean "
    "or quantile of the batch's own norms is private; clip at max_grad_norm, or take Opacus' "
    "adaptive clipping, which counts under noise",
    "parts_count_differently": "where the clipped sums of the parts are added up: a sum that "
    "shares its memory with p.grad, that is added twice, or that is not set to zero after the step",
    "record_counts_twice": "whether views, augmentations or time steps of a record, or a layer "
    "that is used several times, give per-sample gradients that are clipped one by one",
}


def _told(kind: str, name: str, sentence: str) -> FaultRule:
    """A fault of the clipping that a few more replays tell from others."""
    return FaultRule(
        name,
        sentence,
        CLIPPING_ADVICE[name],
        rank=0.55,
        explains_groups=("replay", "clipping", "leakage"),
        applies=lambda seen: seen.get("kind") == kind,
    )


#: Where canaries tell the same fault, it has the same name.
_OF_CLIPPING = (
    _told(
        "sum",
        "clip_after_average",
        "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
        "gradient before the sum",
    ),
    _told(
        "none",
        "no_clipping",
        "no clipping: gradients pass with their full norm",
    ),
    _told(
        "norm",
        "clipping_norm_too_large",
        "clipping norm too large: gradients are clipped at more than max_grad_norm",
    ),
    _told(
        "tensors",
        "clip_per_tensor",
        "clipping per tensor: each tensor is clipped to max_grad_norm on its own",
    ),
    _told(
        "some",
        "clipping_misses_tensors",
        "clipping misses some tensors: gradients in them pass with their full norm, those in "
        "others are clipped",
    ),
    _told(
        "batch",
        "clipping_norm_of_the_batch",
        "clipping norm made of the batch: at what a gradient is clipped depends on the other "
        "gradients of its batch, and grows with them",
    ),
    _told(
        "parts",
        "parts_count_differently",
        "parts of a split batch count differently: a record adds more in one of them than in "
        "another",
    ),
    _told(
        "rows",
        "record_counts_twice",
        "a record counts more than once: several per-sample gradients are made of it, and clipped "
        "one by one",
    ),
)

REPLAY_SENSITIVITY = Check(
    "replay.sensitivity",
    "replayed without a record, or with one more, a step's release moves by more than clipping "
    "allows",
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
            rank=1,
            explains_groups=("replay", "clipping", "leakage"),
        ),
    ),
)

REPLAY_CLIPPING = Check(
    "replay.clipping",
    "a crafted per-sample gradient adds more to a step's release than the clipping norm",
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
            "norm, whatever the batch of now shows",
            "the norm that clips, and the rows, sizes and batches that it leaves out",
            rank=2,
            explains_groups=("clipping", "leakage"),
        ),
    ),
)

REPLAY_RELEASE = Check(
    "replay.release",
    "after the same release the training goes on otherwise with a record than without it, or "
    "records decide whether a step is taken, or its noise_multiplier",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    fine="after the same release the training goes on in the same way with a record and without it",
    public=("between_epochs",),
    faults=(
        dataclasses.replace(
            BATCH_NORMALISED.faults[0],
            rank=0.52,
            applies=lambda seen: seen.get("kind") == "divisor",
        ),
        FaultRule(
            "steps_depend_on_records",
            "steps are taken or skipped by the records of their batch: whether the weights move "
            "shows them without noise, and no accountant counts that",
            "what decides whether optimizer.step() is called: a loss, a gradient or an output must "
            "not; step on every batch, or by the number of batches, steps or epochs",
            rank=-11,
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "step",
        ),
        FaultRule(
            "noise_set_by_records",
            "the noise of a step is set by records: noise_multiplier follows a loss or other "
            "values without noise, so that the schedule itself shows them, and no accountant's "
            "epsilon holds",
            "what sets optimizer.noise_multiplier: the number of steps or epochs may, as in "
            "opacus.schedulers, and what was released; a loss of training records must not",
            rank=-11,
            explains=("replay.noise",),
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "noise",
        ),
        FaultRule(
            "more_than_the_release",
            "more than the release is used: what a step leaves behind shows a record without noise",
            "what is computed of raw gradients, inputs or losses and kept: momentum, learning "
            "rates, clipping norms, statistics, weights that are changed elsewhere",
            rank=3,
            explains_groups=("leakage",),
        ),
    ),
)

CHECKS = (REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)
