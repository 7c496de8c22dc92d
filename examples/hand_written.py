"""Hand-written DP-SGD in three ways, each audited on scikit-learn's digits.

    python examples/hand_written.py [--report-dir demo/hand-written] [--accelerator cpu]

- vmap: stacked per-sample gradients by torch.func, in manual optimization;
- one by one: a loop over the samples of a batch, in manual optimization;
- own optimizer: a subclass of torch's SGD that clips and adds noise inside its step.

Each states its mechanism in a `PrivacyClaim` and requests the canaries in one line, marked
"<- the audit". The exit code is 0 if the audit passes all three.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import TensorDataset

import lightning_audit
from lightning_audit import PrivacyAudit, PrivacyClaim, PrivacyViolation

EPOCHS = 3
RECORDS, BATCH_SIZE = 1797, 64
NOISE_MULTIPLIER, MAX_GRAD_NORM = 1.0, 1.0
LEARNING_RATE = 0.5

CLAIM = PrivacyClaim(
    epsilon=8.0,
    delta=1e-5,
    noise_multiplier=NOISE_MULTIPLIER,
    max_grad_norm=MAX_GRAD_NORM,
    expected_batch_size=BATCH_SIZE,
    sample_rate=BATCH_SIZE / RECORDS,
)

Gradients = dict[str, torch.Tensor]


def sample_gradients(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """Return per-sample gradients by parameter name, ``[B, *shape]``."""

    def loss(params: Gradients, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(net, params, image.unsqueeze(0))
        return functional.cross_entropy(logits, label.unsqueeze(0))

    params = {name: p.detach() for name, p in net.named_parameters()}
    return vmap(grad(loss), in_dims=(None, 0, 0))(params, images, labels)


def clip_factors(norms: torch.Tensor) -> torch.Tensor:
    return (MAX_GRAD_NORM / (norms + 1e-6)).clamp(max=1.0)


def clipped_sums(grads: Gradients) -> Gradients:
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = clip_factors(norms)
    return {name: torch.einsum("i,i...", factors, g) for name, g in grads.items()}


def noisy_mean(total: torch.Tensor) -> torch.Tensor:
    noise = NOISE_MULTIPLIER * MAX_GRAD_NORM * torch.randn_like(total)
    return (total + noise) / BATCH_SIZE  # the expected batch size, not the actual one


class Digits(pl.LightningModule):
    """A small net, with Poisson batches of the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def train_dataloader(self) -> DPDataLoader:
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
        return DPDataLoader(data, sample_rate=BATCH_SIZE / RECORDS)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class ByVmap(Digits):
    """Stacked per-sample gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        grads = sample_gradients(self.net, *batch)
        grads = lightning_audit.per_sample(grads, module=self)  # <- the audit
        for name, total in clipped_sums(grads).items():
            self.net.get_parameter(name).grad = noisy_mean(total)
        self.optimizers().step()


class OneByOne(Digits):
    """One sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        params = dict(self.net.named_parameters())
        sums = {name: torch.zeros_like(p) for name, p in params.items()}

        def add_clipped(grads: Gradients) -> None:
            norm = torch.stack([g.norm() for g in grads.values()]).norm()
            for name, g in grads.items():
                sums[name] += clip_factors(norm) * g

        for image, label in zip(*batch, strict=True):
            loss = functional.cross_entropy(self.net(image.unsqueeze(0)), label.unsqueeze(0))
            grads = torch.autograd.grad(loss, list(params.values()))
            add_clipped(dict(zip(params, grads, strict=True)))
        for canary in lightning_audit.rows(module=self.net):  # <- the audit
            add_clipped(canary)
        for name, p in params.items():
            p.grad = noisy_mean(sums[name])
        self.optimizers().step()


class PrivateSGD(torch.optim.SGD):
    """Clips each parameter's ``grad_sample``, adds noise, then calls SGD's own step.

    The audit reads the gradient in that step, so the update must not happen before it.
    """

    def __init__(self, net: nn.Module, lr: float) -> None:
        super().__init__(net.parameters(), lr=lr)
        self.net = net

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        grads = {name: p.grad_sample for name, p in self.net.named_parameters()}
        grads = lightning_audit.per_sample(grads, module=self.net)  # <- the audit
        for name, total in clipped_sums(grads).items():
            self.net.get_parameter(name).grad = noisy_mean(total)
        super().step()
        return loss


class OwnOptimizer(Digits):
    """Automatic optimization; Lightning needs the loss, whose gradient is replaced."""

    def training_step(self, batch, _):
        for name, samples in sample_gradients(self.net, *batch).items():
            self.net.get_parameter(name).grad_sample = samples
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels, reduction="sum")

    def configure_optimizers(self) -> PrivateSGD:
        return PrivateSGD(self.net, lr=LEARNING_RATE)


RUNS = {"vmap": ByVmap, "one by one": OneByOne, "own optimizer": OwnOptimizer}


def train(name: str, report_dir: Path, accelerator: str = "cpu") -> str:
    """Train one of `RUNS` under audit; return the outcome."""
    pl.seed_everything(1, verbose=False)
    audit = PrivacyAudit(claim=CLAIM, report_dir=report_dir, seed=1)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        callbacks=[audit],
        accelerator=accelerator,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print(f"\n=== {name} ===", flush=True)
    try:
        trainer.fit(RUNS[name]())
    except PrivacyViolation as violation:
        return violation.report.verdict.outcome
    return audit.report.verdict.outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report-dir", type=Path, default=Path("demo/hand-written"))
    parser.add_argument("--accelerator", default="cpu", help="of the Trainer: auto, cpu, cuda, mps")
    options = parser.parse_args()
    folder = options.report_dir
    torch.set_num_threads(1)  # the net is too small for more
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    # Lightning warns about loaders and workers, which is irrelevant here.
    warnings.filterwarnings("ignore", module="opacus|pytorch_lightning|torch|lightning_utilities")
    outcomes = {
        name: train(name, folder / name.replace(" ", "-"), options.accelerator) for name in RUNS
    }
    print("\n=== summary ===", *(f"  {n:<16}{found}" for n, found in outcomes.items()), sep="\n")
    return int(set(outcomes.values()) != {"PASS"})


if __name__ == "__main__":
    sys.exit(main())
