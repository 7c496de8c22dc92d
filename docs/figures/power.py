"""Figure of docs/estimators/power.md: the power of the audit's tests and of the bounds."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
from support import arguments

from lightning_audit.cli.estimators import powers
from lightning_audit.report.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    blank_figure,
    plain_axes,
)
from lightning_audit.stats.tradeoff import gaussian_mu

TARGET, CANARIES = 0.95, 8
STYLES = (("-", BLUE), ("-", GREEN), ("--", ORANGE), ("--", PINK), ("--", GREY))


def main():
    options = arguments(__doc__)
    options.out.mkdir(parents=True, exist_ok=True)
    claim, truth, most = (8.0, 12.0, 1e3) if options.quick else (1.27, 1.57, 7e4)
    given = Namespace(canaries=CANARIES, significance=0.05, audit_significance=1e-3)
    tests = powers(given, *(float(gaussian_mu(epsilon, 1e-5)) for epsilon in (claim, truth)))
    drawn = blank_figure((8.0, 5.0))
    axes = drawn.subplots()
    plain_axes(axes)
    readings = np.geomspace(CANARIES, most, 40)
    for (name, _, _, power, unit), (dashes, colour) in zip(tests, STYLES, strict=True):
        values = [power(int(n // unit)) if n >= unit else 0.0 for n in readings]
        axes.plot(readings, values, dashes, color=colour, label=name)
    axes.axhline(TARGET, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("canary readings")
    axes.set_ylabel("power")
    axes.set_title(f"Claim epsilon {claim:g}, truth {truth:g}, delta 1e-05", color=INK, fontsize=11)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left")
    drawn.savefig(options.out / "power.png")


if __name__ == "__main__":
    main()
