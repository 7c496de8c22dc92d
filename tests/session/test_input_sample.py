"""Input canaries in real trainings: one more sample, through the user's own pipeline."""

import functools
import random
import tempfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import (
    BATCH,
    CLAIM,
    HandWritten,
    OneByOne,
    OwnOptimizer,
    SelfContainedOptimizer,
)
from lightning_fabric.utilities.exceptions import MisconfigurationException
from stages import staged
from test_canary_sources import ClipsTheMean, weights_of
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_support import (
    ManualTraining,
    PrivateModule,
    fit,
    mlp,
    random_data,
    report_in,
    status,
    trainer_for,
    violation,
)

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Adversarial, Blank, Crafted, Dirac, InputCanary, Mislabeled
from lightning_audit.record.store import DROPPED, INJECTED, read_observations
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.session.entrances import join_batches
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff
from lightning_audit.testing.faulty import ClipAfterAverage

# --- Trainings with an input canary, and what was read of it.


def hand_written_loss(module: HandWritten, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


#: For modules without a ``forward``.
STATED: dict[str, Any] = {"loss": hand_written_loss, "num_classes": 10}


class Forward(PrivateModule):
    """Opacus' training, of a module that has a ``forward``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def records_in(directory: Path) -> Any:
    return read_observations(directory / "audit" / "observations.bin")[1]


def readings_in(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """What was read without and with the canary."""
    entries = records_in(directory)
    entries = entries[entries["canaries"] == INJECTED]
    inside = entries["coins"][:, 0] > 0
    return entries["readings"][~inside, 0], entries["readings"][inside, 0]


def assert_unit_signal(directory: Path) -> None:
    """With the canary the mean reading is larger by one, up to four standard errors."""
    out, inside = readings_in(directory)
    error = np.hypot(out.std() / len(out) ** 0.5, inside.std() / len(inside) ** 0.5)
    assert abs(inside.mean() - out.mean() - 1.0) < 4.0 * error


def ended(
    directory: Path, make: Callable[[], nn.Module], steps: int, *callbacks: pl.Callback
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """Weights and states of the generators at the end of a training."""
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    module = make()
    trainer_for(directory, *callbacks, max_steps=steps).fit(module)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    return weights_of(module), states


@functools.cache
def ended_alone(make: Callable[[], nn.Module], steps: int) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The same without an audit."""
    with tempfile.TemporaryDirectory() as folder:
        return ended(Path(folder), make, steps)


def audit_with(canary: InputCanary, **kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"canaries": [canary], "seed": 1, **kwargs})


def audit_unchanged(canary: InputCanary, **kwargs: Any) -> PrivacyAudit:
    return audit_with(canary, claim=CLAIM, **kwargs)


Pair = namedtuple("Pair", "image target")  # as users write them


class ManualForward(ManualTraining, pl.LightningModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


# ------------------------------------------------------------------ Opacus


CONTAINERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "dict": lambda x, y: {"image": x, "target": y},
    "named tuple": Pair,
    "nested": lambda x, y: {"views": (x, [x]), "target": (y,)},
}


class InContainers(Forward):
    """A collate function of the user's own."""

    pack: Callable[[torch.Tensor, torch.Tensor], Any]

    def train_dataloader(self) -> DataLoader:
        # Not Poisson, whose empty batches have no containers.
        def collate(samples: list[Any]) -> Any:
            xs, ys = zip(*samples, strict=True)
            return type(self).pack(torch.stack(xs), torch.stack(ys))

        return DataLoader(self.dataset, batch_size=self.batch_size, collate_fn=collate)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves(batch)
        self.sizes.append(len(leaves[0]))
        return super().training_step((leaves[0], leaves[-1]), batch_idx)


