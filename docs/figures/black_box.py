"""Figure of docs/estimators/black-box.md: estimating and auditing Gaussian and Laplace noise."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from published_audit import audit_tradeoff
from support import arguments, save

from lightning_audit.report.figure import BLUE, GREY, INK, ORANGE, TEAL, blank_figure, plain_axes
from lightning_audit.stats.output_estimates import estimate_by_kernel, estimate_by_neighbours
from lightning_audit.stats.output_tests import SequentialTradeoffTest

# The tests' known mechanisms are those of the paper.
sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from known_mechanisms import MECHANISMS

ALPHA = np.linspace(0, 1, 501)
SIGNIFICANCE, CLAIMED = 0.05, 0.5


def draw_estimates(axes, name, sizes, rng):
    """Draw the true curve and estimates from few and many samples."""
    sampler, claim = MECHANISMS[name]
    axes.plot(ALPHA, claim(1.0)(ALPHA), color=INK, linewidth=2, label="true T")
    for n, colour in zip(sizes, (ORANGE, BLUE), strict=True):
        p, q = sampler(rng, n)
        for estimator, style, method in (
            (estimate_by_kernel, "-", "kernel"),
            (estimate_by_neighbours, ":", "neighbours"),
        ):
            found = estimator(p, q)(ALPHA)
            axes.plot(ALPHA, found, style, color=colour, label=f"{method}, n = {n:,}")
            worst = float(np.max(np.abs(found - claim(1.0)(ALPHA))))
            print(f"{name}, {method}, n = {n}: largest error {worst:.4f}")
    axes.set_title(f"{name}: estimation", fontsize=10)
    axes.set_ylabel("type II error \u03b2")
    axes.legend(fontsize=6, frameon=False)


def draw_audit(axes, name, n, rng):
    """Draw a claim that is too good, and the error rate regions at the chosen threshold."""
    sampler, claim = MECHANISMS[name]
    samples = sampler(rng, 2 * n)
    claimed = claim(CLAIMED)
    axes.plot(ALPHA, claimed(ALPHA), color=INK, linewidth=2, label="claimed T\u2080")
    axes.plot(ALPHA, estimate_by_kernel(*samples)(ALPHA), color=BLUE, label="estimate")
    for box, colour in (("hoeffding", GREY), ("clopper_pearson", ORANGE)):
        audit = audit_tradeoff(*samples, claimed, SIGNIFICANCE, box=box)
        rates = audit.false_positives / audit.negatives, audit.false_negatives / audit.positives
        widths = audit.alpha_upper - rates[0], audit.beta_upper - rates[1]
        axes.errorbar(
            *[[rate] for rate in rates],
            xerr=[[widths[0]], [widths[0]]],
            yerr=[[widths[1]], [widths[1]]],
            color=colour,
            capsize=3,
            label=f"{box.replace('_', '-').title()}: {'violation' if audit.rejected else 'none'}",
        )
        print(f"{name}, claim {CLAIMED}, {box}: {audit}")
    axes.set_title(f"{name}: one audit, n = {n:,}", fontsize=10)
    axes.legend(fontsize=6, frameon=False)


def draw_streams(axes, name, most, rng):
    """Draw the evidence against claims over the number of outputs."""
    sampler, claim = MECHANISMS[name]
    for claimed, colour in ((0.5, ORANGE), (0.8, BLUE), (0.9, TEAL), (1.0, INK)):
        test, seen, evidence = SequentialTradeoffTest(claim(claimed)), [], []
        while test.samples < most and test.log_e < 3 * math.log(10) * 1.5:
            test.update(*sampler(rng, max(16, test.samples // 20)))
            seen.append(test.samples)
            evidence.append(test.log_e / math.log(10))
        label = f"claim {claimed:g}" + (" (true)" if claimed == 1 else "")
        axes.plot(seen, evidence, color=colour, label=label)
        print(f"{name}, claim {claimed}: e-value 10^{max(evidence):.2f} after {seen[-1]}")
    axes.axhline(3, color=GREY, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_title(f"{name}: a stream", fontsize=10)
    axes.set_xlabel("outputs on each data set")
    axes.set_ylabel("log10 of the e-value")
    axes.legend(fontsize=6, frameon=False)


def main() -> None:
    options = arguments(__doc__)
    rng = np.random.default_rng(0)
    sizes, most = ((300, 1000), 500) if options.quick else ((1000, 100_000), 20_000)
    figure = blank_figure((9.2, 5.2))
    panels = figure.subplots(2, 3)
    for row, name in zip(panels, MECHANISMS, strict=True):
        draw_estimates(row[0], name, sizes, rng)
        draw_audit(row[1], name, 1000, rng)
        draw_streams(row[2], name, most, rng)
        for axes in row:
            plain_axes(axes)
        for axes in row[:2]:
            axes.set_xlabel("type I error \u03b1")
    save(figure, options.out, "black_box")


if __name__ == "__main__":
    main()
