"""The processes of one training: which of them adds a step's canaries, and what all must share.

All processes flip the same coins and read the same gradient, the sum over all of them; only one
adds rows to its per-sample gradients, each in its turn. The first one writes and decides.

They talk in messages of one size, over a process group of the audit's own, so that any message
pairs with any other. A process whose audit fails sends one last message, without waiting, and takes
part no more; the next message of each of the others meets it, and their audits fail too. Before a
step is clipped all agree on its canaries (`agreed`): until then a failure takes them out of the
per-sample gradients, and from then on each process takes them out of the sum.
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

#: Bytes of a message: a kind, a length in two bytes, and what is said.
_SIZE, _HEAD = 1024, 3
_LAST, _MORE, _FAILED = range(3)


class Unreachable(Exception):
    """Another process is gone, or says nothing for longer than its group allows."""


class Ranks:
    """This process among those that train together.

    A method that talks to the others must be called by all of them, at the same place of the run.
    It raises `FailedElsewhere` where the audit of another one has failed.

    Args:
        rank: number of this process over all nodes.
        count: number of processes.
        talk: whether the processes can reach each other.
        boundary: of the audit, whose failure the others learn; None for that of now.
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
        #: Whether more than one process trains, and whether this one is the one that writes.
        self.several, self.is_first = count > 1, rank == 0
        #: Whether the processes can still reach each other.
        self.talk = talk and self.several
        self._opened: Any = None
        self._farewell: Any = None
        self._boundary = boundary or current()
        if self._boundary is not None and self.talk:
            self._boundary.on_leave(self.leave)

    @classmethod
    def of(cls, trainer: pl.Trainer, boundary: Boundary | None = None) -> Ranks:
        """The processes of a Trainer."""
        return cls(trainer.global_rank, trainer.world_size, talk=True, boundary=boundary)

    def adds(self, step: int) -> bool:
        """Whether it is this process's turn to add the canaries of a step."""
        return step % self.count == self.rank

    def coins(self, key: int, step: int) -> np.random.Generator:
        """A generator that is the same in every process.

        It is made of the step's number: a process that had to plan a step twice stays with the
        others.
        """
        return np.random.default_rng((key, step))

    def part(self) -> None:
        """Talk to the others no more: they may be waiting elsewhere, or be gone."""
        self.talk = False

    def leave(self) -> None:
        """The audit failed in this process: the others learn it from their next message."""
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
        """Whether the canaries of a step, which is clipped next, entered in all processes.

        Where another process is gone, they did not, and this one is alone from now on.

        Args:
            entered: whether they did in this one, as far as it had to add any.
        """
        if not self.talk:
            return entered and not self.several
        try:
            return all(told == b"1" for told in self._told(b"1" if entered else b"0"))
        except Unreachable:  # the training's own communication says so next
            self.part()
            return False

    def meet(self) -> None:
        """See that the audit of no process has failed."""
        if self.talk:
            self._told(b"")

    def shared(self, value: _Value) -> _Value:
        """The first process's value."""
        if not self.talk:
            return value
        told = self._told(pickle.dumps(value) if self.is_first else b"")[0]
        received: _Value = pickle.loads(told)
        return received

    def from_first(self, compute: Callable[[], _Value]) -> _Value:
        """What the first process computes, known to all of them when it is done.

        Raises:
            UnauditableTraining: it refused the training, in all processes.
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
        """The numbers of every process, by rank."""
        if not self.talk:
            return [list(numbers)]
        told = self._told(np.array(numbers, dtype=np.int64).tobytes())
        return [np.frombuffer(row, dtype=np.int64).tolist() for row in told]

    # ------------------------------------------------------------------ messages

    def _told(self, data: bytes) -> list[bytes]:
        """What each process says, by rank, in as many messages as the longest needs."""
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
        """The group over which the processes talk; the first message opens it.

        It is of this training alone: a last message that nobody met must not reach the next one.
        """
        if self._opened is None:
            self._opened = distributed.new_group(backend="gloo")
        return self._opened


def _written(kind: int, data: bytes) -> torch.Tensor:
    """A message; what does not fit in is cut off."""
    data = data[: _SIZE - _HEAD]
    head = bytes([kind, *len(data).to_bytes(2, "little")])
    return torch.frombuffer(bytearray((head + data).ljust(_SIZE, b"\0")), dtype=torch.uint8)


def _read(row: torch.Tensor) -> bytes:
    """What a message says."""
    whole = row.numpy().tobytes()
    return whole[_HEAD : _HEAD + int.from_bytes(whole[1:_HEAD], "little")]
