"""Disclosure: which parts of a check's result may leave the process.

An epsilon covers what is computed from released gradients, from the audit's coins and from
settings. A check that is declared `private` is computed from un-noised data as well. Its result
leaves the process only as

- the verdict, and sentences without a number;
- its e-value, rounded to a whole power of ten (`coarse`), never across its threshold;
- if it is violated, which voids the guarantee, numbers of two digits, or of as many as the verdict
  and the fault need.

A warning and an undecided finding do not void the guarantee, so they show no number.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lightning_audit.checks.check import REGISTRY, Check
from lightning_audit.results.audit_report import CheckResult

#: Note of a report that contains numbers of a violated private check.
NUMBERS_OF_DATA = (
    "the numbers of {names} are computed from un-noised data, and no epsilon covers them: do not "
    "publish this report where the data are private"
)

#: Statuses of a check that void the guarantee.
VOID = ("violated", "allowed")
_LN10 = math.log(10.0)
_DIGITS = 2
#: Most digits of a number, and the size from which whole numbers have an exponent.
_ALL, _LARGE = 17, 1e15
#: A number in a sentence that is not part of a name, a setting or a place.
_NUMBER = re.compile(r"(?<![\w.,:=`'\"])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?=x\b|[^\w`'\"]|$)")


def coarse(log_e: float, threshold: float) -> float:
    """Round a log e-value down to a whole power of ten, for display.

    Args:
        log_e: natural logarithm of the e-value.
        threshold: log e-value at which the check flags; a flagged e-value is not rounded below it.
    """
    # The logarithm of a power of ten is slightly off.
    floor = math.floor(log_e / _LN10 + 1e-9) * _LN10 if math.isfinite(log_e) else log_e
    return max(floor, threshold) if log_e >= threshold else floor


def shown(check: CheckResult, significance: float) -> CheckResult:
    """Return the part of a check's result that may leave the process.

    Args:
        check: its result, with all numbers.
        significance: of the whole run; the check flags at its share of it.
    """
    known = REGISTRY[check.name]
    if not known.private:
        return check
    log_e = check.log_e_value
    if log_e is not None:
        log_e = coarse(log_e, -math.log(check.share * significance))
    if check.status in VOID:
        # Public parts alone need no rounding: a loader's type, and what it costs.
        private = not {*check.evidence, "message"} <= {*known.public}
        digits = _needed(known, check.evidence) if private else _ALL
        message = _rounded_text(check.message, digits)
        evidence = _rounded(check.evidence, digits, known.public)
    else:
        message = _message(known, check)
        evidence = {key: check.evidence[key] for key in known.public if key in check.evidence}
    return dataclasses.replace(check, message=message, evidence=evidence, log_e_value=log_e)


def numbers_of_data(checks: Iterable[CheckResult]) -> list[str]:
    """Return a note if violated checks show numbers of un-noised data."""
    names = [c.name for c in checks if c.status in VOID and REGISTRY[c.name].private]
    return [NUMBERS_OF_DATA.format(names=", ".join(dict.fromkeys(names)))] if names else []


def _message(known: Check, check: CheckResult) -> str:
    if "message" in known.public and check.status in ("ok", "not_run"):
        return check.message
    if check.status == "ok":
        return known.fine
    if _NUMBER.search(check.message) is None:
        return check.message
    # A number in it may be computed from the data.
    return known.needs if check.status == "not_run" else known.heading(failed=True)


def _needed(known: Check, evidence: Mapping[str, Any]) -> int:
    """Return the digits that keep a violated check wrong, and keep its fault."""
    answers = _answers(known, evidence)
    for digits in range(_DIGITS, _ALL):
        if _answers(known, _rounded(evidence, digits, known.public)) == answers:
            return digits
    return _ALL


def _answers(known: Check, evidence: Mapping[str, Any]) -> list[bool | None]:
    rules = [rule.applies for rule in known.faults]
    rules.append(lambda seen: seen["size"] > seen["allowed"])  # for findings by replay
    if known.wrong is not None:
        rules.append(known.wrong)
    return [_answer(rule, evidence) for rule in rules]


def _answer(rule: Any, evidence: Mapping[str, Any]) -> bool | None:
    try:
        return bool(rule(evidence))
    except (KeyError, TypeError):  # a check that may lack an e-value has other numbers
        return None


def _rounded(value: Any, digits: int, public: tuple[str, ...] = (), key: str = "") -> Any:
    """Round the numbers in evidence to ``digits``; public ones and step numbers are kept."""
    if isinstance(value, Mapping):
        return {k: v if k in public else _rounded(v, digits, (), k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item, digits, (), key) for item in value]
    if isinstance(value, str):
        return _rounded_text(value, digits)
    if isinstance(value, bool) or value is None or key.endswith(("step", "steps")):
        return value
    number = float(value)
    if not math.isfinite(number):
        return value
    number = float(f"{number:.{digits}g}")
    return int(number) if isinstance(value, int) else number


def _rounded_text(text: str, digits: int) -> str:
    def rounded(match: re.Match[str]) -> str:
        written = match.group()
        number = float(written.replace(",", ""))
        of_step = written.isdigit() and text[: match.start()].endswith("step ")
        if number == 0.0 or of_step:
            return written
        short = float(f"{number:.{digits}g}")
        return str(int(short)) if short.is_integer() and short < _LARGE else str(short)

    return _NUMBER.sub(rounded, text)
