"""At a small size: the worst points are given away more than random ones."""

import challenge_points
import pytest

pytestmark = pytest.mark.heavy


def test_worst_points_have_a_higher_rate_than_random_ones(capsys):
    result = challenge_points.run(models=48, seed=0, records=400, steps=150, starts=20)
    worst, random = (
        result.rates(name)[1] for name in (challenge_points.WORST, challenge_points.RANDOM)
    )
    assert worst > 2 * random
    challenge_points.show(result)
    printed = capsys.readouterr().out
    assert f"{worst / random:.3g} times the TPR" in printed
    assert "worst-case start" in printed
    assert len(challenge_points.draw(result).axes[0].lines) == 5
