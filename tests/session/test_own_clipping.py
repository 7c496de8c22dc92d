"""Rows of the audit in an optimizer's own clipping: how they fit, and the way back out."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _mark_as_processed
from torch.utils.data import DataLoader
from training_support import ManualModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.session.own_clipping import Fit, own_methods
from lightning_audit.session.planner import StepPlanner

pytestmark = pytest.mark.training


def norms(optimizer):
    rows = [g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]
    return torch.stack(rows, dim=1).norm(dim=1)


class Own(DPOptimizer):
    """Clips as Opacus does, by code of its own."""

    def factors(self):
        return (self.max_grad_norm / (norms(self) + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self):
        factors = self.factors()
        for p in self.params:
            p.summed_grad = torch.einsum("i,i...", factors, p.grad_sample)
            _mark_as_processed(p.grad_sample)


class Aligned(Own):
    """Knows a weight of each record of its batch."""

    def factors(self):
        return torch.full((self.records,), 0.5) * super().factors()


class Discards(Own):
    """Drops long gradients, and shrinks the others."""

    def factors(self):
        long = norms(self) > 10.0
        return torch.where(long, 0.0, self.max_grad_norm / 10.0)


class ShrinksShort(Own):
    """Scales gradients within ten clipping norms by one factor, and clips longer ones."""

    def factors(self):
        clipped = self.max_grad_norm / (norms(self) + 1e-6)
        return torch.where(norms(self) <= 10.0, self.max_grad_norm / 10.0, clipped)


class Escapes(Own):
    """Does not clip: a fault, which canaries show."""

    def factors(self):
        return torch.ones(len(norms(self)))


class OfTheBatch(Own):
    """Divides by a norm of the batch: every row changes what the others add."""

    def factors(self):
        return self.max_grad_norm / (norms(self).norm() + 1e-6) * torch.ones(len(norms(self)))


class Halves(DPOptimizer):
    """Processes the noisy gradient in its own `add_noise`."""

    def add_noise(self):
        super().add_noise()
        for p in self.params:
            p.grad = p.grad.flip(0)


class Late(Own):
    """Expects one row for each record, but only from its third step on."""

    steps = 0

    def factors(self):
        if self.steps > 1 and len(norms(self)) != self.records:
            raise LookupError("one row a record")
        return super().factors()

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


class Spoils(Late):
    """Changes the rows in place before it raises."""

    def factors(self):
        self.grad_samples[0].mul_(1.0)
        return super().factors()


class Pairs(DPOptimizer):
    """Averages each row with its neighbor, and clips the mean: of two records, or of two views."""

    def clip_and_accumulate(self):
        means = [
            torch.cat([g, g[: len(g) % 2]]).unflatten(0, (-1, 2)).mean(1) for g in self.grad_samples
        ]
        lengths = torch.stack([g.flatten(1).norm(dim=1) for g in means]).norm(dim=0)
        factors = (self.max_grad_norm / (lengths + 1e-6)).clamp(max=1.0)
        for p, g in zip(self.params, means, strict=True):
            p.summed_grad = torch.einsum("i,i...", factors, g)
            _mark_as_processed(p.grad_sample)


class Module(ManualModule):
    """Trains with one of these optimizers, which is told the number of records."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.__class__ = self.kind
        return optimizer

    def training_step(self, batch, batch_idx):
        self.trainer.optimizers[0].records = len(batch[0])
        return super().training_step(batch, batch_idx)


