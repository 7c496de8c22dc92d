"""When the audit attaches, writes, stops, raises and lets go."""

import contextlib
import json
import math
import os
import random
import signal
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from resume_support import RESUMING, numbers
from stages import staged
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from trained import UnifiedModule, Validated, ValidatedModule, check, on_digits, private, weights
from training_process import Job, Trainings, trainings, wait_for
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    mlp,
    random_data,
    report_in,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, EpsilonStar, Examination, PrivacyAudit
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.monitor import NoiseChannelChecks, replay
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty import ClipAtTwice, HalfNoise

pytestmark = RESUMING


class Failing(PrivateModule):
    """Fails at one step."""

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__()
        self.step, self.error = step, error

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == self.step:
            raise self.error
        return super().training_step(batch, batch_idx)


def test_an_interrupt_comes_through_and_the_record_is_readable(tmp_path):
    error = KeyboardInterrupt("the user's own")
    module, audit = Failing(40, error), PrivacyAudit(on_inconclusive="raise", seed=1)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised:  # Lightning ends the process
        trainer_for(tmp_path, audit, max_steps=64).fit(module)
    assert error in (raised.value, raised.value.__context__)
    assert_no_hooks_left(module)
    report = report_in(tmp_path)
    assert (report.verdict.outcome, report.complete) == ("INCONCLUSIVE", False)
    blockers = report.verdict.pass_blockers
    assert any("broke off with KeyboardInterrupt" in lack for lack in blockers)
    _, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert report.steps == len(entries) == 40


def test_violation_seen_before_the_training_broke_off_is_reported(tmp_path):
    error = RuntimeError("the user's own")
    module, audit = Failing(20, error), PrivacyAudit(seed=1, on_violation="warn")
    module.optimizer_class = HalfNoise
    with pytest.raises(RuntimeError) as raised:
        trainer_for(tmp_path, audit, max_steps=64).fit(module)
    assert raised.value is error
    report = report_in(tmp_path)
    assert (report.verdict.outcome, report.complete) == ("VIOLATION", False)


def test_checks_stand_in_the_order_of_the_registry(trained):
    report = trained().report
    for each in {c.status for c in report.checks}:
        names = [c.name for c in report.checks if c.status == each]
        assert names == [name for name in REGISTRY if name in names]


@pytest.mark.parametrize("kind", [None, HalfNoise])
def test_replayed_record_gives_the_reports_e_values(trained, kind):
    done = trained(private(kind), on_violation="warn") if kind else trained()
    report = done.report
    header, entries = read_observations(done.directory / "observations.bin")
    monitor = replay(header, entries, report.settings["significance"])
    again = {check.name: check for check in monitor.results()}
    tests = [check for check in report.checks if check.log_e_value is not None]
    of_noise = NoiseChannelChecks(header, 1e-3).results(clips=True)
    memory = {*(check.name for check in of_noise), "gradient_replaced", "ledger.draws"}
    of_record = [check for check in tests if check.name not in memory]
    assert len(of_record) >= 7
    assert len(tests) - len(of_record) == len(memory)
    for found in of_record:
        told = again[found.name]
        assert (told.log_e_value, told.status) == (found.log_e_value, found.status)
    assert tuple(map(astuple, monitor.history)) == report.history
    assert monitor.steps == report.steps


STEPS, EVERY = 96, 5


def entries_of(root: Path) -> bytes:
    """The bytes of a record after its first line, which names the run."""
    path = root / "audit" / RECORD_NAME
    return path.read_bytes().partition(b"\n")[2] if path.exists() else b""


def going_on(root: Path) -> Job:
    """The training from its last whole checkpoint, or from its beginning where there is none."""
    saved = (root / "saved").glob("*.ckpt")
    found = [(int(path.stem.rpartition("=")[2]), str(path)) for path in saved]
    ckpt = max(found, default=(0, None))[1]
    # The checkpoint's seed is taken, not this one.
    return Job(str(root), steps=STEPS, every=EVERY, ckpt=ckpt, seed=4 if ckpt else 3)


def killed(started: Trainings, job: Job, moment: float) -> bool:
    """Kill a job so many seconds after its first step; whether it had not ended before."""
    (Path(job.root) / "trains").unlink(missing_ok=True)
    number = started.start(job)
    wait_for(Path(job.root) / "trains")
    time.sleep(moment)
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    code = started.ended()
    assert code in (0, -signal.SIGKILL), started.said()
    return code != 0


