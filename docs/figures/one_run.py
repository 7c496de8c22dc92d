"""Figure of docs/estimators/one-run.md: the bounds of one run against each other."""

from __future__ import annotations

import numpy as np
from support import arguments, save

from lightning_audit.report.drawing import BLUE, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.scores import CanaryScores
from lightning_audit.stats.gdp import gaussian_epsilon
from lightning_audit.stats.one_run import epsilon_one_run
from lightning_audit.stats.one_run_fdp import epsilon_one_run_fdp, mu_one_run

DELTA = 1e-5


def as_epsilon(mu):
    return float(gaussian_epsilon(mu, DELTA))


#: Name, colour, line and the bound on epsilon of scores.
BOUNDS = {
    "readings of a sum": (BLUE, "-", lambda s: as_epsilon(s.mu_white_box())),
    "f-DP, Gaussian": (BLUE, "--", lambda s: as_epsilon(s.mu_one_run().value)),
    "f-DP, any mechanism": (ORANGE, "-", lambda s: s.epsilon_one_run_fdp(DELTA).value),
    "Steinke": (ORANGE, "--", lambda s: s.epsilon_one_run(DELTA).value),
}


def draw_canaries(axes, rng, mu, sizes, runs):
    """Medians over runs of a sum with independent Gaussian noise."""
    medians = {name: [] for name in BOUNDS}
    for m in sizes:
        draws = []
        for _ in range(runs):
            coins = rng.random(m) < 0.5
            readings = mu * coins + rng.standard_normal(m)
            draws.append(CanaryScores(readings[coins], readings[~coins]))
        for name, (_, _, bound) in BOUNDS.items():
            medians[name].append(np.median([bound(scores) for scores in draws]))
    for name, values in medians.items():
        colour, line, _ = BOUNDS[name]
        axes.plot(sizes, values, line, color=colour, marker="o", label=name)
        print(f"mu {mu:g}, {name}:", np.round(values, 3))
    axes.axhline(as_epsilon(mu), color=INK, linewidth=1, label="truth")
    axes.set_xscale("log")
    axes.set_xlabel("canaries")
    axes.set_title(f"Gaussian sum, mu = {mu:g}", fontsize=10)


def draw_many(axes, sizes):
    """990 correct guesses of 1000, of ever more canaries."""
    rows = {
        "f-DP, Gaussian": [as_epsilon(mu_one_run(990, 1000, m, 0.05)) for m in sizes],
        "f-DP, any mechanism": [epsilon_one_run_fdp(990, 1000, m, DELTA, 0.05) for m in sizes],
        "Steinke": [epsilon_one_run(990, 1000, m, DELTA, 0.05) for m in sizes],
    }
    for name, values in rows.items():
        colour, line, _ = BOUNDS[name]
        axes.plot(sizes, values, line, color=colour, marker="o", label=name)
        print(f"990 of 1000, {name}:", np.round(values, 3))
    axes.set_xscale("log")
    axes.set_xlabel("canaries")
    axes.set_title("990 of 1000 guesses correct", fontsize=10)


def main():
    options = arguments(__doc__)
    rng = np.random.default_rng(0)
    figure = blank_figure((12.0, 4.2))
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        plain_axes(axes)
    sizes, runs = ([100, 1000], 3) if options.quick else ([100, 300, 1000, 3000, 10_000], 50)
    draw_canaries(left, rng, 1.0, sizes, runs)
    draw_canaries(middle, rng, 3.0, sizes, runs)
    draw_many(right, [1000, 100_000] if options.quick else [1000, 10_000, 100_000, 1_000_000])
    left.set_ylabel("lower bound on epsilon, delta 1e-5")
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
    save(figure, options.out, "one_run")


if __name__ == "__main__":
    main()