@pytest.mark.parametrize("pack", CONTAINERS.values(), ids=list(CONTAINERS))
def test_the_canary_joins_every_container(tmp_path, pack):
    module = type("Packed", (InContainers,), {"pack": staticmethod(pack), "sizes": []})()
    seen: list[Any] = []

    class _Batches(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append(args[1])

    audit = audit_with(Mislabeled(amplitude=100.0), allow=["sampling.not_poisson"])
    fit(tmp_path, module, audit, _Batches(), max_steps=40)
    coins = records_in(tmp_path)["coins"][:, 0]
    assert module.sizes == [16 + int(coin) for coin in coins]
    assert 5 < coins.sum() < 35
    # The batch of the loader, which callbacks and loggers get, has nothing appended.
    assert {len(torch.utils._pytree.tree_leaves(batch)[0]) for batch in seen} == {16}


@pytest.mark.parametrize(
    "canary",
    staged(
        [Mislabeled(amplitude=100.0)],
        nightly=[Blank(), Adversarial(amplitude=10.0), Crafted(amplitude=10.0, steps=20)],
    ),
    ids=lambda canary: type(canary).__name__,
)
def test_opacus_with_a_canary_passes_and_keeps_weights(tmp_path, canary):
    (plain, before), (audited, states) = (
        ended_alone(Forward, 100),
        ended(tmp_path / "audited", Forward, 100, audit_with(canary)),
    )
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)
    assert states == before
    report = report_in(tmp_path / "audited")
    assert report.verdict.outcome != "VIOLATION", report.verdict
    assert (records_in(tmp_path / "audited")["canaries"] == INJECTED).sum() >= 99
    assert report.observations >= 99


def test_clipping_after_the_average_is_found_in_a_private_optimizer(tmp_path):
    module = Forward(mode="functorch", optimizer_class=ClipAfterAverage)
    audit = audit_with(Mislabeled(amplitude=100.0), on_violation="warn")
    report = fit(tmp_path, module, audit, max_steps=64)
    assert status(report, "sensitivity") == "violated"


def test_manual_optimization_is_audited(tmp_path):
    report = fit(tmp_path, ManualForward(), audit_with(Mislabeled(amplitude=100.0)), max_steps=64)
    assert report.verdict.outcome != "VIOLATION"
    assert (records_in(tmp_path)["canaries"] == INJECTED).all()


def test_the_canary_joins_one_of_the_batches_that_a_step_sums(tmp_path):
    sizes: list[int] = []

    class Sizes(Forward):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            sizes.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    module = Sizes(poisson=False, make_poisson=False)
    audit = audit_with(Mislabeled(amplitude=100.0), allow=["sampling.not_poisson"])
    fit(tmp_path, module, audit, max_steps=32, accumulate_grad_batches=2)
    coins = records_in(tmp_path)["coins"][:, 0]
    assert sizes == [16 + extra for coin in coins for extra in (int(coin), 0)]
    assert_unit_signal(tmp_path)


class WithDropout(Forward):
    def __init__(self, **kwargs: Any) -> None:
        net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
        super().__init__(net, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.net(x)
        self.log("mean_output", outputs.mean(), on_epoch=True, on_step=True)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1])


def test_the_extra_pass_draws_and_logs_nothing(tmp_path):
    """While the coin is "out", nothing differs from the unaudited training."""
    models, logged = [], []
    for name in ("plain", "audited"):
        torch.manual_seed(3)
        module = WithDropout()
        audit = audit_with(Mislabeled(amplitude=100.0, sampling_rate=1e-9))
        callbacks = [audit] if name == "audited" else []
        trainer = trainer_for(tmp_path / name, *callbacks, max_steps=20)
        trainer.fit(module)
        models.append(weights_of(module))
        logged.append(float(trainer.callback_metrics["mean_output_step"]))
    assert torch.equal(*models)
    assert logged[0] == logged[1]


# ------------------------------------------------------------------ coins that are not fair


@pytest.mark.heavy
@pytest.mark.whole_report
def test_a_rare_canary_joins_as_often_as_said_and_flags_no_sound_code(tmp_path):
    canary = Mislabeled(amplitude=100.0, sampling_rate=0.1, **STATED)
    report = fit(tmp_path, HandWritten(ask=False), audit_unchanged(canary), max_steps=300)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    header, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert (header.coin_probability, header.game) == (0.1, "step")
    assert header.canaries == ("Mislabeled(input, sampling_rate=0.1)",)
    assert abs(entries["coins"].sum() - 30) < 4 * 27**0.5
    assert_unit_signal(tmp_path)
    assert "fdp_t" not in {bound.name for bound in report.bounds}


