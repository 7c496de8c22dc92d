"""A session over Opacus' optimizer without a Trainer, whose data have no gradient and no noise."""

from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Dirac, GradientCanary, Spread
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.opacus import OpacusStep
from lightning_audit.dpsgd.protocol import Backward, StepClaim
from lightning_audit.session.begin import begin_session
from lightning_audit.session.planner import Ranks


class KeptEntries(list[Any]):
    """In the place of a record on disk."""

    @property
    def entries(self) -> int:
        return len(self)

    def flush(self) -> None:
        pass


class BareSession:
    """What is read along a canary is its coin, and nothing else."""

    def __init__(
        self,
        canaries: tuple[GradientCanary, ...] = (Dirac(), Spread()),
        every_n_steps: int | None = 1,
        **audit_arguments: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = GradSampleModule(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        self.optimizer = self.new_optimizer()
        self.kept = KeptEntries()
        asked = {"canaries": canaries, "every_n_steps": every_n_steps, **audit_arguments}
        audit = PrivacyAudit(seed=1, **asked)
        self.session = begin_session(
            OpacusStep(self.optimizer, {}, self.net.modules()),
            audit.config,
            np.random.default_rng(1),
            lambda batches: None,
            lambda header: self.kept,
            Ranks(),
        )

    def new_optimizer(self) -> DPOptimizer:
        return DPOptimizer(
            torch.optim.SGD(self.net.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=2.0,
            expected_batch_size=4,
        )

    def backward(self, *, announced: bool = True) -> None:
        """A batch up to its per-sample gradients."""
        self.session.start_batch()
        loss = (self.net(torch.ones(5, 4)) * 0.0).sum()
        if announced:
            self.session.prepare(Backward(loss))
        loss.backward()
        self.session.conceal()

    def step(self) -> None:
        self.session.inject()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: int, *, announced: bool = True) -> None:
        for _ in range(steps):
            self.backward(announced=announced)
            self.step()

    def column(self, name: str) -> np.ndarray:
        """A field of all entries so far."""
        self.session.recorder.digest()
        return np.concatenate([getattr(seen, name) for seen in self.kept])


class BareByHand:
    """The same for a plain optimizer whose gradients are clipped and averaged by hand."""

    CLIP, BATCH = 2.0, 4

    def __init__(self, **audit_arguments: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.kept = KeptEntries()
        names = {id(p): name for name, p in self.net.named_parameters()}
        asked = {"canaries": (Dirac(), Spread()), "every_n_steps": 1, **audit_arguments}
        self.session = begin_session(
            ManualStep(self.optimizer, names, StepClaim(0.0, self.CLIP, self.BATCH)),
            PrivacyAudit(seed=1, **asked).config,
            np.random.default_rng(1),
            lambda batches: None,
            lambda header: self.kept,
            Ranks(),
        )

    def sample_gradients(self) -> dict[str, torch.Tensor]:
        """Of a batch of five samples, none of which has a gradient."""
        return {name: torch.zeros(5, *p.shape) for name, p in self.net.named_parameters()}

    def clipped_mean(self, grads: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (self.CLIP / norms.clamp(min=1e-9)).clamp(max=1.0)
        return {n: torch.einsum("i,i...", factors, g) / self.BATCH for n, g in grads.items()}

    def update(self, gradient: dict[str, torch.Tensor]) -> None:
        for name, p in self.net.named_parameters():
            p.grad = gradient[name]
        self.optimizer.step()

    def column(self, name: str) -> np.ndarray:
        """A field of all entries so far."""
        self.session.recorder.digest()
        return np.concatenate([getattr(seen, name) for seen in self.kept])
