"""The plan of an audit over many trainings: each training's number, coins, seed and block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: Key of the coins' generator: a training that uses the audit's seed draws other numbers.
_COINS = 0x636F696E
#: Most trainings of a block; a block is at most this part of the plan.
MOST_IN_BLOCK, LEAST_BLOCKS = 20, 20
_ROUNDS = 4


@dataclass(frozen=True)
class PlannedTraining:
    """A training before it has run.

    Args:
        number: its position in the plan, from 0.
        coins: for each canary, 1 if it is in the training's data and 0 if not.
        seed: its seed, in [0, 2^32), which no other training of the plan has.
    """

    number: int
    coins: tuple[int, ...]
    seed: int


#: Trainings that a worker runs together.
Block = tuple[PlannedTraining, ...]


@dataclass(frozen=True)
class Plan:
    """Which trainings an audit runs, computed from its seed alone.

    Each training has fair coins of its own, drawn by a generator that nothing else uses: the coins
    of earlier trainings say nothing about those of later ones. Blocks are part of the plan, so that
    a resumed audit trains the same blocks.

    Args:
        seed: of the audit, >= 0.
        trainings: their number.
        block: number of trainings in a block.
        canaries: number of canaries, each with a coin of its own in each training.
    """

    seed: int
    trainings: int
    block: int
    canaries: int = 1

    def training(self, number: int) -> PlannedTraining:
        """Return the training with this number."""
        words = np.random.SeedSequence([_COINS, self.seed, number])
        coins = np.random.Generator(np.random.PCG64(words)).integers(2, size=self.canaries)
        return PlannedTraining(number, tuple(int(coin) for coin in coins), self._seed(number))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order; the last one may be shorter."""
        for first in range(0, self.trainings, self.block):
            last = min(first + self.block, self.trainings)
            yield tuple(self.training(number) for number in range(first, last))

    def _seed(self, number: int) -> int:
        """Return a seed that is distinct for each number below 2^32: a Feistel permutation."""
        left, right = number >> 16, number & 0xFFFF
        for turn in range(_ROUNDS):
            key = f"{self.seed}/{turn}/{right}".encode()
            mixed = int.from_bytes(hashlib.blake2b(key, digest_size=2).digest(), "big")
            left, right = right, left ^ mixed
        return left << 16 | right


def block_size(trainings: int) -> int:
    """Return the number of trainings in a block: a twentieth of the plan, and at most 20."""
    return max(1, min(MOST_IN_BLOCK, trainings // LEAST_BLOCKS))
