"""Numbers and text of a report as the page shows them, and parts of inline SVG.

**Parts of figures as inline SVG: elements, scales, ticks, rows of bars.** Colors are the page's CSS
variables, and text is text. Sizes and strokes are attributes as well, which give way to CSS:
without the style sheet a figure remains readable. Rows of bars are placed in percent, so that they
fit any width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from lightning_audit.files import visible
from lightning_audit.report.text import LN10, with_signs
from lightning_audit.report.text import plural as plural
from lightning_audit.report.text import power_of_ten as text_of_power

#: One number: what it is, its value and method, its level at how many looks, its assumptions.
MethodRow = tuple[str, str, str, str, tuple[str, ...]]

# --- Numbers and text of a report, as the page shows them.

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
    if 0.0 <= (power := log_e / LN10) < 1.0:
        return f"{10.0**power:.2g}"
    return with_signs(text_of_power(log_e))


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
    text = seen(text).rstrip(" .")
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


# --- Parts of figures as inline SVG: elements, scales, ticks, rows of bars.

#: Fill of text without the style sheet.
_INK = {"fill": "#222", "stroke": "none"}
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)

Point = tuple[float, float]


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return an element; values and children that are no `Markup` are escaped.

    Args:
        tag: its name.
        *children: text or elements.
        **attributes: by name, with "_" for "-"; ``class_`` is the class. A float gets two digits
            after the point; None is left out.
    """
    inside = Markup("").join(seen(c) if not isinstance(c, Markup) else c for c in children)
    shown = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _value(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, shown, inside)


def _value(value: object) -> str:
    if not isinstance(value, float):
        return seen(str(value))
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Scale:
    """Linear map from numbers to pixels.

    Args:
        low: number at ``start``.
        high: number at ``end``, different from ``low``.
        start: a pixel.
        end: a pixel.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def nice(high: float, about: int = 5) -> list[float]:
    """Return round ticks from 0 to at most ``high``.

    Example:
        >>> nice(8.96), nice(290, 3)
        ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 100.0, 200.0])
    """
    raw = high / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in _NICE if unit * times >= raw * (1.0 - 1e-9))
    return [step * i for i in range(int(high / step + 1e-9) + 1)]


def figure(
    size: Point, body: Iterable[Markup], name: str, title: str, description: str, kind: str
) -> Markup:
    """Return a figure with a title and a description that a screen reader reads.

    Args:
        size: its width and height.
        body: its elements.
        name: start of its ids, unique on the page.
        title: its title.
        description: what it shows, with the numbers that matter.
        kind: its CSS class.
    """
    width, height = size
    ids = f"{name}-title", f"{name}-text"
    inside = element("g", Markup("").join(body), class_="p", fill="none", stroke="#555")
    return element(
        "svg",
        element("title", title, id=ids[0]),
        element("desc", description, id=ids[1]),
        inside,
        class_=f"fig {kind}",
        width=width,
        height=height,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_labelledby=" ".join(ids),
    )


def text(at: Point, words: str, kind: str, anchor: str = "start", **more: object) -> Markup:
    """Return text at a point, with its CSS class."""
    x, y = at
    place: dict[str, object] = {"x": x, "y": y, "class_": kind, "text_anchor": anchor}
    return element("text", words, **place, **_INK, **more)


def line(start: Point, end: Point, kind: str) -> Markup:
    """Return a line with its CSS class."""
    return element("line", class_=kind, x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def path(points: Sequence[Point], kind: str, *, closed: bool = False, **more: object) -> Markup:
    """Return a path through points with its CSS class."""
    steps = "L".join(f"{_value(x)} {_value(y)}" for x, y in points)
    return element("path", class_=kind, d=f"M{steps}{'Z' if closed else ''}", **more)


def cross(x: float, y: float, half: float = 5.0) -> Markup:
    """Return a cross, the sign of what is outside of the claim."""
    return element(
        "path",
        class_="cross",
        d=f"M{x - half:.1f} {y - half:.1f}l{2 * half:g} {2 * half:g}"
        f"m0 {-2 * half:g}l{-2 * half:g} {2 * half:g}",
    )


def strip(height: int, *children: Markup) -> Markup:
    """Return a strip as wide as its place, whose children are placed in percent."""
    inside = element("g", *children, class_="p", fill="none", stroke="#555")
    return element("svg", inside, class_="row", width="100%", height=height, aria_hidden="true")


def upright(at: float, kind: str, height: int) -> Markup:
    """Return a vertical line of a row, at a percentage of its width."""
    return element("line", class_=kind, x1=f"{at:.2f}%", x2=f"{at:.2f}%", y1=0, y2=height)


def level_line(start: float, end: float, at: int, kind: str) -> Markup:
    """Return a horizontal line of a row, between two percentages of its width."""
    return element("line", class_=kind, x1=f"{start:.2f}%", x2=f"{end:.2f}%", y1=at, y2=at)


def tick_row(values: Sequence[float], high: float) -> Markup:
    """Return the labels of an axis below rows, from 0 to ``high``."""
    return strip(
        18,
        *(
            element(
                "text",
                f"{value:g}",
                class_="tick",
                x=f"{100.0 * value / high:.2f}%",
                y=13,
                text_anchor="start" if value == 0 else "middle",
                **_INK,
            )
            for value in values
        ),
    )
