"""Opacus' optimizer with noise that is correlated over steps, one way a class."""

from __future__ import annotations

import math
from collections import deque

import torch

from lightning_audit.testing.faulty.faulty_draws import OwnNoise, Tensors

#: Weights of a step's draws, the present one first.
COEFFICIENTS = (1.0, -0.5, -0.25)


class AutoregressiveNoise(OwnNoise):
    """Noise of the right size, a part of which is that of the step before."""

    part: float = 0.4
    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """New noise and that of the step before, mixed."""
        drawn = super().unit_noise()
        if self.latest is not None:
            new = math.sqrt(1.0 - self.part**2)
            pairs = zip(self.latest, drawn, strict=True)
            drawn = [self.part * old + new * now for old, now in pairs]
        self.latest = drawn
        return drawn


class OppositeNoise(AutoregressiveNoise):
    """Noise of the right size that takes back a part of that of the step before."""

    part = -0.6


class FlippedNoise(OwnNoise):
    """Every second step takes the noise of the step before back."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Noise, or the negative of what was drawn."""
        drawn = super().unit_noise() if self.latest is None else [-old for old in self.latest]
        self.latest = drawn if self.latest is None else None
        return drawn


class CancellingNoise(OwnNoise):
    """Noise of the right size whose sum over the steps stays small."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """The new part of the last step's noise is taken back."""
        drawn, latest = super().unit_noise(), self.latest
        self.latest = drawn
        if latest is None:
            return drawn
        return [math.sqrt(0.5) * (now - old) for now, old in zip(drawn, latest, strict=True)]


class BandedDraws:
    """Noise of a step made of its own draw and of those of the steps before.

    Args:
        coefficients: weights of the draws, the present one first.
        factor: what the draws are multiplied by.
    """

    def __init__(self, coefficients: tuple[float, ...] = COEFFICIENTS, factor: float = 1.0) -> None:
        self.coefficients, self.factor = coefficients, factor
        self._past: dict[int, deque[torch.Tensor]] = {}

    def noise(
        self, place: int, like: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """The noise of a step for a parameter, of standard deviation 1 in each draw.

        Args:
            place: number of the parameter.
            like: a tensor of its shape, type and device.
            generator: of the draw; None for torch's own.
        """
        draw = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        past = self._past.setdefault(place, deque(maxlen=len(self.coefficients) - 1))
        draws = (draw, *past)
        past.appendleft(draw)
        pairs = zip(self.coefficients, draws, strict=False)
        return self.factor * torch.stack([weight * one for weight, one in pairs]).sum(0)


class BandedNoise(OwnNoise):
    """Adds banded noise of `COEFFICIENTS`: correct, if they are claimed."""

    coefficients: tuple[float, ...] = COEFFICIENTS
    factor: float = 1.0

    def unit_noise(self) -> Tensors:
        """This step's draw, and those of the steps before by their weights."""
        draws: BandedDraws = self.__dict__.setdefault(
            "banded_draws", BandedDraws(self.coefficients, self.factor)
        )
        return [
            draws.noise(place, p.summed_grad, self.generator) for place, p in enumerate(self.params)
        ]


class HalfBandedNoise(BandedNoise):
    """Adds half of the banded noise."""

    factor = 0.5
