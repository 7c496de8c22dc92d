"""Trains a fault of the registry under audit, in one or several processes.

**Train a fault in several processes: start them, wait for them, and read their report.** Each
process runs `python -m lightning_audit.testing.runs`, reads its job from standard input, and
ends when that is closed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.testing.fault import Fault, lightning

# --- Train a fault in several processes: start them, wait for them, and read their report.

#: Time limit of a training, in seconds.
_LIMIT = 240.0
#: Characters of a process's log that an error shows.
_SHOWN = 2000


def train_together(
    fault: Fault,
    directory: str | os.PathLike[str],
    seed: int = 0,
    audit: type[PrivacyAudit] = PrivacyAudit,
) -> AuditReport:
    """Train a fault in several processes, on the CPUs of this machine.

    Args:
        fault: the fault to train; its ``processes`` is their number.
        directory: for the audit's report and record.
        seed: of the training; the audit's seed is one larger.
        audit: class of the audit.

    Returns:
        The report.

    Raises:
        RuntimeError: a process failed.
    """
    job = base64.b64encode(pickle.dumps((fault, str(directory), seed, audit))) + b"\n"
    # After `seed_everything`, Lightning would seed all processes alike.
    own = {name: value for name, value in os.environ.items() if name != "PL_GLOBAL_SEED"}
    shared = {
        **own,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "NODE_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(fault.processes)]
        started = []
        for rank, log in enumerate(logs):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**shared, "LOCAL_RANK": str(rank)},
                )
            )
            stack.callback(process.kill)
            started.append(process)
            assert process.stdin
            process.stdin.write(job)
            process.stdin.flush()
        codes = [process.wait(_LIMIT) for process in started]
        if any(codes):
            words = "\n".join(_last_words(log) for log in logs)
            raise RuntimeError(f"the processes ended with exit codes {codes}: {words}")
    return AuditReport.load(Path(directory) / REPORT_NAME)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-_SHOWN:]


def _main() -> None:
    """Run one of the processes."""
    job = pickle.loads(base64.b64decode(sys.stdin.readline()))
    # This process's input is closed when its parent ends.
    threading.Thread(target=_follow, daemon=True).start()
    _train(*job)
    # Threads of gloo can abort an interpreter that ends; the report is written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _follow() -> None:
    # By descriptor: a thread that holds the lock of sys.stdin would abort Python at its end.
    while os.read(0, 1024):
        pass
    os._exit(1)


def _train(fault: Fault, directory: str, seed: int, audit: type[PrivacyAudit]) -> None:
    rank, package = int(os.environ["LOCAL_RANK"]), lightning()
    torch.set_num_threads(1)
    _seed(seed)
    module = fault.module(package.LightningModule)
    torch.manual_seed(100 + seed + rank)  # batches of their own
    strategies = import_module(f"{package.__name__}.strategies")
    apart = {
        "accelerator": "cpu",
        "devices": fault.processes,
        "strategy": strategies.DDPStrategy(process_group_backend="gloo"),
        "use_distributed_sampler": False,
    }
    _trainer(replace(fault, trainer=apart), Path(directory), fault.steps, seed, audit)[1].fit(
        module
    )


# --- Train a fault of the registry under audit, with the settings of its entry.


def train(
    fault: Fault,
    directory: str | os.PathLike[str],
    seed: int = 0,
    audit: type[PrivacyAudit] = PrivacyAudit,
) -> AuditReport | None:
    """Train a fault, in several processes or with a stop in the middle if it needs that.

    Args:
        fault: what to train.
        directory: for the audit's report and record.
        seed: of the training; the audit's seed is one larger.
        audit: class of the audit.

    Returns:
        The report; None if the audit made none.

    Raises:
        RuntimeError: one of several processes failed.
    """
    if fault.processes > 1:
        return train_together(fault, directory, seed, audit)
    _seed(seed)
    path = Path(directory)
    if not fault.resumes:
        return _fit(fault, path, fault.steps, seed, audit)[0].report
    _, trainer = _fit(fault, path, fault.steps // 2, seed, audit)
    saved = path.parent / "stopped.ckpt"
    trainer.save_checkpoint(saved)
    resumed = {"ckpt_path": saved, "weights_only": True}
    return _fit(fault, path, fault.steps, seed, audit, **resumed)[0].report


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _fit(
    fault: Fault, directory: Path, steps: int, seed: int, audit: type[PrivacyAudit], **resumed: Any
) -> tuple[PrivacyAudit, Any]:
    callback, trainer = _trainer(fault, directory, steps, seed, audit)
    trainer.fit(fault.module(lightning().LightningModule), **resumed)
    return callback, trainer


def _trainer(
    fault: Fault, directory: Path, steps: int, seed: int, audit: type[PrivacyAudit]
) -> tuple[PrivacyAudit, Any]:
    callback = audit(seed=seed + 1, report_dir=directory, on_violation="warn", **fault.audit)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "callbacks": [callback],
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": directory.parent,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return callback, lightning().Trainer(**{**settings, **fault.trainer})


if __name__ == "__main__":
    _main()
