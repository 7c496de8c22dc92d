"""Two audited epochs of an installed package, for `make dist`; fails if it is a checkout.

cd ELSEWHERE; python REPOSITORY/tests/support/installed.py
"""

from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lightning_audit

EPOCHS = 2


def main() -> None:
    assert "site-packages" in Path(lightning_audit.__file__).parts, lightning_audit.__file__
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 8), torch.randint(2, (1024,)))
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=1.5,
        max_grad_norm=1.0,
    )
    with lightning_audit.attach(model, optimizer, loader, report_dir="audit") as audit:
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
    assert Path("audit/report.html").is_file()


if __name__ == "__main__":
    main()
