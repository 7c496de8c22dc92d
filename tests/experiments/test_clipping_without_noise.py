"""What clipping without noise leaks: shapes of Figure 11, and how soon claims are refuted."""

import clipping_without_noise as experiment
import pytest
from common import save


@pytest.mark.heavy
def test_a_larger_norm_and_a_known_start_leak_more(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "NORMS", (0.1, 10.0))
    monkeypatch.setattr(
        experiment, "CANARIES", {name: experiment.CANARIES[name] for name in ("blank", "crafted")}
    )
    found = experiment.run(records=40, trainings=60, seed=0)
    assert len(found) == 8
    for canary in experiment.CANARIES:
        small, large = (found["random", canary, norm].estimate for norm in experiment.NORMS)
        assert large > small
        assert found["known", canary, 0.1].estimate > small + 1
    most = experiment.without_errors(60)
    assert found["random", "crafted", 10.0].estimate > 0.7 * most
    assert len(found["known", "blank", 10.0].row) == 4
    save(experiment.draw(found, 60), tmp_path, "figure")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.heavy
@pytest.mark.parametrize("norm", [1.0, 10.0])
def test_full_batches_refute_within_the_goals(norm):
    leak = experiment.leak("crafted", "known", norm, rate=1.0, records=30, trainings=100, seed=1)
    refuted = dict(zip(experiment.CLAIMS, leak.refuted, strict=True))
    assert refuted.pop("(4, 1e-5)") == ">100"  # a flawless attack needs more than 400
    assert refuted.pop("Gaussian 1") < 50
    for claim, after in refuted.items():
        assert after <= experiment.GOALS[claim], claim
