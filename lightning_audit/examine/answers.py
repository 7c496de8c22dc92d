"""What came of a question that an examination asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lightning_audit.examine.step_replay import Replay


@dataclass(frozen=True)
class Finding:
    """A neighbour whose release is too far off.

    Args:
        name: of the neighbour.
        sensitivity: norm of the difference over the clipping norm; infinite where the number of
            steps differs.
        allowed: what the adjacency allows.
        made_up: whether the record is none of the data, but one with scaled inputs.
    """

    name: str
    sensitivity: float
    allowed: float
    made_up: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of a question.

    Args:
        asked: neighbours that were replayed.
        findings: those that are too far off, the farthest first.
        reason: why the question was not asked; empty where it was.
    """

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    reason: str = ""


def distance(one: Replay, other: Replay) -> float:
    """Norm of the difference of two replays' releases; infinite if their steps are not as many."""
    if len(one.releases) != len(other.releases):
        return math.inf
    return float((torch.cat(one.releases) - torch.cat(other.releases)).norm())


def equal_releases(one: Replay, other: Replay) -> bool:
    """Whether two replays released the same, bit for bit."""
    return len(one.releases) == len(other.releases) and all(
        map(torch.equal, one.releases, other.releases)
    )
