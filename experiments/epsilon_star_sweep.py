"""Epsilon* over a sweep of trainings, with the privacy-utility front.

python experiments/epsilon_star_sweep.py [--full]

Negoescu et al., "Epsilon*: privacy metric for machine learning models", arXiv:2307.11280, Figures 1
and 2: epochs and DP-SGD. Here also weight decay, architecture and initial weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean

import numpy as np
import torch
from common import arguments, cells, digits, each, print_table, save
from digit_audits import noise_for
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from torch import Tensor, nn
from torch.nn import functional

from lightning_audit.many import DPSGDMany
from lightning_audit.report.figure import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PINK,
    TEAL,
    blank_figure,
    plain_axes,
)
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    epsilon_star,
    epsilon_star_null,
    pareto_front,
)

#: Of Epsilon*: delta, ranks with the clip of docs/estimators/epsilon-star.md, the paper's fits.
DELTA, RANKS, FITS = 1e-3, Empirical(0.01), Parametric(1e-6)
BATCH = 32
Records = tuple[Tensor, Tensor]
Start = Callable[[], nn.Module]


@dataclass(frozen=True)
class Training:
    """One kind of training, of which several models are trained.

    Args:
        group: what is varied.
        name: its value.
        start: makes a model.
        epochs: number of passes over the data.
        decay: weight decay.
        epsilon: that DP-SGD spends at delta 1e-5; None for SGD.
    """

    group: str
    name: str
    start: Start
    epochs: int = 100
    decay: float = 0.0
    epsilon: float | None = None

    def models(self, data: Records, seeds: range) -> list[nn.Module]:
        """Return a trained model a seed."""
        if self.epsilon is None:
            return [self._sgd(data, seed) for seed in seeds]
        rate, records = BATCH / len(data[0]), len(data[0])
        steps = self.epochs * records // BATCH
        train = DPSGDMany(
            self.start,
            noise_multiplier=noise_for(self.epsilon, rate, steps),
            max_grad_norm=1.0,
            sample_rate=rate,
            expected_batch_size=BATCH,
            steps=steps,
            learning_rate=0.3,
        )
        return train.many([data] * len(seeds), list(seeds))

    def _sgd(self, data: Records, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model, (inputs, classes) = self.start(), data
        sgd = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=self.decay)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(inputs)).split(BATCH):
                sgd.zero_grad()
                functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
                sgd.step()
        return model


def net(sizes: tuple[int, ...], scale: float = 1.0) -> nn.Module:
    """Return a net with ReLU between linear layers of these sizes, its weights times a scale."""
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    for layer in layers:
        layer.weight.data *= scale
    parts = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def sweep(features: int, classes: int, others: Records) -> list[Training]:
    """Return the trainings; ``others`` are records on which an initial model is trained."""

    def sized(*hidden: int, scale: float = 1.0) -> Start:
        return partial(net, (features, *hidden, classes), scale)

    usual = sized(64)
    [pretrained] = Training("", "", usual, epochs=30).models(others, range(1))
    start = partial(deepcopy, pretrained)
    return [
        *(Training("epochs", f"{n} epochs", usual, epochs=n) for n in (1, 3, 10, 30, 100)),
        *(Training("weight decay", f"decay {d:g}", usual, decay=d) for d in (1e-3, 1e-2, 3e-2)),
        Training("architecture", "linear", sized()),
        Training("architecture", "8 units", sized(8)),
        Training("architecture", "512 units", sized(512)),
        Training("architecture", "3 x 100", sized(100, 100, 100)),
        Training("initial weights", "weights x 3", sized(64, scale=3.0)),
        Training("initial weights", "pretrained", start),
        *(
            Training("DP-SGD", f"DP {e:g}", usual, epochs=30, epsilon=e)
            for e in (1.0, 3.0, 10.0, 100.0)
        ),
        Training("DP-SGD", "DP 1, pretrained", start, epochs=30, epsilon=1.0),
    ]


@dataclass(frozen=True)
class Outcome:
    """What several models of one kind of training show.

    Args:
        training: the kind.
        stars: Epsilon* of each model, by ranks.
        fits: their mean by Gaussian fits, as in the paper.
        accuracy: mean accuracy on the population.
        null: 95 % quantile of Epsilon* of the first model if sides are assigned at random.
    """

    training: Training
    stars: list[float]
    fits: float
    accuracy: float
    null: float

    @property
    def star(self) -> float:
        """Mean Epsilon* by ranks."""
        return mean(self.stars)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest Epsilon* by ranks."""
        return min(self.stars), max(self.stars)


def losses(model: nn.Module, records: Records) -> NDArray[np.float64]:
    """Return the loss of each record, ``[n]``."""
    with torch.no_grad():
        outputs = model(records[0]).double()
    return functional.cross_entropy(outputs, records[1], reduction="none").numpy()


def accuracy(model: nn.Module, records: Records) -> float:
    return float((model(records[0]).argmax(1) == records[1]).double().mean())


def outcome(training: Training, data: Records, population: Records, seeds: range) -> Outcome:
    """Train a model a seed, and compare their losses on training data and population."""
    models = training.models(data, seeds)
    sides = [(losses(model, data), losses(model, population)) for model in models]
    rng = np.random.default_rng(seeds.start)
    null = epsilon_star_null(*sides[0], DELTA, RANKS, permutations=199, rng=rng)
    return Outcome(
        training,
        [epsilon_star(*both, DELTA, RANKS).value for both in sides],
        mean(epsilon_star(*both, DELTA, FITS).value for both in sides),
        mean(accuracy(model, population) for model in models),
        null.quantile_95,
    )


