from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_audit.stats.binomial import katz_log_lower


def test_agrees_with_the_textbook_formula() -> None:
    k1, n1, k0, n0 = 990, 1000, 5, 1000
    spread = math.sqrt(1 / k1 - 1 / n1 + 1 / k0 - 1 / n0)
    textbook = math.log(k1 / n1 / (k0 / n0)) - 1.6448536269514722 * spread
    assert katz_log_lower(k1, n1, k0, n0, 0.05) == pytest.approx(textbook, rel=1e-13)


def test_nothing_is_proved_where_a_count_is_zero() -> None:
    limits = katz_log_lower(np.array([0, 5, 0, 5]), 10, np.array([5, 0, 0, 5]), 10, 0.05)
    assert limits[:3].tolist() == [-math.inf] * 3
    assert limits[3] < 0
    assert katz_log_lower(0, 0, 0, 0, 0.05) == -math.inf


def test_certain_rates_have_no_spread() -> None:
    assert katz_log_lower(7, 7, 9, 9, 0.05) == 0.0


def test_limit_rises_with_significance_and_with_the_ratio() -> None:
    levels = [katz_log_lower(30, 100, 20, 100, level) for level in (1e-6, 0.05, 0.5, 0.9)]
    assert levels == sorted(levels)
    assert levels[2] == pytest.approx(math.log(1.5), rel=1e-12)
    assert (
        katz_log_lower(31, 100, 20, 100, 0.05) > levels[1] > katz_log_lower(30, 100, 21, 100, 0.05)
    )


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="successes=6 must be at most trials=5"):
        katz_log_lower(6, 5, 1, 5, 0.05)
    with pytest.raises(ValueError, match=r"significance=1\.0 must be in \(0, 1\)"):
        katz_log_lower(1, 5, 1, 5, 1.0)
