"""A training ends before the step by which it would exceed the epsilon that its user claims."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
from hand_written_support import CLAIM, HandWritten
from opacus.schedulers import ExponentialNoise
from resume_support import RESUMING, StopAt, checkpoint_at, saver, train
from torch.nn import functional
from training_matrix import TwoOptimizers, two_nets
from training_support import ManualModule, PrivateModule, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.accounting.step_budget import steps_within

pytestmark = RESUMING

#: Epsilon that about half of the steps below keep to.
CLAIMED = 1.5
PLANNED = 96


def trained(directory: Path, module: pl.LightningModule, **kwargs: Any) -> AuditReport:
    given = {"claimed_epsilon": CLAIMED, "seed": 1, "examinations": 0, **kwargs}
    trainer_for(directory, PrivacyAudit(**given), max_epochs=3, min_epochs=3).fit(module)
    return report_in(directory)


def next_one(report: AuditReport) -> float:
    """Epsilon of the steps that were taken and one more."""
    *before, (sigma, rate, steps) = report.history
    phases = [Phase(*phase) for phase in (*before, (sigma, rate, steps + 1))]
    return composed_epsilon(phases, report.delta)


@pytest.mark.parametrize("kind", [PrivateModule, ManualModule])
def test_the_training_stops_before_the_step_that_would_exceed_the_claim(
    tmp_path: Path, kind: type[pl.LightningModule], caplog: pytest.LogCaptureFixture
) -> None:
    report = trained(tmp_path, kind())
    assert 1 < report.steps < PLANNED
    assert report.verdict.outcome != "VIOLATION"
    assert report.epsilon_spent <= CLAIMED < next_one(report)
    warned, stopped = (r.message for r in caplog.records if "claimed_epsilon=1.5" in r.message)
    assert f"the {PLANNED} steps that are planned cost more" in warned
    assert f"which {report.steps} steps keep to: the training stops there" in warned
    assert f"was stopped after {report.steps} steps: one more would exceed" in stopped
    assert any(note in stopped for note in report.notes)


def test_it_trains_on_where_violations_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert report.steps == PLANNED
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.root.name == "wrong_accounting"
    assert "the claim is false from there on" in caplog.text


@pytest.mark.parametrize("kwargs", [{"claimed_epsilon": 50.0}, {"allow": "accounting"}])
def test_where_all_steps_keep_to_it_or_may_exceed_it_nothing_is_said(
    tmp_path: Path, kwargs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert trained(tmp_path, PrivateModule(), **kwargs).steps == PLANNED
    assert "planned" not in caplog.text


def test_a_claim_that_one_step_exceeds_is_a_violation_behind_it(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolation):
        trained(tmp_path, PrivateModule(), claimed_epsilon=1e-3)
    report = report_in(tmp_path)
    assert report.steps == 1
    assert report.verdict.outcome == "VIOLATION"


def test_dp_sgd_by_hand_is_counted_from_its_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated = dataclasses.replace(CLAIM, sample_rate=0.05)
    audit = PrivacyAudit(claim=stated, claimed_epsilon=CLAIMED, seed=1, examinations=0)
    trainer_for(tmp_path, audit, max_steps=200).fit(HandWritten())
    report = report_in(tmp_path)
    assert 1 < report.steps < 200
    assert report.epsilon_spent <= CLAIMED < next_one(report)
    assert "that are planned cost more" in caplog.text


def test_trouble_with_the_count_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lightning_audit.callbacks.claim_budget.steps_within", fail)
    report = trained(tmp_path, PrivateModule(), on_violation="warn")
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.pass_blockers[0].startswith("the audit failed: ZeroDivisionError")
    assert "left the training" in caplog.text


def test_noise_that_falls_is_counted_as_it_is(tmp_path: Path) -> None:
    class Falling(PrivateModule):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                inner = self.optimizers().optimizer
                ExponentialNoise(inner, gamma=0.7).step()

    report = trained(tmp_path, Falling(), claimed_epsilon=3.0)
    assert 32 < report.steps < PLANNED
    assert len(report.history) > 1
    assert report.epsilon_spent <= 3.0 < next_one(report)


def test_a_resumed_training_has_what_is_left(tmp_path: Path) -> None:
    def audit() -> PrivacyAudit:
        return PrivacyAudit(claimed_epsilon=CLAIMED, seed=1, examinations=0)

    train(tmp_path / "whole", audit())
    saved = tmp_path / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "cut", audit(), StopAt(20), saver(saved, epoch_end=False))
    train(tmp_path / "cut", audit(), ckpt=checkpoint_at(saved, 20))
    whole, resumed = report_in(tmp_path / "whole"), report_in(tmp_path / "cut")
    assert 20 < whole.steps < PLANNED
    assert resumed.steps == whole.steps


def test_who_goes_on_where_nothing_is_left_takes_no_step_more(tmp_path: Path) -> None:
    claimed = {"claimed_epsilon": CLAIMED, "seed": 1, "examinations": 0}
    saved = tmp_path / "saved"
    train(tmp_path, PrivacyAudit(**claimed), saver(saved, epoch_end=True))
    steps = report_in(tmp_path).steps
    last = max(saved.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    train(tmp_path, audit := PrivacyAudit(**claimed), ckpt=last)
    assert audit.report is not None
    assert audit.report.steps == steps
    assert audit.report.epsilon_spent <= CLAIMED


class EachStep(PrivateModule):
    """Multiplies the noise behind each batch."""

    gamma = 0.99

    def on_train_batch_end(self, *_: Any) -> None:
        ExponentialNoise(self.optimizers().optimizer, gamma=self.gamma).step()


@pytest.mark.parametrize(("sigma", "claimed"), [(1.0, 2.0), (2.0, 1.0)])
def test_noise_that_falls_slowly_is_counted_as_it_falls(
    tmp_path: Path, sigma: float, claimed: float
) -> None:
    report = trained(tmp_path, EachStep(noise_multiplier=sigma), claimed_epsilon=claimed)
    assert 1 < report.steps < PLANNED
    assert 0.95 * claimed < report.epsilon_spent <= claimed
    assert report.verdict.outcome != "VIOLATION"


def test_adaptive_clipping_is_counted_as_its_accountant_does(tmp_path: Path) -> None:
    class Adaptive(PrivateModule):
        engine_arguments: ClassVar[dict[str, Any]] = {
            "clipping": "adaptive",
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 10.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 0.6,
        }

    report = trained(tmp_path, Adaptive())
    assert 1 < report.steps < PLANNED
    assert 0.9 * CLAIMED < report.epsilon_spent <= CLAIMED


def test_optimizers_that_do_not_step_alike_are_counted_by_their_own_steps(tmp_path: Path) -> None:
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


def test_batches_that_are_added_up_later_in_the_training_are_counted_so(tmp_path: Path) -> None:
    module = PrivateModule(poisson=False, make_poisson=False)
    audit = PrivacyAudit(claimed_epsilon=4.0, seed=1, examinations=0, allow="sampling.not_poisson")
    schedule = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 4})
    trainer_for(tmp_path, audit, schedule, max_epochs=30).fit(module)
    report = report_in(tmp_path)
    assert len({rate for _, rate, _ in report.history}) == 2
    assert 3.0 < report.epsilon_spent <= 4.0


def test_where_the_training_goes_on_it_is_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> int | None:
        calls.append(args)
        return steps_within(*args, **kwargs)

    monkeypatch.setattr("lightning_audit.callbacks.claim_budget.steps_within", counted)
    report = trained(tmp_path, EachStep(), claimed_epsilon=CLAIMED, on_violation="warn")
    assert report.steps == PLANNED
    assert len(calls) < 20
