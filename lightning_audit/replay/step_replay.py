"""Run the user's whole step on given batches and random numbers, and read its release.

The user's code runs from `training_step` to the end of the update, as in the training. The release
is read at the cut, after noise was added. Then all state is restored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from lightning_audit.checks.replay.unanswered import NONE_LEFT
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

#: Opacus' adaptive clipping: the noisy number of unclipped gradients, and the number of all.
_COUNTS = ("unclipped_num", "sample_size")


class StepReplay:
    """Replays of the step of one private optimizer.

    Args:
        take_step: runs the user's step on batches, as the training does.
        module: the user's module.
        step: the adapter of the private optimizer.
        claim: of a step, read before any replay: faulty code may change it.
        state: of the training, which is restored after each replay.
        skips: for each physical batch, whether Opacus' batch memory manager skipped the optimizer's
            step after it; empty if the step's own code decides that.
        budget: largest number of replayed steps; None for no limit.
        beat: called after each replay.
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
        #: Number of replayed steps, and the CPU seconds of the fastest one on the step's own
        #: records.
        self.steps, self.step_seconds = 0, float("inf")
        #: For each call of the optimizer's step, whether it is skipped; empty if none is.
        self.skips = list(skips) if any(skips) else []
        self._take_step, self._module = take_step, module
        self._step, self._claim = step, claim
        self._state, self._private = state, private_optimizer(step.optimizer)
        #: Whether the number of replayed steps is limited.
        self.limited = budget is not None
        #: Types of the trained tensors, type of crafted gradients, and entries of each tensor.
        self.dtypes = [p.dtype for p in step.params]
        self.dtype = torch.float64 if torch.float64 in self.dtypes else torch.float32
        self.sizes = [p.numel() for p in step.params]
        #: The trained tensors, and the claimed noise over the clipping norm.
        self.layout, self.noise_multiplier = step.layout, claim.noise_multiplier
        self.clipping_norm = claim.max_grad_norm

    def usual(self, batches: Sequence[Any], seed: int) -> Replay:
        """Return the replay of the step as it is, with the state after it; cached."""
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
        """Replay a step, and restore all state.

        Args:
            batches: the physical batches of the logical one.
            seed: of every generator, set when the step begins, before clipping, before noise is
                added, at the cut, and when a second step begins.
            rows: per-sample gradients in units of the clipping norm that replace those of the last
                batch, ``[n, d]``.
            released: a replay whose releases replace this one's after the cut.
            then: batches of a second step, in which nothing is replaced.
            keep: number of columns in which the per-sample gradients are kept; 0 for none.
            alone: whether to clip and noise ``rows`` by Opacus without the rest of the step.
            look: whether to read the state after the step; always read before a second step.
            others: seeds of single points of the first step; see `RandomPlaces`.

        Raises:
            Stopped: no further step may be replayed.
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
        """Run the step on its batches, or only clip ``rows`` and add noise."""
        begun = time.thread_time()
        self._announce(len(batches))
        if alone and rows is not None:
            self._clip(rows)
            return
        self._take_step([copied(batch) for batch in batches])
        if rows is None:  # with crafted rows, the batch may be small
            self.step_seconds = min(self.step_seconds, time.thread_time() - begun)

    def has_left(self, steps: int) -> bool:
        """Return whether this number of steps may still be replayed."""
        return self._budget is None or self.steps + steps <= self._budget

    def allow(self, steps: int) -> None:
        """Raise the limit by ``steps``, to confirm a finding regardless of the budget."""
        if self._budget is not None:
            self._budget += steps

    def why_none(self, what: str) -> str:
        """Return why nothing was replayed."""
        return f"no {what} could be replayed" if self.has_left(2) else NONE_LEFT

    @property
    def stopped(self) -> str:
        """Why no further step may be replayed, or empty."""
        return ANOTHER_DREW if self._state.shared.shared else ""

    @property
    def lost(self) -> str:
        """What could not be restored, or empty."""
        return "; ".join(self._state.lost)

    @property
    def adapts(self) -> bool:
        """Whether the clipping norm adapts within the step's backward pass."""
        return hasattr(self._step.optimizer, "_adjusted_noise_multiplier")

    @property
    def clips_by_opacus(self) -> bool:
        """Whether an Opacus optimizer clips."""
        return self._private is not None

    @property
    def clips_alone(self) -> bool:
        """Whether the optimizer can clip and add noise without a forward and backward pass."""
        held = [getattr(p, "grad_sample", None) for p in self._step.params]
        return self._private is not None and all(isinstance(h, torch.Tensor | list) for h in held)

    def _clip(self, rows: torch.Tensor) -> None:
        """Run the private optimizer's clipping and noise on crafted per-sample gradients."""
        private: Any = self._private
        private.zero_grad()
        self._hand_over(rows)
        private.pre_step()

    def _hand_over(self, rows: torch.Tensor) -> None:
        norm, params = self._claim.max_grad_norm, self._step.params
        for p, own in zip(params, self._split(rows * norm), strict=True):
            p.grad_sample = own.to(p.dtype).to(p.device)  # type: ignore[attr-defined]

    def _announce(self, batches: int) -> None:
        """Queue for Opacus which of the coming physical batches skip the optimizer's step."""
        if self.skips and batches:
            self._private._step_skip_queue[:0] = self.skips[-batches:]  # type: ignore[union-attr]

    # ------------------------------------------------------------------ hooks

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
                part.training = False  # a record that moves would get another mask

        def clips() -> None:
            found.parts += not self._later
            # A hand-written step may clip records one by one.
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
        """Return hooks that read the release when the update begins, unless the code showed it."""
        depth = 0
        unit = self._claim.max_grad_norm / self._claim.scale

        def pre(*_: Any) -> None:
            nonlocal depth
            depth += 1
            found.sure = source.shown or depth > 1 or is_torchs(self._step.inner.step)
            if not source.shown:
                # A class that clips in its own step and then calls torch's runs this hook twice.
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
