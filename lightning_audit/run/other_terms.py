"""A run that goes on under other terms than it was saved with: what is said, what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.accounting.spending import History
from lightning_audit.run.terms import Terms

_CHOSEN_LATER = (
    "; every test is judged by the new one from the first step on, which holds only if it was "
    "chosen without a look at those steps; the step at which a test flagged is the latest that it "
    "can be"
)
_ANSWERED = "; the whole run is judged by the new one"


def remarks(kept: Mapping[str, Any], terms: Terms, steps: int) -> list[str]:
    """What the report says of terms that are not those of the checkpoint.

    Args:
        kept: `Terms.kept` of the checkpoint.
        terms: those from now on.
        steps: how many were taken before.
    """
    found = []
    for name, now in terms.kept().items():
        if kept[name] != now:
            why = {"significance": _CHOSEN_LATER, "oversize": _SMALLEST}.get(name, _ANSWERED)
            why = "" if name in _OF_STEPS else why
            found.append(
                f"{name}={_shown(kept[name])} until step {steps}, {_shown(now)} from then on{why}"
            )
    return found


#: Each step has the one that it was taken with.
_OF_STEPS = ("every_n_steps", "replay_neighbours")
_SMALLEST = "; the run counts as one with the smaller canaries"


def refuse_mechanism(
    kept: Mapping[str, Any], terms: Terms, histories: Sequence[History], steps: int
) -> None:
    """Raise if the mechanism that is claimed is not the one that the steps were read against.

    Readings were put into units of the claim, and the tests' bets made by them, when the steps were
    taken: no sum tells what they would have been under another claim.

    Args:
        kept: `Terms.kept` of the checkpoint.
        terms: those from now on.
        histories: phases of the steps so far, of each private optimizer.
        steps: how many there are.

    Raises:
        ValueError: another noise multiplier, clipping norm, batch size or sample rate is claimed,
            and the steps so far do not show that they had it.
    """
    phases = [phase for history in histories for phase in history]
    seen = {
        "claim.noise_multiplier": {sigma for sigma, _, _ in phases},
        "claim.sample_rate": {rate for _, rate, _ in phases},
    }
    for name, now in terms.kept().items():
        known = kept[name]
        if not name.startswith("claim.") or now == known:
            continue
        if steps and (now is None or seen.get(name) != {now}):
            raise ValueError(
                f"{name}={now!r} is not what its {steps} steps were read against: the checkpoint's "
                f"is {known!r}, and no sum of theirs can be judged by another; resume with the "
                "checkpoint's, or audit what follows as a training of its own, without ckpt_path."
            )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
