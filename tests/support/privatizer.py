"""DP-SGD's gradient as a function, correct or with one fault, and audits of it."""

import itertools

import torch

from lightning_audit.blackbox.privatize import audit_privatize

SIGMA, NORM, BATCH, SHAPES = 1.5, 2.0, 32, [(4, 3), (5,)]


class Privatizer:
    """DP-SGD's gradient of a list of tensors, with one thing that may be wrong."""

    def __init__(self, fault: str = "", *, seed: int = 0, sigma: float = SIGMA, divisor=1.0):
        self.fault, self.sigma, self.divisor = fault, sigma, divisor
        self.generator = torch.Generator().manual_seed(seed)

    def factors(self, grads):
        flat = torch.cat([g.flatten(1) for g in grads], 1)
        norms = flat.norm(dim=1)
        match self.fault:
            case "no clipping":
                return [torch.ones_like(norms)] * len(grads)
            case "per tensor":
                return [(NORM / (g.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1) for g in grads]
            case "norm misses biases":
                norms = grads[0].flatten(1).norm(dim=1)
            case "clips at twice":
                return [(2 * NORM / (norms + 1e-6)).clamp(max=1)] * len(grads)
            case "scales up":  # min and max confused
                return [(NORM / (norms + 1e-6)).clamp(min=1, max=10)] * len(grads)
            case "clip after sum" | "clip after average":
                return [torch.ones_like(norms)] * len(grads)
        return [(NORM / (norms + 1e-6)).clamp(max=1)] * len(grads)

    def noise(self, like, number, rows):
        std = self.sigma * NORM
        size = tuple(like.shape)
        match self.fault:
            case "no noise":
                std = 0.0
            case "small noise":
                std = 0.8 * std
            case "no noise on biases":
                std = std * (number == 0)
            case "noise not times C":
                std = self.sigma
            case "noise divided by batch":
                std = std / BATCH
            case "shared noise":
                return std * torch.randn(1, generator=self.generator).expand(size)
            case "seeded noise":
                self.generator.manual_seed(number)
            case "noise follows gradients":
                std = std / (1 + float(rows.abs().max() > 10))
        return std * torch.randn(size, generator=self.generator)

    def __call__(self, grads):
        sums = [
            torch.einsum("i,i...->...", f, g)
            for f, g in zip(self.factors(grads), grads, strict=True)
        ]
        total = torch.cat([s.flatten() for s in sums]).norm()
        divisor = self.divisor
        if self.fault == "clip after sum":
            sums = [s * (NORM / (total + 1e-6)).clamp(max=1) for s in sums]
        if self.fault == "clip after average":
            factor = (NORM / (total / BATCH + 1e-6)).clamp(max=1)
            sums = [s * factor for s in sums]
        if self.fault == "divides by rows":
            divisor = len(grads[0])
        noisy = [s + self.noise(s, i, grads[0]) for i, s in enumerate(sums)]
        return [value / divisor for value in noisy]


class Unrepeatable(Privatizer):
    """The same, which seeds its generator for each call by a count that nothing puts back."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = itertools.count()

    def __call__(self, grads):
        self.generator.manual_seed(next(self.count))
        return super().__call__(grads)


def audit(privatize, **arguments):
    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "batch_size": BATCH, "calls": 120}
    return audit_privatize(privatize, SHAPES, **{**stated, **arguments})
