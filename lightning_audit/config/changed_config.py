"""A run that goes on with another configuration than the checkpoint's: what is said, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.accounting.phases import Phase

#: What a checkpoint's run goes on with whatever it is now, or is compared elsewhere.
_NOT_COMPARED = {"claim", "resolution", "canaries", "on_violation", "on_inconclusive", "seed"}
#: Parts of the claim against which the steps were read.
_MECHANISM = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "noise_coefficients",
)

_CHOSEN_LATER = (
    "; every test is judged by the new one from the first step on, which holds only if it was "
    "chosen without a look at those steps; the step at which a test flagged is the latest that it "
    "can be"
)
_ANSWERED = "; the whole run is judged by the new one"
#: What is said of a change of each, where that is not `_ANSWERED`.
_CONSEQUENCES = {
    "significance": _CHOSEN_LATER,
    "oversize": "; the run counts as one with the smaller canaries",
    # Each step has the one that it was taken with.
    "every_n_steps": "",
    "examinations": "",
}


def describe_changes(kept: Mapping[str, Any], now: Mapping[str, Any], steps: int) -> list[str]:
    """What the report says of a configuration that is not the checkpoint's.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: those from now on.
        steps: how many were taken before.
    """
    return [
        f"{name}={_shown(before)} until step {steps}, {_shown(after)} from then on"
        f"{_CONSEQUENCES.get(name, _ANSWERED)}"
        for name, before, after in _changes(kept, now)
    ]


def refuse_mechanism(
    kept: Mapping[str, Any], now: Mapping[str, Any], history: Sequence[Phase], steps: int
) -> None:
    """Raise if the mechanism that is claimed is not the one that the steps were read against.

    Readings were put into units of the claim, and the tests' bets made by them, when the steps were
    taken: no sum tells what they would have been under another claim.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: those from now on.
        history: phases of the steps so far, of all private optimizers.
        steps: how many there are.

    Raises:
        ValueError: another noise multiplier, clipping norm, batch size or sample rate is claimed,
            and the steps so far do not show that they had it.
    """
    seen = {
        "claim.noise_multiplier": {phase.noise_multiplier for phase in history},
        "claim.sample_rate": {phase.sample_rate for phase in history},
    }
    for name, before, after in _changes(kept, now):
        if not name.startswith("claim."):
            continue
        if steps and (after is None or seen.get(name) != {after}):
            raise ValueError(
                f"{name}={after!r} is not what its {steps} steps were read against: the "
                f"checkpoint's is {before!r}, and no sum of theirs can be judged by another; "
                "resume with the checkpoint's, or audit what follows as a training of its own, "
                "without ckpt_path."
            )


def _changes(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, value before and value now of each setting that differs."""
    before, after = _compared(kept), _compared(now)
    return [(name, before[name], after[name]) for name in after if before[name] != after[name]]


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are compared, those of a claim and a resolution one by one."""
    claim = settings["claim"] or {}
    return {
        **{name: value for name, value in settings.items() if name not in _NOT_COMPARED},
        "allow": sorted(settings["allow"]),
        "bounds": list(settings["bounds"]),
        "adjacency": claim.get("adjacency") or "add_remove",
        "private_dataset_size": bool(claim.get("private_dataset_size")),
        **{f"claim.{name}": claim.get(name) for name in _MECHANISM},
        **{f"resolution.{name}": value for name, value in settings["resolution"].items()},
    }


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
