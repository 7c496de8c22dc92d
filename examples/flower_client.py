"""A Flower client whose rounds are audited together: three rounds of FedAvg on two clients.

    pip install flwr; python examples/flower_client.py [--report-dir demo/flower]

Each client has half of scikit-learn's digits, and a new model, optimizer and engine in each
round, as Flower's examples do. `lightning_audit.Rounds` composes the rounds of a client under one
claim; the two lines of the audit are marked. The server and its strategy are Flower's; its clients
run in this process.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lightning_audit

CLIENTS, ROUNDS, BATCH_SIZE = 2, 3, 32


def records(number: int) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    own = slice(number, None, CLIENTS)
    x = torch.tensor(images[own], dtype=torch.float32) / 16
    return TensorDataset(x, torch.tensor(labels[own]))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Client(NumPyClient):
    """Trains one epoch with DP-SGD in each round."""

    def __init__(self, number: int, report_dir: Path) -> None:
        self.data = records(number)
        self.rounds = lightning_audit.Rounds(  # <- the audit
            report_dir / f"client-{number}", claimed_epsilon=8.0, continue_accountant=True
        )

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        model = net()
        named = zip(model.state_dict(), map(torch.tensor, parameters), strict=True)
        model.load_state_dict(OrderedDict(named))
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
            data_loader=DataLoader(self.data, BATCH_SIZE),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        with self.rounds.round(private, optimizer, loader):  # <- the audit
            private.train()
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(private(x), y).backward()
                optimizer.step()
        weights = [value.numpy() for value in model.state_dict().values()]
        return weights, len(self.data), {}


class InThisProcess(ClientProxy):
    """A client that the server reaches without a network."""

    def __init__(self, cid: str, client: NumPyClient) -> None:
        super().__init__(cid)
        self.client = client.to_client()

    def fit(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        return self.client.fit(ins)

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        return self.client.evaluate(ins)

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        return self.client.get_parameters(ins)

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        return self.client.get_properties(ins)

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        return self.client.reconnect(ins)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report-dir", default="demo/flower", type=Path)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", module="opacus|torch")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.manual_seed(0)
    manager = SimpleClientManager()
    for number in range(CLIENTS):
        manager.register(InThisProcess(str(number), Client(number, options.report_dir)))
    first = [value.numpy() for value in net().state_dict().values()]
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_available_clients=CLIENTS,
        initial_parameters=flwr.common.ndarrays_to_parameters(first),
    )
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)
    server.fit(num_rounds=ROUNDS, timeout=None)
    reports = [
        lightning_audit.AuditReport.load(options.report_dir / f"client-{number}" / "report.json")
        for number in range(CLIENTS)
    ]
    for report in reports:
        said = report.verdict.outcome, report.steps, f"epsilon {report.epsilon_spent:.2f}"
        print("client:", *said)
    return int(any(report.verdict.outcome != "PASS" for report in reports))


if __name__ == "__main__":
    sys.exit(main())
