"""Audits the final models of many trainings on this machine, a Ray cluster or a Dask cluster.

python examples/past_one_machine.py --engine local --trainings 60
python examples/past_one_machine.py --engine ray --address auto --gpus 1 --trainings 10000 \
    --width 4096 --records 1000

The same command continues its store, and `lightning-audit status audit-many` prints how far it is.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from lightning_audit import PrivacyClaim, audit_training
from lightning_audit.many import LocalProcesses, opacus_training

warnings.filterwarnings("ignore", module="opacus|torch")
CLAIMED_NOISE, STEPS = 5.0, 20


@dataclass(frozen=True)
class Training:
    """A training on the GPU of its worker, or on its CPU if it has none.

    Args:
        width: of the hidden layer.
        noise: noise multiplier.
        records: number by which the sum of a batch is divided.
    """

    width: int
    noise: float
    records: int

    def __call__(self, dataset: tuple[torch.Tensor, torch.Tensor], seed: int) -> nn.Module:
        """Return the trained model; the worker computes its score, and sends only that."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        train = opacus_training(
            lambda: self.make_model().to(device),
            lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            noise_multiplier=self.noise,
            max_grad_norm=1.0,
            sample_rate=1.0,
            expected_batch_size=self.records,
            steps=STEPS,
        )
        return train(tuple(part.to(device) for part in dataset), seed)

    def make_model(self) -> nn.Module:
        """Return a model at a known start: random initial weights would hide the canary."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(64, self.width), nn.Tanh(), nn.Linear(self.width, 10))


def engine_of(options: argparse.Namespace) -> Any:
    if options.engine == "ray":
        from lightning_audit.many import RayEngine

        return RayEngine(options.address, num_gpus=options.gpus)
    if options.engine == "dask":
        from distributed import Client

        from lightning_audit.many import DaskEngine

        here = {"n_workers": options.workers, "threads_per_worker": 1}
        return DaskEngine(Client(options.address) if options.address else Client(**here))
    return LocalProcesses(options.workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--engine", choices=("local", "ray", "dask"), default="local")
    add("--address", help="of the cluster; none to start Ray or Dask on this machine")
    add("--gpus", type=float, default=0.0, help="GPUs of a training on Ray, such as 1 or 0.25")
    add("--workers", type=int, default=2, help="processes, without a cluster")
    add("--trainings", type=int, default=60)
    add("--width", type=int, default=32, help="of the hidden layer")
    add("--records", type=int, default=100)
    add("--noise", type=float, default=CLAIMED_NOISE, help="noise that is added")
    add("--store", default="audit-many", help="folder on a disk of this machine")
    options = parser.parse_args()
    digits = load_digits()
    inputs = torch.tensor(digits.data[: options.records] / 16, dtype=torch.float32)
    audit = audit_training(
        Training(options.width, options.noise, options.records),
        (inputs, torch.tensor(digits.target[: options.records])),
        PrivacyClaim(noise_multiplier=CLAIMED_NOISE, sample_rate=1.0, steps=STEPS, delta=1e-5),
        trainings=options.trainings,
        engine=engine_of(options),
        block=1,  # each training is stored at its end
        store=options.store,
    )
    sys.exit(0 if audit.verdict.outcome != "VIOLATION" else 1)


if __name__ == "__main__":
    main()
