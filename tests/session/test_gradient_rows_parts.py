from __future__ import annotations

from collections import Counter

import numpy as np

from lightning_audit.session.sources import PartChoice, draw_part


def test_half_of_the_canaries_enter_the_last_part_and_the_others_any() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(draw_part(4, rng) for _ in range(6000))
    assert set(drawn) == {-1, 0, 1, 2}
    for part, expected in ((-1, 3000), (0, 1000), (1, 1000), (2, 1000)):
        assert abs(drawn[part] - expected) < 4 * expected**0.5


def test_one_part_of_a_batch_is_chosen_at_most() -> None:
    rng, choice = np.random.default_rng(0), PartChoice()
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(400):
        chosen = []
        for part in range(3):
            if choice.chosen(rng):
                chosen.append(part)
            choice.passed()
        choice.ended()
        seen[tuple(chosen)] += 1
    # The first batch is taken for one of two parts, the others are known to have four.
    assert choice.usual == 4
    assert set(seen) == {(), (0,), (1,), (2,)}
    assert 150 < seen[()] < 250


def test_a_batch_of_one_part_does_not_change_what_is_usual() -> None:
    choice = PartChoice()
    choice.usual = 5
    choice.ended()
    assert choice.usual == 5
