"""Epsilon* is logged by trainings of either Lightning, and leaves them as they are."""

import json
import os
import random
import socket
import subprocess
import sys
from typing import Any

import lightning.pytorch
import lightning.pytorch.cli
import numpy as np
import pytest
import pytorch_lightning
import pytorch_lightning.cli
import torch
from places import SUPPORT
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from training_support import PrivateModule, digits, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.callbacks.epsilon_star import EpsilonStar, fixed_loader, losses_of
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    epsilon_star,
    epsilon_star_null,
)

# --- Trainings whose modules give one loss a record.

DIGITS = digits(700)


TRAIN, POPULATION = (TensorDataset(*DIGITS[part]) for part in (slice(0, 300), slice(300, 700)))


class Jittered(Dataset):
    """Records that draw from every global generator when they are read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[index]
        return x + 1e-3 * (torch.randn(()) + np.random.normal() + random.random()), y


class Training:
    """An ordinary training on 300 digits, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
        )
        self.train_data: Dataset = TRAIN

    def losses_per_record(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, reduction="none")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        return None

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(POPULATION, batch_size=100)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2)


class StandaloneTraining(Training, pytorch_lightning.LightningModule):
    """Of `pytorch_lightning`."""


class UnifiedTraining(Training, lightning.pytorch.LightningModule):
    """Of `lightning.pytorch`."""


either_lightning = pytest.mark.parametrize(
    ("package", "kind"),
    [(pytorch_lightning, StandaloneTraining), (lightning.pytorch, UnifiedTraining)],
)


class PrivateTraining(PrivateModule):
    """DP-SGD by Opacus, with Poisson batches."""

    losses_per_record = Training.losses_per_record

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        super().__init__(nn.Linear(64, 10), dataset=TRAIN, generator=generator)


def losses_now(module: Any, data: TensorDataset) -> np.ndarray:
    with torch.no_grad():
        return module.eval().losses_per_record(data[:]).double().numpy()


def loader_of(data: Dataset) -> DataLoader:
    return DataLoader(data, batch_size=50, shuffle=True)


# --- Epsilon* is logged by trainings of either Lightning, and leaves them as they are.


@either_lightning
@pytest.mark.parametrize("method", [Empirical(clip=0.01), Parametric(clip=1e-3)])
def test_the_value_of_each_epoch_is_logged_in_either_lightning(tmp_path, package, kind, method):
    star, module = EpsilonStar(delta=1e-3, method=method), kind()
    trainer = trainer_for(tmp_path, star, trainer_class=package.Trainer, max_epochs=2)
    trainer.fit(module)
    assert [found.epoch for found in star.history] == [0, 1]
    losses = losses_now(module, TRAIN), losses_now(module, POPULATION)
    expected = epsilon_star(*losses, 1e-3, method)
    draws = {"permutations": 99, "rng": np.random.default_rng((0, 1))}
    null = epsilon_star_null(*losses, 1e-3, method, **draws)
    logged = trainer.callback_metrics
    told = {name.removeprefix("epsilon_star/"): float(value) for name, value in logged.items()}
    assert told == pytest.approx(
        {
            "value": expected.value,
            "null_median": null.median,
            "null_95": null.quantile_95,
            "p_value": null.p_value,
            "at_clip": float(expected.at_clip),
        },
        rel=1e-4,
    )
    assert (star.history[1].n_train, star.history[1].n_population) == (300, 400)


def test_overfitting_raises_it_above_its_null(tmp_path):
    star = EpsilonStar(delta=1e-3, every_n_epochs=10)
    trainer_for(tmp_path, star, max_epochs=30).fit(StandaloneTraining())
    assert [found.epoch for found in star.history] == [9, 19, 29]
    last = star.history[-1]
    assert last.null.p_value == 0.01
    assert last.star.value > last.null.quantile_95 > 0


@pytest.mark.parametrize("kind", [StandaloneTraining, PrivateTraining])
def test_the_training_is_the_same_to_the_bit(tmp_path, kind):
    states = []
    for callbacks in ([], [EpsilonStar(delta=1e-3, population_dataloader=loader_of(POPULATION))]):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        module = kind()
        if kind is StandaloneTraining:
            module.train_data = Jittered(TRAIN)
        trainer_for(tmp_path, *callbacks, max_epochs=2).fit(module)
        states.append((module.state_dict(), torch.rand(3), np.random.rand(3), random.random()))
    (plain, *draws), (watched, *watched_draws) = states
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert [np.array_equal(a, b) for a, b in zip(draws, watched_draws, strict=True)] == [True] * 3


