"""Neighboring data sets differ by the canaries whose coins are 1, and by nothing else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit._validate import BadArgument
from lightning_audit.many.records import Blank, ChosenRecord, Many, Mislabeled
from lightning_audit.many.worlds import Neighbors, worlds_of

INPUTS, CLASSES = torch.arange(12.0).reshape(4, 3), torch.tensor([0, 1, 2, 1])
FORMS = {
    "tuple of tensors": (INPUTS, CLASSES),
    "tuple of arrays": (INPUTS.numpy(), CLASSES.numpy()),
    "tensor data set": TensorDataset(INPUTS, CLASSES),
    "list": list(zip(INPUTS, CLASSES, strict=True)),
    "other data set": torch.utils.data.Subset(TensorDataset(INPUTS, CLASSES), [0, 1, 2, 3]),
}


def table(data):
    """Records of a data set in any form, as rows of numbers."""
    records = zip(*data, strict=True) if isinstance(data, tuple) else data
    if not isinstance(data, tuple | list):
        records = [data[i] for i in range(len(data))]
    return np.array([[*np.asarray(x, dtype=float), float(y)] for x, y in records])


BASE = table(FORMS["list"])


@pytest.mark.parametrize("form", FORMS)
def test_the_canary_is_a_record_more(form):
    worlds = worlds_of(FORMS[form], Blank(label=2), "add_remove")
    assert np.array_equal(table(worlds.of((0,))), BASE)
    assert np.array_equal(table(worlds.of((1,))), [*BASE, [0, 0, 0, 2]])
    assert worlds.of((1,)) is worlds.of((1,))


@pytest.mark.parametrize("form", FORMS)
def test_the_canary_takes_the_place_of_the_last_record(form):
    worlds = worlds_of(FORMS[form], Blank(label=2), "replace_one")
    assert np.array_equal(table(worlds.of((0,))), BASE)
    assert np.array_equal(table(worlds.of((1,))), [*BASE[:3], [0, 0, 0, 2]])
    assert np.array_equal(table(FORMS[form]), BASE)  # the user's data did not change


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_each_of_many_canaries_has_its_own_coin(form, adjacency):
    canary = Many([Blank(0), Blank(1), Blank(2)])
    worlds = worlds_of(FORMS[form], canary, adjacency)
    assert worlds.canaries == 3
    found = table(worlds.of((1, 0, 1)))
    if adjacency == "add_remove":
        assert np.array_equal(found, [*BASE, [0, 0, 0, 0], [0, 0, 0, 2]])
    else:
        assert np.array_equal(found, [BASE[0], [0, 0, 0, 0], BASE[2], [0, 0, 0, 2]])


@pytest.mark.parametrize("form", ["tensor data set", "list", "other data set"])
def test_a_loader_of_torch_reads_the_data_set(form):
    worlds = worlds_of(FORMS[form], Mislabeled(1), "add_remove")
    inputs, classes = next(iter(DataLoader(worlds.of((1,)), batch_size=5)))
    assert torch.equal(inputs[4], INPUTS[1])
    assert classes.tolist() == [0, 1, 2, 1, 2]
    assert classes.dtype == torch.int64


def test_a_given_pair_is_passed_unchanged():
    pair = Neighbors("without", "with", record=(1.0, 1))
    worlds = worlds_of(pair, Blank(), "add_remove")
    assert (worlds.of((0,)), worlds.of((1,)), worlds.records) == ("without", "with", ((1.0, 1),))


def test_data_sets_that_were_made_are_not_sent_to_workers():
    worlds = worlds_of((torch.zeros(10**5, 4), torch.zeros(10**5)), Blank(), "add_remove")
    before = len(pickle.dumps(worlds))
    worlds.of((1,))
    assert len(pickle.dumps(worlds)) == before


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (3, r"dataset=3 must be a tuple of arrays .*Neighbors\(without, with_canary\)"),
        ([], "dataset has no record; give at least one"),
        (
            (INPUTS, CLASSES[:3]),
            "must be arrays or tensors with one row a record and equal lengths",
        ),
        ((1.0, 2.0), "must be arrays or tensors with one row a record"),
    ],
)
def test_other_data_is_refused_in_a_sentence(data, match):
    with pytest.raises(BadArgument, match=match):
        worlds_of(data, Blank(), "add_remove")


def test_what_does_not_fit_the_data_is_refused():
    with pytest.raises(BadArgument, match=r"canary='blank' must be Blank\(\)"):
        worlds_of(FORMS["list"], "blank", "add_remove")
    with pytest.raises(BadArgument, match="replaces 5 records, and dataset has only 4"):
        worlds_of(FORMS["list"], Many([Blank()] * 5), "replace_one")
    with pytest.raises(ValueError, match="adjacency='swap' must be one of"):
        worlds_of(FORMS["list"], Blank(), "swap")
    assert worlds_of([1, 2], ChosenRecord(7), "add_remove").of((1,)) == [1, 2, 7]
    with pytest.raises(BadArgument, match=r"record 0 of the 2 of dataset is 1 and no pair"):
        worlds_of([1, 2], Blank(), "add_remove")
