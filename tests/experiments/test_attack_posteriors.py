"""Posteriors on trained models: DP-SGD's is lower, and shadow models of its own cost width."""

from __future__ import annotations

import attack_posteriors as experiment
import numpy as np
import pytest
import torch


@pytest.mark.heavy
def test_dp_sgd_has_the_smallest_epsilon_and_own_shadow_models_the_widest_interval(capsys) -> None:
    result = experiment.run(experiment.Size(bases=2, models=18), seed=0)
    assert list(result) == list(experiment.ALGORITHMS)
    upper = {n: found.correlated.epsilon.interval(0.1)[1] for n, found in result.items()}
    assert min(upper, key=upper.get) == "A1 with DP-SGD"
    for found in result.values():
        assert found.losses.shape == (36, 2)
        assert found.counts.n_in.tolist() == found.counts.n_out.tolist() == [18, 18]
    experiment.show(result)
    assert "accountant's epsilon" in capsys.readouterr().out
    assert len(experiment.draw(result).axes) == 12


def test_a_base_trains_with_and_without_its_record_and_perturbs_a_copy() -> None:
    (base,) = experiment.bases(1, seed=0)
    assert len(base.without[1]) == experiment.RECORDS == len(base.with_record[1]) - 1
    assert torch.equal(base.with_record[0][:-1], base.without[0])
    model = experiment.fixed_start()
    noise = torch.Generator().manual_seed(0)
    released = experiment.perturbed(model, 0.1, noise)
    moves = [
        (a - b).flatten().detach()
        for a, b in zip(released.parameters(), model.parameters(), strict=True)
    ]
    assert np.std(torch.cat(moves).numpy()) == pytest.approx(0.1, rel=0.1)
    assert all(map(torch.equal, model.parameters(), experiment.fixed_start().parameters()))
