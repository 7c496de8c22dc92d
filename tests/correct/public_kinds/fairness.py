"""Groups: clipping budgets, weights, penalties."""

import torch
from correct_kinds.base import NoCall, Private, row_norms
from correct_kinds.data import cancer
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from public_kinds.base import add_clipped, grouped


class GroupBounds(DPOptimizer):
    def clip_and_accumulate(self):
        bounds = torch.tensor([0.7, 1.0])[self.rows]  # of the groups, at most max_grad_norm
        add_clipped(self, (bounds / (row_norms(self.grad_samples) + 1e-6)).clamp(max=1.0))


class GroupClipping(Private, kind="group-clipping-bounds"):
    """Correct: a record is clipped at the public bound of its own group, which is at most the C of
    the noise. Like DPSGD-F with fixed bounds in khtquan/pfm-fairness forks
    (layer6ai-labs/fair-dp)."""

    private, widths, source = GroupBounds, (30, 16, 2), staticmethod(grouped)

    def training_step(self, batch, batch_idx):
        x, y, group = batch
        self.trainer.optimizers[0].rows = group
        return functional.cross_entropy(self.net(x), y)


class NoisyCounts(NoCall, kind="dpsgd-f-noisy-counts"):
    """Correct: group bounds follow counts of clipped records that get noise of their own; a record
    adds at most C to the sum (noise 1.25 C) and one to one count (noise 1.6667), together a
    Gaussian mechanism of multiplier 1.0, the claim. Like DPSGD-F of Xu et al. in
    layer6ai-labs/fair-dp."""

    widths, source = (30, 16, 2), staticmethod(grouped)

    def set_up(self):
        self.bounds = torch.tensor([0.5, 0.5])

    def loss(self, params, x, y, group):
        return functional.cross_entropy(self.call(params, x), y)

    def training_step(self, batch, batch_idx):
        grads = self.sample_gradients(*batch)
        norms, group = row_norms(list(grads.values())), batch[2]
        factor = (self.bounds[group] / (norms + 1e-9)).clamp(max=1.0)
        for name, p in self.net.named_parameters():
            total = torch.einsum("i,i...", factor, grads[name])
            p.grad = (total + 1.25 * self.clip * torch.randn_like(total)) / self.batch_size
        clipped = torch.stack([((norms > self.bounds[group]) & (group == g)).sum() for g in (0, 1)])
        counts = clipped + torch.randn(2) / 0.6
        self.bounds = (0.3 + 0.05 * counts.clamp(min=0)).clamp(max=self.clip)
        self.optimizers().step()


class PublicGroupDRO(Private, kind="group-dro-public-validation"):
    """Correct: the groups' weights rise with losses on public validation records of released
    weights. Like kohpangwei/group_DRO with Opacus, weights from public data."""

    widths, source = (30, 16, 2), staticmethod(grouped)

    def set_up(self):
        x, y = cancer(569)
        self.public = x[500:], y[500:]
        self.q = torch.tensor([0.5, 0.5])

    def training_step(self, batch, batch_idx):
        x, y, group = batch
        losses = functional.cross_entropy(self.net(x), y, reduction="none")
        return (2.0 * self.q[group] * losses).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            x, y = self.public
            self.net.eval()
            found = torch.stack(
                [functional.cross_entropy(self.net(x + 0.2 * g), y) for g in (0, 1)]
            )
            self.net.train()
        self.q = (self.q * torch.exp(0.1 * found)) / (self.q * torch.exp(0.1 * found)).sum()
