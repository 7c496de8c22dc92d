"""Figure of docs/estimators/epsilon-star.md: the paper's simulations."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytorch_lightning as pl
import torch
from known_losses import known_epsilon_star
from opacus import PrivacyEngine
from scipy import stats
from support import arguments, save
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightning_audit.report.figure import BLUE, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    epsilon_star,
)

DELTA = 1e-5
METHODS = {"ranks, clip 0.001": Empirical(1e-3), "Gaussian fits, clip 1e-6": Parametric(1e-6)}
COLOURS = dict(zip(METHODS, (BLUE, ORANGE), strict=True))


def draw_ends(axes, rng, n):
    """Draw Figure 3: the two largest ratios over the FPR, known and from samples."""
    train, population = stats.norm(0, 1), stats.norm(3, 1)
    at = np.linspace(-4, 7, 2000)
    samples = np.sort(train.rvs(n, random_state=rng)), np.sort(population.rvs(n, random_state=rng))
    empirical = [np.searchsorted(side, at, side="right") / n for side in samples]
    for (tpr, fpr), style in (((train.cdf(at), population.cdf(at)), "--"), (empirical, "-")):
        shown = (np.minimum(tpr, fpr) >= 1e-4) & (np.maximum(tpr, fpr) <= 1 - 1e-4)
        kind = "known" if style == "--" else f"{n} losses"
        pairs = ((tpr - DELTA, fpr), (1 - fpr - DELTA, 1 - tpr))
        names = ("(1-\u03b4-FNR)/FPR", "(1-\u03b4-FPR)/FNR")
        for name, (above, below), colour in zip(names, pairs, (BLUE, ORANGE), strict=True):
            ratio = np.log(above[shown] / below[shown])
            axes.plot(fpr[shown], ratio, style, color=colour, label=f"{name}, {kind}")
    axes.set_xscale("logit")
    axes.set_title("Fig. 3: ln of the first two ratios\nN(0, 1) and N(3, 1)", fontsize=10)
    axes.set_xlabel("FPR")
    axes.minorticks_off()


def repeated(rng, shape, n, runs, method):
    found = []
    for _ in range(runs):
        train, population = rng.gamma(5, 1, n), rng.gamma(shape, 1, n)
        found.append(epsilon_star(train, population, DELTA, method).value)
    return np.mean(found), np.std(found)


def draw_identical(axes, rng, sizes, runs):
    """Draw Figure 4: Epsilon* without any leakage."""
    for name, method in METHODS.items():
        mean, std = np.transpose([repeated(rng, 5, n, runs, method) for n in sizes])
        axes.errorbar(sizes, mean, std, marker="o", capsize=3, color=COLOURS[name], label=name)
        print("identical", name, dict(zip(sizes, mean.round(3), strict=True)))
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_title(f"Fig. 4: identical distributions,\n{runs} runs (truth 0)", fontsize=10)
    axes.set_xlabel("losses a side")


def draw_apart(axes, rng, n, runs):
    """Draw Figure 5: Gamma(5) training losses against Gamma(k) population losses."""
    shapes = np.arange(5, 11)
    for name, method in METHODS.items():
        mean, std = np.transpose([repeated(rng, k, n, runs, method) for k in shapes])
        axes.errorbar(shapes, mean, std, marker="o", capsize=3, color=COLOURS[name], label=name)
        truth = [
            known_epsilon_star(stats.gamma(5), stats.gamma(k), DELTA, clip=method.clip).value
            for k in shapes
        ]
        axes.plot(shapes, truth, "--", color=COLOURS[name], label="its truth")
        print("apart", name, mean.round(3), "truth", np.round(truth, 3))
    axes.set_title(f"Fig. 5: Gamma(5) and Gamma(k),\n{n} losses a side", fontsize=10)
    axes.set_xlabel("k")


class Digits(pl.LightningModule):
    """A small net on 600 digits, private if a noise multiplier is given."""

    def __init__(self, data, epochs, noise=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.train_data, self.validation = data
        self.epochs, self.noise = epochs, noise

    def losses_per_record(self, batch):
        return functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def train_dataloader(self):
        return DataLoader(self.train_data, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.validation, batch_size=2000)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        if self.noise is None:
            return optimizer
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=optimizer,
            data_loader=self.train_dataloader(),
            noise_multiplier=self.noise,
            max_grad_norm=1.0,
        )
        return optimizer


def quiet():
    """Use one thread, and silence warnings of Opacus and Lightning, which do not affect figures."""
    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore", module="opacus|pytorch_lightning|torch|lightning_utilities")
    torch.set_num_threads(1)


def main():
    options = arguments(__doc__)
    rng = np.random.default_rng(0)
    quick = options.quick
    figure = blank_figure((12.0, 4.2))
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        plain_axes(axes)
    draw_ends(left, rng, 10_000)
    draw_identical(middle, rng, [1000, 3000] if quick else [1000, 10_000, 100_000], 10)
    draw_apart(right, rng, 1000 if quick else 10_000, 2 if quick else 10)
    left.set_ylabel("Epsilon*, delta 1e-5")
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
    save(figure, options.out, "epsilon_star")


if __name__ == "__main__":
    main()