def trained(folder, kind, steps=3):
    """The report, how rows fit, and the weights of a training."""
    planners, own = [], StepPlanner.try_rows

    def look(planner):
        planners.append(planner)
        return own(planner)

    audit = PrivacyAudit(seed=1, examinations=0, on_violation="warn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepPlanner, "try_rows", look)
        weights = plain(folder, kind, steps, audit)
    return audit.report, planners[0].fit, weights


def plain(folder, kind, steps=3, *callbacks):
    torch.manual_seed(3)
    module = Module(kind)
    trainer_for(folder, *callbacks, max_steps=steps).fit(module)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    ("kind", "fit"),
    [
        (Own, Fit()),
        (Discards, Fit(adds=(0.0,) * 8, short=False)),
        (ShrinksShort, Fit(short=False)),
        (OfTheBatch, Fit("they change what the records add")),
        (Halves, Fit("they change what the records add", noise=False)),
    ],
)
def test_a_trial_shows_how_rows_fit_and_the_model_stays_what_it_is(tmp_path, kind, fit):
    report, found, weights = trained(tmp_path / "audited", kind)
    assert found == replace(fit, adds=found.adds)
    assert found.adds == pytest.approx(fit.adds, abs=1e-8)  # by the rounding of a machine's sums
    torch.testing.assert_close(weights, plain(tmp_path / "plain", kind), rtol=1e-4, atol=1e-6)
    told = [one for one in report.verdict.pass_blockers if "is given no rows of the audit" in one]
    assert len(told) == bool(fit.why_not)


def test_rows_that_escape_clipping_stay_to_show_it(tmp_path):
    report, found, _ = trained(tmp_path, Escapes, 20)
    assert (found, report.verdict.outcome) == (Fit(), "VIOLATION")


@pytest.mark.parametrize(("kind", "steps"), [(Aligned, 3), (Late, 4)])
def test_code_that_expects_one_row_a_record_is_called_again_without_them(tmp_path, kind, steps):
    report, found, weights = trained(tmp_path / "audited", kind, steps)
    assert found.why_not.startswith("it raises ")
    assert (report.steps, report.verdict.outcome) == (steps, "INCONCLUSIVE")
    torch.testing.assert_close(
        weights, plain(tmp_path / "plain", kind, steps), rtol=1e-4, atol=1e-6
    )


def test_an_exception_beside_rows_that_were_changed_says_whose_they_are(tmp_path):
    with pytest.raises(LookupError, match="one row a record") as raised:
        trained(tmp_path, Spoils, 4)
    assert "rows of lightning-audit were among" in raised.value.__notes__[0]


def test_methods_that_are_not_opacus_own_are_named():
    assert own_methods(Late.__new__(Late)) == ("step", "clip_and_accumulate")
    assert own_methods(Halves.__new__(Halves)) == ("add_noise",)
    assert own_methods(DPOptimizer.__new__(DPOptimizer)) == ()
    named = type("Named", (DPOptimizer,), {"add_noise": partial(print)})  # has no module
    assert own_methods(named.__new__(named)) == ("add_noise",)


def test_records_that_share_a_clip_are_a_finding(tmp_path):
    torch.manual_seed(3)
    audit = PrivacyAudit(seed=1, on_violation="warn", examinations=1)
    trainer_for(tmp_path, audit, max_steps=1).fit(Module(Pairs))
    found = next(c for c in audit.report.checks if c.name == "replay.sensitivity")
    assert found.status == "violated"
    assert "one of several records that share a clip: 2 C" in found.message


class Views(Module):
    """The loader collates two views of each record, which are a mean before they are clipped."""

    def plain_loader(self):
        def collate(items):
            x, y = (torch.stack(each) for each in zip(*items, strict=True))
            return x.repeat_interleave(2, 0), y.repeat_interleave(2, 0)

        own = super().plain_loader()
        return DataLoader(own.dataset, own.batch_size, collate_fn=collate)


def test_collated_views_of_a_record_that_share_a_clip_are_not_accused(tmp_path):
    torch.manual_seed(3)
    audit = PrivacyAudit(seed=1, on_violation="warn", examinations=1)
    trainer_for(tmp_path, audit, max_steps=4).fit(Views(Pairs))
    assert audit.report.verdict.outcome == "INCONCLUSIVE", audit.report.verdict
    assert audit.report.steps == 4
    assert not any("audit failed" in why for why in audit.report.verdict.pass_blockers)
