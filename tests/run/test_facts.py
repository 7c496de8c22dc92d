"""Faults that no canary sees: each is shown to be in the libraries, and to be said by the audit."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from own_samplers import OwnPoisson, OwnSampling, OwnShuffle, OwnSizes, SeedsItself, WithReplacement
from torch import nn
from torch.utils.data import DataLoader
from trained import Audited, check, with_optimizer
from training_support import PrivateModule, digits, mlp, random_data, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import PassCounter
from lightning_audit.dpsgd.opacus import AccountantLink
from lightning_audit.files import commit_of
from lightning_audit.lints.settings import ghost_remarks
from lightning_audit.run.facts import (
    Notes,
    OptimizerFacts,
    RunCourse,
    RunLints,
    TrainingInfo,
    _commit,
    rate_of_all,
)
from lightning_audit.session.planner import Ranks


@pytest.mark.parametrize(
    ("rates", "loaders", "rate"),
    [
        ([0.1, 0.2], 1, 0.1),  # one loader must draw no oftener than any of them states
        ([0.1, None], 1, 0.1),
        ([0.1, 0.2], 2, 0.2),
        ([None], 1, None),
    ],
)
def test_the_loader_is_held_to_the_rate_that_any_optimizer_may_have(rates, loaders, rate):
    optimizers = [OptimizerFacts(sample_rate=each) for each in rates]
    assert rate_of_all(optimizers, loaders) == rate


def test_a_stated_rate_is_taken_before_the_accountants_and_parts_of_a_step_add_up():
    link = AccountantLink(SimpleNamespace(history=[]), stated_rate=0.4)
    optimizer = OptimizerFacts(accountant=link)
    assert optimizer.current_rate(None, accumulated=2) == 0.8
    assert optimizer.current_rate(None, accumulated=4) == 1.0
    assert optimizer.current_rate(PrivacyClaim(sample_rate=0.25), accumulated=2) == 0.25
    assert OptimizerFacts().current_rate(None, accumulated=1) is None


def resumed(after: RunCourse, before: RunCourse, steps: list[int]) -> None:
    after.load(json.loads(json.dumps(before.state(steps=steps))))


def test_facts_come_back_from_a_checkpoint_and_notes_of_since_stay():
    before, after = (RunCourse(passes=PassCounter()) for _ in range(2))
    before.notes.add("of before")
    before.trained_batches = 40
    for steps in range(40):
        before.passes.start_batch([steps, 0])
    after.notes.add("of since")
    after.notes.add("of before")
    resumed(after, before, [40, 3])
    assert after.notes.sentences == ["of before", "of since"]
    assert after.trained_batches == 40
    # The last batch has a step of one optimizer and three of the other.
    assert after.passes.passes([40, 3]) == 4


def test_steps_of_before_a_claim_of_shuffled_batches_are_no_passes():
    after = RunCourse(passes=PassCounter())
    resumed(after, RunCourse(), [40])
    assert [after.passes.passes([steps]) for steps in (40, 43)] == [0, 3]


def test_a_checkpoint_does_not_tell_in_how_many_parts_the_batches_came():
    course = RunCourse()
    course.trained_batches = 43
    assert course.state(steps=[7, 40])["trained_batches"] == 40


def test_an_epoch_that_ends_twice_is_logged_once():
    course = RunCourse()
    for epoch, value in ((0, 1.0), (1, 2.0), (1, 3.0)):
        course.end_epoch(epoch, [], PrivacyAudit().config, {"epsilon_spent": value})
    assert [row["epsilon_spent"] for row in course.epochs] == [1.0, 3.0]


class LoaderDropped(PrivateModule):
    """Keeps what make_private returns, to be compared with what Lightning trains on."""

    def train_dataloader(self) -> Any:
        return self.plain_loader()

    def configure_optimizers(self) -> Any:
        self.net, optimizer, self.returned = self.engine.make_private(
            module=self.net,
            optimizer=self.inner(self.trainable()),
            data_loader=self.plain_loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        return optimizer

    def on_train_start(self) -> None:
        self.used = self.trainer.train_dataloader


def test_lightning_drops_the_loader_of_make_private(accused):
    module = LoaderDropped()
    report = accused(module, steps=32)
    assert (type(module.returned), type(module.used)) == (DPDataLoader, DataLoader)
    assert status(report, "sampling.not_poisson") == "violated"
    assert "DPDataLoader.from_data_loader" in report.verdict.root.look_at


WORKERS = [0, pytest.param(1, marks=pytest.mark.heavy)]


@pytest.mark.parametrize("workers", WORKERS)
def test_own_poisson_sampler_passes_without_being_allowed(tmp_path, workers):
    module = OwnSampling(OwnPoisson())
    module.workers = workers
    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path, audit, max_steps=64)
    trainer.fit(module)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
    assert status(audit.report, "sampling.not_poisson") == "ok"
    assert status(audit.report, "sampling.rate") == "ok"
    # Loader and strategy are left as they were.
    assert type(module.loader.batch_sampler) is OwnPoisson
    assert "process_dataloader" not in vars(trainer.strategy)


@pytest.mark.parametrize(
    ("sampler", "said", "epochs"),
    [
        (OwnShuffle, "hardly ever drawn twice", 1),
        (OwnSizes, "too equal in size", 1),
        (SeedsItself, "those of the previous epoch", 2),
        (WithReplacement, "contain a record twice", 1),
        (lambda: OwnPoisson(rate=1 / 20), "", 2),
    ],
)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(2)
def test_own_sampler_that_is_not_poisson_is_a_violation(accused, sampler, said, epochs):
    report = accused(OwnSampling(sampler()), max_epochs=epochs)
    assert report.verdict.kind == "accounting"
    assert said in report.verdict.summary
    assert (status(report, "sampling.rate") == "violated") >= (not said)
    assert status(report, "sampling.not_poisson") == ("violated" if said else "ok")


class Whole(BatchSplittingSampler):
    """What the audit says to write."""

    def __len__(self) -> int:
        raise TypeError


class InPhysicalBatches(PrivateModule):
    def __init__(self, splitter: type[BatchSplittingSampler], workers: int) -> None:
        super().__init__(dataset=random_data(128))
        self.splitter, self.workers = splitter, workers
        self.left: list[tuple[bool, int]] = []

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        split = {"max_batch_size": 6, "optimizer": self.private}
        sampler = self.splitter(sampler=loader.batch_sampler, **split)
        how = {"collate_fn": loader.collate_fn, "num_workers": self.workers}
        return DataLoader(loader.dataset, batch_sampler=sampler, **how)

    def configure_optimizers(self) -> Any:
        self.private = super().configure_optimizers()
        return self.private

    def on_train_epoch_end(self) -> None:
        o = self.private
        waits = o._is_last_step_skipped and o.params[0].summed_grad is not None
        self.left.append((waits, len(o._step_skip_queue)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.one_in(2)
def test_lightning_cuts_logical_batches_and_opacus_adds_the_rest_to_the_next(accused, workers):
    module = InPhysicalBatches(BatchSplittingSampler, workers)
    report = accused(module, max_epochs=5)
    assert any(waits for waits, _ in module.left)
    assert (module.left[-1][1] > 0) == bool(workers)  # signals of batches that were never taken
    assert status(report, "logical_batch") == "violated"
    assert report.verdict.kind == "mechanism"
    assert "count twice" in report.verdict.fault
    assert "def __len__(self): raise TypeError" in report.verdict.root.look_at


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_without_a_length_keeps_logical_batches_whole(audited, workers):
    module = InPhysicalBatches(Whole, workers)
    report = audited(module, max_epochs=3)
    assert module.left == [(False, 0)] * 3
    assert status(report, "logical_batch") == "ok"
    assert status(report, "sampling.not_poisson") == "ok"
    assert report.steps == 3 * 8


class Ghost(PrivateModule):
    """Ghost clipping without noise, with its loss under the key that Lightning takes."""

    def __init__(self) -> None:
        super().__init__(noise_multiplier=0.0, batch_size=32)
        self.sums: list[torch.Tensor] = []

    def configure_optimizers(self) -> Any:
        self.net, self.private, self.criterion, _ = self.engine.make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.0),
            criterion=nn.CrossEntropyLoss(),
            data_loader=self.plain_loader(),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )
        return self.private

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.criterion(self.net(batch[0]), batch[1])}

    def on_train_batch_end(self, *_: Any) -> None:
        parts = [p.summed_grad for p in self.private.params]
        if all(part is not None for part in parts):
            self.sums.append(torch.cat([part.flatten() for part in parts]))


def ghost(tmp_path: Path, module: Ghost, **kwargs: Any) -> Ghost:
    torch.manual_seed(0)
    trainer_for(tmp_path, max_steps=1, **kwargs).fit(module)
    return module


def test_ghost_clipping_trains_on_the_last_of_accumulated_batches_only(tmp_path):
    one_batch = {"limit_train_batches": 2, "accumulate_grad_batches": 2}

    class SecondBatchOnly(Ghost):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            x, y = (x, y) if batch_idx else (x[:1], y[:1])  # another first batch
            return super().training_step((x, y), batch_idx)

    torch.manual_seed(1)
    whole = Ghost()
    torch.manual_seed(1)
    other = SecondBatchOnly()
    sums = [ghost(tmp_path, module, **one_batch).sums[-1] for module in (whole, other)]
    assert torch.allclose(sums[0], sums[1])
    (remark,) = ghost_remarks(whole.private, 2, None)
    assert "accumulate_grad_batches=2 trains on one batch in 2 only" in remark
    assert "BatchMemoryManager" in remark


def test_lightning_shortens_the_clipped_sum_of_ghost_clipping(tmp_path):
    module = ghost(tmp_path, Ghost(), gradient_clip_val=0.01)
    assert float(module.sums[-1].norm()) == pytest.approx(0.01, rel=1e-3)
    (remark,) = ghost_remarks(module.private, 1, 0.01)
    assert "gradient_clip_val=0.01 shortens the sum" in remark
    assert "gradient_clip_val=None" in remark


def test_an_accountant_whose_hook_was_replaced_is_told_to_be_missing(audited):
    module = with_optimizer(lambda optimizer: optimizer.attach_step_hook(lambda _: None))()
    report = audited(module, claimed_epsilon=8.0, steps=40)
    assert module.engine.accountant.history == []  # Opacus keeps one hook, and says nothing
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("no accountant counts" in note for note in report.notes)


def test_accumulation_over_more_batches_than_an_epoch_has_is_said():
    for accumulated, said in ((4, []), (10, ["accumulate_grad_batches=10 is above the 4 batches"])):
        notes = Notes()
        info = TrainingInfo(None, accumulated=accumulated, epoch_batches=4)
        RunLints(notes, 1e-3, Ranks()).note_settings([], [], info)
        assert [note[: len(said[0])] for note in notes.sentences] == said


RAISED, BATCH, RECORDS = 2, 32, 512


def rates_of(audited: Audited, kind: Any, **trainer: Any) -> tuple[AuditReport, Any]:
    """The report of four epochs, and its check of the sample rate."""
    torch.manual_seed(0)
    module = kind(mlp(64), dataset=digits(RECORDS), batch_size=BATCH)
    found = audited(module, on_violation="warn", max_epochs=4, **trainer)
    return found, check(found, "sampling.rate")


class SetAmidAnEpoch(PrivateModule):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if (self.current_epoch, batch_idx) == (RAISED, 5):
            self.trainer.train_dataloader.batch_sampler.sample_rate *= 2.0


class Exchanged(PrivateModule):
    """A loader of twice the batch size."""

    def train_dataloader(self) -> Any:
        size = self.batch_size * (2 if self.trainer.current_epoch >= RAISED else 1)
        return DPDataLoader.from_data_loader(DataLoader(self.dataset, size))


@pytest.mark.parametrize("kind", [SetAmidAnEpoch, Exchanged])
@pytest.mark.one_in(3)
@pytest.mark.heavy_one_in(2)
def test_a_rate_that_rises_in_a_later_epoch_is_named_with_it(audited, kind):
    every = {"reload_dataloaders_every_n_epochs": int(kind is Exchanged)}
    found, rates = rates_of(audited, kind, **every)
    assert [fault.name for fault in found.verdict.faults] == ["sampled_too_often_later"]
    evidence = dict(rates.evidence)
    assert "train_dataloader at tests/" in str(evidence.pop("where"))
    assert evidence == {"loader_rate": 0.125, "accounted_rate": 0.0625, "raised_in": RAISED}
    assert "from epoch 2 on (the first is 0)" in found.verdict.summary


class Told(Exchanged):
    """The accountant is told of the new rate."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == RAISED:
            hook = self.engine.accountant.get_optimizer_hook_fn(sample_rate=2 * BATCH / RECORDS)
            self.trainer.optimizers[0].attach_step_hook(hook)


class Falls(PrivateModule):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == RAISED:
            self.trainer.train_dataloader.batch_sampler.sample_rate /= 2.0


@pytest.mark.parametrize("kind", [Told, Falls, PrivateModule])
@pytest.mark.one_in(3)
@pytest.mark.heavy_one_in(2)
def test_a_rate_that_is_told_or_falls_is_no_fault(audited, kind):
    every = {"reload_dataloaders_every_n_epochs": int(kind is not Falls)}
    found, rates = rates_of(audited, kind, **every)
    assert found.verdict.outcome != "VIOLATION", found.verdict
    assert rates.status == "ok"
    assert {rate for _, rate, _ in found.history} == ({0.0625, 0.125} if kind is Told else {0.0625})


def test_the_commit_is_of_the_users_code_and_not_of_an_installed_package(monkeypatch):
    script = Path(__file__)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert _commit(torch.nn.Sequential()) == commit_of(str(script))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", torch.__file__)
    assert _commit(torch.nn.Sequential()) is None