def test_it_goes_beside_the_audit_of_a_private_training(tmp_path):
    audit = PrivacyAudit(seed=0)
    star = EpsilonStar(delta=1e-3, population_dataloader=loader_of(POPULATION))
    trainer = trainer_for(tmp_path, audit, star, max_epochs=2)
    trainer.fit(PrivateTraining())
    assert len(star.history) == 2
    assert star.history[-1].n_train == 300
    assert audit.report.verdict.outcome != "VIOLATION"
    assert {"audit/epsilon_lower", "epsilon_star/value"} <= set(trainer.callback_metrics)


def test_loaders_and_losses_of_the_user_are_taken(tmp_path):
    def margins(module: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        return -module.net(x).gather(1, y[:, None])[:, 0]

    star = EpsilonStar(
        delta=0.0,
        train_dataloader=[TRAIN[0:50], TRAIN[50:80]],
        population_dataloader=DataLoader(POPULATION, batch_size=64),
        losses=margins,
        max_records=70,
        log_prefix="margin",
    )
    module = StandaloneTraining()
    trainer = trainer_for(tmp_path, star, max_epochs=1)
    trainer.fit(module)
    (found,) = star.history
    assert (found.n_train, found.n_population) == (70, 70)
    module.eval()
    with torch.no_grad():
        sides = [margins(module, data[:70]).numpy() for data in (TRAIN, POPULATION)]
    expected = epsilon_star(*sides, 0.0, Empirical(clip=0.001))
    assert found.star.value == pytest.approx(expected.value)
    assert float(trainer.callback_metrics["margin/value"]) == pytest.approx(expected.value)


def test_a_validation_that_comes_seldom_is_enough_if_one_comes_before_the_training(tmp_path):
    star, seldom = EpsilonStar(delta=1e-3), {"max_epochs": 2, "check_val_every_n_epoch": 2}
    trainer_for(tmp_path, star, num_sanity_val_steps=2, **seldom).fit(StandaloneTraining())
    assert [found.n_population for found in star.history] == [400, 400]
    trainer = trainer_for(tmp_path, EpsilonStar(delta=1e-3), num_sanity_val_steps=0, **seldom)
    with pytest.raises(MisconfigurationException, match="NoneType; pass population_dataloader"):
        trainer.fit(StandaloneTraining())


def test_losses_without_a_value_are_logged_as_nan_and_the_training_goes_on(tmp_path, caplog):
    star = EpsilonStar(delta=1e-3, losses=lambda _, batch: torch.full((len(batch[1]),), np.nan))
    trainer = trainer_for(tmp_path, star, max_epochs=2)
    trainer.fit(StandaloneTraining())
    assert trainer.current_epoch == 2
    assert star.history == []
    assert np.isnan(float(trainer.callback_metrics["epsilon_star/value"]))
    assert "no Epsilon* after epoch 1: losses_train holds nan" in caplog.text


class Endless(IterableDataset):
    def __iter__(self):
        return iter(TRAIN)


OWN_LOADER = DataLoader(TRAIN, batch_size=32)


def with_its_own_loader() -> Any:
    module = StandaloneTraining()
    module.train_dataloader = lambda: OWN_LOADER
    return module


@pytest.mark.parametrize(
    ("arguments", "make", "message"),
    [
        ({}, PrivateTraining, "population_dataloader=None takes .* is NoneType"),
        ({}, PrivateModule, r"losses_per_record.* of PrivateModule"),
        (
            *({"train_dataloader": OWN_LOADER}, with_its_own_loader),
            "train_dataloader is a loader of the Tr",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_named(tmp_path, arguments, make, message):
    trainer = trainer_for(tmp_path, EpsilonStar(delta=1e-3, **arguments), max_epochs=1)
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(make())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta": 1.0}, ValueError, r"delta=1.0 must be in \(0, 1\); or 0"),
        ({"every_n_epochs": 0}, ValueError, "every_n_epochs=0 must be a whole number >= 1"),
        ({"max_records": 0.5}, ValueError, "max_records=0.5 must be a whole number >= 1"),
        ({"permutations": 0}, ValueError, "permutations=0 must be a whole number >= 1"),
        ({"method": "empirical"}, TypeError, "method='empirical' must be Empirical"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        EpsilonStar(**{"delta": 0.1, **arguments})


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
@either_lightning
def test_yaml_configures_it_in_either_lightning(monkeypatch, package, kind):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    path = "lightning_audit.stats.epsilon_star.Parametric"
    method = {"class_path": path, "init_args": {"clip": 0.01}}
    callback = {
        "class_path": "lightning_audit.callbacks.epsilon_star.EpsilonStar",
        "init_args": {"delta": 1e-4, "method": method, "every_n_epochs": 3},
    }
    trainer = {"accelerator": "cpu", "logger": False, "callbacks": [callback]}
    config = {"seed_everything": False, "trainer": trainer}
    cli = package.cli.LightningCLI(kind, run=False, args=config)
    (star,) = [c for c in cli.trainer.callbacks if isinstance(c, EpsilonStar)]
    assert (star.delta, star.method, star.every_n_epochs) == (1e-4, Parametric(clip=0.01), 3)


@pytest.mark.heavy
def test_two_processes_evaluate_all_records_and_agree(tmp_path):
    script = SUPPORT / "epsilon_star_two_processes.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
    shared.pop("PL_GLOBAL_SEED", None)  # of tests before this one
    both = [
        subprocess.Popen(
            [sys.executable, script, tmp_path],
            env={**shared, "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=200)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    first, second = (json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["sizes"] == [201, 299]
    assert first["plain"] == first["watched"]
    assert first["logged"] == pytest.approx(first["value"])
    assert first["value"] > 0


def test_the_records_are_those_that_the_trainer_has_now(tmp_path):
    class Growing(StandaloneTraining):
        def train_dataloader(self):
            records = 100 * (1 + self.trainer.current_epoch)
            return DataLoader(Subset(TRAIN, range(records)), batch_size=32, shuffle=True)

    star = EpsilonStar(delta=1e-3)
    trainer_for(tmp_path, star, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Growing())
    assert [found.n_train for found in star.history] == [100, 200, 300]


# --- Losses of single records: whose they are, of what shape, and what is left as it was.

NUMBERS = TensorDataset(torch.arange(300.0)[:, None])


def own_numbers(_: Any, batch: Any) -> torch.Tensor:
    return batch[0][:, 0]


def test_at_most_so_many_records_are_taken_evenly_and_in_order(tmp_path):
    trainer = trainer_for(tmp_path)
    shuffled = DataLoader(NUMBERS, batch_size=7, shuffle=True)
    for most, expected in ((4, [0, 100, 199, 299]), (None, range(300))):
        loader = fixed_loader("train_dataloader", shuffled, most)
        assert loader.batch_size == 7
        assert losses_of(trainer, nn.Identity(), loader, own_numbers, most).tolist() == [*expected]


def test_no_more_batches_are_read_than_the_records_need(tmp_path):
    read = []

    def losses(_: Any, batch: torch.Tensor) -> torch.Tensor:
        read.append(len(batch))
        return batch

    batches = [torch.zeros(50)] * 4
    found = losses_of(trainer_for(tmp_path), nn.Identity(), batches, losses, 70)
    assert (len(found), read) == (70, [50, 50])


@pytest.mark.parametrize("fails", [False, True])
def test_modes_gradients_and_random_numbers_are_as_they_were(tmp_path, fails):
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.BatchNorm1d(1))
    net[1].eval()
    seen = []

    def losses(module: Any, batch: Any) -> torch.Tensor:
        seen.append(([part.training for part in module], torch.is_grad_enabled()))
        torch.rand(3)
        return module(batch[0])[:, 0] if not fails else torch.ones(2, 2)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        losses_of(trainer_for(tmp_path), net, DataLoader(NUMBERS, 100), losses, 50)
    except MisconfigurationException:
        assert fails
    assert seen == [([False] * 3, False)]
    assert [part.training for part in net] == [True, False, True]
    assert torch.is_grad_enabled()
    assert fails or torch.equal(torch.get_rng_state(), before)
    assert net[2].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (torch.tensor(0.5), r"of shape \(\), must be .*'none'"),
        (torch.ones(3, 2), r"of shape \(3, 2\), must be"),
        (0.5, "of type float, must be a tensor of shape"),
    ],
)
def test_losses_that_are_not_one_a_record_are_refused(tmp_path, losses, words):
    with pytest.raises(MisconfigurationException, match=words):
        losses_of(trainer_for(tmp_path), nn.Identity(), [[]], lambda *_: losses, None)


@pytest.mark.parametrize(
    ("loader", "kind"), [(DataLoader(Endless()), "DataLoader"), (None, "NoneType"), ([[1]], "list")]
)
def test_records_of_a_loader_without_a_length_are_refused(loader, kind):
    words = f"population_dataloader=None takes .* but is {kind}; pass population_dataloader"
    with pytest.raises(MisconfigurationException, match=words):
        fixed_loader("population_dataloader", loader, 4)


def test_no_records_give_no_losses(tmp_path):
    found = losses_of(trainer_for(tmp_path), nn.Identity(), [], own_numbers, None)
    assert found.shape == (0,)
    assert found.dtype == np.float64
