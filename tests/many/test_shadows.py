"""Groups of shadow models share no model, and no pair is divided."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from driven_trainings import digits, linear
from refused_calls import refusals, refused_changes
from simulated_shadows import simulated
from torch.utils.data import Dataset, TensorDataset

from lightning_audit.many import (
    DPSGDMany,
    LogitMargin,
    Shadows,
    StoreError,
    ThisProcess,
    shadow_models,
)
from lightning_audit.many.shadows import Subsets
from lightning_audit.many.store import Plan

INPUTS, TARGETS = torch.arange(4.0)[:, None], torch.arange(4)
DATA = digits(20)
MADE = simulated(16, 5, 0.0, np.random.default_rng(0), pairs=True, failed=[3])


# --- Halves are fair coins of each record, opposite in the second model of a pair.
def test_each_record_is_in_one_model_of_each_pair_and_first_models_are_independent():
    plan = Plan(3, 100, 20, 50, pairs=True)
    coins = np.array([t.coins for block in plan.blocks() for t in block])
    assert coins.shape == (100, 50)
    assert (coins[::2] + coins[1::2] == 1).all()
    firsts = range(0, 100, 2)
    assert [*map(plan.training, firsts)] == [*map(Plan(3, 100, 20, 50).training, firsts)]
    assert len({plan.training(n).seed for n in range(100)}) == 100
    assert abs(coins[::2].mean() - 0.5) < 3 * 0.5 / np.sqrt(2500)


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS),
        (INPUTS.numpy(), TARGETS.numpy()),
        TensorDataset(INPUTS, TARGETS),
        list(zip(INPUTS, TARGETS, strict=True)),
        Rows(),
    ],
    ids=["tensors", "arrays", "TensorDataset", "list", "Dataset"],
)
def test_a_half_has_its_records_in_the_form_of_the_data(data):
    subsets = Subsets(data)
    half = subsets.of((0, 1, 0, 1))
    if isinstance(data, tuple):
        half = list(zip(*half, strict=True))
    else:
        assert not isinstance(half, tuple)
    assert (len(half), [int(half[i][1]) for i in range(2)]) == (2, [1, 3])
    assert [int(target) for _, target in subsets.records] == [0, 1, 2, 3]


# --- Shadow models are trained on their halves, stored, continued, and failures are kept.
SETTINGS = {"noise_multiplier": 0.0, "max_grad_norm": math.inf, "sample_rate": 1.0}
TRAIN = DPSGDMany(linear, **SETTINGS, expected_batch_size=10, steps=3, learning_rate=1.0)


def made(models=4, **settings):
    settings = {"seed": 0, "engine": ThisProcess(), **settings}
    return shadow_models(TRAIN, DATA, models=models, **settings)


@pytest.mark.training
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


@pytest.mark.training
def test_the_same_call_continues_a_store_with_more_models(tmp_path, capsys):
    first, more = made(4, store=tmp_path), made(6, store=tmp_path)
    assert np.array_equal(more.scores[:4], first.scores)
    assert np.array_equal(more.membership[:4], first.membership)
    assert "6 of 6 trainings have ended" in capsys.readouterr().err
    with pytest.raises(StoreError, match="another halves"):
        made(6, store=tmp_path, pairs=False)
    with pytest.raises(StoreError, match="another seed"):
        made(6, store=tmp_path, seed=1)


@pytest.mark.training
def test_a_failed_training_has_no_scores_and_the_others_are_kept(capsys):
    def train(dataset, seed):
        if int(dataset[1][0]) == 0:  # the first record is a member
            raise RuntimeError("diverged")
        return np.arange(20.0)

    found = shadow_models(train, DATA, models=6, engine=ThisProcess(), identity="fails")
    assert np.array_equal(found.failed, found.membership[:, 0])
    assert (found.scores[~found.failed] == np.arange(20.0)).all()
    assert capsys.readouterr().err == ""


test_arguments_out_of_range_are_refused = pytest.mark.training(
    refused_changes(
        shadow_models,
        {"train": TRAIN, "dataset": DATA, "models": 4, "engine": ThisProcess()},
        ({"models": 5}, "models=5 must be even"),
        ({"models": 0}, "models=0"),
        ({"seed": -1}, "seed=-1"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"limit": 0.0}, "limit"),
        ({"dataset": 5}, "dataset=5"),
    )
)


def test_groups_are_whole_pairs_and_share_no_model():
    groups = MADE.split(3, 3, 2)
    assert [len(group) for group in groups] == [6, 6, 4]
    assert np.array_equal(np.concatenate([group.seeds for group in groups]), MADE.seeds)
    for group in groups:
        assert (group.membership[::2] == ~group.membership[1::2]).all()


def test_failed_models_are_left_out_of_what_is_fitted_only():
    assert MADE.failed.tolist() == [False, False, False, True, *[False] * 12]
    assert len(MADE.finished()) == 15
    assert not MADE.finished().pairs
    firsts = MADE.firsts()
    assert len(firsts) == 8
    assert np.array_equal(firsts.seeds, MADE.seeds[::2])
    assert len(firsts.joined(MADE.finished())) == 23


test_what_is_no_group_is_refused = refusals(
    *((partial(MADE.split, *shares), "shares") for shares in ((1, 0), (1, -2), (1, 100))),
    (lambda: MADE.joined(simulated(4, 6, 0.0, np.random.default_rng(0))), "join models of one"),
    (lambda: MADE.chosen(np.arange(3)), "no complementary pairs"),
    (lambda: Subsets((INPUTS[:1], TARGETS[:1])), "at least two"),
)


test_other_arrays_are_refused = refused_changes(
    Shadows,
    {"scores": MADE.scores, "membership": MADE.membership, "seeds": MADE.seeds},
    ({"membership": MADE.membership[:, :4]}, "must be .models, records. twice"),
    ({"membership": MADE.membership.astype(int)}, "must hold True or False"),
    ({"scores": np.where(np.arange(5) == 2, np.nan, MADE.scores)}, "scores must be finite"),
    ({"scores": np.where(MADE.scores > 0, np.inf, MADE.scores)}, "scores must be finite"),
)
