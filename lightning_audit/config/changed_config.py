"""Changes of the configuration at a resume: notes for the report, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.accounting.phases import Phase

#: Settings that may change without a note, or that are compared elsewhere.
_NOT_COMPARED = {
    "claim",
    "resolution",
    "canaries",
    "on_violation",
    "on_inconclusive",
    "seed",
    "source_in_report",
}
#: Parts of the claim in whose units the steps were read.
_MECHANISM = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "noise_coefficients",
)

_CHOSEN_LATER = (
    "; every test uses the new one from the first step on, which is valid only if it was chosen "
    "without looking at those steps; the step at which a test flagged is an upper bound"
)
_ANSWERED = "; the whole run is judged by the new one"
#: Consequence of a change of each setting, if it is not `_ANSWERED`.
_CONSEQUENCES = {
    "significance": _CHOSEN_LATER,
    "oversize": "; the run counts as one with the smaller canaries",
    # Each step keeps the value with which it was taken.
    "every_n_steps": "",
    "examinations": "",
}


def describe_changes(kept: Mapping[str, Any], now: Mapping[str, Any], steps: int) -> list[str]:
    """Return notes for the report on a configuration that differs from the checkpoint's.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: `AuditConfig.settings` from now on.
        steps: number of steps before the resume.
    """
    return [
        f"{name}={_shown(before)} until step {steps}, {_shown(after)} from then on"
        f"{_CONSEQUENCES.get(name, _ANSWERED)}"
        for name, before, after in _changes(kept, now)
    ]


def refuse_mechanism(
    kept: Mapping[str, Any], now: Mapping[str, Any], history: Sequence[Phase], steps: int
) -> None:
    """Raise if the claimed mechanism differs from the one in whose units the steps were read.

    Readings were scaled by the claim, and the tests' bets were made with it, when the steps were
    taken. The stored sums do not determine the values under another claim.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: `AuditConfig.settings` from now on.
        history: phases of the steps so far, of all private optimizers.
        steps: number of steps so far.

    Raises:
        ValueError: another noise multiplier, clipping norm, batch size, sampling rate or noise
            coefficients are claimed, and the steps so far were not recorded with the new value.
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
                f"checkpoint's is {before!r}, and their stored sums cannot be judged by another; "
                "resume with the checkpoint's, or audit the following steps as a separate "
                "training, without ckpt_path."
            )


def _changes(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, value before and value now of each setting that differs."""
    before, after = _compared(kept), _compared(now)
    return [(name, before[name], after[name]) for name in after if before[name] != after[name]]


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are compared, those of claim and resolution one by one."""
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