@pytest.mark.nightly
def test_a_training_killed_at_random_leaves_a_prefix_and_goes_on_to_the_same_report(tmp_path):
    kills, rng = 8, random.Random(15)
    whole, lengths = tmp_path / "whole", set()
    with trainings(tmp_path / "log.txt") as started:
        started.start(going_on(whole))
        wait_for(whole / "trains")
        start = time.monotonic()
        assert started.ended() == 0, started.said()
        length = time.monotonic() - start
        expected = entries_of(whole)
        assert len(read_observations(whole / "audit" / RECORD_NAME)[1]) == STEPS
        for kill in range(kills):
            root = tmp_path / f"killed-{kill}"
            # Until it ends, so that it is also killed when it goes on.
            while killed(started, going_on(root), rng.uniform(0.0, length)):
                left = entries_of(root)
                assert expected.startswith(left)
                lengths.add(len(left))
                if main(["check", str(root)]) != 2:  # it had just ended
                    assert numbers(report_in(root)) == numbers(report_in(whole))
            assert numbers(report_in(root)) == numbers(report_in(whole))
            assert entries_of(root) == expected
            assert not (root / "audit" / "run-2").exists()
            assert not list((root / "audit").glob(".*.partial"))
    assert len(lengths) > kills // 2  # at different moments


def test_each_fit_of_a_callback_starts_anew_and_keeps_the_report_of_the_one_before(tmp_path):
    class Broken(PrivateModule):
        def configure_optimizers(self) -> Any:
            raise ValueError("no optimizer today")

    audit, folder = PrivacyAudit(seed=1), tmp_path / "audit"
    first = violation(tmp_path, PrivateModule(optimizer_class=HalfNoise), audit, max_steps=32)
    record = (folder / "observations.bin").read_bytes()
    second = fit(tmp_path, PrivateModule(), audit, max_steps=64)
    assert (second.steps, second.verdict.outcome) == (64, "PASS")  # after a violated one
    assert len(second.epochs) == 2
    assert AuditReport.load(folder / "previous-1" / "report.json") == first
    assert (folder / "previous-1" / "observations.bin").read_bytes() == record
    with pytest.raises(ValueError, match="no optimizer today"):
        trainer_for(tmp_path, audit, max_steps=8).fit(Broken())
    assert not (folder / "report.json").exists()
    assert AuditReport.load(folder / "previous-2" / "report.json") == second


WARNS = {"on_violation": "warn"}


class ClipsByWhatTheBatchHolds(DPOptimizer):
    """The gradients of one batch in fifty are not clipped, by a number of its records."""

    def clip_and_accumulate(self) -> None:
        rows = torch.cat([g.flatten(1) for g in self.grad_samples], dim=1)
        median = float(rows.norm(dim=1).median())
        stated = self.max_grad_norm
        if (math.sin(12.9898 * median) * 43758.5453) % 1.0 < 0.02:
            self.max_grad_norm = 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = stated


def test_canaries_that_pass_in_few_steps_are_not_taken_for_noise(audited):
    allow = ["every_step"]
    report = audited(on_digits(ClipsByWhatTheBatchHolds), steps=150, allow=allow, **WARNS)
    assert check(report, "sensitivity").status == check(report, "noise.excess").status == "ok"
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.pass_blockers[0].startswith("sums are longer than clipping allows, and")


class FreezesALayer(PrivateModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            next(self.net.parameters()).requires_grad_(False)


def test_a_layer_frozen_midway_is_left_alone_and_said(tmp_path):
    ends, audit = [], PrivacyAudit(**WARNS, seed=1)
    for audits in ([], [audit]):
        pl.seed_everything(3, verbose=False)
        module = FreezesALayer()
        trainer_for(tmp_path, *audits, max_steps=40).fit(module)
        ends.append(weights(module))
    plain, audited = ends
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)
    verdict = audit.report.verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert any("trained parameters changed in step 21" in lack for lack in verdict.pass_blockers)