@pytest.mark.heavy
@pytest.mark.whole_report
def test_in_the_subsampled_game_a_steps_epsilon_is_below_its_curves(tmp_path):
    canary = Mislabeled(amplitude=100.0, sampling_rate=0.3, game="subsampled", **STATED)
    claim = replace(CLAIM, noise_multiplier=0.3)

    class Quiet(HandWritten):
        def noise(self, p: torch.Tensor) -> torch.Tensor:
            return 0.3 * super().noise(p)

    report = fit(tmp_path, Quiet(ask=False), audit_with(canary, claim=claim), max_steps=150)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    bounds = {bound.name: bound for bound in report.bounds}
    assert set(bounds) == {"betting", "mu", "fdp_cp", "fdp_pooled_cp", "fdp_bayes", "eps_cp"}
    true = SubsampledGaussianTradeoff(0.3, 0.3).epsilon_at(report.delta)
    for bound in bounds.values():
        assert any("joins it with probability 0.3" in said for said in bound.assumptions)
        assert bound.epsilon_step_lower < true
    assert bounds["fdp_cp"].epsilon_step_lower > 0


# ------------------------------------------------------------------ steps, resume, refusals


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_resumed_audit_goes_on_with_its_coins_and_keeps_no_data(tmp_path):
    def run(name: str, steps: int, checkpoint: Path | None = None) -> Path:
        # The same seed again would give the same noise again, which is a finding.
        torch.manual_seed(0 if checkpoint is None else 1)
        trainer = trainer_for(tmp_path / name, audit_unchanged(Blank(**STATED)), max_steps=steps)
        trainer.fit(HandWritten(ask=False), ckpt_path=checkpoint)
        path = tmp_path / name / "end.ckpt"
        trainer.save_checkpoint(path)
        return path

    run("whole", 64)
    run("parts", 64, run("parts", 32))
    whole, parts = records_in(tmp_path / "whole"), records_in(tmp_path / "parts")
    assert len(parts) == 64
    assert np.array_equal(whole["coins"], parts["coins"])
    assert np.allclose(whole["readings"][:32], parts["readings"][:32])
    state = torch.load(tmp_path / "parts" / "end.ckpt", weights_only=True)
    # Nowhere in it is a record of the data, of which the canary's sample is cut.
    held = torch.utils._pytree.tree_leaves(state["callbacks"])
    records = random_data().tensors[0]
    alike = [
        t.reshape(-1, records.shape[1])
        for t in held
        if isinstance(t, torch.Tensor) and t.shape[-1:] == records.shape[1:]
    ]
    assert not any((row == records).all(1).any() for rows in alike for row in rows)


def test_the_strategy_is_left_as_it_was_and_the_header_names_the_canary(tmp_path):
    trainer = trainer_for(tmp_path, audit_with(Blank()), max_steps=2)
    trainer.fit(Forward())
    assert "training_step" not in vars(trainer.strategy)
    header = read_observations(tmp_path / "audit" / "observations.bin")[0]
    assert header.canaries == ("Blank(input)",)

    class Breaks(Forward):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            assert "training_step" in vars(self.trainer.strategy)
            raise RuntimeError("broken")

    trainer = trainer_for(tmp_path, audit_with(Blank()), max_steps=2)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Breaks())
    assert "training_step" not in vars(trainer.strategy)


LINE = r"add `def forward\(self, x\): return self\.net\(x\)`"


class _Texts(Forward):
    def train_dataloader(self) -> DataLoader:
        def collate(samples: list[Any]) -> Any:
            xs, ys = zip(*samples, strict=True)
            return torch.stack(xs), torch.stack(ys), ["text"] * len(xs)

        return DataLoader(self.dataset, batch_size=16, collate_fn=collate)


@pytest.mark.parametrize(
    ("module", "canary", "words"),
    [
        (_Texts, Mislabeled(), "type builtins.str at '2.0'"),
        (PrivateModule, Mislabeled(loss=hand_written_loss), "PrivateModule has no forward"),
        (PrivateModule, Mislabeled(), LINE),
        (PrivateModule, Blank(), LINE),
    ],
)
def test_what_cannot_be_audited_is_refused_at_the_first_batch(tmp_path, module, canary, words):
    trainer = trainer_for(tmp_path, audit_with(canary, allow="sampling.not_poisson"), max_steps=2)
    with pytest.raises(MisconfigurationException, match=words):
        trainer.fit(module())
    assert words != LINE or trainer.fit_loop.epoch_loop.batch_progress.total.ready == 0


