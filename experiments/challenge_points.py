"""Worst records of digits, worst initial parameters: what an attack gains by either.

Zanella-Béguelin et al. 2023 (arXiv:2206.05199), Algorithm 3: challenge points are selected by
shadow models. Annamalai and De Cristofaro 2024 (arXiv:2405.14106): trainings start at parameters
that were trained on other records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from common import arguments, digits, each, print_table, save
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from lightning_audit.many import (
    Challenges,
    DPSGDMany,
    LogitMargin,
    Mislabeled,
    ThisProcess,
    challenge_points,
    challenges_of,
    shadow_models,
    worst_case_start,
)
from lightning_audit.many.worlds import worlds_of
from lightning_audit.report.figure import BLUE, INK, ORANGE, TEAL, blank_figure, plain_axes
from lightning_audit.stats.membership import auroc, tpr_at_fpr
from lightning_audit.stats.tradeoff import gaussian_mu

POINTS, DRAWS, FPR = 50, 20, 0.01
WORST, RANDOM = "50 worst by separation", "50 random, mean of 20 draws"
#: Full-batch trainings of the second table: records, steps, and what the noise multiplier spends.
RECORDS, STEPS, MU = 100, 100, float(gaussian_mu(8.0, 1e-5))


def mlp() -> nn.Module:
    """Return the model of the first table."""
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Result:
    """Attack scores of the target models in and out of each group of records.

    Args:
        groups: name of the group, and its challenges; several draws of random points.
        starts: separation of a mislabeled record for each start, in standard deviations.
    """

    groups: dict[str, list[Challenges]]
    starts: dict[str, float]

    def rates(self, group: str) -> tuple[float, float]:
        """Return AUC and true-positive rate at 1 %, each the mean over draws."""
        pairs = [sides(each) for each in self.groups[group]]
        return (
            float(np.mean([auroc(*pair) for pair in pairs])),
            float(np.mean([tpr_at_fpr(*pair, FPR) for pair in pairs])),
        )


def sides(challenges: Challenges) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of members and of others."""
    return challenges.scores[challenges.membership], challenges.scores[~challenges.membership]


def run(models: int, seed: int, records: int = 1797, steps: int = 400, starts: int = 300) -> Result:
    """Train shadow models without privacy, and trainings of both starts with epsilon 8."""
    data = tuple(column[:records] for column in digits())
    train = DPSGDMany(
        mlp,
        noise_multiplier=0.0,
        max_grad_norm=math.inf,
        sample_rate=0.1,
        expected_batch_size=0.05 * records,
        steps=steps,
        learning_rate=1.0,
    )
    shadows = shadow_models(train, data, models=models, engine=ThisProcess(), seed=seed)
    selection, attack, targets = shadows.split(3, 3, 2)
    fitted = selection.joined(attack)
    draws = np.random.default_rng(seed)
    chosen = {
        "all records": [np.arange(records)],
        RANDOM: [draws.choice(records, POINTS, replace=False) for _ in range(DRAWS)],
        "50 worst by accuracy": [challenge_points(selection, POINTS, "accuracy")],
        WORST: [challenge_points(selection, POINTS, "separation")],
    }
    groups = {
        name: [challenges_of(targets, points, fitted) for points in draws_of]
        for name, draws_of in each(chosen.items())
    }
    return Result(groups, separations(starts, seed))


def separations(trainings: int, seed: int) -> dict[str, float]:
    """Return how far the two groups of scores of a mislabeled record are apart, for each start."""
    inputs, classes = digits()
    data, others = (
        (inputs[:RECORDS], classes[:RECORDS]),
        (inputs[RECORDS : 3 * RECORDS], classes[RECORDS : 3 * RECORDS]),
    )
    new = partial(nn.Linear, 64, 10)
    worst = worst_case_start(new, others, steps=1500, learning_rate=0.5, batch_size=200, seed=seed)
    worlds = worlds_of(data, Mislabeled(), "add_remove")
    found = {}
    for name, model in (("random start", new), ("worst-case start", worst)):
        train = DPSGDMany(
            model,
            noise_multiplier=math.sqrt(STEPS) / MU,
            max_grad_norm=1.0,
            sample_rate=1.0,
            expected_batch_size=RECORDS,
            steps=STEPS,
            learning_rate=0.5,
        )
        out, inside = (
            [LogitMargin()(m, worlds.records[0]) for m in train.many([world] * trainings, seeds)]
            for world, seeds in (
                (worlds.of((0,)), range(trainings)),
                (worlds.of((1,)), range(trainings, 2 * trainings)),
            )
        )
        spread = math.sqrt(0.5 * (np.var(inside) + np.var(out)))
        found[name] = float(np.mean(inside) - np.mean(out)) / spread
    return found


def show(result: Result) -> None:
    """Print both tables."""
    print("LiRA online, one variance, on target models that selected and fitted nothing")
    print_table(
        ["", "AUC", "TPR at 1 % FPR"], [[name, *result.rates(name)] for name in result.groups]
    )
    ratio = result.rates(WORST)[1] / max(result.rates(RANDOM)[1], 1e-9)
    print(f"the worst 50 against random ones: {ratio:.3g} times the TPR (goal: at least 5)")
    print("\nmislabeled record, full batches, epsilon 8: separation in standard deviations")
    print_table(["", "separation"], [*result.starts.items(), ["largest possible", MU]])


def draw(result: Result) -> Figure:
    """Return the ROC curves."""
    figure = blank_figure((6.0, 4.2))
    axes = figure.subplots()
    plain_axes(axes)
    rates = np.geomspace(1e-3, 1.0, 60)
    for name, colour in zip(result.groups, (INK, TEAL, ORANGE, BLUE), strict=True):
        pairs = [sides(each) for each in result.groups[name]]
        curve = [np.mean([tpr_at_fpr(*pair, float(rate)) for pair in pairs]) for rate in rates]
        axes.plot(rates, curve, color=colour, label=name)
    axes.plot(rates, rates, color=INK, ls=":", lw=1)
    axes.set_xscale("log")
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.legend(fontsize=9, frameon=False, loc="upper left")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, and draw."""
    options = arguments(__doc__, argv)
    result = run(512 if options.full else 256, options.seed, starts=1000 if options.full else 300)
    show(result)
    save(draw(result), options.out, "challenge_points")


if __name__ == "__main__":
    main()
