"""The ways to choose the threshold of an attack, each with whether its result is a valid bound."""

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
    """One threshold, fixed before the scores are seen: nothing is paid for.

    Args:
        threshold: The threshold, a number that is not nan.
        given: Whether a caller chose it, so that the bound assumes that it was before the scores
            were seen; if not, the way in which the scores are made sets it.

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
    """The best threshold of one part of the scores, with the bound from the other part.

    Args:
        fraction: Share in (0, 1) of either group's scores by which the threshold is chosen.
        seed: Seed of the random split, to be fixed beforehand like the rest: trying several seeds
            is another search.

    Raises:
        ValueError: If ``fraction`` is not in (0, 1) or ``seed`` is no whole number >= 0.
    """

    fraction: float = 0.5
    seed: int = 0
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.open_unit("fraction", self.fraction, "half and half is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class MultiSplit:
    r"""The bound that half of several random splits reach, each at half of the significance.

    One split leaves the bound to the luck of its seed; this one hardly moves with it. Every split's
    bound L_k at significance s / 2 exceeds the true value with probability at most s / 2. If the
    middle one does, at least half of them do, and by Markov's inequality

    .. math:: \Pr\Bigl[\#\{k : L_k > \text{truth}\} \ge \lceil K/2 \rceil\Bigr]
        \le \frac{K \, s/2}{\lceil K/2 \rceil} \le s,

    however the splits depend on each other.

    Args:
        splits: Number K >= 2 of splits, fixed beforehand.
        fraction: Share in (0, 1) of either group's scores by which a threshold is chosen.
        seed: Seed of the random splits, to be fixed beforehand.

    Raises:
        ValueError: If ``splits`` is no whole number >= 2, ``fraction`` is not in (0, 1), or
            ``seed`` is no whole number >= 0.

    References:
        Meinshausen, Meier and Bühlmann, "p-values for high-dimensional regression", JASA 104, 2009:
        twice the median of p-values is a p-value.
    """

    splits: int = 10
    fraction: float = 0.5
    seed: int = 0
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if _validate.positive_int("splits", self.splits) < 2:
            raise ValueError("splits=1 must be a whole number >= 2; use Split for a single one.")
        _validate.open_unit("fraction", self.fraction, "half and half is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class Simultaneous:
    """The best of all thresholds, with bands that hold for both error rates everywhere.

    Half of the significance goes to each error rate. No threshold needs to be named beforehand.

    Args:
        band: "berk_jones", narrow where an error rate is small, or "dkw", of one width everywhere.

    Raises:
        ValueError: If ``band`` is another one.
    """

    band: Band = "berk_jones"
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.one_of("band", self.band, ("berk_jones", "dkw"))


@dataclass(frozen=True)
class Maximum:
    """The best of all thresholds on the same scores, unpaid for: usual in papers, and not valid.

    The true value lies below the result more often than the significance says, and the more so the
    more scores there are. For comparison with published numbers only.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023. Nasr
        et al., "Tight auditing of differentially private machine learning", USENIX Security 2023.
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
    """What a bound assumes because of the way in which its threshold is chosen.

    Args:
        choice: The way to choose.
    """
    given = isinstance(choice, Grid) or (isinstance(choice, Fixed) and choice.given)
    return (_GIVEN,) if given else ()


def words_of(choice: ThresholdChoice) -> str:
    """How the threshold is chosen, in words for whoever reads the bound.

    Args:
        choice: The way to choose.

    Raises:
        TypeError: If ``choice`` is none of the classes of this module.

    Example:
        >>> words_of(Split()), words_of(Maximum())
        ('chosen on a random 50 % of the scores; the bound is of the rest', \
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
            return f"chosen on {part}; the bound is of the rest"
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
