from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from lightning_audit.canaries import BlockPair, Constant, Dirac, Random, Spread
from lightning_audit.canaries.gradient import default_mix


def test_the_default_mix_of_eight_is_the_documented_one() -> None:
    assert Counter(default_mix(8)) == Counter(
        {
            Dirac(tensor="largest"): 3,
            Dirac(tensor="last_bias"): 1,
            Dirac(tensor="each", moving=True): 1,
            Spread(): 2,
            BlockPair(): 1,
        }
    )


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_smaller_default_mix_takes_the_first_ones(count: int) -> None:
    assert default_mix(count) == default_mix(8)[:count]


def test_a_larger_default_mix_repeats_the_list() -> None:
    assert default_mix(19) == (default_mix(8) * 3)[:19]


def test_a_constant_cannot_move_and_the_error_names_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"moving=True must be False .* use Random\(moving=True\)"):
        Constant(moving=True)


def test_one_that_visits_each_tensor_moves() -> None:
    with pytest.raises(ValueError, match="tensor='each' needs moving=True"):
        Dirac(tensor="each")


@pytest.mark.parametrize("canary", [Dirac(), Spread(), BlockPair(), Constant(), Random()])
def test_a_canary_cannot_be_changed_after_construction(canary: object) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        canary.moving = True  # type: ignore[attr-defined]


def test_canaries_are_fixed_unless_said_otherwise() -> None:
    assert not any(c.moving for c in (Dirac(), Spread(), BlockPair(), Constant(), Random()))
