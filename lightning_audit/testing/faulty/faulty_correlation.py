"""Opacus' optimizer with noise that is correlated over steps, one kind per class."""

from __future__ import annotations

import math
from collections import deque

import torch

from lightning_audit.testing.faulty.faulty_draws import OwnNoise, Tensors

#: Weights of a step's draws, the current one first.
COEFFICIENTS = (1.0, -0.5, -0.25)


class AutoregressiveNoise(OwnNoise):
    """Noise of the right size that contains a part of the previous step's noise."""

    part: float = 0.4
    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Mix new noise with that of the previous step."""
        drawn = super().unit_noise()
        if self.latest is not None:
            new = math.sqrt(1.0 - self.part**2)
            pairs = zip(self.latest, drawn, strict=True)
            drawn = [self.part * old + new * now for old, now in pairs]
        self.latest = drawn
        return drawn


class OppositeNoise(AutoregressiveNoise):
    """Noise of the right size that subtracts a part of the previous step's noise."""

    part = -0.6


class FlippedNoise(OwnNoise):
    """Every second step subtracts the noise of the previous step."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Return new noise, or the negative of the previous noise."""
        drawn = super().unit_noise() if self.latest is None else [-old for old in self.latest]
        self.latest = drawn if self.latest is None else None
        return drawn


class CancellingNoise(OwnNoise):
    """Noise of the right size whose sum over the steps stays small."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Subtract the previous draw from a new one."""
        drawn, latest = super().unit_noise(), self.latest
        self.latest = drawn
        if latest is None:
            return drawn
        return [math.sqrt(0.5) * (now - old) for now, old in zip(drawn, latest, strict=True)]


class BandedDraws:
    """Noise that is a weighted sum of a step's draw and those of the previous steps.

    Args:
        coefficients: weights of the draws, the current one first.
        factor: of the whole sum.
    """

    def __init__(self, coefficients: tuple[float, ...] = COEFFICIENTS, factor: float = 1.0) -> None:
        self.coefficients, self.factor = coefficients, factor
        self._past: dict[int, deque[torch.Tensor]] = {}

    def noise(
        self, place: int, like: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return the noise of a step for a parameter; each draw has standard deviation 1.

        Args:
            place: number of the parameter.
            like: a tensor of its shape, dtype and device.
            generator: of the draw; None for torch's global one.
        """
        draw = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        past = self._past.setdefault(place, deque(maxlen=len(self.coefficients) - 1))
        draws = (draw, *past)
        past.appendleft(draw)
        pairs = zip(self.coefficients, draws, strict=False)
        return self.factor * torch.stack([weight * one for weight, one in pairs]).sum(0)


class BandedNoise(OwnNoise):
    """Adds banded noise with `COEFFICIENTS`: correct if they are claimed."""

    coefficients: tuple[float, ...] = COEFFICIENTS
    factor: float = 1.0

    def unit_noise(self) -> Tensors:
        """Return the weighted sum of this step's draw and the previous ones."""
        draws: BandedDraws = self.__dict__.setdefault(
            "banded_draws", BandedDraws(self.coefficients, self.factor)
        )
        return [
            draws.noise(place, p.summed_grad, self.generator) for place, p in enumerate(self.params)
        ]


class HalfBandedNoise(BandedNoise):
    """Adds half of the banded noise."""

    factor = 0.5
