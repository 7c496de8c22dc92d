"""Starts two processes that train together, and reads what they say."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from places import SUPPORT


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_both(
    folder: Path, *scenarios: str, script: str = "two_processes.py"
) -> tuple[list[int], list[str]]:
    """Exit codes and messages of two processes that train together."""
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    shared.pop("PL_GLOBAL_SEED", None)  # of tests before this one
    command = [sys.executable, str(SUPPORT / script), str(folder), *scenarios]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(open(folder / f"out-{rank}.txt", "w")) for rank in range(2)]
        both = [
            subprocess.Popen(
                command,
                env={**shared, "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank, output in enumerate(outputs)
        ]
        try:
            codes = [process.wait(timeout=400) for process in both]
        finally:
            for process in both:
                process.kill()
                process.wait()
    return codes, [(folder / f"out-{rank}.txt").read_text() for rank in range(2)]
