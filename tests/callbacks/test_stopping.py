"""A violation ends the training at once: before the first step, or behind the one that shows it."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from gan_support import Gan
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from training_support import ManualModule, PrivateModule, digits, mlp, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.testing import faulty
from lightning_audit.testing.faulty import HalfNoise


class Calls(pl.Callback):
    """What another callback sees of the training's end."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen: list[str] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.seen.append("validation")

    def on_train_epoch_end(self, *_: Any) -> None:
        self.seen.append("epoch")

    def on_train_end(self, *_: Any) -> None:
        self.seen.append("end")


class Validated(PrivateModule):
    """Has data to validate on."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss_of_validation", self.training_step(batch, batch_idx))

    def val_dataloader(self) -> Any:
        return self.plain_loader()


class NotPrivate(PrivateModule):
    """Its owner forgot make_private."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def on_digits(kind: type[torch.optim.Optimizer]) -> PrivateModule:
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=kind)


def stopped(
    directory: Path, module: pl.LightningModule, *callbacks: pl.Callback, **kwargs: Any
) -> tuple[AuditReport, pl.Trainer]:
    """Train with an audit that raises; the report on disk, and the trainer."""
    torch.manual_seed(0)
    trainer = trainer_for(directory, PrivacyAudit(seed=1), *callbacks, **kwargs)
    with pytest.raises(PrivacyViolation):
        trainer.fit(module)
    return report_in(directory), trainer


LONG = {"min_epochs": 3, "max_epochs": 5}


def test_a_loader_that_is_not_poisson_is_told_before_the_first_step(tmp_path: Path) -> None:
    calls = Calls()
    report, _ = stopped(tmp_path, PrivateModule(poisson=False), calls, **LONG)
    assert (report.steps, calls.steps) == (0, 0)
    assert report.verdict.root.name == "not_poisson"
    assert calls.seen == ["end"]


@pytest.mark.parametrize("make_poisson", [True, False])
def test_it_is_told_which_epsilon_holds_and_whether_it_was_chosen(
    tmp_path: Path, make_poisson: bool
) -> None:
    module = PrivateModule(poisson=False, make_poisson=make_poisson)
    report, _ = stopped(tmp_path, module, **LONG)
    (found,) = (check for check in report.checks if check.name == "sampling.not_poisson")
    assert "one epoch costs epsilon 4.377 at delta 1e-05 if a record is zeroed" in found.message
    assert ("make_private was called with poisson_sampling=False" in found.advice) == (
        not make_poisson
    )


