"""The e-process of a check: its largest value, and when it crossed its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

#: Factor by which a log e-value above 1 must grow for its step to be kept.
_GROWTH = 1.25


def log_weight(number: int) -> float:
    """Return the log of ``1 / (k (k + 1))``, the weight of the k-th of any number of e-values.

    The weights of all k add up to 1. So the weighted sum of e-values, each of which is valid given
    its past, is an e-value.

    Args:
        number: k, >= 1.
    """
    return -math.log(number * (number + 1.0))


@dataclass
class Evidence:
    r"""The largest log e-value of one test so far, and whether it crossed its threshold.

    A test of private numbers restarts when a training is resumed, because no checkpoint holds them.
    In segment k its e-process ``E_k`` starts at 1, and is valid given all earlier segments. It has
    the weight ``w_k = 1 / (k (k + 1))``. By Ville's inequality, segment k ever reaches
    ``1 / (w_k * share * significance)`` with probability at most ``w_k * share * significance``.
    The weights of all k add up to 1. By the union bound, the test flags in any segment with
    probability at most its share of the significance, for any number of resumes at any times.
    ``log_e`` is the largest of all ``log(w_k E_k)``.

    The significance may change when a run continues after a stop. The e-values do not depend on
    it, so the test is then judged by the new significance from its beginning.

    Args:
        name: of the check.
        significance: of the whole run.
        share: the test's part of it; the shares of one significance add up to at most 1 (Ville's
            inequality for each test, the union bound for all).
        segment: number of the segment of the run, from 1, of a test that restarts at each resume;
            0 for a test that a checkpoint continues.
    """

    name: str
    significance: float
    share: float
    segment: int = 0
    log_e: float = 0.0
    observed: bool = False
    #: Steps at which the log e-value reached a new maximum, with that maximum: the latest one, the
    #: one that crossed the threshold, and one for each growth by a quarter.
    growth: list[tuple[int, float]] = field(default_factory=list)

    @property
    def threshold(self) -> float:
        """Log e-value of the current segment, as passed to `update`, at which the test flags."""
        return self._level - self._log_weight

    @property
    def _level(self) -> float:
        return -math.log(self.share * self.significance)

    @property
    def _log_weight(self) -> float:
        return log_weight(self.segment) if self.segment else 0.0

    @property
    def violated(self) -> bool:
        """Whether the test has flagged."""
        return self.log_e >= self._level

    @property
    def violated_at(self) -> int | None:
        """The step at which the test flagged; None if it has not.

        If the significance has changed since then, the latest step that it can be.
        """
        level = self._level
        return next((step for step, log_e in self.growth if log_e >= level), None)

    def update(self, log_e: float, step: int) -> None:
        """Update with the log e-value after a step; any number of looks is valid."""
        self.observed = True
        log_e = float(log_e) + self._log_weight
        if not log_e > self.log_e:  # also if it is NaN
            return
        self.log_e, kept = log_e, self.growth
        before = kept[-2][1] if len(kept) > 1 else 0.0
        small = kept and kept[-1][1] < max(1.0, _GROWTH * before)
        if small and not before < self._level <= kept[-1][1]:
            kept.pop()
        kept.append((step, self.log_e))


def evidence_in(part: object) -> Iterator[Evidence]:
    """Yield every test in an object of this package or of one that adds checks, at any depth.

    Args:
        part: such an object, or a list, tuple or dict of such objects.
    """
    from lightning_audit.checks.base import registry

    return _evidence_in(part, registry.packages(), set())


def _evidence_in(part: object, packages: set[str], seen: set[int]) -> Iterator[Evidence]:
    match part:
        case Evidence():
            inner: Iterable[object] = ()
            yield part
        case dict():
            inner = part.values()
        case list() | tuple():
            inner = part
        case _ if type(part).__module__.partition(".")[0] in packages and id(part) not in seen:
            seen.add(id(part))  # objects of other packages may refer to each other
            inner = vars(part).values()
        case _:
            inner = ()
    for item in inner:
        yield from _evidence_in(item, packages, seen)


def judge_again(tests: Iterable[Evidence], significance: float) -> tuple[list[str], list[str]]:
    """Judge tests by a new significance, from their beginning.

    Args:
        tests: the tests.
        significance: of the whole run.

    Returns:
        Names of the tests that flag now but did not before, and of those that flagged before but
        do not now.
    """
    new: list[str] = []
    gone: list[str] = []
    for test in tests:
        before, test.significance = test.violated, significance
        if test.violated != before:
            (new if test.violated else gone).append(test.name)
    return new, gone


def refuse_others(now: Mapping[str, float], then: Mapping[str, float]) -> None:
    """Raise if the checks of a checkpoint are not those of this run.

    Args:
        now: share of the significance of each check of this run, 0 without an e-value.
        then: that of each check of the checkpoint.

    Raises:
        ValueError: a check is missing or added, or has another share of the significance, as when
            a package adds or no longer adds a check.
    """
    if now != then:
        names = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
        raise ValueError(
            f"the checkpoint's audit had other checks, or other shares of the significance "
            f"({', '.join(names)}); resume with the packages that add checks as they were."
        )


def shared_log_e(tests: Iterable[tuple[float, float]]) -> float:
    """Return the log of the shared e-value: the largest share times e-value, at least 0.

    The claim is refuted when it reaches ``log(1 / significance)``.

    Args:
        tests: log e-value and share, > 0, of each.
    """
    return max([0.0, *(log_e + math.log(share) for log_e, share in tests)])
