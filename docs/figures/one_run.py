"""Figures of docs/estimators/one-run.md: comparison of the bounds of one run."""

from __future__ import annotations

import numpy as np
from support import arguments, save

from lightning_audit.record.scores import CanaryScores
from lightning_audit.report.figure import BLUE, INK, ORANGE, PINK, blank_figure, plain_axes
from lightning_audit.stats.one_run import epsilon_one_run, epsilon_one_run_fdp, mu_one_run
from lightning_audit.stats.tradeoff import gaussian_epsilon, gaussian_mu

DELTA = 1e-5


def as_epsilon(mu):
    return float(gaussian_epsilon(mu, DELTA))


#: Name, colour, line and the bound on epsilon of scores.
BOUNDS = {
    "readings of a sum": (BLUE, "-", lambda s: as_epsilon(s.mu_white_box())),
    "pair of Gaussians": (INK, ":", lambda s: s.epsilon_gaussian_pair(DELTA)),
    "f-DP, Gaussian": (BLUE, "--", lambda s: as_epsilon(s.one_run().mu().value)),
    "f-DP, any mechanism": (ORANGE, "-", lambda s: s.one_run().epsilon_fdp(DELTA).value),
    "Steinke": (PINK, "--", lambda s: s.one_run().epsilon(DELTA).value),
}


def gaussian_sum(rng, mu, m):
    """Return the coins of m canaries, and their readings."""
    coins = rng.random(m) < 0.5
    return coins, mu * coins + rng.standard_normal(m)


def scores_of(coins, readings):
    return CanaryScores(readings[coins], readings[~coins])


def draw_canaries(axes, rng, mu, sizes, runs):
    """Draw medians over runs of a sum with independent Gaussian noise."""
    medians = {name: [] for name in BOUNDS}
    for m in sizes:
        draws = [scores_of(*gaussian_sum(rng, mu, m)) for _ in range(runs)]
        for name, (_, _, bound) in BOUNDS.items():
            medians[name].append(np.median([bound(scores) for scores in draws]))
    for name, values in medians.items():
        colour, line, _ = BOUNDS[name]
        axes.plot(sizes, values, line, color=colour, marker="o", label=name)
        print(f"mu {mu:g}, {name}:", np.round(values, 3))
    axes.axhline(as_epsilon(mu), color=INK, linewidth=1, label="truth")
    axes.set_ylim(0, 1.5 * as_epsilon(mu))
    axes.set_xscale("log")
    axes.set_xlabel("canaries")
    axes.set_title(f"Gaussian sum, mu = {mu:g}", fontsize=10)


def draw_many(axes, sizes):
    """Draw bounds from 990 correct of 1000 guesses, over the number of canaries."""
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


#: The bounds from v correct of r guesses, with m canaries.
BY_GUESSES = {
    "f-DP, Gaussian": lambda v, r, m: as_epsilon(mu_one_run(v, r, m, 0.05)),
    "f-DP, any mechanism": lambda v, r, m: epsilon_one_run_fdp(v, r, m, DELTA, 0.05),
    "Steinke": lambda v, r, m: epsilon_one_run(v, r, m, DELTA, 0.05),
}


