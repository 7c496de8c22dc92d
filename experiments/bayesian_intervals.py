"""Intervals of epsilon from the same attacks: Clopper-Pearson, Jeffreys, Bayesian (Table 2).

python experiments/bayesian_intervals.py [--full]

Zanella-Béguelin et al., "Bayesian estimation of differential privacy", arXiv:2206.05199.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from common import arguments, each, print_table, save
from digit_games import DELTA, Flags, Floats, Game, Size, accounted_epsilon, play, trainings
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_audit.report.figure import BLUE, INK, ORANGE, PINK, blank_figure, plain_axes
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys_interval,
)
from lightning_audit.stats.posteriors import Posterior

SIGNIFICANCE = 0.1
METHODS = {
    "Clopper-Pearson": epsilon_clopper_pearson_interval,
    "Jeffreys": epsilon_jeffreys_interval,
    "Bayesian": lambda counts, delta, level: Posterior.of_epsilon(counts, delta).interval(level),
}
COLOURS = dict(zip(METHODS, (ORANGE, PINK, BLUE), strict=True))
Interval = tuple[float, float]


@dataclass(frozen=True)
class Simulation:
    """Number of simulated games with known epsilon, and challenges in each."""

    games: int
    challenges: int
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)


SMALL = Size(records=600, shadows=64, models=256, points=32), Simulation(500, 256)
FULL = Size(records=600, shadows=256, models=1024, points=32), Simulation(2000, 1024)


def counts_at(scores: Floats, members: Flags, threshold: Floats | float) -> ConfusionCounts:
    """Return the outcomes of guessing "member" above a threshold."""
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    fn = np.searchsorted(inside, threshold, side="right")
    tn = np.searchsorted(outside, threshold, side="right")
    return ConfusionCounts(fn=fn, tp=inside.size - fn, fp=outside.size - tn, tn=tn)


def at_common_counts(game: Game) -> tuple[ConfusionCounts, dict[str, Interval]]:
    """Return all intervals of the same counts, at the threshold 0, which no score selects."""
    counts = counts_at(game.log_ratios, game.members, 0.0)
    return counts, {
        name: tuple(float(end) for end in interval(counts, DELTA, SIGNIFICANCE))
        for name, interval in METHODS.items()
    }


def at_own_thresholds(scores: Floats, members: Flags) -> dict[str, Interval]:
    """Return each interval at the threshold with its largest lower end, as the paper does."""
    counts = counts_at(scores, members, np.unique(scores))
    found = {}
    for name, interval in METHODS.items():
        if name == "Bayesian":
            _, best = Posterior.of_epsilon(counts, DELTA).maximum(SIGNIFICANCE / 2)
        else:
            best = int(np.argmax(interval(counts, DELTA, SIGNIFICANCE)[0]))
        chosen = ConfusionCounts(*(v[best] for v in (counts.fn, counts.tp, counts.fp, counts.tn)))
        found[name] = tuple(float(end) for end in interval(chosen, DELTA, SIGNIFICANCE))
    return found


def coverage(epsilon: float, fpr: float, sizes: Simulation, seed: int) -> dict[str, float]:
    """Return the share of games in which each interval contains epsilon, at one fixed threshold.

    The game's error rates are on the edge of what (epsilon, delta)-DP allows, so that its epsilon
    is exactly this one.
    """
    rng = np.random.default_rng(seed)
    side = sizes.challenges // 2
    rates = [[1.0 - DELTA - math.exp(epsilon) * fpr], [fpr]]
    pairs, games = np.unique(
        rng.binomial(side, rates, (2, sizes.games)), axis=1, return_counts=True
    )
    counts = ConfusionCounts(fn=pairs[0], tp=side - pairs[0], fp=pairs[1], tn=side - pairs[1])
    shares = {}
    for name, interval in METHODS.items():
        low, high = interval(counts, DELTA, SIGNIFICANCE)
        shares[name] = float(games[(low <= epsilon) & (epsilon <= high)].sum() / sizes.games)
    return shares


def equal_rates(epsilon: float) -> float:
    """Return the false positive rate at which both error rates are equal."""
    return (1.0 - DELTA) / (1.0 + math.exp(epsilon))


def failures(epsilon: float, sizes: Simulation, seed: int) -> dict[str, float]:
    """Return the share of games in which the lower end is above epsilon, at each own threshold.

    The scores are those of the Laplace mechanism, at 0 and at epsilon with scale 1: every threshold
    outside of the two has the same epsilon.
    """
    rng = np.random.default_rng(seed)
    failed = dict.fromkeys(METHODS, 0)
    games = max(1, sizes.games // 10)
    for _ in range(games):
        members = rng.random(sizes.challenges) < 0.5
        found = at_own_thresholds(rng.laplace(epsilon * members), members)
        for name, (low, _) in found.items():
            failed[name] += low > epsilon
    return {name: count / games for name, count in failed.items()}


def width(interval: Interval) -> float:
    return interval[1] - interval[0]


def narrower(intervals: dict[str, Interval], name: str) -> str:
    """Return by how many percent an interval is narrower than that of Clopper-Pearson."""
    whole = width(intervals["Clopper-Pearson"])
    return "-" if math.isinf(whole) else f"{100 * (width(intervals[name]) / whole - 1):+.0f} %"


def rows_of(label: str, intervals: dict[str, Interval]) -> list[tuple[object, ...]]:
    return [
        (label if i == 0 else "", name, found, width(found), narrower(intervals, name))
        for i, (name, found) in enumerate(intervals.items())
    ]


@dataclass(frozen=True)
class Result:
    """The games' intervals, common and own, and what simulations show at known epsilon."""

    games: dict[str, Game]
    common: dict[str, tuple[ConfusionCounts, dict[str, Interval]]]
    own: dict[str, dict[str, Interval]]
    coverage: dict[tuple[float, str], dict[str, float]]
    failures: dict[float, dict[str, float]]


