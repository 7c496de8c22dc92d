"""Correct mechanisms beside plain DP-SGD, and faults that hide behind what they do.

A mechanism releases clipped sums with noise, in one of `RELEASES`, and makes something of what it
released, in one of `PROCESSES`: by Opacus in the private optimizer or in an inner one, or by hand
with the release shown to the audit or not.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from hand_written_support import BATCH, CLIP, SIGMA, Gradients, HandWritten, sample_norms
from opacus.optimizers import DPOptimizer
from torch.nn import functional
from training_support import PrivateModule, mlp, random_data

import lightning_audit

State = dict[str, Any]
Tensors = list[torch.Tensor]
#: Makes noisy sums of clipped ones; noise is multiplied by the last argument.
Release = Callable[[State, Tensors, float], Tensors]
#: Changes noisy gradients in place.
Process = Callable[[State, Tensors, torch.nn.Module], None]

#: Values of discrete noise in a clipping norm.
_GRID = 512
_RATE = 0.05


def _noise(like: torch.Tensor, share: float) -> torch.Tensor:
    return share * SIGMA * CLIP * torch.randn_like(like)


# ------------------------------------------------------------------ what is released


def plain(_: State, sums: Tensors, share: float) -> Tensors:
    return [s + _noise(s, share) for s in sums]


def block_cyclic(state: State, sums: Tensors, share: float) -> Tensors:
    """One of three blocks of tensors in each step; the others have neither sum nor noise."""
    turn = state["turn"] = state.get("turn", -1) + 1
    noisy = plain(state, sums, share)
    return [n if (j // 2) % 3 == turn % 3 else torch.zeros_like(n) for j, n in enumerate(noisy)]


def random_mask(state: State, sums: Tensors, share: float) -> Tensors:
    """Half of the entries, by a fresh mask that is drawn of no data."""
    masks = [torch.rand_like(s) < 0.5 for s in sums]
    return [mask * n for mask, n in zip(masks, plain(state, sums, share), strict=True)]


def own_mask(state: State, sums: Tensors, share: float) -> Tensors:
    """A third of the entries, by a generator of the mechanism's own."""
    draw = state.setdefault("generator", torch.Generator().manual_seed(7))
    masks = [torch.rand(s.shape, generator=draw) < 0.3 for s in sums]
    return [mask * n for mask, n in zip(masks, plain(state, sums, share), strict=True)]


