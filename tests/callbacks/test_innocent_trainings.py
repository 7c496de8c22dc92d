"""Correct trainings in common forms that an audit may mistake, and their faulty twins."""

import dataclasses

import pytest
import torch
from hand_written_support import BATCH, CLAIM, CLIP, RECORDS, SIGMA, HandWritten, InHook
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from stages import staged
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_support import ManualModule, mlp, random_data, trainer_for

import lightning_audit
from lightning_audit import PrivacyAudit

pytestmark = pytest.mark.training


FIXED = dataclasses.replace(CLAIM, sampling="shuffled")


def audited(folder, module, steps=4, **kwargs):
    """The report of a training that no finding stops."""
    given = {"claim": CLAIM, "seed": 1, "on_violation": "warn", "examinations": 1, **kwargs}
    audit = PrivacyAudit(**given)
    trainer_for(folder, audit, max_steps=steps).fit(module)
    return audit.report


def violated(report):
    return [check.name for check in report.checks if check.status == "violated"]


class Mean(HandWritten):
    """Averages the rows that it has, with noise for a batch of the expected size."""

    def divisors(self, rows):
        return rows, BATCH

    def write_gradient(self, grads):
        sums = self.clipped_sums(grads)
        by, noise_by = self.divisors(max(len(next(iter(grads.values()))), 1))
        for name, p in self.net.named_parameters():
            p.grad = sums[name] / by + self.noise(p) / noise_by


class MeanOfFixed(Mean):
    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=BATCH, shuffle=True, drop_last=True)

    def divisors(self, rows):
        return BATCH if rows >= BATCH else rows, BATCH


def test_a_mean_over_batches_of_one_size_is_no_finding(tmp_path):
    report = audited(tmp_path, MeanOfFixed(), claim=FIXED)
    assert violated(report) == []
    assert {"replay.clipping", "replay.sensitivity", "replay.release"} <= {
        check.name for check in report.checks if check.status == "ok"
    }


def test_over_poisson_batches_the_divisor_is_named(tmp_path):
    verdict = audited(tmp_path, Mean(), steps=1).verdict
    assert verdict.root.headline == "The noisy sum is divided by the actual batch size"


class ShowsSums(HandWritten):
    """Shows the clipped sums, as docs/hand-written.md does."""

    scale = 1.0

    def write_gradient(self, grads):
        for name, total in self.clipped_sums(grads).items():
            p = self.net.get_parameter(name)
            p.summed_grad = total
            p.grad = (total + self.scale * self.noise(p)) / BATCH


class ShowsSumsWithHalfNoise(ShowsSums):
    scale = 0.5


OF_SUMS = ("noise.entries", "noise.whole", "noise.excess", "noise.mean", "reuse.entries")


@pytest.mark.parametrize("kind", [HandWritten, ShowsSums, ShowsSumsWithHalfNoise])
def test_checks_of_the_noise_alone_run_where_hand_written_code_shows_its_sums(tmp_path, kind):
    report = audited(tmp_path, kind(), steps=16, examinations=0)
    checks = {check.name: check for check in report.checks if check.name in OF_SUMS}
    told = [name for name in OF_SUMS if "summed_grad = total" in checks[name].message]
    ran = {check.status for check in checks.values()}
    if kind is HandWritten:
        assert (ran, len(told)) == ({"not_run"}, 4)
    elif kind is ShowsSums:
        assert (ran, told, violated(report)) == ({"ok"}, [], [])
    else:
        assert checks["noise.whole"].status == "undecided"
        assert checks["noise.whole"].message == "A whole tensor lacks noise"


class OnWeights(HandWritten):
    """Adds the noise to the weights, after the update."""

    scale = 1.0

    def write_gradient(self, grads):
        for name, total in self.clipped_sums(grads).items():
            self.net.get_parameter(name).grad = total / BATCH

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        with torch.no_grad():
            for p in self.net.parameters():
                p.add_(self.scale * 0.05 / BATCH * self.noise(p))


class Bare(OnWeights):
    scale = 0.0


