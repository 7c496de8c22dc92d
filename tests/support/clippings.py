"""Clippings of per-sample gradients, faulty and correct, as functions from gradients to a release.

They get a list of two tensors ``[n, *shape]``, of seventeen entries a gradient, and release what
they make of the batch and Gaussian noise of standard deviation ``SIGMA * NORM``.
"""

import random
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from privatizer import BATCH, NORM, SHAPES, SIGMA

Sum = Callable[[torch.Tensor], torch.Tensor]  # gradients [n, d] to their clipped sum [d]


def factors(norms: torch.Tensor, norm: float = NORM) -> torch.Tensor:
    return (norm / (norms + 1e-6)).clamp(max=1.0)


def clipped(rows: torch.Tensor) -> torch.Tensor:
    return rows * factors(rows.norm(dim=1))[:, None]


def exempt(which: Callable[[torch.Tensor], torch.Tensor]) -> Sum:
    """Clips all rows but those of a mask ``[n]``."""
    return lambda rows: torch.where(which(rows)[:, None], rows, clipped(rows)).sum(0)


def at(*places: int) -> Sum:
    """Clips all rows but those at some places."""

    def places_of(rows: torch.Tensor) -> torch.Tensor:
        free = [place % len(rows) for place in places] if len(rows) else []
        return torch.isin(torch.arange(len(rows)), torch.tensor(free, dtype=torch.long))

    return exempt(places_of)


def by_norm(norms: Callable[[torch.Tensor], torch.Tensor]) -> Sum:
    """Clips by something else than each row's Euclidean norm."""
    return lambda rows: (rows * factors(norms(rows)).expand(len(rows))[:, None]).sum(0)


def in_groups(size: int) -> Sum:
    """Clips the means of neighbouring rows."""

    def total(rows: torch.Tensor) -> torch.Tensor:
        parts = rows.split(size) if len(rows) else ()
        return sum((len(part) * clipped(part.mean(0)[None])[0] for part in parts), torch.zeros(17))

    return total


def half_precision(rows: torch.Tensor) -> torch.Tensor:
    """Norms that overflow are infinite, and such rows are left as they are."""
    norms = rows.half().norm(dim=1).float()
    return (rows * torch.where(norms.isinf(), 1.0, factors(norms))[:, None]).sum(0)


def equal_ones_together(rows: torch.Tensor) -> torch.Tensor:
    """Rows that are equal to others are clipped once, and count as often as they are there."""
    kept, counts = torch.unique(rows, dim=0, return_counts=True)
    unequal = counts == 1
    return clipped(kept[unequal]).sum(0) + (kept[~unequal] * counts[~unequal, None]).sum(0)


def sorted_off_by_one(rows: torch.Tensor) -> torch.Tensor:
    order = rows.norm(dim=1).argsort()
    return (rows[order] * factors(rows.norm(dim=1)[order].roll(1))[:, None]).sum(0)


def if_size(unclipped: Callable[[int], bool]) -> Sum:
    return lambda rows: (rows if unclipped(len(rows)) else clipped(rows)).sum(0)


def spread(norms: torch.Tensor) -> torch.Tensor:
    """Norms relative to what is usual in the batch."""
    return norms / norms.median().clamp(min=1e-6) if len(norms) else norms


