"""Neighboring data sets differ by the canaries whose coins are 1, and by nothing else."""

import pickle

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from driven_trainings import digits, sgd, softmax_regression
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from refused_calls import refused
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.many.records import Blank, ChosenRecord, Many, Mislabeled
from lightning_audit.many.store import Plan
from lightning_audit.many.worlds import (
    Neighbors,
    Work,
    lightning_training,
    opacus_training,
    worlds_of,
)

# --- The user's function is seeded, run and checked; helpers build it from Opacus and Lightning.
WORLDS = worlds_of(digits(), Blank(label=1), "add_remove")
BLOCK = next(Plan(0, 6, 6).blocks())
INPUTS, CLASSES = torch.arange(12.0).reshape(4, 3), torch.tensor([0, 1, 2, 1])


@pytest.mark.training
def test_a_training_sees_its_data_set_and_its_seed():
    seen = []
    [*Work(lambda data, seed: seen.append((len(data[0]), seed)) or 1.0, WORLDS).run(BLOCK)]
    assert seen == [(100 + t.coins[0], t.seed) for t in BLOCK]


@pytest.mark.training
def test_a_training_does_not_depend_on_those_before_it_in_the_worker():
    def unseeded(data, seed):
        return float(torch.randn(())) + np.random.normal()

    work = Work(unseeded, WORLDS)
    together = [*work.run(BLOCK)]
    assert [next(work.run((t,))).scores for t in BLOCK] == [o.scores for o in together]
    assert len({o.scores for o in together}) == 6


@pytest.mark.training
def test_a_score_of_the_user_gets_the_result_and_the_record():
    def score(weights, record):
        return weights["bias"] + float(record[0].sum()) + int(record[1])

    outcomes = [*Work(lambda data, seed: {"bias": 3.0}, WORLDS, score).run(BLOCK)]
    assert {o.scores for o in outcomes} == {(4.0,)}


@pytest.mark.training
def test_many_canaries_have_a_score_each():
    worlds = worlds_of(digits(), Many([Blank(1), Blank(2)]), "add_remove")
    block = next(Plan(0, 2, 2, canaries=2).blocks())
    outcomes = [*Work(softmax_regression(), worlds).run(block)]
    assert all(len(o.scores) == 2 and not o.error for o in outcomes)
    short = next(Work(lambda data, seed: 1.0, worlds).run(block))
    assert short.fatal
    assert "train returned 1 scores" in short.error
    assert "return 2 scores, one a canary, in each training" in short.error


@pytest.mark.training
def test_a_score_that_returns_text_is_refused():
    outcome = next(Work(lambda data, seed: 1.0, WORLDS, lambda model, record: "high").run(BLOCK))
    assert outcome.fatal
    assert outcome.error == "score returned 'high' for training 0; return one number."


class Softmax(pl.LightningModule):
    def __init__(self, data):
        super().__init__()
        self.net, self.data = torch.nn.Linear(64, 10), data

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.5),
            data_loader=DataLoader(self.data, 20),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        return optimizer


def quiet_trainer():
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(max_steps=3, accelerator="cpu", **dict.fromkeys(silent, False))


def loader_of(data):
    return DPDataLoader.from_data_loader(DataLoader(TensorDataset(*data), 20))


@pytest.mark.training
def test_a_module_and_a_trainer_make_a_training_that_its_seed_determines():
    train = lightning_training(lambda data: Softmax(TensorDataset(*data)), quiet_trainer, loader_of)
    work = Work(train, WORLDS)
    one, again, other = (next(work.run((BLOCK[i],))) for i in (0, 0, 1))
    assert (one.error, other.error) == ("", "")
    assert one.scores == again.scores != other.scores


@pytest.mark.training
def test_a_module_that_was_trained_before_is_refused():
    module = Softmax(TensorDataset(*WORLDS.data))
    work = Work(lightning_training(lambda data: module, quiet_trainer, loader_of), WORLDS)
    first, second = (next(work.run((BLOCK[i],))) for i in (0, 1))
    assert first.error == ""
    assert "make_module" in second.error
    assert "must return a new one each time" in second.error
    assert second.fatal  # else thousands of trainings would fail one by one


@pytest.mark.training
def test_one_model_for_all_trainings_is_copied():
    start = torch.nn.Linear(64, 10)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "sample_rate": 0.5, "steps": 2}
    train = opacus_training(lambda: start, sgd, expected_batch_size=50, **settings)
    one, other, again = (train(WORLDS.data, seed).weight for seed in (1, 2, 1))
    for name, value in start.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


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


@pytest.mark.parametrize(("adjacency", "kept"), [("add_remove", 4), ("replace_one", 3)])
@pytest.mark.parametrize("form", FORMS)
def test_the_canary_is_a_record_more_or_takes_the_place_of_the_last(form, adjacency, kept):
    worlds = worlds_of(FORMS[form], Blank(label=2), adjacency)
    assert np.array_equal(table(worlds.of((0,))), BASE)
    assert np.array_equal(table(worlds.of((1,))), [*BASE[:kept], [0, 0, 0, 2]])
    assert worlds.of((1,)) is worlds.of((1,))
    assert np.array_equal(table(FORMS[form]), BASE)  # the user's data did not change


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_each_of_many_canaries_has_its_own_coin(form, adjacency):
    worlds = worlds_of(FORMS[form], Many([Blank(0), Blank(1), Blank(2)]), adjacency)
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
    assert (classes.tolist(), classes.dtype) == ([0, 1, 2, 1, 2], torch.int64)


def test_a_given_pair_is_passed_unchanged_and_a_record_may_be_anything():
    worlds = worlds_of(Neighbors("without", "with", record=(1.0, 1)), Blank(), "add_remove")
    assert (worlds.of((0,)), worlds.of((1,)), worlds.records) == ("without", "with", ((1.0, 1),))
    assert worlds_of([1, 2], ChosenRecord(7), "add_remove").of((1,)) == [1, 2, 7]


def test_data_sets_that_were_made_are_not_sent_to_workers():
    worlds = worlds_of((torch.zeros(10**5, 4), torch.zeros(10**5)), Blank(), "add_remove")
    before = len(pickle.dumps(worlds))
    worlds.of((1,))
    assert len(pickle.dumps(worlds)) == before


test_other_data_and_what_does_not_fit_them_are_refused = refused(
    worlds_of,
    (3, Blank(), "add_remove", r"dataset=3 must be a tuple of .*Neighbors\(without, with_canary\)"),
    ([], Blank(), "add_remove", "dataset has no record; give at least one"),
    ((INPUTS, CLASSES[:3]), Blank(), "add_remove", "with one row a record and equal lengths"),
    ((1.0, 2.0), Blank(), "add_remove", "must be arrays or tensors with one row a record"),
    (FORMS["list"], "blank", "add_remove", r"canary='blank' must be Blank\(\)"),
    (FORMS["list"], Many([Blank()] * 5), "replace_one", "replaces 5 records, and dataset has only"),
    (FORMS["list"], Blank(), "swap", "adjacency='swap' must be one of"),
    ([1, 2], Blank(), "add_remove", "record 0 of the 2 of dataset is 1 and no pair"),
)
