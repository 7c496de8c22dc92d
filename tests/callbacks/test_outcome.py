import contextlib
import re
import traceback
from contextlib import nullcontext
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from gan_support import Gan
from opacus.optimizers import DPOptimizer
from parsed_page import ParsedPage, check_page
from pytorch_lightning.callbacks import RichProgressBar, TQDMProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from stages import staged
from trained import check, on_digits, private, weights
from training_support import (
    ManualModule,
    PrivateModule,
    assert_no_hooks_left,
    digits,
    mlp,
    report_in,
    trainer_for,
)

from lightning_audit import InconclusiveAudit, PrivacyAudit, PrivacyClaim, PrivacyViolation
from lightning_audit.report import figure as plots
from lightning_audit.report.figure import figure
from lightning_audit.report.page import report_page
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.testing import faulty
from lightning_audit.testing.faulty import HalfNoise
from lightning_audit.verdict.judge import NO_OPTIMIZER


@pytest.mark.whole_report
@pytest.mark.parametrize("logger", staged(heavy=[TensorBoardLogger], nightly=[CSVLogger]))
def test_the_picture_is_drawn_once_for_a_logger_that_takes_it_and_lies_beside_the_report(
    tmp_path, audited, monkeypatch, logger
):
    drawn: list[object] = []
    monkeypatch.setattr(plots, "figure", lambda report: drawn.append(report) or figure(report))
    taken = logger is TensorBoardLogger
    for number in (1, 2):
        audited(PrivateModule(), logger=logger(tmp_path), examinations=0, steps=8)
        assert len(drawn) == number * taken
    for folder in (audited.directory, audited.directory / "previous-1"):  # it moves away with it
        assert (folder / "report.png").exists() == taken
        assert not taken or (folder / "report.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


def _disk_full(*_: object) -> None:
    raise OSError("disk full")


@pytest.mark.whole_report
def test_without_a_picture_the_audit_goes_on_with_a_warning(tmp_path, audited, monkeypatch, caplog):
    monkeypatch.setattr("lightning_audit.report.figure.save_drawn", _disk_full)
    logger = TensorBoardLogger(tmp_path)
    report = audited(PrivateModule(), logger=logger, examinations=0, steps=8)
    assert (report.steps, report.complete) == (8, True)
    assert not (audited.directory / "report.png").exists()
    assert "report.png could not be written: disk full" in caplog.text


class Calls(pl.Callback):
    """What another callback sees of the training: its steps, and the hooks of its ends."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen: list[str] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1

    def on_train_epoch_end(self, *_: Any) -> None:
        self.seen.append("epoch")

    def on_train_end(self, *_: Any) -> None:
        self.seen.append("train")

    def on_fit_end(self, *_: Any) -> None:
        self.seen.append("fit")


LONG = {"min_epochs": 3, "max_epochs": 5}


def test_violation_stops_the_training_and_is_raised_in_on_fit_end(tmp_path):
    calls, module = Calls(), PrivateModule(optimizer_class=HalfNoise)
    trainer = trainer_for(tmp_path, calls, PrivacyAudit(seed=1), min_steps=60, **LONG)
    with pytest.raises(PrivacyViolation) as raised:
        trainer.fit(module)
    *_, last = traceback.extract_tb(raised.value.__traceback__)
    assert last.line == "fn(trainer, trainer.lightning_module, *args, **kwargs)"
    assert calls.seen == ["epoch", "train", "fit"]
    assert trainer.global_step < 20
    assert (trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps) == (3, 60)
    assert raised.value.report.complete
    assert_no_hooks_left(module)


def test_warn_trains_to_the_end_and_raises_nothing(trained):
    done = trained(private(HalfNoise), on_violation="warn", max_epochs=3, limit_train_batches=8)
    assert (done.report.verdict.outcome, done.report.steps) == ("VIOLATION", 24)
    assert done.module.trainer.current_epoch == 3
    assert sum("privacy audit: VIOLATION (mechanism)" in line for line in done.logged) == 1


def test_inconclusive_audit_is_raised_where_asked(tmp_path):
    audit = PrivacyAudit(on_inconclusive="raise", seed=1)
    with pytest.raises(InconclusiveAudit, match="more steps are needed") as raised:
        trainer_for(tmp_path, audit, max_steps=4).fit(PrivateModule())
    assert raised.value.report.verdict.outcome == "INCONCLUSIVE"
    assert report_in(tmp_path).verdict == raised.value.report.verdict


@pytest.mark.parametrize("verbose", [True, False])
def test_every_check_is_shown_on_request_and_else_a_summary(trained, verbose):
    done = trained(steps=4, **({"verbose": True} if verbose else {}))
    assert done.report.verdict.outcome == "INCONCLUSIVE"  # of which nothing is raised
    assert any("more steps are needed" in lack for lack in done.report.verdict.pass_blockers)
    words = done.shown.split()
    assert all(check.name in words for check in done.report.checks) == verbose
    assert (len(done.shown.strip().splitlines()) <= 15) == (not verbose)
    assert "INCONCLUSIVE" in done.shown
    assert "report.json" in done.shown


#: As it is before `short_report` leaves it out.
_WRITE_PAGE = ReportFiles.write_page


@pytest.fixture
def page_of(tmp_path, monkeypatch):
    """The parsed page of a training, which `lightning-audit report` would write again."""
    monkeypatch.setattr(ReportFiles, "write_page", _WRITE_PAGE)

    def page_of(module: Any = None, *, steps: int = 64, **audit: Any) -> ParsedPage:
        trainer = trainer_for(tmp_path, PrivacyAudit(seed=1, **audit), max_steps=steps)
        with contextlib.suppress(PrivacyViolation):
            trainer.fit(module or PrivateModule())
        page = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
        assert page == report_page(report_in(tmp_path), tmp_path.name)
        assert len(page.encode()) < 100_000
        return check_page(page)

    return page_of


class OwnHalf(DPOptimizer):
    """Half the noise, by code of the user's."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad = 0.5 * (p.grad + p.summed_grad.view_as(p))


PAGES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "half the noise": (
        {"optimizer_class": OwnHalf},
        {"claimed_epsilon": 50.0},
        [
            "This training is less private than it says: too little noise",
            *("OwnHalf", "Some tensors lack noise"),
        ],
    ),
    "correct": (
        {},
        {"claimed_epsilon": 50.0},
        [
            "this training did what its claim of ε = 50 rests on.",
            "PrivacyAudit( claimed_epsilon=50.0,",
        ],
    ),
    "shuffled": (
        {"poisson": False},
        {"claim": PrivacyClaim(epsilon=500.0, delta=1e-5, sampling="shuffled")},
        ["shuffled batches, each record in one step per epoch", "PrivacyClaim(epsilon="],
    ),
    "allowed": (
        {"poisson": False},
        {"allow": ["sampling.not_poisson"]},
        ["Except sampling.not_poisson, which is allowed, no fault was found", "fails, allowed"],
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.heavy_one_in(5)
def test_a_page_says_what_was_found_and_claimed(tmp_path, page_of, name):
    module, audit, words = PAGES[name]
    text = page_of(PrivateModule(**module), **audit).text
    assert not [part for part in words if part not in text]
    assert name != "correct" or f"PASS: {tmp_path.name} \N{EN DASH} privacy audit" in text


class NotPrivate(PrivateModule):
    """Its owner forgot make_private."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def test_a_loader_that_is_not_poisson_is_told_before_the_first_step(tmp_path):
    calls = Calls()
    with pytest.raises(PrivacyViolation):
        trainer_for(tmp_path, PrivacyAudit(seed=1), calls, **LONG).fit(PrivateModule(poisson=False))
    report = report_in(tmp_path)
    assert (report.steps, calls.steps) == (0, 0)
    assert report.verdict.root.name == "not_poisson"
    assert calls.seen == ["train"]


@pytest.mark.parametrize("make_poisson", [True, False])
def test_it_is_told_which_epsilon_holds_and_whether_it_was_chosen(trained, make_poisson):
    make = private(poisson=False, make_poisson=make_poisson)
    found = check(trained(make, **LONG).report, "sampling.not_poisson")
    assert "the 5 planned epochs cost epsilon 11.48 at delta 1e-05 if a rec" in found.message
    assert "if it is replaced (1 seen so far: 4.377 and 9.997)" in found.message
    chosen = "make_private was called with poisson_sampling=False" in found.message
    assert chosen == (not make_poisson)


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


@pytest.mark.parametrize("on_violation", ["raise", "stop"])
@pytest.mark.parametrize("kind", [NotPrivate, NotPrivateByHand, GeneratorFirst])
def test_an_optimizer_that_is_not_private_takes_no_step(tmp_path, kind, on_violation):
    module = kind(dataset=digits()) if kind is GeneratorFirst else kind(mlp(64), dataset=digits())
    before, audit = weights(module), PrivacyAudit(seed=1, on_violation=on_violation)
    trainer = trainer_for(tmp_path, audit, **LONG)
    with pytest.raises(PrivacyViolation) if on_violation == "raise" else nullcontext():
        trainer.fit(module)
    report = report_in(tmp_path)
    assert report.steps == 0
    if kind is not GeneratorFirst:  # what is left of the batch is the user's code
        assert trainer.global_step == 0
    assert torch.equal(before, weights(module))
    assert report.verdict.root.name == "no_dp"
    assert "was stopped before its first step" in report.verdict.summary


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (HalfNoise, {"noise_too_small"}),
        (faulty.ClosureRunsAgain, {"gradient_replaced"}),
        (faulty.NoClipping, {"no_clipping", "one_record_moves_too_much"}),
    ],
)
@pytest.mark.one_in(4)
def test_a_fault_ends_the_training_within_five_steps_and_is_named(trained, kind, names):
    report = trained(private(kind, on_digits=True), **LONG).report
    root = report.verdict.root
    assert root.name in names
    # Steps are fed to the checks a few at a time.
    assert report.steps <= min(root.place.step + 5, 20)


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


def test_a_progress_bar_shows_the_bound_at_the_ends_of_epochs_among_the_modules_metrics(tmp_path):
    bar, audit = Plain(), PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, bar, max_epochs=2, enable_progress_bar=True).fit(Logging())
    assert "audit" not in bar.shown[0]
    bound = audit.report.epsilon_lower
    assert bound > 0
    assert f"audit=ok | eps>={bound:.2g}" in bar.shown[-1]
    assert re.search(r"loss=\d+\.\d\d\d", bar.shown[-1])


@pytest.mark.parametrize("bar", staged([TQDMProgressBar()], nightly=[RichProgressBar()]))
def test_lightnings_progress_bars_show_it(tmp_path, bar, capsys):
    audit = PrivacyAudit(seed=1, on_violation="warn")
    trainer = trainer_for(tmp_path, audit, bar, max_steps=12, enable_progress_bar=True)
    trainer.fit(on_digits(HalfNoise))
    streams = capsys.readouterr()
    shown = "".join((streams.out + streams.err).split())
    assert ("audit=VIOLATION|noise" in shown) == isinstance(bar, TQDMProgressBar)
    assert ("audit:VIOLATION|noise" in shown) == isinstance(bar, RichProgressBar)


def test_a_violation_is_one_line_of_the_log_and_one_exception(trained, tmp_path):
    done = trained(private(HalfNoise, on_digits=True), **LONG)
    assert sum("VIOLATION" in line for line in done.logged) == 1
    assert done.logged[-1].startswith("privacy audit: VIOLATION (mechanism): too little noise is")
    assert done.logged[-1].endswith("; the training stops")
    assert done.shown == ""  # the exception says it
    assert str(done.raised).count("VIOLATION") == 1
    (size,) = set(re.findall(r"[\d.]+ to [\d.]+ times the stated", str(done.raised)))
    assert size in done.logged[-1]
    assert "at most" not in str(done.raised)


@pytest.mark.parametrize("planned", [{"max_steps": 0}, {"max_epochs": 0}])
def test_a_fit_without_a_step_ends_as_planned(tmp_path, planned):
    trainer_for(tmp_path, PrivacyAudit(seed=1), **planned).fit(PrivateModule())
    report = report_in(tmp_path)
    assert report.verdict.pass_blockers == (NO_OPTIMIZER,)
    assert (report.steps, report.ended.reason) == (0, "planned")
