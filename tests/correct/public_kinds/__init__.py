"""Kinds of correct private trainings as public code has them, which other eyes wrote.

Each docstring names the code that it is like. Federated clients, fairness, augmentation
multiplicity, own optimizers and clipping, records drawn in `training_step`, sorting and packing,
generative models, DP-SGD by hand and in Lightning's hooks.
"""

from correct_kinds.base import REGISTERED, Kind

from public_kinds import (
    fairness,
    federated,
    generative,
    hands,
    hooks,
    memory,
    multiplicity,
    optimizers,
    sequences,
)

_THEMES = (
    *(federated, fairness, multiplicity, optimizers, memory),
    *(sequences, generative, hands, hooks),
)
PUBLIC: tuple[Kind, ...] = tuple(
    kind for theme in _THEMES for kind in REGISTERED if kind.module.__module__ == theme.__name__
)
