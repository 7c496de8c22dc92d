"""Correct DP-SGD that does something to its gradient when the noise is in, and what is like it.

Whatever is computed from a private release alone is private as well (post-processing), so none of
these is a fault.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hand_written_support import BATCH, CLIP, SIGMA, Gradients, HandWritten, OwnOptimizer
from opacus.optimizers import DPOptimizer

import lightning_audit

Process = Callable[[dict[str, Any], list[torch.Tensor]], None]


# ------------------------------------------------------------------ what is done to the gradients


def low_pass(state: dict[str, Any], grads: list[torch.Tensor]) -> None:
    """An exponential average in the gradient's place."""
    past = state.setdefault("past", [g.clone() for g in grads])
    for kept, g in zip(past, grads, strict=True):
        g.copy_(kept.lerp_(g, 0.3))


def top_k(_: dict[str, Any], grads: list[torch.Tensor]) -> None:
    """The largest tenth of the entries."""
    least = torch.cat([g.abs().flatten() for g in grads]).quantile(0.9)
    for g in grads:
        g.mul_(g.abs() >= least)


def sign(_: dict[str, Any], grads: list[torch.Tensor]) -> None:
    for g in grads:
        g.sign_()


def centralised(_: dict[str, Any], grads: list[torch.Tensor]) -> None:
    """Gradient centralisation: each output's weights have gradients of mean zero."""
    for g in grads:
        if g.ndim > 1:
            g.sub_(g.mean(dim=tuple(range(1, g.ndim)), keepdim=True))


PROCESSES: dict[str, Process] = {p.__name__: p for p in (low_pass, top_k, sign, centralised)}


# ------------------------------------------------------------------ where it is done, with Opacus


class Processing(DPOptimizer):
    """A private optimizer with a process of its own, and the share of the noise that it draws."""

    process: ClassVar[Process]
    share: ClassVar[float] = 1.0

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = self.share * stated
        super().add_noise()
        self.noise_multiplier = stated

    def apply(self) -> None:
        state = self.__dict__.setdefault("kept", {})
        with torch.no_grad():
            type(self).process(state, [p.grad for p in self.params])


class InPreStep(Processing):
    def pre_step(self, closure: Any = None) -> Any:
        taken = super().pre_step()
        if taken:
            self.apply()
        return taken


class InScaling(Processing):
    def scale_grad(self) -> None:
        super().scale_grad()
        self.apply()


class InStep(Processing):
    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.pre_step():
            self.apply()
            return self.original_optimizer.step()
        return None


def optimizer_that(where: type[Processing], name: str, share: float = 1.0) -> type[Processing]:
    body = {"process": staticmethod(PROCESSES[name]), "share": share}
    return type(f"{where.__name__}_{name}", (where,), body)


class Kalman(Processing):
    """As DiSK: gradients at two places, mixed before they are clipped, and filtered when noisy.

    ``ahead`` is how far the second place lies along the last update; without a closure there is
    the one gradient.
    """

    process = staticmethod(low_pass)
    kappa: ClassVar[float] = 0.7
    ahead: ClassVar[float] = 0.5

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            self._gradients(closure)
        if not self.pre_step():
            return None
        self.apply()
        before = [p.detach().clone() for p in self.params]
        self.original_optimizer.step()
        self.moved = [p.detach() - b for p, b in zip(self.params, before, strict=True)]
        return None

    def _gradients(self, closure: Any) -> None:
        with torch.enable_grad():
            closure()
        moved = getattr(self, "moved", None)
        if moved is None or not all(isinstance(p.grad_sample, torch.Tensor) for p in self.params):
            return
        first = [p.grad_sample for p in self.params]
        weight = (1 - self.kappa) / (self.ahead * self.kappa)
        for p, d in zip(self.params, moved, strict=True):
            p.grad_sample = None
            p.data.add_(d, alpha=self.ahead)
        with torch.enable_grad():
            closure()
        for p, d, g in zip(self.params, moved, first, strict=True):
            p.data.add_(d, alpha=-self.ahead)
            if p.grad_sample is None:  # the closure of manual optimization computes nothing
                p.grad_sample = g
            else:
                p.grad_sample.mul_(weight).add_(g, alpha=1 - weight)


# ------------------------------------------------------------------ where it is done, by hand


class ByHand(HandWritten):
    """Hand-written DP-SGD that processes its noisy gradients, and says so or not."""

    process: ClassVar[Process]
    share: ClassVar[float] = 1.0

    def __init__(self, *, says: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.says = says
        self.kept: Any = {}

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return self.share * super().noise(p)

    def write_gradient(self, grads: Gradients) -> None:
        sums = self.clipped_sums(grads)
        params = dict(self.net.named_parameters())
        noisy = {name: (sums[name] + self.noise(p)) / BATCH for name, p in params.items()}
        if self.says:
            noisy = lightning_audit.released(noisy, module=self)
        type(self).process(self.kept, list(noisy.values()))
        for name, p in params.items():
            p.grad = noisy[name]


class ByHandInClosure(ByHand, OwnOptimizer):
    """The same in an optimizer of one's own, inside the closure's step."""


def by_hand_that(name: str, share: float = 1.0, kind: type[ByHand] = ByHand) -> type[ByHand]:
    body = {"process": staticmethod(PROCESSES[name]), "share": share}
    return type(f"{kind.__name__}_{name}", (kind,), body)


def nothing(_: dict[str, Any], grads: list[torch.Tensor]) -> None:
    """Leave the gradients as they are."""


# ------------------------------------------------------------------ other shapes of a release


class MaskedBeforeClipping(Processing):
    """Half of the coordinates of each sample's gradient are set to zero, by a public mask."""

    def clip_and_accumulate(self) -> None:
        if not hasattr(self, "masks"):
            draw = torch.Generator().manual_seed(3)
            self.masks = [torch.rand(p.shape, generator=draw) < 0.5 for p in self.params]
        for p, mask in zip(self.params, self.masks, strict=True):
            p.grad_sample.mul_(mask)
        super().clip_and_accumulate()


class BlockCyclic(Processing):
    """Each step releases one block of tensors; the others have neither gradient nor noise."""

    blocks: ClassVar[int] = 3

    def add_noise(self) -> None:
        self.turn = getattr(self, "turn", -1) + 1
        super().add_noise()
        for j, p in enumerate(self.params):
            if (j // 2) % self.blocks != self.turn % self.blocks:
                p.grad = torch.zeros_like(p)


class NoiseOnWeights(HandWritten):
    """The noise is added to the weights, after an update with the clipped mean."""

    share: ClassVar[float] = 1.0

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(p)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        with torch.no_grad():
            for p in self.net.parameters():
                p.sub_(self.share * SIGMA * CLIP * torch.randn_like(p) * 0.05 / BATCH)
