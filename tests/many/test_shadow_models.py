"""Shadow models are trained on their halves, stored, continued, and failures are kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from driven_trainings import digits, linear

from lightning_audit._validate import BadArgument
from lightning_audit.many import DPSGDMany, LogitMargin, StoreError, ThisProcess, shadow_models

pytestmark = pytest.mark.training
DATA = digits(20)
TRAIN = DPSGDMany(
    linear,
    noise_multiplier=0.0,
    max_grad_norm=math.inf,
    sample_rate=1.0,
    expected_batch_size=10,
    steps=3,
    learning_rate=1.0,
)


def made(models=4, **settings):
    return shadow_models(TRAIN, DATA, models=models, engine=ThisProcess(), **settings)


@pytest.mark.parametrize("pairs", [True, False])
def test_scores_are_those_of_models_that_are_trained_on_their_half(pairs):
    found = made(pairs=pairs)
    assert found.pairs is pairs
    assert not found.failed.any()
    assert bool((found.membership[0] == ~found.membership[1]).all()) is pairs
    for scores, inside, seed in zip(found.scores, found.membership, found.seeds, strict=True):
        rows = torch.as_tensor(inside)
        model = TRAIN((DATA[0][rows], DATA[1][rows]), int(seed))
        wanted = [LogitMargin()(model, record) for record in zip(*DATA, strict=True)]
        assert np.allclose(scores, wanted, atol=1e-5)
    assert found.scores[found.membership].mean() > found.scores[~found.membership].mean()


def test_the_same_call_continues_a_store_with_more_models(tmp_path, capsys):
    first, more = made(4, store=tmp_path), made(6, store=tmp_path)
    assert np.array_equal(more.scores[:4], first.scores)
    assert np.array_equal(more.membership[:4], first.membership)
    assert "6 of 6 trainings have ended" in capsys.readouterr().err
    with pytest.raises(StoreError, match="another halves"):
        made(6, store=tmp_path, pairs=False)
    with pytest.raises(StoreError, match="another seed"):
        made(6, store=tmp_path, seed=1)


def test_a_failed_training_has_no_scores_and_the_others_are_kept(capsys):
    def train(dataset, seed):
        if int(dataset[1][0]) == 0:  # the first record is a member
            raise RuntimeError("diverged")
        return np.arange(20.0)

    found = shadow_models(train, DATA, models=6, engine=ThisProcess(), identity="fails")
    assert np.array_equal(found.failed, found.membership[:, 0])
    assert (found.scores[~found.failed] == np.arange(20.0)).all()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"models": 5}, "models=5 must be even"),
        ({"models": 0}, "models=0"),
        ({"seed": -1}, "seed=-1"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"limit": 0.0}, "limit"),
    ],
)
def test_arguments_out_of_range_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        made(**{"models": 4, **settings})


def test_a_data_set_without_a_known_form_is_refused():
    with pytest.raises(BadArgument, match="dataset=5"):
        shadow_models(TRAIN, 5, models=4)
