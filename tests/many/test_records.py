"""Records of a data set, and data sets with other records."""

import math

import numpy as np
import pytest
import torch
from driven_trainings import digits
from naive_dpsgd import differences, looped
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional

from lightning_audit._validate import BadArgument
from lightning_audit.many.records import (
    Blank,
    ChosenRecord,
    Crafted,
    GhostSums,
    LogitMargin,
    Many,
    Mislabeled,
    PerSampleSums,
    Rearranged,
    Records,
    ScoreError,
    clipped_sums,
    linear_stack,
)
from lightning_audit.many.vectorised import DPSGDMany

# --- Canaries have the form of the data's records and the contents that their names say.
DATA = Records(digits(200))
MODELS, RECORDS = 3, 5
RECORD = (torch.tensor([1.0, -2.0]), torch.tensor(2))


def test_blank_is_zero_in_the_dtype_of_the_data():
    [(inputs, target)] = Blank().records(DATA)
    assert inputs.dtype == torch.float32
    assert not inputs.any()
    assert int(target) == int(DATA[0][1])


def test_mislabeled_is_a_record_of_the_data_with_another_class():
    with pytest.raises(BadArgument, match=r"record 200 of the 200 of dataset"):
        Mislabeled(200).records(DATA)
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
    [(canary, _)] = Crafted().records(Records((torch.rand(6, 1, 4, 4), torch.arange(6))))
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


# --- Clipped sums: ghost norms and per-sample gradients give those of one backward pass a record.
def squares(outputs, targets):
    return (outputs - torch.eye(4)[targets]).square().mean()


def stack():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5, bias=False), nn.Sequential(nn.ReLU(), nn.Linear(5, 4))
    )


def batch():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(MODELS, RECORDS, 2, 3, generator=draw)
    targets = torch.randint(4, (MODELS, RECORDS), generator=draw)
    counts = torch.ones(MODELS, RECORDS)
    counts[1, 3:] = 0.0
    return inputs, targets, counts


@pytest.mark.parametrize("loss", [None, squares])
@pytest.mark.parametrize("kind", ["ghost", "per sample"])
def test_the_sums_are_those_of_one_backward_pass_a_record(kind, loss):
    models = [stack() for _ in range(MODELS)]
    names = [name for name, _ in models[0].named_parameters()]
    trained = {n: torch.stack([m.get_parameter(n).detach() for m in models]) for n in names}
    inputs, targets, counts = batch()
    layers = linear_stack(models[0])
    assert layers is not None
    sums = GhostSums(layers, loss, 0.5) if kind == "ghost" else PerSampleSums(models[0], loss, 0.5)
    with torch.no_grad():
        found = sums(trained, {}, inputs, targets, counts)
    assert set(found) == set(names)
    clipped = 0
    for number, model in enumerate(models):
        expected = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
        for record in range(int(counts[number].sum())):
            outputs = model(inputs[number, record : record + 1])
            value = (loss or functional.cross_entropy)(outputs, targets[number, record, None])
            gradients = torch.autograd.grad(value, [model.get_parameter(n) for n in names])
            norm = float(torch.cat([g.flatten() for g in gradients]).norm())
            clipped += norm > 0.5
            for name, gradient in zip(names, gradients, strict=True):
                expected[name] += gradient * min(1.0, 0.5 / (norm + 1e-6))
        for name in names:
            assert torch.allclose(found[name][number], expected[name], atol=1e-6)
    assert clipped


def hooked():
    model = stack()
    model[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def frozen():
    model = stack()
    model[1].requires_grad_(False)
    return model


TIED = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Linear(3, 2), GhostSums),
        (stack(), GhostSums),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), PerSampleSums),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), PerSampleSums),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), PerSampleSums),
        (nn.Conv1d(1, 2, 3), PerSampleSums),
        (hooked(), PerSampleSums),
        (nn.Sequential(TIED, nn.Tanh(), TIED), PerSampleSums),
        (frozen(), PerSampleSums),
    ],
    ids=["linear", "stack", "in place", "norm", "softmax", "conv", "hook", "tied", "frozen"],
)
def test_only_stacks_of_linear_layers_have_ghost_norms(model, kind):
    assert type(clipped_sums(model, None, 1.0)) is kind


def test_a_loss_of_the_user_is_that_of_one_record():
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 0.3, "sample_rate": 0.5, "steps": 8}
    settings |= {"expected_batch_size": 5, "learning_rate": 0.5}
    train = DPSGDMany(lambda: nn.Linear(6, 4), squares, **settings)
    draw = torch.Generator().manual_seed(0)
    data = (torch.randn(10, 6, generator=draw), torch.randint(4, (10,), generator=draw))
    assert differences([train(data, 3)], [looped(train, data, 3, squares)]) < 1e-6


# --- The score is log p / (1 - p) of the canary's class, also where p is 1 in floating point.
def returns(*logits, shape=(1, -1)):
    return lambda batch: torch.tensor(logits).reshape(shape)


@pytest.mark.parametrize("logits", [(0.5, -1.0, 2.0, 0.1), (3.0, 3.0, 3.0)])
def test_it_is_the_log_odds_of_the_class(logits):
    p = np.exp(logits) / np.exp(logits).sum()
    wanted = math.log(p[2] / (1 - p[2]))
    assert LogitMargin()(returns(*logits), RECORD) == pytest.approx(wanted, abs=1e-6)


def test_it_does_not_saturate_and_a_class_without_others_is_certain():
    one, other = (LogitMargin()(returns(0.0, 0.0, top), RECORD) for top in (200.0, 300.0))
    assert other - one == pytest.approx(100.0)
    assert LogitMargin()(returns(0.0, -math.inf, -math.inf), (RECORD[0], 0)) == math.inf


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
    assert {LogitMargin()(private, RECORD) for _ in range(5)} == {LogitMargin()(model, RECORD)}


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
    both = LogitMargin().many(torch.nn.Linear(2, 1), [(records[0][0], 1), (records[0][0], 0)])
    assert both[0] == -both[1] != 0.0
    lengths = torch.nn.AdaptiveAvgPool1d(3)  # records of several shapes
    ragged = [(torch.arange(float(n)), 0) for n in (6, 9)]
    scores = LogitMargin().many(lengths, ragged)
    assert scores.tolist() == [LogitMargin()(lengths, record) for record in ragged]


def test_a_changed_data_set_reads_the_old_one_lazily_and_counts_from_the_end():
    data = [(1.0, 0), (2.0, 1)]
    assert [*Records(data).rearranged(range(len(data)))] == [*data]
    reads = []

    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            reads.append(index)
            return (float(index), 0)

    changed = Records(Lazy()).rearranged([0, ~1, 2, ~0], [(9.0, 1), (8.0, 1)])
    assert isinstance(changed, Rearranged)
    assert reads == []
    whole = [(0.0, 0), (8.0, 1), (2.0, 0), (9.0, 1), (9.0, 1)]
    assert [changed[i] for i in (0, 1, 2, 3, -1)] == whole
    assert reads == [0, 2]


def test_a_canary_takes_the_dtype_of_the_column():
    data = (np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.int32))
    inputs, classes = Records(data).rearranged([0, 1, ~0], [(np.ones(3), 1.0)])
    assert (inputs.dtype, classes.dtype) == (np.float32, np.int32)
    tensors = Records(tuple(map(torch.as_tensor, data))).rearranged([~0, 1], [(np.ones(3), 1)])
    assert (tensors[0].dtype, tensors[0][0].tolist()) == (torch.float32, [1.0, 1.0, 1.0])