#: Clipped sums that are not what is stated.
FAULTY: dict[str, Sum] = {
    "by the mean norm of the batch": by_norm(
        lambda rows: rows.norm(dim=1).mean() if len(rows) else torch.zeros(())
    ),
    "by the 3-norm": by_norm(lambda rows: rows.norm(p=3, dim=1)),
    "by the largest entry": by_norm(lambda rows: rows.abs().amax(dim=1)),
    "entry by entry": lambda rows: rows.clamp(-NORM, NORM).sum(0),
    "first row not clipped": at(0),
    "every 7th row not clipped": exempt(lambda rows: torch.arange(len(rows)) % 7 == 6),
    "only norms above 10 C clipped": exempt(lambda rows: rows.norm(dim=1) < 10 * NORM),
    "norms above 1e4 C not clipped": exempt(lambda rows: rows.norm(dim=1) > 1e4 * NORM),
    "outliers of the batch alone clipped": exempt(lambda rows: spread(rows.norm(dim=1)) < 10),
    "spikes not clipped": exempt(
        lambda rows: rows.abs().amax(dim=1) > 0.999 * rows.norm(dim=1).clamp(min=1e-9)
    ),
    "micro-batches, their mean": in_groups(8),
    "the mean of all": in_groups(10_000),
    "only the first tensor": lambda rows: torch.cat([clipped(rows[:, :12]), rows[:, 12:]], 1).sum(
        0
    ),
    "norm of the first half": by_norm(lambda rows: rows[:, :9].norm(dim=1)),
    "norm in half precision": half_precision,
    "not in batches of two": if_size(lambda size: size <= 2),
    "not in batches of one": if_size(lambda size: size == 1),
    "not above twice the usual batch": if_size(lambda size: size > 2 * BATCH),
    "equal ones not clipped": equal_ones_together,
    "sorted, off by one": sorted_off_by_one,
    "to a norm 5 % too large": lambda rows: (
        rows * factors(rows.norm(dim=1), 1.05 * NORM)[:, None]
    ).sum(0),
}


def noisy(total: Sum, noise: Callable[[], torch.Tensor] = lambda: torch.randn(17)) -> Any:
    """A privatize function of a clipped sum."""

    def privatize(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        released = total(joined(grads)) + SIGMA * NORM * noise()
        return [part.view(s) for part, s in zip(released.split([12, 5]), SHAPES, strict=True)]

    return privatize


def joined(grads: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.flatten(1) for grad in grads], dim=1)


def clipped_sum(rows: torch.Tensor) -> torch.Tensor:
    return clipped(rows).sum(0)


# ------------------------------------------------------------------ correct ones

_OF_A_DEFAULT = torch.Generator().manual_seed(5)


def of_a_default(generator: torch.Generator = _OF_A_DEFAULT) -> torch.Tensor:
    return torch.randn(17, generator=generator)


def normalised(rows: torch.Tensor) -> torch.Tensor:
    return (NORM * rows / (rows.norm(dim=1) + 0.01)[:, None]).sum(0)


def of_python() -> torch.Tensor:
    return torch.tensor([random.gauss(0.0, 1.0) for _ in range(17)])


def of_the_system() -> torch.Tensor:
    """Noise that no seed repeats."""
    system = secrets.SystemRandom()
    return torch.tensor([system.gauss(0.0, 1.0) for _ in range(17)])


def of_a_random_state(seed: int) -> Callable[[], torch.Tensor]:
    state = np.random.RandomState(seed)
    return lambda: torch.from_numpy(state.normal(size=17))


def on_a_lattice(step: float) -> Any:
    """What is released is rounded, noise included."""
    exact = noisy(clipped_sum)
    return lambda grads: [torch.round(part / step) * step for part in exact(grads)]


def of_integers(step: float) -> Any:
    """Clipped gradients rounded towards zero, and integer noise."""

    def privatize(grads: list[torch.Tensor]) -> list[torch.Tensor]:
        total = torch.trunc(clipped(joined(grads)) / step).sum(0)
        noise = np.random.normal(0.0, SIGMA * NORM / step, 17).round()
        released = step * (total + torch.from_numpy(noise).float())
        return [part.view(s) for part, s in zip(released.split([12, 5]), SHAPES, strict=True)]

    return privatize


def per_layer(rows: torch.Tensor) -> torch.Tensor:
    """Tensors clipped each to its part of C."""
    parts = zip(rows.split([12, 5], dim=1), (0.6 * NORM, 0.8 * NORM), strict=True)
    return torch.cat([(p * factors(p.norm(dim=1), c)[:, None]).sum(0) for p, c in parts])


