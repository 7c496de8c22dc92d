"""One of two processes that train in a plain loop: its arguments are folder and fault."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed
from torch.nn import functional
from torch.utils.data import DataLoader
from training_support import mlp, random_data

from lightning_audit import PrivacyViolation, attach
from lightning_audit.testing.faults import plant

EPOCHS = 3


def train(directory: Path, rank: int, fault: str) -> dict[str, object]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    net = mlp()
    torch.manual_seed(100 + rank)  # batches of their own
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=DifferentiallyPrivateDistributedDataParallel(net),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        data_loader=DataLoader(random_data(), 16),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    if fault != "none":
        optimizer = plant(optimizer, fault)
    raised = ""
    report_dir = directory / "audit"
    try:
        allow = ["opacus_defects"]  # a batch of a process may be empty
        with attach(
            model, optimizer, loader, 50.0, seed=1, report_dir=report_dir, allow=allow
        ) as audit:
            model.train()
            for _ in range(EPOCHS):
                for x, y in loader:
                    optimizer.zero_grad()
                    functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
    except PrivacyViolation:
        raised = "PrivacyViolation"
    digest = [float(p.detach().double().sum()) for p in model.parameters()]
    return {"report": json.loads(audit.report.to_json()), "raised": raised, "digest": digest}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    where, number = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    (where / f"rank-{number}.json").write_text(json.dumps(train(where, number, sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # threads of gloo can abort an interpreter that ends
