"""Figures of docs/estimators/tight-auditing.md: 1, 3, 4, 5, 13 and 14 of Nasr et al. 2023."""

from __future__ import annotations

import numpy as np
from published_numbers import (
    DELTA,
    error_rates_of_a_subsampled_step,
    expected_counts,
    lines_of_algorithm_4,
)
from scipy import stats
from support import arguments, save

from lightning_audit.report.figure import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    blank_figure,
    plain_axes,
)
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
)
from lightning_audit.stats.named_bounds import named_bound
from lightning_audit.stats.thresholds import Fixed, Maximum
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    SubsampledGaussianTradeoff,
    gaussian_epsilon,
    gaussian_mu,
)

#: The step of Figure 5: variance 0.3, a canary in a quarter of the batches.
NOISE_MULTIPLIER, SAMPLE_RATE = 0.3**0.5, 0.25
STEP = SubsampledGaussianTradeoff(NOISE_MULTIPLIER, SAMPLE_RATE)


def laplace(alpha, epsilon):
    """Return the trade-off function of the Laplace mechanism."""
    low = np.exp(-epsilon)
    middle = low / (4 * np.maximum(alpha, 1e-12))
    return np.where(
        alpha < low / 2, 1 - alpha / low, np.where(alpha < 0.5, middle, low * (1 - alpha))
    )


def draw_figure_1(axes):
    """Draw trade-off functions of mechanisms that are all (1, 1e-5)-DP."""
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
    """Draw bounds over the threshold, n observations per world."""
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
    """Draw median bounds over the number of observations."""
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


def draw_figure_5(axes, rng, n):
    """Draw error rates of n readings per world, and the curves that should describe them."""
    epsilon = STEP.epsilon_at(DELTA)
    remove = SubsampledGaussianTradeoff(NOISE_MULTIPLIER, SAMPLE_RATE, "remove")
    gaussian = GaussianTradeoff(gaussian_mu(epsilon, DELTA))
    fpr, fnr = error_rates_of_a_subsampled_step(rng, NOISE_MULTIPLIER, SAMPLE_RATE, n)
    alpha = np.linspace(0, 1, 401)
    axes.plot(fpr, fnr, color=ORANGE, linewidth=4, alpha=0.6, label=f"{2 * n} readings")
    axes.plot(alpha, remove(alpha), color=INK, linewidth=1, label="exact, record in against out")
    axes.plot(alpha, STEP(alpha), "--", color=BLUE, label="PLD, either order")
    axes.plot(alpha, gaussian(alpha), "-.", color=PINK, label="GDP of the same epsilon")
    for rate in (0.1, 0.5):
        seen = fnr[np.argmin(np.abs(fpr - rate))]
        curves = [curve(rate) for curve in (remove, STEP, gaussian)]
        print(f"Fig. 5, epsilon {epsilon:.4f}, FPR {rate}: {seen:.4f}", np.round(curves, 4))
    print("Fig. 5, readings off the exact curve", np.abs(fnr - remove(fpr)).max().round(4))
    axes.set_title("Fig. 5: a step that is subsampled at 1/4")
    axes.set_xlabel("FPR")
    axes.set_ylabel("FNR")


def draw_figure_13(axes):
    """Draw Algorithm 4 and the curve that it approximates."""
    alpha = np.linspace(0, 1, 401)
    axes.plot(alpha, STEP(alpha), color=INK, linewidth=3, alpha=0.5, label="exact")
    for number, colour in ((100, BLUE), (10, ORANGE)):
        lines = lines_of_algorithm_4(STEP, alpha, number)
        axes.plot(alpha, lines, "--", color=colour, label=f"{number} lines, largest")
        print("Fig. 13,", number, "lines, short by", (STEP(alpha) - lines).max().round(4))
    printed = lines_of_algorithm_4(STEP, alpha, 10, as_printed=True)
    axes.plot(alpha, printed, ":", color=PINK, label="10 lines, as printed")
    print("Fig. 13, as printed, off by", np.abs(STEP(alpha) - printed).max().round(4))
    axes.set_title("Fig. 13: Algorithm 4, the same step")
    axes.set_xlabel("FPR")
    axes.set_ylabel("FNR")


def draw_figure_14(axes, sizes):
    """Draw bounds at expected counts of N(0, 1) and N(1, 1), over the readings of both worlds."""
    truth = gaussian_epsilon(1.0, DELTA)
    colours = (GREY, AMBER, ORANGE, PINK, BLUE)
    for at, colour in zip((0.5, 1.5, 2.5, 3.5, truth + 0.5), colours, strict=True):
        bounds = [epsilon_clopper_pearson(expected_counts(n, at), DELTA, 0.05) for n in sizes]
        limit = epsilon_at_rates(stats.norm.cdf(at - 1), stats.norm.sf(at), DELTA)
        axes.plot(sizes, bounds, color=colour, label=f"eps_cp at {at:.3g}")
        print(f"Fig. 14, threshold {at:.5g}: {bounds[-1]:.3f}, in the limit {limit:.3f}")
    mus = [mu_clopper_pearson(expected_counts(n, 0.5), 0.05) for n in sizes]
    axes.plot(
        sizes, gaussian_epsilon(np.array(mus), DELTA), "--", color=GREEN, label="fdp_cp at .5"
    )
    axes.axhline(truth, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(0, 6.6)
    axes.set_title("Fig. 14: mu = 1, by the threshold")
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
    theory = blank_figure((12.0, 4.0))
    curves = theory.subplots(1, 3)
    for axes in curves:
        plain_axes(axes)
    draw_figure_5(curves[0], rng, 5000)
    draw_figure_13(curves[1])
    draw_figure_14(curves[2], np.geomspace(1e2, 1e10, 9 if options.quick else 97))
    for axes in (*panels.ravel(), *curves):
        axes.legend(fontsize=8, frameon=False)
        axes.title.set_fontsize(10)
    curves[2].legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    save(figure, options.out, "tight_auditing")
    save(theory, options.out, "tight_auditing_subsampled")


if __name__ == "__main__":
    main()
