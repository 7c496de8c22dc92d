"""Bounds of audits over real trainings seldom exceed the truth, and come near it."""

import bounds_on_trainings as experiment
import pytest
from common import save
from stages import staged


@pytest.mark.parametrize(("covered", "compared"), staged(heavy=[(8, 1)], nightly=[(100, 20)]))
def test_bounds_hold_and_reach_their_share(covered, compared, tmp_path):
    result = experiment.run(covered, compared, seed=3)
    for _, at_end, at_some_look, *_ in result.coverage:
        assert max(at_end, at_some_look) <= experiment.most_above(covered)
    medians = [row[3] for row in result.coverage]
    assert medians == sorted(medians)
    for _, end, any_time, goal_at_end, goal_any_time in result.reach:
        slack = 0.1 if compared == 1 else 0.0  # one audit is no median
        assert end >= goal_at_end - slack
        assert any_time >= goal_any_time - slack
    save(experiment.draw(result), tmp_path, "figure")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
