"""The Bayesian interval is narrower than Clopper-Pearson's, and covers less than it states."""

import bayesian_intervals as experiment
import pytest
from digit_games import Size


@pytest.mark.nightly
def test_on_trained_models_it_is_a_fifth_narrower_at_common_counts(capsys, tmp_path):
    sizes = experiment.Simulation(games=60, challenges=128, epsilons=(0.5, 1.0, 2.0))
    result = experiment.run(Size(records=240, shadows=12, models=48, points=48), sizes, seed=0)
    assert list(result.games) == ["plain SGD", "clipping alone", "DP-SGD"]
    for counts, found in result.common.values():
        assert counts.fn + counts.tp + counts.fp + counts.tn == 48
        widths = [experiment.width(interval) for interval in found.values()]
        assert widths[2] < 0.8 * widths[0]
        assert widths[2] < widths[1] < widths[0]
    experiment.show(result)
    assert "Clopper-Pearson" in capsys.readouterr().out
    figure = experiment.draw(result)
    assert len(figure.axes) == 3


def test_coverage_is_that_of_the_interval_at_known_epsilon():
    sizes = experiment.Simulation(games=200, challenges=256)
    found = experiment.coverage(2.0, experiment.equal_rates(2.0), sizes, seed=0)
    assert found["Clopper-Pearson"] >= found["Jeffreys"] >= found["Bayesian"]
    assert found["Clopper-Pearson"] > 0.95  # conservative
    assert 0.7 < found["Bayesian"] < 0.9  # below what it states