def test_several_processes_are_refused():
    with pytest.raises(UnauditableTraining, match="each of the 2 processes"):
        join_batches([Blank()], 2)
    assert join_batches([Blank()], 1)
    assert not join_batches([Dirac()], 2)


@pytest.mark.parametrize("canaries", [[Blank(), Blank()], [Dirac(), Mislabeled()]])
def test_an_input_canary_is_alone(canaries):
    with pytest.raises(ValueError, match="must hold one input canary alone"):
        PrivacyAudit(canaries=canaries)


def test_a_canary_without_a_gradient_is_dropped_and_nothing_is_concluded(tmp_path):
    zero = Mislabeled(loss=lambda module, batch: module.net(batch[0]).sum() * 0, num_classes=10)
    report = fit(tmp_path, Forward(), audit_with(zero), max_steps=20)
    assert (records_in(tmp_path)["canaries"] == DROPPED).all()
    assert report.verdict.outcome == "INCONCLUSIVE"


def test_a_wrong_loss_never_alarms(tmp_path):
    """The direction is then another one, along which clipping allows no more."""

    def other(module: Any, batch: Any) -> torch.Tensor:
        return module.net(batch[0]).square().sum() * 1e3

    audit = audit_with(Mislabeled(amplitude=100.0, loss=other, num_classes=10))
    assert fit(tmp_path, Forward(), audit, max_steps=100).verdict.outcome == "INCONCLUSIVE"


# ------------------------------------------------------------------ false alarms


def _outcome(directory: Path, seed: int) -> str:
    torch.manual_seed(seed)
    crafted = Crafted(amplitude=10.0, steps=10, **STATED)
    canary = (Mislabeled(amplitude=100.0, **STATED), crafted, Blank(**STATED))[seed % 3]
    module = HandWritten(ask=False, dataset=random_data(4096, seed=seed))
    module.net = mlp()
    claim = replace(CLAIM, sample_rate=None)
    audit = audit_with(canary, claim=claim, seed=seed, on_violation="warn")
    trainer_for(directory / str(seed), audit, max_steps=100).fit(module)
    return report_in(directory / str(seed)).verdict.outcome


@pytest.mark.heavy_one_in(1)
@pytest.mark.parametrize(
    "seeds",
    staged(heavy=[range(3)], nightly=[range(3, 53)]),
    ids=lambda seeds: f"{seeds.start} to {seeds.stop}",
)
def test_sound_code_is_not_flagged_in_fifty_runs(tmp_path, seeds):
    assert all(_outcome(tmp_path, seed) != "VIOLATION" for seed in seeds)


# ------------------------------------------------------------------ the training's generators


class NoisyLayer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)


class Draws(Forward):
    """A net whose layer may draw random numbers, and code that draws from every generator."""

    layer: type[nn.Module] = nn.ReLU

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 32), self.layer(), nn.Linear(32, 10)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        shift = random.random() + np.random.random()  # as users write it
        return functional.cross_entropy(self.net(x + 1e-3 * shift), y)


class DrawsInALayer(Draws):
    layer = NoisyLayer


def _generators_after(directory: Path, kind: type[Draws], canary: InputCanary) -> tuple[Any, ...]:
    return ended(directory, kind, 20, audit_with(canary))[1]


@pytest.mark.parametrize("kind", [Mislabeled, Adversarial])
def test_generators_stay_where_no_layer_draws(tmp_path, kind):
    canary = kind(amplitude=100.0, **STATED)
    assert _generators_after(tmp_path, Draws, canary) == ended_alone(Draws, 20)[1]