class GainsAPrivateLayer(PrivateModule):
    """Clipped and noised as the others, by what Opacus does; the audit began without it."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = GradSampleModule(nn.Linear(10, 10))
            self.trainer.optimizers[0].add_param_group({"params": list(self.head.parameters())})

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores = self.net(batch[0])
        head = getattr(self, "head", None)
        return functional.cross_entropy(scores if head is None else head(scores), batch[1])


class GainsALayerBeside(GainsAPrivateLayer):
    """It is trained by an optimizer of its own, which the Trainer does not know."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = nn.Linear(10, 10)
            self.own = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def on_train_batch_end(self, *_: Any) -> None:
        if getattr(self, "own", None) is not None:
            self.own.step()


class GainsAFrozenLayer(GainsAPrivateLayer):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 20:
            self.head = nn.Linear(10, 10).requires_grad_(False)


def test_parameters_that_join_the_private_optimizer_are_said(audited):
    verdict = audited(GainsAPrivateLayer(), steps=60, **WARNS).verdict
    (changed,) = (m for m in verdict.pass_blockers if "parameters changed" in m)
    assert "in step 21: 2 joined, without which the audit began (shapes (10, 10), (10,))" in changed
    assert not any("NaN" in m or "`head" in m for m in verdict.pass_blockers)
    assert verdict.outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("kind", "said"), [(GainsALayerBeside, True), (GainsAFrozenLayer, False)])
def test_a_layer_that_is_added_and_trained_without_noise_does_not_pass(audited, kind, said):
    verdict = audited(kind(), steps=40, **WARNS).verdict
    found = [m for m in verdict.pass_blockers if "`head.weight`, `head.bias` changed" in m]
    assert len(found) == said
    assert verdict.outcome != "VIOLATION"


def test_canaries_of_the_clipping_norm_cannot_pass(audited):
    module = PrivateModule(optimizer_class=ClipAtTwice)
    allow = ["every_step"]
    verdict = audited(module, steps=60, oversize=1.0, allow=allow, **WARNS).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert any("set oversize to 1000" in item for item in verdict.pass_blockers)


class FitsAnother(pl.Callback):
    """Fits another Trainer, with the same callback, at one hook of the first one's fit."""

    def __init__(self, hook: str, fit: Any) -> None:
        self.error: Exception | None = None
        setattr(self, hook, lambda *_, **__: self.attempt(fit))

    def attempt(self, fit: Any) -> None:
        if self.error is None:
            with pytest.raises(Exception, match=r".") as raised:
                fit()
            self.error = raised.value


def another(directory: Path, callback: Any, package: Any = pl) -> tuple[Any, Any]:
    kind = PrivateModule if package is pl else UnifiedModule
    return trainer_for(directory, callback, max_steps=3, trainer_class=package.Trainer), kind()


HOOKS = ("on_train_start", "on_before_optimizer_step", "on_fit_end")


@pytest.mark.parametrize(
    ("hook", "package"),
    staged(
        [("setup", pl), ("on_train_batch_end", pl)],
        nightly=[*((hook, pl) for hook in HOOKS), ("setup", lightning.pytorch)],
    ),
)
def test_a_fit_within_a_fit_is_refused_and_the_first_one_is_audited_to_its_end(
    tmp_path, hook, package
):
    audit = PrivacyAudit(claimed_epsilon=50.0, seed=1)
    trainer, module = another(tmp_path / "b", audit, package)
    inner = FitsAnother(hook, lambda: trainer.fit(module))
    trainer_for(tmp_path / "a", audit, inner, max_steps=8).fit(PrivateModule())
    assert isinstance(inner.error, MisconfigurationException)
    assert "give each Trainer its own PrivacyAudit" in str(inner.error)
    assert trainer.global_step == 0
    assert not (tmp_path / "b" / "audit").exists()
    assert report_in(tmp_path / "a").steps == audit.report.steps == 8
    assert report_in(tmp_path / "a").verdict.outcome != "VIOLATION"
    trainer_for(tmp_path / "c", audit, max_steps=4).fit(PrivateModule())
    assert report_in(tmp_path / "c").steps == 4


