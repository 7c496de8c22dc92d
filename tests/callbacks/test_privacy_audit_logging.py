"""What the loggers, checkpoints and other callbacks get of an audited training."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_support import PrivateModule, report_in, trainer_for

from lightning_audit import PrivacyAudit, PrivacyViolation
from lightning_audit.stats.named_bounds import BOUND_NAMES
from lightning_audit.testing.faulty import HalfNoise

pytestmark = pytest.mark.whole_report

NAMES = (
    "epsilon_lower",
    "epsilon_spent",
    "claimed_epsilon",
    "mu_lower",
    "e_value",
    "observations",
    "step",
    "violated",
    *(f"epsilon_lower/{name}" for name in BOUND_NAMES if name != "katz"),
    *(f"epsilon_step_lower/{name}" for name in BOUND_NAMES),
    "epsilon_lower/mu",
    "epsilon_step_lower/mu",
)


def _rows(logger: CSVLogger, prefix: str = "audit") -> list[dict[str, str]]:
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get(f"{prefix}/violated")]


def test_csv_logger_gets_every_metric_of_every_epoch(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, logger=logger, max_epochs=2).fit(PrivateModule())
    rows = _rows(logger)
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    for row, epoch in zip(rows, audit.report.epochs, strict=True):
        for name in NAMES:
            assert float(row[f"audit/{name}"]) == pytest.approx(epoch[name], rel=1e-5), name
    last = {name: float(rows[-1][f"audit/{name}"]) for name in NAMES}
    assert last["observations"] == 64 * 8
    assert last["violated"] == 0
    assert last["e_value"] >= 1
    assert last["epsilon_spent"] == pytest.approx(audit.report.epsilon_spent, rel=1e-5)
    assert 0 < last["epsilon_lower"] <= last["epsilon_spent"]
    assert last["claimed_epsilon"] == pytest.approx(audit.report.claimed_epsilon, rel=1e-5)
    assert 0 < last["mu_lower"] <= 1
    for bound in audit.report.bounds[1:]:
        logged = last[f"epsilon_step_lower/{bound.name}"]
        assert logged == pytest.approx(bound.epsilon_step_lower, rel=1e-5)


def test_tensorboard_gets_every_metric(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, logger=logger, max_epochs=2).fit(PrivateModule())
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert {f"audit/{name}" for name in NAMES} <= set(events.Tags()["scalars"])
    assert events.Tags()["images"] == ["audit/report"]
    (picture,) = events.Images("audit/report")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert (picture.width, picture.height, picture.step) == (1200, 500, 64)
    for name in NAMES:
        values = [event.value for event in events.Scalars(f"audit/{name}")]
        assert values == pytest.approx([epoch[name] for epoch in audit.report.epochs], rel=1e-5)


@pytest.mark.parametrize("names", [(), ("eps_cp", "fdp_cp")])
def test_only_the_bounds_that_are_asked_for_are_computed(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    audit = PrivacyAudit(bounds=list(names), seed=1)
    trainer_for(tmp_path, audit, max_steps=32).fit(PrivateModule())
    betting, mu, *others = audit.report.bounds
    assert (betting.looks, betting.epsilon_lower) == ("anytime", audit.report.epsilon_lower)
    assert (mu.name, mu.looks) == ("mu", "single")
    assert {bound.name for bound in others} == set(names)
    assert list(audit.report.settings["bounds"]) == sorted(names, reverse=True)


def test_by_default_eight_metrics_are_logged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer_for(tmp_path, PrivacyAudit(seed=1, bounds=()), logger=logger, max_epochs=1).fit(
        PrivateModule()
    )
    (row,) = _rows(logger)
    assert {name for name in row if name.startswith("audit/")} == {
        f"audit/{name}" for name in NAMES[:8]
    }


def test_short_epochs_are_looked_at_first_and_last_and_long_ones_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs(directory: str, **kwargs: object) -> list[float]:
        audit = PrivacyAudit(seed=1, bounds=())
        trainer_for(tmp_path / directory, audit, **kwargs).fit(PrivateModule())
        assert audit.report.epochs[-1]["step"] == audit.report.steps
        return [row["epoch"] for row in audit.report.epochs]

    assert epochs("each", max_epochs=4) == [0, 1, 2, 3]
    monkeypatch.setattr("lightning_audit.run.evaluation.EPOCH_SHARE", 0.0)
    assert epochs("by epochs", max_epochs=4) == [0, 3]
    assert epochs("by steps", max_epochs=9, max_steps=80) == [0, 2]


def test_a_checkpoint_may_follow_a_metric_that_is_not_due_at_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_audit.run.evaluation.EPOCH_SHARE", 0.0)
    best = ModelCheckpoint(tmp_path / "best", monitor="audit/epsilon_lower", save_top_k=-1)
    audit = PrivacyAudit(seed=1, bounds=())
    trainer_for(tmp_path, audit, best, max_epochs=3, enable_checkpointing=True).fit(PrivateModule())
    assert len(list((tmp_path / "best").iterdir())) == 3


def test_two_loggers_get_the_metrics_under_the_chosen_prefix(tmp_path: Path) -> None:
    first, second = CSVLogger(tmp_path, "first"), CSVLogger(tmp_path, "second")
    audit = PrivacyAudit(log_prefix="privacy", seed=1)
    trainer_for(tmp_path, audit, logger=[first, second], max_steps=32).fit(PrivateModule())
    for logger in (first, second):
        (row,) = _rows(logger, "privacy")
        assert {f"privacy/{name}" for name in NAMES} <= set(row)
        assert not any(name.startswith("audit/") for name in row)


def test_training_without_logger_has_the_metrics_all_the_same(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), logger=False, max_steps=32)
    trainer.fit(PrivateModule())
    assert {f"audit/{name}" for name in NAMES} <= set(trainer.callback_metrics)
    assert report_in(tmp_path).verdict.outcome == "PASS"


def test_epoch_in_which_a_violation_is_found_is_logged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), logger=logger, max_epochs=5)
    with pytest.raises(PrivacyViolation):
        trainer.fit(PrivateModule(optimizer_class=HalfNoise))
    (row,) = _rows(logger)
    assert float(row["audit/violated"]) == 1
    assert float(row["audit/e_value"]) > 1e3
    assert float(row["audit/observations"]) == trainer.global_step * 8


class _End(pl.Callback):
    ended = 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.ended += 1


def test_last_checkpoint_and_other_callbacks_ends_come_before_the_violation(
    tmp_path: Path,
) -> None:
    class Module(PrivateModule):
        ended = 0

        def on_train_end(self) -> None:
            self.ended += 1

    before, after = _End(), _End()
    checkpoint = ModelCheckpoint(tmp_path / "checkpoints", save_last=True, save_top_k=0)
    module = Module(optimizer_class=HalfNoise)
    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(
        tmp_path, before, audit, after, checkpoint, enable_checkpointing=True, max_epochs=5
    )
    with pytest.raises(PrivacyViolation):
        trainer.fit(module)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert before.ended == after.ended == module.ended == 1


def test_checkpoints_can_be_chosen_by_an_audit_metric(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(
        tmp_path / "checkpoints", monitor="audit/epsilon_spent", mode="min", filename="{epoch}"
    )
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, checkpoint, enable_checkpointing=True, max_epochs=2).fit(
        PrivateModule()
    )
    assert Path(checkpoint.best_model_path).name == "epoch=0.ckpt"
    assert float(checkpoint.best_model_score) == pytest.approx(
        audit.report.epochs[0]["epsilon_spent"], rel=1e-5
    )


@pytest.mark.parametrize("monitored", [None, "audit/epsilon_lower"])
def test_what_another_callback_goes_by_is_logged_at_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitored: str | None
) -> None:
    monkeypatch.setattr("lightning_audit.run.evaluation.EPOCH_SHARE", 0.0)
    audit = PrivacyAudit(seed=1, examinations=0)
    stopping = pl.callbacks.EarlyStopping(monitored or "loss", mode="max", patience=2)
    others = [stopping] if monitored else []
    trainer_for(tmp_path, audit, *others, max_epochs=5).fit(PrivateModule())
    known = [row["epoch"] for row in audit.report.epochs]
    assert known == (list(range(5)) if monitored else [0, 4])
