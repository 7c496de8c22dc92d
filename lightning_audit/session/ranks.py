"""The processes of one training: which one adds a step's canaries, and what they exchange.

All processes flip the same coins and read the same gradient, which is summed over all of them. Only
one process adds rows to its per-sample gradients, in rotation. Rank 0 writes and decides.

Messages have a fixed size and use a process group of the audit's own, so that any message pairs
with any other. A process whose audit fails sends one last message, without waiting, and leaves. The
others receive it at their next message, and their audits fail too. Before a step is clipped, all
agree on its canaries (`agreed`): until then a failure removes them from the per-sample gradients;
from then on each process removes them from the sum.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import distributed

from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.taps.boundary import Boundary, FailedElsewhere, current

if TYPE_CHECKING:
    import pytorch_lightning as pl

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

    @classmethod
    def of(cls, trainer: pl.Trainer, boundary: Boundary | None = None) -> Ranks:
        """Return the processes of a Trainer."""
        return cls(trainer.global_rank, trainer.world_size, talk=True, boundary=boundary)

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
            return all(told == b"1" for told in self._told(b"1" if entered else b"0"))
        except Unreachable:  # the training's own communication reports it next
            self.part()
            return False

    def meet(self) -> None:
        """Check that the audit has failed in none of the processes."""
        if self.talk:
            self._told(b"")

    def shared(self, value: _Value) -> _Value:
        """Return the value of rank 0."""
        if not self.talk:
            return value
        told = self._told(pickle.dumps(value) if self.is_first else b"")[0]
        received: _Value = pickle.loads(told)
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
        told = self._told(np.array(numbers, dtype=np.int64).tobytes())
        return [np.frombuffer(row, dtype=np.int64).tolist() for row in told]

    # ------------------------------------------------------------------ messages

    def _told(self, data: bytes) -> list[bytes]:
        """Return the data of each process, by rank; long data take several messages."""
        told, more, room = [b""] * self.count, True, _SIZE - _HEAD
        while more:
            own = _written(_MORE if len(data) > room else _LAST, data[:room])
            data, rows = data[room:], self._rows()
            group = self._group()
            try:
                distributed.all_gather(rows, own, group=group)
            except RuntimeError as error:
                raise Unreachable from error
            kinds = [int(row[0]) for row in rows]
            said = [_read(row) for row in rows]
            if _FAILED in kinds:
                self.talk = False
                rank = kinds.index(_FAILED)
                line, _, failure = said[rank].decode().partition(":")
                raise FailedElsewhere(f"{failure}, in the process of rank {rank}", int(line))
            told = [before + piece for before, piece in zip(told, said, strict=True)]
            more = _MORE in kinds
        return told

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
