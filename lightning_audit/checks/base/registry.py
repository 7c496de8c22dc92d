"""Registry of all checks, in the order of the report, for the gate, the diagnosis and the docs.

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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_audit.checks.base import evidence
from lightning_audit.checks.base.check import Check, FaultRule, Group
from lightning_audit.results.audit_report import CheckResult

if TYPE_CHECKING:
    from lightning_audit.record.store import RecordHeader

ENTRY_POINTS = "lightning_audit.checks"
#: Subjects in the order of the report.
_SUBJECTS = ("update", "noise", "clipping", "replay", "randomness", "sampling", "accounting")


def _modules(subject: str) -> Iterator[ModuleType]:
    """Import the modules of a subject, in the order of their names."""
    room = importlib.import_module(f"{ENTRY_POINTS}.{subject}")
    for found in pkgutil.iter_modules(room.__path__):
        yield importlib.import_module(f"{room.__name__}.{found.name}")


def _own() -> Iterator[Check]:
    """Yield `CHECKS` of the modules of each subject.

    Those that a pass requires come first, that of the run before those of each optimizer.
    """
    for subject in _SUBJECTS:
        declared = [c for module in _modules(subject) for c in getattr(module, "CHECKS", ())]
        yield from sorted(declared, key=lambda c: (not c.must_run, c.must_run and c.each))


def _from_outside() -> Iterator[Check]:
    """Yield the checks of other packages.

    Raises:
        ImportError: an entry point cannot be loaded.
        TypeError: an entry point names something other than a check.
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
    """Checks by name; the modules are imported when the registry is first read."""

    def __init__(self) -> None:
        self._loaded: dict[str, Check] | None = None

    @property
    def data(self) -> dict[str, Check]:  # type: ignore[override]
        """Checks by name.

        Raises:
            ValueError: two checks have the same name.
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

#: Part of the significance that is assigned; the rest is reserved for future checks.
_HANDED_OUT = 0.9


def share(check: Check) -> float:
    """Return a check's share of the significance: its part of all weights, times `_HANDED_OUT`.

    Adding a check costs the others almost nothing: all shares shrink a little. Checks that only
    warn share a second significance of the same size.
    """
    weights = {c.name: c.weight for c in REGISTRY.values() if c.warns == check.warns}
    weights[check.name] = check.weight  # the check need not be registered
    return _HANDED_OUT * check.weight / math.fsum(weights.values()) if check.weight else 0.0


def shares(*, warns: bool = False) -> dict[str, float]:
    """Return the share of the significance of each check that has one.

    Args:
        warns: whether to return the checks that only warn, which share a second significance of
            the same size.
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
    """Return the names of the checks of a group."""
    return tuple(check.name for check in REGISTRY.values() if check.group == name)


def entailed(rule: FaultRule) -> tuple[str, ...]:
    """Return the names of the other checks that a fault violates."""
    return (*rule.explains, *(name for of in rule.explains_groups for name in group(of)))


def teller(fault: str, name: str = "") -> tuple[Check, FaultRule] | None:
    """Return the check that names a fault by itself, and its rule; None if there is none.

    Args:
        fault: its name.
        name: of the check, if several name the fault; empty for the first one.
    """
    checks = [check for check in REGISTRY.values() if name in ("", check.name)]
    told = ((check, rule) for check in checks for rule in check.faults)
    return next(((check, rule) for check, rule in told if rule.name == fault), None)


def headlines() -> dict[str, str]:
    """Return the headline of each fault, by its name.

    A fault that a check names alone has it in its rule. A module that names further faults, by
    several checks together, lists theirs as `HEADLINES`.
    """
    found = {
        name: headline
        for subject in _SUBJECTS
        for module in _modules(subject)
        for name, headline in getattr(module, "HEADLINES", {}).items()
    }
    rules = (rule for check in REGISTRY.values() for rule in check.faults)
    return found | {rule.name: rule.headline or rule.sentence for rule in rules}


def in_order(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return results in the order of the report."""
    places = {name: place for place, name in enumerate(REGISTRY)}
    return sorted(results, key=lambda result: places[result.name])


def shared_log_e(results: Iterable[CheckResult]) -> float:
    """Return the log of the e-value that checks share; checks that only warn do not count."""
    return evidence.shared_log_e(
        (result.log_e_value, result.share)
        for result in results
        if result.log_e_value is not None and result.share > 0 and result.name in shares()
    )
