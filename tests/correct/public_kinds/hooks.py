"""Where else the mechanism may lie: Lightning's hooks, own torch optimizers, shares of noise, none."""

import torch
from correct_kinds.base import ByHand, Manual, NoCall, Private, row_norms
from correct_kinds.data import public_digits, tumours
from torch.nn import functional
from torch.utils.data import DataLoader

import lightning_audit
from lightning_audit import PrivacyClaim
from public_kinds.multiplicity import AugmentedOptimizer, views


class BeforeStepHook(NoCall, kind="automatic-before-optimizer-step-hook"):
    """Correct: automatic optimization computes an ordinary gradient that is thrown away: the hook
    overwrites every p.grad by the clipped and noisy mean. Like LightningModules that add DP in
    on_before_optimizer_step / on_after_backward."""

    def __init__(self, seed):
        super().__init__(seed)
        self.automatic_optimization = True

    def training_step(self, batch, batch_idx):
        self.batch = batch
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer):
        self.write(self.clipped_sums(self.sample_gradients(*self.batch)))


class OptimizerStepHook(NoCall, kind="automatic-optimizer-step-override"):
    """Correct: LightningModule.optimizer_step runs the closure, replaces gradients by noisy ones and
    then steps without a closure. Like Lightning's docs on overriding optimizer_step."""

    def __init__(self, seed):
        super().__init__(seed)
        self.automatic_optimization = True

    training_step = BeforeStepHook.training_step

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        self.write(self.clipped_sums(self.sample_gradients(*self.batch)))
        optimizer.step()


class DPSGD(torch.optim.SGD):
    """An optimizer with microbatches, as in pyvacy."""

    def __init__(self, params, lr, clip, sigma, size):
        super().__init__(params, lr=lr)
        self.clip, self.sigma, self.size = clip, sigma, size
        self.ps = self.param_groups[0]["params"]
        self.zero_accumulators()

    def zero_accumulators(self):
        self.accumulated = [torch.zeros_like(p) for p in self.ps]

    def microbatch_step(self):
        norm = torch.stack([p.grad.norm() for p in self.ps]).norm().item()
        for a, p in zip(self.accumulated, self.ps):
            a.add_(p.grad, alpha=min(1.0, self.clip / (norm + 1e-6)))

    def step(self, closure=None):
        for a, p in zip(self.accumulated, self.ps):
            p.grad = (a + self.sigma * self.clip * torch.randn_like(a)) / self.size
        super().step()


class Microbatches(NoCall, kind="pyvacy-microbatch-optimizer"):
    """Correct: microbatches of one record, clipped and accumulated in an own SGD, whose step adds
    noise and divides by the expected size. Like ChrisWaites/pyvacy's DPSGD."""

    def configure_optimizers(self):
        return DPSGD(self.net.parameters(), self.rate, self.clip, self.sigma, self.batch_size)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.optimizer.zero_accumulators()
        for x, y in zip(*batch):
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(self.net(x[None]), y[None]))
            optimizer.optimizer.microbatch_step()
        optimizer.step()


class QuantileClip(ByHand, kind="adaptive-quantile-clip-released"):
    """Correct: rows over C_t are clipped to one, noise 1.25; a centred noisy count of unclipped rows
    (sensitivity 1/2, noise 1/1.2) moves C_t; together a Gaussian mechanism of multiplier 1, the
    claim. Like Andrew et al. 2021 in google/tensorflow_privacy (quantile adaptive clipping)."""

    def set_up(self):
        self.norm = 0.5

    def training_step(self, batch, batch_idx):
        grads = {n: g / self.norm for n, g in self.sample_gradients(*batch).items()}
        bits = (row_norms(list(grads.values())) <= 1.0).float() - 0.5
        sums = self.clipped_sums(lightning_audit.per_sample(grads, module=self))
        noisy = {n: (s + 1.25 * torch.randn_like(s)) / self.batch_size for n, s in sums.items()}
        noisy = lightning_audit.released(noisy, module=self)
        for n, p in self.net.named_parameters():
            p.grad = noisy[n] * self.norm
        count = bits.sum().item() + torch.randn(()).item() / 1.2
        self.norm *= float(torch.tensor(-0.2 * count / self.batch_size).exp())
        self.optimizers().step()


class CoinSkips(Manual, kind="coin-skips-batches"):
    """Correct: a fair coin that never looks at the batch leaves out one batch in four; a step that
    is taken costs what is accounted. Like random step dropping / stochastic update code."""

    trainer_arguments = {"max_epochs": 4, "max_steps": -1}

    def training_step(self, batch, batch_idx):
        if torch.rand(()) < 0.25:
            return
        super().training_step(batch, batch_idx)


class NoiseShares(NoCall, kind="noise-shares-by-record"):
    """Correct: batches are fixed at 25 of a shuffled loader; each clipped row gets noise of
    sigma C / 5, which adds up to sigma C in the sum. Like distributed noise shares of secure
    aggregation (local noise / sqrt(n)) in FL code."""

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
            rows = torch.einsum("i,i...->i...", scale, grads[n])
            p.grad = (rows + self.sigma * self.clip / 5.0 * torch.randn_like(rows)).mean(0)
        self.optimizers().step()


