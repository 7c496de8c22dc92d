"""Posteriors on trained models: that of DP-SGD is lower, and few challenges show less."""

import attack_posteriors as experiment
import pytest


@pytest.mark.nightly
def test_dp_sgd_has_the_smaller_epsilon_and_own_shadow_models_say_less(capsys):
    names = ("A1: fixed start", "A1 with DP-SGD")
    result = experiment.run(experiment.Size(bases=2, models=36), 0, names)
    plain, private = (result[name].correlated.epsilon.interval(0.1) for name in names)
    assert private[0] < plain[0]
    assert private[1] < plain[1]
    for found in result.values():
        assert found.losses.shape == (72, 2)
        assert found.counts.n_in.tolist() == found.counts.n_out.tolist() == [36, 36]
        assert found.separate.epsilon.interval(0.1)[0] < found.independent.epsilon.interval(0.1)[0]
    experiment.show(result)
    assert "accountant's epsilon" in capsys.readouterr().out
    assert len(experiment.draw(result).axes) == 4