@pytest.mark.parametrize("steps", staged([6], nightly=[1]))
def test_noise_on_the_weights_is_not_missing_and_nothing_is_proved_without_it(tmp_path, steps):
    report = audited(tmp_path, OnWeights(), steps)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("the weights have some after it" in one for one in report.verdict.pass_blockers)
    assert not report.epsilon_lower


def test_without_noise_anywhere_the_first_step_shows_it(tmp_path):
    assert audited(tmp_path, Bare(), 1).verdict.outcome == "VIOLATION"


class Drawn(HandWritten):
    """Draws its records in `training_step`; the loader counts the steps."""

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(20)), batch_size=1)

    def training_step(self, batch, batch_idx):
        mask = torch.rand(RECORDS) < BATCH / RECORDS
        super().training_step([part[mask] for part in self.dataset.tensors], batch_idx)


class Dealt(HandWritten):
    """Clips a gradient for each record of batches of another size than is claimed."""

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=2 * BATCH, shuffle=True)


def test_a_step_that_draws_its_records_is_not_judged_by_the_loader(tmp_path):
    report = audited(tmp_path, Drawn())
    assert violated(report) == []
    assert any("draws Poisson batches" in one for one in report.verdict.pass_blockers)


def test_a_loader_whose_records_are_clipped_is(tmp_path):
    assert "sampling.not_poisson" in violated(audited(tmp_path, Dealt()))


class WithoutOptimizer(HandWritten):
    """Updates the parameters itself, under no optimizer."""

    def configure_optimizers(self):
        return None

    def training_step(self, batch, batch_idx):
        self.write_gradient(self.sample_gradients(batch))
        for p in self.net.parameters():
            p.data -= 0.05 * p.grad


@pytest.mark.filterwarnings("ignore:.*configure_optimizers` returned `None`")
def test_a_training_without_an_optimizer_goes_on(tmp_path):
    audit = PrivacyAudit(claim=CLAIM, seed=1)
    trainer_for(tmp_path, audit, max_epochs=1, limit_train_batches=3).fit(WithoutOptimizer())
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    assert any("no optimizer trains a parameter" in note for note in audit.report.notes)


class Overwritten(InHook):
    """Throws the gradient of a loss away: a hook writes another within the closure."""

    def training_step(self, batch, batch_idx):
        self.kept = self.sample_gradients(batch)
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def test_a_gradient_that_a_hook_writes_within_the_closure_is_replayed(tmp_path):
    report = audited(tmp_path, Overwritten())
    assert violated(report) == []
    assert {c.name for c in report.checks if c.name.startswith("replay.") and c.status == "ok"} == {
        "replay.sensitivity",
        "replay.clipping",
        "replay.release",
        "replay.noise",
    }


class Uncounted(ManualModule):
    """Round 2 of a federated client: no accountant counts its steps."""

    def configure_optimizers(self):
        net = GradSampleModule(mlp())
        self.net = net
        own = torch.optim.SGD(net.parameters(), lr=0.1)
        return DPOptimizer(
            own, noise_multiplier=SIGMA, max_grad_norm=CLIP, expected_batch_size=BATCH
        )

    def train_dataloader(self):
        return DPDataLoader.from_data_loader(DataLoader(random_data(RECORDS), batch_size=BATCH))


def test_steps_that_no_accountant_counts_do_not_pass_and_the_first_line_says_so(tmp_path):
    report = audited(tmp_path, Uncounted(), claim=None)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.summary == "no epsilon is known, because no accountant counts the steps"


