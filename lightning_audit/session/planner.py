"""Plans a session's steps: claims, coins, directions, and which steps get canaries.

**The processes of one training: which one adds a step's canaries, and what they exchange.** All
processes flip the same coins and read the same gradient, which is summed over all of them. Only one
process adds rows to its per-sample gradients, in rotation. Rank 0 writes and decides.

Messages have a fixed size and use a process group of the audit's own, so that any message pairs
with any other. A process whose audit fails sends one last message, without waiting, and leaves. The
others receive it at their next message, and their audits fail too. Before a step is clipped, all
agree on its canaries (`agreed`): until then a failure removes them from the per-sample gradients;
from then on each process removes them from the sum.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.hooks.boundary import Boundary, FailedElsewhere, current
from lightning_audit.hooks.gradient_tap import CanaryRows
from lightning_audit.layout import Direction, FloatArray, same_objects
from lightning_audit.record.store import INJECTED, NOT_PLANNED, Kept
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.session.own_clipping import Fit, fit_of
from lightning_audit.session.plan import Coordinates, Plan
from lightning_audit.session.recorder import Recorder
from lightning_audit.verdict.judge import too_many_lost

# --- The processes of one training: which one adds a step's canaries, and what they exchange.

_Value = TypeVar("_Value")

#: Bytes of a message: a kind, a length in two bytes, and the payload.
_SIZE, _HEAD = 1024, 3
_LAST, _MORE, _FAILED = range(3)


class Unreachable(Exception):
    """Another process has ended, or has not answered within its group's timeout."""


