"""The user's function is seeded, run and checked; helpers build it from Opacus and Lightning."""

from __future__ import annotations

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from driven_trainings import digits, softmax_regression
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit.many.records import Blank, Many
from lightning_audit.many.store import Plan
from lightning_audit.many.worlds import Work, lightning_training, opacus_training, worlds_of

pytestmark = pytest.mark.training
WORLDS = worlds_of(digits(), Blank(label=1), "add_remove")
BLOCK = next(Plan(0, 6, 6).blocks())


def test_a_training_sees_its_data_set_and_its_seed():
    seen = []
    Work(lambda data, seed: seen.append((len(data[0]), seed)) or 1.0, WORLDS).run(BLOCK)
    assert seen == [(100 + t.coins[0], t.seed) for t in BLOCK]


def test_a_training_does_not_depend_on_those_before_it_in_the_worker():
    def unseeded(data, seed):
        return float(torch.randn(())) + np.random.normal()

    work = Work(unseeded, WORLDS)
    together = work.run(BLOCK)
    assert [work.run((t,))[0].scores for t in BLOCK] == [o.scores for o in together]
    assert len({o.scores for o in together}) == 6


def test_a_score_of_the_user_gets_the_result_and_the_record():
    def score(weights, record):
        return weights["bias"] + float(record[0].sum()) + int(record[1])

    outcomes = Work(lambda data, seed: {"bias": 3.0}, WORLDS, score).run(BLOCK)
    assert {o.scores for o in outcomes} == {(4.0,)}


def test_many_canaries_have_a_score_each():
    worlds = worlds_of(digits(), Many([Blank(1), Blank(2)]), "add_remove")
    block = next(Plan(0, 2, 2, canaries=2).blocks())
    outcomes = Work(softmax_regression(), worlds).run(block)
    assert all(len(o.scores) == 2 and not o.error for o in outcomes)
    short = Work(lambda data, seed: 1.0, worlds).run(block)[0]
    assert short.fatal
    assert "train returned 1 scores" in short.error
    assert "return 2 scores, one a canary, in each training" in short.error


def test_a_score_that_returns_text_is_refused():
    outcome = Work(lambda data, seed: 1.0, WORLDS, lambda model, record: "high").run(BLOCK)[0]
    assert outcome.fatal
    assert outcome.error == "score returned 'high' for training 0; return one number."


def test_real_opacus_shows_the_canary_if_there_is_no_noise():
    work = Work(softmax_regression(steps=40, noise_multiplier=0.0), WORLDS)
    outcomes = work.run(BLOCK)
    inside = [o.scores[0] for o, t in zip(outcomes, BLOCK, strict=True) if t.coins[0]]
    outside = [o.scores[0] for o, t in zip(outcomes, BLOCK, strict=True) if not t.coins[0]]
    assert min(inside) > max(outside)


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
    return pl.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def loader_of(data):
    return DPDataLoader.from_data_loader(DataLoader(TensorDataset(*data), 20))


def test_a_module_and_a_trainer_make_a_training_that_its_seed_determines():
    train = lightning_training(lambda data: Softmax(TensorDataset(*data)), quiet_trainer, loader_of)
    work = Work(train, WORLDS)
    one, again, other = (work.run((BLOCK[i],))[0] for i in (0, 0, 1))
    assert (one.error, other.error) == ("", "")
    assert one.scores == again.scores != other.scores


def test_a_module_that_was_trained_before_is_refused():
    module = Softmax(TensorDataset(*WORLDS.data))
    work = Work(lightning_training(lambda data: module, quiet_trainer, loader_of), WORLDS)
    first, second = (work.run((BLOCK[i],))[0] for i in (0, 1))
    assert first.error == ""
    assert "make_module" in second.error
    assert "must return a new one each time" in second.error
    assert second.fatal  # else thousands of trainings would fail one by one


def test_one_model_for_all_trainings_is_copied():
    start = torch.nn.Linear(64, 10)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    train = opacus_training(
        lambda: start,
        lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        sample_rate=0.5,
        expected_batch_size=50,
        steps=2,
    )
    models = [train(WORLDS.data, seed) for seed in (1, 2, 1)]
    for name, value in start.state_dict().items():
        assert torch.equal(value, before[name])
    one, other, again = (model.weight for model in models)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
