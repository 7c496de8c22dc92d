"""A training ends before the step by which it would exceed the epsilon that its user claims."""

import dataclasses
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from opacus import GradSampleModule
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import wrap_data_loader
from resume_support import RESUMING, checkpoint_at, saver, train
from torch.nn import functional
from torch.utils.data import DataLoader
from trained import check, cut, private, weights
from training_matrix import TwoOptimizers, two_nets
from training_support import ManualModule, PrivateModule, digits, mlp, report_in, trainer_for

from lightning_audit import AuditReport, ClaimUsedUp, PrivacyAudit, PrivacyClaim, PrivacyViolation
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon, steps_within
from lightning_audit.report.text import status_line

pytestmark = RESUMING


#: Epsilon that about half of the steps below keep to.
CLAIMED = 1.5


PLANNED = 96


def trained(directory: Path, module: pl.LightningModule, **kwargs: Any) -> AuditReport:
    own = {"claimed_epsilon": CLAIMED, "seed": 1, "examinations": 0, "on_budget": "stop"}
    given = {**own, **kwargs}
    trainer_for(directory, PrivacyAudit(**given), max_epochs=3, min_epochs=3).fit(module)
    return report_in(directory)


def next_one(report: AuditReport) -> float:
    """Epsilon of the steps that were taken and one more."""
    *before, (sigma, rate, steps) = report.history
    phases = [Phase(*phase) for phase in (*before, (sigma, rate, steps + 1))]
    return composed_epsilon(phases, report.delta)


def test_the_training_stops_before_the_step_that_would_exceed_the_claim(tmp_path, caplog):
    report = trained(tmp_path, ManualModule())
    assert 1 < report.steps < PLANNED
    assert report.verdict.outcome != "VIOLATION"
    assert report.epsilon_spent <= CLAIMED < next_one(report)
    warned, stopped = (r.message for r in caplog.records if "claimed_epsilon=1.5" in r.message)
    assert f"the {PLANNED} planned steps cost more" in warned
    assert f"which allows {report.steps} steps: the training stops there" in warned
    assert f"was stopped after {report.steps} steps: one more would exceed" in stopped
    assert any(note in stopped for note in report.notes)


def test_a_training_that_its_claim_ends_raises_by_default(tmp_path):
    module, loud = PrivateModule(), PrivacyAudit(claimed_epsilon=CLAIMED, seed=1, examinations=0)
    with pytest.raises(ClaimUsedUp, match="one more exceeds") as raised:
        trainer_for(tmp_path, loud, max_epochs=3).fit(module)
    report = report_in(tmp_path)
    assert (report.ended.reason, report.verdict.outcome) == (
        "budget",
        raised.value.report.verdict.outcome,
    )
    assert status_line(report).partition(": ")[2].startswith("the claim ended the training; ")
    assert pickle.loads(pickle.dumps(raised.value)).report == report


def test_it_trains_on_where_violations_are_warned_of(tmp_path, caplog):
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert (report.steps, report.verdict.outcome) == (PLANNED, "VIOLATION")
    assert report.verdict.root.name == "wrong_accounting"
    assert "the claim is false from there on" in caplog.text


def test_where_all_steps_may_exceed_it_nothing_is_said(tmp_path, caplog):
    assert trained(tmp_path, PrivateModule(), allow="accounting").steps == PLANNED
    assert "planned" not in caplog.text


def refused(
    directory: Path, module: pl.LightningModule, audit: PrivacyAudit, **kwargs: Any
) -> AuditReport:
    """Fit what is refused before its first step; the report."""
    before, trainer = weights(module), trainer_for(directory, audit, **kwargs)
    with pytest.raises(PrivacyViolation):
        trainer.fit(module)
    report = report_in(directory)
    assert trainer.global_step == report.steps == 0
    assert torch.equal(before, weights(module))
    assert report.verdict.root.name == "wrong_accounting"
    return report


def both_step() -> TwoOptimizers:
    """Two private optimizers."""
    return TwoOptimizers(two_nets())


class SplitBatches(PrivateModule):
    """A memory manager hands its batches over in parts."""

    def train_dataloader(self) -> Any:
        (optimizer,) = self.trainer.optimizers
        whole = super().train_dataloader()
        return wrap_data_loader(data_loader=whole, max_batch_size=4, optimizer=optimizer)