def subspace(state: State, sums: Tensors, share: float) -> Tensors:
    """Sums and noise in a public subspace of at most eight dimensions of each tensor."""
    if "bases" not in state:
        draw = torch.Generator().manual_seed(3)
        sizes = [s.numel() for s in sums]
        state["bases"] = [
            torch.linalg.qr(torch.randn(n, max(1, min(8, n // 2)), generator=draw))[0]
            for n in sizes
        ]
    found = []
    for s, basis in zip(sums, state["bases"], strict=True):
        parts = basis.T @ s.flatten()
        found.append((basis @ (parts + _noise(parts, share))).view_as(s))
    return found


def discrete(_: State, sums: Tensors, share: float) -> Tensors:
    """Discrete Gaussian noise on sums of gradients that were rounded to its grid before."""
    values = torch.arange(-8 * _GRID, 8 * _GRID + 1, dtype=torch.float64)
    weights = torch.exp(-values.square() / (2.0 * (share * SIGMA * CLIP * _GRID) ** 2))
    drawn = [values[torch.multinomial(weights, s.numel(), replacement=True)] for s in sums]
    return [s + (k / _GRID).view_as(s).to(s) for s, k in zip(sums, drawn, strict=True)]


# ------------------------------------------------------------------ what is made of it


def nothing(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    """The noisy gradient as it is."""


def momentum(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    past = state.setdefault("past", [torch.zeros_like(g) for g in grads])
    for kept, g in zip(past, grads, strict=True):
        g.copy_(kept.mul_(0.9).add_(g))


def adam(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    step = state["step"] = state.get("step", 0) + 1
    first = state.setdefault("first", [torch.zeros_like(g) for g in grads])
    second = state.setdefault("second", [torch.zeros_like(g) for g in grads])
    for m, v, g in zip(first, second, grads, strict=True):
        m.lerp_(g, 0.1)
        v.lerp_(g * g, 0.01)
        g.copy_(0.02 * m / (1 - 0.9**step) / ((v / (1 - 0.99**step)).sqrt() + 1e-4))


def with_public(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    """A gradient of public records is mixed in."""
    x, y = state.setdefault("public", random_data(64).tensors)
    copy = state.setdefault("copy", mlp())
    copy.load_state_dict({name.replace("_module.", ""): v for name, v in net.state_dict().items()})
    with torch.enable_grad():
        own = torch.autograd.grad(functional.cross_entropy(copy(x), y), list(copy.parameters()))
    for g, public in zip(grads, own, strict=True):
        g.mul_(0.7).add_(0.3 * public)


def muon(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    """Momentum whose matrices are made orthogonal."""
    momentum(state, grads, net)
    for g in grads:
        if g.ndim == 2:
            left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
            g.copy_(0.2 * (left @ right))


def scaled(state: State, grads: Tensors, net: torch.nn.Module) -> None:
    """A learning rate that is multiplied in early."""
    for g in grads:
        g.mul_(3.0)


# ------------------------------------------------------------------ where


class ByHand(HandWritten):
    """The mechanism by hand, which shows its release or does not."""

    release: ClassVar[Release] = staticmethod(plain)
    process: ClassVar[Process] = staticmethod(nothing)
    share: ClassVar[float] = 1.0
    shows: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drawn, self.made = {}, {}

    def clipped_sums(self, grads: Gradients) -> Gradients:
        if type(self).release is not discrete:
            return super().clipped_sums(grads)
        factors = (0.9 * CLIP / (sample_norms(grads) + 1e-9)).clamp(max=1.0)
        scaled = {n: torch.einsum("i,i...->i...", factors, g) for n, g in grads.items()}
        return {n: ((g * _GRID).round() / _GRID).sum(0) for n, g in scaled.items()}

    def write_gradient(self, grads: Gradients) -> None:
        sums = self.clipped_sums(grads)
        named = dict(self.net.named_parameters())
        made = type(self).release(self.drawn, [sums[name] for name in named], self.share)
        noisy = dict(zip(named, (tensor / BATCH for tensor in made), strict=True))
        if self.shows:
            noisy = lightning_audit.released(noisy, module=self)
        type(self).process(self.made, [noisy[name] for name in named], self.net)
        for name, p in named.items():
            p.grad = noisy[name]


class InPrivateOptimizer(DPOptimizer):
    """The mechanism in Opacus' optimizer: the release in `add_noise`, the rest behind it."""

    release: ClassVar[Release]
    process: ClassVar[Process]
    share: ClassVar[float] = 1.0

    def add_noise(self) -> None:
        drawn = self.__dict__.setdefault("drawn", {})
        sums = [p.summed_grad for p in self.params]
        for p, made in zip(self.params, type(self).release(drawn, sums, self.share), strict=True):
            p.grad = made.view_as(p).clone()
            p.summed_grad._processed = True

    def pre_step(self, closure: Any = None) -> bool | None:
        taken = super().pre_step()
        if taken:
            made = self.__dict__.setdefault("made", {})
            with torch.no_grad():
                type(self).process(made, [p.grad for p in self.params], self.net)
        return taken


class InInnerOptimizer(torch.optim.SGD):
    """What is made of a release, in an optimizer that Opacus wraps."""

    process: ClassVar[Process]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        type(self).process(self.__dict__.setdefault("made", {}), grads, self.net)
        return super().step()


class ByOpacus(PrivateModule):
    """Gives its optimizers the net."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.net = optimizer.original_optimizer.net = self.net
        return optimizer


def mechanism(
    release: Release, process: Process = nothing, where: str = "shown", share: float = 1.0
) -> pl.LightningModule:
    """A training by a mechanism.

    Args:
        release: what is released.
        process: what is made of it.
        where: "private" or "inner" with Opacus, "shown" or "hidden" by hand.
        share: of the claimed noise.
    """
    body: dict[str, Any] = {"release": staticmethod(release), "share": share}
    made = {"process": staticmethod(process)}
    if where in ("shown", "hidden"):
        return type("Mechanism", (ByHand,), {**body, **made, "shows": where == "shown"})()
    if where == "private":
        return ByOpacus(optimizer_class=type("Private", (InPrivateOptimizer,), {**body, **made}))
    inner = type("Inner", (InInnerOptimizer,), made)
    private = type("Private", (InPrivateOptimizer,), {**body, "process": staticmethod(nothing)})
    return ByOpacus(optimizer_class=private, inner=lambda params: inner(params, lr=_RATE))


# ------------------------------------------------------------------ noise elsewhere


class NoiseOnWeightsInStep(DPOptimizer):
    """`after_noise_support.NoiseOnWeights` in a private optimizer of Opacus."""

    share: ClassVar[float] = 1.0

    def add_noise(self) -> None:
        for p in self.params:
            p.grad = p.summed_grad.view_as(p).clone()
            p.summed_grad._processed = True

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        if not self.pre_step():
            return
        self.original_optimizer.step()
        rate = self.share * self.param_groups[0]["lr"] / self.expected_batch_size
        with torch.no_grad():
            for p in self.params:
                p.sub_(rate * (self.noise_multiplier * self.max_grad_norm * torch.randn_like(p)))


def _follow(mean: torch.Tensor, records: Sequence[torch.Tensor], share: float) -> None:
    """Let a running mean follow records that are clipped to a norm of one, with noise."""
    x = records[0] / records[0].norm(dim=1, keepdim=True).clamp(min=1.0)
    mean.lerp_((x.sum(0) + share * torch.randn(x.shape[1])) / BATCH, 0.1)


class RunningMean(ByHand):
    """A running mean of the inputs in a buffer, with noise of its own that is accounted for."""

    noise_of_mean: ClassVar[float] = 1.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("mean", torch.zeros(8))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        _follow(self.mean, batch, self.noise_of_mean)
        super().training_step(batch, batch_idx)


class RunningMeanByOpacus(PrivateModule):
    """The same with Opacus."""

    noise_of_mean: ClassVar[float] = 1.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("mean", torch.zeros(8))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        _follow(self.mean, batch, self.noise_of_mean)
        return super().training_step(batch, batch_idx)


# ------------------------------------------------------------------ faults behind what is done


class RawMomentum(ByHand):
    """By hand and not shown: momentum of the clipped mean before its noise."""

    shows: ClassVar[bool] = False

    def write_gradient(self, grads: Gradients) -> None:
        super().write_gradient(grads)
        for name, raw in self.clipped_sums(grads).items():
            kept = self.made.setdefault(name, torch.zeros_like(raw))
            p = self.net.get_parameter(name)
            p.grad = p.grad + kept
            kept.mul_(0.9).add_(raw / BATCH)


class TakesNoiseBack(InPrivateOptimizer):
    """Seven tenths of the noise are subtracted behind the cut, from the step ``since`` on."""

    release: ClassVar[Release] = staticmethod(plain)
    process: ClassVar[Process] = staticmethod(nothing)
    since: ClassVar[int] = 0

    def pre_step(self, closure: Any = None) -> bool | None:
        taken = super().pre_step()
        if taken:
            made = self.__dict__["made"]
            made["steps"] = made.get("steps", 0) + 1
            if made["steps"] > self.since:
                for p in self.params:
                    p.grad.lerp_(p.summed_grad.view_as(p) / self.expected_batch_size, 0.7)
        return taken


class LongClip(ByHand):
    """By hand and not shown: clipped to a norm that is larger than claimed."""

    shows: ClassVar[bool] = False
    times: ClassVar[float] = 1.5

    def clipped_sums(self, grads: Gradients) -> Gradients:
        factors = (self.times * CLIP / (sample_norms(grads) + 1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}
