"""LiRA: the likelihood ratio of two normal distributions, fitted to each record's scores.

References:
    Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership inference attacks from first
    principles", IEEE S&P 2022, arXiv:2112.03570, algorithm 1 and section V-C.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.attacks._shadow_scores import ShadowScores
from lightning_audit.stats._arguments import Floats

__all__ = ["Variance", "lira"]

#: One variance for all records on each side, or one a record.
Variance = Literal["pooled", "own"]


def lira(
    scores: ArrayLike,
    membership: ArrayLike,
    targets: ArrayLike,
    *,
    online: bool = True,
    variance: Variance = "pooled",
) -> Floats:
    r"""Return the score of LiRA for each record under each attacked model.

    Online, the result is the log likelihood ratio

    .. math:: \log \frac{\mathcal N(t; \mu_\mathrm{in}, \sigma_\mathrm{in}^2)}
        {\mathcal N(t; \mu_\mathrm{out}, \sigma_\mathrm{out}^2)}

    which is above 0 if the fitted distribution with the record is the likelier one. Offline it is
    :math:`(t - \mu_\mathrm{out}) / \sigma_\mathrm{out}`. The published offline score is the normal
    distribution function of it, which has the same order but rounds to 1 above 8.

    Args:
        scores: Scores of the records under the shadow models, finite, ``[models, records]``; the
            published score is ``log p / (1 - p)`` of the record's class, as `LogitMargin` returns.
        membership: Whether the shadow model was trained with the record, bool,
            ``[models, records]``.
        targets: Scores of the same records under the attacked models, which are not among the
            shadow models, finite, ``[targets, records]``.
        online: Whether models with the record are used. If not, they may be absent.
        variance: "pooled" for one variance of each side, of the distances from each record's mean;
            "own" for one a record. The published global variance is that over all scores of a side,
            which also holds the differences between records.

    Returns:
        The scores, ``[targets, records]``, larger if the record seems to be a member.

    Raises:
        ValueError: If an argument has another form, a score is not finite, scores have no spread,
            or a record is out of fewer than 2 models, or online in fewer than 2.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = rng.random((64, 3)) < 0.5
        >>> scores = rng.normal(membership * 1.0, 0.5)
        >>> lira(scores, membership, [[1.0, 0.5, 0.0]]).round(1)
        array([[ 2. ,  0.1, -1.7]])
    """
    _validate.one_of("variance", variance, get_args(Variance))
    pooled = variance == "pooled"
    shadows = ShadowScores.of(scores, membership, least_out=2, least_in=2 if online else 0)
    observed = shadows.targets(targets)
    std_out = shadows.spread("out", pooled=pooled)
    z_out = (observed - shadows.mean("out")) / std_out
    if not online:
        return np.asarray(z_out)
    std_in = shadows.spread("in", pooled=pooled)
    z_in = (observed - shadows.mean("in")) / std_in
    return np.asarray(0.5 * (z_out - z_in) * (z_out + z_in) + np.log(std_out / std_in))
