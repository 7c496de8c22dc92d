"""Figures of docs/estimators/mcmc-dp-est.md: the paper's Figures 2 and 3 and its Table 1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from chains import sample_attack_strength, trace_figure
from support import arguments, save

from lightning_audit.report.figure import BLUE, GREY, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.stats.attack_strength import (
    attack_counts,
    attack_strength_posterior,
    epsilon_posterior_at_strength,
)
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior

COUNTS = Path(__file__).parents[2] / "tests" / "data" / "mia_error_counts.json"
STRONG = attack_counts(
    [250, 200, 150, 100, 120, 100, 100, 80, 70, 60],
    1000,
    [40, 50, 60, 100, 100, 110, 120, 200, 200, 200],
    1000,
)


def weak_attacks(n):
    """Draw counts of the paper's first scenario: rates from Beta(10, 10)."""
    rng = np.random.default_rng(0)
    rates = rng.beta(10, 10, (2, 10))[:, :n]
    return attack_counts(rng.binomial(1000, rates[0]), 1000, rng.binomial(1000, rates[1]), 1000)


def draw_intervals(axes, at, intervals, label):
    low, high = np.transpose(intervals)
    axes.vlines(at, low, high, color=BLUE, linewidth=2)
    axes.plot(at, low, "_", at, high, "_", color=BLUE, markersize=10)
    axes.set_xlabel(label)


def draw_figure_2(left, right, quick):
    strengths = (0, 0.5, 0.99) if quick else (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
    counts = attack_counts(200, 500, 200, 500)
    found = [epsilon_posterior_at_strength(counts, 0.01, s).interval(0.1) for s in strengths]
    draw_intervals(left, strengths, found, "known strength s")
    left.set_title("Fig. 2 left: 90 % interval of epsilon\n(200, 200) errors of (500, 500)")
    sizes = (100, 1000) if quick else (100, 200, 500, 1000)
    found = [
        epsilon_posterior_at_strength(
            attack_counts(2 * n // 5, n, 2 * n // 5, n), 0.01, 0.99
        ).interval(0.1)
        for n in sizes
    ]
    draw_intervals(right, sizes, found, "challenges a side N, at s = 0.99")
    right.set_title("Fig. 2 right: errors 0.4 N")


def draw_posterior(axes, posterior, title, samples=None):
    low, high = posterior.epsilon.interval(0.1)
    epsilon = np.linspace(max(low - (high - low), 0.01), high + (high - low), 200)
    strength = np.linspace(0.005, 0.995, 150)
    density = joint_at(posterior, epsilon, strength)
    levels = density.max() * np.array([0.01, 0.05, 0.2, 0.4, 0.6, 0.8])
    if samples is not None:
        axes.plot(*samples[::20].T, ".", color=ORANGE, markersize=2)
    axes.contour(epsilon, strength, density.T, levels=levels, colors=BLUE, linewidths=1)
    axes.set_xlim(epsilon[0], epsilon[-1])
    axes.set_title(title)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("strength s")
    s = posterior.strength
    print(
        title.split("\n")[0],
        np.round([posterior.epsilon.mean, low, high, s.mean, *s.interval(0.1)], 4),
    )


def joint_at(posterior, epsilon, strength):
    """Return the density of (epsilon, s) from that of (epsilon, s epsilon) on the grid."""
    from scipy.interpolate import RegularGridInterpolator

    grid = (posterior.levels, posterior.levels)
    at = np.stack(np.broadcast_arrays(epsilon[:, None], np.outer(epsilon, strength)), axis=-1)
    inner = RegularGridInterpolator(grid, posterior.density, bounds_error=False, fill_value=0.0)
    return epsilon[:, None] * inner(at)


def short_name(name):
    """Return the number of an attacked algorithm, and the noise of its output."""
    return f"{name[:2]}, {name.rpartition('_')[2]}" if "sigma" in name else name[:2]


def draw_table_1(axes, quick):
    """Draw the printed intervals, and those of binomial and of correlated counts."""
    sets = json.loads(COUNTS.read_text(encoding="utf-8"))["sets"]
    if quick:
        sets = dict(list(sets.items())[:1])
    for row, (name, found) in enumerate(sets.items()):
        counts = attack_counts(found["false_negatives"], 100, found["false_positives"], 100)
        intervals = {
            "printed": found["printed_epsilon_90"],
            "independent": attack_strength_posterior(counts, 1e-3).epsilon.interval(0.1),
        }
        if not quick:
            for way, label in (("density", "correlated"), ("interval", "correlated, rounded")):
                posterior = correlated_attack_posterior(counts, 1e-3, 100, extreme_counts=way)
                intervals[label] = posterior.joint.epsilon.interval(0.1)
                print(name, label, np.round([*posterior.tau, *posterior.rho], 4))
        print(name, {k: np.round(v, 3).tolist() for k, v in intervals.items()})
        drawn = [label for label in intervals if label != "correlated, rounded"]
        for k, (label, colour) in enumerate(zip(drawn, (INK, GREY, BLUE), strict=False)):
            axes.hlines(row + 0.2 * k, *intervals[label], color=colour, linewidth=3)
            written = f"{short_name(name)} {label}"
            end = intervals[label][1] + 0.2
            axes.text(end, row + 0.2 * k, written, va="center", fontsize=7)
    axes.set_xlim(0, 17)
    axes.set_ylim(-0.3, len(sets) - 0.3)
    axes.set_yticks([])
    axes.set_xlabel("epsilon")
    axes.set_title("Table 1: 90 % intervals, delta 0.001")


def main():
    options = arguments(__doc__)
    quick = options.quick
    figure = blank_figure((12.0, 7.0))
    panels = figure.subplots(2, 3)
    for axes in panels.ravel():
        plain_axes(axes)
    draw_figure_2(panels[0, 0], panels[0, 1], quick)
    panels[0, 0].set_ylabel("epsilon, delta 0.01")
    draw_table_1(panels[0, 2], quick)
    length = 200 if quick else 20_000
    chains = [
        sample_attack_strength(STRONG, 0.01, length, np.random.default_rng(i), start=start)
        for i, start in enumerate([(5.0, 0.1), (2.8, 0.9)])
    ]
    kept = np.concatenate([chain[length // 10 :] for chain in chains])
    weak = attack_strength_posterior(weak_attacks(2 if quick else 10), 0.01)
    draw_posterior(panels[1, 0], weak, "Fig. 3 top: weak attacks\n(rates Beta(10, 10))")
    posterior = attack_strength_posterior(STRONG, 0.01)
    draw_posterior(panels[1, 1], posterior, "Fig. 3 bottom: strong attacks\n(dots: Alg. 1)", kept)
    axes = panels[1, 2]
    axes.hist(
        kept[:, 0], bins=60, range=(2.4, 5.4), density=True, color=ORANGE, alpha=0.6, label="Alg. 1"
    )
    axes.plot(posterior.epsilon.points, posterior.epsilon.density, color=BLUE, label="quadrature")
    axes.set_xlim(2.4, 4.5)
    axes.set_xlabel("epsilon")
    axes.set_title("strong attacks: both methods")
    axes.legend(frameon=False)
    for axes in panels.ravel():
        axes.title.set_fontsize(10)
    save(figure, options.out, "mcmc_dp_est")
    save(trace_figure(chains, ["epsilon", "s"]), options.out, "mcmc_dp_est_traces")


if __name__ == "__main__":
    main()