class Adaptive:
    """Clips to a norm that follows a noisy count of earlier calls, and stays below C."""

    def __init__(self) -> None:
        self.norm = NORM

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        norms = rows.norm(dim=1)
        total = (rows * factors(norms, self.norm)[:, None]).sum(0)
        below = (norms < self.norm).float().sum() + 10.0 * torch.randn(())
        self.norm = min(NORM, max(0.7 * NORM, self.norm * float(torch.exp(0.5 - below / BATCH))))
        return total


def shuffled(rows: torch.Tensor) -> torch.Tensor:
    """Draws as many numbers as there are rows, ahead of the noise."""
    return clipped(rows[torch.randperm(len(rows))]).sum(0)


def noise_of_each_row(grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each row brings its part of the noise."""
    rows = joined(grads)
    noise = SIGMA * NORM / len(rows) ** 0.5 * torch.randn(rows.shape)
    released = (clipped(rows) + noise).sum(0)
    return [part.view(s) for part, s in zip(released.split([12, 5]), SHAPES, strict=True)]


def of_full_batches(rows: torch.Tensor) -> torch.Tensor:
    if len(rows) < BATCH:
        raise ValueError(f"{len(rows)} rows are no batch")
    return clipped_sum(rows)


class OfOpacus:
    """Opacus' own clipping and noise."""

    def __init__(self, seed: int, *, layers: bool = False) -> None:
        self.params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        kind, norm = DPOptimizer, NORM
        if layers:
            kind, norm = DPPerLayerOptimizer, [0.6 * NORM, 0.8 * NORM]
        self.optimizer = kind(
            torch.optim.SGD(self.params, lr=0.1),
            noise_multiplier=SIGMA,
            max_grad_norm=norm,
            expected_batch_size=None,
            loss_reduction="sum",
            generator=torch.Generator().manual_seed(seed),
        )

    def __call__(self, grads: list[torch.Tensor]) -> list[torch.Tensor]:
        for param, grad in zip(self.params, grads, strict=True):
            param.grad_sample, param.summed_grad = grad, None
        self.optimizer.pre_step()
        return [param.grad.clone() for param in self.params]


def divided(by: float | None) -> Any:
    """A mean, by a constant or by the number of rows."""
    exact = noisy(clipped_sum)
    return lambda grads: [part / (by or len(grads[0])) for part in exact(grads)]


#: Correct functions, made from a seed, with what is stated of them.
CORRECT: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "torch": (lambda _: noisy(clipped_sum), {}),
    "a generator that is a default": (lambda _: noisy(clipped_sum, of_a_default), {}),
    "a random state": (lambda seed: noisy(clipped_sum, of_a_random_state(seed)), {}),
    "Python": (lambda _: noisy(clipped_sum, of_python), {}),
    "the operating system": (lambda _: noisy(clipped_sum, of_the_system), {}),
    "double precision": (lambda _: noisy(lambda rows: clipped_sum(rows.double())), {}),
    "bf16 sums": (lambda _: noisy(lambda rows: clipped(rows).bfloat16().sum(0)), {}),
    "a coarse lattice": (lambda _: on_a_lattice(NORM), {}),
    "per layer": (lambda _: noisy(per_layer), {}),
    "an adaptive norm": (lambda _: noisy(Adaptive()), {}),
    "automatic clipping": (lambda _: noisy(normalised), {}),
    "shuffled": (lambda _: noisy(shuffled), {}),
    "noise of each row": (lambda _: noise_of_each_row, {}),
    "full batches only": (lambda _: noisy(of_full_batches), {}),
    "a constant divisor": (lambda _: divided(64.0), {"expected_batch_size": 64.0}),
    "divided by the rows": (
        lambda _: divided(None),
        {"expected_batch_size": BATCH, "batches": "fixed"},
    ),
    "Opacus": (OfOpacus, {}),
    "Opacus, per layer": (lambda seed: OfOpacus(seed, layers=True), {}),
}
