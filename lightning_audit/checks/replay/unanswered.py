"""Reasons for which a test by replay was not run, and what to do about them."""

from __future__ import annotations

from lightning_audit.results.audit_report import CheckResult

#: Why a test was not run that one of the next steps may run.
NONE_LEFT = "no replays were left for it; examinations=1 makes as many as it needs"
#: Reasons that a change of the training's code would remove.
NOT_SHOWN = (
    "it is unknown which gradient has the noise; show it: "
    "grads = lightning_audit.released(grads, module=self)"
)
NOISED_BESIDE = (
    "the state after a step depends on a record, with noise other than that of the release"
)
NOISE_ON_WEIGHTS = (
    "the gradient has no noise when the update begins, and the weights have some after it"
)
NO_RECORD = (
    "no record of the batch changes the release: the step gets its records elsewhere, or their "
    "gradients are zero"
)
OTHER_ROWS = "the number of clipped gradients per record is not one"

#: What to do about a reason that prevents a pass.
_TO_DO = {
    NONE_LEFT: "not examined yet; train about 10 more steps, or state examinations=1, which "
    "examines everything at once",
    NOT_SHOWN: "not examined; a hand-written step must show the noisy gradient before it processes "
    "it: grads = lightning_audit.released(grads, module=self)",
    NOISED_BESIDE: f"{NOISED_BESIDE}; if a noisy gradient is kept before it is processed, show it: "
    "grads = lightning_audit.released(grads, module=self); if it is another release, account for "
    "it and state allow=['replay.release']",
    NOISE_ON_WEIGHTS: f"{NOISE_ON_WEIGHTS}; add it to the gradient before the update, or show the "
    "noisy gradient: grads = lightning_audit.released(grads, module=self)",
    NO_RECORD: f"{NO_RECORD}; train on the records of the batch that training_step is given",
    OTHER_ROWS: f"{OTHER_ROWS}; make one gradient of all rows of a record before it is clipped",
}


def unanswered(check: CheckResult) -> str:
    """Return what prevents a pass if a test was not run that could have run."""
    if check.status != "not_run":
        return ""
    to_do = (to_do for reason, to_do in _TO_DO.items() if check.message.endswith(reason))
    return next((f"{check.name}: {what}" for what in to_do), "")