@pytest.mark.parametrize(
    ("make", "claim", "planned"),
    [
        *((kind, None, {}) for kind in (PrivateModule, both_step, SplitBatches)),
        (private(make_poisson=False), None, {"accumulate_grad_batches": 2}),
        (HandWritten, dataclasses.replace(CLAIM, sample_rate=0.05), {}),
    ],
)
def test_a_claim_that_one_step_exceeds_is_a_violation_before_it(tmp_path, make, claim, planned):
    audit = PrivacyAudit(claim=claim, claimed_epsilon=1e-3, seed=1)
    report = refused(tmp_path, make(), audit, max_epochs=3, **planned)
    assert claim is not None or "the first step costs epsilon" in report.verdict.summary


class SetByHook(PrivateModule):
    """A hook sets the noise of the first step, and of all others."""

    coming = 3.0

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        (private,) = self.trainer.optimizers
        private.noise_multiplier = self.coming


def test_noise_that_a_hook_raises_before_the_first_step_counts(tmp_path):
    assert composed_epsilon([Phase(0.4, 1 / 32, 1)], 1e-5) > 4.0
    report = trained(tmp_path, SetByHook(noise_multiplier=0.4), claimed_epsilon=4.0)
    assert report.steps == PLANNED
    assert report.verdict.outcome != "VIOLATION"


def test_noise_that_a_hook_lowers_before_the_first_step_counts(tmp_path):
    module = SetByHook()
    module.coming = 0.3
    refused(tmp_path, module, PrivacyAudit(claimed_epsilon=3.0, seed=1), max_epochs=3)


class Shuffled(PrivateModule):
    """Batches as torch's own loader deals them out, eight an epoch."""

    def __init__(self) -> None:
        super().__init__(mlp(64), dataset=digits(128), poisson=False, make_poisson=False)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)


def audit_of_two_epochs(**kwargs: Any) -> PrivacyAudit:
    holds = 1.01 * epsilon_of_passes(1.0, 2, 1e-5)
    claim = PrivacyClaim(sampling="shuffled", epsilon=holds, delta=1e-5)
    return PrivacyAudit(claim=claim, seed=1, examinations=0, on_budget="stop", **kwargs)


def test_epochs_that_exceed_the_claim_are_a_violation_before_the_first_step(tmp_path):
    report = refused(tmp_path, Shuffled(), audit_of_two_epochs(), max_epochs=3, max_steps=17)
    (found,) = (check for check in report.checks if check.name == "accounting")
    assert found.message.startswith("the 3 planned epochs cost epsilon 8.385")


class AfterTwoEpochs(pl.callbacks.EarlyStopping):
    """Ends a training of nine epochs behind the second one."""

    def __init__(self) -> None:
        super().__init__("never_logged", strict=False)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.current_epoch == 1


@pytest.mark.parametrize(
    ("planned", "callbacks", "steps"),
    [
        ({"max_epochs": 9, "max_steps": 8, "accumulate_grad_batches": 2}, [], 8),
        ({"max_epochs": 9}, [AfterTwoEpochs()], 16),
    ],
)
def test_epochs_that_keep_to_the_claim_or_may_end_before_are_trained(
    tmp_path, planned, callbacks, steps
):
    trainer_for(tmp_path, audit_of_two_epochs(), *callbacks, **planned).fit(Shuffled())
    report = report_in(tmp_path)
    assert report.steps == steps
    assert report.verdict.outcome != "VIOLATION"