def test_the_canarys_sample_draws_from_torchs_generator_where_layers_do(tmp_path):
    # The README says so: the batches and the noise that follow are those of another seed.
    canary, plain = Mislabeled(amplitude=100.0, **STATED), ended_alone(DrawsInALayer, 20)[1]
    audited = _generators_after(tmp_path / "audited", DrawsInALayer, canary)
    assert audited[:2] == plain[:2]
    assert audited[2] != plain[2]
    # A step without the canary draws what it would have drawn, the audit's own pass included.
    rare = Mislabeled(amplitude=100.0, sampling_rate=1e-9, **STATED)
    assert _generators_after(tmp_path / "rare", DrawsInALayer, rare) == plain


# --- Hand-written DP-SGD that is not changed is audited by a canary in its batches.


def test_clipping_the_mean_is_found_in_unchanged_code_by_a_rare_canary(tmp_path):
    canary = Mislabeled(amplitude=100.0, sampling_rate=0.1, **STATED)
    report = violation(tmp_path, ClipsTheMean(ask=False), audit_unchanged(canary), max_steps=200)
    assert status(report, "sensitivity") == "violated"
    assert "clipped" in report.verdict.fault or "no clipping" in report.verdict.fault


@pytest.mark.parametrize(
    ("kind", "ask"),
    staged(
        heavy=[(HandWritten, False)],
        nightly=[(HandWritten, True), (OwnOptimizer, False), (OneByOne, False)],
    ),
)
@pytest.mark.heavy_one_in(1)
def test_sound_code_by_hand_passes(tmp_path, kind, ask):
    models = []
    for name in ("plain", "audited"):
        torch.manual_seed(3)
        module = kind(ask=ask)
        if name == "plain":
            trainer_for(tmp_path / name, max_steps=300).fit(module)
        else:
            audit = audit_unchanged(Mislabeled(amplitude=100.0, **STATED))
            report = fit(tmp_path, module, audit, max_steps=300)
            assert report.verdict.outcome == "PASS", report.verdict
        models.append(weights_of(module))
    assert torch.linalg.norm(models[1] - models[0]) <= 1e-6 * torch.linalg.norm(models[0])
    assert_unit_signal(tmp_path)


def test_an_optimizer_whose_update_cannot_be_read_is_not_passed(tmp_path):
    audit = audit_unchanged(Mislabeled(amplitude=100.0, **STATED))
    report = fit(tmp_path, SelfContainedOptimizer(ask=False), audit, max_steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("cannot be read" in item for item in report.verdict.pass_blockers)
    assert not records_in(tmp_path)["coins"].any()


# ------------------------------------------------------------------ the reading


class SameBatch(HandWritten):
    """One batch at every step, weights that stay, and hardly any noise."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self) -> DataLoader:
        few = TensorDataset(*(tensor[:BATCH] for tensor in self.dataset.tensors))
        return DataLoader(few, batch_size=BATCH)

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return 1e-4 * torch.randn_like(p)


@pytest.mark.parametrize(
    ("canary", "clip"), [(Mislabeled(amplitude=100.0, **STATED), 1.0), (Blank(**STATED), 50.0)]
)
def test_the_signal_is_the_clipped_norm_of_the_canarys_own_gradient(
    tmp_path, monkeypatch, canary, clip
):
    monkeypatch.setattr("hand_written_support.CLIP", clip)
    claim = PrivacyClaim(noise_multiplier=1e-4 / clip, max_grad_norm=clip, expected_batch_size=16)
    audit = audit_with(canary, claim=claim, on_violation="warn")
    module = SameBatch(ask=False)
    trainer = trainer_for(tmp_path, audit, max_steps=30)
    norms: list[float] = []

    class _Norm(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            norms.append(audit._run.session.inserter.oversize)

    trainer.callbacks.insert(0, _Norm())
    trainer.fit(module)
    out, inside = readings_in(tmp_path)
    assert len(out) > 5 < len(inside)
    expected = min(1.0, norms[0])
    assert inside.mean() - out.mean() == pytest.approx(expected, abs=1e-3)
    assert (clip == 50.0) == (expected < 0.5)


def test_a_short_canary_does_not_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("hand_written_support.CLIP", 50.0)
    audit = audit_with(Blank(**STATED), claim=replace(CLAIM, max_grad_norm=50.0))
    report = fit(tmp_path, HandWritten(ask=False), audit, max_steps=60)
    missing = " ".join(report.verdict.pass_blockers)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "take an input canary whose gradient is longer, as Mislabeled(" in missing
