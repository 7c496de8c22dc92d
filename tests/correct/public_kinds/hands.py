"""By hand: means over fixed batches, noise on weights or deltas, hooks, loops, Jacobians."""

import copy

import torch
from correct_kinds.base import NoCall, row_norms
from correct_kinds.data import tumours
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from lightning_audit import PrivacyClaim


class ShuffledMean(NoCall, kind="shuffled-fixed-mean"):
    """Correct: fixed batches of 25 from a shuffled loader that drops none; clipped rows are
    averaged, noise is sigma C / 25; the claim is "shuffled", where a neighbour zeroes a record.
    Like Bu's and yuxiangw/autodp's tutorial code."""

    def audit_arguments(self):
        claim = PrivacyClaim(
            noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=25, sampling="shuffled"
        )
        return {"claim": claim}

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=25, shuffle=True, drop_last=True)

    def training_step(self, batch, batch_idx):
        grads = self.sample_gradients(*batch)
        scale = self.factors(row_norms(grads.values()))
        for n, p in self.net.named_parameters():
            mean = torch.einsum("i,i...->i...", scale, grads[n]).mean(dim=0)
            p.grad = mean + torch.normal(0.0, self.sigma * self.clip / len(batch[0]), mean.shape)
        self.optimizers().step()


class ReplaceOne(ShuffledMean, kind="shuffled-replace-one-epsilon"):
    """Correct: as before with sigma 2; replacing a record moves the sum by 2 C, so three epochs
    cost mu = sqrt(3), epsilon below 10 at 1e-5, the claim. Like "bounded DP" code of DP-SGD."""

    sigma = 2.0

    def audit_arguments(self):
        claim = PrivacyClaim(
            epsilon=10.0,
            delta=1e-5,
            noise_multiplier=2.0,
            max_grad_norm=1.0,
            expected_batch_size=25,
            sampling="shuffled",
            adjacency="replace_one",
        )
        return {"claim": claim}


class NoisyDelta(NoCall, kind="noise-on-model-delta"):
    """Correct: records walk a copy of the model along their clipped gradients at the old weights;
    the copy's delta gets noise and is loaded back with load_state_dict. Like client-side DP in
    public FedAvg scripts (upload of noised weight differences)."""

    def training_step(self, batch, batch_idx):
        local = copy.deepcopy(self.net)
        walker = torch.optim.SGD(local.parameters(), lr=self.rate / self.batch_size)
        sums = self.clipped_sums(self.sample_gradients(*batch))
        for n, p in local.named_parameters():
            p.grad = sums[n]
        walker.step()
        old, new = self.net.state_dict(), local.state_dict()
        std = self.rate * self.sigma * self.clip / self.batch_size
        self.net.load_state_dict(
            {n: old[n] + (new[n] - old[n]) + std * torch.randn_like(old[n]) for n in old}
        )

    trainer_arguments = {"max_epochs": 3, "max_steps": -1}

    def configure_optimizers(self):
        return None


class FullBatch(NoCall, kind="full-batch-mean-gradient-descent"):
    """Correct: every record in every step (rate 1), sum of clipped rows over the public number of
    records. Like DP-GD code (logistic regression of tumours, IBM/differential-privacy style)."""

    batch_size, rate, sigma = 500, 2.0, 10.0
    widths, source = (30, 2), staticmethod(tumours)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=500)


class BookKeeping(NoCall, kind="ghost-norms-by-hand"):
    """Correct: norms come from activations and output gradients of linear layers, a second backward
    pass of reweighted losses gives the clipped sum. Like awslabs/fast-differential-privacy, by
    hand without a call."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        first, act, second = self.net
        z1 = first(x)
        h = act(z1)
        z2 = second(h)
        losses = functional.cross_entropy(z2, y, reduction="none")
        b1, b2 = torch.autograd.grad(losses.sum(), [z1, z2], retain_graph=True)
        square = lambda t: t.detach().square().sum(1)
        norms = ((square(x) + 1) * square(b1) + (square(h) + 1) * square(b2)).sqrt()
        factors = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        self.optimizers().zero_grad()
        self.manual_backward((factors * losses).sum())
        for p in self.net.parameters():
            p.grad = (p.grad + self.sigma * self.clip * torch.randn_like(p)) / self.batch_size
        self.optimizers().step()


class BackwardLoop(NoCall, kind="backward-loop-clip-grad-norm"):
    """Correct: one backward a record, torch's clip_grad_norm_ over all parameters, an accumulator,
    noise once, the expected batch size as divisor. Like the loop of the DP-SGD blog posts and
    Andrew's pyvacy."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        params = list(self.net.parameters())
        accumulated = [torch.zeros_like(p) for p in params]
        for x, y in zip(*batch):
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(self.net(x[None]), y[None]))
            clip_grad_norm_(params, self.clip)
            for a, p in zip(accumulated, params):
                a.add_(p.grad)
        for a, p in zip(accumulated, params):
            p.grad = (a + torch.normal(0, self.sigma * self.clip, a.shape)) / self.batch_size
        optimizer.step()


class FlatJacobian(NoCall, kind="flat-jacobian-one-draw"):
    """Correct: rows of a Jacobian of losses by batched vector products, one flat vector of noise.
    Like "dp in 50 lines" gists with parameters_to_vector, Adam on the flat noisy gradient."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.01)

    def training_step(self, batch, batch_idx):
        x, y = batch
        params = list(self.net.parameters())
        losses = functional.cross_entropy(self.net(x), y, reduction="none")
        found = torch.autograd.grad(losses, params, torch.eye(len(x)), is_grads_batched=True)
        flat = torch.cat([g.reshape(len(x), -1) for g in found], dim=1)
        flat = flat / (flat.norm(dim=1, keepdim=True) / self.clip).clamp(min=1.0)
        noisy = (
            flat.sum(0) + self.sigma * self.clip * torch.randn(flat.shape[1])
        ) / self.batch_size
        for p, g in zip(params, noisy.split([p.numel() for p in params])):
            p.grad = g.view_as(p).clone()
        self.optimizers().step()


class DecayingNoise(NoCall, kind="decaying-noise-above-claim"):
    """Correct: sigma falls from 2 to the claimed 1 by a public schedule, and never below it. Like
    dynamic noise schedules (Du et al., dynamic DP-SGD), without a call."""

    def noise(self, total):
        return max(1.0, 2.0 - self.global_step / 40) * self.clip * torch.randn_like(total)
