"""Own optimizers: inner ones, and own clip_and_accumulate, pre_step, add_noise or step."""

import torch
from correct_kinds.base import Manual, Private
from correct_kinds.data import flat_digits, public_digits
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise
from torch.nn import functional

from public_kinds.base import add_clipped, mlp, row_norms


class Digits(Private):
    def make_net(self):
        return mlp(64, 16, 10)

    def make_data(self):
        return flat_digits()


class AdamBC(torch.optim.Optimizer):
    """Adam whose second moment is corrected by the known variance of the noise."""

    def __init__(self, params, lr, variance):
        super().__init__(params, {"lr": lr, "variance": variance})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                s["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                m, v = s["m"] / (1 - 0.9 ** s["t"]), s["v"] / (1 - 0.99 ** s["t"])
                p.sub_(group["lr"] * m / (v - group["variance"]).clamp(min=5e-4).sqrt())


class DPAdamBC(Digits, kind="dp-adambc"):
    """Correct: Adam without the noise's bias, from the noisy gradient and constants alone. Like
    ubc-systopia/DP-AdamBC."""

    def inner(self, params):
        return AdamBC(params, lr=0.01, variance=(1.0 / 23) ** 2)


class PSACOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        norms, r = row_norms(self.grad_samples), 0.1
        add_clipped(self, self.max_grad_norm / (norms + r / (norms + r)))


class PSAC(Digits, kind="dp-psac-nonmonotonic-weights"):
    """Correct: g C / (|g| + r / (|g| + r)) is never longer than C. Like DP-PSAC (Xia et al. 2023)
    and DPNSGD_Optimizer in public Opacus subclasses."""

    private = PSACOptimizer


class GlobalOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        norms, z = row_norms(self.grad_samples), 10.0
        add_clipped(self, torch.where(norms <= z, self.max_grad_norm / z, 0.0))


class Global(Digits, kind="dpsgd-global-discards"):
    """Correct: gradients up to Z = 10 are scaled by C / Z, longer ones dropped, so none is longer
    than C. Like DPSGD-Global (Bu et al. 2021) in layer6ai-labs/fair-dp."""

    private = GlobalOptimizer


class GlobalAdaptOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        norms, z = row_norms(self.grad_samples), 10.0
        c = self.max_grad_norm
        add_clipped(self, torch.where(norms <= z, c / z, c / (norms + 1e-6)))


class GlobalAdapt(Digits, kind="dpsgd-global-adapt-fixed-z"):
    """Correct: up to Z scaled by C / Z, longer ones clipped to C. Like DPSGD-Global-Adapt (Esipova
    et al.) with a constant Z."""

    private = GlobalAdaptOptimizer


class LookaheadOptimizer(DPOptimizer):
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        if not hasattr(self, "slow"):
            self.slow, self.t = [p.detach().clone() for p in self.params], 0
        if not self.pre_step():
            return None
        self.original_optimizer.step()
        self.t += 1
        if self.t % 5 == 0:
            for p, slow in zip(self.params, self.slow):
                slow.lerp_(p.detach(), 0.5)
                p.data.copy_(slow)
        return None


class Lookahead(Digits, kind="lookahead-in-step"):
    """Correct: each fifth step moves slow weights towards the released ones. Like
    lonePatient/lookahead_pytorch around Opacus' DPOptimizer, in an own step."""

    private = LookaheadOptimizer


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["m"].lerp_(p.grad, 0.1)
                s["v"].lerp_(p.grad.square(), 0.01)
                update = s["m"] / (s["v"].sqrt() + 1e-3) + 0.01 * p
                trust = (p.norm() / update.norm()).clamp(0.01, 1.0)
                p.add_(update, alpha=-group["lr"] * trust.item())


class LambInside(Digits, kind="lamb-trust-ratio"):
    """Correct: trust ratios of weights and noisy updates are post-processing. Like
    cybertronai/pytorch-lamb inside make_private."""

    def inner(self, params):
        return Lamb(params, lr=0.1)


class DiSKOptimizer(DPOptimizer):
    """Kalman filter of noisy gradients; weights are left at the point of the next gradient."""

    kappa = 0.7

    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        if not self.pre_step():
            return None
        if not hasattr(self, "ahead"):
            self.ahead = [torch.zeros_like(p) for p in self.params]
            self.filtered = [p.grad.clone() for p in self.params]
        before = []
        for p, ahead, m in zip(self.params, self.ahead, self.filtered):
            p.data.sub_(ahead)
            before.append(p.detach().clone())
            m.lerp_(p.grad, self.kappa)
            p.grad.copy_(m)
        self.original_optimizer.step()
        gamma = (1 - self.kappa) / self.kappa
        for p, old, ahead in zip(self.params, before, self.ahead):
            ahead.copy_(gamma * (p.detach() - old))
            p.data.add_(ahead)
        return None


class DiSK(Digits, kind="disk-kalman-filter"):
    """Correct: one gradient a record at a point ahead that released weights decide; filters noisy
    gradients. Like pytorch/opacus' KF_DPOptimizer (DiSK, Zhang et al. 2024), simplified case."""

    private = DiSKOptimizer


class SubspaceOptimizer(DPOptimizer):
    """Embeds rows in a public subspace, clips there, adds noise there, and maps back."""

    def clip_and_accumulate(self):
        flat = torch.cat([g.reshape(len(g), -1) for g in self.grad_samples], dim=1)
        codes = flat @ self.basis
        codes = codes * (self.max_grad_norm / (codes.norm(dim=1) + 1e-6)).clamp(max=1.0)[:, None]
        back = codes.sum(0) @ self.basis.T
        for p, part in zip(self.params, back.split([p.numel() for p in self.params])):
            p.summed_grad = part.view_as(p)

    def add_noise(self):
        code = self.noise_multiplier * self.max_grad_norm * torch.randn(self.basis.shape[1])
        noise = self.basis @ code
        for p, part in zip(self.params, noise.split([p.numel() for p in self.params])):
            p.grad = p.summed_grad + part.view_as(p)


class Subspace(Digits, kind="gep-noise-in-subspace"):
    """Correct: rows are projected on 40 public orthonormal directions and clipped there; noise of
    sigma C in these coordinates is the Gaussian mechanism, nothing is released outside of the
    subspace. Like dayu11/Gradient-Embedding-Perturbation without residuals."""

    private = SubspaceOptimizer

    def configure_optimizers(self):
        x, y = public_digits(40)
        params = list(self.net.parameters())
        rows = []
        for i in range(40):
            found = torch.autograd.grad(
                functional.cross_entropy(self.net(x[i : i + 1]), y[i : i + 1]), params
            )
            rows.append(torch.cat([g.flatten() for g in found]))
        optimizer = super().configure_optimizers()
        optimizer.basis = torch.linalg.qr(torch.stack(rows, dim=1))[0]
        return optimizer


class ProjectedOptimizer(DPOptimizer):
    def add_noise(self):
        super().add_noise()
        flat = torch.cat([p.grad.flatten() for p in self.params])
        flat = self.basis @ (self.basis.T @ flat)
        for p, part in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad = part.view_as(p).clone()


class Projected(Subspace, kind="pdp-sgd-projected-after-noise"):
    """Correct: noise in all coordinates, then a projection on public directions, inside
    add_noise. Like PDP-SGD (Zhou et al. 2021, bypassing the ambient dimension)."""

    private = ProjectedOptimizer


class RandomFreeze(Digits, kind="random-freeze-noise-on-mask"):
    """Correct: coordinates outside of a mask that is drawn without the data are zeroed in each row
    before clipping, and get no noise as nothing is released there. Like "scalable DP with sparse
    network finetuning" and RandomFreeze (Luo et al. 2021)."""

    class private(DPOptimizer):
        def clip_and_accumulate(self):
            self.masks = [(torch.rand_like(p) < 0.5).float() for p in self.params]
            for p, mask in zip(self.params, self.masks):
                p.grad_sample = p.grad_sample * mask
            DPOptimizer.clip_and_accumulate(self)

        def add_noise(self):
            DPOptimizer.add_noise(self)
            for p, mask in zip(self.params, self.masks):
                p.grad *= mask


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).add_(
                    (0.9 * m + 0.1 * p.grad).sign(), alpha=-group["lr"]
                )
                m.lerp_(p.grad, 0.01)


