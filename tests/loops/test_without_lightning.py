"""Everything but the callbacks works where Lightning is not installed."""

import os
import subprocess
import sys
from pathlib import Path

from places import REPOSITORY

#: Refuses every import of Lightning, as if no package of it were installed.
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCK + script],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{cwd}:{REPOSITORY}", "OMP_NUM_THREADS": "1"},
    )
    assert not {"lightning", "pytorch_lightning"} & {*done.stdout.split()}
    return done


LOADED = "print(*{name.partition('.')[0] for name in sys.modules})\n"


def test_root_package_statistics_and_gate_and_what_a_callback_says_to_install(tmp_path):
    done = run(
        "import lightning_audit\n"
        "from lightning_audit.stats.one_run import epsilon_one_run\n"
        "from lightning_audit.cli.main import main\n"
        "lightning_audit.AuditReport, lightning_audit.PrivacyClaim, lightning_audit.attach\n"
        "lightning_audit.Rounds, lightning_audit.audit_mechanism, lightning_audit.per_sample\n"
        "try:\n    main(['check', 'nothing'])\nexcept SystemExit as done:\n    print(done.code)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not {'lightning', 'pytorch_lightning'} & loaded\n"
        "for name in ('PrivacyAudit', 'Examination', 'EpsilonStar'):\n"
        "    try:\n        getattr(lightning_audit, name)\n"
        "    except ImportError as error:\n        print(error)\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for said in (
        "needs PyTorch Lightning, which is not installed",
        "pip install '.[lightning]' in the checkout of lightning-audit",
        "lightning_audit.attach audits a loop without it",
    ):
        assert done.stdout.count(said) == 3


LOOP = """
import torch
torch.set_num_threads(1)
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
import lightning_audit

class HalfNoise(DPOptimizer):
    def add_noise(self):
        self.noise_multiplier = 0.5
        super().add_noise()
        self.noise_multiplier = 1.0

for kind in (None, HalfNoise):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 8), torch.randint(0, 10, (512,)))
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        data_loader=DataLoader(data, 16), noise_multiplier=1.0, max_grad_norm=1.0)
    if kind:
        optimizer.__class__ = kind
    try:
        with lightning_audit.attach(model, optimizer, loader, 50.0, seed=1) as audit:
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
    except lightning_audit.PrivacyViolation as error:
        print("raised", error.report.steps, error.report.verdict.fault)
    print("verdict", audit.report.verdict.outcome)
"""


def test_a_plain_loop_is_audited(tmp_path):
    done = run(LOOP + LOADED, tmp_path)
    assert done.returncode == 0, done.stderr
    # Typed into `python -c`, the loop has no source.
    assert "verdict INCONCLUSIVE" in done.stdout
    assert "raised 1 noise scale too small" in done.stdout
    assert "verdict VIOLATION" in done.stdout


def test_a_plain_loop_of_a_file_passes(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP.replace("(None, HalfNoise)", "(None,)"))
    done = run("import loop\n" + LOADED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict PASS" in done.stdout