class AugmentedChunks(Manual, kind="augmult-physical-chunks"):
    """Correct: a Poisson batch is split into physical chunks of eight records times K views; rows
    are averaged and clipped in each, noise comes with the last. Like public augmult scripts with
    signal_skip_step instead of BatchMemoryManager."""

    private, trainer_arguments = AugmentedOptimizer, {"max_steps": 240}

    def training_step(self, batch, batch_idx):
        optimizer, dp = self.optimizers(), self.trainer.optimizers[0]
        parts = list(zip(batch[0].split(8), batch[1].split(8)))
        for i, (x, y) in enumerate(parts):
            optimizer.zero_grad()
            self.manual_backward(
                functional.cross_entropy(self.net(views(x)), y.repeat_interleave(4))
            )
            dp.signal_skip_step(do_skip=i < len(parts) - 1)
            optimizer.step()


class SumReduction(Private, kind="loss-reduction-sum"):
    """Correct: a summed loss with loss_reduction="sum", the divisor is in the learning rate. Like
    Opacus' make_private(loss_reduction="sum")."""

    engine, rate = {"loss_reduction": "sum"}, 0.005

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


class Lipschitz(NoCall, kind="lipschitz-logistic-unclipped"):
    """Correct: each input is scaled to length one in the step, so a record's logistic gradient
    (p - y) x is no longer than one and nothing is clipped; an ordinary sum's gradient gets the
    noise. Like DP convex ERM code (noisy SGD of Lipschitz losses, Bassily et al.)."""

    source = staticmethod(tumours)

    def make_net(self):
        return torch.nn.Linear(31, 1, bias=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = functional.normalize(torch.cat([x, torch.ones(len(x), 1)], dim=1))
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(
            self.net(x)[:, 0], y.float(), reduction="sum"
        )
        self.manual_backward(loss)
        for p in self.net.parameters():
            p.grad = (p.grad + self.sigma * torch.randn_like(p)) / self.batch_size
        optimizer.step()


class UnequalLayers(ByHand, kind="unequal-layer-budgets-by-hand"):
    """Correct: the first layer's tensors get 0.9 C together and the last one's the rest of C^2; each
    is clipped apart. Like per-layer budgets in McMahan et al. 2018, with the documented call."""

    def clipped_sums(self, grads):
        sums = {}
        for layer, bound in (("0.", 0.9 * self.clip), ("2.", (1 - 0.81) ** 0.5 * self.clip)):
            part = {n: g for n, g in grads.items() if n.startswith(layer)}
            factor = (bound / (row_norms(list(part.values())) + 1e-9)).clamp(max=1.0)
            sums |= {n: torch.einsum("i,i...", factor, g) for n, g in part.items()}
        return {n: sums[n] for n in grads}


class PublicPreconditioner(ByHand, kind="public-preconditioner-by-hand"):
    """Correct: rows are multiplied by a public diagonal before they are clipped, and the release by
    its inverse; the documented calls are at rows before clipping and at the noisy mean. Like DP
    second-order methods with public data (Ganesh et al., Private adaptive optimisation)."""

    def set_up(self):
        x, y = public_digits()
        params = list(self.net.parameters())
        found = torch.autograd.grad(functional.cross_entropy(self.net(x), y), params)
        self.scale = {
            n: 1 / (20 * g.abs() + 0.2) for (n, _), g in zip(self.net.named_parameters(), found)
        }

    def training_step(self, batch, batch_idx):
        grads = {n: g * self.scale[n] for n, g in self.sample_gradients(*batch).items()}
        sums = self.clipped_sums(lightning_audit.per_sample(grads, module=self))
        noisy = lightning_audit.released(self.noisy(sums), module=self)
        for n, p in self.net.named_parameters():
            p.grad = noisy[n] * self.scale[n]
        self.optimizers().step()


class AfterBackwardHook(BeforeStepHook, kind="automatic-after-backward-hook"):
    """Correct: as above, the noisy mean overwrites p.grad in on_after_backward, which follows every
    backward pass of automatic optimization. Like Lightning modules with DP in on_after_backward."""

    def on_before_optimizer_step(self, optimizer):
        pass

    def on_after_backward(self):
        self.write(self.clipped_sums(self.sample_gradients(*self.batch)))


class WrittenInHook(BeforeStepHook, kind="automatic-noisy-in-step-written-in-hook"):
    """Correct: training_step draws the noisy mean itself and keeps it, never the batch; the hook
    before the step writes it over the ordinary gradient. Like Lightning modules that split the
    mechanism so."""

    def training_step(self, batch, batch_idx):
        self.drawn = self.noisy(self.clipped_sums(self.sample_gradients(*batch)))
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer):
        for n, p in self.net.named_parameters():
            p.grad = self.drawn[n].clone()
