"""Area under the ROC curve and true positive rates of an attack's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from lightning_audit.attacks._shadow_scores import matrix, membership_of
from lightning_audit.stats.membership.roc import auroc, tpr_at_fpr

__all__ = ["AttackPerformance", "attack_performance"]


@dataclass(frozen=True)
class AttackPerformance:
    """How well an attack separates members from others, over all targets and records.

    Args:
        auc: Area under the ROC curve, in [0, 1], an estimate.
        tpr: True positive rate at each false positive rate, an estimate.
        members: Number of pairs of an attacked model and a record that it was trained with.
        non_members: Number of the other pairs.
    """

    auc: float
    tpr: dict[float, float]
    members: int
    non_members: int


def attack_performance(
    attacked: ArrayLike, membership: ArrayLike, fpr: Sequence[float] = (0.01, 0.001)
) -> AttackPerformance:
    """Return the area and the rates of an attack's scores, pooled over targets and records.

    The pairs of one attacked model are not independent of each other. The figures describe the
    attack; for a bound on epsilon see docs/challenge-points.md.

    Args:
        attacked: Scores of an attack, larger if the record seems to be a member, finite,
            ``[targets, records]``.
        membership: Whether the attacked model was trained with the record, bool,
            ``[targets, records]``.
        fpr: False positive rates in [0, 1].

    Returns:
        The area and the rates.

    Raises:
        ValueError: If an argument has another form or range, a score is not finite, or there are
            only members, or none.

    Example:
        >>> attack_performance([[0.3, 0.1], [0.2, 0.4]], [[True, False], [False, True]]).auc
        1.0
    """
    values = matrix("attacked", attacked, "targets")
    inside = membership_of("membership", membership, values, "attacked")
    members, others = values[inside], values[~inside]
    if not members.size or not others.size:
        raise ValueError(
            f"membership has {members.size} members and {others.size} others, must have some of "
            "both: a rate of an empty group does not exist; attack models that were trained "
            "without some of the records."
        )
    return AttackPerformance(
        auroc(members, others),
        {rate: tpr_at_fpr(members, others, rate) for rate in fpr},
        members.size,
        others.size,
    )
