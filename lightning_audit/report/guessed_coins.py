"""The check of an audit over many trainings, and the declarations of the checks of any report."""

from __future__ import annotations

from collections import ChainMap

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.base.registry import REGISTRY

#: It is in no report of one training, and so it is not in the registry.
GUESSED_COINS = Check(
    "trainings.coins",
    "trainings show the canary more clearly than claimed",
    title="Coins of many trainings",
    failed_title="Trainings show the canary more than claimed",
    meaning="The coins of the trainings are guessed with fewer errors than the claim allows.",
    look_at="Compare clipping, noise, sampling and number of steps of a training with the claim.",
    topic="Total epsilon",
    kind="epsilon",
)
#: Checks of any report, by name.
DECLARED = ChainMap(REGISTRY, {GUESSED_COINS.name: GUESSED_COINS})