class Ranks:
    """This process and the others of a training.

    A method that communicates must be called by all processes, at the same point of the run. It
    raises `FailedElsewhere` if the audit of another process has failed.

    Args:
        rank: global rank of this process.
        count: number of processes.
        talk: whether the processes can communicate.
        boundary: the audit's boundary, whose failure is sent to the others; None for the current
            one.
    """

    def __init__(
        self,
        rank: int = 0,
        count: int = 1,
        *,
        talk: bool = False,
        boundary: Boundary | None = None,
    ) -> None:
        self.rank = rank
        self.count = count
        #: Whether several processes train, and whether this one has rank 0.
        self.several, self.is_first = count > 1, rank == 0
        #: Whether the processes can still communicate.
        self.talk = talk and self.several
        self._opened: Any = None
        self._farewell: Any = None
        self._boundary = boundary or current()
        if self._boundary is not None and self.talk:
            self._boundary.on_leave(self.leave)

    def adds(self, step: int) -> bool:
        """Return whether this process adds the canaries of a step."""
        return step % self.count == self.rank

    def coins(self, key: int, step: int) -> np.random.Generator:
        """Return a generator that is the same in every process.

        Its seed contains the step's number, so that a process that plans a step twice draws the
        same coins as the others.
        """
        return np.random.default_rng((key, step))

    def part(self) -> None:
        """Stop communicating: the others may wait at another point of the run, or have ended."""
        self.talk = False

    def leave(self) -> None:
        """Send the failure of this process's audit, which the others receive next."""
        if not self.talk:
            return
        boundary = self._boundary
        failure = (boundary.failure if boundary is not None else "") or "an interrupt"
        line = boundary.line if boundary is not None else 0
        own, rows = _written(_FAILED, f"{line}:{failure}".encode()), self._rows()
        work = distributed.all_gather(rows, own, group=self._group(), async_op=True)
        self._farewell = (work, own, rows)  # kept until it is sent
        self.talk = False

    # ------------------------------------------------------------------ called by all

    def agreed(self, *, entered: bool) -> bool:
        """Return whether the canaries of the step to be clipped entered in all processes.

        If another process has ended, return False and stop communicating.

        Args:
            entered: whether they entered in this process, or it had none to add.
        """
        if not self.talk:
            return entered and not self.several
        try:
            return all(answer == b"1" for answer in self._messages(b"1" if entered else b"0"))
        except Unreachable:  # the training's own communication reports it next
            self.part()
            return False

    def meet(self) -> None:
        """Check that the audit has failed in none of the processes."""
        if self.talk:
            self._messages(b"")

    def shared(self, value: _Value) -> _Value:
        """Return the value of rank 0."""
        if not self.talk:
            return value
        first, *_ = self._messages(pickle.dumps(value) if self.is_first else b"")
        received: _Value = pickle.loads(first)
        return received

    def from_first(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on rank 0, and return the value in all processes.

        Raises:
            UnauditableTraining: rank 0 refused the training; raised in all processes.
        """
        if not self.talk:
            return compute()
        value: Any = None
        refusal: str | None = None
        if self.is_first:
            try:
                value = compute()
            except UnauditableTraining as error:  # the others must not wait for a value
                refusal = str(error)
        value, refusal = self.shared((value, refusal))
        if refusal is not None:
            raise UnauditableTraining(refusal)
        result: _Value = value
        return result

    def gathered(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of every process, by rank."""
        if not self.talk:
            return [list(numbers)]
        rows = self._messages(np.array(numbers, dtype=np.int64).tobytes())
        return [np.frombuffer(row, dtype=np.int64).tolist() for row in rows]

    # ------------------------------------------------------------------ messages

    def _messages(self, data: bytes) -> list[bytes]:
        """Return the data of each process, by rank; long data take several messages."""
        whole, more, room = [b""] * self.count, True, _SIZE - _HEAD
        while more:
            own = _written(_MORE if len(data) > room else _LAST, data[:room])
            data, rows = data[room:], self._rows()
            group = self._group()
            try:
                distributed.all_gather(rows, own, group=group)
            except RuntimeError as error:
                raise Unreachable from error
            kinds = [int(row[0]) for row in rows]
            pieces = [_read(row) for row in rows]
            if _FAILED in kinds:
                self.talk = False
                rank = kinds.index(_FAILED)
                line, _, failure = pieces[rank].decode().partition(":")
                raise FailedElsewhere(f"{failure}, in the process of rank {rank}", int(line))
            whole = [before + piece for before, piece in zip(whole, pieces, strict=True)]
            more = _MORE in kinds
        return whole

    def _rows(self) -> list[torch.Tensor]:
        return [torch.empty(_SIZE, dtype=torch.uint8) for _ in range(self.count)]

    def _group(self) -> Any:
        """Return the audit's process group, which the first message opens.

        Each training has its own: a last message that was not received must not reach the next
        training.
        """
        if self._opened is None:
            self._opened = distributed.new_group(backend="gloo")
        return self._opened


def _written(kind: int, data: bytes) -> torch.Tensor:
    """Return a message; data that do not fit are cut off."""
    data = data[: _SIZE - _HEAD]
    head = bytes([kind, *len(data).to_bytes(2, "little")])
    return torch.frombuffer(bytearray((head + data).ljust(_SIZE, b"\0")), dtype=torch.uint8)


def _read(row: torch.Tensor) -> bytes:
    """Return the data of a message."""
    whole = row.numpy().tobytes()
    return whole[_HEAD : _HEAD + int.from_bytes(whole[1:_HEAD], "little")]


# --- Plans a session's steps: claims, coins, directions, and which steps get canaries.

_log = logging.getLogger(__name__)

#: If rows must be copied and `every_n_steps` is None: canaries enter each of the first `FULL_STEPS`
#: steps, enough for the power that a pass needs at common noise multipliers, then every
#: `THINNED`-th step.
FULL_STEPS, THINNED = 500, 10

#: One step in `_AMONG` has its canaries among the rows of the data: swapping rows takes time.
_AMONG = 5
#: From step `_FROM` on, one step in `_WITHOUT` has no canary, to detect code that clips and adds
#: noise correctly only for batches with a canary. Shorter trainings keep all canaries.
_WITHOUT, _FROM = 20, 200
#: Probability that canaries enter the last part of a split batch; otherwise any of the others.
_LAST_PART = 0.5
#: Index of the step's random generator that chooses a part.
_PART = 4
#: Smallest norm of the one shorter canary of a step, in units of the clipping norm.
_SHORTEST = 1.5

_NO_ROWS = (
    "{kind} is given no rows of the audit: with them {why}; state an input canary, which is a "
    "record of the batch: canaries=[Mislabeled(amplitude=100.0)]"
)
_UNUSED = (
    "{names} got no per-sample gradient, so that Opacus' step raises: use these parameters in the "
    "loss, or call requires_grad_(False) on them before make_private"
)
_NOT_IN_ALL = "no canary entered a step: it did not enter in every process"
_ALONE = "another process could no longer be reached, so that no canary entered later steps"


class PartChoice:
    """Random choice of a part of a split batch whose number of parts is not yet known.

    A batch memory manager signals only whether more parts follow. The number of parts of the last
    split step is used; if the present step has fewer, its last part is entered.
    """

    def __init__(self) -> None:
        #: Number of parts of the last step that had several.
        self.usual = 2
        self._passed = 0
        self._target: int | None = None

    def chosen(self, rng: np.random.Generator) -> bool:
        """Return whether the canaries enter the present part, which is not the last."""
        if self._target is None:
            self._target = draw_part(self.usual, rng)
        return self._passed == self._target

    def passed(self) -> None:
        """Count a part that is followed by another."""
        self._passed += 1

    def ended(self) -> None:
        """Reset at the last part."""
        if self._passed:
            self.usual = self._passed + 1
        self._passed, self._target = 0, None


def draw_part(parts: int, rng: np.random.Generator) -> int:
    """Draw the index of the part to enter; -1 for the last one.

    Args:
        parts: number of parts, at least 2.
        rng: the audit's own generator.
    """
    return -1 if rng.random() < _LAST_PART else int(rng.integers(parts - 1))


class StepPlanner(Kept):
    """Planner of one private optimizer's steps; counts what their plans and notes need.

    Args:
        step: the adapter.
        config: what to audit, and how.
        coordinates: the entries that are read, and the positions of the canaries among them.
        rng: the audit's own generator.
        ranks: the processes of the training.
        recorder: counts the steps, and stores whether clipping is broken.
        track_batch_sizes: whether to keep batch sizes, as needed if the loader's type does not
            determine how it samples.
    """

    KEPT = ("anyone_copies", "changed_at", "pass_blockers", "missing", "notes")

    def __init__(
        self,
        step: DPSGDStep,
        config: AuditConfig,
        coordinates: Coordinates,
        rng: np.random.Generator,
        ranks: Ranks,
        recorder: Recorder,
        *,
        track_batch_sizes: bool = False,
    ) -> None:
        self.step = step
        self.config = config
        self.coordinates = coordinates
        self.ranks = ranks
        self.recorder = recorder
        self.rng = rng
        #: Key of the shared coins; all processes draw it from the same seed.
        self._key = int(rng.integers(2**63)) if ranks.several else 0
        #: Key of the rows' positions, order and lengths; from a spawned generator, which leaves
        #: the coins of the seed unchanged.
        self._looks_key = int(rng.spawn(1)[0].integers(2**63))
        #: Whether this process, or any, had to copy rows; True for "any" until all have reported.
        self.copied, self.anyone_copies = False, True
        self.notes = list(coordinates.placement.skipped)
        self.pass_blockers: list[str] = []
        #: Why steps were lost, if parameters had no gradient: it prevents a pass if many were.
        self.missing = ""
        self.batch_sizes: list[int] = []
        #: Number of records in all steps so far; None if it is unknown for any step.
        self.rows_taken: int | None = 0
        #: Number of gradients that a hand-written training has handed over in its steps so far.
        self.rows_handed = 0
        #: How rows fit into the optimizer's own clipping; whether that was tried.
        self.fit, self.tried = Fit(), False
        #: Smallest oversize of the run's canaries; a resumed run may have changed it.
        self.oversize = config.oversize
        self._track = track_batch_sizes
        #: Whether canaries may enter any part of a step. Not with several processes, which do not
        #: know each other's parts. Not under adaptive clipping, which may clip an earlier part to
        #: another norm than the step's.
        self.parts_are_equal = not (ranks.several or step.adapts_its_norm)
        self._parts = PartChoice()
        self.changed_at: int | None = None
        # Noise multiplier 0 until a claim was read: without a claim nothing is tested.
        self._last_claim = StepClaim(noise_multiplier=0.0, max_grad_norm=1.0, scale=1.0)

    # ------------------------------------------------------------------ the claim

    def claim(self, accumulated: int | None = None) -> StepClaim:
        """Return the claim about the coming step: the optimizer's, overridden by `config.claim`.

        Raises:
            ValueError: the optimizer's claim cannot be read, as without per-sample gradients.
        """
        stated, own = self.step.claim(accumulated), self.config.claim
        if self.fit.views > 1:
            stated = replace(stated, views=self.fit.views)
        if own is None:
            return stated
        batch, coefficients = own.expected_batch_size, own.noise_coefficients
        # Under correlated noise, the step's own draw is scaled by the first coefficient.
        weight = coefficients[0] if coefficients else 1.0
        return replace(
            stated,
            noise_multiplier=weight * (own.noise_multiplier or stated.noise_multiplier),
            max_grad_norm=own.max_grad_norm or stated.max_grad_norm,
            scale=batch * stated.accumulated if batch else stated.scale,
        )

    def known_claim(self) -> StepClaim | None:
        """Return `claim`, or None if there is none."""
        try:
            return self.claim()
        except (ValueError, IndexError):  # Opacus': no gradients, or a GAN's toggled optimizer
            return None

    def claim_now(self) -> StepClaim | None:
        """Return the claim about a step just before clipping; None, with a warning, if unknown."""
        try:
            self._last_claim = self.claim()
        except ValueError as error:
            pairs = zip(self.step.layout, self.step.params, strict=True)
            lacking = [s.name for s, p in pairs if getattr(p, "grad_sample", None) is None]
            said = _UNUSED.format(names=", ".join(lacking[:5])) if lacking else str(error)
            if self.note(f"the claim about a step is unknown: {said}"):
                _log.warning("privacy audit: step %d: %s", self.recorder.steps + 1, said)
            return None
        return self._last_claim

    def reread_claim(self, plan: Plan) -> Plan:
        """Read the claim again just before clipping: the user's hooks may have set the noise."""
        claim = self.known_claim()
        if claim is None or claim == plan.claim:
            return plan
        self._last_claim = claim
        return replace(plan, claim=claim)

    def plan_after_noise(self, plan: Plan, now: StepClaim) -> Plan:
        """Return a plan with the claim that was changed between clipping and noise.

        The smaller of the two noise multipliers is used, so that raising it for a moment gains
        nothing.

        Args:
            plan: the plan.
            now: the claim after the noise was added.
        """
        sigma = min(now.noise_multiplier, plan.claim.noise_multiplier)
        norm = plan.claim.max_grad_norm if self.step.adapts_its_norm else now.max_grad_norm
        return replace(plan, claim=replace(now, noise_multiplier=sigma, max_grad_norm=norm))

    # ------------------------------------------------------------------ plans

    def plan(self, claim: StepClaim) -> Plan:
        """Draw the coins and directions of a step."""
        ranks, number = self.ranks, self.recorder.steps
        rng = ranks.coins(self._key, number) if ranks.several else self.rng
        coins = self._toss(rng)
        directions = self.coordinates.placement.draw(rng)
        located = self.coordinates.locate(directions)
        adds = not ranks.several or ranks.adds(number)
        fit = self.fit
        among = self._by_number(0) % _AMONG == 0 and fit.views == 1
        return Plan(
            claim,
            coins,
            INJECTED,
            directions,
            located,
            self._rows(claim, coins, directions, short=fit.short) if adds else CanaryRows([]),
            adds,
            (self._looks_key, number) if among else None,
            fit.adds,
            added=int(coins.sum()) * claim.views,
            norm=self.config.oversize * claim.max_grad_norm,
        )

    def _rows(
        self, claim: StepClaim, coins: FloatArray, directions: Sequence[Direction], *, short: bool
    ) -> CanaryRows:
        """Return the rows of a step's canaries in a random order, one of them shorter."""
        chosen = [d for coin, d in zip(coins, directions, strict=False) if coin]
        first = self._by_number(1) % max(len(chosen), 1)
        chosen, lengths = chosen[first:] + chosen[:first], np.ones(len(chosen))
        if chosen and short:
            lengths[len(chosen) // 2] = self._shorter()
        rows = [row for row in chosen for _ in range(claim.views)]
        return CanaryRows(rows, lengths.repeat(claim.views))

    def _by_number(self, what: int) -> int:
        """Return a random number of the coming step, the same in a resumed run."""
        return hash((self._looks_key, self.recorder.steps, what))

    def chance(self, what: int) -> np.random.Generator:
        """Return a generator for the coming step, for draws that may depend on its batch.

        The state of the coins' generator is in checkpoints, and would reveal how often it was
        used.
        """
        return np.random.default_rng((self._looks_key, self.recorder.steps, what))

    def _shorter(self) -> float:
        """Draw the norm of the step's shorter canary over that of the others, log-uniformly."""
        drawn = self._by_number(2) % 1000 / 1000.0
        return float(min(_SHORTEST / self.config.oversize, 1.0) ** drawn)

    def _toss(self, rng: np.random.Generator) -> FloatArray:
        """Draw the coins of a step, 1 for in, ``[k]``."""
        header = self.recorder.header
        count, rate = len(header.canaries), header.coin_probability
        if rate == 0.5:
            return rng.integers(0, 2, size=count).astype(np.float64)
        return (rng.random(count) < rate).astype(np.float64)

    def without_canary(self, claim: StepClaim, status: int = NOT_PLANNED) -> Plan:
        """Return the plan of a step without canaries."""
        return Plan(claim, np.zeros(len(self.recorder.header.canaries)), status)

    def empty(self, status: int) -> Plan:
        """Return the plan of a step without canaries, with the current claim."""
        # There are no per-sample gradients if the optimizer was stepped around Opacus.
        self._last_claim = self.known_claim() or self._last_claim
        return self.without_canary(self._last_claim, status)

    def is_due(self, *, free: bool) -> bool:
        """Return whether canaries enter this step.

        Args:
            free: whether their rows need no copy.
        """
        if self.fit.why_not:
            return False
        every = self.config.every_n_steps
        if self.ranks.several:  # all processes must decide alike, also if only some must copy
            free = not self.anyone_copies
        if every is None:
            every = 1 if free or self.recorder.canary_steps < FULL_STEPS else THINNED
        number = self.recorder.steps
        without = number >= _FROM and self._by_number(3) % _WITHOUT == 0
        return number % every == 0 and not without

    def may_enter(self) -> bool:
        """Return whether canaries may enter the part of the batch that is clipped next."""
        chosen = self.step.final_step_of_batch() or (
            self.parts_are_equal and self._parts.chosen(self.chance(_PART))
        )
        return chosen and self.layout_holds() and not self.recorder.clipping_is_broken

    def draw_part(self, parts: int) -> int:
        """Draw which of a step's accumulated batches the canaries enter; -1 for the last."""
        return draw_part(parts, self.rng) if parts > 1 and self.parts_are_equal else -1

    def end_parts(self) -> bool:
        """Return, at the last part, whether canaries were drawn to enter an earlier one, if any.

        The record stores this, not the part that they entered, which would reveal the number of
        parts and so, roughly, the batch size.
        """
        self._parts.ended()
        splits = self.parts_are_equal and self.step.splits_batches()
        return splits and draw_part(self._parts.usual, self.chance(_PART)) >= 0

    def agreed(self, *, entered: bool) -> bool:
        """Return whether the canaries of a step before clipping entered in all processes.

        Args:
            entered: whether they entered in this one.
        """
        agreed = self.ranks.agreed(entered=entered)
        if entered and not agreed:
            self.note(_NOT_IN_ALL)
        if not self.ranks.talk:
            self.block_pass(_ALONE)
        return agreed

    @property
    def shows_noise(self) -> bool:
        """Whether the release is the clipped sum with noise, as far as is known."""
        return self.fit.noise

    def try_rows(self) -> bool:
        """Find out, before the first step, how rows fit into the optimizer's own clipping.

        Returns:
            Whether other rows must enter than those that may be laid out already, or none.
        """

        def draw() -> Sequence[Direction]:
            self.step.take_out()
            return self.plan(self.claim()).directions

        self.tried = True
        self.fit = fit_of(self.step, draw)
        if self.fit.why_not:
            self.leave_rows_out(self.fit)
        return self.fit != Fit()

    def leave_rows_out(self, fit: Fit) -> None:
        """Add no row of gradients from now on, since they do not fit."""
        self.fit, self.tried, kind = fit, True, type(self.step.optimizer).__name__
        self.block_pass(_NO_ROWS.format(kind=kind, why=fit.why_not))

    # ------------------------------------------------------------------ observations

    def layout_holds(self) -> bool:
        """Return whether the trained parameters are those of the start; if not, block a pass."""
        trained, start = self.step.trained(), self.step.params
        if self.changed_at is None and not same_objects(trained, start):
            self.changed_at = self.recorder.steps
            before, now = ({id(p): p for p in params} for params in (start, trained))
            joined = [str(tuple(p.shape)) for number, p in now.items() if number not in before]
            left = sum(number not in now for number in before)
            what = f"{left} left" if left else ""
            if joined:
                shapes = ", ".join(joined[:5])
                what = f"{len(joined)} joined, without which the audit began (shapes {shapes})"
            self.block_pass(
                f"the set of trained parameters changed in step {self.changed_at + 1}: {what}; "
                "whether later steps clip and noise them is not audited. Give the optimizer all "
                "parameters before the training starts, and make_private a module that has all "
                "layers; to train some later, set their learning rate to 0 until then"
            )
        return self.changed_at is None

    def count_part(self) -> None:
        """Count a step's part that is not the last, and its samples, before canaries enter it."""
        size = self.step.batch_size()
        if self.rows_taken is not None:
            self.rows_taken = None if size is None else self.rows_taken + size // self.fit.views
        self._parts.passed()

    def count_batch(self, plan: Plan | None) -> None:
        """Count a step's samples, and keep the batch size if sizes are tracked."""
        size = self.step.batch_size()
        if size is None:
            self.rows_taken = None
            return
        own = plan is not None and not plan.earlier
        size -= plan.added if plan is not None and own else 0
        size //= self.fit.views
        if self.rows_taken is not None:
            self.rows_taken += size
        if self._track:
            self.batch_sizes.append(size)

    def must_copy(self, obstacle: str) -> None:
        """Note why the rows of a step must be copied."""
        self.note(obstacle)
        self.copied = True

    def hear(self, *, anyone_copies: bool) -> None:
        """Take over whether any process had to copy rows."""
        self.anyone_copies = anyone_copies

    def end_epoch(self) -> None:
        """Drop the size of the epoch's last batch, which is smaller for many loaders."""
        del self.batch_sizes[-1:]

    def note(self, sentence: str) -> bool:
        """Add a note once; return whether it is new."""
        new = sentence not in self.notes
        if new:
            self.notes.append(sentence)
        return new

    def state_missing(self, names: Sequence[str], number: int) -> None:
        """Block a pass for parameters without a gradient at a step; the first such step is stated.

        Args:
            names: of the parameters.
            number: of the step, from 0.
        """
        what = f"{len(names)} of {len(self.step.layout)} parameters"
        self.missing = self.missing or (
            f"no gradient (`p.grad` is None) for {what} in step {number + 1} "
            f"({', '.join(names[:4])}): such steps are not tested; write the noisy gradient of "
            "every parameter that the optimizer trains before its step, or freeze those that get "
            "none before the training"
        )

    @property
    def lost_explained(self) -> bool:
        """Whether it is known why steps were lost: parameters without a gradient, or others."""
        return bool(self.missing) or self.changed_at is not None

    def blockers(self, monitor: AuditMonitor) -> list[str]:
        """Return what prevents a pass, as text; gradients that were missing do if many were."""
        many = not monitor.steps or too_many_lost(monitor.lost_steps, monitor.steps)
        return [*self.pass_blockers, *[self.missing] * bool(many and self.missing)]

    def block_pass(self, sentence: str) -> None:
        """Add a reason that prevents a pass, once."""
        if sentence not in self.pass_blockers:
            self.pass_blockers.append(sentence)

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores: the coins' generator, but no number of samples."""
        coins = self.rng.bit_generator.state
        return {**super().state(), "coins": coins, "oversize": self.oversize}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state, and keep the notes made since."""
        since = self.notes
        super().load(state)
        for sentence in since:
            self.note(sentence)
        self.rng.bit_generator.state = state["coins"]
        self.oversize = min(self.oversize, state["oversize"])