class WrappedBefore(Shuffled):
    """Wrapped before a checkpoint is loaded, so that the names of its weights are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GradSampleModule(self.net)


@pytest.mark.parametrize(("first", "epochs", "goes_on"), [(1, 2, True), (2, 3, False)])
def test_epochs_of_before_a_resume_count(tmp_path, first, epochs, goes_on):
    def trainer(planned: int) -> pl.Trainer:
        callbacks = (audit_of_two_epochs(), saver(tmp_path / "saved", epoch_end=True))
        return trainer_for(tmp_path, *callbacks, max_epochs=planned, enable_checkpointing=True)

    trainer(first).fit(WrappedBefore())
    checkpoint = checkpoint_at(tmp_path / "saved", 8 * first)
    with nullcontext() if goes_on else pytest.raises(PrivacyViolation):
        trainer(epochs).fit(WrappedBefore(), ckpt_path=checkpoint, weights_only=True)
    report = report_in(tmp_path)
    assert report.steps == 16
    assert (report.verdict.outcome == "VIOLATION") == (not goes_on)


def test_trouble_with_the_count_ends_no_training(tmp_path, monkeypatch, caplog):
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lightning_audit.run.claim_budget.steps_within", fail)
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.pass_blockers[0].startswith("the audit failed: ZeroDivisionError")
    assert "left the training" in caplog.text


class Falling(PrivateModule):
    """Multiplies the noise before each later epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch:
            ExponentialNoise(self.optimizers().optimizer, gamma=0.7).step()


class EachStep(PrivateModule):
    """Multiplies the noise behind each batch."""

    def on_train_batch_end(self, *_: Any) -> None:
        ExponentialNoise(self.optimizers().optimizer, gamma=0.99).step()


def test_noise_that_falls_is_counted_as_it_falls(tmp_path):
    report = trained(tmp_path, Falling(), claimed_epsilon=3.0)
    assert 32 < report.steps < PLANNED
    assert len(report.history) > 1
    assert report.epsilon_spent <= 3.0 < next_one(report)
    assert report.verdict.outcome != "VIOLATION"


def test_a_resumed_training_has_what_is_left(tmp_path):
    def audit() -> PrivacyAudit:
        return PrivacyAudit(claimed_epsilon=CLAIMED, seed=1, examinations=0, on_budget="stop")

    train(tmp_path / "whole", audit())
    train(tmp_path / "cut", audit(), ckpt=cut(tmp_path / "cut", audit(), 20, 20))
    whole, resumed = report_in(tmp_path / "whole"), report_in(tmp_path / "cut")
    assert 20 < whole.steps == resumed.steps < PLANNED


def test_adaptive_clipping_is_counted_as_its_accountant_does(tmp_path):
    class Adaptive(PrivateModule):
        engine_arguments: ClassVar[dict[str, Any]] = {
            "clipping": "adaptive",
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 10.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 1.2,
        }

    report = trained(tmp_path, Adaptive())
    assert 1 < report.steps < PLANNED
    assert 0.9 * CLAIMED < report.epsilon_spent <= CLAIMED


def test_optimizers_that_do_not_step_alike_are_counted_by_their_own_steps(tmp_path):
    class Unlike(TwoOptimizers):
        def configure_optimizers(self) -> Any:
            often, rarely = super().configure_optimizers()
            often.noise_multiplier, rarely.noise_multiplier = 4.0, 0.7
            return [often, rarely]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            nets = zip(self.net.values(), self.optimizers(), strict=True)
            for place, (net, optimizer) in enumerate(nets):
                if place and batch_idx % 5:
                    continue
                optimizer.zero_grad()
                self.manual_backward(functional.cross_entropy(net(batch[0]), batch[1]))
                optimizer.step()

    report = trained(tmp_path, Unlike(two_nets()), claimed_epsilon=3.0)
    assert report.steps < PLANNED
    assert 2.5 < report.epsilon_spent <= 3.0


def test_batches_that_are_added_up_later_in_the_training_are_counted_so(audited):
    module = PrivateModule(poisson=False, make_poisson=False)
    schedule = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 4})
    given = {"claimed_epsilon": 4.0, "allow": "sampling.not_poisson", "max_epochs": 30}
    given["on_budget"] = "stop"
    report = audited(module, schedule, **given)
    assert len({rate for _, rate, _ in report.history}) == 2
    assert 3.0 < check(report, "accounting").evidence["epsilon_spent"] <= 4.0


@pytest.mark.nightly
def test_where_the_training_goes_on_it_is_not_counted_again(tmp_path, monkeypatch):
    calls = []

    def counted(*args: Any, **kwargs: Any) -> int | None:
        calls.append(args)
        return steps_within(*args, **kwargs)

    monkeypatch.setattr("lightning_audit.run.claim_budget.steps_within", counted)
    report = trained(tmp_path, EachStep(), claimed_epsilon=CLAIMED, on_violation="warn")
    assert report.steps == PLANNED
    assert len(calls) < 20
