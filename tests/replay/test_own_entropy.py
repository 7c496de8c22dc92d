"""Within a replay the system's entropy repeats, for the replaying thread alone."""

from __future__ import annotations

import os
import random
import secrets
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lightning_audit.replay.training_state import OwnEntropy

SOURCES: dict[str, Callable[[], Any]] = {
    "os.urandom": lambda: os.urandom(16),
    "secrets": lambda: secrets.token_hex(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "default_rng": lambda: np.random.default_rng().random(),
    "SeedSequence": lambda: np.random.SeedSequence().entropy,
    "uuid": lambda: str(uuid.uuid4()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_reads_the_systems_entropy_repeats_under_one_seed_alone(source: str) -> None:
    entropy, draw = OwnEntropy(), SOURCES[source]
    seen = []
    for seed in (1, 1, 2):
        with entropy:
            entropy.seed(seed)
            before = entropy.mark()
            seen.append(draw())
            assert entropy.mark() != before
    assert seen[0] == seen[1] != seen[2]
    assert draw() not in seen


def test_another_thread_reads_the_systems_own_entropy() -> None:
    entropy, seen = OwnEntropy(), list[bytes]()
    for _ in range(2):
        with entropy:
            entropy.seed(1)
            thread = threading.Thread(target=lambda: seen.append(os.urandom(16)))
            thread.start()
            thread.join()
    assert seen[0] != seen[1]


def test_what_os_urandom_was_before_is_put_back_after_an_exception() -> None:
    theirs = os.urandom, random._urandom
    with pytest.raises(RuntimeError), OwnEntropy():
        raise RuntimeError
    assert (os.urandom, random._urandom) == theirs
