"""The ways to choose an attack's threshold, and whether each gives a valid bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._confusion import numbers
from lightning_audit.stats.bounds.bands import Band

__all__ = [
    "Fixed",
    "Grid",
    "Label",
    "Maximum",
    "MultiSplit",
    "Simultaneous",
    "Split",
    "ThresholdChoice",
    "assumptions_of",
    "words_of",
]

Label = Literal["fixed", "searched"]


@dataclass(frozen=True)
class Fixed:
    """One threshold, fixed before the scores are seen: it costs nothing.

    Args:
        threshold: The threshold, a number that is not nan.
        given: Whether a caller chose it, so that the bound assumes that this was before the scores
            were seen; if not, the construction of the scores determines it.

    Raises:
        ValueError: If ``threshold`` is nan.
    """

    threshold: float
    given: bool = field(default=True, repr=False)
    label: ClassVar[Label] = "fixed"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        numbers("threshold", self.threshold)


@dataclass(frozen=True)
class Grid:
    """The best of m thresholds fixed before the scores are seen, each at significance / m.

    Args:
        thresholds: The thresholds, at least one; repeated ones count once.

    Raises:
        ValueError: If there is no threshold, or one is nan.

    References:
        Bonferroni's inequality.
    """

    thresholds: tuple[float, ...]
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __init__(self, thresholds: ArrayLike) -> None:
        distinct = np.unique(numbers("thresholds", thresholds))
        if not distinct.size:
            raise ValueError("thresholds=() must hold at least one number; or use Maximum().")
        object.__setattr__(self, "thresholds", tuple(distinct.tolist()))


@dataclass(frozen=True)
class Split:
    """The best threshold on one part of the scores, with the bound from the other part.

    Args:
        fraction: Fraction in (0, 1) of the scores of each group that choose the threshold.
        seed: Seed of the random split, to be fixed beforehand like the rest: trying several seeds
            is another search.

    Raises:
        ValueError: If ``fraction`` is not in (0, 1) or ``seed`` is not a whole number >= 0.
    """

    fraction: float = 0.5
    seed: int = 0
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.open_unit("fraction", self.fraction, "0.5 is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class MultiSplit:
    r"""The bound that half of several random splits reach, each at half of the significance.

    The bound of one split depends on its seed; this one hardly does. The bound L_k of every split
    at significance s / 2 exceeds the true value with probability at most s / 2. If the middle one
    does, at least half of them do, and by Markov's inequality

    .. math:: \Pr\Bigl[\#\{k : L_k > \text{truth}\} \ge \lceil K/2 \rceil\Bigr]
        \le \frac{K \, s/2}{\lceil K/2 \rceil} \le s,

    however the splits depend on each other.

    Args:
        splits: Number K >= 2 of splits, fixed beforehand.
        fraction: Fraction in (0, 1) of the scores of each group that choose a threshold.
        seed: Seed of the random splits, to be fixed beforehand.

    Raises:
        ValueError: If ``splits`` is not a whole number >= 2, ``fraction`` is not in (0, 1), or
            ``seed`` is not a whole number >= 0.

    References:
        Meinshausen, Meier and Bühlmann, "p-values for high-dimensional regression", JASA 104, 2009,
        arXiv:0811.2177: twice the median of p-values is a p-value.
    """

    splits: int = 10
    fraction: float = 0.5
    seed: int = 0
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if _validate.positive_int("splits", self.splits) < 2:
            raise ValueError("splits=1 must be a whole number >= 2; use Split for a single one.")
        _validate.open_unit("fraction", self.fraction, "0.5 is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class Simultaneous:
    """The best of all thresholds, with bands that hold for both error rates everywhere.

    Each error rate gets half of the significance. No threshold needs to be named beforehand.

    Args:
        band: "berk_jones", narrow for small error rates, or "dkw", of the same width everywhere.

    Raises:
        ValueError: If ``band`` is unknown.
    """

    band: Band = "berk_jones"
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.one_of("band", self.band, ("berk_jones", "dkw"))


@dataclass(frozen=True)
class Maximum:
    """The best of all thresholds on the same scores, uncorrected: common in papers, and not valid.

    The true value is below the result more often than the significance, and the more scores, the
    more often. For comparison with published numbers only.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199. Nasr et al., "Tight auditing of differentially private machine learning",
        USENIX Security 2023, arXiv:2302.07956.
    """

    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = False


ThresholdChoice = Fixed | Grid | Split | MultiSplit | Simultaneous | Maximum

_GIVEN = (
    "thresholds that the caller gives were chosen before the scores were seen, which cannot be "
    "checked here"
)
_BANDS = {"berk_jones": "Berk-Jones", "dkw": "Dvoretzky-Kiefer-Wolfowitz"}


def assumptions_of(choice: ThresholdChoice) -> tuple[str, ...]:
    """Return what a bound assumes because of its threshold choice.

    Args:
        choice: The threshold choice.

    Returns:
        The assumptions as text; empty if there are none.
    """
    given = isinstance(choice, Grid) or (isinstance(choice, Fixed) and choice.given)
    return (_GIVEN,) if given else ()


def words_of(choice: ThresholdChoice) -> str:
    """Describe how the threshold is chosen, as text for the reader of a bound.

    Args:
        choice: The threshold choice.

    Returns:
        The description.

    Raises:
        TypeError: If ``choice`` is not one of the classes of this module.

    Example:
        >>> words_of(Split()), words_of(Maximum())
        ('chosen on a random 50 % of the scores; the bound is from the rest', \
'the best of all on the same scores, NOT valid')
    """
    match choice:
        case Fixed():
            return "given by the caller" if choice.given else "half way between out and in"
        case Grid():
            given = f"{len(choice.thresholds)} given by the caller"
            return f"the best of {given}, each at its share of the significance"
        case Split():
            part = f"a random {100 * choice.fraction:g} % of the scores"
            return f"chosen on {part}; the bound is from the rest"
        case MultiSplit():
            part = f"a random {100 * choice.fraction:g} % of the scores"
            return (
                f"chosen on {part}, {choice.splits} times; the bound is one that half of these "
                "splits reach, each at half of the significance"
            )
        case Simultaneous():
            return f"the best of all, valid for all at once ({_BANDS[choice.band]} band)"
        case Maximum():
            return "the best of all on the same scores, NOT valid"
    raise TypeError(
        f"threshold choice {choice!r} must be Fixed, Grid, Split, Simultaneous, MultiSplit or "
        "Maximum."
    )
