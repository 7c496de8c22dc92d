"""Chooses the adapter of an optimizer, and finds the point after which its gradient has noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep, is_opacus
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.hooks.boundary import nothing
from lightning_audit.hooks.step_hooks import MethodHook

# --- Chooses the adapter of an optimizer, and reads `make_private`'s settings off its module.


def opacus_step(
    optimizer: DPOptimizer, names: dict[int, str], modules: Iterable[torch.nn.Module] = ()
) -> OpacusStep:
    """Return the adapter of a private optimizer; arguments and errors as for `OpacusStep`."""
    kind = GhostStep if isinstance(optimizer, DPOptimizerFastGradientClipping) else OpacusStep
    return kind(optimizer, names, modules)


def draws_poisson(module: torch.nn.Module) -> bool | None:
    """Return whether `make_private` was called with Poisson sampling.

    Inferred from the module: with Poisson sampling Opacus forbids gradient accumulation.

    Returns:
        Whether it was; None if no module holds per-sample gradients, or if the modules differ.
    """
    wrapped = [m for m in module.modules() if isinstance(m, GradSampleModule)]
    # Before Opacus 1.6 a hook forbade it.
    settings = {
        not getattr(m, "grad_accumulation_allowed", getattr(m, "grad_accumulation_hook", 0) is None)
        for m in wrapped
    }
    return settings.pop() if len(settings) == 1 else None


# --- The cut: the point after which a private optimizer's gradient contains its noise.

#: With several processes the release exists after their gradients are summed, with one before.
_REDUCES, _ADDS = "reduce_gradients", "add_noise"


def watch_cut(
    optimizer: DPOptimizer, call: Callable[[], None], otherwise: Callable[..., None] = nothing
) -> MethodHook:
    """Register a callback after a step's noise is added, before any post-processing.

    Args:
        optimizer: the private optimizer.
        call: the callback.
        otherwise: called instead after the audit has failed.
    """
    reduces = callable(getattr(optimizer, _REDUCES, None))
    name = _REDUCES if reduces else _ADDS
    return MethodHook(optimizer, name, after=call, otherwise=otherwise)


def divisor_at_cut(
    optimizer: DPOptimizer, params: Sequence[torch.nn.Parameter], claim: StepClaim
) -> float:
    """Return the divisor of the noisy sum at the cut: 1 or the claim's scale.

    Opacus divides after `add_noise`, and before processes sum their gradients. A class that
    overrides both `add_noise` and `scale_grad` may divide in either. Then the root mean square of
    the entries decides: that of a sum is at least about the noise's standard deviation.

    Args:
        optimizer: the private optimizer.
        params: its parameters.
        claim: the claim about the step.
    """
    noise_std, scale = claim.noise_multiplier * claim.max_grad_norm, claim.scale
    if callable(getattr(optimizer, _REDUCES, None)):
        return scale
    own = [n for n in (_ADDS, "scale_grad") if not is_opacus(getattr(type(optimizer), n))]
    if len(own) < 2 or noise_std <= 0.0:
        return 1.0
    grads = [p.grad for p in params if p.grad is not None]
    squares = sum(float(g.detach().double().square().sum()) for g in grads)
    size = math.sqrt(squares / max(sum(g.numel() for g in grads), 1)) / noise_std
    return 1.0 if size * math.sqrt(scale) >= 1.0 else scale


def shows_its_noise(optimizer: object) -> bool:
    """Return whether an optimizer's `add_noise` is Opacus', which only adds noise.

    A user's override may post-process the gradient as well.
    """
    return isinstance(optimizer, DPOptimizer) and is_opacus(type(optimizer).add_noise)
