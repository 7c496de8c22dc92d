"""Figure of docs/estimators/scores.md: bounds from scores, and the cost of a threshold."""

from __future__ import annotations

import numpy as np
from support import arguments, save

from lightning_audit.record.scores import CanaryScores
from lightning_audit.report.figure import BLUE, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.stats.thresholds import Fixed, Maximum, MultiSplit, Simultaneous, Split
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_epsilon, gaussian_mu

DELTA, EPSILON = 1e-5, 4.0
MU = float(gaussian_mu(EPSILON, DELTA))


def simulated(rng, n):
    return CanaryScores(MU + rng.standard_normal(n), rng.standard_normal(n))


def draw_roc(axes, rng, n):
    scores = simulated(rng, n)
    curve, bound = scores.roc(), scores.tradeoff_upper()
    alpha = np.linspace(0, 1, 400)
    axes.plot(curve.fpr, curve.tpr, color=BLUE, label=f"observed, {n} a side")
    axes.plot(alpha, 1 - bound(alpha), color=ORANGE, label="lower bound, 95 %")
    axes.plot(alpha, 1 - GaussianTradeoff(MU)(alpha), "--", color=INK, label="truth")
    axes.set_title(f"ROC, AUROC {scores.auroc():.3f}", fontsize=10)
    axes.set_xlabel("FPR")
    axes.set_ylabel("TPR")


def draw_curve(axes, rng, sizes):
    deltas = np.logspace(-7, -0.5, 60)
    for n, colour in zip(sizes, (ORANGE, BLUE), strict=True):
        values = simulated(rng, n).privacy_curve(deltas)
        axes.plot(deltas, values, color=colour, label=f"lower bound, {n} a side")
    axes.plot(deltas, gaussian_epsilon(MU, deltas), "--", color=INK, label="truth")
    axes.set_xscale("log")
    axes.set_title("Privacy curve, at all deltas together", fontsize=10)
    axes.set_xlabel("delta")
    axes.set_ylabel("epsilon")


def draw_choices(axes, rng, sizes, runs):
    """Draw section C's comparison: medians of fdp_cp over the truth, and its failure rate."""
    choices = {
        "fixed": Fixed(MU / 2),
        "maximum (not valid)": Maximum(),
        "berk_jones": Simultaneous(),
        "dkw": Simultaneous("dkw"),
        "split": Split(),
        "multi_split": MultiSplit(),
    }
    styles = [(INK, "-"), (INK, ":"), (BLUE, "-"), (BLUE, "--"), (ORANGE, "-"), (ORANGE, "--")]
    found = {name: [] for name in choices}
    for n in sizes:
        draws = [simulated(rng, n) for _ in range(runs)]
        for name, choice in choices.items():
            bounds = [s.bound("fdp_cp", DELTA, threshold=choice).epsilon_lower for s in draws]
            missed = np.mean(np.array(bounds) > EPSILON)
            print(f"n {n}, {name}: median {np.median(bounds) / EPSILON:.2f}, missed {missed:.3f}")
            found[name].append(np.median(bounds) / EPSILON)
    for (name, values), (colour, line) in zip(found.items(), styles, strict=True):
        axes.plot(sizes, values, line, color=colour, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_title("fdp_cp by choice of threshold", fontsize=10)
    axes.set_xlabel("scores a side")
    axes.set_ylabel("median bound / truth")


def main():
    options = arguments(__doc__)
    rng = np.random.default_rng(0)
    figure = blank_figure((12.0, 4.2))
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        plain_axes(axes)
    draw_roc(left, rng, 1000)
    draw_curve(middle, rng, (500, 2000) if options.quick else (1000, 100_000))
    sizes, runs = ([100, 200], 3) if options.quick else ([200, 500, 1000, 2000, 5000], 100)
    draw_choices(right, rng, sizes, runs)
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
    save(figure, options.out, "scores")


if __name__ == "__main__":
    main()
