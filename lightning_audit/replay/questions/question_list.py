"""The questions of an examination, tested one after the other on a step, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.checks.replay.examined_noise import REPLAY_NOISE
from lightning_audit.checks.replay.record_coupling import COUPLING, tolerance_of
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.replay_checks import (
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.replay.unanswered import NONE_LEFT, NOT_SHOWN
from lightning_audit.replay.questions.clipping import TRIALS, examine_clipping
from lightning_audit.replay.questions.clipping_kind import sensitivity_kind
from lightning_audit.replay.questions.noise import examine_noise
from lightning_audit.replay.questions.record_independence import examine_independence
from lightning_audit.replay.questions.record_sensitivity import examine_sensitivity, tolerance
from lightning_audit.replay.questions.release_use import examine_release
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Stopped
from lightning_audit.replay.replay_distance import equal_after, equal_releases
from lightning_audit.replay.step_replay import StepReplay

#: Smallest number of records in a batch that is examined.
LEAST_RECORDS = 3
#: Largest number of entries of a gradient: several copies in double precision are held.
MOST_ENTRIES = 50_000_000

#: Reasons why a step is not examined.
TOO_SMALL = "the batch is too small"
NOT_REPEATED = (
    "the step, repeated from the same state, gives other bits: it keeps state that a replay cannot "
    "restore, draws random numbers that cannot be seeded, or is not deterministic"
)
_RANDOM_NORM = "the clipping norm of a step depends on random numbers"
_OTHER_SEED = 9_115_027


@dataclass(frozen=True)
class Asked:
    """The step to examine, and the settings of its examination.

    Args:
        replay: of the step.
        batches: the physical batches of the logical one.
        seed: of the replays.
        low_precision: whether layers compute in bf16 or fp16.
        replaced: whether neighbors differ by a replaced record, not by an added or removed one.
        trials: largest number of crafted gradients.
        earlier_trials: number of crafted gradients in earlier examinations.
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
        """Rounding of a sensitivity, in units of the clipping norm."""
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
    """Return why a physical batch cannot be replayed alone, or empty."""
    if len(asked.batches) == 1 or asked.replay.skips:
        return ""
    return "the Trainer accumulates the gradients of several batches"


#: The questions by the names of their checks; the slowest come last.
QUESTIONS: Mapping[str, Callable[[Asked], Answer]] = {
    REPLAY_SENSITIVITY.name: _sensitivity,
    REPLAY_RELEASE.name: _release,
    COUPLING.name: _coupling,
    REPLAY_CLIPPING.name: _clipping,
    REPLAY_NOISE.name: _noise,
}


#: Largest number of steps that each question replays alone, with few crafted gradients.
USUAL: Mapping[str, float] = {
    REPLAY_SENSITIVITY.name: 10.0,
    REPLAY_RELEASE.name: 18.0,
    COUPLING.name: 5.0,
    REPLAY_CLIPPING.name: 22.0,
    REPLAY_NOISE.name: 24.0,
}
#: Replays that must be left to begin a question.
_LEAST = {REPLAY_RELEASE.name: 6, COUPLING.name: 3, REPLAY_CLIPPING.name: 4, REPLAY_NOISE.name: 16}


def ask(asked: Asked, names: Collection[str] = tuple(QUESTIONS)) -> dict[str, Answer]:
    """Test questions on a step.

    Args:
        asked: the step and the settings.
        names: of the questions, which are those of their checks.

    Returns:
        The answers, by name.
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
    if replay.stopped:  # another thread's random numbers may have affected any answer
        return {name: Answer(reason=replay.stopped) for name in names}
    return answers


def _name_sensitivity(asked: Asked, answers: dict[str, Answer]) -> None:
    """Classify why a record moves a release too far, if crafted gradients found nothing."""
    found, crafted = (answers.get(n) for n in (REPLAY_SENSITIVITY.name, REPLAY_CLIPPING.name))
    if found is None or not found.findings or (crafted is not None and crafted.findings):
        return
    worst = max(finding.size for finding in found.findings)
    kind = sensitivity_kind(asked.replay, asked.batches, asked.seed, asked.tolerated, worst)
    answers[REPLAY_SENSITIVITY.name] = replace(found, kind=kind)


def _obstacle(asked: Asked) -> str:
    """Return why no question can be tested, or empty."""
    try:
        return _unfit(asked) or _unsteady(asked) or _random_norm(asked)
    except Stopped as stopped:
        return str(stopped)


def _unfit(asked: Asked) -> str:
    """Return why no question can be tested on such a step, or empty."""
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
        return "the step's release is not finite"
    return ""


def _unsteady(asked: Asked) -> str:
    """Return why replays are not comparable, or empty."""
    base = asked.replay.usual(asked.batches, asked.seed)
    again = asked.replay.run(asked.batches, asked.seed, look=True)
    same = equal_releases(base, again) and same_numbers(base, again) and equal_after(base, again)
    base.after = {}
    return "" if same else NOT_REPEATED


def _random_norm(asked: Asked) -> str:
    """Return why a release has no unit, or empty: the clipping norm depends on random numbers."""
    stated = asked.replay.usual(asked.batches, asked.seed).stated
    if stated == 1.0:
        return ""
    other = asked.replay.run(asked.batches, asked.seed + _OTHER_SEED).stated
    return "" if other == stated else _RANDOM_NORM
