"""Shadow models whose scores are drawn: normal, with a shift where a record is a member."""

import numpy as np

from lightning_audit.many import Shadows


def simulated(models, records, shift, rng, *, pairs=False, failed=()):
    """Scores of unit variance; ``shift`` is a number or one a record, ``[records]``."""
    membership = rng.random((models, records)) < 0.5
    if pairs:
        membership[1::2] = ~membership[::2]
    scores = rng.normal(size=(models, records)) + shift * membership
    scores[list(failed)] = np.nan
    return Shadows(scores, membership, rng.permutation(2**20)[:models], pairs)
