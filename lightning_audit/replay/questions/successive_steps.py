"""The noise of a few steps after an examination, kept in memory only."""

from __future__ import annotations

import numpy as np
import torch

from lightning_audit.checks.replay.examined_noise import NoiseLook
from lightning_audit.checks.replay.successive_noise import successive_seen
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.layout import FloatArray
from lightning_audit.replay.questions.noise import ExaminedNoise
from lightning_audit.replay.questions.noise_entries import flat
from lightning_audit.taps.method_hook import MethodHook
from lightning_audit.taps.noise_reading import clipped_sums

#: Number of steps whose noise is kept.
STEPS = 8
#: Smallest number of entries for which so few steps are tested.
_LEAST = 16


class SuccessiveSteps:
    """The noise of the next steps of an Opacus optimizer.

    A different draw of the examination is subtracted from each step's noise, which cancels what all
    noise has in common.

    Args:
        step: the adapter of the optimizer.
        examined: the draws of an examination, and their entries.
    """

    def __init__(self, step: DPSGDStep, examined: ExaminedNoise) -> None:
        self._step, self._examined = step, examined
        self._noise: list[FloatArray] = []
        #: Whether no further noise is kept.
        self.full = False
        private = private_optimizer(step.optimizer)
        self._hook = None
        if private is None or len(examined.draws[0]) < _LEAST:
            self.full = True
        else:
            self._hook = MethodHook(private, "add_noise", after=self._keep)

    @torch.no_grad()
    def _keep(self) -> None:
        """Keep the noise of a step, after it was added."""
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
        """Return the result; None with fewer than two steps."""
        if len(self._noise) < 2 or not all(np.isfinite(noise).all() for noise in self._noise):
            return None
        seen = successive_seen(self._noise)
        return NoiseLook({"earlier": seen}, kinds=1)

    def remove(self) -> None:
        """Remove the hook from the optimizer."""
        self.full = True
        if self._hook is not None:
            self._hook.remove()
