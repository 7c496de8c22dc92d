"""Trainings that start at a model fitted to other records give a canary away more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from driven_trainings import digits, linear, sgd

from lightning_audit.many import (
    DPSGDMany,
    LogitMargin,
    Mislabeled,
    opacus_training,
    worst_case_start,
)
from lightning_audit.many.worlds import worlds_of

pytestmark = pytest.mark.training
INPUTS, TARGETS = digits(160)
DATA, OTHERS = (INPUTS[:60], TARGETS[:60]), (INPUTS[60:], TARGETS[60:])


def start(steps=100):
    return worst_case_start(linear, OTHERS, steps=steps, learning_rate=1.0, batch_size=50)


def test_it_is_fitted_to_the_other_records_and_depends_on_the_seed_alone():
    model = start()
    right = (model(OTHERS[0]).argmax(1) == OTHERS[1]).float().mean()
    assert right > 0.9
    assert torch.equal(model.weight, start().weight)
    other = worst_case_start(linear, OTHERS, steps=100, learning_rate=1.0, seed=1)
    assert not torch.equal(model.weight, other.weight)


def test_trainings_of_opacus_start_there():
    model = start(5)
    train = opacus_training(
        lambda: model,
        sgd,
        noise_multiplier=0.0,
        max_grad_norm=1e-6,
        sample_rate=1.0,
        expected_batch_size=60,
        steps=1,
    )
    assert torch.allclose(train(DATA, 0).weight, model.weight, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"steps": 0}, "steps=0"), ({"learning_rate": 0.0}, "learning"), ({"batch_size": 0}, "batch")],
)
def test_arguments_out_of_range_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        worst_case_start(linear, OTHERS, **{"steps": 1, "learning_rate": 1.0, **settings})


@pytest.mark.heavy
def test_a_mislabeled_record_is_distinguished_better_from_the_worst_start():
    worlds = worlds_of(DATA, Mislabeled(), "add_remove")
    sets = [worlds.of((0,)), worlds.of((1,))]

    def separation(model):
        train = DPSGDMany(
            model,
            noise_multiplier=6.0,
            max_grad_norm=1.0,
            sample_rate=1.0,
            expected_batch_size=60,
            steps=100,
            learning_rate=0.5,
        )
        out, inside = (
            [LogitMargin()(made, worlds.records[0]) for made in train.many([data] * 150, seeds)]
            for data, seeds in zip(sets, (range(150), range(150, 300)), strict=True)
        )
        return (np.mean(inside) - np.mean(out)) / np.sqrt(0.5 * (np.var(inside) + np.var(out)))

    assert separation(start(1000)) > separation(linear) + 0.2  # standard error .11 each