def run(records: Records, trained: int, others: int, seeds: range) -> list[Outcome]:
    """Return the outcome of each kind of training on one data set.

    Args:
        records: of the data set.
        trained: number of training records.
        others: number of records on which an initial model is trained; the rest is the population.
        seeds: of the models of each kind.
    """
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(records[1])))
    inputs, classes = (
        column[order].split([trained, others, len(order) - trained - others]) for column in records
    )
    data, before, population = zip(inputs, classes, strict=True)
    kinds = sweep(inputs[0].shape[1], int(records[1].max()) + 1, before)
    return [outcome(kind, data, population, seeds) for kind in each(kinds)]


def front(found: list[Outcome]) -> set[str]:
    """Return the names of the trainings that no mixture of two others beats."""
    costs, benefits = [one.star for one in found], [one.accuracy for one in found]
    return {found[i].training.name for i in pareto_front(costs, benefits, convex=True)}


#: Of the groups.
_COLOURS = (BLUE, ORANGE, TEAL, PINK, GREY)
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Point:
    """One model in the plane, or the mean of several of one kind.

    Args:
        epsilon_star: its Epsilon*; for all models at the same delta, clip and number of losses.
        utility: its utility, such as an accuracy; larger is better.
        group: label shared with other models, such as "DP" or "no DP".
        name: text next to its marker; "" for none.
        spread: smallest and largest Epsilon* if it is a mean; None for one model.
    """

    epsilon_star: float
    utility: float
    group: str = ""
    name: str = ""
    spread: tuple[float, float] | None = None


def privacy_utility_figure(models: Sequence[Point], utility_label: str = "utility") -> Figure:
    """Draw models by Epsilon* and utility, with the Pareto front and the groups' densities.

    The line is the published front: no mixture of two models has a higher utility at a smaller
    Epsilon*. Rings mark models that no other model dominates. Epsilon* is not a bound: the front
    compares these models with one another, on these records.

    Args:
        models: at least one, of at most five groups.
        utility_label: label of the utility axis.

    Returns:
        The figure, 800 x 600 pixels, on an Agg canvas without a window.

    Raises:
        ValueError: there is no model, a number is not finite, or there are too many groups.

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        figures 1 and 2.
    """
    cost = np.array([model.epsilon_star for model in models])
    utility = np.array([model.utility for model in models])
    convex = pareto_front(cost, utility, convex=True)
    groups = list(dict.fromkeys(model.group for model in models))
    if len(groups) > len(_COLOURS):
        raise ValueError(f"models have {len(groups)} groups, must have at most {len(_COLOURS)}.")
    drawn = blank_figure((8.0, 6.0))
    grid = drawn.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    (top, corner), (main, right) = grid
    corner.set_axis_off()
    plain_axes(main)
    for group, colour, marker in zip(groups, _COLOURS, _MARKERS, strict=False):
        own = np.array([model.group == group for model in models])
        spread = np.array([m.spread or (m.epsilon_star,) * 2 for m in models if m.group == group])
        bars = np.abs(spread.T - cost[own])
        main.errorbar(
            cost[own], utility[own], xerr=bars, fmt=marker, color=colour, label=group or None
        )
        _density(top, cost[own], colour, upright=True)
        _density(right, utility[own], colour, upright=False)
    main.plot(cost[convex], utility[convex], color=INK, linewidth=1.2, label="Pareto front")
    plain = pareto_front(cost, utility)
    main.plot(cost[plain], utility[plain], "o", ms=13, mfc="none", mec=INK, label="not beaten")
    for model in models:
        at = (model.epsilon_star, model.utility)
        main.annotate(model.name, at, xytext=(8, -10), textcoords="offset points", fontsize=8)
    top.set_xlim(main.get_xlim())
    right.set_ylim(main.get_ylim())
    main.set_xlabel("Epsilon* of the model (not a bound)")
    main.set_ylabel(utility_label)
    main.legend(loc="lower right", fontsize=9, frameon=False, labelcolor=INK)
    return drawn


def _density(axes: Axes, values: NDArray[np.float64], colour: str, *, upright: bool) -> None:
    """Draw the kernel density of a group, or its values if fewer than 3 are distinct."""
    axes.set_axis_off()
    if np.unique(values).size < 3:
        for value in values.tolist():
            if upright:
                axes.axvline(value, ymax=0.1, color=colour)
            else:
                axes.axhline(value, xmax=0.1, color=colour)
        return
    margin = np.ptp(values)
    points = np.linspace(values.min() - margin, values.max() + margin, 200)
    density = gaussian_kde(values)(points)
    axes.plot(*((points, density) if upright else (density, points)), color=colour)


def draw(found: list[Outcome], label: str) -> Figure:
    """Draw the privacy-utility plane."""
    return privacy_utility_figure(
        [
            Point(one.star, one.accuracy, one.training.group, one.training.name, one.spread)
            for one in found
        ],
        label,
    )


def main() -> None:
    options = arguments(__doc__)
    models = 20 if options.full else 5
    seeds = range(options.seed, options.seed + models)
    columns = ["", "Epsilon*", "from, to", "no leakage, 95 %", "by fits", "accuracy", "front"]
    for name, records, trained, others in (
        ("digits", digits(), 600, 300),
        ("cells", cells(), 200, 100),
    ):
        found = run(records, trained, others, seeds)
        print(f"{name}: {trained} training records, means of {models} models, delta {DELTA:g}")
        best = front(found)
        print_table(
            columns,
            [
                [
                    one.training.name,
                    one.star,
                    one.spread,
                    one.null,
                    one.fits,
                    one.accuracy,
                    "*" if one.training.name in best else "",
                ]
                for one in found
            ],
        )
        print()
        if name == "digits":
            save(draw(found, "accuracy on other digits"), options.out, "epsilon_star_sweep")


if __name__ == "__main__":
    main()
