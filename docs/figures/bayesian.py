"""Figures of docs/estimators/bayesian.md: the example and Figures 4, 5 and 7 of the paper."""

from __future__ import annotations

import numpy as np
from published_numbers import (
    EXAMPLE,
    EXAMPLE_DELTA,
    FIGURE_7,
    INTERVALS,
    intervals_of_figure_4,
    trials_needed,
    widths_of_figure_5,
)
from scipy import stats
from support import arguments, save

from lightning_audit.report.figure import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    SHADE,
    blank_figure,
    plain_axes,
)
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.posteriors import Posterior

COLOURS = dict(zip(INTERVALS, (ORANGE, PINK, BLUE), strict=True))


def draw_example(axes):
    """Draw the posterior of epsilon, and the 95 % intervals."""
    at = np.linspace(0.01, 2.5, 300)
    density = Posterior.of_epsilon(EXAMPLE, EXAMPLE_DELTA).pdf(at)
    axes.plot(at, density, color=INK)
    for row, (name, interval) in enumerate(INTERVALS.items()):
        ends = interval(EXAMPLE, EXAMPLE_DELTA, 0.05)
        axes.hlines(-0.15 - 0.16 * row, *ends, color=COLOURS[name], linewidth=4, label=name)
        print("example", name, np.round(ends, 5))
    axes.set_ylim(-0.65, 2.8)
    axes.set_title("Example: posterior of epsilon, delta .05\n35 misses, 25 false alarms of 100")
    axes.set_xlabel("epsilon")
    axes.set_ylabel("density; 95 % intervals below")
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def draw_mu(axes):
    """Draw the posterior of mu, and lower bounds at .05."""
    at = np.linspace(0.01, 3, 300)
    axes.plot(at, Posterior.of_mu(EXAMPLE).pdf(at), color=INK)
    lower = {
        "Clopper-Pearson, both rates": (mu_clopper_pearson(EXAMPLE, 0.05), ORANGE, "--"),
        "pooled errors": (mu_pooled_clopper_pearson(EXAMPLE, 0.05), GREEN, "-"),
        "posterior's .05 quantile": (Posterior.of_mu(EXAMPLE).quantile(0.05), BLUE, "-."),
    }
    for name, (value, colour, style) in lower.items():
        axes.axvline(value, color=colour, linestyle=style, label=name)
        print("mu,", name, round(value, 6))
    axes.set_xlim(0, 3)
    axes.set_ylim(0, 3.2)
    axes.set_title("Example: posterior of mu, and lower\nlimits at significance .05")
    axes.set_xlabel("mu")
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def draw_figure_4(axes):
    """Draw the ends of the 90 % intervals over the number of trials."""
    total = np.arange(50, 1700, 10)
    point = epsilon_at_rates(0.4, 0.4, 0)
    axes.axhspan(point - 0.15, point + 0.15, color=SHADE)
    for name, interval in INTERVALS.items():
        for ends in intervals_of_figure_4(interval, total):
            axes.plot(total, ends, color=COLOURS[name])
        by_width, by_ends = trials_needed(interval)
        axes.plot([], [], color=COLOURS[name], label=f"{name}: {by_width} trials")
        print("Fig. 4", name, "trials by width", by_width, "by both ends", by_ends)
    axes.set_ylim(0, 1.2)
    axes.set_title("Fig. 4: 90 % intervals at error rates .4\ntrials until they are .30 wide")
    axes.set_xlabel("trials, both worlds")
    axes.set_ylabel("epsilon, delta 1e-5")
    axes.legend(fontsize=8, frameon=False)


def draw_figure_5(figure, panels, step):
    """Draw widths over both error rates, and the posterior's reduction in width."""
    errors = np.arange(25, 251, step)
    widths = {name: widths_of_figure_5(interval, errors) for name, interval in INTERVALS.items()}
    levels = np.arange(0.1, 1.01, 0.1)
    for axes, (name, width) in zip(panels, widths.items(), strict=True):
        drawn = axes.contourf(errors / 500, errors / 500, width, levels=levels, antialiased=False)
        axes.set_title(f"Fig. 5: width of the 90 % interval\n{name}")
        axes.set_xlabel("FPR")
        less = 1 - widths["posterior"] / width
        print("Fig. 5", name, "widths", width.min().round(3), width.max().round(3))
        print("Fig. 5, posterior narrower by", less.min().round(3), less.max().round(3))
    panels[0].set_ylabel("FNR")
    figure.colorbar(drawn, ax=panels[-1])


def print_rare_false_alarms():
    """Print where the paper's reductions in width are reached: one false alarm of 500."""
    fn = np.arange(25, 251, 5)
    counts = ConfusionCounts(fn, 500 - fn, 1, 499)
    ends = {name: interval(counts, 1e-5, 0.1) for name, interval in INTERVALS.items()}
    width = {name: high - low for name, (low, high) in ends.items()}
    for name in ("Jeffreys", "Clopper-Pearson"):
        less = 1 - width["posterior"] / width[name]
        print("one false alarm, narrower than", name, less.min().round(3), less.max().round(3))


def draw_figure_7(panels):
    """Draw joint posteriors, and the region between the ends of the 95 % interval."""
    rates = np.linspace(0.001, 0.999, 400)
    fnr, fpr = np.meshgrid(rates, rates, indexing="ij")
    needed = epsilon_at_rates(fnr, fpr, 0.01)
    for axes, (printed, counts) in zip(panels, FIGURE_7.items(), strict=True):
        low, high = Posterior.of_epsilon(counts, 0.01).interval(0.05)
        inside = np.diff(Posterior.of_epsilon(counts, 0.01).cdf(np.array(printed)))[0]
        print("Fig. 7", printed, "computed", np.round([low, high], 4), "holds", inside.round(4))
        density = np.outer(
            stats.beta.pdf(rates, counts.fn + 0.5, counts.tp + 0.5),
            stats.beta.pdf(rates, counts.fp + 0.5, counts.tn + 0.5),
        )
        axes.contourf(rates, rates, (needed >= low) & (needed <= high), [0.5, 1.5], colors=[SHADE])
        levels = density.max() * np.array([0.05, 0.2, 0.4, 0.6, 0.8])
        axes.contour(rates, rates, density, levels=levels, colors=BLUE, linewidths=1)
        trials = counts.fn + counts.tp + counts.fp + counts.tn
        axes.set_title(f"{trials} trials: R({low:.2g}, {high:.2g})\nprinted: {printed}")
        axes.set_xlabel("FPR")
        axes.set_aspect("equal")
    panels[0].set_ylabel("FNR")


def main():
    options = arguments(__doc__)
    figure = blank_figure((11.4, 7.0))
    panels = figure.subplots(2, 3)
    joint = blank_figure((12.0, 3.6))
    squares = joint.subplots(1, 4)
    for axes in (*panels.ravel(), *squares):
        plain_axes(axes)
    draw_example(panels[0, 0])
    draw_mu(panels[0, 1])
    draw_figure_4(panels[0, 2])
    draw_figure_5(figure, panels[1], 75 if options.quick else 5)
    print_rare_false_alarms()
    draw_figure_7(squares)
    for axes in (*panels.ravel(), *squares):
        axes.title.set_fontsize(10)
    save(figure, options.out, "bayesian")
    save(joint, options.out, "bayesian_posterior")


if __name__ == "__main__":
    main()
