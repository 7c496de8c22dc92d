"""The audited training gives the model that it would have given, and the audit repeats itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from stages import staged
from training_support import PrivateModule, digits, mlp, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Constant, Random
from lightning_audit.record.store import EARLIER, INJECTED, read_observations
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.trainings import GhostInParts, PhysicalBatches

_INNER: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
}


class _States(pl.Callback):
    """The state of every generator at the end of the training, before anything is shown."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.torch = torch.get_rng_state()
        self.numpy = np.random.get_state()[1]  # the global one is what is asked
        self.python = random.getstate()


def _train(
    directory: Path, *callbacks: pl.Callback, steps: int = 200, **kwargs: Any
) -> tuple[torch.Tensor, _States]:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    module = PrivateModule(mlp(64), dataset=digits(), **kwargs)
    states = _States()
    trainer_for(directory, *callbacks, states, max_steps=steps).fit(module)
    flat = torch.cat([p.detach().flatten().double() for p in module.net.parameters()])
    return flat, states


@pytest.mark.parametrize("inner", staged(["sgd"], ["adam", "momentum"]))
def test_audited_model_is_the_unaudited_one(tmp_path: Path, inner: str) -> None:
    plain, _ = _train(tmp_path / "plain", inner=_INNER[inner])
    audited, _ = _train(tmp_path / "audited", PrivacyAudit(seed=1), inner=_INNER[inner])
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)


@pytest.mark.parametrize(
    "kind", [PhysicalBatches, pytest.param(GhostInParts, marks=pytest.mark.heavy)]
)
def test_canaries_in_any_part_of_a_split_batch_leave_the_model_as_it_would_be(
    tmp_path: Path, kind: type[PhysicalBatches]
) -> None:
    weights = []
    for audited in (False, True):
        torch.manual_seed(3)
        module = Fault("sound", "nothing", "", "", training=kind).module(pl.LightningModule)
        audits = [PrivacyAudit(seed=1)] if audited else []
        trainer_for(tmp_path / str(audited), *audits, max_steps=101).fit(module)
        weights.append(torch.cat([p.detach().flatten().double() for p in module.parameters()]))
    assert torch.linalg.norm(weights[1] - weights[0]) <= 1e-6 * torch.linalg.norm(weights[0])
    _, entries = read_observations(tmp_path / "True" / "audit" / "observations.bin")
    assert set(entries["canaries"]) == {INJECTED, EARLIER}


def test_dense_canaries_leave_the_model_as_it_would_be(tmp_path: Path) -> None:
    audit = PrivacyAudit(canaries=[Constant(), Random(moving=True)], seed=1)
    plain, _ = _train(tmp_path / "plain", steps=64)
    audited, _ = _train(tmp_path / "audited", audit, steps=64)
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)


def test_global_generators_are_left_alone(tmp_path: Path) -> None:
    _, plain = _train(tmp_path / "plain", steps=40)
    _, audited = _train(tmp_path / "audited", PrivacyAudit(), steps=40)
    assert torch.equal(plain.torch, audited.torch)
    assert np.array_equal(plain.numpy, audited.numpy)
    assert plain.python == audited.python


def test_noise_generator_is_left_alone(tmp_path: Path) -> None:
    ends = []
    for name, callbacks in (("plain", ()), ("audited", (PrivacyAudit(),))):
        generator = torch.Generator().manual_seed(11)
        _train(tmp_path / name, *callbacks, steps=40, generator=generator)
        ends.append(generator.get_state())
    assert torch.equal(*ends)


def test_making_the_callback_draws_nothing_from_global_generators() -> None:
    before = torch.get_rng_state(), random.getstate()
    PrivacyAudit()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_same_seed_gives_the_same_record_bit_for_bit(tmp_path: Path) -> None:
    records = []
    for name in ("first", "second"):
        _train(tmp_path / name, PrivacyAudit(seed=5), steps=40)
        records.append(_record(tmp_path / name))
    assert records[0] == records[1]


def _record(directory: Path) -> bytes:
    """The entries of a record; the line before them names the run."""
    header, entries = read_observations(directory / "audit" / "observations.bin")
    return repr(header).encode() + entries.tobytes()


def test_another_seed_gives_other_coins(tmp_path: Path) -> None:
    coins = []
    for seed in (5, 6):
        _train(tmp_path / str(seed), PrivacyAudit(seed=seed), steps=40)
        _, entries = read_observations(tmp_path / str(seed) / "audit" / "observations.bin")
        coins.append(entries["coins"])
    assert coins[0].shape == coins[1].shape == (40, 8)
    assert not np.array_equal(*coins)
    assert 0.3 < coins[0].mean() < 0.7


def test_seed_that_was_drawn_is_reported_and_repeats_the_run(tmp_path: Path) -> None:
    first = PrivacyAudit()
    _train(tmp_path / "first", first, steps=20)
    _train(tmp_path / "second", PrivacyAudit(seed=first.report.settings["seed"]), steps=20)
    assert _record(tmp_path / "first") == _record(tmp_path / "second")
    assert PrivacyAudit().seed != first.seed
