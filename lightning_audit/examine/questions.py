"""The questions that an examination asks of a step, one after the other, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.checks.replay.record_coupling import tolerance_of
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.replay_checks import NONE_LEFT, NOT_SHOWN
from lightning_audit.examine.clipping import TRIALS, examine_clipping
from lightning_audit.examine.clipping_kind import sensitivity_kind
from lightning_audit.examine.noise import examine_noise
from lightning_audit.examine.record_independence import examine_independence
from lightning_audit.examine.record_sensitivity import examine_sensitivity, tolerance
from lightning_audit.examine.release_use import examine_release
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Stopped
from lightning_audit.replay.replay_distance import equal_after, equal_releases
from lightning_audit.replay.step_replay import StepReplay

#: Records that a batch must have so that one can be left out.
LEAST_RECORDS = 3
#: Entries of a gradient of which several copies in double precision are held.
MOST_ENTRIES = 50_000_000

#: Why nothing is asked of a step that is another one when it runs again.
TOO_SMALL = "the batch is too small"
NOT_REPEATED = (
    "the step, repeated from the same state, gives other bits: it keeps state that a replay cannot "
    "put back, draws random numbers that cannot be set, or computes in no fixed order"
)
_RANDOM_NORM = "the clipping norm of a step depends on random numbers"
_OTHER_SEED = 9_115_027


@dataclass(frozen=True)
class Asked:
    """What is asked of one step.

    Args:
        replay: of the step.
        batches: the physical batches of the logical one.
        seed: of the replays.
        low_precision: whether layers compute in bf16 or fp16.
        replaced: whether neighbours have a record replaced, and none more or less.
        trials: gradients to put in at the most.
        earlier_trials: those that earlier examinations put in.
    """

    replay: StepReplay
    batches: Sequence[Any]
    seed: int
    low_precision: bool = False
    replaced: bool = False
    trials: int = TRIALS
    earlier_trials: int = 0

    @property
    def tolerated(self) -> float:
        """Rounding of a sensitivity, in clipping norms."""
        return tolerance(self.replay.dtypes, low_precision=self.low_precision)


def _sensitivity(asked: Asked) -> Answer:
    return examine_sensitivity(
        asked.replay, asked.batches, asked.tolerated, asked.seed, replaced=asked.replaced
    )


def _release(asked: Asked) -> Answer:
    return examine_release(asked.replay, asked.batches, asked.seed)


def _coupling(asked: Asked) -> Answer:
    if reason := _not_alone(asked):
        return Answer(reason=reason)
    low = tolerance_of(low_precision=asked.low_precision)
    return examine_independence(asked.replay, max(asked.batches, key=rows), low, asked.seed)


def _clipping(asked: Asked) -> Answer:
    if reason := _not_alone(asked):
        return Answer(reason=reason)
    return examine_clipping(
        asked.replay,
        max(asked.batches, key=rows),
        asked.tolerated,
        asked.seed,
        asked.trials,
        begin=asked.earlier_trials,
        replaced=asked.replaced,
    )


def _noise(asked: Asked) -> Answer:
    if reason := _not_alone(asked):
        return Answer(reason=reason)
    return examine_noise(asked.replay, max(asked.batches, key=rows), asked.seed)


def _not_alone(asked: Asked) -> str:
    """Why a physical batch cannot be replayed alone, or empty."""
    if len(asked.batches) == 1 or asked.replay.skips:
        return ""
    return "gradients of several batches are added up by the Trainer"


#: The questions by the names of their checks; what takes longest comes last.
QUESTIONS: Mapping[str, Callable[[Asked], Answer]] = {
    "replay.sensitivity": _sensitivity,
    "replay.release": _release,
    "coupling": _coupling,
    "replay.clipping": _clipping,
    "replay.noise": _noise,
}


#: Steps that each replays at the most where it is asked alone, of a few crafted gradients.
USUAL: Mapping[str, float] = {
    "replay.sensitivity": 10.0,
    "replay.release": 18.0,
    "coupling": 5.0,
    "replay.clipping": 22.0,
    "replay.noise": 24.0,
}
#: Steps without which a question is not begun.
_LEAST = {"replay.release": 6, "coupling": 3, "replay.clipping": 4, "replay.noise": 16}


def ask(asked: Asked, names: Collection[str] = tuple(QUESTIONS)) -> dict[str, Answer]:
    """Ask questions of a step, by the names of their checks.

    Args:
        asked: the step, and how it is asked.
        names: of the questions.
    """
    answers: dict[str, Answer] = {}
    replay = asked.replay
    reason = _obstacle(asked)
    for name, question in QUESTIONS.items():
        if name not in names:
            continue
        reason = reason or replay.lost
        late = "" if replay.has_left(_LEAST.get(name, 1)) else NONE_LEFT
        try:
            answers[name] = Answer(reason=reason or late) if reason or late else question(asked)
        except Stopped as stopped:
            answers[name] = Answer(reason=str(stopped))
    _name_sensitivity(asked, answers)
    if replay.stopped:  # the other thread's numbers may be in any of them
        return {name: Answer(reason=replay.stopped) for name in names}
    return answers


def _name_sensitivity(asked: Asked, answers: dict[str, Answer]) -> None:
    """Tell why a record moves a release too far, where crafted gradients found nothing."""
    found, crafted = (answers.get(n) for n in ("replay.sensitivity", "replay.clipping"))
    if found is None or not found.findings or (crafted is not None and crafted.findings):
        return
    worst = max(finding.size for finding in found.findings)
    kind = sensitivity_kind(asked.replay, asked.batches, asked.seed, asked.tolerated, worst)
    answers["replay.sensitivity"] = replace(found, kind=kind)


def _obstacle(asked: Asked) -> str:
    """Why nothing can be asked, or empty."""
    try:
        return _unfit(asked) or _unsteady(asked) or _random_norm(asked)
    except Stopped as stopped:
        return str(stopped)


def _unfit(asked: Asked) -> str:
    """Why nothing can be asked of such a step, or empty."""
    try:
        most = max(map(rows, asked.batches), default=0)
    except ValueError as error:
        return str(error)
    if sum(asked.replay.sizes) > MOST_ENTRIES:
        return "the gradient has too many entries"
    if most < LEAST_RECORDS:
        return TOO_SMALL
    base = asked.replay.usual(asked.batches, asked.seed)
    if base.error:
        return f"the step cannot be replayed ({base.error}, {base.where})"
    if not base.releases:
        return "the batch makes no step"
    if len(base.releases) > 1:
        return f"the batch makes {len(base.releases)} steps"
    if not base.sure:
        return NOT_SHOWN
    if not all(bool(torch.isfinite(release).all()) for release in base.releases):
        return "what the step releases is not finite"
    return ""


def _unsteady(asked: Asked) -> str:
    """Why a replay tells nothing of the next one, or empty."""
    base = asked.replay.usual(asked.batches, asked.seed)
    again = asked.replay.run(asked.batches, asked.seed, look=True)
    same = equal_releases(base, again) and same_numbers(base, again) and equal_after(base, again)
    base.after = {}
    return "" if same else NOT_REPEATED


def _random_norm(asked: Asked) -> str:
    """Why a release has no unit: its clipping norm is another one under other random numbers."""
    stated = asked.replay.usual(asked.batches, asked.seed).stated
    if stated == 1.0:
        return ""
    other = asked.replay.run(asked.batches, asked.seed + _OTHER_SEED).stated
    return "" if other == stated else _RANDOM_NORM
