"""Time of an audited step over an unaudited one, with two processes (gloo)."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from overhead import NETS, Alternate
from pytorch_lightning.strategies import DDPStrategy
from support import Classifier, quiet
from torch.utils.data import ConcatDataset, DataLoader

from lightning_audit import PrivacyAudit

#: Total over both processes.
BATCH_SIZES = (128, 512)


class _Distributed(Classifier):
    """The classifier of the other benchmarks, in two processes."""

    def train_dataloader(self):
        """Return a loader of Poisson batches from this process's share of the records."""
        loader = DataLoader(self.data, self.batch_size)
        return DPDataLoader.from_data_loader(loader, distributed=True)

    def configure_optimizers(self):
        """Return the optimizer that sums the gradients of both processes."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=DifferentiallyPrivateDistributedDataParallel(self.net),
            optimizer=self.make_optimizer(self.net.parameters(), lr=self.learning_rate),
            data_loader=DataLoader(self.data, self.batch_size),
            **self.options,
        )
        return optimizer


def _train(name: str, batch_size: int, steps: int) -> None:
    """Train in one of the two processes, and print the ratio of the median times."""
    quiet()
    make, data = NETS[name]
    torch.manual_seed(0)
    # Long epochs, because `epoch_cost` measures the end of an epoch.
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=0)
        # Both processes switch in the same steps.
        clock = Alternate(audit)
        pl.Trainer(
            max_steps=steps,
            max_epochs=-1,
            callbacks=[audit, clock],
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo"),
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(_Distributed(make(), ConcatDataset([data()] * 16), batch_size=batch_size))
    off, on = (statistics.median(clock.seconds[kind][10:]) for kind in ("off", "on"))
    print(json.dumps({"ratio": on / off}), flush=True)


def ratio(name: str, batch_size: int, steps: int) -> float:
    """Start two processes; return the first one's median step time, audited over unaudited."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = [
        subprocess.Popen(
            [sys.executable, __file__, name, str(batch_size), str(steps)],
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "NODE_RANK": "0",
                "LOCAL_RANK": str(rank),
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said, _ = both[0].communicate(timeout=900)
    finally:
        for process in both:
            process.kill()
            process.wait()
    return float(json.loads(said.splitlines()[-1])["ratio"])


def run(steps: int = 800) -> dict[str, object]:
    """Return ratios of median step times for two nets and two batch sizes."""
    return {
        f"{name}, batch {size}, median": round(
            ratio(name, size, steps if size == BATCH_SIZES[0] else steps // 2), 3
        )
        for name in NETS
        for size in BATCH_SIZES
    }


if __name__ == "__main__":
    _train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
