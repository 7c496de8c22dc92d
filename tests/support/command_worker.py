"""Runs the command for one list of arguments a line, and answers what came of it.

A process of its own, so that a hang, a crash and a peak of memory are seen from outside.
"""

import contextlib
import io
import json
import re
import resource
import select
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from lightning_audit.cli import main as cli

SECONDS = 60


class Command:
    """The command in another process, which is ended where it takes too long."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        worker = [sys.executable, "-W", "error", str(Path(__file__))]
        self.process = subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self, *arguments: object) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([str(a) for a in arguments]).encode() + b"\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], SECONDS)
        line = stdout.readline() if ready else b""
        if not line:
            self.stop()
            self.start()
            raise AssertionError(f"no answer within {SECONDS} s, or a crash: {arguments}")
        return json.loads(line)


def answer(arguments: list[str]) -> dict[str, Any]:
    """Exit code, what was printed, and the peak of memory."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as error:
            code = error.code
        except BaseException:
            code = 1
            traceback.print_exc()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "gigabytes": peak()}


def peak() -> float:
    """Largest memory of this process so far, in gigabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins with what the process had that started this one
        told = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        assert told is not None
        return int(told[1]) / 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**3  # bytes on macOS


def main() -> None:
    # What asks for more than this gets a MemoryError instead of the machine's memory.
    resource.setrlimit(resource.RLIMIT_AS, (6 * 1024**3, 6 * 1024**3))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
