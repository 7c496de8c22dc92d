"""Every check, in the order of the report; the gate, the diagnosis and the docs read it.

The modules of `lightning_audit.checks` declare checks, and so do other packages, by entry points of
the group `lightning_audit.checks`: each names a `Check`, or a tuple of them.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections import UserDict
from collections.abc import Iterable, Iterator, MutableMapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from lightning_audit.checks.base import evidence
from lightning_audit.checks.base.check import Check, FaultRule, Group
from lightning_audit.results.audit_report import CheckResult

if TYPE_CHECKING:
    from lightning_audit.record.store import RecordHeader

ENTRY_POINTS = "lightning_audit.checks"
#: Subjects in the order of the report.
_SUBJECTS = ("update", "noise", "clipping", "replay", "randomness", "sampling", "accounting")


def _own() -> Iterator[Check]:
    """`CHECKS` of the modules of each subject, those first on which a pass rests."""
    for subject in _SUBJECTS:
        room = importlib.import_module(f"{ENTRY_POINTS}.{subject}")
        declared: list[Check] = []
        for found in pkgutil.iter_modules(room.__path__):
            module = importlib.import_module(f"{room.__name__}.{found.name}")
            declared += getattr(module, "CHECKS", ())
        yield from sorted(declared, key=lambda check: not check.must_run)


def _from_outside() -> Iterator[Check]:
    """Checks of other packages.

    Raises:
        ImportError: an entry point cannot be loaded.
        TypeError: what it names is no check.
    """
    for point in entry_points(group=ENTRY_POINTS):
        try:
            named = point.load()
        except Exception as error:
            raise ImportError(
                f"the check {point.value!r} cannot be loaded ({type(error).__name__}: {error}); "
                f"repair or uninstall the package that has the entry point {point.name!r} of "
                f"{ENTRY_POINTS}."
            ) from error
        for check in named if isinstance(named, tuple) else (named,):
            if not isinstance(check, Check):
                raise TypeError(
                    f"the entry point {point.name!r} of {ENTRY_POINTS} must name a Check or a "
                    f"tuple of them, and {point.value!r} is a {type(check).__name__}."
                )
            yield check


class _Registry(UserDict[str, Check]):
    """Checks by their names; the modules are imported at the first look."""

    def __init__(self) -> None:
        self._loaded: dict[str, Check] | None = None

    @property
    def data(self) -> dict[str, Check]:  # type: ignore[override]
        """The checks.

        Raises:
            ValueError: two checks have one name.
        """
        if self._loaded is None:
            found: dict[str, Check] = {}
            for check in (*_own(), *_from_outside()):
                if found.setdefault(check.name, check) is not check:
                    raise ValueError(
                        f"two checks are named {check.name!r}; rename the one of your own package."
                    )
            self._loaded = found
        return self._loaded


REGISTRY: MutableMapping[str, Check] = _Registry()

#: Part of the significance that is handed out; the rest is for checks that come later.
_HANDED_OUT = 0.9


def share(check: Check) -> float:
    """What a check gets of the significance: its weight over the sum of all, times `_HANDED_OUT`.

    A check that is added costs the others almost nothing: all shares shrink a little. Checks that
    only warn share a second significance of the same size.
    """
    weights = {c.name: c.weight for c in REGISTRY.values() if c.warns == check.warns}
    weights[check.name] = check.weight  # of one that is not listed, too
    return _HANDED_OUT * check.weight / math.fsum(weights.values()) if check.weight else 0.0


def shares(*, warns: bool = False) -> dict[str, float]:
    """Share of the significance of each check that has one.

    Args:
        warns: for the checks that only warn, which share a second significance of the same size.
    """
    return {c.name: share(c) for c in REGISTRY.values() if c.weight > 0 and c.warns == warns}


def statistics(reads: str, header: RecordHeader, significance: float) -> dict[str, Any]:
    """New statistics of the checks that read something, by the names of the checks.

    Args:
        reads: see `Check`.
        header: what the entries of the record mean.
        significance: of the whole run.
    """
    return {
        check.name: check.init(header, significance)
        for check in REGISTRY.values()
        if check.reads == reads and check.init is not None
    }


def packages() -> set[str]:
    """Names of the packages whose statistics a checkpoint may hold."""
    made = (check.init.__module__ for check in REGISTRY.values() if check.init is not None)
    return {ENTRY_POINTS.partition(".")[0], *(module.partition(".")[0] for module in made)}


def group(name: Group) -> tuple[str, ...]:
    """Names of the checks of a group."""
    return tuple(check.name for check in REGISTRY.values() if check.group == name)


def entailed(rule: FaultRule) -> tuple[str, ...]:
    """Names of the checks that a fault violates beside its own."""
    return (*rule.explains, *(name for of in rule.explains_groups for name in group(of)))


def teller(fault: str, name: str = "") -> tuple[Check, FaultRule] | None:
    """The check that tells a fault by itself, and its rule; None where there is none.

    Args:
        fault: its name.
        name: of the check, where several tell it; empty for the first.
    """
    checks = [check for check in REGISTRY.values() if name in ("", check.name)]
    told = ((check, rule) for check in checks for rule in check.faults)
    return next(((check, rule) for check, rule in told if rule.name == fault), None)


def in_order(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Results in the order of the report."""
    places = {name: place for place, name in enumerate(REGISTRY)}
    return sorted(results, key=lambda result: places[result.name])


def shared_log_e(results: Iterable[CheckResult]) -> float:
    """Log of the e-value that checks share; those that only warn count for nothing."""
    return evidence.shared_log_e(
        (result.log_e_value, result.share)
        for result in results
        if result.log_e_value is not None and result.share > 0 and result.name in shares()
    )
