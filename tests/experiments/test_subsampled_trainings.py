"""What a black-box audit proves of the epsilon that is spent, and of any mechanism."""

import pytest
import subsampled_trainings as experiment
from common import save


@pytest.mark.heavy
def test_bounds_are_below_what_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "STEPS", 20)
    monkeypatch.setattr(experiment, "RATES", (1.0, 0.25))
    found = experiment.run(records=20, trainings=120, seed=0)
    assert len(found) == 9
    for audit in found.values():
        assert experiment.bound(audit) < experiment.EPSILON
        assert experiment.bound_of_any_mechanism(audit) <= experiment.bound(audit)
    assert experiment.bound(found["digits", "crafted", 1.0]) > 2
    assert all(experiment.bound(found["digits", "crafted", q]) > 1 for q in experiment.RATES)
    save(experiment.draw(found), tmp_path, "figure")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