def draw_response(axes, sizes):
    """Draw randomized response for every coin, all guessed, with the median number correct."""
    for epsilon, marker in ((1.0, "o"), (2.0, "s"), (4.0, "^")):
        for name in ("f-DP, any mechanism", "Steinke"):
            colour, line, _ = BOUNDS[name]
            counts = [round(m * np.exp(epsilon) / (1 + np.exp(epsilon))) for m in sizes]
            values = [BY_GUESSES[name](v, m, m) for v, m in zip(counts, sizes, strict=True)]
            label = name if epsilon == 1 else None
            axes.plot(sizes, values, line, color=colour, marker=marker, markersize=4, label=label)
            print(f"randomized response, epsilon {epsilon:g}, {name}:", np.round(values, 3))
        axes.axhline(epsilon, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("canaries, all guessed")
    axes.set_title("Randomized response\nepsilon 1, 2, 4 (lines)", fontsize=10)


def draw_guesses(axes, rng, m, numbers, runs):
    """Draw median bounds over the number of guesses, each fixed in advance."""
    draws = [gaussian_sum(rng, gaussian_mu(4.0, DELTA), m) for _ in range(runs)]
    for ends, fill in (("largest", "none"), ("both ends", "full")):
        correct = np.median([correct_guesses(*draw, numbers, ends) for draw in draws], axis=0)
        for name, bound in BY_GUESSES.items():
            colour, line, _ = BOUNDS[name]
            values = [bound(int(v), r, m) for v, r in zip(correct, numbers, strict=True)]
            style = {"color": colour, "marker": "o", "fillstyle": fill, "markersize": 5}
            axes.plot(numbers, values, line, **style, label=name if fill == "full" else None)
            print(f"{m} canaries, {ends}, {name}:", numbers, np.round(values, 2))
    axes.axhline(4, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel(f"guesses of {m:,} canaries, fixed beforehand")
    title = "Gaussian sum, epsilon 4\nhollow: the largest in; full: both ends"
    axes.set_title(title, fontsize=10)


def correct_guesses(coins, readings, numbers, ends):
    """Count the correct of r guesses, for each r: largest in; for "both ends" also smallest out."""
    coins = coins[np.argsort(-readings)]
    inside, outside = np.cumsum(coins), np.cumsum(~coins[::-1])
    r = np.array(numbers)
    return inside[r - 1] if ends == "largest" else inside[r // 2 - 1] + outside[r // 2 - 1]


def draw_truths(axes, rng, epsilons, sizes, runs):
    """Draw median bounds over the true epsilon: best of three numbers of guesses, with shares."""
    for m, marker in zip(sizes, ("o", "s"), strict=True):
        medians = {name: [] for name in BY_GUESSES}
        for epsilon in epsilons:
            mu = gaussian_mu(epsilon, DELTA)
            draws = [scores_of(*gaussian_sum(rng, mu, m)) for _ in range(runs)]
            for name, values in medians.items():
                values.append([BOUNDS[name][2](scores) for scores in draws])
        for name, values in medians.items():
            colour, line, _ = BOUNDS[name]
            above = np.mean(np.array(values) > np.array(epsilons)[:, None])
            middle = np.median(values, axis=1)
            label = name if m == sizes[0] else None
            axes.plot(
                epsilons, middle, line, color=colour, marker=marker, markersize=4, label=label
            )
            print(f"{m} canaries, {name}:", np.round(middle, 2), "above the truth", above.round(3))
    axes.plot(epsilons, epsilons, color=INK, linewidth=1, label="truth")
    axes.set_xlabel("true epsilon")
    names = " (dots), ".join(f"{m:,}" for m in sizes)
    axes.set_title(f"Gaussian sum, by its epsilon\n{names} (squares) canaries", fontsize=10)


def draw_known(options, rng):
    """Draw bounds at epsilons that are known exactly."""
    quick = options.quick
    figure = blank_figure((12.0, 4.4))
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        plain_axes(axes)
    draw_response(left, [10, 100] if quick else [10, 30, 100, 300, 1000, 3000, 10_000])
    numbers = [2**k for k in range(3, 13)]
    draw_guesses(middle, rng, 4096, numbers[::4] if quick else numbers, 3 if quick else 100)
    epsilons = [1.0, 4.0] if quick else [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
    draw_truths(right, rng, epsilons, [100, 200] if quick else [1000, 10_000], 2 if quick else 30)
    left.set_ylabel("lower bound on epsilon, delta 1e-5")
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    left.set_ylim(0, 5.2)
    middle.set_ylim(0, 5.2)
    save(figure, options.out, "one_run_known")


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
    draw_known(options, rng)


if __name__ == "__main__":
    main()
