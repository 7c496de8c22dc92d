"""Figure of docs/estimators/epsilon-star.md: sample size and goodness of fit of appendix B."""

from __future__ import annotations

import numpy as np
import pytorch_lightning as pl
import torch
from epsilon_star import COLOURS, METHODS, Digits, quiet, repeated
from known_losses import known_epsilon_star
from scipy import stats
from sklearn.datasets import load_digits
from support import arguments, save
from torch.utils.data import TensorDataset

from lightning_audit.report.figure import BLUE, GREY, INK, ORANGE, blank_figure, plain_axes
from lightning_audit.stats.epsilon_star import LogitScale, fit

DELTA = 1e-5


def draw_sizes(axes, rng, sizes, runs):
    """Draw Figure 5 for other numbers of losses: each value minus the truth at its own clip."""
    shapes = np.arange(5, 11)
    for name, method in METHODS.items():
        known = [stats.gamma(5), *(stats.gamma(k) for k in shapes)]
        truth = [
            known_epsilon_star(known[0], other, DELTA, clip=method.clip).value
            for other in known[1:]
        ]
        for n, line in zip(sizes, (":", "-"), strict=True):
            mean = np.array([repeated(rng, k, n, runs, method)[0] for k in shapes])
            label = f"{name.split(',')[0]}, {n:,} losses"
            axes.plot(shapes, mean - truth, line, marker="o", color=COLOURS[name], label=label)
            print("Fig. 5,", label, "too large by", (mean - truth).round(3))
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_title("Fig. 5: Epsilon* less its truth\nGamma(5) and Gamma(k)")
    axes.set_xlabel("k")
    axes.set_ylabel("mean error")


def digit_losses(epochs, noise):
    """Return the losses of 1,200 training digits, on the scale of the fits."""
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.tensor(features[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
    pl.seed_everything(0, verbose=False)
    data = TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])
    model = Digits(data, epochs, noise)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    model.eval()
    with torch.no_grad():
        losses = model.losses_per_record((x, y)).double().numpy()
    return LogitScale.of(losses).forward(losses[:1200])


def p_value(rng, losses, held, components):
    """Return the p-value of the paper's test: held-out losses against draws of the mixture."""
    shuffled = rng.permutation(losses)
    mixture = fit("losses", shuffled[held:], components)
    chosen = rng.choice(components, held, p=mixture.weights)
    draws = rng.normal(np.array(mixture.means)[chosen], np.array(mixture.stds)[chosen])
    return stats.ks_2samp(shuffled[:held], draws).pvalue


def draw_fits(axes, rng, noise, title, epochs, numbers, runs):
    """Draw Figure 6: median p-values of 300 losses over the number of Gaussians, by training."""
    for length, colour in zip(epochs, (GREY, ORANGE, BLUE), strict=False):
        losses = digit_losses(length, noise)
        found = [np.median([p_value(rng, losses, 300, k) for _ in range(runs)]) for k in numbers]
        axes.plot(numbers, found, marker="o", markersize=4, color=colour, label=f"{length} epochs")
        print(title, length, dict(zip(numbers, np.round(found, 3).tolist(), strict=True)))
    axes.axhline(0.05, color=INK, linewidth=1)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(f"Fig. 6: fits to training losses\n{title}")
    axes.set_xlabel("Gaussians in the mixture")
    axes.set_ylabel("median p-value")


def main():
    options = arguments(__doc__)
    quiet()
    rng = np.random.default_rng(0)
    quick = options.quick
    figure = blank_figure((12.0, 4.2))
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        plain_axes(axes)
    draw_sizes(left, rng, [300, 500] if quick else [1000, 100_000], 2 if quick else 10)
    numbers = [1, 3] if quick else [1, 2, 3, 5, 10, 20]
    epochs, runs = ([1], 2) if quick else ([1, 5, 20], 11)
    draw_fits(middle, rng, None, "digits, no DP", epochs, numbers, runs)
    draw_fits(right, rng, 1.0, "digits, DP-SGD, noise 1", epochs, numbers, runs)
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
        axes.title.set_fontsize(10)
    save(figure, options.out, "loss_fit")


if __name__ == "__main__":
    main()
