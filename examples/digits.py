"""Four trainings on scikit-learn's digits: a correct one, and three with a false privacy claim.

    python examples/digits.py [--report-dir demo] [--accelerator cpu]

Each is an ordinary Lightning training with Opacus plus one callback. The faults are small changes
to Opacus' optimizer, each of a kind that was found in real code:

- half noise: the noise has half the standard deviation that the accountant records;
- clip after averaging: the batch's mean gradient is clipped instead of each sample's;
- closure re-run: the closure is passed to the inner optimizer, which computes the gradient again
  without clipping and noise (opacus issue #313).

The exit code is 0 if the audit passes the first and refuses the others by name.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit import PrivacyAudit, Verdict

EPOCHS = 10
BATCH_SIZE = 64
CLAIMED_EPSILON, DELTA = 8.0, 1e-5


class Digits(pl.LightningModule):
    """A small convolutional net, trained with DP-SGD."""

    def __init__(self, optimizer_class: type[DPOptimizer] = DPOptimizer) -> None:
        super().__init__()
        self.optimizer_class = optimizer_class
        self.net: nn.Module = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def training_step(self, batch, _):
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def _loader(self) -> DataLoader:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        return DataLoader(TensorDataset(images, torch.tensor(digits.target)), BATCH_SIZE)

    def train_dataloader(self) -> DPDataLoader:
        return DPDataLoader.from_data_loader(self._loader())

    def configure_optimizers(self) -> DPOptimizer:
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.5),
            data_loader=self._loader(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        if self.optimizer_class is DPOptimizer:
            return optimizer
        faulty = self.optimizer_class(
            optimizer.original_optimizer,
            noise_multiplier=optimizer.noise_multiplier,
            max_grad_norm=optimizer.max_grad_norm,
            expected_batch_size=optimizer.expected_batch_size,
        )
        faulty.attach_step_hook(optimizer.step_hook)  # the accountant sees no difference
        return faulty


class HalfNoise(DPOptimizer):
    """Adds half the noise that it states."""

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = 0.5 * stated
        super().add_noise()
        self.noise_multiplier = stated


class ClipAfterAveraging(DPOptimizer):
    """Clips the mean of the batch's gradients, as hand-written DP-SGD often does."""

    def clip_and_accumulate(self) -> None:
        means = [g.sum(0) / max(len(g), 1) for g in self.grad_samples]
        norm = torch.stack([mean.norm() for mean in means]).norm()
        factor = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for p, mean in zip(self.params, means, strict=True):
            p.summed_grad = mean * factor * self.expected_batch_size


class RunsClosureAgain(DPOptimizer):
    """Passes the closure to the inner optimizer, which computes the gradient again."""

    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        if self.pre_step():
            return self.original_optimizer.step(closure)
        return None


RUNS: dict[str, tuple[type[DPOptimizer], str]] = {
    "correct": (DPOptimizer, ""),
    "half noise": (HalfNoise, "noise scale too small"),
    "clip after averaging": (ClipAfterAveraging, "clipping after averaging"),
    "closure re-run": (RunsClosureAgain, "gradient replaced"),
}


def train(name: str, report_dir: Path, seed: int = 1, accelerator: str = "cpu") -> Verdict:
    """Train one of `RUNS` under audit; return the verdict."""
    pl.seed_everything(seed, verbose=False)
    # By default a training stops after the step that shows a violation, and raises an exception.
    # With on_violation="warn" the faulty ones continue for an epoch, so that reports are complete.
    audit = PrivacyAudit(
        claimed_epsilon=CLAIMED_EPSILON,
        delta=DELTA,
        on_violation="warn",
        report_dir=report_dir,
        seed=seed,
    )
    trainer = pl.Trainer(
        max_epochs=EPOCHS if name == "correct" else 1,
        callbacks=[audit],
        accelerator=accelerator,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print(f"\n=== {name} ===", flush=True)
    trainer.fit(Digits(RUNS[name][0]))
    return audit.report.verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report-dir", type=Path, default=Path("demo"))
    parser.add_argument("--accelerator", default="cpu", help="of the Trainer: auto, cpu, cuda, mps")
    options = parser.parse_args()
    folder = options.report_dir
    torch.set_num_threads(1)  # the net is too small for more
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_audit").setLevel(logging.CRITICAL)  # the reports have everything
    # Opacus and Lightning warn about loaders, hooks and secure mode, which is irrelevant here.
    warnings.filterwarnings("ignore", module="opacus|pytorch_lightning|torch|lightning_utilities")

    wrong = 0
    table = Table("training", "verdict", "likely fault", "first seen", box=box.ASCII2)
    for name, (_, fault) in RUNS.items():
        verdict = train(name, folder / name.replace(" ", "-"), accelerator=options.accelerator)
        expected = "VIOLATION" if fault else "PASS"
        wrong += verdict.outcome != expected or not verdict.fault.startswith(fault)
        found, root = verdict.fault.partition(":")[0], verdict.root
        step = "" if root is None or root.place.step is None else f"step {root.place.step + 1}"
        table.add_row(name, verdict.outcome, found, step)
    print(flush=True)
    Console(width=80).print(table)
    print(f"{'all as expected' if not wrong else f'{wrong} not as expected'}; ", end="")
    print(f"open {folder / 'half-noise' / 'report.html'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