def test_a_validation_of_another_trainer_leaves_the_audit_alone(tmp_path):
    class Fails(Validated, PrivateModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise RuntimeError("no validation today")

    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path / "b", audit, max_steps=3)
    inner = FitsAnother("on_train_batch_end", lambda: trainer.validate(Fails(), verbose=False))
    trainer_for(tmp_path / "a", audit, inner, max_steps=8).fit(PrivateModule())
    assert "no validation today" in str(inner.error)
    assert report_in(tmp_path / "a").steps == 8


class BreaksItsEnd(pl.Callback):
    """Raises in the training and again as Lightning calls the hooks of the end."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 4:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
            raise RuntimeError("first")

    def on_exception(self, *_: Any) -> None:
        raise RuntimeError("second")


def test_a_training_that_was_broken_off_without_its_end_blocks_no_later_one(tmp_path):
    audit = PrivacyAudit(seed=1)
    broken = trainer_for(tmp_path / "a", BreaksItsEnd(), audit, max_steps=8)
    with pytest.raises(RuntimeError, match="second"):
        broken.fit(PrivateModule())
    assert audit._run is not None  # it was given no end
    trainer_for(tmp_path / "b", audit, max_steps=6).fit(PrivateModule())
    report = report_in(tmp_path / "b")
    assert (report.steps, report.verdict.outcome != "VIOLATION") == (6, True)
    assert not any("without this audit's state" in lack for lack in report.verdict.pass_blockers)
    trainer_for(tmp_path / "c", audit, max_steps=5).fit(PrivateModule())
    assert report_in(tmp_path / "c").steps == 5


def losses(module: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    "make", [Examination, lambda: EpsilonStar(1e-5, losses=losses, permutations=3)]
)
def test_the_other_callbacks_are_part_of_one_fit_at_a_time(tmp_path, make):
    callback = make()
    second, module = another(tmp_path / "b", callback)
    inner = FitsAnother("on_train_batch_end", lambda: second.fit(module))
    first = trainer_for(tmp_path / "a", inner, callback, max_epochs=1, limit_train_batches=4)
    first.fit(ValidatedModule())
    assert f"give each Trainer its own {type(callback).__name__}" in str(inner.error)
    assert len(callback.answers if isinstance(callback, Examination) else callback.history) > 0


class Seeds(pl.Callback):
    """What the report and the callback say of the seed behind each epoch."""

    def __init__(self, audit: PrivacyAudit, folder: Path) -> None:
        self.audit, self.folder, self.seen = audit, folder, []

    def on_validation_start(self, *_: Any) -> None:
        told = [self.audit.seed, self.audit.config.seed, self.audit.config.settings()["seed"]]
        if (path := self.folder / "audit" / "report.json").exists():
            told.append(json.loads(path.read_text())["settings"]["seed"])
        self.seen.append(told)

    on_train_epoch_start = on_validation_start


SHORT = {"max_epochs": 3, "limit_train_batches": 4}


@pytest.mark.parametrize("stated", [None, 7])
def test_a_seed_is_shown_before_the_training_has_ended_where_the_user_states_it(tmp_path, stated):
    audit = PrivacyAudit(examinations=0, seed=stated)
    seeds = Seeds(audit, tmp_path)
    trainer_for(tmp_path, audit, seeds, **SHORT).fit(PrivateModule())
    # With a report of an epoch's end, and before.
    assert {len(told) for told in seeds.seen} == {3, 4}
    assert {seed for told in seeds.seen for seed in told} == {stated}
    ended = report_in(tmp_path).settings["seed"]
    assert isinstance(ended, int)
    assert audit.seed == ended
    assert stated in (None, ended)
    if stated is None:
        trainer_for(tmp_path / "other", audit, **SHORT).fit(PrivateModule())
        assert audit.seed != ended


class MadeBefore(pl.LightningModule):
    """make_private in one place, before `fit`, as plain loops have it."""

    def __init__(self) -> None:
        super().__init__()
        net = mlp()
        self.net, self.optimizer, self.loader = PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
            data_loader=DataLoader(random_data(), batch_size=16),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )

    def configure_optimizers(self) -> Any:
        return self.optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def test_the_loader_of_make_private_can_be_passed_to_fit(tmp_path):
    module, audit = MadeBefore(), PrivacyAudit(claimed_epsilon=50.0, seed=1)
    trainer_for(tmp_path, audit, max_steps=64).fit(module, module.loader)
    assert audit.report.verdict.outcome == "PASS"
