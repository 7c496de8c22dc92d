"""A question of an examination, and the step of which it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.canaries.inputs import rows
from lightning_audit.checks.replay import Answer, tolerance_of
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.replay.releases import rounding, too_coarse
from lightning_audit.replay.step_replay import Replay, StepReplay

_FULL_PRECISION = ("32-true", "64-true")


@dataclass(frozen=True)
class Asked:
    """A step of which questions are asked.

    Args:
        replay: of the step.
        batches: the physical batches of the logical one.
        whole: the batches as the step took them, if ``batches`` is a part of them; else empty.
        independent: whether records were shown not to change each other's gradients.
    """

    replay: StepReplay
    batches: Sequence[Any]
    whole: Sequence[Any] = ()
    independent: bool = False

    @property
    def seed(self) -> int:
        """Seed of the replays, and of the choice of records."""
        return self.replay.order.seed

    @property
    def usual(self) -> Replay:
        """The replay of the step as it is."""
        return self.replay.usual(self.batches, self.seed)

    @property
    def largest(self) -> Any:
        """The physical batch of the most records."""
        return max(self.batches, key=rows)

    @property
    def may_shrink(self) -> bool:
        """Whether some of the batch's records are a batch too."""
        return len(self.batches) == 1 and not self.replay.skips and not self.replay.claim.fixed_size

    @property
    def low_precision(self) -> bool:
        """Whether layers compute in bf16 or fp16."""
        return self.replay.order.user.precision not in _FULL_PRECISION

    @property
    def tolerated(self) -> float:
        """Rounding of a sensitivity, in units of the clipping norm."""
        return tolerance(self.replay.dtypes, low_precision=self.low_precision)

    @property
    def tolerated_change(self) -> float:
        """Relative change of a gradient that rounding may cause."""
        return tolerance_of(low_precision=self.low_precision)

    def too_coarse(self, usual: Replay) -> str:
        """Return why rounding of a replay's releases hides the sensitivity, or empty."""
        rounded = rounding((release.norm() for release in usual.releases), self.replay.dtypes)
        return too_coarse(rounded, self.tolerated)

    def not_alone(self) -> str:
        """Return why a physical batch cannot be replayed alone, or empty."""
        return "" if len(self.batches) == 1 or self.replay.skips else Reason.ACCUMULATED

    def of_views(self) -> str:
        """Return why rows of a batch are no records, as views that are collated, or empty."""
        collated = self.replay.claim.views > 1 and self.usual.rows < sum(map(rows, self.batches))
        return Reason.OTHER_ROWS if collated else ""


@dataclass(frozen=True)
class Question:
    """A question of an examination.

    Args:
        name: of the question, which is that of the check that it answers.
        cost: largest number of steps that it replays alone, with few crafted gradients.
        least: number of replays that must be left to begin it.
        ask: answers it.
        obstacle: why it cannot be answered, or empty.
    """

    name: str
    cost: float
    least: int
    ask: Callable[[Asked], Answer]
    obstacle: Callable[[Asked], str] = lambda _: ""

    def __call__(self, asked: Asked) -> Answer:
        """Return the answer, or why there is none."""
        reason = self.obstacle(asked)
        return Answer(reason=reason) if reason else self.ask(asked)


def tolerance(dtypes: Sequence[torch.dtype], *, low_precision: bool) -> float:
    """Return the tolerance for rounding of a sensitivity, in units of the clipping norm.

    Args:
        dtypes: of the trained parameters.
        low_precision: whether layers compute in bf16 or fp16.
    """
    if low_precision or {torch.bfloat16, torch.float16} & set(dtypes):
        return 0.1
    return 1e-6 if set(dtypes) == {torch.float64} else 2e-3
