"""Keeps the noise of the steps behind an examination for a while, in memory alone."""

from __future__ import annotations

import numpy as np
import torch

from lightning_audit.checks.replay.examined_noise import NoiseLook
from lightning_audit.checks.replay.successive_noise import successive_seen
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.examine.noise import ExaminedNoise
from lightning_audit.examine.noise_entries import flat
from lightning_audit.layout import FloatArray
from lightning_audit.taps.method_hook import MethodHook
from lightning_audit.taps.noise_reading import clipped_sums

#: Steps whose noise is kept.
STEPS = 8
#: Entries below which so few steps tell nothing.
_LEAST = 16


class SuccessiveSteps:
    """The noise of the next steps of one of Opacus' optimizers.

    The draws of the examination, another one for each step, take off what all noise has in common.

    Args:
        step: the adapter of the optimizer.
        examined: the draws of an examination, and at which entries.
    """

    def __init__(self, step: DPSGDStep, examined: ExaminedNoise) -> None:
        self._step, self._examined = step, examined
        self._noise: list[FloatArray] = []
        #: Whether no more is kept.
        self.full = False
        private = private_optimizer(step.optimizer)
        self._hook = None
        if private is None or len(examined.draws[0]) < _LEAST:
            self.full = True
        else:
            self._hook = MethodHook(private, "add_noise", after=self._keep)

    @torch.no_grad()
    def _keep(self) -> None:
        """The noise of a step is in."""
        if self.full:
            return
        params = self._step.params
        sums, claim = clipped_sums(params), self._step.claim()
        unit = claim.noise_multiplier * claim.max_grad_norm
        parts: list[torch.Tensor] = []
        for p, own in zip(params, sums, strict=True):
            if own is None or p.grad is None or own.numel() != p.grad.numel():
                self.full = True
                return
            parts.append(
                (p.grad.detach() - own.view_as(p.grad)).reshape(-1).to("cpu", torch.float64)
            )
        if not unit > 0.0:
            self.full = True
            return
        entries = flat(self._examined.entries.of_release(torch.cat(parts) / unit))
        self._noise.append(entries - self._examined.draws[len(self._noise)])
        self.full = len(self._noise) >= min(STEPS, len(self._examined.draws))

    def look(self) -> NoiseLook | None:
        """What was seen; None where there are no two steps."""
        if len(self._noise) < 2 or not all(np.isfinite(noise).all() for noise in self._noise):
            return None
        seen = successive_seen(self._noise)
        return NoiseLook({"earlier": seen}, kinds=1)

    def remove(self) -> None:
        """Let go of the optimizer."""
        self.full = True
        if self._hook is not None:
            self._hook.remove()
