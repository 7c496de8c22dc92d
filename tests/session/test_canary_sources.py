"""DP-SGD that is written by hand is audited, in every place where people write it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import (
    BATCH,
    CLAIM,
    CLIP,
    SIGMA,
    Gradients,
    HandWritten,
    HoldingOptimizer,
    InHook,
    OneByOne,
    OwnOptimizer,
    PrivateSGD,
    SelfContained,
    SelfContainedOptimizer,
    sample_norms,
)
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus.data_loader import DPDataLoader
from resume_support import RESTARTING
from stages import staged
from torch import nn
from torch.utils.data import DataLoader
from training_support import assert_no_hooks_left, fit, report_in, status, trainer_for, violation

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.dpsgd import hand_over
from lightning_audit.session.planner import PartChoice, draw_part

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def _audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"claim": CLAIM, "seed": 1, **kwargs})


def _evidence(report: AuditReport, name: str) -> Any:
    return next(check.evidence for check in report.checks if check.name == name)


def weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def _weights_alone(
    directory: Path, kind: type[HandWritten], steps: int, **kwargs: Any
) -> torch.Tensor:
    torch.manual_seed(3)
    module = kind(**kwargs)
    trainer_for(directory, max_steps=steps).fit(module)
    return weights_of(module)


@pytest.mark.parametrize(
    "kind",
    staged(
        [HandWritten],
        [InHook],
        [OneByOne, OwnOptimizer, HoldingOptimizer],
    ),
)
def test_sound_code_passes_with_its_ownweights_of(tmp_path, kind):
    plain = _weights_alone(tmp_path / "plain", kind, 200)
    torch.manual_seed(3)
    module = kind()
    report = fit(tmp_path, module, _audit(), max_steps=200)
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.steps == 200
    # An optimizer of one's own shows in its first step where it updates.
    assert report.observations == 8 * (199 if kind is OwnOptimizer else 200)
    # 800 readings of either coin: a standard error of 0.05 for the shift, 0.02 for the deviation.
    sensitivity = _evidence(report, "sensitivity")
    assert sensitivity["shift"] == pytest.approx(1.0, abs=0.2)
    assert sensitivity["residual_std"] == pytest.approx(SIGMA, abs=0.1)
    # 200 steps of some forty entries of the quietest tensor: 0.008.
    assert _evidence(report, "noise")["smallest_ratio"] == pytest.approx(1.0, abs=0.04)
    assert torch.linalg.norm(weights_of(module) - plain) <= 1e-6 * torch.linalg.norm(plain)
    assert_no_hooks_left(module)
    assert not hand_over._sources


def test_epsilon_is_composed_from_the_stated_rate_and_the_steps_seen(tmp_path):
    audit = _audit(claimed_epsilon=8.0)
    report = fit(tmp_path, HandWritten(), audit, max_steps=60)
    whole = PrivacyClaim(
        noise_multiplier=SIGMA, sample_rate=CLAIM.sample_rate, steps=60, delta=1e-5
    )
    assert report.epsilon_spent == pytest.approx(whole.composed_epsilon(), rel=1e-6)
    assert (report.claimed_epsilon, status(report, "accounting")) == (8.0, "ok")
    assert (status(report, "no_dp"), status(report, "sampling.not_poisson")) == ("ok", "ok")


# ------------------------------------------------------------------ faults


class ClipsTheMean(HandWritten):
    def clipped_sums(self, grads: Gradients) -> Gradients:
        means = {name: g.sum(0) / BATCH for name, g in grads.items()}
        norm = torch.stack([mean.norm() for mean in means.values()]).norm()
        return {name: BATCH * mean * (CLIP / norm).clamp(max=1.0) for name, mean in means.items()}


class OwnClipsTheMean(OwnOptimizer):
    clipped_sums = ClipsTheMean.clipped_sums


class HalfNoise(HandWritten):
    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return 0.5 * HandWritten.noise(self, p)


class ClipsAtTwice(HandWritten):
    def clipped_sums(self, grads: Gradients) -> Gradients:
        factors = (2 * CLIP / (sample_norms(grads) + 1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}


@pytest.mark.parametrize(
    ("kind", "finding", "fault"),
    [
        (ClipsTheMean, "sensitivity", "clipping after averaging"),
        (HalfNoise, "noise", "noise scale too small"),
        (OwnClipsTheMean, "sensitivity", ""),
        pytest.param(ClipsAtTwice, "sensitivity", "clip", marks=pytest.mark.nightly),
    ],
)
def test_fault_is_named(tmp_path, kind, finding, fault):
    report = fit(tmp_path, kind(), _audit(on_violation="warn"), max_steps=60)
    assert report.verdict.kind == "mechanism"
    assert status(report, finding) == "violated"
    assert fault in report.verdict.fault
    assert not hand_over._sources


@pytest.mark.parametrize("kind", staged([HandWritten, OwnOptimizer], nightly=[OneByOne]))
def test_half_noise_is_found_in_unchanged_code(tmp_path, kind):
    faulty = type("Faulty", (kind,), {"noise": HalfNoise.noise})
    report = violation(tmp_path, faulty(ask=False), _audit(), max_steps=60)
    assert report.verdict.fault.startswith("noise scale too small")
    assert report.observations == 0


def test_closure_that_runs_again_in_the_update_is_a_violation(tmp_path):
    class Again(PrivateSGD):
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                closure()
            self.make_private()
            return torch.optim.SGD.step(self, closure)

    class Module(OwnOptimizer):
        optimizer_class = Again

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            super().training_step(batch, batch_idx)
            for p in self.parameters():
                p.grad = None
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    assert violation(tmp_path, Module(), _audit(), max_steps=60).verdict.kind == "mechanism"


# ------------------------------------------------------------------ what cannot be audited


def test_code_that_asks_for_no_canary_is_inconclusive_and_told_what_to_call(tmp_path):
    report = fit(tmp_path, HandWritten(ask=False), _audit(), max_steps=60)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any(
        "60 of 60" in lack and "per_sample(" in lack for lack in report.verdict.pass_blockers
    )
    assert (status(report, "noise"), status(report, "sensitivity")) == ("ok", "not_run")


def test_code_that_asks_in_every_second_step_never_passes(tmp_path):
    class Now(HandWritten):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.ask = batch_idx % 2 == 0
            super().training_step(batch, batch_idx)

    report = fit(tmp_path, Now(), _audit(), max_steps=120)
    assert (report.observations, report.verdict.outcome) == (60 * 8, "INCONCLUSIVE")
    assert any("60 of 120 steps" in lack for lack in report.verdict.pass_blockers)


@pytest.mark.parametrize("ask", [True, False])
def test_a_hidden_update_is_inconclusive_and_left_alone(tmp_path, ask):
    plain = _weights_alone(tmp_path / "plain", SelfContainedOptimizer, 30)
    torch.manual_seed(3)
    module = SelfContainedOptimizer(ask=ask)
    report = fit(tmp_path, module, _audit(), max_steps=30)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("super().step()" in lack for lack in report.verdict.pass_blockers)
    assert torch.equal(weights_of(module), plain)


def test_foreign_optimizer_that_takes_a_private_gradient_passes(tmp_path):
    class Foreign(SelfContained):
        @torch.no_grad()
        def step(self, closure: Any) -> None:
            closure()
            for group in self.param_groups:
                for p in group["params"]:
                    p -= group["lr"] * p.grad.sign()

    class Module(HandWritten):
        def configure_optimizers(self) -> Any:
            return Foreign(self.parameters(), lr=1e-3)

    report = fit(tmp_path, Module(), _audit(), max_steps=80)
    assert report.verdict.outcome == "PASS", report.verdict


class TwoOptimizers(HandWritten):
    def configure_optimizers(self) -> Any:
        head, rest = self.net[4], self.net[:4]
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (rest, head)]


class WithLBFGS(HandWritten):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        (TwoOptimizers, {}, "has 2 optimizers.*parameter groups"),
        (WithLBFGS, {}, "LBFGS runs its closure several times"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_it_trains(tmp_path, kind, kwargs, message):
    trainer = trainer_for(tmp_path, _audit(), max_steps=8, **kwargs)
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(kind())
    assert trainer.global_step == 0
    assert not hand_over._sources


def test_a_trainer_that_clips_the_noisy_gradient_is_not_accused(tmp_path):
    report = fit(tmp_path, InHook(), _audit(), max_steps=60, gradient_clip_val=1.0)
    assert report.verdict.outcome == "INCONCLUSIVE", report.verdict
    assert any("lightning_audit.released" in item for item in report.verdict.pass_blockers)


# ------------------------------------------------------------------ one step, several calls


def assert_passes(directory: Path, module: HandWritten, lost: int = 0) -> None:
    report = fit(directory, module, _audit(), max_steps=60)
    assert report.verdict.outcome == "PASS", report.verdict
    assert 60 - lost <= report.steps <= 60
    assert (60 - lost) * 8 <= report.observations <= 60 * 8


def test_step_over_several_chunks_gets_its_canaries_once(tmp_path):
    class Chunks(HandWritten):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            halves = [tuple(part[i::2] for part in batch) for i in (0, 1)]
            sums = [self.clipped_sums(self.sample_gradients(half)) for half in halves]
            for name, p in self.net.named_parameters():
                p.grad = (sums[0][name] + sums[1][name] + self.noise(p)) / BATCH
            self.optimizers().step()

    assert_passes(tmp_path, Chunks())


def test_step_over_several_batches_gets_its_canaries_once(tmp_path):
    class TwoBatches(HandWritten):
        sums: Gradients | None = None

        def train_dataloader(self) -> DataLoader:
            return DPDataLoader.from_data_loader(DataLoader(self.dataset, batch_size=BATCH // 2))

        def training_step(self, batch: Any, batch_idx: int) -> None:
            new = self.clipped_sums(self.sample_gradients(batch))
            if self.sums is None:
                self.sums = new
                return
            for name, p in self.net.named_parameters():
                p.grad = (self.sums[name] + new[name] + self.noise(p)) / BATCH
            self.sums = None
            self.optimizers().step()

    assert_passes(tmp_path, TwoBatches())


def test_new_optimizer_in_the_middle_is_followed(tmp_path):
    class Anew(HandWritten):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx in (20, 40):
                self.trainer.optimizers = [torch.optim.Adam(self.parameters(), lr=1e-3)]

    assert_passes(tmp_path, Anew(), lost=2)


# ------------------------------------------------------------------ only where training is audited


class Watching(HandWritten):
    """Calls in validation too, and keeps what it got."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.got: list[bool] = []

    def ask_both(self) -> bool:
        """Whether both calls are without effect."""
        grads = {name: p.new_ones((3, *p.shape)) for name, p in self.net.named_parameters()}
        same = lightning_audit.per_sample(grads, module=self.net) is grads
        return same and lightning_audit.rows(module=self) == []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.got.append(self.ask_both())

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=2048)


