"""Numbers and text of a report, as the page shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from markupsafe import Markup, escape

from lightning_audit.files.printable import visible
from lightning_audit.report.in_words import plural as plural

_RAISED = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")
#: From this power of ten on, decimals of the exponent mean nothing.
_WHOLE_POWER = 10.0
_LN10 = math.log(10.0)
#: Instead of an unknown number, and between two limits.
DASH = "\N{EN DASH}"
#: Percent after a number, on its line.
PERCENT = "\N{NO-BREAK SPACE}%"


def seen(text: str) -> str:
    r"""Return text of which nothing is hidden, see `visible`; no-break spaces are kept.

    Example:
        >>> seen("9\N{NO-BREAK SPACE}%\x1b[2K")
        '9\xa0%\\x1b[2K'
    """
    return "\N{NO-BREAK SPACE}".join(map(visible, text.split("\N{NO-BREAK SPACE}")))


def number(value: float | None, digits: int = 3) -> str:
    """Return a number in a few digits; "unknown" for None.

    Example:
        >>> number(2.98651), number(None), number(float("inf"))
        ('2.99', 'unknown', '∞')
    """
    if value is None:
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def percent(probability: float) -> str:
    r"""Return a probability in percent, without rounding it up to certainty.

    Example:
        >>> percent(0.0924), percent(0.99966), percent(1 - 1e-9), percent(1.0)
        ('9.2\xa0%', '99.97\xa0%', '>99.99\xa0%', '100\xa0%')
    """
    if probability == 1.0:
        return f"100{PERCENT}"
    if probability > 0.9999:
        return f">99.99{PERCENT}"
    if 0.0 < probability < 1e-4:
        return f"<0.01{PERCENT}"
    if 0.1 <= probability <= 0.99:
        return f"{100.0 * probability:.0f}{PERCENT}"
    shown = f"{100.0 * probability:.{2 if probability > 0.99 else 1}f}"
    return f"{shown.rstrip('0').rstrip('.')}{PERCENT}"


def power_words(power: float) -> str:
    """Return a power in percent, which is never certainty."""
    return percent(min(power, 1.0 - 1e-9))


def level(significance: float) -> str:
    """Return the confidence level of a significance, such as "95 %"."""
    return f"{100.0 - 100.0 * significance:.6g}{PERCENT}"


def power_of_ten(log_e: float) -> str:
    """Return e to the ``log_e``, from 10 on as a power of ten; a large one without decimals.

    Example:
        >>> power_of_ten(1726.3), power_of_ten(0.0), power_of_ten(5.0)
        ('10⁷⁵⁰', '1', '10²·²')
    """
    if math.isinf(log_e):
        return "∞" if log_e > 0 else "0"
    power = log_e / _LN10
    if 0.0 <= power < 1.0:
        return f"{10.0**power:.2g}"
    whole = abs(power) >= _WHOLE_POWER or abs(power - round(power)) < 0.05
    digits = f"{power + 0.0:.0f}" if whole else f"{power:.1f}"
    return "10" + ("0" if digits == "-0" else digits).translate(_RAISED)


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    text = seen(text).rstrip()
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def inner(text: str) -> str:
    """Return text for the middle of a sentence: a first capital becomes small, unless a name's.

    Example:
        >>> inner("No noise is added."), inner("DPOptimizer differs"), inner("Opacus' own")
        ('no noise is added', 'DPOptimizer differs', "Opacus' own")
    """
    text = seen(text).rstrip().removesuffix(".")
    first = text.split(" ", 1)[0]
    is_name = any(c.isupper() for c in first[1:]) or first.startswith(("Opacus", "Poisson"))
    return text if is_name else text[:1].lower() + text[1:]


def listed(parts: Iterable[str]) -> str:
    """Return parts as "a, b and c"."""
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def marked(text: str) -> Markup:
    """Return text from a report, escaped, with what is between backticks as code."""
    parts = re.split(r"`([^`]+)`", seen(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )
