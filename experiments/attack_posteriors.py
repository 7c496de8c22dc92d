"""Posteriors of epsilon and of the attacks' strength on trained models (Figures 4, 5, Table 1).

python experiments/attack_posteriors.py [--full]

Yıldırım et al., "MCMC for Bayesian estimation of differential privacy from membership inference
attacks", arXiv:2504.16683.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from common import arguments, digits, each, print_table, save
from digit_games import Flags, Floats
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import RegularGridInterpolator
from torch import Tensor, nn

from lightning_audit import PrivacyClaim
from lightning_audit.attacks import cross_fed_mia, measure_mia
from lightning_audit.many import DPSGDMany
from lightning_audit.report.figure import BLUE, GREY, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.stats.attack_strength import StrengthPosterior, attack_strength_posterior
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior
from lightning_audit.stats.counts import ConfusionCounts

DELTA, ALPHA, SIGNIFICANCE = 1e-3, 0.1, 0.1
RECORDS, SAMPLE_RATE, STEPS, NOISE = 99, 0.1, 100, 1.0
#: Of the noise that is added to the released weights.
PERTURBATION = 0.1
#: Shadow models of each world for one independent challenge.
SHADOWS = 4


@dataclass(frozen=True)
class Size:
    """Number of challenge bases, and of models in each world of a base."""

    bases: int
    models: int


SMALL, FULL = Size(6, 36), Size(20, 100)


def random_start() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def fixed_start() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return random_start()


def training(
    start: Callable[[], nn.Module] | nn.Module, max_grad_norm: float, noise: float
) -> DPSGDMany:
    return DPSGDMany(
        start,
        noise_multiplier=noise,
        max_grad_norm=max_grad_norm,
        sample_rate=SAMPLE_RATE,
        expected_batch_size=SAMPLE_RATE * (RECORDS + 1),
        steps=STEPS,
        learning_rate=0.5,
    )


#: Each with the deviation of the noise that is added to its weights.
ALGORITHMS: dict[str, tuple[str, float]] = {
    "A1: fixed start": ("fixed", 0.0),
    "A2: random start": ("random", 0.0),
    "A3: A1, weights perturbed": ("fixed", PERTURBATION),
    "A4: A2, weights perturbed": ("random", PERTURBATION),
    "A1 with clipping alone": ("clipped", 0.0),
    "A1 with DP-SGD": ("private", 0.0),
}


def trainings() -> dict[str, DPSGDMany]:
    return {
        "fixed": training(fixed_start(), math.inf, 0.0),
        "random": training(random_start, math.inf, 0.0),
        "clipped": training(fixed_start(), 1.0, 0.0),
        "private": training(fixed_start(), 1.0, NOISE),
    }


def accounted_epsilon() -> float:
    """Return the epsilon of the DP-SGD training at `DELTA`, by composition of its steps."""
    claim = PrivacyClaim(delta=DELTA, noise_multiplier=NOISE, sample_rate=SAMPLE_RATE, steps=STEPS)
    return claim.composed_epsilon()


@dataclass(frozen=True)
class Base:
    """A data set D and a record z, and the seed of the models that are trained with and without."""

    without: tuple[Tensor, Tensor]
    with_record: tuple[Tensor, Tensor]
    seed: int

    def models(self, train: DPSGDMany, models: int) -> list[nn.Module]:
        """Return models without z, then as many with it."""
        seeds = np.random.default_rng(self.seed).integers(2**32, size=2 * models)
        sets = [self.without] * models + [self.with_record] * models
        return train.many(sets, [int(seed) for seed in seeds])

    def losses(self, trained: Sequence[nn.Module], perturbation: float) -> Floats:
        """Return the losses of z under the released models, ``[models]``."""
        noise = torch.Generator().manual_seed(self.seed)
        record = tuple(column[-1:] for column in self.with_record)
        losses = [
            nn.functional.cross_entropy(
                perturbed(model, perturbation, noise)(record[0]).double(), record[1]
            ).item()
            for model in trained
        ]
        return np.array(losses)


def perturbed(model: nn.Module, deviation: float, noise: torch.Generator) -> nn.Module:
    released = copy.deepcopy(model).requires_grad_(False)
    if deviation:
        for values in released.parameters():
            values += deviation * torch.randn(values.shape, generator=noise)
    return released


def bases(n: int, seed: int) -> list[Base]:
    rng = np.random.default_rng(seed)
    inputs, targets = digits()
    made = []
    for _ in range(n):
        chosen = rng.permutation(len(targets))[: RECORDS + 1]
        whole = (inputs[chosen], targets[chosen])
        without = tuple(column[:-1] for column in whole)
        made.append(Base(without, whole, int(rng.integers(2**32))))
    return made


@dataclass(frozen=True)
class Found:
    """The losses of an algorithm, ``[models, bases]``, its counts, and three posteriors.

    ``separate`` has shadow models for each challenge (Algorithm 4). The others attack each model by
    all others (Algorithm 5), without and with the correlation of the guesses.
    """

    losses: Floats
    counts: ConfusionCounts
    separate: StrengthPosterior
    independent: StrengthPosterior
    correlated: StrengthPosterior


def found_in(losses: Floats) -> Found:
    members = worlds(losses)
    counts, cluster = cross_fed_mia(losses, members, ALPHA)
    return Found(
        losses,
        counts,
        attack_strength_posterior(measure_mia(losses, members, ALPHA, shadows=SHADOWS), DELTA),
        attack_strength_posterior(counts, DELTA),
        correlated_attack_posterior(counts, DELTA, cluster).joint,
    )


def worlds(losses: Floats) -> Flags:
    """Return whether each model was trained with its base's record: the second half of them."""
    rows = np.arange(len(losses)) >= len(losses) // 2
    return np.broadcast_to(rows[:, None], losses.shape)


def run(size: Size, seed: int, names: Sequence[str] = tuple(ALGORITHMS)) -> dict[str, Found]:
    made, trained = bases(size.bases, seed), {}
    algorithms = {name: ALGORITHMS[name] for name in names}
    for name, train in each(trainings().items()):
        if name in {of for of, _ in algorithms.values()}:
            trained[name] = [base.models(train, size.models) for base in made]
    return {
        name: found_in(
            np.stack([b.losses(m, noise) for b, m in zip(made, trained[of], strict=True)], axis=1)
        )
        for name, (of, noise) in algorithms.items()
    }


def show(result: dict[str, Found]) -> None:
    models = len(next(iter(result.values())).losses) // 2
    print(f"errors of {models} models in each world of {ALPHA:g}-level tests, a number a base")
    print_table(
        ("algorithm", "X, false positives", "Y, false negatives"),
        [
            (name, *(" ".join(map(str, v.tolist())) for v in (found.counts.fp, found.counts.fn)))
            for name, found in result.items()
        ],
    )
    print(f"\n90 % intervals of epsilon at delta {DELTA:g}, and mean strength s of the attacks")
    print_table(
        ("algorithm", "Alg. 4", "Alg. 5, independent", "Alg. 5, correlated", "s"),
        [
            (
                name,
                *(
                    posterior.epsilon.interval(SIGNIFICANCE)
                    for posterior in (found.separate, found.independent, found.correlated)
                ),
                float(found.correlated.strength.mean),
            )
            for name, found in result.items()
        ],
    )
    print(f"\naccountant's epsilon of DP-SGD: {accounted_epsilon():.2f} at delta {DELTA:g}")


def draw(result: dict[str, Found]) -> Figure:
    figure = blank_figure((12.0, 5.6))
    panels = figure.subplots(2, len(result))
    levels = np.linspace(0.01, 0.99, 99)
    for column, (name, found) in enumerate(result.items()):
        above, below = panels[:, column]
        plain_axes(above)
        plain_axes(below)
        counts, n = cross_fed_mia(found.losses, worlds(found.losses), levels)
        above.plot(counts.fp, counts.fn, color=GREY, linewidth=0.8)
        above.plot(found.counts.fp, found.counts.fn, "o", color=ORANGE, markersize=4)
        above.plot([0, n], [n, 0], color=INK, linewidth=0.6)
        above.set_title(name.replace(", ", ",\n").replace(" with ", "\nwith "), fontsize=9)
        above.set_xlabel("false positives")
        draw_joint(below, found.correlated)
        below.set_xlabel("epsilon")
    panels[0, 0].set_ylabel("false negatives")
    panels[1, 0].set_ylabel("strength s")
    return figure


def draw_joint(axes: Axes, posterior: StrengthPosterior) -> None:
    """Draw the density of (epsilon, s), from that of (epsilon, s epsilon) on the grid."""
    epsilon, strength = np.linspace(0.05, 10.0, 150), np.linspace(0.01, 0.99, 100)
    grid = (posterior.levels, posterior.levels)
    at = np.stack(np.broadcast_arrays(epsilon[:, None], np.outer(epsilon, strength)), axis=-1)
    inner = RegularGridInterpolator(grid, posterior.density, bounds_error=False, fill_value=0.0)
    density = epsilon[:, None] * inner(at)
    axes.contourf(epsilon, strength, density.T, levels=6, cmap="Blues")
    low, high = posterior.epsilon.interval(SIGNIFICANCE)
    axes.hlines(0.02, low, high, color=BLUE, linewidth=4)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    result = run(FULL if options.full else SMALL, options.seed)
    show(result)
    save(draw(result), options.out, "attack_posteriors")


if __name__ == "__main__":
    main()
