"""Trainings in processes of their own, which may be killed or held up.

`python training_process.py` reads jobs from its standard input, a line of JSON each, and trains
each in a forked process of its own, whose number it prints; then, when that has ended, its exit
code.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_PATIENCE = 120.0


@dataclass(frozen=True)
class Job:
    """What a process trains.

    It saves in ``root/saved`` after ``every`` so many steps, waits at the end of the first epoch
    until the file ``stay`` is there, and no file may have more bytes than ``limit``.
    """

    root: str
    report_dir: str | None = None
    half_noise: bool = False
    steps: int = 96
    seed: int = 3
    every: int = 0
    ckpt: str | None = None
    stay: str | None = None
    limit: int | None = None
    workers: int = 0


class Trainings:
    """Starts jobs, one after the other in a process each."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def start(self, job: Job) -> int:
        """Start a job; the number of its process."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return self._told()

    def ended(self) -> int:
        """Wait for the job's end; its exit code, negative for a signal."""
        return self._told()

    def said(self) -> str:
        """What all jobs so far have printed."""
        return self._log.read_text()

    def _told(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the process of the trainings has ended"
        return int(line)


@contextlib.contextmanager
def trainings(log: Path) -> Iterator[Trainings]:
    """A process that trains, whose messages go to a file."""
    with open(log, "a") as messages:
        process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            start_new_session=True,
        )
        try:
            yield Trainings(process, log)
        finally:
            process.stdin.close()
            process.stdout.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def wait_for(path: Path, seconds: float = _PATIENCE) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made"
        time.sleep(0.005)


def _train(job: Job) -> None:
    import resource

    import numpy as np
    import pytorch_lightning as pl
    import torch
    from pytorch_lightning.callbacks import ModelCheckpoint
    from resume_support import StepwiseModule
    from training_support import trainer_for

    from lightning_audit import PrivacyAudit
    from lightning_audit.run import audit_run
    from lightning_audit.testing.faulty import HalfNoise

    audit_run.EPOCH_SHARE = math.inf  # epochs of tests are too short for bounds at each by time

    class Stay(pl.Callback):
        def on_train_start(self, *_: object) -> None:
            Path(job.root, "trains").touch()

        def on_train_epoch_end(self, *_: object) -> None:
            if job.stay:
                Path(job.root, "waits").touch()
                wait_for(Path(job.stay))

    class Loading(StepwiseModule):
        def plain_loader(self) -> torch.utils.data.DataLoader:
            loader = super().plain_loader()
            return torch.utils.data.DataLoader(
                loader.dataset, batch_size=loader.batch_size, num_workers=job.workers
            )

    callbacks: list[pl.Callback] = [
        PrivacyAudit(seed=job.seed, report_dir=job.report_dir, bounds=[], examinations=0),
        Stay(),
    ]
    if job.every:
        saved = Path(job.root, "saved")
        callbacks.append(ModelCheckpoint(saved, save_top_k=-1, every_n_train_steps=job.every))
    if job.limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.limit, resource.RLIM_INFINITY))
    module = Loading(optimizer_class=HalfNoise if job.half_noise else None)
    trainer = trainer_for(
        Path(job.root), *callbacks, max_steps=job.steps, enable_checkpointing=bool(job.every)
    )
    trainer.fit(module, ckpt_path=job.ckpt, weights_only=True if job.ckpt else None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    np.save(Path(job.root, "weights.npy"), weights.numpy())


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed here goes to the log
    import resume_support  # noqa: F401  # once, for all jobs

    for line in sys.stdin:
        number = os.fork()
        if number:
            print(number, file=answers, flush=True)
            _, status = os.waitpid(number, 0)
            print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
            continue
        code = 1
        try:
            import torch

            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            _train(Job(**json.loads(line)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    _main()
