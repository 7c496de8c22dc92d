"""The score is log p / (1 - p) of the canary's class, also where p is 1 in floating point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine

from lightning_audit.many.records import LogitMargin, ScoreError

RECORD = (torch.tensor([1.0, -2.0]), torch.tensor(2))


def returns(*logits, shape=(1, -1)):
    return lambda batch: torch.tensor(logits).reshape(shape)


@pytest.mark.parametrize("logits", [(0.5, -1.0, 2.0, 0.1), (3.0, 3.0, 3.0)])
def test_it_is_the_log_odds_of_the_class(logits):
    p = np.exp(logits) / np.exp(logits).sum()
    wanted = math.log(p[2] / (1 - p[2]))
    assert LogitMargin()(returns(*logits), RECORD) == pytest.approx(wanted, abs=1e-6)


def test_it_does_not_saturate():
    one, other = (LogitMargin()(returns(0.0, 0.0, top), RECORD) for top in (200.0, 300.0))
    assert other - one == pytest.approx(100.0)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_one_logit_is_that_of_class_1(shape):
    model = returns(0.7, shape=shape)
    assert LogitMargin()(model, (RECORD[0], 1)) == pytest.approx(0.7)
    assert LogitMargin()(model, (RECORD[0], 0)) == pytest.approx(-0.7)


@pytest.mark.training
def test_a_model_of_opacus_is_read_in_evaluation_mode():
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.9))
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    private, *_ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    scores = {LogitMargin()(private, RECORD) for _ in range(5)}
    assert scores == {LogitMargin()(model, RECORD)}


@pytest.mark.parametrize(
    ("model", "record", "match"),
    [
        (3.0, RECORD, "LogitMargin takes a model and a record .* not 3.0"),
        (returns(1.0), 5, r"give score=, a function of \(model, record\)"),
        (returns(1.0, 2.0), RECORD, "returns 2 logits, and the canary has class 2"),
        (lambda batch: "yes", RECORD, r"returns str and not logits, \[1, classes\]"),
        (returns(1.0, 2.0, shape=(2,)), RECORD, r"returns \(2,\) and not logits"),
    ],
)
def test_what_is_no_classifier_is_refused_in_a_sentence(model, record, match):
    with pytest.raises(ScoreError, match=match):
        LogitMargin()(model, record)


def test_many_records_have_the_scores_of_each():
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5))
    records = [(torch.randn(2), n % 4) for n in range(9)]
    together = LogitMargin().many(model, records)
    assert np.allclose(together, [LogitMargin()(model, record) for record in records], atol=1e-6)
    binary = torch.nn.Linear(2, 1)
    both = LogitMargin().many(binary, [(records[0][0], 1), (records[0][0], 0)])
    assert both[0] == -both[1] != 0.0
    lengths = torch.nn.AdaptiveAvgPool1d(3)  # records of several shapes
    ragged = [(torch.arange(float(n)), 0) for n in (6, 9)]
    scores = LogitMargin().many(lengths, ragged)
    assert scores.tolist() == [LogitMargin()(lengths, record) for record in ragged]


def test_a_class_without_others_is_certain():
    assert LogitMargin()(returns(0.0, -math.inf, -math.inf), (RECORD[0], 0)) == math.inf
