"""Canaries have the form of the data's records and the contents that their names say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from driven_trainings import digits

from lightning_audit._validate import BadArgument
from lightning_audit.many.records import Blank, ChosenRecord, Crafted, Many, Mislabeled, Records

DATA = Records(digits(200))


def test_blank_is_zero_in_the_dtype_of_the_data():
    [(inputs, target)] = Blank().records(DATA)
    assert inputs.dtype == torch.float32
    assert not inputs.any()
    assert int(target) == int(DATA[0][1])


def test_mislabeled_is_a_record_with_another_class():
    [(inputs, target)] = Mislabeled(index=5).records(DATA)
    assert torch.equal(inputs, DATA[5][0])
    assert int(target) == (int(DATA[5][1]) + 1) % 10
    with pytest.raises(BadArgument, match=r"has the class of record 5; give another label"):
        Mislabeled(5, label=int(DATA[5][1])).records(DATA)
    with pytest.raises(BadArgument, match="needs data of at least two classes"):
        Mislabeled().records(Records([(1.0, 3), (2.0, 3)]))


@pytest.mark.parametrize("length", [None, 10.0])
def test_crafted_lies_where_the_data_vary_least(length):
    inputs = np.random.default_rng(0).normal(size=(50, 4)) * [3, 1, 0.1, 2]
    [(canary, target)] = Crafted(length, label=1).records(Records((inputs, np.zeros(50))))
    norms = np.linalg.norm(inputs, axis=1)
    assert np.linalg.norm(canary) == pytest.approx(length or 3 * norms.max())
    assert abs(canary[2]) > 0.99 * np.linalg.norm(canary)
    assert target == 1


def test_crafted_keeps_the_shape_and_refuses_too_many_features():
    images = torch.rand(6, 1, 4, 4)
    [(canary, _)] = Crafted().records(Records((images, torch.arange(6))))
    assert canary.shape == (1, 4, 4)
    with pytest.raises(BadArgument, match=r"at most 4096 features a record, and these have 5000"):
        Crafted().records(Records((torch.zeros(2, 5000), torch.zeros(2))))
    with pytest.raises(ValueError, match="length=-1 must be a finite number > 0"):
        Crafted(-1).records(DATA)


def test_many_are_the_records_of_each():
    record = (torch.ones(64), torch.tensor(3))
    found = Many([Blank(), ChosenRecord(record)]).records(DATA)
    assert len(found) == 2
    assert found[1] is record
    with pytest.raises(BadArgument, match="must be at least two canaries"):
        Many([Blank()]).records(DATA)


def test_a_record_outside_of_the_data_is_named():
    with pytest.raises(BadArgument, match=r"record 200 of the 200 of dataset"):
        Mislabeled(200).records(DATA)