def run(size: Size, sizes: Simulation, seed: int) -> Result:
    games = {name: play(train, size, seed) for name, train in trainings(size.records).items()}
    rates = [
        (e, *fpr) for e in sizes.epsilons for fpr in (("equal", equal_rates(e)), ("FPR .01", 0.01))
    ]
    return Result(
        games,
        {name: at_common_counts(game) for name, game in games.items()},
        {name: at_own_thresholds(game.log_ratios, game.members) for name, game in games.items()},
        {(e, name): coverage(e, fpr, sizes, seed) for e, name, fpr in each(rates)},
        {e: failures(e, sizes, seed) for e in sizes.epsilons[1:3]},
    )


def show(result: Result) -> None:
    print(f"epsilon of DP-SGD by its accountant: {accounted_epsilon():.2f} at delta {DELTA:g}\n")
    print("90 % intervals at threshold 0 of the log likelihood ratio")
    columns = ("training", "method", "interval", "width", "vs. CP")
    print_table(
        columns, [r for name, (_, found) in result.common.items() for r in rows_of(name, found)]
    )
    print()
    print_table(
        ("training", "accuracy", "FN", "TP", "FP", "TN"),
        [
            (name, game.accuracy, *(int(v) for v in (c.fn, c.tp, c.fp, c.tn)))
            for (name, game), (c, _) in zip(
                result.games.items(), result.common.values(), strict=True
            )
        ],
    )
    print("\n90 % intervals, each at its own best threshold of the same scores (Table 2)")
    print_table(columns, [r for name, found in result.own.items() for r in rows_of(name, found)])
    print("\nshare of simulated games whose 90 % interval contains the true epsilon")
    print_table(
        ("true epsilon", "error rates", *METHODS),
        [(f"{e:g}", name, *found.values()) for (e, name), found in result.coverage.items()],
    )
    print("\nshare whose lower end is above the true epsilon, each at its own best threshold")
    print_table(
        ("true epsilon", *METHODS),
        [(f"{e:g}", *found.values()) for e, found in result.failures.items()],
    )


def draw(result: Result) -> Figure:
    figure = blank_figure((11.4, 3.8))
    common, own, covered = figure.subplots(1, 3)
    for axes in (common, own, covered):
        plain_axes(axes)
    draw_intervals(common, {name: found for name, (_, found) in result.common.items()})
    common.set_title("threshold 0: 90 % intervals")
    draw_intervals(own, result.own)
    own.set_title("own best threshold, as Table 2")
    for name, colour in COLOURS.items():
        for rates, style in (("equal", "-"), ("FPR .01", "--")):
            shares = [(e, found[name]) for (e, of), found in result.coverage.items() if of == rates]
            covered.plot(*np.transpose(shares), style, color=colour, marker="o", markersize=4)
        covered.plot([], [], color=colour, label=name)
    covered.plot([], [], "--", color=INK, label="FPR .01 instead of equal rates")
    covered.axhline(1.0 - SIGNIFICANCE, color=INK, linewidth=1)
    covered.set_ylim(0.6, 1.01)
    covered.set_xlabel("true epsilon")
    covered.set_title("coverage of the 90 % intervals")
    covered.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def draw_intervals(axes: Axes, of: dict[str, dict[str, Interval]]) -> None:
    most = max(high for found in of.values() for _, high in found.values() if high < math.inf)
    for row, found in enumerate(of.values()):
        for k, (name, (low, high)) in enumerate(found.items()):
            at = row + 0.22 * (k - 1)
            axes.hlines(at, low, min(high, 1.2 * most), color=COLOURS[name], linewidth=4)
            if high == math.inf:
                axes.plot(1.2 * most, at, ">", color=COLOURS[name])
    axes.set_yticks(range(len(of)), list(of))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"epsilon at delta {DELTA:g}")


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    result = run(*(FULL if options.full else SMALL), options.seed)
    show(result)
    save(draw(result), options.out, "bayesian_intervals")


if __name__ == "__main__":
    main()
