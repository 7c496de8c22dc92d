"""Opacus' ghost clipping: canaries are terms of the per-sample loss, between its two backwards.

The first backward pass computes the norms of the per-sample gradients, the second the gradient of
the losses weighted by their clipping factors. Per-sample gradients are never formed, so a canary
has no row. Instead its norm and a zero loss are appended, and the gradient of this loss in the
second pass is the canary's clipping factor.

Canaries do not test whether the norms of the samples are correct. In some steps, therefore, one
sample's gradient is formed between the two passes and its norm is compared with the one that
clipping uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

from lightning_audit.dpsgd.opacus import OpacusStep, as_number, backward_hook
from lightning_audit.dpsgd.protocol import Backward, CannotEnter, NormsSeen, Seed
from lightning_audit.hooks.boundary import nothing
from lightning_audit.hooks.gradient_tap import CanaryRows, GradientTap, as_rows
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.layout import Direction, IndexArray

_NO_GHOST_LOSS = (
    "the loss is not that of make_private's criterion, or its backward pass was not announced "
    "(Lightning: return {'loss': loss}, or call self.manual_backward(loss))"
)
#: Steps with canaries in which a norm is checked: the first `_FIRST`, then one in `_EVERY`.
_FIRST, _EVERY = 10, 50
_NORMS, _NORM = "get_norm_sample", "_norm_sample"
_AVERAGED = "no canary entered, because the criterion averages the losses of the batch"


class GhostStep(OpacusStep):
    """Adapter for `DPOptimizerFastGradientClipping`.

    Args:
        optimizer: the private optimizer.
        names: parameter -> name in the module, by identity; unknown ones are numbered.
        modules: whose hooks compute the norms.
    """

    def __init__(
        self,
        optimizer: DPOptimizerFastGradientClipping,
        names: dict[int, str],
        modules: Iterable[torch.nn.Module] = (),
    ) -> None:
        super().__init__(optimizer, names)
        self._loss: Any = None
        #: Opacus' module, which stores the norms of its last backward pass.
        self._teller: Any = None
        #: On the module's computation of norms, between the backward passes.
        self._hook: MethodHook | None = None
        self._canaries = CanaryRows([])
        self._norm = 0.0
        #: Zeros as the canaries' losses; their gradients are the clipping factors.
        self._losses: torch.Tensor | None = None
        #: Restores the attributes of the user's loss.
        self._restore: Callable[[], None] = nothing
        self._steps = 0
        self.norms = NormsSeen()
        #: Whether the criterion averages the losses of the batch, so that none is weighed; whether
        #: a step used the gradient of another loss than the criterion's.
        self.averages = self.another = False
        # What holds Opacus' hooks on the layer of a parameter.
        hooks = ((module, backward_hook(module)) for module in modules)
        self._tellers = {p: h.func.__self__ for m, h in hooks if h for p in m.parameters()}  # type: ignore[attr-defined]
        # Parameters with a gradient of another loss; by parameter, the norms that clipped the rest.
        self._raw: set[torch.nn.Parameter] = set()
        self._norms: dict[torch.nn.Parameter, Any] = {}

    def tap(self, coordinates: dict[int, IndexArray], *, cut_known: bool = False) -> GradientTap:
        """Return the reader of the steps' gradients, which reports each backward pass."""
        return GradientTap(self.inner, self.params, coordinates, self.note_backward)

    def concerns(self, coming: Backward) -> bool:
        """Return whether the coming loss is that of Opacus' criterion for this optimizer."""
        return getattr(coming.loss, "optimizer", None) is self.optimizer

    def obstacle(self, coming: Backward) -> str:
        """Return why no canary can join the coming backward pass; empty if one can."""
        self._loss = coming.loss
        if isinstance(coming.loss, DPTensorFastGradientClipping):
            self._teller = coming.loss.module
            if coming.loss.loss_per_sample.dim():
                return ""
            self.averages = True
            return _AVERAGED
        return f"no canary entered, because {_NO_GHOST_LOSS}"

    def lay_out(self, rows: Sequence[Direction], norm: float, seed: Seed = None) -> None:
        """Append the canaries to norms and losses after the first backward pass."""
        loss, count = self._loss, len(rows)
        self._loss = self._losses = None
        self._canaries, self._norm = as_rows(rows), norm

        def joined(norms: torch.Tensor) -> torch.Tensor:
            self._put_back()
            self._look_at(loss, norms)
            self._restore = _restoring(loss)
            terms = loss.loss_per_sample.new_zeros(count, requires_grad=True)
            own = norms.new_tensor([norm * row.norm() for row in rows])
            loss.loss_per_sample = torch.cat([loss.loss_per_sample, terms])
            self._losses = terms
            _leave_out_of_adaptation(loss, count)
            return torch.cat([norms, own])

        self._hook = MethodHook(loss.module, _NORMS, after=joined, shown=True)

    def _look_at(self, loss: Any, norms: torch.Tensor) -> None:
        """Compare the norm that clipping uses for a sample with that of its formed gradient."""
        number, self._steps = self._steps, self._steps + 1
        if not len(norms) or (number >= _FIRST and number % _EVERY):
            return
        # Alternate between the sample with the smallest stated norm and any other.
        sample = int(norms.argmin()) if number % 2 else number % len(norms)
        loss.module.disable_hooks()
        try:
            found = torch.autograd.grad(
                loss.loss_per_sample[sample].sum(),
                [p for p in self.params if p.requires_grad],
                retain_graph=True,
                allow_unused=True,
            )
        finally:
            loss.module.enable_hooks()
        parts = [part.double().norm() for part in found if part is not None]
        norm = float(torch.stack(parts).norm()) if parts else 0.0
        stated = max(float(norms[sample]), 1e-6 * as_number(self.optimizer.max_grad_norm))
        assert self.norms is not None
        self.norms.take_ratio(norm / stated)

    def note_backward(self, param: torch.nn.Parameter) -> None:
        """Note whether the backward pass is the second one of Opacus' loss, which clips."""
        if getattr(self._tellers.get(param), "hooks_enabled", False):
            self._raw.add(param)  # or it is the first one: the second one replaces its gradient
        else:
            self._raw.discard(param)
            self._norms[param] = getattr(param, _NORM, None)

    def look_at_gradient(self) -> None:
        """Look whether a gradient has the records of another loss.

        The hooks of a layer replace the norms if a loss of records passes it.
        """
        raw = (p for p in self._raw if p.grad is not None and p.grad.any())
        self.another |= any(getattr(p, _NORM, None) is not self._norms.get(p) for p in raw)

    def conceal(self) -> None:
        """Restore the user's loss; the canaries are not in the gradients yet."""
        self._restore()
        self._restore = nothing

    def put_in(self) -> bool:
        """Add the canaries, each times its clipping factor, to the sum before its noise."""
        factors = self._losses.grad if self._losses is not None else None
        self._losses = None
        if factors is None:
            return False
        # Read now, since adaptive clipping changes both in the backward pass.
        assert self.norms is not None
        norms = self._teller.max_grad_norm, self.optimizer.max_grad_norm
        self.norms.take_norms(*map(as_number, norms))
        # No canary may be in (all coins 0): the step was audited all the same.
        weights = self._norm * factors.double().cpu().numpy()
        self._canaries.add([p.grad for p in self.params], weights)
        return True

    def copy_in(
        self, rows: Sequence[Direction], norm: float, seed: Seed = None, part: int = -1
    ) -> None:
        """Refuse: after the backward pass no canary can be added.

        Raises:
            CannotEnter: always.
        """
        raise CannotEnter(_NO_GHOST_LOSS)

    def take_out(self) -> bool:
        """Discard pending canaries; those that entered are in no per-sample gradient."""
        self._put_back()
        self.conceal()
        self._losses = None
        return False

    def _put_back(self) -> None:
        """Restore the module's `get_norm_sample`."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def lost_rows(self) -> torch.Tensor | None:
        """Return which samples' gradients are not finite, by the last backward pass's norms."""
        norms = getattr(self._teller, "_per_sample_gradient_norms", None)
        return None if norms is None else self._with_earlier(~torch.isfinite(norms.detach()))

    def holds_canaries(self) -> bool:
        """Return False: no per-sample gradients are formed."""
        return False

    def batch_size(self) -> None:
        """Return None: per-sample gradients are not formed."""


def _restoring(loss: Any) -> Callable[[], None]:
    """Return a function that restores a loss's terms and adaptation as they are now."""
    terms, adapt = loss.loss_per_sample, vars(loss).get("_update_clip_and_noise")

    def restore() -> None:
        loss.loss_per_sample = terms
        vars(loss).pop("_update_clip_and_noise", None)
        if adapt is not None:
            loss._update_clip_and_noise = adapt

    return restore


def _leave_out_of_adaptation(loss: Any, count: int) -> None:
    """Exclude the canaries' norms from adaptive clipping."""
    adapt = getattr(loss, "_update_clip_and_noise", None)
    if adapt is not None:
        loss._update_clip_and_noise = lambda norms: adapt(norms[: len(norms) - count])