def test_three_epochs_of_shuffled_batches_cost_three_steps(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn")
    trainer_for(tmp_path, audit, max_epochs=3).fit(PrivateModule(poisson=False))
    (found,) = (c for c in audit.report.checks if c.name == "sampling.not_poisson")
    assert "3 epochs cost epsilon 8.385 at delta 1e-05 if a record is zeroed" in found.message


def test_a_loader_that_is_allowed_is_trained_with(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, allow="sampling.not_poisson")
    trainer_for(tmp_path, audit, max_epochs=1).fit(PrivateModule(poisson=False))
    assert audit.report.steps == 32


class NotPrivateByHand(ManualModule):
    """The same, in manual optimization."""

    configure_optimizers = NotPrivate.configure_optimizers


class GeneratorFirst(Gan):
    """The optimizer that is not private steps before the private one."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator = self.optimizers()[1]
        generator.zero_grad()
        self.manual_backward(self.G(torch.randn(4, 4)).square().mean())
        generator.step()
        super().training_step(batch, batch_idx)


def weights(module: pl.LightningModule) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("on_violation", ["raise", "stop"])
@pytest.mark.parametrize("kind", [NotPrivate, NotPrivateByHand, GeneratorFirst])
def test_an_optimizer_that_is_not_private_takes_no_step(
    tmp_path: Path, kind: type[pl.LightningModule], on_violation: str
) -> None:
    module = kind(dataset=digits()) if kind is GeneratorFirst else kind(mlp(64), dataset=digits())
    before, audit = weights(module), PrivacyAudit(seed=1, on_violation=on_violation)
    trainer = trainer_for(tmp_path, audit, **LONG)
    with pytest.raises(PrivacyViolation) if on_violation == "raise" else nullcontext():
        trainer.fit(module)
    report = report_in(tmp_path)
    assert report.steps == 0
    if kind is not GeneratorFirst:  # what is left of the batch is the user's code
        assert trainer.global_step == 0
    assert all(map(torch.equal, before, weights(module)))
    assert report.verdict.root.name == "no_dp"
    assert "was stopped before its first step" in report.verdict.summary


def test_it_trains_where_violations_are_warned_of(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn")
    trainer = trainer_for(tmp_path, audit, max_steps=3)
    trainer.fit(NotPrivate())
    assert trainer.global_step == 3
    assert audit.report.verdict.summary.startswith("no_dp: SGD took 3 steps without")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (HalfNoise, {"noise_too_small"}),
        (faulty.NoNoise, {"no_noise"}),
        (faulty.NoNoiseOnBiases, {"noise_missing_in_tensors"}),
        (faulty.OneKeyForAllTensors, {"noise_repeated_in_step", "one_key_for_all_tensors"}),
        (faulty.BroadcastNoise, {"noise_repeated_in_step", "one_value_for_all_coordinates"}),
        (faulty.ClosureRunsAgain, {"gradient_replaced"}),
        (faulty.ClipAfterAverage, {"clip_after_average", "one_record_moves_too_much"}),
        (faulty.NoClipping, {"no_clipping", "one_record_moves_too_much"}),
    ],
)
@pytest.mark.one_in(2)
def test_a_fault_ends_the_training_within_five_steps_and_is_named(
    tmp_path: Path, kind: type[torch.optim.Optimizer], names: set[str]
) -> None:
    report, _ = stopped(tmp_path, on_digits(kind), **LONG)
    root = report.verdict.root
    assert root.name in names
    # Steps are fed to the checks a few at a time.
    assert report.steps <= root.place.step + 5
    assert report.steps <= 20


def test_other_callbacks_have_their_usual_end(tmp_path: Path) -> None:
    calls, saver = Calls(), ModelCheckpoint(tmp_path / "saved", save_last=True)
    module = Validated(mlp(64), dataset=digits(), optimizer_class=HalfNoise)
    report, trainer = stopped(
        tmp_path, module, calls, saver, enable_checkpointing=True, min_steps=60, **LONG
    )
    assert calls.steps == report.steps < 10
    assert calls.seen == ["validation", "epoch", "end"]
    assert (tmp_path / "saved" / "last.ckpt").exists()
    assert (trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps) == (3, 60)


def test_what_is_told_stands_where_it_happened_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at: list[int] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at.append(calls.steps)

    calls, heard = Calls(), Heard(logging.ERROR)
    logger = logging.getLogger("lightning_audit")
    logger.addHandler(heard)
    try:
        audit = PrivacyAudit(seed=1, on_violation="warn")
        trainer = trainer_for(tmp_path, calls, audit, max_epochs=2)
        trainer.fit(on_digits(HalfNoise))
    finally:
        logger.removeHandler(heard)
    assert len(at) == 1
    assert at[0] < 10
    assert audit.report.steps > 60


def test_a_manual_optimization_is_stopped_as_well(tmp_path: Path) -> None:
    report, _ = stopped(tmp_path, ManualModule(optimizer_class=HalfNoise), **LONG)
    assert report.steps < 20


def test_the_next_training_of_the_callback_stops_as_the_first(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, on_violation="stop")
    for number in range(2):
        trainer = trainer_for(tmp_path / str(number), audit, **LONG)
        trainer.fit(on_digits(HalfNoise))
        assert audit.report.verdict.outcome == "VIOLATION"
        assert audit.report.steps < 10


@pytest.mark.parametrize("examinations", [0, "auto"])
def test_a_correct_training_is_not_stopped(tmp_path: Path, examinations: Any) -> None:
    audit = PrivacyAudit(seed=1, examinations=examinations)
    trainer_for(tmp_path, audit, max_epochs=3).fit(PrivateModule())
    assert audit.report.steps == 96
    assert audit.report.verdict.outcome != "VIOLATION"


class Plain(pl.callbacks.ProgressBar):
    """A user's own progress bar: it shows every item as a number of three digits."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def disable(self) -> None:
        """Nothing is shown."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        items = self.get_metrics(trainer, pl_module)
        self.shown.append(" ".join(f"{name}={value:.3f}" for name, value in items.items()))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.on_train_batch_end(trainer, pl_module)


class Logging(PrivateModule):
    """Shows its loss in the progress bar."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def test_a_progress_bar_shows_the_bound_at_the_ends_of_epochs_among_the_modules_metrics(
    tmp_path: Path,
) -> None:
    bar, audit = Plain(), PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, bar, max_epochs=2, enable_progress_bar=True).fit(Logging())
    assert "audit" not in bar.shown[0]
    bound = audit.report.epsilon_lower
    assert bound > 0
    assert f"audit=ok | eps>={bound:.2g}" in bar.shown[-1]
    assert re.search(r"loss=\d+\.\d\d\d", bar.shown[-1])


def test_a_progress_bar_shows_a_finding_after_the_step_that_shows_it(tmp_path: Path) -> None:
    bar, audit = Plain(), PrivacyAudit(seed=1, on_violation="warn")
    trainer = trainer_for(tmp_path, audit, bar, max_steps=12, enable_progress_bar=True)
    trainer.fit(on_digits(HalfNoise))
    found = [number for number, shown in enumerate(bar.shown) if "audit=VIOLATION | noise" in shown]
    assert 0 <= found[0] < 10


@pytest.mark.parametrize("bar", [TQDMProgressBar(), RichProgressBar(), None])
def test_lightnings_progress_bars_show_it_and_none_is_needed(
    tmp_path: Path, bar: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn")
    given = [bar] if bar else []
    trainer = trainer_for(
        tmp_path, audit, *given, max_steps=12, enable_progress_bar=bar is not None
    )
    trainer.fit(on_digits(HalfNoise))
    streams = capsys.readouterr()
    shown = "".join((streams.out + streams.err).split())
    assert ("audit=VIOLATION|noise" in shown) == isinstance(bar, TQDMProgressBar)
    assert ("audit:VIOLATION|noise" in shown) == isinstance(bar, RichProgressBar)


def test_a_violation_is_one_line_of_the_log_one_summary_and_one_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PrivacyViolation) as raised:
        trainer_for(tmp_path, PrivacyAudit(seed=1), **LONG).fit(on_digits(HalfNoise))
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("lightning_audit")]
    assert len([line for line in ours if "VIOLATION" in line]) == 1
    assert ours[-1].startswith("privacy audit: VIOLATION (mechanism): too little noise is added")
    assert ours[-1].endswith("; the training stops")
    out = capsys.readouterr().out
    assert out.count("VIOLATION") == 1
    assert len(out.strip().splitlines()) <= 15
    assert str(raised.value).count("VIOLATION") == 1


def test_a_first_step_above_the_claim_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = PrivacyAudit(claimed_epsilon=0.01, seed=1)
    with pytest.raises(PrivacyViolation):
        trainer_for(tmp_path, audit, max_epochs=2).fit(PrivateModule())
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("lightning_audit")]
    assert len(ours) == 1
    assert "accounting" in ours[0]
    assert "VIOLATION" in ours[0]
