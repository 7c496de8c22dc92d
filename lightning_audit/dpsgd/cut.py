"""Where a private optimizer's noise is in: the place from which on its gradient is a release."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from opacus.optimizers import DPOptimizer

from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.taps.method_hook import MethodHook

#: Several processes have a release when their gradients are added up, one has it before.
_REDUCES, _ADDS = "reduce_gradients", "add_noise"


def watch_cut(
    optimizer: DPOptimizer, call: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> MethodHook:
    """Call back when a step's noise is in, before anything else is done to the gradient.

    Args:
        optimizer: the private optimizer.
        call: called then.
        otherwise: called instead once the audit has failed; None for nothing.
    """
    reduces = callable(getattr(optimizer, _REDUCES, None))
    name = _REDUCES if reduces else _ADDS
    return MethodHook(optimizer, name, after=call, otherwise=otherwise or (lambda: None))


def divisor_at_cut(
    optimizer: DPOptimizer, params: Sequence[torch.nn.Parameter], claim: StepClaim
) -> float:
    """What the noisy sum was divided by when the noise is in: 1 or the claim's scale.

    Opacus divides behind `add_noise`, and before processes add their gradients up. Where a class
    overrides both, its own code may divide in either, and the size of the entries tells: those of
    a sum are at least about as large as its noise.

    Args:
        optimizer: the private optimizer.
        params: its parameters.
        claim: of the step.
    """
    noise_std, scale = claim.noise_multiplier * claim.max_grad_norm, claim.scale
    if callable(getattr(optimizer, _REDUCES, None)):
        return scale
    own = [name for name in (_ADDS, "scale_grad") if not _is_opacus(optimizer, name)]
    if len(own) < 2 or noise_std <= 0.0:
        return 1.0
    grads = [p.grad for p in params if p.grad is not None]
    squares = sum(float(g.detach().double().square().sum()) for g in grads)
    size = math.sqrt(squares / max(sum(g.numel() for g in grads), 1)) / noise_std
    return 1.0 if size * math.sqrt(scale) >= 1.0 else scale


def shows_its_noise(optimizer: object) -> bool:
    """Whether the noise is in, and nothing else was done, when an optimizer's `add_noise` is over.

    A class of the user's own may do more in it than to add noise.
    """
    return isinstance(optimizer, DPOptimizer) and _is_opacus(optimizer, _ADDS)


def _is_opacus(optimizer: DPOptimizer, name: str) -> bool:
    return str(getattr(type(optimizer), name).__module__).startswith("opacus.")