class OtherEngine(HandWritten):
    """An engine other than Opacus' has replaced the optimizer's step."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.privacy_engine, optimizer.original_step = object(), optimizer.step
        return optimizer


def test_another_engine_is_not_accused_and_its_mechanism_is_asked_for(tmp_path):
    report = audited(tmp_path, OtherEngine(ask=False), claim=None)
    assert (report.verdict.outcome, violated(report)) == ("INCONCLUSIVE", [])
    assert any("another engine than Opacus'" in note for note in report.notes)
    assert "no_dp" in violated(audited(tmp_path, HandWritten(ask=False), claim=None))


class Ensembled(HandWritten):
    """Temporal ensembling: a record's target follows the model's own earlier answers for it."""

    shared = False

    def __init__(self):
        x, y = random_data(256).tensors
        super().__init__(dataset=TensorDataset(x, y, torch.arange(len(x))))
        self.memory = torch.full((len(x), 10), 0.1)

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        params = {name: p.detach() for name, p in self.net.named_parameters()}

        def loss(params, x, y, target):
            scores = functional_call(self.net, params, x[None])
            near = (scores.softmax(1) - target).square().sum()
            return functional.cross_entropy(scores, y[None]) + near

        target = self.memory[index]
        if self.shared:
            target = target + self.memory.mean(0)
        grads = vmap(grad(loss), in_dims=(None, 0, 0, 0))(params, x, y, target)
        self.write_gradient(lightning_audit.per_sample(grads, module=self))
        with torch.no_grad():
            self.memory[index] = 0.6 * self.memory[index] + 0.4 * self.net(x).softmax(1)
        self.optimizers().step()


class SharedMemory(Ensembled):
    """Every record's target follows what is kept of all."""

    shared = True


def test_a_records_memory_of_its_own_is_told_from_one_that_all_share(tmp_path):
    claim = dataclasses.replace(CLAIM, sample_rate=BATCH / 256)
    own = audited(tmp_path / "own", Ensembled(), claim=claim)
    assert own.verdict.outcome == "INCONCLUSIVE"
    assert any("changes the gradient of that record alone" in b for b in own.verdict.pass_blockers)
    shared = audited(tmp_path / "shared", SharedMemory(), claim=claim)
    assert "replay.release" in violated(shared)


class OwnOptimizer(ManualModule):
    """A second optimizer of the user's own, over the same parameters."""

    raw = True

    def training_step(self, batch, batch_idx):
        if not hasattr(self, "own"):
            self.own = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        x, y = batch
        self.manual_backward(functional.cross_entropy(self.net(x), y))
        if self.raw:
            for p in self.net.parameters():
                p.grad = p.grad_sample.mean(0)
            self.own.step()
        optimizer.step()
        if not self.raw:
            self.own.step()  # on the noisy gradient


def test_a_hidden_optimizer_on_raw_gradients_is_named(tmp_path):
    report = audited(tmp_path, OwnOptimizer(), claim=None)
    assert report.verdict.faults[0].name == "no_dp"
    (found,) = [check for check in report.checks if check.name == "no_dp"]
    assert found.message.startswith("RMSprop took ")


def test_a_hidden_optimizer_on_releases_is_no_finding(tmp_path):
    module = OwnOptimizer()
    module.raw = False
    report = audited(tmp_path, module, claim=None)
    assert violated(report) == []


class InSubspace(DPOptimizer):
    """Projects rows on public directions, clips there, and adds noise there."""

    share = 1.0

    def basis(self):
        if not hasattr(self, "_basis"):
            size = sum(p.numel() for p in self.params)
            made = torch.randn(size, 30, generator=torch.Generator().manual_seed(0))
            self._basis = torch.linalg.qr(made)[0]
        return self._basis

    def parts(self, flat):
        return zip(self.params, flat.split([p.numel() for p in self.params]), strict=True)

    def clip_and_accumulate(self):
        flat = torch.cat([g.reshape(len(g), -1) for g in self.grad_samples], dim=1)
        codes = flat @ self.basis()
        factor = (self.max_grad_norm / (codes.norm(dim=1) + 1e-6)).clamp(max=1.0)
        for p, part in self.parts(self.basis() @ (factor @ codes)):
            p.summed_grad = part.view_as(p)

    def add_noise(self):
        code = self.share * self.noise_multiplier * self.max_grad_norm * torch.randn(30)
        for p, part in self.parts(self.basis() @ code):
            p.grad = p.summed_grad + part.view_as(p)


class NoNoiseInSubspace(InSubspace):
    share = 0.0


@pytest.mark.parametrize(("kind", "accused"), [(InSubspace, False), (NoNoiseInSubspace, True)])
def test_noise_in_the_subspace_of_the_rows_is_no_finding_and_none_is_one(kind, accused, tmp_path):
    report = audited(tmp_path, ManualModule(optimizer_class=kind), claim=None)
    assert ("noise" in violated(report)) == accused
    assert report.verdict.outcome == ("VIOLATION" if accused else "INCONCLUSIVE")
