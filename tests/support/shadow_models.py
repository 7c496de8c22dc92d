"""Scores of shadow models with known distributions: each record has its own mean and leakage."""

from __future__ import annotations

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def shadow_models(
    models: int = 24,
    records: int = 7,
    targets: int = 3,
    leakage: float = 1.0,
    seed: int = 0,
    spread: float = 0.5,
) -> Arrays:
    """Scores and membership ``[models, records]``, targets and theirs ``[targets, records]``.

    A score is N(record's mean + leakage if in, std^2), where std is 1, or between 1 / (1 + spread)
    and 1 + spread.
    """
    rng = np.random.default_rng([seed, models, records])
    means = rng.normal(0, 2, records)
    stds = (1 + spread) ** rng.uniform(-1, 1, records)
    membership = np.zeros((models + targets, records), dtype=bool)
    for record in range(records):
        # Numbers of models differ between records, as with independent random halves.
        inside = rng.integers(models // 3, models - models // 3 + 1)
        membership[rng.permutation(models)[:inside], record] = True
    membership[models:] = rng.random((targets, records)) < 0.5
    scores = means + leakage * membership + stds * rng.standard_normal(membership.shape)
    return scores[:models], membership[:models], scores[models:], membership[models:]
