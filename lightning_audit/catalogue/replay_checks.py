"""The checks by replay: the definition of DP-SGD, tested on the user's own step."""

from __future__ import annotations

from lightning_audit.catalogue.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

#: Why a question was not asked that one of the next steps may be asked.
NONE_LEFT = "no replays were left for it; examinations=1 makes as many as it needs"


def not_asked_yet(check: CheckResult) -> str:
    """Why a run that could be asked a question, and was not yet, does not pass; else empty."""
    if check.status != "not_run" or not check.message.endswith(NONE_LEFT):
        return ""
    return (
        f"{check.name} was not examined yet: the steps so far left no replays for it; train about "
        "10 more steps, or state examinations=1, which examines everything at once"
    )


REPLAY_SENSITIVITY = Check(
    "replay.sensitivity",
    "replayed without a record, or with one more, a step's release moves by more than clipping "
    "allows",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=not_asked_yet,
    private=True,
    fine="no record that was left out, put in or replaced moves the release by more than clipping "
    "allows",
    faults=(
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
    blocks=not_asked_yet,
    private=True,
    fine="no crafted gradient adds more than the clipping norm",
    faults=(
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
    "after the same release the training goes on otherwise with a record than without it",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=not_asked_yet,
    private=True,
    fine="after the same release the training goes on in the same way with a record and without it",
    public=("between_epochs",),
    faults=(
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
