"""What is shown of a check: everything of released gradients, and next to nothing of the data.

An epsilon covers what is computed of released gradients, of the audit's coins and of settings. A
check that is declared `private` is computed from un-noised data as well. Of it leave the process:

- the verdict, and sentences that hold no number;
- its e-value, in whole powers of ten (`coarse`), and never on the other side of its threshold;
- where it is violated, the guarantee being void, numbers of two digits, or as many as the verdict
  and the fault need.

A warning and an undecided finding void no guarantee, so they show no number.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import CheckResult

#: What a report says once where it holds numbers of a violated private check.
NUMBERS_OF_DATA = (
    "the numbers of {names} are computed from un-noised data, and no epsilon covers them: do not "
    "publish this report where the data are private"
)

#: Statuses of a check of which the guarantee is void.
VOID = ("violated", "allowed")
_LN10 = math.log(10.0)
_DIGITS = 2
#: Most digits that a number has, and from where on whole ones are written by powers of ten.
_ALL, _LARGE = 17, 1e15
#: A number in a sentence, unless it is a part of a name, a setting or a place.
_NUMBER = re.compile(r"(?<![\w.,:=`'\"])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?=x\b|[^\w`'\"]|$)")


def coarse(log_e: float, threshold: float) -> float:
    """A log e-value as far as it is shown: that of a whole power of ten.

    Args:
        log_e: natural logarithm of the e-value.
        threshold: at which the check flags; a constant, below which no flagged e-value falls.
    """
    # A power of ten that went through a logarithm is a little too large or too small.
    floor = math.floor(log_e / _LN10 + 1e-9) * _LN10 if math.isfinite(log_e) else log_e
    return max(floor, threshold) if log_e >= threshold else floor


def shown(check: CheckResult, significance: float) -> CheckResult:
    """The part of a check's result that may leave the process.

    Args:
        check: its result, by all numbers.
        significance: at whose share the check flags.
    """
    known = REGISTRY[check.name]
    if not known.private:
        return check
    log_e = check.log_e_value
    if log_e is not None:
        log_e = coarse(log_e, -math.log(check.share * significance))
    if check.status in VOID:
        # What rests on public parts alone is public: a loader's type, and what it costs.
        private = not {*check.evidence, "message"} <= {*known.public}
        digits = _needed(known, check.evidence) if private else _ALL
        message = _rounded_text(check.message, digits)
        evidence = _rounded(check.evidence, digits, known.public)
    else:
        message = _message(known, check)
        evidence = {key: check.evidence[key] for key in known.public if key in check.evidence}
    return dataclasses.replace(check, message=message, evidence=evidence, log_e_value=log_e)


def numbers_of_data(checks: Iterable[CheckResult]) -> list[str]:
    """A sentence where violated checks show numbers of un-noised data."""
    names = [c.name for c in checks if c.status in VOID and REGISTRY[c.name].private]
    return [NUMBERS_OF_DATA.format(names=", ".join(dict.fromkeys(names)))] if names else []


def _message(known: Check, check: CheckResult) -> str:
    if "message" in known.public and check.status in ("ok", "not_run"):
        return check.message
    if check.status == "ok":
        return known.fine
    if _NUMBER.search(check.message) is None:
        return check.message
    # A number in it may be one of the data.
    return f"not tested: {known.needs}" if check.status == "not_run" else known.finds


def _needed(known: Check, evidence: Mapping[str, Any]) -> int:
    """Digits by which a violated check is still wrong, and by the same fault."""
    told = _told(known, evidence)
    for digits in range(_DIGITS, _ALL):
        if _told(known, _rounded(evidence, digits, known.public)) == told:
            return digits
    return _ALL


def _told(known: Check, evidence: Mapping[str, Any]) -> list[bool | None]:
    rules = [rule.applies for rule in known.faults]
    rules.append(lambda seen: seen["size"] > seen["allowed"])  # of findings by replay
    if known.wrong is not None:
        rules.append(known.wrong)
    return [_answer(rule, evidence) for rule in rules]


def _answer(rule: Any, evidence: Mapping[str, Any]) -> bool | None:
    try:
        return bool(rule(evidence))
    except (KeyError, TypeError):  # a check that may have an e-value or not has other numbers
        return None


def _rounded(value: Any, digits: int, public: tuple[str, ...] = (), key: str = "") -> Any:
    """Evidence with numbers of so many digits; public ones and steps' numbers stay."""
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
        told = match.group()
        number = float(told.replace(",", ""))
        of_step = told.isdigit() and text[: match.start()].endswith("step ")
        if number == 0.0 or of_step:
            return told
        short = float(f"{number:.{digits}g}")
        return str(int(short)) if short.is_integer() and short < _LARGE else str(short)

    return _NUMBER.sub(rounded, text)