class LionInside(Digits, kind="lion-sign-momentum"):
    """Correct: signs of interpolated noisy gradients. Like lucidrains/lion-pytorch inside
    make_private."""

    def inner(self, params):
        return Lion(params, lr=0.003)


class DimensionOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        total = sum(p.numel() for p in self.params)
        for p in self.params:
            rows = self._get_flat_grad_sample(p)
            bound = self.max_grad_norm * (p.numel() / total) ** 0.5
            factor = (bound / (rows.reshape(len(rows), -1).norm(dim=1) + 1e-6)).clamp(max=1.0)
            p.summed_grad = torch.einsum("i,i...", factor, rows)


class ByDimension(Digits, kind="clip-by-share-of-dimensions"):
    """Correct: each tensor is clipped to C times the root of its share of the dimensions; the
    squares add up to C^2. Like McMahan et al. 2018's per-layer budgets in a flat Opacus
    optimizer."""

    private = DimensionOptimizer


class SAT(Manual, kind="dp-sat-perturbed-weights"):
    """Correct: gradients are taken at weights moved along the last noisy gradient, then the weights
    are moved back before the step. Like jinseongP/DPSAT."""

    make_net, make_data = Digits.make_net, Digits.make_data

    def set_up(self):
        self.last = None

    def training_step(self, batch, batch_idx):
        optimizer, moved = self.optimizers(), None
        optimizer.zero_grad()
        params = list(self.net.parameters())
        if self.last is not None:
            norm = torch.cat([g.flatten() for g in self.last]).norm()
            moved = [0.05 * g / norm for g in self.last]
            for p, m in zip(params, moved):
                p.data.add_(m)
        self.manual_backward(functional.cross_entropy(self.net(batch[0]), batch[1]))
        if moved:
            for p, m in zip(params, moved):
                p.data.sub_(m)
        optimizer.step()
        self.last = [p.grad.clone() for p in params]


class SideInformationOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        for p, a in zip(self.params, self.scale):
            p.grad_sample = p.grad_sample / a
        super().clip_and_accumulate()


class AdaDPS(Digits, kind="adadps-side-information"):
    """Correct: rows are divided by public root mean squares before clipping, so C and sigma hold in
    these units. Like litian96/AdaDPS with public data."""

    private = SideInformationOptimizer

    def configure_optimizers(self):
        x, y = public_digits()
        params = list(self.net.parameters())
        found = torch.autograd.grad(functional.cross_entropy(self.net(x), y), params)
        optimizer = super().configure_optimizers()
        optimizer.scale = [g.square().mean().sqrt() * 20 + 0.1 for g in found]
        return optimizer


class Scheduled(Manual, kind="exponential-noise-scheduler"):
    """Correct: sigma decays by the public schedule of Opacus, and its accountant records each step
    with the sigma of that step. Like Opacus' ExponentialNoise scheduler."""

    make_net, make_data, sigma = Digits.make_net, Digits.make_data, 1.5

    def loss(self, batch):
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.noise_schedule = ExponentialNoise(optimizer, gamma=0.995)
        return optimizer

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.noise_schedule.step()


class LowPass(Digits, kind="doppler-low-pass"):
    """Correct: noisy gradients are filtered over steps in an own scale_grad, after the noise. Like
    DOPPLER (Zhang et al. 2024)."""

    class private(DPOptimizer):
        def scale_grad(self):
            DPOptimizer.scale_grad(self)
            old = self.__dict__.setdefault("old", [torch.zeros_like(p) for p in self.params])
            for p, m in zip(self.params, old):
                m.mul_(0.8).add_(p.grad, alpha=0.2)
                p.grad = m.clone()
