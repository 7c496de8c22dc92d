"""Own optimizers: inner ones, and own clip_and_accumulate, pre_step, add_noise or step."""

import torch
from correct_kinds.base import Manual, Private, row_norms
from correct_kinds.data import public_digits
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from public_kinds.base import add_clipped


class GlobalOptimizer(DPOptimizer):
    def clip_and_accumulate(self):
        norms, z = row_norms(self.grad_samples), 10.0
        add_clipped(self, torch.where(norms <= z, self.max_grad_norm / z, 0.0))


class Global(Private, kind="dpsgd-global-discards"):
    """Correct: gradients up to Z = 10 are scaled by C / Z, longer ones dropped, so none is longer
    than C. Like DPSGD-Global (Bu et al. 2021) in layer6ai-labs/fair-dp."""

    private = GlobalOptimizer


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


class Lookahead(Private, kind="lookahead-in-step"):
    """Correct: each fifth step moves slow weights towards the released ones. Like
    lonePatient/lookahead_pytorch around Opacus' DPOptimizer, in an own step."""

    private = LookaheadOptimizer


class Subspace(Private):
    """An optimizer that knows public orthonormal directions."""

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


class SAT(Manual, kind="dp-sat-perturbed-weights"):
    """Correct: gradients are taken at weights moved along the last noisy gradient, then the weights
    are moved back before the step. Like jinseongP/DPSAT."""

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


class AdaDPS(Private, kind="adadps-side-information"):
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
