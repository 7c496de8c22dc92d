"""Rows of tensors: flagged ones first, then those with the least noise."""

from __future__ import annotations

from lightning_audit.results.report_details import TensorNoise
from lightning_audit.run.report_files import MOST_UNFLAGGED, capped


def row(number: int, ratio: float | None, *, flagged: bool = False) -> TensorNoise:
    return TensorNoise(f"w{number}", 9, 9, 9, ratio, None, None, flagged)


def test_every_flagged_tensor_is_kept_and_the_rest_is_counted() -> None:
    flagged = [row(n, 0.5, flagged=True) for n in range(70)]
    others = [row(100 + n, 2.0 - n / 100) for n in range(80)]
    kept, left_out = capped([*others, row(999, None), *flagged])
    assert [*kept[:70]] == flagged
    ratios = [one.ratio for one in kept[70:]]
    assert len(ratios) == MOST_UNFLAGGED
    assert ratios == sorted(ratios) == sorted(one.ratio for one in others)[:MOST_UNFLAGGED]
    assert left_out == 31


def test_few_tensors_are_all_kept() -> None:
    assert capped([row(0, None), row(1, 1.0)]) == ((row(1, 1.0), row(0, None)), 0)
    assert capped([]) == ((), 0)
