"""A training that is killed at any moment, also in the middle of writing, goes on as it would."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from resume_support import numbers
from stages import staged
from training_process import Job, Trainings, trainings, wait_for
from training_support import report_in

from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations

STEPS, EVERY = 96, 5


def entries_of(root: Path) -> bytes:
    """The bytes of a record after its first line, which names the run."""
    path = root / "audit" / RECORD_NAME
    return path.read_bytes().partition(b"\n")[2] if path.exists() else b""


def going_on(root: Path) -> Job:
    """The training from its last whole checkpoint, or from its beginning where there is none."""
    saved = (root / "saved").glob("*.ckpt")
    found = [(int(path.stem.rpartition("=")[2]), str(path)) for path in saved]
    ckpt = max(found, default=(0, None))[1]
    # The checkpoint's seed is taken, not this one.
    return Job(str(root), steps=STEPS, every=EVERY, ckpt=ckpt, seed=4 if ckpt else 3)


def killed(started: Trainings, job: Job, moment: float) -> bool:
    """Kill a job so many seconds after its first step; whether it had not ended before."""
    (Path(job.root) / "trains").unlink(missing_ok=True)
    number = started.start(job)
    wait_for(Path(job.root) / "trains")
    time.sleep(moment)
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    code = started.ended()
    assert code in (0, -signal.SIGKILL), started.said()
    return code != 0


@pytest.mark.parametrize("kills", staged(heavy=[3], nightly=[8]))
def test_a_training_killed_at_random_leaves_a_prefix_and_goes_on_to_the_same_report(
    tmp_path: Path, kills: int
) -> None:
    rng = random.Random(15)
    whole, lengths = tmp_path / "whole", set()
    with trainings(tmp_path / "log.txt") as started:
        started.start(going_on(whole))
        wait_for(whole / "trains")
        start = time.monotonic()
        assert started.ended() == 0, started.said()
        length = time.monotonic() - start
        expected = entries_of(whole)
        assert len(read_observations(whole / "audit" / RECORD_NAME)[1]) == STEPS
        for kill in range(kills):
            root = tmp_path / f"killed-{kill}"
            # Until it ends, so that it is also killed when it goes on.
            while killed(started, going_on(root), rng.uniform(0.0, length)):
                left = entries_of(root)
                assert expected.startswith(left)
                lengths.add(len(left))
                if main(["check", str(root)]) != 2:  # it had just ended
                    assert numbers(report_in(root)) == numbers(report_in(whole))
            assert numbers(report_in(root)) == numbers(report_in(whole))
            assert entries_of(root) == expected
            assert not (root / "audit" / "run-2").exists()
            assert not list((root / "audit").glob(".*.partial"))
    assert len(lengths) > kills // 2  # at different moments
