"""Runs the user's whole step on other batches with the same random numbers, and reads its release.

Code of the user runs from `training_step` to the end of the update, as it does in the training.
What is released is read at the cut, where the noise is in; then everything is put back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from lightning_audit.checks.replay.replay_checks import NONE_LEFT
from lightning_audit.dpsgd.cut import divisor_at_cut, watch_cut
from lightning_audit.dpsgd.hand_over import diverted
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.hand_written_replay import HandWrittenReplay
from lightning_audit.replay.left_behind import left_behind
from lightning_audit.replay.own_reach import ReachesOut
from lightning_audit.replay.random_places import RandomPlaces
from lightning_audit.replay.replay import ANOTHER_DREW, Replay, Stopped, count_rows
from lightning_audit.replay.step_watch import copied
from lightning_audit.replay.training_state import TrainingState
from lightning_audit.taps.boundary import entry, raised_in_audit
from lightning_audit.taps.method_hook import MethodHook
from lightning_audit.taps.step_hooks import is_torchs

#: Of Opacus' adaptive clipping: how many gradients were not clipped, noise included, of how many.
_COUNTS = ("unclipped_num", "sample_size")


class StepReplay:
    """Replays of the step of one private optimizer.

    Args:
        take_step: takes the user's step on batches, as the training does.
        module: the user's module.
        step: the adapter of its private optimizer.
        claim: what is claimed of a step, read before any replay: faulty code may change it.
        state: the training, to which it is put back after each replay.
        skips: of each physical batch, whether the optimizer's step was skipped after it, as Opacus'
            batch memory manager does; empty where the step's own code decides that.
        budget: steps that may be replayed; None for as many as are needed.
        beat: is called after each replay.
    """

    def __init__(
        self,
        take_step: Callable[[Sequence[Any]], None],
        module: torch.nn.Module,
        step: DPSGDStep,
        claim: StepClaim,
        state: TrainingState,
        skips: Sequence[bool] = (),
        budget: int | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._budget, self._beat, self._usual = budget, beat, dict[tuple[int, ...], Replay]()
        #: Steps that were replayed, and the shortest of them on the step's own records, in seconds
        #: of the processor.
        self.steps, self.step_seconds = 0, float("inf")
        #: Of each call of the optimizer's step, whether it is skipped; empty if none is.
        self.skips = list(skips) if any(skips) else []
        self._take_step, self._module = take_step, module
        self._step, self._claim = step, claim
        self._state, self._private = state, private_optimizer(step.optimizer)
        #: Whether only so many steps may be replayed.
        self.limited = budget is not None
        #: Types of the trained tensors, that of what is put in, and entries of each tensor.
        self.dtypes = [p.dtype for p in step.params]
        self.dtype = torch.float64 if torch.float64 in self.dtypes else torch.float32
        self.sizes = [p.numel() for p in step.params]
        #: The trained tensors, and the claimed noise over the clipping norm.
        self.layout, self.noise_multiplier = step.layout, claim.noise_multiplier
        self.clipping_norm = claim.max_grad_norm

    def usual(self, batches: Sequence[Any], seed: int) -> Replay:
        """The step as it is, replayed once however often it is asked for, with what it left."""
        key = (seed, *map(id, batches))
        if key not in self._usual:
            self._usual[key] = self.run(batches, seed, look=True)
        return self._usual[key]

    def run(
        self,
        batches: Sequence[Any],
        seed: int,
        *,
        rows: torch.Tensor | None = None,
        released: Replay | None = None,
        then: Sequence[Any] = (),
        keep: int = 0,
        alone: bool = False,
        look: bool = False,
        others: Mapping[str, int] | None = None,
    ) -> Replay:
        """Replay a step, and put everything back.

        Args:
            batches: the physical batches of the logical one.
            seed: of every generator, set when the step begins, when its gradients come to be
                clipped, when noise is added, at the cut, and when a second step begins.
            rows: per-sample gradients in units of the clipping norm that take the place of those
                of the last batch, ``[n, d]``.
            released: of which the releases take the place of this one's, behind the cut.
            then: batches of a second step, which is left as it is.
            keep: columns in which the per-sample gradients are kept; 0 for not at all.
            alone: whether Opacus clips and noises ``rows`` without the rest of the step.
            look: whether it is read what the step leaves behind, as it is where another follows.
            others: seeds of single places of the first step; see `RandomPlaces`.

        Raises:
            Stopped: no more may be replayed.
        """
        self._state.shared.look()
        if self.stopped or not self.has_left(1 + bool(then)):
            raise Stopped(self.stopped or NONE_LEFT)
        self.steps += 1 + bool(then)
        found, self._later, self._keep = Replay(shown=self.clips_by_opacus), False, keep
        places = RandomPlaces(self._state, seed, found, others)
        try:
            with self._watched(found, places, rows, released), self._state.entropy:
                places.begin()
                self._take_first(batches, rows, alone=alone)
                if then or look:
                    found.after = left_behind(self._module, self._step.optimizer)
                    found.used = self._flat([p.grad for p in self._step.params])
                if then:
                    self._later = True
                    places.begin_second()
                    self._announce(len(then))
                    self._take_step([copied(batch) for batch in then])
        except Exception as error:
            if raised_in_audit(error) and not isinstance(error, ReachesOut):
                raise
            found.fail(error)
        finally:
            self._state.shared.leave()
            self._state.put_back()
        self._beat()
        return found

    def _take_first(
        self, batches: Sequence[Any], rows: torch.Tensor | None, *, alone: bool
    ) -> None:
        """Take the step on its batches, or let ``rows`` alone be clipped and noised."""
        begun = time.thread_time()
        self._announce(len(batches))
        if alone and rows is not None:
            self._clip(rows)
            return
        self._take_step([copied(batch) for batch in batches])
        if rows is None:  # else its batch is a small one
            self.step_seconds = min(self.step_seconds, time.thread_time() - begun)

    def has_left(self, steps: int) -> bool:
        """Whether so many steps may still be replayed."""
        return self._budget is None or self.steps + steps <= self._budget

    def allow(self, steps: int) -> None:
        """Let so many more be replayed: a finding is made sure of whatever is left."""
        if self._budget is not None:
            self._budget += steps

    def why_none(self, what: str) -> str:
        """Why none was replayed."""
        return f"no {what} could be replayed" if self.has_left(2) else NONE_LEFT

    @property
    def stopped(self) -> str:
        """Why no more may be replayed, or empty."""
        return ANOTHER_DREW if self._state.shared.shared else ""

    @property
    def lost(self) -> str:
        """What could not be put back, or empty."""
        return "; ".join(self._state.lost)

    @property
    def adapts(self) -> bool:
        """Whether the clipping norm of a step is adapted within its backward pass."""
        return hasattr(self._step.optimizer, "_adjusted_noise_multiplier")

    @property
    def clips_by_opacus(self) -> bool:
        """Whether one of Opacus' optimizers clips."""
        return self._private is not None

    @property
    def clips_alone(self) -> bool:
        """Whether it clips and adds noise without a forward and a backward pass."""
        held = [getattr(p, "grad_sample", None) for p in self._step.params]
        return self._private is not None and all(isinstance(h, torch.Tensor | list) for h in held)

    def _clip(self, rows: torch.Tensor) -> None:
        """Let the private optimizer make its gradient of per-sample gradients of ours."""
        private: Any = self._private
        private.zero_grad()
        self._hand_over(rows)
        private.pre_step()

    def _hand_over(self, rows: torch.Tensor) -> None:
        norm, params = self._claim.max_grad_norm, self._step.params
        for p, own in zip(params, self._split(rows * norm), strict=True):
            p.grad_sample = own.to(p.dtype).to(p.device)  # type: ignore[attr-defined]

    def _announce(self, batches: int) -> None:
        """Tell Opacus which of the coming physical batches end a logical one, where it asks."""
        if self.skips and batches:
            self._private._step_skip_queue[:0] = self.skips[-batches:]  # type: ignore[union-attr]

    # ------------------------------------------------------------------ what is watched

    @contextlib.contextmanager
    def _watched(
        self,
        found: Replay,
        places: RandomPlaces,
        rows: torch.Tensor | None,
        released: Replay | None,
    ) -> Iterator[None]:
        for part in self._module.modules():
            if isinstance(part, _DropoutNd):
                part.training = False  # the mask of a record that moves would be another one

        def clips() -> None:
            found.parts += not self._later
            # By hand, records may come one by one.
            places.passes("clipping", once=self._private is None)

        def reads(
            grads: Sequence[torch.Tensor | None], unit: float, *, again: bool = False
        ) -> None:
            seen = found.later if self._later else found.releases
            if again:
                seen.pop()
            seen.append(self._flat(grads) / unit)
            places.passes("cut")
            if self._later:
                return
            number = len(seen)
            if released is not None and number <= len(released.releases):
                self._force(grads, released.releases[number - 1] * unit)
                for name, value in released.counts.items():
                    setattr(self._private, name, value)

        with contextlib.ExitStack() as stack:
            if self._private is not None:
                hooks = self._opacus_hooks(found, places, rows, clips, reads)
            else:
                source = HandWrittenReplay(
                    self._step, found, rows, self._claim, clips, reads, keep=self._keep
                )
                stack.enter_context(diverted(self._module, source))
                hooks = self._update_hooks(found, source, reads)
            for hook in hooks:
                stack.callback(hook.remove)
            yield

    def _opacus_hooks(
        self,
        found: Replay,
        places: RandomPlaces,
        rows: torch.Tensor | None,
        clips: Callable[[], None],
        reads: Callable[..., None],
    ) -> list[Any]:
        private: Any = self._private
        params = self._step.params
        norm = self._claim.max_grad_norm

        def before_clipping() -> None:
            held = [getattr(p, "grad_sample", None) for p in params]
            last = [h[-1] if isinstance(h, list) and h else h for h in held]
            tensors = [h for h in last if isinstance(h, torch.Tensor)]
            if len(tensors) == len(params) and not self._later:
                count_rows(found, tensors, norm, self._keep)
                if rows is not None and private._check_skip_next_step(pop_next=False) is False:
                    self._hand_over(rows)
            clips()

        def noise_is_in() -> None:
            divisor = divisor_at_cut(private, params, self._claim)
            if not found.counts:
                found.counts = {n: getattr(private, n) for n in _COUNTS if hasattr(private, n)}
            reads([p.grad for p in params], norm / divisor)

        def before_noise() -> None:
            found.stated = float(private.max_grad_norm) / norm
            found.noise.append(float(private.noise_multiplier))
            places.passes("noise")

        return [
            MethodHook(private, "pre_step", before=before_clipping),
            MethodHook(private, "add_noise", before=before_noise),
            watch_cut(private, noise_is_in),
        ]

    def _update_hooks(
        self, found: Replay, source: HandWrittenReplay, reads: Callable[..., None]
    ) -> list[Any]:
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
        return [
            inner.register_step_pre_hook(entry(pre)),
            inner.register_step_post_hook(entry(post)),
        ]

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