def test_nothing_is_given_outside_of_training_batches(tmp_path):
    module = Watching()
    assert module.ask_both()
    trainer_for(tmp_path, _audit(), max_steps=12, val_check_interval=4).fit(module)
    assert len(module.got) == 2 + 3 * 2  # the sanity check, and three validations
    assert all(module.got)
    assert module.ask_both()
    assert report_in(tmp_path).observations == 12 * 8


def test_no_audit_is_left_behind_by_an_exception(tmp_path):
    class Failing(Watching):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            assert hand_over._sources
            if self.global_step == 5:
                raise RuntimeError("out of memory")

    module = Failing()
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer_for(tmp_path, _audit(), max_steps=12).fit(module)
    assert not hand_over._sources
    assert module.ask_both()
    assert_no_hooks_left(module)


def test_wrong_gradients_are_an_error_of_the_training(tmp_path):
    class Wrong(HandWritten):
        def write_gradient(self, grads: Gradients) -> None:
            lightning_audit.per_sample({"net.0.weight": grads["0.weight"]}, module=self)

    with pytest.raises(ValueError, match="grads lacks parameters that the optimizer trains"):
        trainer_for(tmp_path, _audit(), max_steps=12).fit(Wrong(ask=True))


@pytest.mark.heavy
def test_resumed_training_ends_with_the_report_of_one_without_a_stop(tmp_path):
    class Seeded(HandWritten):
        """Draws its batches and noise by the number of the step."""

        def training_step(self, batch: Any, batch_idx: int) -> None:
            torch.manual_seed(2**40 + self.global_step)
            x, y = (
                part[torch.randint(len(self.dataset), (BATCH,))] for part in self.dataset.tensors
            )
            super().training_step((x, y), batch_idx)

    def train(directory: Path, epochs: int, ckpt: Path | None = None) -> pl.Trainer:
        torch.manual_seed(0)
        module, audit = Seeded(), _audit()
        trainer = trainer_for(directory, audit, max_epochs=epochs, limit_train_batches=20)
        trainer.fit(module, ckpt_path=ckpt, weights_only=False if ckpt else None)
        return trainer

    train(tmp_path / "whole", 2)
    train(tmp_path / "parts", 1).save_checkpoint(tmp_path / "half.ckpt")
    train(tmp_path / "parts", 2, tmp_path / "half.ckpt")
    whole, parts = report_in(tmp_path / "whole"), report_in(tmp_path / "parts")
    assert parts.steps == whole.steps == 40
    assert parts.observations == whole.observations
    fresh, kept = (
        [check for check in report.checks if check.name not in RESTARTING]
        for report in (parts, whole)
    )
    assert fresh == kept


# --- Which part of a split batch canaries enter.


def test_half_of_the_canaries_enter_the_last_part_and_the_others_any():
    rng = np.random.default_rng(0)
    drawn = Counter(draw_part(4, rng) for _ in range(6000))
    assert set(drawn) == {-1, 0, 1, 2}
    for part, expected in ((-1, 3000), (0, 1000), (1, 1000), (2, 1000)):
        assert abs(drawn[part] - expected) < 4 * expected**0.5


def test_one_part_of_a_batch_is_chosen_at_most():
    rng, choice = np.random.default_rng(0), PartChoice()
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(400):
        chosen = []
        for part in range(3):
            if choice.chosen(rng):
                chosen.append(part)
            choice.passed()
        choice.ended()
        seen[tuple(chosen)] += 1
    # The first batch is taken for one of two parts, the others are known to have four.
    assert (choice.usual, set(seen)) == (4, {(), (0,), (1,), (2,)})
    assert 150 < seen[()] < 250


def test_a_batch_of_one_part_does_not_change_what_is_usual():
    choice = PartChoice()
    choice.usual = 5
    choice.ended()
    assert choice.usual == 5
