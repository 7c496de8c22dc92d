"""The noise of each tensor over the stated one, as rows of dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lightning_audit.files.printable import visible
from lightning_audit.page import report_extras
from lightning_audit.page.report_extras import MeasuredTensor
from lightning_audit.page.shown_text import DASH, plural
from lightning_audit.page.svg_parts import element, level_line, path, row, tick_row, upright
from lightning_audit.results.audit_report import AuditReport

#: Tensors up to which all are shown; of more, the ones with the least noise.
_ALL, _SHOWN = 16, 14
#: Characters of a name, and those kept of its start and its end.
_LONGEST, _START, _END = 26, 9, 16
_TICKS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


@dataclass(frozen=True)
class TensorRow:
    """One tensor.

    Args:
        name: its whole name.
        short: its name as the row shows it.
        value: measured over stated noise.
        limits: of the value.
        flagged: whether it has too little noise.
        says: the result in words.
        dot: the drawn row.
    """

    name: str
    short: str
    value: str
    limits: str
    flagged: bool
    says: str
    dot: Markup


@dataclass(frozen=True)
class TensorSection:
    """The noise of all tensors.

    Args:
        rows: in the order of the report.
        prefix: start that all names share.
        says: the result in a sentence.
        note: how to read it, and which tensors are left out.
        ticks: labels of the axis.
    """

    rows: tuple[TensorRow, ...]
    prefix: str
    says: str
    note: str
    ticks: Markup


def tensor_section(report: AuditReport) -> TensorSection | None:
    """Return the section of a report; None if the report does not hold the noise of tensors."""
    every = report_extras.tensors(report)
    if not every:
        return None
    shown = every
    if len(every) > _ALL:
        least = sorted(every, key=lambda tensor: (not tensor.flagged, tensor.ratio))[:_SHOWN]
        shown = [tensor for tensor in every if tensor in least]
    high = max(1.3, 1.06 * min(_TICKS[-1], max(tensor.upper for tensor in shown)))
    resolution = float((report.settings.get("resolution") or {}).get("noise", 0.8))
    prefix = common_prefix([tensor.name for tensor in shown])
    return TensorSection(
        rows=tuple(_row(tensor, prefix, high, resolution) for tensor in shown),
        prefix=visible(prefix),
        says=_says(every),
        note=_note(report, every, shown, resolution),
        ticks=tick_row([tick for tick in _TICKS if tick <= high], high),
    )


def common_prefix(names: Sequence[str]) -> str:
    """Return the leading parts that all names share, if a name is long; empty for few names.

    Example:
        >>> common_prefix([f"encoder.layers.{i}.attention.weight" for i in range(3)])
        'encoder.layers.'
        >>> common_prefix(["net.0.weight", "net.0.bias", "net.3.weight"])
        ''
    """
    if len(names) < 3 or max(map(len, names)) <= 20:
        return ""
    shared: list[str] = []
    for level in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "".join(f"{part}." for part in shared)


def _row(tensor: MeasuredTensor, prefix: str, high: float, resolution: float) -> TensorRow:
    name = visible(tensor.name)
    short = visible(tensor.name[len(prefix) :])
    if len(short) > _LONGEST:
        short = f"{short[:_START]}…{short[-_END:]}"
    return TensorRow(
        name=name,
        short=short,
        value=f"{tensor.ratio:.2f}",
        limits=f"({tensor.lower:.2f}{DASH}{tensor.upper:.2f})",
        flagged=tensor.flagged,
        says="too little noise" if tensor.flagged else "no lack of noise seen",
        dot=_dot(tensor, high, resolution),
    )


def _dot(tensor: MeasuredTensor, high: float, resolution: float) -> Markup:
    def at(value: float) -> float:
        return 100.0 * min(max(value, 0.0), high) / high

    kind = "bad" if tensor.flagged else "good"
    parts = [
        level_line(0.0, 100.0, 14, "base"),
        upright(at(resolution), "res", 28),
        upright(at(1.0), "claim", 28),
        level_line(at(tensor.lower), at(tensor.upper), 14, f"ival {kind}"),
    ]
    x = f"{at(tensor.ratio):.2f}%"
    if tensor.ratio > high:  # outside of the picture
        arrow = path([(-9, -5), (-2, 0), (-9, 5)], "evid good")
        parts.append(element("svg", arrow, x="100%", y=14, overflow="visible"))
    elif tensor.flagged:
        sign = element("path", class_="cross", d="M-5 -5l10 10m0 -10l-10 10")
        parts.append(element("svg", sign, x=x, y=14, overflow="visible"))
    else:
        parts.append(element("circle", class_="dot good", cx=x, cy=14, r=5))
    return row(28, *parts)


def _says(every: Sequence[MeasuredTensor]) -> str:
    few = sum(tensor.flagged for tensor in every)
    if few:
        verb = "has" if few == 1 else "have"
        return f"{few} of {plural(len(every), 'tensor')} {verb} less noise than stated (✕)."
    return f"None of {plural(len(every), 'tensor')} shows less noise than stated."


def _note(
    report: AuditReport,
    every: Sequence[MeasuredTensor],
    shown: Sequence[MeasuredTensor],
    resolution: float,
) -> str:
    read = plural(sum(tensor.reads for tensor in every), "number")
    words = (
        f"Read from {read} of released gradients without canaries. A reading is the noise plus "
        "what the data add to it: a ratio below 1 is a lack of noise, one above 1 may be data. "
        "The lower limit is for one look and Gaussian readings, the upper one for any data and all "
        "looks; crosses follow the check. Solid line: stated. Dotted: "
        f"{resolution:g} times that, the fault that this run must be able to see."
    )
    rest = [tensor.ratio for tensor in every if tensor not in shown]
    if rest:
        words += f" {len(rest)} more have {min(rest):.2f} to {max(rest):.2f} times."
    if report.tensors_left_out:
        left_out = plural(report.tensors_left_out, "further tensor")
        words += f" The report leaves out {left_out} with more noise."
    return words
