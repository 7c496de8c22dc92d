"""Interval of epsilon over the number of challenges, and the posterior (Figures 1, 4).

python experiments/challenges_needed.py [--full]

Zanella-Béguelin et al., "Bayesian estimation of differential privacy", arXiv:2206.05199.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bayesian_intervals import (
    COLOURS,
    METHODS,
    SIGNIFICANCE,
    Interval,
    at_common_counts,
    counts_at,
)
from common import arguments, each, print_table, save
from digit_games import DELTA, Floats, Game, Size, accounted_epsilon, play, trainings
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_audit.report.figure import BLUE, blank_figure, plain_axes
from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.posteriors import Posterior

PLAYED = ("plain SGD", "DP-SGD")
#: The paper counts the challenges until the interval is 2 x .15 wide.
WIDTH = 0.3
SMALL = Size(records=600, shadows=64, models=512, points=32)
FULL = Size(records=600, shadows=256, models=4096, points=32)


@dataclass(frozen=True)
class Course:
    """Intervals of the first n challenges of a game, and challenges until they are narrow."""

    game: Game
    challenges: list[int]
    intervals: dict[str, list[Interval]]
    needed: dict[str, float]

    @property
    def counts(self) -> ConfusionCounts:
        return at_common_counts(self.game)[0]


def course(game: Game) -> Course:
    ratios, members = game.log_ratios, game.members
    sizes = np.unique(np.geomspace(32, len(members), 12).astype(int)).tolist()
    intervals = {
        name: [
            tuple(
                float(end)
                for end in interval(counts_at(ratios[:n], members[:n], 0.0), DELTA, SIGNIFICANCE)
            )
            for n in sizes
        ]
        for name, interval in METHODS.items()
    }
    counts = counts_at(ratios, members, 0.0)
    rates = (float(counts.fn / (counts.fn + counts.tp)), float(counts.fp / (counts.fp + counts.tn)))
    return Course(game, sizes, intervals, {name: needed(name, rates) for name in METHODS})


def needed(name: str, rates: tuple[float, float]) -> float:
    """Return the challenges, half in each world, until the interval at these rates is narrow.

    It is infinite for an attack that makes no error, whose epsilon has no upper limit.
    """
    side = np.unique(np.geomspace(25, 50_000, 400).astype(int))
    fn, fp = (np.round(rate * side).astype(int) for rate in rates)
    counts = ConfusionCounts(fn=fn, tp=side - fn, fp=fp, tn=side - fp)
    low, high = METHODS[name](counts, DELTA, SIGNIFICANCE)
    wide: Floats = np.asarray(high) - np.asarray(low) > WIDTH
    return math.inf if wide[-1] else int(2 * side[np.flatnonzero(wide)[-1] + 1])


def run(size: Size, seed: int) -> dict[str, Course]:
    made = trainings(size.records)
    return {name: course(play(made[name], size, seed)) for name in each(PLAYED)}


def show(result: dict[str, Course]) -> None:
    for name, found in result.items():
        print(f"{name}: 90 % intervals of the first challenges, threshold 0")
        print_table(
            ("challenges", *METHODS),
            [
                (n, *(found.intervals[method][i] for method in METHODS))
                for i, n in enumerate(found.challenges)
            ],
        )
        print()
    print(f"challenges until the interval is {WIDTH:g} wide, at the error rates of all challenges")
    print_table(
        ("training", *METHODS, "Bayesian / CP"),
        [
            (
                name,
                *found.needed.values(),
                found.needed["Bayesian"] / found.needed["Clopper-Pearson"],
            )
            for name, found in result.items()
        ],
    )
    print(f"\naccountant's epsilon of DP-SGD: {accounted_epsilon():.2f} at delta {DELTA:g}")


def draw(result: dict[str, Course]) -> Figure:
    figure = blank_figure((11.4, 3.8))
    panels = figure.subplots(1, 3)
    for axes in panels:
        plain_axes(axes)
    for axes, (name, found) in zip(panels, result.items(), strict=False):
        draw_course(axes, found)
        axes.set_title(f"{name}: 90 % intervals")
    posterior = panels[2]
    found = result["DP-SGD"]
    at = np.linspace(0.001, 1.0, 400)
    posterior.plot(at, Posterior.of_epsilon(found.counts, DELTA).pdf(at), color=BLUE)
    for row, (name, intervals) in enumerate(found.intervals.items()):
        posterior.hlines(-0.3 * (row + 1), *intervals[-1], color=COLOURS[name], linewidth=4)
    posterior.set_title(
        f"DP-SGD: posterior; the accountant's\nepsilon is {accounted_epsilon():.2f}"
    )
    posterior.set_xlabel(f"epsilon at delta {DELTA:g}")
    posterior.title.set_fontsize(10)
    return figure


def draw_course(axes: Axes, found: Course) -> None:
    for name, intervals in found.intervals.items():
        low, high = np.transpose(intervals)
        axes.plot(found.challenges, low, color=COLOURS[name], label=name)
        axes.plot(found.challenges, high, color=COLOURS[name])
    axes.set_xscale("log", base=2)
    axes.set_xlabel("challenges, one model each")
    axes.set_ylabel(f"epsilon at delta {DELTA:g}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    result = run(FULL if options.full else SMALL, options.seed)
    show(result)
    save(draw(result), options.out, "challenges_needed")


if __name__ == "__main__":
    main()
