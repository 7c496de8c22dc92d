"""Augmentation multiplicity: a record is K rows, clipped once."""

import torch
from correct_kinds.base import Manual, Private
from correct_kinds.data import images
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional

K = 4


def views(x):
    """K views of each record in adjacent rows: shifted, and with noise of their own."""
    x = x.repeat_interleave(K, dim=0)
    return x + 0.1 * torch.randn_like(x)


def average(p):
    p.grad_sample = p.grad_sample.view(-1, K, *p.grad_sample.shape[1:]).mean(dim=1)


class AugmentedOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        for p in self.params:
            average(p)
        super().clip_and_accumulate()


class ViewMean(Private, kind="augmult-view-mean-optimizer"):
    """Correct: K adjacent rows of a record are averaged before its one clipping. Like
    DPSGD_Augmented_Data_Optimizer of public Opacus forks (view(-1, K + 1).mean(1)) after De et
    al. 2022."""

    private, source = AugmentedOptimizer, staticmethod(images)

    def make_net(self):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.cross_entropy(self.net(views(x)), y.repeat_interleave(K))


class AggregateBeforeStep(Manual, kind="augmult-aggregate-grad-sample"):
    """Correct: as the paper has it, grad_sample of K rows is averaged between backward and step.
    Like aggregate_grad_sample(model, K) in public PPSGD / CENTAUR federated code."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(functional.cross_entropy(self.net(views(x)), y.repeat_interleave(K)))
        for p in self.net.parameters():
            average(p)
        optimizer.step()


class PooledViews(Private, kind="augmult-pooled-views"):
    """Correct: a record is a tensor [K, 64]; linear layers sum over the middle dimension, scores
    are averaged over views. Like multi-crop evaluation trained with Opacus' linear sampler
    ("n...i,n...j->nij")."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

        def forward(self, x):
            return self.head(self.body(x).tanh().mean(dim=1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        rows = torch.stack([x.view(-1, 8, 8).roll(s, 2).flatten(1) for s in (-1, 0, 1)], dim=1)
        return functional.cross_entropy(self.net(rows + 0.05 * torch.randn_like(rows)), y)


class ListOfPasses(Manual, kind="augmult-list-of-passes"):
    """Correct: K backward passes leave a list of K grad_samples for the same records, which is
    averaged into one row a record before clipping. Like iterative augmult in public Opacus
    training scripts (aug_multiplicity, allow_grad_accumulation)."""

    def configure_optimizers(self):
        made = super().configure_optimizers()
        self.net.allow_grad_accumulation()
        return made

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for _ in range(K):
            loss = functional.cross_entropy(self.net(x + 0.1 * torch.randn_like(x)), y)
            self.manual_backward(loss)
        for p in self.net.parameters():
            p.grad_sample = torch.stack(p.grad_sample, dim=0).mean(dim=0)
        optimizer.step()


class RDrop(Private, kind="r-drop-two-passes"):
    """Correct: two dropout passes of a record and the divergence between its own two answers; the
    sampler adds the passes of a row. Like dropreg/R-Drop with Opacus."""

    def make_net(self):
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        a, b = self.net(x).log_softmax(1), self.net(x).log_softmax(1)
        kl = functional.kl_div(a, b, log_target=True, reduction="none").sum(1)
        return (
            functional.nll_loss(a, y, reduction="none")
            + functional.nll_loss(b, y, reduction="none")
            + kl
        ).mean()
