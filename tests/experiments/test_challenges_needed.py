"""The Bayesian interval needs fewer challenges, and intervals shrink with their number."""

import math

import challenges_needed as experiment
import pytest
from digit_games import Size


@pytest.mark.nightly
def test_intervals_shrink_and_the_bayesian_one_is_narrow_first(capsys):
    result = experiment.run(Size(records=240, shadows=12, models=96, points=48), seed=0)
    assert list(result) == ["plain SGD", "DP-SGD"]
    for found in result.values():
        assert found.challenges[-1] == 96
        assert found.needed["Bayesian"] < 0.8 * found.needed["Clopper-Pearson"]
        for intervals in found.intervals.values():
            assert len(intervals) == len(found.challenges)
        first, *_, last = (high - low for low, high in found.intervals["Bayesian"])
        assert last < first
    experiment.show(result)
    assert "challenges until the interval is 0.3 wide" in capsys.readouterr().out
    assert len(experiment.draw(result).axes) == 3


def test_an_attack_without_errors_has_no_narrow_interval():
    assert experiment.needed("Clopper-Pearson", (0.0, 0.0)) == math.inf
