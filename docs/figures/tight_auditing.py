"""Figure of docs/estimators/tight-auditing.md: Figures 1, 3 and 4 of Nasr et al. 2023."""

from __future__ import annotations

import numpy as np
from support import arguments, save

from lightning_audit.report.drawing import BLUE, GREEN, INK, ORANGE, PINK, blank_figure, plain_axes
from lightning_audit.stats.bounds import named_bound
from lightning_audit.stats.counts import ConfusionCounts, epsilon_clopper_pearson
from lightning_audit.stats.gdp import gaussian_epsilon, gaussian_mu
from lightning_audit.stats.gdp_counts import mu_clopper_pearson
from lightning_audit.stats.thresholds import Fixed, Maximum
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, GaussianTradeoff

DELTA = 1e-5


def laplace(alpha, epsilon):
    """Trade-off function of the Laplace mechanism."""
    low = np.exp(-epsilon)
    middle = low / (4 * np.maximum(alpha, 1e-12))
    return np.where(
        alpha < low / 2, 1 - alpha / low, np.where(alpha < 0.5, middle, low * (1 - alpha))
    )


def draw_figure_1(axes):
    """Mechanisms that all are (1, 1e-5)-DP."""
    alpha = np.linspace(0, 1, 401)
    curves = {
        "randomized response, (1, 1e-5)-DP": ApproxDPTradeoff(1.0, DELTA)(alpha),
        "Laplace": laplace(alpha, 1.0),
        "Gaussian": GaussianTradeoff(gaussian_mu(1.0, DELTA))(alpha),
    }
    for (name, beta), colour in zip(curves.items(), (ORANGE, PINK, BLUE), strict=True):
        axes.plot(alpha, beta, color=colour, label=name)
    axes.set_title("Fig. 1: trade-off functions of (1, 1e-5)-DP")
    axes.set_xlabel("FPR")
    axes.set_ylabel("FNR")


def draw_figure_4(axes, rng, epsilon=4.0, n=2500):
    """Bounds over the threshold, n observations a world."""
    mu = gaussian_mu(epsilon, DELTA)
    inside, outside = mu + rng.standard_normal(n), rng.standard_normal(n)
    at = np.linspace(-3.5, mu + 3.5, 300)
    counts = ConfusionCounts.from_scores(inside, outside, at)
    gdp = gaussian_epsilon(mu_clopper_pearson(counts, 0.05), DELTA)
    axes.plot(at, gdp, color=BLUE, label="fdp_cp: through mu")
    axes.plot(at, epsilon_clopper_pearson(counts, DELTA, 0.05), color=ORANGE, label="eps_cp")
    axes.axhline(epsilon, color=INK, linewidth=1, label="truth")
    axes.set_title(f"Fig. 4: {2 * n} readings, each threshold alone")
    axes.set_xlabel("threshold")
    axes.set_ylabel("lower bound on epsilon")


def draw_figure_3(axes, rng, epsilon, sizes, runs):
    """Median bounds over the number of observations."""
    mu = gaussian_mu(epsilon, DELTA)
    methods = {
        "eps_cp, maximum (not valid)": ("eps_cp", Maximum(), ORANGE, "--"),
        "fdp_cp, maximum (not valid)": ("fdp_cp", Maximum(), PINK, "--"),
        "fdp_cp, fixed": ("fdp_cp", Fixed(mu / 2), BLUE, "-"),
        "fdp_pooled_cp, fixed": ("fdp_pooled_cp", Fixed(mu / 2), GREEN, "-"),
    }
    found = {name: [] for name in methods}
    for n in sizes:
        scores = [
            (mu + rng.standard_normal(n // 2), rng.standard_normal(n // 2)) for _ in range(runs)
        ]
        for name, (method, choice, *_) in methods.items():
            bounds = [named_bound(method, *s, DELTA, 0.05, choice).epsilon_lower for s in scores]
            found[name].append((np.median(bounds), np.mean(np.array(bounds) > epsilon)))
    for name, (*_, colour, dashes) in methods.items():
        median, above = np.transpose(found[name])
        axes.plot(sizes, median, dashes, color=colour, marker="o", label=name)
        print(f"epsilon {epsilon:g}", name, median.round(3), "above the truth", above.round(3))
    axes.axhline(epsilon, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_title(f"Fig. 3: epsilon {epsilon:g}, median of {runs} runs")
    axes.set_xlabel("readings")
    axes.set_ylabel("lower bound on epsilon")


def main():
    options = arguments(__doc__)
    rng = np.random.default_rng(0)
    figure = blank_figure((9.6, 7.2))
    panels = figure.subplots(2, 2)
    for axes in panels.ravel():
        plain_axes(axes)
    sizes, runs = (
        ((100, 1000), 3) if options.quick else ((100, 300, 1000, 3000, 10_000, 50_000), 100)
    )
    draw_figure_1(panels[0, 0])
    draw_figure_4(panels[0, 1], rng)
    draw_figure_3(panels[1, 0], rng, 1.0, sizes, runs)
    draw_figure_3(panels[1, 1], rng, 4.0, sizes, runs)
    for axes in panels.ravel():
        axes.legend(fontsize=8, frameon=False)
        axes.title.set_fontsize(10)
    save(figure, options.out, "tight_auditing")


if __name__ == "__main__":
    main()
