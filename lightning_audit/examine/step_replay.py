"""Runs the user's whole step on other batches with the same random numbers, and reads its release.

Code of the user runs from `training_step` to the end of the update, as it does in the training.
What is released is read at the cut, where the noise is in; then everything is put back.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from lightning_audit.dpsgd.cut import divisor_at_cut, watch_cut
from lightning_audit.dpsgd.hand_over import diverted
from lightning_audit.dpsgd.opacus import chain, private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.examine.hand_written_replay import HandWrittenReplay, count_rows
from lightning_audit.examine.training_state import TrainingState
from lightning_audit.taps.method_hook import MethodHook
from lightning_audit.taps.step_hooks import is_torchs

#: Apart from one another, so that no two places of a step get the same numbers.
_AT_CLIPPING, _AT_NOISE = 1_000_003, 2_000_003
#: Of Opacus' adaptive clipping: how many gradients were not clipped, noise included, of how many.
_COUNTS = ("unclipped_num", "sample_size")


@dataclass
class Replay:
    """What one replay of a step showed.

    Args:
        releases: the gradient where its noise is in, of each step of the optimizer, in units of
            the clipping norm, ``[d]``.
        rows: per-sample gradients that came to be clipped; 0 where none is formed.
        norms: their norms in units of the clipping norm, ``[rows]``; empty where none is formed.
        drew: whether a generator was used before the gradients came to be clipped.
        counts: what an optimizer that adapts its clipping norm releases beside its gradients.
        after: what the step left behind that later steps read or a checkpoint holds, by name.
        later: releases of a second step on the same batches; empty where none was asked for.
        sure: whether what was read is where the noise is in.
        error: what the user's code raised; empty if nothing.
        where: the line of it.
    """

    releases: list[torch.Tensor] = field(default_factory=list)
    rows: int = 0
    norms: list[torch.Tensor] = field(default_factory=list)
    drew: bool = False
    counts: dict[str, Any] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    later: list[torch.Tensor] = field(default_factory=list)
    sure: bool = True
    error: str = ""
    where: str = ""


class StepReplay:
    """Replays of the step of one private optimizer.

    Args:
        take_step: takes the user's step on batches, as the training does.
        module: the user's module.
        step: the adapter of its private optimizer.
        claim: what is claimed of a step, read before one is replayed: faulty code may change what
            the optimizer states.
        state: the training, to which it is put back after each replay.
        skips: of each call of the optimizer's step in a logical step, whether it was skipped, as
            Opacus' batch memory manager has it; of the last one not.
    """

    def __init__(
        self,
        take_step: Callable[[Sequence[Any]], None],
        module: torch.nn.Module,
        step: DPSGDStep,
        claim: StepClaim,
        state: TrainingState,
        skips: Sequence[bool] = (),
    ) -> None:
        #: Of each call of the optimizer's step, whether it is skipped; empty if none is.
        self.skips = list(skips) if any(skips) else []
        self._take_step = take_step
        self._module = module
        self._step = step
        self._claim = claim
        self._state = state
        self._private = private_optimizer(step.optimizer)
        #: Types of the trained tensors, and entries of each.
        self.dtypes = [p.dtype for p in step.params]
        self.sizes = [p.numel() for p in step.params]
        #: Replays so far.
        self.count = 0

    def run(
        self,
        batches: Sequence[Any],
        seed: int,
        *,
        rows: torch.Tensor | None = None,
        released: Replay | None = None,
        then: Sequence[Any] = (),
    ) -> Replay:
        """Replay a step, and put everything back.

        Args:
            batches: the physical batches of the logical one.
            seed: of every generator, set when the step begins, again when its gradients come to be
                clipped, and again when noise is added.
            rows: per-sample gradients in units of the clipping norm that take the place of those
                of the last batch, ``[n, d]``.
            released: of which the releases take the place of this one's, behind the cut.
            then: batches of a second step, which is left as it is.
        """
        found, self._later = Replay(), False
        self.count += 1
        try:
            with self._watched(found, seed, rows, released):
                self._state.seed(seed)
                self._begun = torch.get_rng_state()
                self._announce(len(batches))
                self._take_step(batches)
                found.after = self._left_behind() if then else {}
                self._later = True
                self._announce(len(then))
                self._take_step(then)
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}"
            frames = traceback.extract_tb(error.__traceback__)
            found.where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        finally:
            self._state.put_back()
        return found

    @property
    def adapts(self) -> bool:
        """Whether the clipping norm of a step is adapted within its backward pass."""
        return hasattr(self._step.optimizer, "_adjusted_noise_multiplier")

    def rounding(self, seen: Replay) -> float:
        """Norm of what rounding adds to the difference of two releases, in clipping norms.

        Each entry of a release is rounded to its own size, twice for a difference; that error is
        independent of the difference, so that their squares add up.
        """
        digits = max(torch.finfo(p.dtype).eps for p in self._step.params)
        return 0.5 * digits * float(torch.cat(seen.releases).norm()) if seen.releases else 0.0

    def _announce(self, batches: int) -> None:
        """Tell Opacus which of the coming physical batches end a logical one, where it asks."""
        if self.skips and batches:
            self._private._step_skip_queue[:0] = self.skips[-batches:]  # type: ignore[union-attr]

    # ------------------------------------------------------------------ what is watched

    @contextlib.contextmanager
    def _watched(
        self, found: Replay, seed: int, rows: torch.Tensor | None, released: Replay | None
    ) -> Iterator[None]:
        for part in self._module.modules():
            if isinstance(part, _DropoutNd):
                part.training = False  # the mask of a record that moves would be another one
        clipped = 0

        def clips() -> None:
            nonlocal clipped
            if not clipped:
                found.drew = not torch.equal(self._begun, torch.get_rng_state())
            clipped += 1
            self._state.seed(seed + clipped * _AT_CLIPPING)

        def reads(
            grads: Sequence[torch.Tensor | None], unit: float, *, again: bool = False
        ) -> None:
            seen = found.later if self._later else found.releases
            if again:
                seen.pop()
            seen.append(self._flat(grads) / unit)
            if self._later:
                return
            number = len(seen)
            if released is not None and number <= len(released.releases):
                self._force(grads, released.releases[number - 1] * unit)
                for name, value in released.counts.items():
                    setattr(self._private, name, value)

        with contextlib.ExitStack() as stack:
            if self._private is not None:
                hooks = self._opacus_hooks(found, seed, rows, clips, reads)
            else:
                source = HandWrittenReplay(self._step, found, rows, self._claim, clips, reads)
                stack.enter_context(diverted(self._module, source))
                hooks = [self._update_hook(found, source, reads)]
            for hook in hooks:
                stack.callback(hook.remove)
            yield

    def _opacus_hooks(
        self,
        found: Replay,
        seed: int,
        rows: torch.Tensor | None,
        clips: Callable[[], None],
        reads: Callable[..., None],
    ) -> list[Any]:
        private: Any = self._private
        params = self._step.params
        norm, scale = self._claim.max_grad_norm, self._claim.scale
        noise_std = self._claim.noise_multiplier * norm

        def before_clipping() -> None:
            held = [getattr(p, "grad_sample", None) for p in params]
            last = [h[-1] if isinstance(h, list) and h else h for h in held]
            tensors = [h for h in last if isinstance(h, torch.Tensor)]
            if len(tensors) == len(params) and not self._later:
                count_rows(found, tensors, norm)
                if rows is not None and private._check_skip_next_step(pop_next=False) is False:
                    for p, own in zip(params, self._split(rows * norm), strict=True):
                        p.grad_sample = own.to(p.dtype).to(p.device)  # type: ignore[attr-defined]
            clips()

        def noise_is_in() -> None:
            divisor = divisor_at_cut(private, params, noise_std, scale)
            if not found.counts:
                found.counts = {n: getattr(private, n) for n in _COUNTS if hasattr(private, n)}
            reads([p.grad for p in params], norm / divisor)

        noises = 0

        def before_noise() -> None:
            nonlocal noises
            noises += 1
            self._state.seed(seed + noises * _AT_NOISE)

        return [
            MethodHook(private, "pre_step", before=before_clipping),
            MethodHook(private, "add_noise", before=before_noise),
            watch_cut(private, noise_is_in),
        ]

    def _update_hook(
        self, found: Replay, source: HandWrittenReplay, reads: Callable[..., None]
    ) -> Any:
        """Reads where the update begins, unless the code has shown its release before."""
        depth = 0
        unit = self._claim.max_grad_norm / self._claim.scale

        def pre(*_: Any) -> None:
            nonlocal depth
            depth += 1
            found.sure = source.shown or depth > 1 or is_torchs(self._step.inner.step)
            if not source.shown:
                # A class that clips in its own step and goes on to that of torch's fires twice.
                reads([p.grad for p in self._step.params], unit, again=depth > 1)

        def post(*_: Any) -> None:
            nonlocal depth
            depth -= 1
            source.shown = source.shown and depth > 0

        inner = self._step.inner
        return _Handles(inner.register_step_pre_hook(pre), inner.register_step_post_hook(post))

    # ------------------------------------------------------------------ tensors

    def _flat(self, grads: Sequence[torch.Tensor | None]) -> torch.Tensor:
        parts = [
            torch.zeros(size, dtype=torch.float64)
            if grad is None
            else grad.detach().reshape(-1).to("cpu", torch.float64)
            for grad, size in zip(grads, self.sizes, strict=True)
        ]
        return torch.cat(parts)

    def _split(self, rows: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(rows, self.sizes, dim=1)
        shapes = [p.shape for p in self._step.params]
        return [part.reshape(len(rows), *s) for part, s in zip(parts, shapes, strict=True)]

    @torch.no_grad()
    def _force(self, grads: Sequence[torch.Tensor | None], values: torch.Tensor) -> None:
        for grad, own in zip(grads, torch.split(values, self.sizes), strict=True):
            if grad is not None:
                grad.copy_(own.view_as(grad))

    def _left_behind(self) -> dict[str, torch.Tensor]:
        """What later steps read of this one, and what a checkpoint holds: copies, by name."""
        names = {id(p): name for name, p in self._module.named_parameters()}
        kept: dict[str, Any] = {
            f"{'parameters' if id(v) in names else 'buffers'} of {name}": v
            for name, v in self._module.state_dict(keep_vars=True).items()
        }
        for optimizer in chain(self._step.optimizer):
            for p, state in optimizer.state.items():
                where = names.get(id(p), "another tensor")
                kept |= {f"optimizer state {key} of {where}": v for key, v in state.items()}
            for number, group in enumerate(optimizer.param_groups):
                kept |= {f"{key} of group {number}": v for key, v in group.items()}
            own = {k: v for k, v in vars(optimizer).items() if k not in _COUNTS}
            kept |= {f"attribute {key} of the optimizer": v for key, v in own.items()}
        return {name: _copied(value) for name, value in kept.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool)


def _copied(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).detach().to("cpu", torch.float64, copy=True).reshape(-1)


class _Handles:
    """Hooks that are removed together."""

    def __init__(self, *handles: Any) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
